"""The directories of jobs and their generations."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.executors.generations.disk import FileLock
from shadowprice.executors.generations.store import GenerationStore

NOBODY = 65_534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory of a user whom permissions bind: root ignores them."""
    # Folders of tests are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="store-", dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def test_read_only_directories_of_a_job_are_deleted_with_it(open_folder: Path) -> None:
    """Package caches have such directories."""
    store = GenerationStore(open_folder / "executor")
    own = store.job("job")
    for name in ("work", "checkpoints"):
        (own / name / "cache" / "deep").mkdir(parents=True)
        (own / name / "cache" / "deep" / "file").touch()
        (own / name / "cache" / "elsewhere").symlink_to("/")
        for closed in ("cache/deep", "cache", ""):
            (own / name / closed).chmod(0o500)
    if os.geteuid() == 0:
        for path in (open_folder / "executor", *(open_folder / "executor").rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    child = os.fork()
    if not child:  # another interpreter may be closed to this user
        status = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresuid(NOBODY, NOBODY, NOBODY)
            status = int(not store.delete_job_data("job"))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert {path.name for path in own.iterdir()} == {"fence"}


def test_a_released_lock_is_free_although_a_process_inherited_it(tmp_path: Path) -> None:
    """Every new process has a copy of it between fork and exec."""
    lock = FileLock.try_acquire(tmp_path)
    assert lock is not None
    assert FileLock.try_acquire(tmp_path) is None
    with subprocess.Popen(["sleep", "1000"], pass_fds=[lock.descriptor]) as heir:
        lock.release()
        second = FileLock.try_acquire(tmp_path)
        heir.kill()
    assert second is not None
    second.release()

"""The store of uploads when its process is killed, and the files of a job."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from shadowprice.service.problems import ProblemError
from shadowprice.service.uploads import IncomingUpload, UploadStore
from shadowprice.uploads import archive
from tests.unit.uploads.test_archive import DIR, END, LINK, described, member

CONTENT = (
    member("d", DIR) + member("d/a", content=b"x" * 2000) + member("l", LINK, linkname="d/a") + END
)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def kill_at_line(count: int, modules: tuple[str, ...], work: Callable[[], None]) -> bool:
    """Run work in a child that kills itself before a line; return whether it was killed.

    Lines of the modules count, in the order in which they run.
    """
    child = os.fork()
    if child == 0:
        remaining = count

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal remaining
            if frame.f_code.co_filename not in modules:
                return None
            if event == "line":
                remaining -= 1
                if remaining < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            sys.settrace(trace)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def store(folder: Path) -> UploadStore:
    return UploadStore(folder, 1 << 20, 1 << 20)


def receive(uploads: UploadStore) -> None:
    with uploads.receive("vision", DIGEST, 5, limited=True) as incoming:
        incoming.expect(len(CONTENT))
        incoming.write(CONTENT[:1000])
        incoming.write(CONTENT[1000:])
        incoming.complete()


def test_a_killed_upload_is_complete_or_gone(tmp_path: Path) -> None:
    import shadowprice.service.uploads as module

    outcomes: list[bool] = []
    for count in range(10_000):
        folder = tmp_path / str(count)
        killed = kill_at_line(count, (module.__file__,), lambda at=folder: receive(store(at)))
        uploads = store(folder)
        uploads.open()
        found = uploads.find("vision", DIGEST)
        names = sorted(path.name for path in folder.glob("*/*"))
        if found is None:
            assert names == []
        else:
            assert names == [f"{DIGEST}.tar"]
            assert found.path.read_bytes() == CONTENT
        outcomes.append(found is not None)
        if not killed:
            break
    assert outcomes == sorted(outcomes)  # once it is there, it stays
    assert outcomes[-1]
    assert not outcomes[0]
    assert len(outcomes) > 50


def test_a_killed_unpacking_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(CONTENT)
    expected = None
    for count in range(0, 10_000, 7):
        folder = tmp_path / str(count)
        folder.mkdir()

        def work(target: Path = folder / "work") -> None:
            archive.unpack(tmp_path / "archive", target)

        killed = kill_at_line(count, (archive.__file__,), work)
        work()
        assert [path.name for path in folder.iterdir()] == ["work"]
        found = {name: what for name, (what, _) in described(folder / "work").items()}
        assert found.keys() == {"d", "d/a", "l"}
        assert found["d/a"][1] == b"x" * 2000
        assert expected in (None, found)
        expected = found
        if not killed:
            break
    assert count > 100


def test_a_full_disk_is_a_problem_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = store(tmp_path / "uploads")
    uploads.open()

    def fails(self: IncomingUpload, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(IncomingUpload, "write", fails)
    with pytest.raises(ProblemError, match="uploads can't be stored: No space left") as caught:
        receive(uploads)
    assert caught.value.status == 503
    assert list((tmp_path / "uploads").glob("*/*")) == []
    assert uploads._arriving.total() == 0


def test_an_upload_that_another_program_removed_is_unknown(tmp_path: Path) -> None:
    uploads = store(tmp_path / "uploads")
    uploads.open()
    receive(uploads)
    found = uploads.use("vision", DIGEST, 9)
    assert found is not None
    assert (found.used, found.size) == (9, len(CONTENT))
    assert uploads.find(None, DIGEST) is None
    found.path.unlink()
    assert uploads.use("vision", DIGEST, 10) is None
    assert uploads._sizes.total() == 0

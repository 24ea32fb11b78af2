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

from shadowprice.service.clock import SECOND
from shadowprice.service.problems import ProblemError
from shadowprice.service.uploads import (
    MIN_ACCOUNTED_BYTES,
    MIN_KEEP_SECONDS,
    IncomingUpload,
    UploadStore,
)
from shadowprice.uploads import archive, unpacking
from tests.support.archives import DIR, END, LINK, describe_tree, member
from tests.support.examples import RUN_ALL

CONTENT = (
    member("d", DIR) + member("d/a", content=b"x" * 2000) + member("l", LINK, linkname="d/a") + END
)
DIGEST = hashlib.sha256(CONTENT).hexdigest()

LINES_APART = 1 if RUN_ALL else 5
"""Lines between two kills."""


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
        incoming.complete(7)


def test_killed_upload_is_complete_or_removed(tmp_path: Path) -> None:
    import shadowprice.service.uploads as module

    outcomes: list[bool] = []
    for count in range(0, 10_000, LINES_APART):
        folder = tmp_path / str(count)
        killed = kill_at_line(count, (module.__file__,), lambda at=folder: receive(store(at)))
        uploads = store(folder)
        uploads.open()
        result = uploads.find("vision", DIGEST)
        names = sorted(path.name for path in folder.glob("*/*"))
        if result is None:
            assert names == []
        else:
            assert names == [f"{DIGEST}.tar"]
            assert result.path.read_bytes() == CONTENT
        outcomes.append(result is not None)
        if not killed:
            break
    assert outcomes == sorted(outcomes)  # once it is there, it stays
    assert outcomes[-1]
    assert not outcomes[0]
    assert count > 50


def test_a_killed_unpacking_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(CONTENT)
    expected = None
    for count in range(0, 10_000, 7 * LINES_APART):
        folder = tmp_path / str(count)
        folder.mkdir()

        def work(target: Path = folder / "work") -> None:
            unpacking.unpack(tmp_path / "archive", target)

        killed = kill_at_line(count, (archive.__file__, unpacking.__file__), work)
        work()
        assert sorted(path.name for path in folder.iterdir()) == ["work", "work.done"]
        entries = {name: what for name, (what, _) in describe_tree(folder / "work").items()}
        assert entries.keys() == {"d", "d/a", "l"}
        assert entries["d/a"][1] == b"x" * 2000
        assert expected in (None, entries)
        expected = entries
        if not killed:
            break
    assert count > 100


def test_a_killed_addition_of_released_files_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(CONTENT)
    modules = (archive.__file__, unpacking.__file__)
    for count in range(0, 10_000, 7 * LINES_APART):
        folder = tmp_path / str(count)
        folder.mkdir()
        work = folder / "work"
        unpacking.unpack(tmp_path / "archive", work)
        (work / "l").unlink()
        (work / "l").write_text("of the job")
        (work / "d" / "result").write_text("of the job")

        def again(work: Path = work) -> None:
            unpacking.remove_unchanged(tmp_path / "archive", work)
            unpacking.unpack(tmp_path / "archive", work)

        killed = kill_at_line(count, modules, again)
        unpacking.unpack(tmp_path / "archive", work)
        assert sorted(path.name for path in folder.iterdir()) == ["work", "work.done"]
        assert (work / "l").read_text() == (work / "d" / "result").read_text() == "of the job"
        assert (work / "d" / "a").read_bytes() == b"x" * 2000
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
    result = uploads.find("vision", DIGEST)
    assert result is not None
    assert (
        result.used == result.path.stat().st_mtime_ns == 7
    )  # the end, not the begin, of receiving
    result = uploads.use("vision", DIGEST, 9)
    assert result is not None
    assert (result.used, result.size) == (9, len(CONTENT))
    assert uploads.find(None, DIGEST) is None
    result.path.unlink()
    assert uploads.use("vision", DIGEST, 10) is None
    assert uploads._sizes.total() == 0


def receive_content(uploads: UploadStore, content: bytes, tenant: str = "vision") -> str:
    """Store an upload, and return its digest."""
    digest = hashlib.sha256(content).hexdigest()
    with uploads.receive(tenant, digest, 5, limited=True) as incoming:
        incoming.expect(len(content))
        incoming.write(content)
        incoming.complete(7)
    return digest


def contents(count: int, size: int = 100) -> list[bytes]:
    return [member("a", content=bytes([n]) * size) + END for n in range(count)]


def test_failing_file_does_not_stop_the_purge(tmp_path: Path) -> None:
    in_use: list[tuple[str, str]] = []
    uploads = UploadStore(tmp_path, 1 << 20, 1 << 20, lambda: in_use)
    uploads.open()
    digests = [receive_content(uploads, content) for content in contents(4)]
    paths = [uploads.find("vision", digest).path for digest in digests]  # type: ignore[union-attr]
    in_use += [("vision", digests[0])]
    paths[0].unlink()
    paths[1].unlink()
    paths[2].unlink()
    (paths[2] / "below").mkdir(parents=True)
    with pytest.raises(OSError, match=paths[2].name):
        uploads.purge_unused(10**18)
    results = [uploads.find("vision", digest) is not None for digest in digests]
    assert results == [False, False, True, False]
    assert not paths[3].exists()
    (paths[2] / "below").rmdir()
    paths[2].rmdir()
    uploads.purge_unused(10**18)
    assert uploads._sizes.total() == 0


def test_the_limit_of_a_tenant_limits_the_number_of_uploads(tmp_path: Path) -> None:
    uploads = UploadStore(tmp_path, 1 << 20, 3 * MIN_ACCOUNTED_BYTES)
    uploads.open()
    for content in contents(3):
        receive_content(uploads, content)
    for reopened in (False, True):
        if reopened:
            uploads.open()
        with pytest.raises(ProblemError, match="196,608 bytes and 65,536 new bytes exceed the"):
            receive_content(uploads, CONTENT)
        assert uploads._arriving.total() == 0
    receive_content(uploads, CONTENT, "speech")


def test_uploads_are_deleted_only_if_that_frees_enough_space(tmp_path: Path) -> None:
    in_use: list[tuple[str, str]] = []
    size = 2 * MIN_ACCOUNTED_BYTES
    uploads = UploadStore(tmp_path, 1 << 20, 3 * size, lambda: in_use)
    uploads.open()
    now = 2 * MIN_KEEP_SECONDS * SECOND
    some = contents(3, size - 3 * 512)
    digests = [receive_content(uploads, content) for content in some]
    for age, digest in enumerate(digests):
        uploads.use("vision", digest, 5 - age)

    def kept() -> list[bool]:
        return [uploads.find("vision", digest) is not None for digest in digests]

    def reserve(size: int) -> None:
        with uploads.receive("vision", DIGEST, now, limited=True) as incoming:
            incoming.expect(size)

    in_use += [("vision", digests[2])]
    with pytest.raises(ProblemError):
        reserve(2 * size + 1)
    assert kept() == [True, True, True]
    reserve(size)
    assert kept() == [True, False, True]
    reserve(2 * size)
    assert kept() == [False, False, True]


def test_foreign_entries_of_the_directory_are_kept(tmp_path: Path) -> None:
    uploads = store(tmp_path)
    uploads.open()
    receive(uploads)
    result = uploads.find("vision", DIGEST)
    assert result is not None
    owner = result.path.parent
    (tmp_path / "lost+found").mkdir(mode=0)
    (tmp_path / "README").write_text("x")
    (tmp_path / ("0" * 32)).write_text("a file")
    (tmp_path / ("1" * 32)).symlink_to(tmp_path / "lost+found")
    (owner / "notes.tar").write_text("x")
    (owner / "folder.part").mkdir()
    (owner / f"{'0' * 64}.tar").symlink_to(result.path)
    (owner / "left.part").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    uploads.open()
    assert set(before) - set(tmp_path.rglob("*")) == {owner / "left.part"}
    assert {name: list(found) for name, found in uploads._stored.items()} == {owner.name: [DIGEST]}

"""Archives: packed and unpacked, beside GNU tar, and hostile ones."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import socket
import stat
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.uploads.archive import MAX_FILE_BYTES, ArchiveError, read_entries
from shadowprice.uploads.packing import pack, select_files
from shadowprice.uploads.unpacking import remove_unpacked, unpack
from tests.support.archives import DIR, END, HOSTILE, LINK, describe_tree, make_tree, member
from tests.support.examples import example_count
from tests.support.waiting import WAIT_LIMIT_SECONDS

LIMIT = 1 << 24


def packed(root: Path) -> tuple[bytes, str]:
    stream = io.BytesIO()
    digest = pack(select_files(root, max_bytes=LIMIT), stream)
    return stream.getvalue(), digest


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def unpacked(content: bytes, folder: Path) -> Path:
    (folder / "archive").write_bytes(content)
    unpack(folder / "archive", folder / "out")
    return folder / "out"


def test_a_directory_arrives_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_tree(root)
    content, digest = packed(root)
    assert digest == hashlib.sha256(content).hexdigest()
    assert len(content) == select_files(root, max_bytes=LIMIT).size
    expected = describe_tree(root)
    expected["inside"] = ("train.py", expected["inside"][1])  # absolute in the directory
    assert describe_tree(unpacked(content, tmp_path)) == expected
    by_tar = tmp_path / "by_tar"
    by_tar.mkdir()
    subprocess.run(
        ["tar", "-xpf", str(tmp_path / "archive"), "-C", str(by_tar)],
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert describe_tree(by_tar) == expected
    with tarfile.open(tmp_path / "archive") as tar:
        assert {member.name for member in tar} == set(expected)
        assert {(member.uid, member.gid, member.uname) for member in tar} == {(0, 0, "")}


def test_equal_directories_have_an_equal_digest(tmp_path: Path) -> None:
    make_tree(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", symlinks=True)
    (tmp_path / "b" / "inside").unlink()
    (tmp_path / "b" / "inside").symlink_to(tmp_path / "b" / "train.py")
    moment = (tmp_path / "a" / "inside").lstat().st_mtime
    os.utime(tmp_path / "b" / "inside", (moment, moment), follow_symlinks=False)
    assert packed(tmp_path / "a") == packed(tmp_path / "b")
    (tmp_path / "b" / "train.py").chmod(0o755)
    assert packed(tmp_path / "a")[1] != packed(tmp_path / "b")[1]


def test_an_archive_of_gnu_tar_is_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_tree(root)
    (root / "inside").unlink()
    command = ["tar", "--format=pax", "-cf", str(tmp_path / "archive"), "-C", str(root), "."]
    subprocess.run(command, check=True, timeout=WAIT_LIMIT_SECONDS)
    unpack(tmp_path / "archive", tmp_path / "out")
    assert describe_tree(tmp_path / "out") == describe_tree(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_files_belong_to_the_user_of_the_job(tmp_path: Path) -> None:
    make_tree(tmp_path / "root")
    (tmp_path / "archive").write_bytes(packed(tmp_path / "root")[0])
    unpack(tmp_path / "archive", tmp_path / "out", owner=(4711, 4712))
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (4711, 4712)
    status = (tmp_path / "root" / "train.py").stat()
    assert status.st_uid == 0


def test_links_that_lead_outside_are_left_out_and_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "p" / "q").mkdir(parents=True)
    (root / "top").mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "absolute").symlink_to("/etc/passwd")
    (root / "climbs").symlink_to("../secret")
    (root / "p" / "q" / "turn").symlink_to("../../top")
    (root / "turns").symlink_to("p/q/turn/../../secret")  # within, if read as text
    (root / "dangling").symlink_to("nothing")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "socket"))
    selection = select_files(root, max_bytes=LIMIT)
    assert selection.left_out == [
        "'absolute' -> '/etc/passwd'",
        "'climbs' -> '../secret'",
        "'pipe' (not a file)",
        "'socket' (not a file)",
        "'turns' -> 'p/q/turn/../../secret'",
    ]
    stream = io.BytesIO()
    pack(selection, stream)
    assert sorted(describe_tree(unpacked(stream.getvalue(), tmp_path))) == [
        "dangling", "p", "p/q", "p/q/turn", "top",
    ]  # fmt: skip
    assert b"secret" not in stream.getvalue()


@pytest.mark.parametrize("change", ["grows", "shrinks", "vanishes", "is touched", "is a link"])
def test_a_file_that_changes_is_an_error(tmp_path: Path, change: str) -> None:
    file = tmp_path / "metrics.log"
    file.write_text("step 1\n")
    selection = select_files(tmp_path, max_bytes=LIMIT)
    if change == "grows":
        with file.open("a") as stream:
            stream.write("step 2\n")
    elif change == "shrinks":
        file.write_text("")
    elif change == "vanishes":
        file.unlink()
    elif change == "is touched":
        os.utime(file, ns=(1, 1))
    else:
        file.rename(tmp_path / "other")
        file.symlink_to("/etc/passwd")
    message = "can't be read" if change == "is a link" else "changed while it was packed"
    with pytest.raises(InputError, match=re.escape(f"{file}: {message}")):
        pack(selection, io.BytesIO())


def test_a_limit_names_the_largest_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_bytes(bytes(300_000))
    (tmp_path / "small").write_bytes(bytes(100))
    with pytest.raises(InputError) as caught:
        select_files(tmp_path, max_bytes=200_000)
    assert str(caught.value).startswith(
        f"{tmp_path}: its files take 296.0 KiB, above the service's"
    )
    assert "limit of 195.3 KiB; the largest: 'data/train.bin' 293.0 KiB, " in str(caught.value)
    assert ".shadowpriceignore" in str(caught.value)
    (tmp_path / ".shadowpriceignore").write_text("*.bin\n")
    assert select_files(tmp_path, max_bytes=200_000).size < 10_000
    with pytest.raises(InputError, match="more than 2 files and directories; the first: "):
        select_files(tmp_path, max_bytes=200_000, max_entries=2)


def test_a_file_of_8_gib_is_refused(tmp_path: Path) -> None:
    for size, fits in ((MAX_FILE_BYTES, True), (MAX_FILE_BYTES + 1, False)):
        with (tmp_path / "large").open("wb") as file:
            file.truncate(size)  # takes no space
        if fits:
            [item] = select_files(tmp_path, max_bytes=1 << 40).files
            header = tarfile.TarInfo("large")
            header.size = item.entry.size
            assert len(header.tobuf(tarfile.USTAR_FORMAT)) == 512
            continue
        with pytest.raises(
            InputError, match=r"large: takes 8\.0 GiB, but a file must be below 8 GiB"
        ):
            select_files(tmp_path, max_bytes=1 << 40)
        with pytest.raises(InputError, match="above the service's limit"):
            select_files(tmp_path, max_bytes=1 << 20)


# Hostile archives


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    content, message = HOSTILE[name]
    with pytest.raises(ArchiveError, match=re.escape(message)):
        list(read_entries(io.BytesIO(content)))
    (tmp_path / "archive").write_bytes(content)
    if "more than" in message:  # 20,000 files take long to write and to remove
        monkeypatch.setattr("shadowprice.uploads.archive.MAX_ENTRIES", 20)
    with pytest.raises(ArchiveError):
        unpack(tmp_path / "archive", tmp_path / "out")
    assert names(tmp_path) == ["archive"]


def test_an_extended_header_may_have_many_records(tmp_path: Path) -> None:
    records = b"9 uid=12\n" * 1_500 + b"12 path=abc\n"
    content = member("x", tarfile.XHDTYPE, records) + member("a") + END
    [entry] = read_entries(io.BytesIO(content))
    assert entry.path == "abc"


def test_creation_times_and_padding_are_ignored(tmp_path: Path) -> None:
    header = {"LIBARCHIVE.creationtime": "1700000000.5"}  # bsdtar of macOS writes it
    content = member("a", pax_headers=header) + END + bytes(10_240)
    [entry] = read_entries(io.BytesIO(content))
    assert entry.path == "a"


def test_special_bits_are_dropped(tmp_path: Path) -> None:
    content = member("a", mode=0o6755) + member("d", DIR, mode=0o3000) + END
    out = unpacked(content, tmp_path)
    assert stat.S_IMODE((out / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "d").stat().st_mode) == 0o700  # so that it can be removed


@settings(max_examples=example_count(400), deadline=None)
@given(st.data())
def test_a_damaged_archive_never_writes_outside(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(
        member("d", DIR) + member("d/a", content=b"x" * 600) + member("l", LINK, linkname="d/a")
        + member("ü" * 60) + END
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.sampled_from(b"\0/.0127x\xff"))
        block = at // 512 * 512
        header = content[block : block + 512]
        if data.draw(st.booleans()) and header[257:262] == b"ustar":  # with the right checksum
            total = sum(header[:148]) + sum(header[156:]) + 256
            content[block + 148 : block + 156] = b"%06o\0 " % total
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "archive").write_bytes(content)
    try:
        unpack(folder / "archive", folder / "out")
    except ArchiveError:
        assert names(folder) == ["archive"]
    else:
        assert names(folder) == ["archive", "out", "out.done"]
        for path in (folder / "out").rglob("*"):
            assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder / "out"))


def test_a_directory_in_use_is_left_alone_and_an_interrupted_one_is_filled(tmp_path: Path) -> None:
    archive, out = tmp_path / "archive", tmp_path / "out"
    archive.write_bytes(member("a", content=b"first") + END)
    (tmp_path / "out.new-x").mkdir()
    (tmp_path / "out.new-x" / "half").write_text("of an interrupted call")
    out.mkdir()
    (out / "left").write_text("of another job")
    unpack(archive, out)
    assert describe_tree(out).keys() == {"a"}
    (out / "a").unlink()  # by the job
    archive.unlink()
    unpack(archive, out)
    assert names(out) == []
    assert names(tmp_path) == ["out", "out.done"]


def test_a_directory_of_another_archive_is_filled_again(tmp_path: Path) -> None:
    archives = [tmp_path / "first", tmp_path / "second"]
    for archive in archives:
        archive.write_bytes(member(archive.name) + END)
        unpack(archive, tmp_path / "out")
        assert names(tmp_path / "out") == [archive.name]


def test_a_removed_directory_counts_as_empty_although_files_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, folder = tmp_path / "archive", tmp_path / "job"
    archive.write_bytes(member("a", content=b"first") + END)
    folder.mkdir()
    unpack(archive, folder / "work")
    (folder / "work" / "a").write_text("changed by the job")
    (folder / "work.new-x").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
        remove_unpacked(folder / "work")
        assert (folder / "work" / "a").exists()
    unpack(archive, folder / "work")
    assert (folder / "work" / "a").read_text() == "first"
    remove_unpacked(folder / "work")
    assert names(folder) == []


def test_attempts_at_the_same_time_fill_a_directory_once(tmp_path: Path) -> None:
    """A cancelled attempt continues in its thread, and ends after a later one."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    content = member("a", content=b"first") + member("b", content=b"second") + END
    archive.write_bytes(content)
    begun, go_on = threading.Event(), threading.Event()

    class Slow(type(archive)):  # type: ignore[misc]
        def open(self, *_: Any) -> Any:
            stream = io.BytesIO(content)
            read = stream.read

            def slow_read(size: int = -1) -> bytes:
                begun.set()
                go_on.wait(WAIT_LIMIT_SECONDS)
                return read(size)

            stream.read = slow_read  # type: ignore[method-assign, assignment]
            return stream

    cancelled = threading.Thread(target=unpack, args=(Slow(archive), out))
    cancelled.start()
    begun.wait(WAIT_LIMIT_SECONDS)
    unpack(archive, out)
    (out / "a").write_text("changed by the job")
    go_on.set()
    cancelled.join(WAIT_LIMIT_SECONDS)
    assert (out / "a").read_text() == "changed by the job"
    assert names(out) == ["a", "b"]
    assert names(tmp_path) == ["archive", "out", "out.done"]

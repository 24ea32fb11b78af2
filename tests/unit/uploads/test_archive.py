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
from shadowprice.uploads.archive import MAX_ENTRIES, MAX_FILE_BYTES, ArchiveError, read_entries
from shadowprice.uploads.packing import pack, select_files
from shadowprice.uploads.unpacking import remove_unpacked, unpack
from tests.support.examples import example_count
from tests.support.waiting import WAIT_LIMIT_SECONDS

LIMIT = 1 << 24


def make_tree(root: Path) -> None:
    """Make a directory with everything that an archive keeps."""
    root.mkdir()
    (root / "train.py").write_text("print(1)\n")
    (root / "run me.sh").write_text("#!/bin/sh\n")
    (root / "run me.sh").chmod(0o755)
    (root / "größe ✓").mkdir()
    (root / "größe ✓" / "datei ü").write_bytes(bytes(range(256)) * 9)
    (root / "empty" / "deep").mkdir(parents=True)
    (root / "private").write_text("x")
    (root / "private").chmod(0o400)
    (root / ("n" * 200)).write_text("a long name")
    (root / ("d" * 120) / ("e" * 120)).mkdir(parents=True)
    (root / ("d" * 120) / ("e" * 120) / "f").write_text("a long path")
    (root / os.fsdecode(b"latin-\xe9")).write_text("a name that isn't UTF-8")
    (root / "link").symlink_to("train.py")
    (root / "empty" / "up").symlink_to("../größe ✓/datei ü")
    (root / "inside").symlink_to(root / "train.py")
    (root / "here").symlink_to(".")
    for number, path in enumerate(sorted(root.rglob("*"))):
        os.utime(path, (10**9 + number, 10**9 + number), follow_symlinks=False)


def packed(root: Path) -> tuple[bytes, str]:
    stream = io.BytesIO()
    digest = pack(select_files(root, max_bytes=LIMIT), stream)
    return stream.getvalue(), digest


def described(root: Path) -> dict[str, Any]:
    """Return what a directory contains: kinds, modes, times, contents and targets."""
    found = {}
    for path in root.rglob("*"):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            what: Any = str(path.readlink())
        else:
            what = path.read_bytes() if path.is_file() else None
            what = stat.S_IMODE(status.st_mode), what
        found[str(path.relative_to(root))] = (what, int(status.st_mtime))
    return found


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
    expected = described(root)
    expected["inside"] = ("train.py", expected["inside"][1])  # absolute in the directory
    assert described(unpacked(content, tmp_path)) == expected
    by_tar = tmp_path / "by_tar"
    by_tar.mkdir()
    subprocess.run(
        ["tar", "-xpf", str(tmp_path / "archive"), "-C", str(by_tar)],
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert described(by_tar) == expected
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
    assert described(tmp_path / "out") == described(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_files_belong_to_the_user_of_the_job(tmp_path: Path) -> None:
    make_tree(tmp_path / "root")
    (tmp_path / "archive").write_bytes(packed(tmp_path / "root")[0])
    unpack(tmp_path / "archive", tmp_path / "out", owner=(4711, 4712))
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (4711, 4712)
    status = (tmp_path / "root" / "train.py").stat()
    assert status.st_uid == 0


def test_what_leads_outside_is_left_out_and_named(tmp_path: Path) -> None:
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
    assert sorted(described(unpacked(stream.getvalue(), tmp_path))) == [
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


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **more: Any) -> bytes:
    """Return a header and its content, as tarfile writes them."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in more.items():
        setattr(info, key, value)
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % 512)


END = bytes(1024)
DIR, LINK = tarfile.DIRTYPE, tarfile.SYMTYPE
WRONG_SUM = bytearray(member("a"))
WRONG_SUM[0] ^= 1
HUGE = bytearray(member("a"))
HUGE[124:136] = b"\x80" + bytes(10) + b"\x01"  # base 256, as GNU tar writes large sizes
HUGE[148:156] = b"%06o\0 " % (sum(HUGE[:148]) + sum(HUGE[156:]) + 256)
DEEP = b"".join(member("a/" * 400 + f"{number:06}") for number in range(MAX_ENTRIES - 399))

HOSTILE = {
    "empty": (b"", "ends without the two empty blocks"),
    "no end": (member("a"), "ends without the two empty blocks"),
    "cut": (member("a", content=bytes(600))[:1000] + b"", "ends within an entry"),
    "no tar": (b"PK\3\4" + bytes(2000), "is not a POSIX tar file at byte 0"),
    "gzip": (b"\x1f\x8b" + bytes(2000), "is not a POSIX tar file at byte 0"),
    "sum": (bytes(WRONG_SUM) + END, "is not a POSIX tar file at byte 0"),
    "size": (bytes(HUGE) + END, "has a number that isn't octal"),
    "absolute": (member("/etc/cron.d/x") + END, "'/etc/cron.d/x': is not a path within"),
    "climbs": (member("a/../../x") + END, "'a/../../x': is not a path within"),
    "only dots": (member("..", DIR) + END, "is not a path within"),
    "double slash": (member("a//b") + END, "is not a path within"),
    "dot file": (member(".") + END, "is not a path within"),
    "null": (member("a", pax_headers={"path": "a\0b"}) + END, "is not a path within"),
    "link out": (member("a", LINK, linkname="../x") + END, "is a link to '../x'"),
    "link absolute": (member("a", LINK, linkname="/etc") + END, "is a link to '/etc'"),
    "link turns": (member("a", LINK, linkname="b/../../c") + END, "is a link to"),
    "link empty": (member("a", LINK) + END, "is a link to ''"),
    "through link": (
        member("a", LINK, linkname="b") + member("b", DIR) + member("a/x") + END,
        "'a/x': lies beneath 'a', no directory",
    ),
    "link over directory": (
        member("a/x") + member("a", LINK, linkname="b") + END,
        "'a': is repeated",
    ),
    "beneath file": (member("a") + member("a/b") + END, "lies beneath 'a'"),
    "repeated": (member("a") + member("a") + END, "'a': is repeated"),
    "repeated otherwise": (member("./a") + member("a") + END, "'a': is repeated"),
    "hard link": (member("a", tarfile.LNKTYPE, linkname="b") + END, "is a hard link"),
    "device": (member("a", tarfile.CHRTYPE) + END, "is a device"),
    "block device": (member("a", tarfile.BLKTYPE) + END, "is a device"),
    "pipe": (member("a", tarfile.FIFOTYPE) + END, "is a named pipe"),
    "sparse": (member("a", tarfile.GNUTYPE_SPARSE) + END, "is a sparse file"),
    "sparse by attribute": (
        member("a", pax_headers={"GNU.sparse.realsize": str(1 << 50)}) + END,
        "extended attribute 'GNU.sparse.realsize'",
    ),
    "size by attribute": (member("a", pax_headers={"size": "9"}) + END, "attribute 'size'"),
    "long attribute": (member("a", pax_headers={"comment": "x" * 20_000}) + END, "extended header"),
    "global path": (
        member("x", tarfile.XGLTYPE, b"9 path=x\n") + member("a") + END,
        "global header",
    ),
    "broken attribute": (member("x", tarfile.XHDTYPE, b"0 path=x\n") + END, "malformed extended"),
    "record without value": (member("x", tarfile.XHDTYPE, b"7 path\n") + END, "malformed extended"),
    "record beyond the end": (member("x", tarfile.XHDTYPE, b"99 path=x\n") + END, "malformed"),
    "second record broken": (
        member("x", tarfile.XHDTYPE, b"9 uid=12\n11 path=x\n") + END,
        "malformed extended",
    ),
    "two headers of one entry": (
        2 * member("x", tarfile.XHDTYPE, b"9 path=y\n") + member("a") + END,
        "two extended headers of one entry",
    ),
    "header of nothing repeated": (
        2 * member("x", tarfile.XHDTYPE) + member("a") + END,
        "two extended headers of one entry",
    ),
    "many global headers": (
        17 * member("x", tarfile.XGLTYPE, b"9 uid=12\n") + member("a") + END,
        "more than 16 global headers",
    ),
    "directory itself twice": (2 * member("./", DIR) + END, "the directory itself more than once"),
    "directory with content": (member("a", DIR, b"x") + END, "has content, but isn't a file"),
    "long path": (member("a/" * 600) + END, "is longer than"),
    "long name": (member("a" * 300) + END, "is longer than"),
    "many": (b"".join(member(str(n)) for n in range(MAX_ENTRIES + 1)) + END, "more than 20,000"),
    "many implied": (DEEP + END, "more than 20,000"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    with pytest.raises(ArchiveError, match=re.escape(message)):
        list(read_entries(io.BytesIO(content)))
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(ArchiveError):
        unpack(tmp_path / "archive", tmp_path / "out")
    assert names(tmp_path) == ["archive"]


def test_an_extended_header_may_have_many_records(tmp_path: Path) -> None:
    records = b"9 uid=12\n" * 1_500 + b"12 path=abc\n"
    content = member("x", tarfile.XHDTYPE, records) + member("a") + END
    [entry] = read_entries(io.BytesIO(content))
    assert entry.path == "abc"


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
    assert described(out).keys() == {"a"}
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
    """A cancelled attempt goes on in its thread, and reaches its end after a later one."""
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

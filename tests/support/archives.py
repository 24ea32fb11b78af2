"""Tar archives of uploads, valid and hostile."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path
from typing import Any

from shadowprice.uploads.archive import MAX_ENTRIES


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


def describe_tree(root: Path) -> dict[str, Any]:
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


def base_256_size(size: int) -> bytes:
    """Return a header with a size to base 256, as GNU tar writes large ones."""
    header = bytearray(member("a"))
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 256)
    return bytes(header)


def numbered_files(folder: str, count: int) -> bytes:
    """Return empty files 000000, 000001, ... of `folder`, faster than `member` does."""
    header = bytearray(member(folder + "000000"))
    name = slice(len(folder), len(folder) + 6)
    zeros = int(header[148:154], 8)
    parts = []
    for number in range(count):
        header[name] = b"%06d" % number
        header[148:154] = b"%06o" % (zeros + sum(header[name]) - 6 * ord("0"))
        parts.append(bytes(header))
    return b"".join(parts)


HUGE = base_256_size(1)
DEEP = numbered_files("a/" * 9, MAX_ENTRIES - 8)
HOSTILE = {
    "empty": (b"", "ends without the two empty blocks"),
    "no end": (member("a"), "ends without the two empty blocks"),
    "cut": (member("a", content=bytes(600))[:1000] + b"", "ends within an entry"),
    "no tar": (b"PK\3\4" + bytes(2000), "is not a POSIX tar file at byte 0"),
    "gzip": (b"\x1f\x8b" + bytes(2000), "is not a POSIX tar file at byte 0"),
    "sum": (bytes(WRONG_SUM) + END, "is not a POSIX tar file at byte 0"),
    "size": (HUGE + END, "has a number that isn't octal"),
    "large file": (base_256_size(1 << 33) + END, "has a file of 8 GiB or more; leave it out"),
    "large file by attribute": (
        member("a", pax_headers={"size": str(1 << 33)}) + END,
        "has a file of 8 GiB or more; leave it out",
    ),
    "extended attribute": (
        member("a", pax_headers={"SCHILY.xattr.user.note": "x"}) + END,
        "'SCHILY.xattr.user.note' of a file; write it with tar --format=pax --no-xattrs",
    ),
    "one empty block": (member("a") + END[:512], "ends without the two empty blocks"),
    "content after the end": (member("a") + END + member("b"), "has content after its end"),
    "content in the end": (
        member("a") + END[:512] + member("b") + END,
        "has content after its end",
    ),
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
        "'a/x': lies below 'a', which isn't a directory",
    ),
    "link over directory": (
        member("a/x") + member("a", LINK, linkname="b") + END,
        "'a': is a directory and a link",
    ),
    "beneath file": (member("a") + member("a/b") + END, "lies below 'a'"),
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
    "many": (numbered_files("", MAX_ENTRIES + 1) + END, "more than 20,000"),
    "many implied": (DEEP + END, "more than 20,000"),
}

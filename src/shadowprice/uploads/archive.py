"""Archives of directories, read strictly because clients write them.

An archive is a POSIX tar file without compression, so its files take no more than its size. It has
directories, files and symbolic links. Links lead to paths within the directory, and no entry is
below a link. So unpacking never writes outside the directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO, Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display

BLOCK: Final = 512  # bytes; headers and contents of a tar file are padded to whole blocks
MAX_ENTRIES: Final = 20_000  # maximum number of files, directories and links in an archive
MAX_PATH_BYTES: Final = 1_024
MAX_FILE_BYTES: Final = (8 << 30) - 1
"""Maximum size of a file. A header has 11 octal digits for it, and extensions are refused."""

_MAX_NAME_BYTES: Final = 255  # of one part of a path, as in Linux file systems
_MAX_EXTENSION_BYTES: Final = 16 << 10  # maximum size of an extended header
_MAX_GLOBAL_HEADERS: Final = 16
MEDIA_TYPE: Final = "application/x-tar"
WRITE_HINT: Final = "write it with shadowprice submit --upload, or with tar --format=pax"
_LARGE_FILE: Final = "has a file of 8 GiB or more"
_LARGE_FILE_HINT: Final = "leave it out, and let jobs read it from a file system that they see"


class ArchiveError(InputError):
    """An archive is malformed, or has an entry that is refused."""


class EntryKind(Enum):
    """Kind of an entry, by its flag in a header."""

    FILE = b"0"
    DIRECTORY = b"5"
    LINK = b"2"


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file, directory or symbolic link."""

    path: str  # relative to the directory
    kind: EntryKind
    mode: int
    mtime: int  # seconds since 1970
    size: int = 0  # bytes of a file's content, which begins at `offset`
    offset: int = 0
    target: str = ""  # of a link


def is_link_inside(path: str, target: str) -> bool:
    """Return whether a link at ``path`` stays within the directory, whatever other links exist.

    ``..`` is only accepted at the beginning, because no directory above a link is itself a link.
    After another name, which may be a link, ``..`` could lead anywhere.
    """
    if target == ".":
        return True
    parts = target.split("/")
    levels_up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    is_plain = not any(part in {"", ".", ".."} for part in parts[levels_up:])
    return is_plain and levels_up <= path.count("/")


def read_entries(stream: BinaryIO) -> Iterator[ArchiveEntry]:
    """Yield the entries of an archive in order; raise `ArchiveError` if it is refused."""
    total = stream.seek(0, os.SEEK_END)
    position = 0
    extended: Mapping[str, str] | None = None  # extended header of the next entry
    global_headers = root_entries = 0
    kinds: dict[str, EntryKind] = {}  # of all paths, including directories without an entry
    explicit: set[str] = set()  # paths with an entry
    while True:
        stream.seek(position)
        header = stream.read(BLOCK)
        if len(header) < BLOCK:
            raise refusal("", "ends without the two empty blocks of a complete archive")
        if not any(header):
            _check_end(stream)
            return
        size, flag = _check_header(header, position), header[156:157]
        content = position + BLOCK
        position = content + -(-size // BLOCK) * BLOCK
        if position > total:
            raise refusal("", "ends within an entry")
        if flag in {b"x", b"g"}:  # an extended header of the next entry, or of all entries
            records = _parse_extended_header(
                stream.read(size) if size <= _MAX_EXTENSION_BYTES else None
            )
            if flag == b"x":
                if extended is not None:
                    raise refusal("", "has two extended headers of one entry")
                extended = records
                continue
            global_headers += 1
            if global_headers > _MAX_GLOBAL_HEADERS:
                raise refusal("", f"has more than {_MAX_GLOBAL_HEADERS} global headers")
            if records.keys() - _IGNORED:
                raise refusal("", "has a global header with file names or sizes")
            continue
        entry = _parse_entry(header, size, content, extended or {})
        extended = None
        if entry is None:
            root_entries += 1
            if root_entries > 1:
                raise refusal("", "names the directory itself more than once")
            continue
        _add(entry, kinds, explicit)
        # Directories without an entry count too, because one path can name hundreds.
        if len(kinds) > MAX_ENTRIES:
            raise refusal("", f"has more than {MAX_ENTRIES:,} entries")
        yield entry


def _check_end(stream: BinaryIO) -> None:
    """Refuse an archive without a second empty block, or with content after it."""
    rest = stream.read(BLOCK)
    if len(rest) < BLOCK:
        raise refusal("", "ends without the two empty blocks of a complete archive")
    while rest:
        if any(rest):
            raise refusal("", "has content after its end")
        rest = stream.read(_MAX_EXTENSION_BYTES)


def refusal(path: str, message: str, hint: str = WRITE_HINT) -> ArchiveError:
    """Return the error about an entry, or about the archive itself if ``path`` is empty."""
    location = f"archive: {quote_for_display(path)}" if path else "archive"
    return ArchiveError(Fault(location, message, hint))


def _check_header(header: bytes, position: int) -> int:
    """Return the size of an entry's content, after verifying the header's checksum."""
    expected = sum(header[:148]) + sum(header[156:]) + 8 * ord(" ")  # without the checksum
    if header[257:263] != b"ustar\0" or _parse_octal(header[148:156]) != expected:
        raise refusal("", f"is not a POSIX tar file at byte {position:,}")
    size = header[124:136]
    # GNU tar writes large sizes in binary, marked by the first bit.
    if size[0] & 0x80 and int.from_bytes(size[1:], "big") > MAX_FILE_BYTES:
        raise refusal("", _LARGE_FILE, _LARGE_FILE_HINT)
    return _parse_octal(size)


def _parse_octal(field: bytes) -> int:
    text = field.strip(b" \0")
    if not text:
        return 0
    if not all(digit in b"01234567" for digit in text):
        raise refusal("", "has a number that isn't octal")
    return int(text, 8)


_IGNORED: Final = frozenset(
    {
        *("atime", "ctime", "mtime", "uid", "gid", "uname", "gname", "comment"),
        "LIBARCHIVE.creationtime",
    }
)
"""Records of extended headers that don't affect an unpacked entry."""

_XATTR_PREFIXES: Final = ("SCHILY.xattr.", "SCHILY.acl.", "LIBARCHIVE.xattr.", "RHT.security.")
"""Prefixes of records that hold a file's extended attributes."""


def _parse_extended_header(content: bytes | None) -> dict[str, str]:
    """Parse the records of an extended header: ``LENGTH KEY=VALUE``.

    ``content`` is None if the header is too long.
    """
    if content is None:
        raise refusal("", f"has an extended header of more than {_MAX_EXTENSION_BYTES:,} bytes")
    records: dict[str, str] = {}
    position = 0
    while position < len(content):
        space = content.find(b" ", position, position + 7)  # a length has few digits
        digits = content[position : max(space, position)]
        end = position + int(digits) if digits.isdigit() else 0
        if not space < end <= len(content) or content[end - 1 : end] != b"\n":
            raise refusal("", "has a malformed extended header")
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise refusal("", "has a malformed extended header")
        name = key.decode("utf-8", "replace")
        if name not in {"path", "linkpath", "hdrcharset", *_IGNORED}:
            raise _refuse_record(name, value)
        records[name] = value.decode("utf-8", "surrogateescape")
        position = end
    return records


def _refuse_record(name: str, value: bytes) -> ArchiveError:
    if name == "size" and value.isdigit() and int(value[:20]) > MAX_FILE_BYTES:
        return refusal("", _LARGE_FILE, _LARGE_FILE_HINT)
    if name.startswith(_XATTR_PREFIXES):
        message = f"has the extended attribute {quote_for_display(name)} of a file"
        return refusal("", message, "write it with tar --format=pax --no-xattrs --no-acls")
    message = f"has the extended attribute {quote_for_display(name)}, such as sparse files"
    return refusal("", message)


def _parse_entry(
    header: bytes, size: int, offset: int, extended: Mapping[str, str]
) -> ArchiveEntry | None:
    """Return the entry of a header; None if it is the archived directory itself."""
    name, prefix = _decode_field(header[:100]), _decode_field(header[345:500])
    path = extended.get("path", f"{prefix}/{name}" if prefix else name)
    flag = header[156:157].replace(b"\0", b"0")  # old programs write 0 for files
    try:
        kind = EntryKind(flag)
    except ValueError:
        what = _TYPES.get(flag, "of an unknown type")
        raise refusal(path, f"is {what}; only files, directories and links are accepted") from None
    parts = path.removesuffix("/").split("/")
    while len(parts) > 1 and parts[0] == ".":
        parts.pop(0)
    if kind is EntryKind.DIRECTORY and parts in (["."], [""]):
        return None
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise refusal(path, "is not a path within the directory")
    path = "/".join(parts)
    if len(os.fsencode(path)) > MAX_PATH_BYTES or any(
        len(os.fsencode(part)) > _MAX_NAME_BYTES for part in parts
    ):
        raise refusal(path, f"is longer than {MAX_PATH_BYTES:,} bytes, or has a name over 255")
    target = ""
    if kind is EntryKind.LINK:
        target = extended.get("linkpath", _decode_field(header[157:257]))
        if "\0" in target or not is_link_inside(path, target):
            message = (
                f"is a link to {quote_for_display(target)}, not to a path within the directory"
            )
            raise refusal(path, message)
        if len(os.fsencode(target)) > MAX_PATH_BYTES:
            raise refusal(path, f"is a link of more than {MAX_PATH_BYTES:,} bytes")
    if kind is not EntryKind.FILE and size:
        raise refusal(path, "has content, but isn't a file")
    mode, mtime = _parse_octal(header[100:108]) & 0o777, _parse_octal(header[136:148])
    return ArchiveEntry(path, kind, mode, mtime, size, offset, target)


_KINDS: Final = {
    EntryKind.FILE: "a file",
    EntryKind.DIRECTORY: "a directory",
    EntryKind.LINK: "a link",
}

_TYPES: Final = {
    b"1": "a hard link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
    b"S": "a sparse file",
}


def _decode_field(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _add(entry: ArchiveEntry, kinds: dict[str, EntryKind], explicit: set[str]) -> None:
    """Record an entry and the directories above it; refuse one that contradicts earlier entries."""
    parent = entry.path.rpartition("/")[0]
    while parent and parent not in kinds:
        kinds[parent] = EntryKind.DIRECTORY
        parent = parent.rpartition("/")[0]
    if parent and kinds[parent] is not EntryKind.DIRECTORY:
        raise refusal(
            entry.path, f"lies below {quote_for_display(parent)}, which isn't a directory"
        )
    kind = kinds.setdefault(entry.path, entry.kind)
    if kind is not entry.kind:
        raise refusal(entry.path, f"is {_KINDS[kind]} and {_KINDS[entry.kind]}")
    if entry.path in explicit:
        raise refusal(entry.path, "is repeated")
    explicit.add(entry.path)

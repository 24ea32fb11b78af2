"""Archives of directories: read strictly, because clients write them, and unpacked.

An archive is a POSIX tar file without compression, so it unpacks to no more than its size. It holds
directories, files and symbolic links. Links lead to places within the directory, and no entry lies
beneath a link, so reading and unpacking never leave the directory.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.uploads.owned_directories import add_missing

BLOCK: Final = 512
MAX_ENTRIES: Final = 20_000
"""Maximum number of files, directories and links in an archive."""

MAX_PATH_BYTES: Final = 1_024
MAX_FILE_BYTES: Final = (8 << 30) - 1
"""Maximum size of a file: a larger one needs an extension of the format."""

_MAX_NAME_BYTES: Final = 255
_MAX_EXTENSION_BYTES: Final = 16 << 10
_MAX_GLOBAL_HEADERS: Final = 16
_COPY_BYTES: Final = 1 << 20

MEDIA_TYPE: Final = "application/x-tar"
WRITE_HINT: Final = "write it with shadowprice submit --upload, or with tar --format=pax"


class ArchiveError(InputError):
    """An archive is malformed, or holds something that is refused."""


class EntryKind(Enum):
    """Kind of an entry, by its flag in a header."""

    FILE = b"0"
    DIRECTORY = b"5"
    LINK = b"2"


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file, directory or symbolic link.

    ``path`` is relative to the directory, ``mtime`` in seconds since 1970. The content of a file is
    ``size`` bytes from ``offset`` on. ``target`` is that of a link.
    """

    path: str
    kind: EntryKind
    mode: int
    mtime: int
    size: int = 0
    offset: int = 0
    target: str = ""


def is_link_inside(path: str, target: str) -> bool:
    """Return whether a link leads to a place within the directory, whatever other links are.

    ``..`` is only accepted at the beginning: the directories above a link are no links themselves.
    """
    if target == ".":
        return True
    parts = target.split("/")
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    rest = parts[climbs:]
    is_plain = not any(part in {"", ".", ".."} for part in rest)
    return is_plain and climbs <= path.count("/")


# The reader


def read_entries(stream: BinaryIO) -> Iterator[ArchiveEntry]:
    """Yield the entries of an archive in order.

    Raises `ArchiveError` if the archive is malformed, too long, or holds something that is refused.
    """
    total = stream.seek(0, os.SEEK_END)
    position = 0
    extended: Mapping[str, str] = {}
    is_extended = False
    global_headers = own_entries = 0
    kinds: dict[str, EntryKind] = {}
    explicit: set[str] = set()
    while True:
        stream.seek(position)
        header = stream.read(BLOCK)
        if len(header) < BLOCK:
            raise _refused("", "ends without the two empty blocks of a complete archive")
        if not any(header):
            return
        size, flag = _checked(header, position), header[156:157]
        content = position + BLOCK
        position = content + -(-size // BLOCK) * BLOCK
        if position > total:
            raise _refused("", "ends within an entry")
        if flag in {b"x", b"g"}:
            records = _extension(stream.read(size) if size <= _MAX_EXTENSION_BYTES else None)
            if flag == b"x":
                if is_extended:
                    raise _refused("", "has two extended headers of one entry")
                extended, is_extended = records, True
                continue
            global_headers += 1
            if global_headers > _MAX_GLOBAL_HEADERS:
                raise _refused("", f"has more than {_MAX_GLOBAL_HEADERS} global headers")
            if records.keys() - _IGNORED:
                raise _refused("", "has a global header with file names or sizes")
            continue
        entry = _entry(header, size, content, extended)
        extended, is_extended = {}, False
        if entry is None:
            own_entries += 1
            if own_entries > 1:
                raise _refused("", "names the directory itself more than once")
            continue
        _add(entry, kinds, explicit)
        # Directories that only paths name count too: one path can name hundreds.
        if len(kinds) > MAX_ENTRIES:
            raise _refused("", f"has more than {MAX_ENTRIES:,} entries")
        yield entry


def _refused(path: str, message: str) -> ArchiveError:
    return ArchiveError(Fault(f"archive: {quote_for_display(path)}" if path else "archive", message,
                              WRITE_HINT))  # fmt: skip


def _checked(header: bytes, position: int) -> int:
    """Return the size of an entry's content, after verifying the header's checksum."""
    expected = sum(header[:148]) + sum(header[156:]) + 8 * 32
    if header[257:263] != b"ustar\0" or _number(header[148:156]) != expected:
        raise _refused("", f"is not a POSIX tar file at byte {position:,}")
    return _number(header[124:136])


def _number(field: bytes) -> int:
    text = field.strip(b" \0")
    if not text:
        return 0
    if not all(digit in b"01234567" for digit in text):
        raise _refused("", "has a number that isn't octal")
    return int(text, 8)


_IGNORED: Final = frozenset({"atime", "ctime", "mtime", "uid", "gid", "uname", "gname", "comment"})
"""Extended attributes that don't change what an entry is."""


def _extension(content: bytes | None) -> dict[str, str]:
    """Parse the records of an extended header: ``LENGTH KEY=VALUE``."""
    if content is None:
        raise _refused("", f"has an extended header of more than {_MAX_EXTENSION_BYTES:,} bytes")
    records: dict[str, str] = {}
    position = 0
    while position < len(content):
        space = content.find(b" ", position, position + 7)
        digits = content[position : max(space, position)]
        end = position + int(digits) if digits.isdigit() else 0
        if not space < end <= len(content) or content[end - 1 : end] != b"\n":
            raise _refused("", "has a malformed extended header")
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise _refused("", "has a malformed extended header")
        name = key.decode("utf-8", "replace")
        if name not in {"path", "linkpath", "hdrcharset", *_IGNORED}:
            message = f"has the extended attribute {quote_for_display(name)}, such as sparse files"
            raise _refused("", message)
        records[name] = value.decode("utf-8", "surrogateescape")
        position = end
    return records


def _entry(
    header: bytes, size: int, offset: int, extended: Mapping[str, str]
) -> ArchiveEntry | None:
    """Return the entry of a header; None for the directory itself."""
    name, prefix = _text(header[:100]), _text(header[345:500])
    path = extended.get("path", f"{prefix}/{name}" if prefix else name)
    flag = header[156:157].replace(b"\0", b"0")
    try:
        kind = EntryKind(flag)
    except ValueError:
        what = _TYPES.get(flag, "of an unknown type")
        raise _refused(path, f"is {what}; only files, directories and links are accepted") from None
    parts = path.removesuffix("/").split("/")
    while len(parts) > 1 and parts[0] == ".":
        parts.pop(0)
    if kind is EntryKind.DIRECTORY and parts in (["."], [""]):
        return None
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise _refused(path, "is not a path within the directory")
    path = "/".join(parts)
    if len(os.fsencode(path)) > MAX_PATH_BYTES or any(
        len(os.fsencode(part)) > _MAX_NAME_BYTES for part in parts
    ):
        raise _refused(path, f"is longer than {MAX_PATH_BYTES:,} bytes, or has a name over 255")
    target = ""
    if kind is EntryKind.LINK:
        target = extended.get("linkpath", _text(header[157:257]))
        if "\0" in target or not is_link_inside(path, target):
            message = (
                f"is a link to {quote_for_display(target)}, no plain path within the directory"
            )
            raise _refused(path, message)
        if len(os.fsencode(target)) > MAX_PATH_BYTES:
            raise _refused(path, f"is a link of more than {MAX_PATH_BYTES:,} bytes")
    if kind is not EntryKind.FILE and size:
        raise _refused(path, "has content, but isn't a file")
    mode, mtime = _number(header[100:108]) & 0o777, _number(header[136:148])
    return ArchiveEntry(path, kind, mode, mtime, size, offset, target)


_TYPES: Final = {
    b"1": "a hard link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
    b"S": "a sparse file",
}


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _add(entry: ArchiveEntry, kinds: dict[str, EntryKind], explicit: set[str]) -> None:
    """Record an entry and the directories above it; refuse what contradicts earlier entries."""
    parent = entry.path.rpartition("/")[0]
    while parent and parent not in kinds:
        kinds[parent] = EntryKind.DIRECTORY
        parent = parent.rpartition("/")[0]
    if parent and kinds[parent] is not EntryKind.DIRECTORY:
        raise _refused(entry.path, f"lies beneath {quote_for_display(parent)}, no directory")
    known = kinds.setdefault(entry.path, entry.kind)
    if known is not entry.kind or entry.path in explicit:
        raise _refused(entry.path, "is repeated")
    explicit.add(entry.path)


# Unpacking


def unpack(archive: Path, directory: Path, owner: tuple[int, int] | None = None) -> None:
    """Fill a directory with an archive, all or nothing, durably.

    ``archive`` is named after its content. A directory that an earlier call filled with it stays as
    it is, and needs no archive. If it was released since, only missing files, links and directories
    are added. Anything else in the directory is removed: it is left of a call that was interrupted,
    or of another job.

    ``owner`` is the user and group of the files; None for those of this process. Raises OSError if
    the archive can't be read or the directory can't be written, and `ArchiveError` if the archive
    is damaged.
    """
    if is_unpacked(archive, directory):
        return
    with archive.open("rb") as stream:
        with _lock:
            _remove_partial(directory)
            name = tempfile.mkdtemp(prefix=f"{directory.name}{_PARTIAL}", dir=directory.parent)
            new = Path(name)
            _attempts.add(new)
        try:
            _fill(new, stream, owner)
            _sync_file_system(new)
            with _lock:
                # An attempt whose caller was cancelled goes on in its thread.
                if is_unpacked(archive, directory):
                    return
                if _names(_release_marker(directory), archive) and directory.exists():
                    add_missing(new, directory)
                    shutil.rmtree(new)  # nothing is left of a call that is killed after the marker
                    _sync_file_system(directory.parent)
                    _rename_marker(_release_marker(directory), _marker(directory))
                    return
                _remove_markers(directory)
                _remove_tree(directory)
                new.rename(directory)
                _sync_file_system(directory.parent)
                _write_marker(_marker(directory), archive.name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            _attempts.discard(new)


def is_unpacked(archive: Path, directory: Path) -> bool:
    """Return whether `unpack` filled a directory with an archive."""
    return _names(_marker(directory), archive) and directory.is_dir()


def remove_unpacked(directory: Path) -> None:
    """Remove a directory that `unpack` filled, as far as possible; it counts as empty then."""
    _remove_markers(directory)
    _remove_partial(directory)
    shutil.rmtree(directory, ignore_errors=True)


def mark_released(directory: Path) -> None:
    """Record durably that files of an unpacked directory may be missing from now on.

    Remains of interrupted attempts to fill it are removed.
    """
    with suppress(FileNotFoundError):  # it was never filled, or is released already
        _rename_marker(_marker(directory), _release_marker(directory))
    _remove_partial(directory)


_PARTIAL: Final = ".new-"
"""Separates the name of a directory from a suffix of its own for each attempt to fill it."""

_attempts: Final[set[Path]] = set()
"""Directories that threads of this process fill."""

_lock: Final = threading.Lock()
"""Held while attempts begin, and from their last check until the marker is written."""


def _marker(directory: Path) -> Path:
    """Return the file that names the archive which fills a directory."""
    return directory.with_name(f"{directory.name}.done")


def _release_marker(directory: Path) -> Path:
    """Return the file that names the archive which filled a directory until it was released."""
    return directory.with_name(f"{directory.name}.released")


def _names(marker: Path, archive: Path) -> bool:
    try:
        return marker.read_text(encoding="utf-8") == archive.name
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _rename_marker(marker: Path, other: Path) -> None:
    marker.rename(other)
    _sync_directory(other.parent)


def _remove_markers(directory: Path) -> None:
    markers = [path for path in (_marker(directory), _release_marker(directory)) if path.exists()]
    for marker in markers:
        marker.unlink()
    if markers:
        _sync_directory(directory.parent)


def _write_marker(marker: Path, text: str) -> None:
    with marker.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(marker.parent)


def _remove_partial(directory: Path) -> None:
    """Remove the remains of interrupted attempts, except directories that a thread fills."""
    for path in directory.parent.glob(f"{glob.escape(directory.name)}{_PARTIAL}*"):
        if path not in _attempts:
            shutil.rmtree(path, ignore_errors=True)


def _remove_tree(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(root: Path, stream: BinaryIO, owner: tuple[int, int] | None) -> None:
    """Write the entries into an empty directory that no other process changes.

    Links come after everything else, so that nothing is written through one.
    """
    links: list[ArchiveEntry] = []
    directories: list[ArchiveEntry] = []
    made: set[str] = set()
    for entry in read_entries(stream):
        _make_directories(root, entry.path.rpartition("/")[0], made, owner)
        if entry.kind is EntryKind.DIRECTORY:
            _make_directories(root, entry.path, made, owner)
            directories.append(entry)
        elif entry.kind is EntryKind.LINK:
            links.append(entry)
        else:
            _write_file(root / entry.path, stream, entry, owner)
    for entry in links:
        (root / entry.path).symlink_to(entry.target)
        if owner is not None:
            os.lchown(root / entry.path, *owner)
        os.utime(root / entry.path, (entry.mtime, entry.mtime), follow_symlinks=False)
    for entry in reversed(directories):
        # Its owner must be able to remove it.
        (root / entry.path).chmod(entry.mode | stat.S_IRWXU)
        os.utime(root / entry.path, (entry.mtime, entry.mtime))
    if owner is not None:
        os.chown(root, *owner)


def _make_directories(root: Path, path: str, made: set[str], owner: tuple[int, int] | None) -> None:
    if not path or path in made:
        return
    _make_directories(root, path.rpartition("/")[0], made, owner)
    (root / path).mkdir(0o755)
    if owner is not None:
        os.chown(root / path, *owner)
    made.add(path)


def _write_file(
    path: Path, stream: BinaryIO, entry: ArchiveEntry, owner: tuple[int, int] | None
) -> None:
    stream.seek(entry.offset)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        remaining = entry.size
        while remaining:
            piece = stream.read(min(remaining, _COPY_BYTES))
            if not piece:
                raise _refused(entry.path, "ends early")
            file.write(piece)
            remaining -= len(piece)
        file.flush()
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), entry.mode)
        os.utime(file.fileno(), (entry.mtime, entry.mtime))


def _sync_file_system(path: Path) -> None:
    """Flush everything on a path's file system: quicker than flushing thousands of files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)

"""Packs a directory into an archive.

Files with equal paths, contents, permissions and modification times give equal bytes, and so an
equal digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.uploads.archive import (
    BLOCK,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_PATH_BYTES,
    ArchiveEntry,
    EntryKind,
    is_link_inside,
)
from shadowprice.uploads.ignore import IgnoreRules

_COPY_BYTES: Final = 1 << 20
_MAX_LISTED_FILES: Final = 5
_EXCLUDE_HINT: Final = "exclude what the job doesn't need in .gitignore or .shadowpriceignore"
_END: Final = bytes(2 * BLOCK)  # a tar file ends with two empty blocks


@dataclass(frozen=True, slots=True)
class SelectedFile:
    """A file, directory or link to pack."""

    entry: ArchiveEntry
    modified_ns: int = 0  # of a file when it was selected, to detect changes


@dataclass(frozen=True, slots=True)
class Selection:
    """Files of a directory that an upload contains, in the order of the archive."""

    root: Path
    files: Sequence[SelectedFile]
    left_out: Sequence[str]  # links that lead outside and special files: path and reason
    size: int  # bytes of the archive


def select_files(root: Path, *, max_bytes: int, max_entries: int = MAX_ENTRIES) -> Selection:
    """Select the files of a directory to send, without reading them, except ignore files.

    Raises InputError if the archive would exceed a limit, or a directory can't be read.
    """
    files: list[SelectedFile] = []
    left_out: list[str] = []
    size = len(_END)
    try:
        top = Path(os.path.realpath(root, strict=True))
        for item in _walk(top, "", IgnoreRules.above(top), left_out):
            files.append(item)
            size += len(_header(item.entry)) + _padded_size(item.entry.size)
            if len(files) > max_entries:
                raise InputError(_too_many(root, files, max_entries))
    except OSError as error:
        where = str(error.filename or root)
        raise InputError(Fault(where, f"can't be read: {error.strerror}", _EXCLUDE_HINT)) from error
    if size > max_bytes:
        raise InputError(_too_large(root, files, size, max_bytes))
    for item in files:
        if item.entry.size > MAX_FILE_BYTES:
            message = f"takes {shown_bytes(item.entry.size)}, but a file must be below 8 GiB"
            raise InputError(Fault(str(root / item.entry.path), message, _EXCLUDE_HINT))
    return Selection(root, files, left_out, size)


def _walk(
    top: Path, folder: str, above: IgnoreRules, left_out: list[str]
) -> Iterator[SelectedFile]:
    """Yield the entries below a folder, sorted by name, each directory before its content.

    ``above`` are the rules of the folder's parent. Entries that can't be sent go to ``left_out``;
    entries that the rules exclude don't.
    """
    rules = above.within(top / folder, folder)
    with os.scandir(top / folder) as listing:
        items = sorted(listing, key=lambda item: os.fsencode(item.name))
    for item in items:
        path = f"{folder}/{item.name}" if folder else item.name
        status = item.stat(follow_symlinks=False)
        is_directory = stat.S_ISDIR(status.st_mode)
        if rules.excludes(path, is_directory=is_directory):
            continue
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            message = f"is a path of more than {MAX_PATH_BYTES:,} bytes"
            raise InputError(Fault(quote_for_display(path), message, _EXCLUDE_HINT))
        mode, mtime = stat.S_IMODE(status.st_mode) & 0o777, max(0, int(status.st_mtime))
        if is_directory:
            yield SelectedFile(ArchiveEntry(path, EntryKind.DIRECTORY, mode, mtime))
            yield from _walk(top, path, rules, left_out)
        elif stat.S_ISREG(status.st_mode):
            entry = ArchiveEntry(path, EntryKind.FILE, mode, mtime, status.st_size)
            yield SelectedFile(entry, status.st_mtime_ns)
        elif stat.S_ISLNK(status.st_mode):
            target = _target(top, path)
            if target is None:
                text = str((top / path).readlink())
                left_out.append(f"{quote_for_display(path)} -> {quote_for_display(text)}")
            else:
                # The mode of a link has no meaning, and differs between systems.
                yield SelectedFile(ArchiveEntry(path, EntryKind.LINK, 0o777, mtime, target=target))
        else:
            left_out.append(f"{quote_for_display(path)} (not a file)")


def _target(top: Path, path: str) -> str | None:
    """Return a link's target in the archive; None if the link leads outside."""
    text = str((top / path).readlink())
    if is_link_inside(path, text):
        return text
    # An absolute target, or one with `..` inside, is replaced by a relative path to the same file.
    real = os.path.realpath(top / path)
    if not Path(real).is_relative_to(top):
        return None
    target = os.path.relpath(real, (top / path).parent)
    return target if is_link_inside(path, target) else None


@dataclass(frozen=True, slots=True)
class Archive:
    """A packed directory: a readable file of ``size`` bytes, and its digest."""

    file: BinaryIO
    digest: str
    size: int


@contextmanager
def temporary_archive(selection: Selection) -> Iterator[Archive]:
    """Yield the archive of a selection, in a temporary file; see `pack`."""
    with tempfile.TemporaryFile(prefix="shadowprice-") as file:
        digest = pack(selection, file)
        yield Archive(file, digest, file.tell())


def pack(selection: Selection, stream: BinaryIO) -> str:
    """Write the archive of a selection; return its digest in hexadecimal.

    Raises InputError if a file has changed since it was selected, or can't be read.
    """
    digest = hashlib.sha256()

    def write(content: bytes) -> None:
        stream.write(content)
        digest.update(content)

    top = Path(os.path.realpath(selection.root))
    for item in selection.files:
        write(_header(item.entry))
        if item.entry.kind is EntryKind.FILE:
            for piece in _read(top, item):
                write(piece)
            write(bytes(_padded_size(item.entry.size) - item.entry.size))
    write(_END)
    stream.flush()
    return digest.hexdigest()


def _read(top: Path, item: SelectedFile) -> Iterator[bytes]:
    """Yield the content of a file; raise InputError if it changed since it was selected."""
    entry = item.entry
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    changed = Fault(
        str(top / entry.path),
        "changed while it was packed",
        "submit again, or exclude it in .shadowpriceignore",
    )
    try:
        with os.fdopen(os.open(top / entry.path, flags), "rb", buffering=0) as file:
            remaining = entry.size
            while remaining:
                piece = file.read(min(remaining, _COPY_BYTES))
                if not piece:
                    raise InputError(changed)
                remaining -= len(piece)
                yield piece
            status = os.fstat(file.fileno())
            is_same = (
                stat.S_ISREG(status.st_mode)
                and status.st_size == entry.size
                and status.st_mtime_ns == item.modified_ns
            )
            if not is_same:
                raise InputError(changed)
    except FileNotFoundError:
        raise InputError(changed) from None
    except OSError as error:
        message = f"can't be read: {error.strerror}"
        raise InputError(Fault(str(top / entry.path), message, _EXCLUDE_HINT)) from error


def _header(entry: ArchiveEntry) -> bytes:
    info = tarfile.TarInfo(entry.path)
    info.type, info.mode, info.mtime = entry.kind.value, entry.mode, entry.mtime
    info.size, info.linkname = entry.size, entry.target
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padded_size(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def shown_bytes(size: int) -> str:
    """Format a number of bytes for people."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _too_large(root: Path, files: Iterable[SelectedFile], size: int, limit: int) -> Fault:
    largest = sorted(files, key=lambda item: -item.entry.size)[:_MAX_LISTED_FILES]
    listed = ", ".join(
        f"{quote_for_display(item.entry.path)} {shown_bytes(item.entry.size)}" for item in largest
    )
    message = (
        f"its files take {shown_bytes(size)}, above the service's limit of {shown_bytes(limit)}; "
        f"the largest: {listed}"
    )
    return Fault(str(root), message, _EXCLUDE_HINT)


def _too_many(root: Path, files: Sequence[SelectedFile], limit: int) -> Fault:
    counts: dict[str, int] = {}
    for item in files:
        top = item.entry.path.partition("/")[0]
        counts[top] = counts.get(top, 0) + 1
    largest = sorted(counts.items(), key=lambda pair: -pair[1])[:_MAX_LISTED_FILES]
    listed = ", ".join(f"{quote_for_display(name)} {count:,}" for name, count in largest)
    # Counting stopped at the limit, so further directories may have more.
    message = f"it has more than {limit:,} files and directories; the first: {listed}"
    return Fault(str(root), message, _EXCLUDE_HINT)

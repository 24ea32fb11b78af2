"""Unpacking of archives, and deletion of the unpacked files that a job didn't change.

A marker file beside a directory names the archive that fills it. To *release* a directory is to
delete its unchanged files; then a different marker names the archive.

A job may put links into a directory that it owns. So every directory in it is opened relative to
its parent, and links aren't followed.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import stat
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from shadowprice.uploads.archive import ArchiveEntry, EntryKind, read_entries, refusal

# ------------------------------------------------------------------ directories that a job may own


_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    """Open a directory; raise OSError if it is a link."""
    descriptor = os.open(path, _FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_below(root: int, path: str) -> Iterator[int]:
    """Open a directory below ``root``, or ``root`` itself for an empty path, through no link."""
    descriptor = os.dup(root)
    try:
        for part in path.split("/") if path else ():
            below = os.open(part, _FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def add_missing(source: Path, target: Path) -> None:
    """Move the entries of ``source`` that ``target`` lacks, on all levels."""
    with open_directory(source) as source_root, open_directory(target) as target_root:
        remaining = [""]
        while remaining:
            path = remaining.pop()
            with open_below(source_root, path) as new, open_below(target_root, path) as old:
                with os.scandir(new) as entries:
                    names = [entry.name for entry in entries]
                shared = [name for name in names if not _move(name, new, old)]
            remaining += [f"{path}/{name}" if path else name for name in shared]


def _move(name: str, source: int, target: int) -> bool:
    """Move an entry if ``target`` lacks it; return False if it is a directory in both."""
    try:
        status = os.stat(name, dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        return True
    other = os.stat(name, dir_fd=source, follow_symlinks=False)
    return not (stat.S_ISDIR(status.st_mode) and stat.S_ISDIR(other.st_mode))


# ------------------------------------------------------------------ unpacking


_COPY_BYTES: Final = 1 << 20


def unpack(archive: Path, directory: Path, owner: tuple[int, int] | None = None) -> None:
    """Fill a directory with an archive, atomically and durably.

    The name of ``archive`` identifies its content. A directory that an earlier call filled with it
    isn't changed; then the archive needn't exist. If the directory was released since, only missing
    entries are added. A directory with any other state is replaced, because its content is of an
    interrupted call or another job.

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
                # An earlier attempt may have finished, as cancelling it doesn't stop its thread.
                if is_unpacked(archive, directory):
                    return
                if _marks(_release_marker(directory), archive) and directory.exists():
                    add_missing(new, directory)
                    shutil.rmtree(new)  # before the marker, as a filled directory isn't cleaned up
                    _sync_file_system(directory.parent)
                    _rename_marker(_release_marker(directory), _marker(directory))
                    return
                _remove_markers(directory)
                with suppress(FileNotFoundError):
                    shutil.rmtree(directory)
                new.rename(directory)
                _sync_file_system(directory.parent)
                _write_marker(_marker(directory), archive.name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            _attempts.discard(new)


def is_unpacked(archive: Path, directory: Path) -> bool:
    """Return whether `unpack` filled a directory with an archive."""
    return _marks(_marker(directory), archive) and directory.is_dir()


def remove_unpacked(directory: Path) -> None:
    """Remove a directory that `unpack` filled; files that can't be removed no longer count."""
    _remove_markers(directory)
    _remove_partial(directory)
    shutil.rmtree(directory, ignore_errors=True)


def remove_unchanged(archive: Path, directory: Path) -> None:
    """Release a directory: delete the files that `unpack` wrote and that haven't changed.

    Files with another size or time, links with another target, and new files are kept. If the
    archive is missing, everything is kept. Raises OSError if the marker can't be renamed or the
    archive can't be read, and `ArchiveError` if the archive is damaged.
    """
    # Before any file is deleted, so that an interrupted call leaves no incomplete filled directory.
    with suppress(FileNotFoundError):  # it was never filled, or is released already
        _rename_marker(_marker(directory), _release_marker(directory))
    _remove_partial(directory)
    try:
        stream = archive.open("rb")
    except FileNotFoundError:
        return
    contents: defaultdict[str, list[ArchiveEntry]] = defaultdict(list)
    folders: set[str] = set()
    with stream:
        for entry in read_entries(stream):
            parent = entry.path.rpartition("/")[0]
            if entry.kind is EntryKind.DIRECTORY:
                folders.add(entry.path)
            else:
                contents[parent].append(entry)
            while parent and parent not in folders:
                folders.add(parent)
                parent = parent.rpartition("/")[0]
    with suppress(FileNotFoundError), open_directory(directory) as root:
        for parent, entries in contents.items():
            with suppress(OSError), open_below(root, parent) as descriptor:
                for entry in entries:
                    _remove_if_unchanged(descriptor, entry)
        # The deepest first, so that a directory is empty after its subdirectories are removed.
        for path in sorted(folders, key=lambda path: path.count("/"), reverse=True):
            parent, _, name = path.rpartition("/")
            with suppress(OSError), open_below(root, parent) as descriptor:  # may not be empty
                os.rmdir(name, dir_fd=descriptor)


def _remove_if_unchanged(folder: int, entry: ArchiveEntry) -> None:
    name = entry.path.rpartition("/")[2]
    with suppress(OSError):  # removed or replaced meanwhile
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if entry.kind is EntryKind.LINK:
            is_same = stat.S_ISLNK(status.st_mode) and (
                os.readlink(name, dir_fd=folder) == entry.target
            )
        else:
            is_same = (
                stat.S_ISREG(status.st_mode)
                and status.st_size == entry.size
                and status.st_mtime_ns == entry.mtime * 10**9
            )
        if is_same:
            os.unlink(name, dir_fd=folder)


_PARTIAL: Final = ".new-"
"""Each attempt to fill a directory writes to ``NAME.new-SUFFIX`` with a suffix of its own."""

_attempts: Final[set[Path]] = set()  # directories that threads of this process fill
_lock: Final = threading.Lock()
"""Held while an attempt begins, and from its last check until the marker is written."""


def _marker(directory: Path) -> Path:
    """Return the file that names the archive which fills a directory."""
    return directory.with_name(f"{directory.name}.done")


def _release_marker(directory: Path) -> Path:
    """Return the file that names the archive which filled a directory until it was released."""
    return directory.with_name(f"{directory.name}.released")


def _marks(marker: Path, archive: Path) -> bool:
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
    """Remove directories of interrupted attempts, but not those of attempts in progress."""
    for path in directory.parent.glob(f"{glob.escape(directory.name)}{_PARTIAL}*"):
        if path not in _attempts:
            shutil.rmtree(path, ignore_errors=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(root: Path, stream: BinaryIO, owner: tuple[int, int] | None) -> None:
    """Write the entries into an empty directory that no other process changes."""
    # Links are created last, so that no file is written through a link.
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
    # Last, because writing a file changes its directory's time; subdirectories first.
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
                raise refusal(entry.path, "ends early")
            file.write(piece)
            remaining -= len(piece)
        file.flush()
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), entry.mode)
        os.utime(file.fileno(), (entry.mtime, entry.mtime))


def _sync_file_system(path: Path) -> None:
    """Flush the file system of a path, which is faster than flushing thousands of files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)

"""Deletion of unpacked files that a job didn't change.

The job may still own the directory, so no path through it is followed: every directory is opened
relative to its parent, and not through a link.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from shadowprice.uploads.archive import ArchiveEntry, EntryKind, read_entries, unmark

_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_unchanged(archive: Path, directory: Path) -> None:
    """Delete what `unpack` wrote and nobody changed since; the directory then counts as empty.

    Files with another size or time, and links with another target, stay, as do new files. If the
    archive is missing, everything stays.

    Raises
    ------
    OSError
        If the directory would still count as filled, or the archive can't be read.
    ArchiveError
        If the archive is damaged.
    """
    unmark(directory)
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
    try:
        root = os.open(directory, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        return
    try:
        for parent, entries in contents.items():
            with _opened(root, parent) as descriptor:
                if descriptor is not None:
                    for entry in entries:
                        _remove_if_unchanged(descriptor, entry)
        for path in sorted(folders, key=lambda path: path.count("/"), reverse=True):
            parent, _, name = path.rpartition("/")
            with _opened(root, parent) as descriptor, suppress(OSError):  # not empty
                if descriptor is not None:
                    os.rmdir(name, dir_fd=descriptor)
    finally:
        os.close(root)


@contextmanager
def _opened(root: int, path: str) -> Iterator[int | None]:
    """Open a directory below another one; None if it isn't there, or can't be opened."""
    descriptor = os.dup(root)
    try:
        for part in path.split("/") if path else ():
            try:
                below = os.open(part, _DIRECTORY_FLAGS, dir_fd=descriptor)
            except OSError:
                yield None
                return
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


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

"""Deletion of unpacked files that a job didn't change."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from shadowprice.uploads.archive import ArchiveEntry, EntryKind, mark_released, read_entries
from shadowprice.uploads.owned_directories import open_below, open_directory


def remove_unchanged(archive: Path, directory: Path) -> None:
    """Delete files that `unpack` wrote and that haven't changed; `unpack` would add them again.

    Files with another size or time, and links with another target, stay, as do new files. If the
    archive is missing, everything stays. Raises OSError if the directory would still count as
    filled or the archive can't be read, and `ArchiveError` if the archive is damaged.
    """
    mark_released(directory)
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
        for path in sorted(folders, key=lambda path: path.count("/"), reverse=True):
            parent, _, name = path.rpartition("/")
            with suppress(OSError), open_below(root, parent) as descriptor:  # not empty
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

"""Access to directories that a job may own, while it may put links there.

No path through such a directory is followed: every directory is opened relative to its parent, and
not through a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    """Open a directory that isn't a link."""
    descriptor = os.open(path, _FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_below(root: int, path: str) -> Iterator[int]:
    """Open a directory below another one, unless it lies behind a link.

    ``path`` is relative, and empty for ``root`` itself.
    """
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
    """Move entries of a directory into another one that lacks them; keep entries of both."""
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
    """Move an entry unless it is there; return False if it is a directory in both."""
    try:
        status = os.stat(name, dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        return True
    other = os.stat(name, dir_fd=source, follow_symlinks=False)
    return not (stat.S_ISDIR(status.st_mode) and stat.S_ISDIR(other.st_mode))

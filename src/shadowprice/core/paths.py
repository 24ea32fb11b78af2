"""Paths that users write."""

from __future__ import annotations

import os
from pathlib import Path


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with a leading ``~`` or ``~user`` expanded, if there is such a user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises for unknown users

"""What nodes are sent: the sources of a supervisor, which need the standard library only."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

_ROOT: Final = "shadowprice"
_MODULES: Final = (
    "executors/supervision/cgroups.py",
    "executors/supervision/children.py",
    "executors/generations/disk.py",
    "executors/generations/generation.py",
    "executors/generations/logs.py",
    "executors/supervision/supervisor.py",
    "executors/generations/verdict.py",
    "executors/ray/part.py",
)
_PACKAGES: Final = (
    "",
    "executors/",
    "executors/generations/",
    "executors/ray/",
    "executors/supervision/",
)


@cache
def bundle() -> dict[str, str]:
    """Return the text of every file by its path."""
    found = {f"{_ROOT}/{package}__init__.py": "" for package in _PACKAGES}
    root = files(_ROOT)
    for module in _MODULES:
        found[f"{_ROOT}/{module}"] = root.joinpath(module).read_text(encoding="utf-8")
    return found


@cache
def digest() -> str:
    """Return what tells this version of the files from every other."""
    content = "\0".join(f"{path}\0{text}" for path, text in sorted(bundle().items()))
    return hashlib.sha256(content.encode()).hexdigest()[:32]

"""Source files of the supervisor that are shipped to Ray nodes.

They import only the standard library.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

_ROOT: Final = "shadowprice"
_MODULES: Final = (
    "executors/supervision/agent.py",
    "executors/supervision/cgroups.py",
    "executors/supervision/children.py",
    "executors/generations/disk.py",
    "executors/generations/generation.py",
    "executors/generations/logs.py",
    "executors/supervision/supervisor.py",
    "executors/generations/outcome.py",
)
_PACKAGES: Final = ("", "executors/", "executors/generations/", "executors/supervision/")


@cache
def source_files() -> dict[str, str]:
    """Return the text of every file by its path."""
    # Empty, because the real ones may import modules that the nodes lack.
    texts = {f"{_ROOT}/{package}__init__.py": "" for package in _PACKAGES}
    root = files(_ROOT)
    for module in _MODULES:
        texts[f"{_ROOT}/{module}"] = root.joinpath(module).read_text(encoding="utf-8")
    return texts


@cache
def digest() -> str:
    """Return the digest of the bundle."""
    content = "\0".join(f"{path}\0{text}" for path, text in sorted(source_files().items()))
    return hashlib.sha256(content.encode()).hexdigest()[:32]

"""Seals that mark checkpoints of other libraries, files or folders, as complete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from shadowprice.jobs.files import replace_file
from shadowprice.training.generation import say


def seal(path: Path) -> None:
    """Mark a checkpoint, a file or a folder of files, as complete once it is on disk.

    If this raises OSError, the checkpoint doesn't count.
    """
    replace_file(_seal_of(path), json.dumps(_digests(path, sync=True)).encode(), durable=True)


def is_complete(path: Path) -> bool:
    """Return whether a checkpoint is sealed and unchanged since."""
    try:
        digests = json.loads(_seal_of(path).read_bytes())
        return bool(digests == _digests(path, sync=False))
    except (OSError, ValueError):
        return False


def numbered(folder: Path, before: str, after: str = "") -> Iterator[tuple[int, Path]]:
    """Yield number and path of each name ``before<number>after``, greatest number first."""
    pattern = re.compile(re.escape(before) + r"(\d{1,15})" + re.escape(after))
    matches = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            match = pattern.fullmatch(path.name)
            if match:
                matches.append((int(match[1]), path))
    yield from sorted(matches, reverse=True)


def latest_complete(folder: Path, before: str, after: str = "") -> tuple[int, Path] | None:
    """Return number and path of the newest complete checkpoint, None without any."""
    for number, path in numbered(folder, before, after):
        if is_complete(path):
            return number, path
        say(f"{path.name} is not whole, and is passed over")
    return None


def unseal(path: Path) -> None:
    """Remove the seal of a checkpoint before the checkpoint is removed."""
    _seal_of(path).unlink(missing_ok=True)


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _digests(path: Path, *, sync: bool) -> dict[str, list[object]]:
    """Return size and SHA-256 of every file of a checkpoint; ``sync`` flushes them."""
    files = (
        [path] if path.is_file() else sorted(entry for entry in path.rglob("*") if entry.is_file())
    )
    digests: dict[str, list[object]] = {}
    for file in files:
        with file.open("rb") as stream:
            if sync:
                os.fsync(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        name = file.relative_to(path).as_posix() if file != path else ""
        digests[name] = [file.stat().st_size, digest]
    return digests

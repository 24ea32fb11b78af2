"""Seals that mark checkpoints of other libraries, files or folders, as complete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shadowprice.jobs.files import replace_file
from shadowprice.training.generation import say

_MIN_AGE_SECONDS: Final = 2.0  # of cached files: later changes have other timestamps

_complete: Final[dict[Path, object]] = {}  # fingerprints, so that each is read once

_sealed_here: Final[set[Path]] = set()  # by this process, and not read again


def seal(path: Path) -> None:
    """Mark a checkpoint, a file or a folder of files, as complete once it is on disk."""
    replace_file(_seal_of(path), json.dumps(_digests(path, sync=True)).encode(), durable=True)
    _sealed_here.add(path)


def is_complete(path: Path) -> bool:
    """Return whether a checkpoint is sealed and unchanged since."""
    try:
        return _verify(path)
    except OSError:
        return False


def _verify(path: Path) -> bool:
    """Return `is_complete`; raise OSError if the checkpoint can't be read."""
    try:
        fingerprint, changed = _fingerprint(path)
        if _complete.get(path) == fingerprint:
            return True
        if json.loads(_seal_of(path).read_bytes()) != _digests(path, sync=False):
            return False
    except (FileNotFoundError, ValueError):
        return False
    if time.time() - changed > _MIN_AGE_SECONDS:
        _complete[path] = fingerprint
    return True


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
        say(f"ignoring {path.name}: its seal is missing or doesn't match")
    return None


def prune(folder: Path, saved: int, kept: int, before: str, after: str = "") -> None:
    """Remove old checkpoints: of ``saved``, just sealed, and those before, ``kept`` remain.

    Incomplete ones don't count, and greater numbers, passed over by this run, are removed.
    """
    complete = 0
    for number, path in list(numbered(folder, before, after)):
        counts = number <= saved and complete < kept and (path in _sealed_here or _verify(path))
        complete += counts
        if not counts:
            remove_checkpoint(path)


def remove_incomplete(folder: Path, restored: int, before: str, after: str = "") -> None:
    """Remove incomplete checkpoints with numbers above the restored one.

    A library that counts them would remove complete ones too early.
    """
    for number, path in list(numbered(folder, before, after)):
        if number > restored and not _verify(path):
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, its seal first."""
    unseal(path)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def unseal(path: Path) -> None:
    """Remove the seal of a checkpoint that is removed."""
    _sealed_here.discard(path)
    _complete.pop(path, None)
    _seal_of(path).unlink(missing_ok=True)


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _files(path: Path) -> list[Path]:
    """Return the files of a checkpoint."""
    if path.is_file():
        return [path]
    return sorted(entry for entry in path.rglob("*") if entry.is_file())


def _fingerprint(path: Path) -> tuple[object, float]:
    """Return what changes with the files of a checkpoint or its seal, and the last change."""
    stats = [(file, file.stat()) for file in [_seal_of(path), *_files(path)]]
    fingerprint = [(file, stat.st_ino, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
    return fingerprint, max(stat.st_mtime for _, stat in stats)


def _digests(path: Path, *, sync: bool) -> dict[str, list[object]]:
    """Return size and SHA-256 of every file of a checkpoint; ``sync`` flushes them."""
    digests: dict[str, list[object]] = {}
    for file in _files(path):
        with file.open("rb") as stream:
            if sync:
                os.fsync(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        name = file.relative_to(path).as_posix() if file != path else ""
        digests[name] = [file.stat().st_size, digest]
    return digests

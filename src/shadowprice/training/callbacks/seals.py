"""Checkpoints that others write, in files or folders of any make: which of them are whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from shadowprice.training.generation import say


def seal(path: Path) -> None:
    """Write down that a checkpoint is whole, once all of it is on disk.

    Parameters
    ----------
    path : Path
        A file, or a folder of files.

    Raises
    ------
    OSError
        If it cannot be read or the seal not be written; the checkpoint does not count then.
    """
    content = json.dumps(_digests(path, lasting=True)).encode()
    target = _seal_of(path)
    new = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with new.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def is_whole(path: Path) -> bool:
    """Return whether a checkpoint is sealed, and still what it was then."""
    try:
        told = json.loads(_seal_of(path).read_bytes())
        return bool(told == _digests(path, lasting=False))
    except (OSError, ValueError):
        return False


def numbered(folder: Path, before: str, after: str = "") -> Iterator[tuple[int, Path]]:
    """Yield what is called so, with the number in between, the greatest first."""
    pattern = re.compile(re.escape(before) + r"(\d{1,15})" + re.escape(after))
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            match = pattern.fullmatch(path.name)
            if match:
                found.append((int(match[1]), path))
    yield from sorted(found, reverse=True)


def newest(folder: Path, before: str, after: str = "") -> tuple[int, Path] | None:
    """Return the newest whole checkpoint and its number, None where there is none."""
    for number, path in numbered(folder, before, after):
        if is_whole(path):
            return number, path
        say(f"{path.name} is not whole, and is passed over")
    return None


def unseal(path: Path) -> None:
    """Take the seal off a checkpoint that is to be removed."""
    _seal_of(path).unlink(missing_ok=True)


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _digests(path: Path, *, lasting: bool) -> dict[str, list[object]]:
    """Return size and SHA-256 of a file, or of all files of a folder."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    told: dict[str, list[object]] = {}
    for file in files:
        with file.open("rb") as stream:
            if lasting:
                os.fsync(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        name = file.relative_to(path).as_posix() if file != path else ""
        told[name] = [file.stat().st_size, digest]
    return told

"""Atomic replacement of files, and flushes to the disk."""

from __future__ import annotations

import os
import time
from pathlib import Path


def replace_file(path: Path, *content: bytes | memoryview, durable: bool) -> None:
    """Replace a file atomically; if ``durable``, flush its content and name to the disk."""
    writer = f"{os.uname().nodename}.{os.getpid()}"
    new = path.with_name(f".{path.name}.{writer}.{time.monotonic_ns()}")
    try:
        with new.open("wb") as stream:
            for piece in content:
                stream.write(piece)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        new.replace(path)
        if durable:
            sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Small records that survive anything: a power cut between any two writes, and a full disk.

Standard library only: supervisors use it too.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, Final

_HEADER: Final = struct.Struct("<4sQII")
_MAGIC: Final = b"SPR1"


class StateFile:
    """One JSON object in a file, replaced as a whole or not at all.

    The file has two slots of a fixed size, each with a sequence number and a checksum, and a write
    goes to the older one. It is laid out in full when it is made, so that changing it needs no
    space on the disk: a state can be told even when a job has filled it.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, value: dict[str, Any], slot: int) -> StateFile:
        """Make the file, holding ``value``, with slots of so many bytes; it is on disk after."""
        first = _framed(1, value, slot)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, bytes(slot) + first, 0)
            sync(descriptor)
        finally:
            os.close(descriptor)
        return cls(path)

    def read(self) -> dict[str, Any]:
        """Return what was written last, whole.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If neither slot is whole.
        """
        return _newest(self.path.read_bytes(), self.path)[1]

    def write(self, value: dict[str, Any]) -> None:
        """Replace the object; it is on disk after.

        Raises
        ------
        ValueError
            If it does not fit into a slot.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            slot = os.fstat(descriptor).st_size // 2
            sequence, _ = _newest(os.pread(descriptor, 2 * slot, 0), self.path)
            framed = _framed(sequence + 1, value, slot)
            _write_all(descriptor, framed, ((sequence + 1) % 2) * slot)
            sync(descriptor)
        finally:
            os.close(descriptor)

    def fits(self, value: dict[str, Any]) -> bool:
        """Whether an object is small enough for a slot."""
        return len(_encoded(value)) + _HEADER.size <= self.path.stat().st_size // 2


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def _framed(sequence: int, value: dict[str, Any], slot: int) -> bytes:
    payload = _encoded(value)
    if _HEADER.size + len(payload) > slot:
        raise ValueError(f"a record of {len(payload)} bytes does not fit into {slot}")
    check = zlib.crc32(payload, sequence & 0xFFFFFFFF)
    head = _HEADER.pack(_MAGIC, sequence, len(payload), check)
    return (head + payload).ljust(slot, b"\0")


def _newest(content: bytes, path: Path) -> tuple[int, dict[str, Any]]:
    slot = len(content) // 2
    best: tuple[int, dict[str, Any]] | None = None
    for start in (0, slot):
        if slot < _HEADER.size:
            break
        magic, sequence, length, check = _HEADER.unpack_from(content, start)
        payload = content[start + _HEADER.size : start + _HEADER.size + length]
        if magic != _MAGIC or length > slot - _HEADER.size:
            continue
        if zlib.crc32(payload, sequence & 0xFFFFFFFF) != check:
            continue
        if best is None or sequence > best[0]:
            best = (sequence, json.loads(payload))
    if best is None:
        raise ValueError(f"{path}: no whole record is left in it")
    return best


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        done = os.pwrite(descriptor, content, offset)
        content, offset = content[done:], offset + done


def sync(descriptor: int) -> None:
    """Put a file on the disk."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Put what a directory lists on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads; it is on disk after, its name once the folder is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, content, 0)
        sync(descriptor)
    finally:
        os.close(descriptor)


def names(path: Path) -> list[str]:
    """Return what a directory lists."""
    return [entry.name for entry in path.iterdir()]


class Lock:
    """A lock that ends with the process that holds it, whatever ends that.

    Parameters
    ----------
    descriptor : int
        The open file that carries it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """The open file: who inherits it holds the lock as well."""
        return self._descriptor

    @classmethod
    def take(cls, path: Path) -> Lock | None:
        """Take the lock of a file, None where another holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

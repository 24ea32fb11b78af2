"""Small durable records that survive a power cut and a full disk. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import zlib
from pathlib import Path
from typing import Any, Final

_HEADER: Final = struct.Struct("<4sQII")  # magic, sequence number, payload bytes, checksum
_MAGIC: Final = b"SPR1"


class StateFile:
    """One JSON object in a file, replaced atomically.

    The file has two halves of a fixed size, each with a sequence number and a checksum. A write
    replaces the older half. Both are allocated at creation, so a state can be written even if a job
    has filled the disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, value: dict[str, Any], half_bytes: int) -> StateFile:
        """Create the file durably, with two halves of ``half_bytes`` bytes."""
        create_file(path, bytes(half_bytes) + _frame(1, value, half_bytes))
        return cls(path)

    def read(self) -> dict[str, Any]:
        """Return the newest object; raise ValueError if neither half is intact."""
        return _newest(self.path.read_bytes(), self.path)[1]

    def write(self, value: dict[str, Any]) -> None:
        """Replace the object durably; raise ValueError if it doesn't fit into a half."""
        with self.path.open("r+b") as stream:
            content = stream.read()
            half_bytes = len(content) // 2
            sequence = _newest(content, self.path)[0] + 1
            framed = _frame(sequence, value, half_bytes)
            stream.seek(sequence % 2 * half_bytes)
            stream.write(framed)
            stream.flush()
            sync_file(stream.fileno())

    def fits(self, value: dict[str, Any]) -> bool:
        """Return whether an object fits into a half."""
        return record_size(value) <= self.path.stat().st_size // 2


def record_size(value: dict[str, Any]) -> int:
    """Return the number of bytes that an object takes in a half."""
    return len(_encode(value)) + _HEADER.size


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def _frame(sequence: int, value: dict[str, Any], half_bytes: int) -> bytes:
    payload = _encode(value)
    if _HEADER.size + len(payload) > half_bytes:
        raise ValueError(f"a record of {len(payload)} bytes does not fit into {half_bytes}")
    check = zlib.crc32(payload, sequence & 0xFFFFFFFF)  # covers the sequence number too
    head = _HEADER.pack(_MAGIC, sequence, len(payload), check)
    return (head + payload).ljust(half_bytes, b"\0")


def _newest(content: bytes, path: Path) -> tuple[int, dict[str, Any]]:
    half_bytes = len(content) // 2
    newest: tuple[int, dict[str, Any]] | None = None
    for start in (0, half_bytes):
        if half_bytes < _HEADER.size:
            break
        magic, sequence, length, check = _HEADER.unpack_from(content, start)
        payload = content[start + _HEADER.size : start + _HEADER.size + length]
        if magic != _MAGIC or length > half_bytes - _HEADER.size:
            continue
        if zlib.crc32(payload, sequence & 0xFFFFFFFF) != check:
            continue
        if newest is None or sequence > newest[0]:
            newest = (sequence, json.loads(payload))
    if newest is None:
        raise ValueError(f"{path}: it contains no complete record")
    return newest


def sync_file(descriptor: int) -> None:
    """Flush a file to the disk."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def create_file(path: Path, content: bytes) -> None:
    """Write a file with mode 600 durably; its name is durable once its directory is synced."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        sync_file(descriptor)


def read_untrusted(path: Path, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the first bytes and the status of a job's file, which may be a link, a pipe, or huge.

    Raises OSError if it is a link or can't be read, and ValueError if it isn't a regular file.
    """
    # O_NONBLOCK: opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is not a regular file")
        return os.read(descriptor, max_bytes), status
    finally:
        os.close(descriptor)


def make_private(directory: Path) -> None:
    """Create a directory that only its owner can enter, or restrict an existing one.

    An existing one keeps its setgid and sticky bits. Raises OSError if it can't be restricted,
    because another user owns it or its file system has no permissions.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _restrict(directory, 0o700)


def make_private_file(path: Path) -> None:
    """Restrict an existing file to its owner; raise OSError if that is impossible."""
    _restrict(path, 0o600)


def _restrict(path: Path, owner_mode: int) -> None:
    if is_open_to_others(path):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o077 | owner_mode)
        if is_open_to_others(path):
            raise PermissionError(errno.EPERM, "its file system has no permissions", str(path))


def is_open_to_others(path: Path) -> bool:
    """Return whether other users than the owner have permissions on a file or directory."""
    return bool(path.stat().st_mode & 0o077)


def list_names(path: Path) -> list[str]:
    """Return the names in a directory."""
    return [entry.name for entry in path.iterdir()]


class FileLock:
    """Exclusive lock of a directory, which the kernel releases when its process ends."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor  # a child process that inherits it keeps the lock held

    @classmethod
    def try_acquire(cls, directory: Path) -> FileLock | None:
        """Acquire the lock of a directory; return None if another process holds it.

        The directory itself is locked: a lock file could be removed while its lock is held, and a
        second process would lock a new file.
        """
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        """Release the lock, even if another process inherited it."""
        # `close` isn't enough: between fork and exec, new processes have copies of the descriptor.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

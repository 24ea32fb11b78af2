"""The file lock that makes one process the writer of a directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shadowprice.core.errors import Fault, InputError


class DirectoryLock:
    """Exclusive right to write in a directory, until released or the process ends.

    Raises
    ------
    InputError
        If another process holds the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._file, 20).decode(errors="replace").strip()
            os.close(self._file)
            who = f"process {holder}" if holder.isdigit() else "another process"
            hint = "stop it first, or give another directory with --data"
            raise InputError(Fault(f"--data {folder}", f"{who} writes there", hint)) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        os.ftruncate(self._file, 0)
        os.close(self._file)

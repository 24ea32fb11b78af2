"""The lock that makes one process the writer of a directory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from shadowprice.core.errors import Fault, InputError
from shadowprice.executors.generations.disk import FileLock


class DirectoryLock:
    """Exclusive right to write in a directory, until released or the process ends.

    The file ``lock`` only names the holder, for people. Raise `InputError` if another process holds
    the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._holder = folder / "lock"
        lock = FileLock.try_acquire(folder)
        if lock is None:
            hint = "stop it first, or use another --data"
            raise InputError(Fault(f"--data {folder}", f"{self._read_holder()} writes there", hint))
        self._lock = lock
        self._write_holder(f"{os.getpid()}\n")

    def _read_holder(self) -> str:
        try:
            holder = self._holder.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            holder = ""
        return f"process {holder}" if holder.isdigit() else "another process"

    def _write_holder(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the lock holds without it
            self._holder.touch(mode=0o600)
            self._holder.write_text(text, encoding="ascii")

    def release(self) -> None:
        """Release the lock."""
        self._write_holder("")
        self._lock.release()

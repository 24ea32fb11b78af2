"""Who writes: one process at a time in a directory, told by a locked file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shadowprice.core.errors import Fault, InputError


class DirectoryLock:
    """The right to write in a directory, until it is released or the process ends.

    Parameters
    ----------
    folder : Path
        The directory.

    Raises
    ------
    InputError
        If another process has it.
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
            mend = "stop it first, or give another directory with --data"
            raise InputError(Fault(f"--data {folder}", f"{who} writes there", mend)) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others write."""
        os.ftruncate(self._file, 0)
        os.close(self._file)

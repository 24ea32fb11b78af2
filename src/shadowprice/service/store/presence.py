"""Checks that the SQLite file of a directory, and its log, are the ones that the service wrote.

SQLite creates a missing database, and ignores a log that is missing, cut off or damaged. A service
would then start without its jobs, or without the newest ones. So a record beside the database says
that there is one, and whether its log must exist. The log's index, which outlives a killed process,
says what the log must contain.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.executors.generations.disk import create_file, sync_directory
from shadowprice.service.store.files import FILE, RESTORE_HINT, has_log

RECORD: Final = "store-state"
"""File of the record in the data directory. `shadowprice.db*` doesn't match it."""
IN_LOG: Final = "open"  # the newest changes may be in the log only
COMPLETE: Final = "closed"  # the database file holds every change
EXECUTOR_JOBS: Final = "executor/jobs"
"""Directory in which executors on this machine record their jobs."""
_INDEX: Final = struct.Struct("=12xBxHI4xII8s")
"""Index of a log (SQLite's file format, section "The WAL-Index File Format"): whether it is
initialized, page size, number of frames, checksum of the last one, salt of the log."""
_LOG_HEADER: Final = struct.Struct(">16x8s8x")
"""Salt of a log; a log that is restarted gets another one."""
_FRAME_HEADER: Final = struct.Struct(">8x8sII")
"""Salt and checksum of a frame, which a page follows."""
_OWN_FILES: Final = (FILE, RECORD, "executor", "operator.token")
"""Files by which a data directory is recognized."""


def holds_service_files(folder: Path) -> bool:
    """Return whether a directory holds files of a service."""
    return any((folder / name).exists() for name in _OWN_FILES)


class Presence:
    """The record of a SQLite file that must exist."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._record = database.with_name(RECORD)
        self._log = database.with_name(f"{database.name}-wal")
        self._index = database.with_name(f"{database.name}-shm")

    def must_exist(self) -> bool:
        """Return whether the directory shows that a service has stored data in it."""
        jobs = self._database.parent / EXECUTOR_JOBS
        return self._record.exists() or (jobs.is_dir() and any(jobs.iterdir()))

    def check(self) -> None:
        """Raise `InputError` if the database or its log is missing, empty or damaged."""
        try:
            size = self._database.stat().st_size
        except FileNotFoundError:
            size = None
        if not size and (self.must_exist() or self._log.exists()):
            self.refuse("is missing" if size is None else "is empty")
        # A backup has no log: it replaced the database.
        if size and self._read() == IN_LOG and not self._log.exists() and has_log(self._database):
            message = "is missing; the newest changes may have been in that file"
            other = f"if another program, such as sqlite3, was open on {self._database}"
            hint = f"{other}, it wrote them there: remove {self._record}; otherwise {RESTORE_HINT}"
            raise InputError(Fault(str(self._log), message, hint))
        if size and self._is_truncated():
            message = "is cut off or damaged; the newest changes were in that file"
            hint = f"{RESTORE_HINT}; or, to go on without these changes, remove {self._index}"
            raise InputError(Fault(str(self._log), message, hint))

    def _is_truncated(self) -> bool:
        """Return whether the log lacks changes that its index has."""
        try:
            index = self._index.read_bytes()[: _INDEX.size]
            with self._log.open("rb") as log:
                header = log.read(_LOG_HEADER.size)
                if len(index) < _INDEX.size:
                    return False
                is_set, page, frames, *checksum, salt = _INDEX.unpack(index)
                if not is_set or not frames:
                    return False
                if len(header) < _LOG_HEADER.size:
                    return True
                if _LOG_HEADER.unpack(header) != (salt,):
                    return False  # it is another log's index
                frame_bytes = _FRAME_HEADER.size + (65_536 if page == 1 else page)
                log.seek(_LOG_HEADER.size + (frames - 1) * frame_bytes)
                last = log.read(frame_bytes)
        except FileNotFoundError:
            return False
        return len(last) < frame_bytes or _FRAME_HEADER.unpack_from(last) != (salt, *checksum)

    def refuse(self, what: str) -> None:
        """Raise `InputError` because the database doesn't hold the data that it must hold."""
        message = f"{what}, but {self._database.parent} has other files of a service"
        hint = f"{RESTORE_HINT}; or, to begin without its jobs, give an empty directory"
        raise InputError(Fault(str(self._database), message, hint))

    def _read(self) -> str:
        try:
            return self._record.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return ""

    def write(self, state: str) -> None:
        """Record `IN_LOG` or `COMPLETE` durably."""
        if self._read() == state:
            return
        partial = self._record.with_name(f".{RECORD}")
        create_file(partial, f"{state}\n".encode())
        partial.replace(self._record)
        sync_directory(self._record.parent)

"""The SQLite file of a service: its errors, its presence at a start, and backups."""

from __future__ import annotations

import os
import sqlite3
import struct
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.executors.generations.disk import create_file, sync_directory
from shadowprice.service.store import tables

FILE: Final = "shadowprice.db"  # name of the database in a data directory

RESTORE_HINT: Final = (
    f"stop the service, remove {FILE}, {FILE}-wal and {FILE}-shm, and copy a backup there as {FILE}"
)
"""Hint for a lost or damaged SQLite file."""

PARTS: Final = ("-wal", "-shm", "-journal")  # suffixes of files that SQLite creates beside it
RECORD: Final = "store-state"  # file of `Presence`; `rm shadowprice.db*` doesn't remove it
IN_LOG: Final = "open"  # content of the record: the newest changes may only be in the log
COMPLETE: Final = "closed"  # content of the record: the database file holds every change
EXECUTOR_JOBS: Final = "executor/jobs"  # in which executors on this machine record their jobs
_INDEX: Final = struct.Struct("=12xBxHI4xII8s")
"""Index of a log (SQLite's file format, section "The WAL-Index File Format"): whether it is
initialized, page size, number of frames, checksum of the last frame, salt of the log."""
_LOG_HEADER: Final = struct.Struct(">16x8s8x")  # salt of a log, which changes when it restarts
_FRAME_HEADER: Final = struct.Struct(">8x8sII")  # salt and checksum of a frame; a page follows
_OWN_FILES: Final = (FILE, RECORD, "executor", "operator.token")
"""Files by which a data directory is recognized."""


class StoreError(ShadowpriceError):
    """The store can't be written or read; the transaction was rolled back."""

    code = "storage"


def backup_file(
    source: Path, target: Path, prepare: Callable[[Path], None] = lambda _: None
) -> None:
    """Copy a SQLite file while it is in use; the target appears once it is complete.

    ``prepare`` gets the complete copy before it replaces an earlier one. Raise `InputError`, with
    nothing written, if ``target`` is the database of a service, or one of its files. Raise
    `StoreError` if the source is damaged, or a file can't be read or written.
    """
    check_backup_target(target)
    partial: Path | None = None
    try:
        with closing(_open_for_reading(source)) as reader:
            handle, name = tempfile.mkstemp(".part", ".shadowprice.", target.parent)
            os.close(handle)
            partial = Path(name)
            with closing(sqlite3.connect(partial)) as copy:
                # In one step: a consistent snapshot, while the service continues to write. A copy
                # in several steps would start again after each write between two steps.
                reader.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
                broken = copy.execute("PRAGMA quick_check").fetchone()[0]
            if broken != "ok":
                message = f"is damaged: {' '.join(broken.split())[:200]}"
                raise StoreError(str(Fault(str(source), message, RESTORE_HINT)))
        prepare(partial)
        partial.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot copy {source} to {target}: {error}") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def check_backup_target(target: Path) -> None:
    """Raise `InputError` if a backup would overwrite the database of a running or stopped service.

    The database of a service is in write-ahead log mode, but copies aren't. A running service would
    continue to write to the replaced file, which has no name any more. Names of files that SQLite
    creates beside a database are refused too, and so are targets with such files beside them.
    """
    hint = "choose a new name"
    try:
        if target.is_file() and has_log(target):
            message = "is the database that a service works with, not a copy of one"
            raise InputError(Fault(str(target), message, hint))
        for suffix in PARTS:
            database, leftover = Path(str(target).removesuffix(suffix)), Path(f"{target}{suffix}")
            if database != target and database.is_file():
                message = f"would be read as a part of the database {database}"
                raise InputError(Fault(str(target), message, hint))
            if leftover.exists():
                message = f"{leftover.name}, beside it, would be read as a part of the copy"
                raise InputError(Fault(str(target), message, hint))
    except OSError:
        return  # an inaccessible target can't be written either


def has_log(path: Path) -> bool:
    """Return whether a file has the header of a SQLite database in write-ahead log mode."""
    with path.open("rb") as file:
        head = file.read(19)
    # Byte 18, the file format's write version, is 2 in this mode.
    return head.startswith(b"SQLite format 3\0") and head[18:] == b"\2"


def is_store(path: Path) -> bool:
    """Return whether a file is the SQLite file of a service, or a copy of it."""
    try:
        with closing(_open_for_reading(path)) as reader:
            names = {name for (name,) in reader.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error:
        return False
    return {tables.meta.name, tables.journal.name} <= names


def _open_for_reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def holds_service_files(folder: Path) -> bool:
    """Return whether a directory holds files of a service."""
    return any((folder / name).exists() for name in _OWN_FILES)


class Presence:
    """The record of a SQLite file that must exist.

    SQLite creates a missing database, and ignores a log that is missing, cut off or damaged. A
    service would then start without its jobs, or without the newest jobs. So a record beside the
    database shows that it must exist, and whether its log must exist. The log's index outlives a
    killed process, and shows which frames the log must contain.
    """

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
        # A backup that was copied here isn't in write-ahead log mode, so it needs no log.
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
                    return False  # the index is that of an earlier log
                # A page of 65,536 bytes doesn't fit the 16-bit field, and is stored as 1.
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

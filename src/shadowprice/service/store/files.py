"""The SQLite file of a service, its errors, and backups of it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.service.store import tables

FILE: Final = "shadowprice.db"  # name of the database in a data directory

RESTORE_HINT: Final = (
    f"stop the service, remove {FILE}, {FILE}-wal and {FILE}-shm, and copy a backup there as {FILE}"
)
"""Hint for a lost or damaged SQLite file."""

PARTS: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates beside a database."""


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
        reader = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
        try:
            handle, name = tempfile.mkstemp(
                prefix=".shadowprice.", suffix=".part", dir=target.parent
            )
            os.close(handle)
            partial = Path(name)
            copy = sqlite3.connect(partial)
            try:
                # In one step, as a consistent snapshot, while the service continues to write.
                # Copying in several steps would restart after every write between two of them.
                reader.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
                broken = copy.execute("PRAGMA quick_check").fetchone()[0]
                if broken != "ok":
                    message = f"is damaged: {' '.join(broken.split())[:200]}"
                    raise StoreError(str(Fault(str(source), message, RESTORE_HINT)))
            finally:
                copy.close()
        finally:
            reader.close()
        prepare(partial)
        partial.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot copy {source} to {target}: {error}") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def check_backup_target(target: Path) -> None:
    """Raise `InputError` if a backup would overwrite a service's database, even a stopped one's.

    The database of a service is in write-ahead log mode, which copies aren't. A running service
    would continue to write to the replaced file, which has no name any more. The files that SQLite
    creates beside a database are refused too, and a target beside which they lie.
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
    return head.startswith(b"SQLite format 3\0") and head[18:] == b"\2"


def is_store(path: Path) -> bool:
    """Return whether a file is the SQLite file of a service, or a copy of it."""
    try:
        reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            names = {name for (name,) in reader.execute("SELECT name FROM sqlite_master")}
        finally:
            reader.close()
    except sqlite3.Error:
        return False
    return {tables.meta.name, tables.journal.name} <= names

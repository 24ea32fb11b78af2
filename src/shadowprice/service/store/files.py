"""The SQLite file of a service, and copies of it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.service.store import tables
from shadowprice.service.store.errors import StoreError

FILE: Final = "shadowprice.db"
"""The database in a data directory."""

RESTORE: Final = (
    f"stop the service, put a copy that `shadowprice backup` wrote into an empty directory as "
    f"{FILE}, and serve from there"
)
"""What helps where the SQLite file is damaged."""

_PARTS: Final = ("-wal", "-shm", "-journal")
"""What SQLite adds to a database's name to call the files that it keeps beside it."""


def backup_file(source: Path, target: Path) -> None:
    """Copy a SQLite file while it is in use; the target appears when it is whole.

    Raises
    ------
    InputError
        If the copy would take the place of a database that a service works with, or of a part of
        one; nothing was written then.
    StoreError
        If it cannot be read or written.
    """
    check_copy(target)
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
                # In one go, as of one moment; the service goes on writing. In pieces, it would
                # begin anew each time that something was written between two of them.
                reader.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
                broken = copy.execute("PRAGMA quick_check").fetchone()[0]
                if broken != "ok":
                    message = f"is damaged: {' '.join(broken.split())[:200]}"
                    raise StoreError(str(Fault(str(source), message, RESTORE)))
            finally:
                copy.close()
        finally:
            reader.close()
        partial.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot copy {source} to {target}: {error}") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def check_copy(target: Path) -> None:
    """Refuse to replace a database that a service works with, whether or not it runs now.

    It has a write-ahead log, whatever name it is reached by; copies have none. A service whose
    database is replaced goes on writing to the one that has no name any more.

    Raises
    ------
    InputError
        If a copy at ``target`` would take the place of such a database, or of a part of one.
    """
    mend = "give a new name"
    try:
        if target.is_file() and _has_log(target):
            message = "is the database that a service works with, not a copy of one"
            raise InputError(Fault(str(target), message, mend))
        for part in _PARTS:
            whole, left = Path(str(target).removesuffix(part)), Path(f"{target}{part}")
            if whole != target and whole.is_file():
                message = f"would be read as a part of the database {whole}"
                raise InputError(Fault(str(target), message, mend))
            if left.exists():
                message = f"{left.name}, beside it, would be read as a part of the copy"
                raise InputError(Fault(str(target), message, mend))
    except OSError:
        return  # what cannot be looked at cannot be written either


def _has_log(path: Path) -> bool:
    """Whether a file is a SQLite file with a write-ahead log, by what its header says.

    It is not opened as a database: by another name than its own, that would begin a second log.
    """
    with path.open("rb") as file:
        head = file.read(19)
    return head.startswith(b"SQLite format 3\0") and head[18:] == b"\2"


def is_store(path: Path) -> bool:
    """Whether a file is the SQLite file of a service, or a copy of one."""
    try:
        reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            found = {name for (name,) in reader.execute("SELECT name FROM sqlite_master")}
        finally:
            reader.close()
    except sqlite3.Error:
        return False
    return {tables.meta.name, tables.journal.name} <= found

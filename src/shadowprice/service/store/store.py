"""The store: one connection that writes, others that read, a transaction a batch.

Every write goes through `Store.transaction`, which asks `Store.fault` before and after each
statement and around the commit: that is where tests let it fail.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    create_engine,
    event,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.service.store import tables
from shadowprice.service.store.lock import DirectoryLock
from shadowprice.service.store.prepared import Prepared

FILE: Final = "shadowprice.db"
"""The database in a data directory."""

LOG_BYTES: Final = 32 << 20
"""Bytes of the write-ahead log that are left to it once it was written into the database."""

ADVISORY: Final = 0x5AD0_9A1C
"""Number of PostgreSQL's advisory lock; its second half is the schema's own."""

EPOCH: Final = "epoch"
"""Key under which the number of the elected leader is kept."""

TAKE_OVER: Final = 5.0
"""Seconds that a connection that is ended is given to let go of the lock."""

_END_HOLDER: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND classid::bigint = :one AND objid::bigint = :two AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)

_SESSION: Final = text(
    "SELECT pid, backend_start AS since FROM pg_stat_activity WHERE pid = pg_backend_pid()"
)

_END_SESSION: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid = :pid AND backend_start = :since"
)

RESTORE: Final = (
    f"stop the service, put a copy that `shadowprice backup` wrote into an empty directory as "
    f"{FILE}, and serve from there"
)
"""What helps where the SQLite file is damaged."""

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_MIGRATIONS: Final = Path(__file__).parent / "migrations"

Rows = Sequence[Mapping[str, Any]]


class StoreError(ShadowpriceError):
    """The store cannot be written or read; what was being written was not."""

    code = "storage"


class Store:
    """Where everything is kept.

    Parameters
    ----------
    where : str
        A directory, made where it is missing, or ``postgresql+psycopg://...``.

    Attributes
    ----------
    folder : Path or None
        The directory, where it is one.
    fault : callable
        Told the name of every point at which a crash would leave the store as it is there.

    Raises
    ------
    InputError
        If it cannot be opened, another process writes there, or it is of a newer version.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.fault: Callable[[str], None] = _no_fault
        self._writer: Connection | None = None
        self._lock: DirectoryLock | None = None
        self._epoch = 0
        self._session: dict[str, Any] | None = None  # the server's, which has the advisory lock
        if "://" in where:
            self.folder: Path | None = None
            self._url = _postgres_url(where)
            self.shown = self._url.render_as_string(hide_password=True)
        else:
            self.folder = Path(where)
            self._url = URL.create("sqlite", database=str(self.file))
            self.shown = str(self.folder)
        self._engine = self._make_engine()

    @property
    def embedded(self) -> bool:
        """Whether it is a SQLite file of its own."""
        return self.folder is not None

    @property
    def file(self) -> Path:
        """The SQLite file; only of an embedded one."""
        assert self.folder is not None
        return self.folder / FILE

    # ---------------------------------------------------------------- opening

    def open(self, epoch: int = 0) -> bool:
        """Become the writer, and bring the tables to this version.

        Parameters
        ----------
        epoch : int
            Number of an elected leader, 0 where nobody is elected. One that was elected later ends
            the connection of one before it that still holds a database, and keeps its number there:
            none with a lower one writes any more.

        Returns
        -------
        bool
            Whether it is; False where another instance writes to a shared database, or was elected
            later.
        """
        self._epoch = epoch
        try:
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                if self._lock is None:
                    self._lock = DirectoryLock(self.folder)
            self._writer = self._engine.connect()
            if not self.embedded and not self._elected(self._writer, take_over=epoch > 0):
                self._drop_writer()
                return False
            self._migrate(self._writer)
            if not self._fenced(self._writer):
                self.close()
                return False
        except OSError as error:
            raise InputError(
                Fault(f"--data {self.shown}", f"cannot be used: {error.strerror}")
            ) from error
        except SQLAlchemyError as error:
            self._drop_writer()
            if self._damaged(error):
                raise InputError(Fault(str(self.file), _damage(error), RESTORE)) from error
            raise InputError(
                Fault(
                    f"--data {self.shown}",
                    f"cannot be opened: {_reason(error)}",
                    "check that it is a data directory"
                    if self.embedded
                    else "check the address, and that the server runs and takes connections",
                )
            ) from error
        except InputError:
            self.close()
            raise
        return True

    def reopen(self) -> bool:
        """Connect again after a failure; return whether this is still the writer.

        Raises
        ------
        StoreError
            If it cannot be reached, or cannot be written.
        """
        try:
            if self._writer is None or self._writer.closed or self._writer.invalidated:
                self._drop_writer()
                self._writer = self._engine.connect()
                if not self.embedded and not self._elected(self._writer):
                    self._drop_writer()
                    return False
                if not self._fenced(self._writer):
                    self._drop_writer()
                    return False
            with self.transaction() as connection:
                self.put(connection, "probe", secrets.token_hex(512))
        except SQLAlchemyError as error:
            self._drop_writer()
            raise self._failure(error) from error
        return True

    def close(self) -> None:
        """Let others write."""
        self._drop_writer()
        self._engine.dispose()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _damaged(self, error: SQLAlchemyError) -> bool:
        """Whether it is a file, and the file that SQLite cannot make sense of."""
        code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
        return self.embedded and code & 0xFF in _DAMAGE

    def _failure(self, error: SQLAlchemyError) -> StoreError:
        """Return what is told of an error of the database: the file and the mend, if it is that."""
        if self._damaged(error):
            return StoreError(str(Fault(str(self.file), _damage(error), RESTORE)))
        return StoreError(_reason(error))

    def _drop_writer(self) -> None:
        if self._writer is not None:
            try:
                self._writer.invalidate()
                self._writer.close()
            except SQLAlchemyError:
                pass  # it is gone already
            self._writer = None

    def _make_engine(self) -> Engine:
        if self.embedded:
            engine = create_engine(
                self._url,
                poolclass=QueuePool,
                pool_size=8,
                connect_args={"check_same_thread": False, "timeout": 10.0},
            )
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin)
            return engine
        return create_engine(
            self._url,
            pool_size=8,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": 5,
                "application_name": "shadowprice",
                # A peer that is gone without a word is noticed within ten seconds.
                "keepalives_idle": 3,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": 9000,
            },
        )

    def _fenced(self, connection: Connection) -> bool:
        """Keep this leader's number, now that nobody else writes; whether none is higher."""
        if not self._epoch:
            return True
        table = tables.meta
        with connection.begin():
            found = connection.execute(select(table.c.value).where(table.c.key == EPOCH)).scalar()
            if found is not None and int(found) > self._epoch:
                return False
            self.put(connection, EPOCH, str(self._epoch))
        return True

    def _elected(self, connection: Connection, *, take_over: bool = False) -> bool:
        """Try for the advisory lock; it lasts as long as the connection.

        The connection of this writer's own that had it before is ended, if the server has it still:
        what lies between may hold it for it, long after it was lost here. Where an elected leader
        finds the lock with an earlier one, that one's connection is ended: a process that is frozen
        holds it for as long as its machine answers.
        """
        for setting, value in (("idle", 3), ("interval", 2), ("count", 3)):
            connection.execute(text(f"SET tcp_keepalives_{setting} = {value}"))
        schema = connection.execute(text("SELECT hashtext(current_schema())")).scalar_one()
        number = {"one": ADVISORY, "two": schema}
        asked = text("SELECT pg_try_advisory_lock(:one, :two)")
        ended = self._session is not None and bool(
            connection.execute(_END_SESSION, self._session).scalar()
        )
        taken = connection.execute(asked, number).scalar_one()
        if not taken and take_over and self._later(connection):
            connection.execute(_END_HOLDER, {"one": ADVISORY, "two": schema % 2**32})
            ended = True
        until = time.monotonic() + TAKE_OVER
        while not taken and ended and time.monotonic() < until:
            connection.commit()
            time.sleep(0.05)
            taken = connection.execute(asked, number).scalar_one()
        if taken:
            self._session = dict(connection.execute(_SESSION).mappings().one())
        connection.commit()
        return bool(taken)

    def _later(self, connection: Connection) -> bool:
        """Whether this leader was elected after the last one that wrote, as far as is known."""
        there = connection.execute(text("SELECT to_regclass('meta')")).scalar()
        if there is None:
            return True
        table = tables.meta
        found = connection.execute(select(table.c.value).where(table.c.key == EPOCH)).scalar()
        return found is None or int(found) < self._epoch

    # ---------------------------------------------------------------- versions

    def _migrate(self, connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        known = ScriptDirectory.from_config(config)
        there = self._version(connection)
        if there is not None and there not in {one.revision for one in known.walk_revisions()}:
            raise InputError(
                Fault(
                    f"--data {self.shown}",
                    f"was written by a newer version (its tables are of {there!r})",
                    "install that version of shadowprice, or give other data",
                )
            )
        if there == known.get_current_head():
            return
        with connection.begin():
            command.upgrade(config, "head")

    @staticmethod
    def _version(connection: Connection) -> str | None:
        from alembic.runtime.migration import MigrationContext  # noqa: PLC0415  # slow to load

        with connection.begin():
            return MigrationContext.configure(connection).get_current_revision()

    # ---------------------------------------------------------------- writing

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Write: all of the block or none of it.

        Raises
        ------
        StoreError
            If it could not be written.
        """
        writer = self._writer
        if writer is None:
            raise StoreError("the store is not open for writing")
        try:
            self.fault("begin")
            with writer.begin():
                yield writer
                self.fault("commit")
            self.fault("committed")
        except (OperationalError, DBAPIError) as error:
            raise self._failure(error) from error

    def write(
        self, connection: Connection, statement: Executable | Prepared, rows: Rows | None = None
    ) -> None:
        """Execute a statement within a transaction."""
        self.fault("write")
        if isinstance(statement, Prepared):
            if rows:
                statement.execute(connection, rows)
        elif rows is None:
            connection.execute(statement)
        elif rows:
            connection.execute(statement, list(rows))

    def put(self, connection: Connection, key: str, value: str) -> None:
        """Keep a value under a key."""
        self.fault("write")
        changed = connection.execute(
            tables.meta.update().where(tables.meta.c.key == key).values(value=value)
        )
        if not changed.rowcount:
            connection.execute(tables.meta.insert().values(key=key, value=value))

    # ---------------------------------------------------------------- reading

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read what was committed, on a connection of its own.

        Raises
        ------
        StoreError
            If it cannot be read.
        """
        try:
            with self._engine.connect() as connection:
                yield connection
        except (OperationalError, DBAPIError) as error:
            raise self._failure(error) from error

    def get(self, key: str) -> str | None:
        """Return the value kept under a key."""
        with self.reading() as connection:
            found = connection.execute(
                select(tables.meta.c.value).where(tables.meta.c.key == key)
            ).scalar()
        return None if found is None else str(found)

    def backup(self, target: Path) -> None:
        """Write a copy of the store as it is at this moment; only of an embedded one.

        Raises
        ------
        StoreError
            If it cannot be read or written.
        """
        backup_file(self.file, target)


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


_PARTS: Final = ("-wal", "-shm", "-journal")
"""What SQLite adds to a database's name to call the files that it keeps beside it."""


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


def _no_fault(point: str) -> None:
    del point


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin`, not by the driver
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    # A copy that is made, or much that is written at once, lets the log grow: not for good.
    cursor.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
    # Each of the connections has its own; what is not in it is in the system's.
    cursor.execute("PRAGMA cache_size=-4096")
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _postgres_url(where: str) -> URL:
    example = "write postgresql+psycopg://user@host/database"
    try:
        url = make_url(where)
    except (ArgumentError, ValueError) as error:
        raise InputError(Fault("--data", "is no address of a database", example)) from error
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername != "postgresql+psycopg":
        message = f"databases of kind {url.drivername!r} cannot be used"
        raise InputError(Fault("--data", message, example))
    return url


def _damage(error: BaseException) -> str:
    return f"is damaged: {_reason(error)}"


def _reason(error: BaseException) -> str:
    original = getattr(error, "orig", None) or error
    return " ".join(str(original).split())[:300]


__all__ = ["RESTORE", "Rows", "Store", "StoreError", "backup_file", "check_copy", "is_store"]

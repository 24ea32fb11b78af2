"""The store: one connection that writes, others that read, a transaction a batch.

Every write goes through `Store.transaction`, which asks `Store.fault` before and after each
statement and around the commit: that is where tests let it fail.
"""

from __future__ import annotations

import secrets
import sqlite3
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
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from shadowprice.core.errors import Fault, InputError
from shadowprice.service.store import tables
from shadowprice.service.store.advisory import EPOCH, AdvisoryLock
from shadowprice.service.store.errors import StoreError
from shadowprice.service.store.files import FILE, RESTORE
from shadowprice.service.store.lock import DirectoryLock
from shadowprice.service.store.prepared import Prepared

LOG_BYTES: Final = 32 << 20
"""Bytes of the write-ahead log that are left to it once it was written into the database."""

UNKNOWN_FORMAT_HINT: Final = (
    "install the version of shadowprice that wrote the data, or use another --data"
)

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_MIGRATIONS: Final = Path(__file__).parent / "migrations"

Rows = Sequence[Mapping[str, Any]]


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
        If it cannot be opened, another process writes there, or the version of its tables is
        unknown.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.fault: Callable[[str], None] = _no_fault
        self._writer: Connection | None = None
        self._lock: DirectoryLock | None = None
        self._epoch = 0
        self._advisory = AdvisoryLock()
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
        """Become the writer; create the tables in an empty store.

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
            if not self._leads(take_over=epoch > 0):
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
                if not self._leads(take_over=False):
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

    def _leads(self, *, take_over: bool) -> bool:
        """Return whether the connection may write; that of a file may, whose folder is locked."""
        assert self._writer is not None
        return self.embedded or self._advisory.take(self._writer, self._epoch, take_over=take_over)

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
                    f"the tables are of the unknown version {there!r}",
                    UNKNOWN_FORMAT_HINT,
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

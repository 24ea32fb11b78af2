"""The store: one connection that writes, a pool that reads, and one transaction per batch.

Every write goes through `Store.transaction`. It calls `Store.fault` at the beginning, before each
statement, and before and after the commit, so that tests can inject faults there.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, Engine, Executable, create_engine, delete, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from shadowprice.core.errors import Fault, InputError
from shadowprice.executors.generations import disk
from shadowprice.service.store import tables
from shadowprice.service.store.files import (
    COMPLETE,
    FILE,
    IN_LOG,
    PARTS,
    RESTORE_HINT,
    Presence,
    StoreError,
    holds_service_files,
)
from shadowprice.service.store.locks import EPOCH_KEY, DirectoryLock, PostgresAdvisoryLock
from shadowprice.service.store.lookups import in_chunks, stored_value

log = logging.getLogger("shadowprice.service")

WAL_SIZE_LIMIT_BYTES: Final = 32 << 20  # size to which checkpoints truncate the write-ahead log
UNKNOWN_FORMAT_HINT: Final = (
    "install the version of shadowprice that wrote the data, or use another --data"
)
_WRITES: Final = "writes"  # execution option of the writing connection
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MIGRATIONS: Final = Path(__file__).parent / "migrations"

Rows = Sequence[Mapping[str, Any]]


class Store:
    """The durable store: SQLite in a directory, or PostgreSQL at ``postgresql+psycopg://...``."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.fault: Callable[[str], None] = lambda _: None  # gets the name of each crash point
        self._writer: Connection | None = None
        self._lock: DirectoryLock | None = None
        self._epoch = 0
        self.later_epoch = 0  # of the leader that made this instance a standby; 0 without one
        self.damage: str | None = None  # of the SQLite file; only the next start clears it
        self._advisory = PostgresAdvisoryLock()
        self._file_id: tuple[int, int] | None = None  # of the SQLite file that was opened
        if "://" in where:
            self.folder: Path | None = None  # PostgreSQL
            self._url = _postgres_url(where)
            self.shown = self._url.render_as_string(hide_password=True)
        else:
            self.folder = Path(where)
            # SQLite must never create the file: a lost database would start empty.
            self._url = URL.create(
                "sqlite",
                database=self.file.absolute().as_uri(),
                query={"mode": "rw", "uri": "true"},
            )
            self.shown = str(self.folder)
            self._presence = Presence(self.file)
        self._engine = self._make_engine()

    @property
    def embedded(self) -> bool:
        """Whether the store is a SQLite file."""
        return self.folder is not None

    @property
    def file(self) -> Path:
        """The SQLite file; only valid for an embedded store."""
        assert self.folder is not None
        return self.folder / FILE

    # ---------------------------------------------------------------- opening

    def open(self, epoch: int = 0) -> bool:
        """Become the writer, and create or upgrade the tables; return whether that succeeded.

        Return False if another instance writes to a shared database, or has a later epoch.

        ``epoch`` is the fencing token of an elected leader, or 0 without an election. A later
        leader terminates the connection of an earlier one, and stores its epoch. From then on,
        lower epochs can't become the writer.

        Raise `InputError` if the store can't be opened, another process writes to the directory, or
        the version of the tables is unknown.
        """
        self._epoch = epoch
        try:
            if self.folder is not None:
                self._open_folder(self.folder)
            self._writer = self._connect_writer()
            if not self._may_write(take_over=epoch > 0):
                self._drop_writer()
                return False
            self._migrate(self._writer)
            if not self._store_epoch(self._writer):
                self.close()
                return False
            if self.embedded:
                self._check_content()
        except OSError as error:
            failed = f"cannot use {error.filename}" if error.filename else "cannot be used"
            fault = Fault(f"--data {self.shown}", f"{failed}: {error.strerror}")
            raise InputError(fault) from error
        except SQLAlchemyError as error:
            self._drop_writer()
            if self._is_damaged(error):
                raise InputError(Fault(str(self.file), _damage(error), RESTORE_HINT)) from error
            hint = "check the address, and that the server runs and accepts connections"
            if self.embedded:
                hint = "check that it is a data directory"
            message = f"cannot be opened: {_reason(error)}"
            raise InputError(Fault(f"--data {self.shown}", message, hint)) from error
        except InputError:
            self.close()
            raise
        return True

    def _open_folder(self, folder: Path) -> None:
        """Make the directory private, lock it, and check or create the SQLite file."""
        try:
            self._check_foreign(folder)
            disk.make_private(folder)
        except PermissionError as error:
            if not folder.is_dir():
                raise
            message = "other users can enter it, and this user can't change that"
            # If it has a service's files, a service in a subdirectory would start without its jobs.
            has_service = holds_service_files(folder)
            other = "run as its owner" if has_service else f"give --data {folder / 'service'}"
            hint = f"make this user its owner (chown), or {other}"
            raise InputError(Fault(f"--data {self.shown}", message, hint)) from error
        if self._lock is None:
            self._lock = DirectoryLock(folder)
        self._presence.check()
        # SQLite gives the log and its index the permissions of the database.
        self.file.touch(mode=0o600)
        for suffix in ("", *PARTS):
            file = folder / f"{FILE}{suffix}"
            if file.exists():
                disk.make_private_file(file)
        self._file_id = _file_id(self.file)

    def _check_foreign(self, folder: Path) -> None:
        """Refuse a directory such as /tmp, instead of locking other users out of it."""
        if not folder.is_dir() or not disk.is_open_to_others(folder) or holds_service_files(folder):
            return
        # The root of a new ext4 volume has lost+found.
        if set(disk.list_names(folder)) - {"lost+found"}:
            message = "other users can read it, and it has files that no service wrote"
            hint = "use an empty or new directory"
            raise InputError(Fault(f"--data {self.shown}", message, hint))

    def _check_content(self) -> None:
        """Record that the directory holds data; refuse a database that lost its data."""
        if self.get("format") is not None:
            self.mark_used()
        elif self._presence.must_exist():
            self._presence.refuse("contains no data")

    def mark_used(self) -> None:
        """Record that the directory holds data, so that a lost database is detected."""
        if self.embedded:
            self._presence.write(IN_LOG)

    def reopen(self) -> bool:
        """Reconnect a failed writer and test it; return False if another instance may write now."""
        try:
            if self._writer is None or self._writer.closed or self._writer.invalidated:
                self._drop_writer()
                self._writer = self._connect_writer()
                if not self._may_write(take_over=False) or not self._store_epoch(self._writer):
                    self._drop_writer()
                    return False
            with self.transaction() as connection:
                # Another value each time, so that the update really writes: a full disk fails here.
                self.put(connection, "probe", secrets.token_hex(512))
        except SQLAlchemyError as error:
            self._drop_writer()
            raise self._failure(error) from error
        return True

    def close(self) -> None:
        """Close all connections, and release the lock of the directory."""
        self._complete_file()
        self._drop_writer()
        self._engine.dispose()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _complete_file(self) -> None:
        """Move the log into the SQLite file, and record that the file is complete."""
        writer = self._writer
        if not self.embedded or writer is None or writer.closed or writer.invalidated:
            return
        self._engine.dispose()
        try:
            # On the driver's connection: SQLAlchemy's would begin a transaction.
            connection: Any = writer.connection.driver_connection
            # A stop must not wait long for another program that reads the database.
            connection.execute("PRAGMA busy_timeout=1000")
            [is_busy, *_] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            # Before the last connection closes, which removes the log: a kill may come in between.
            if not is_busy and self._presence.must_exist():
                self._presence.write(COMPLETE)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            log.warning("failed to record that %s is complete: %s", self.file, error)

    def _is_damaged(self, error: SQLAlchemyError) -> bool:
        code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
        # The low byte of an extended code is the primary code.
        return self.embedded and code & 0xFF in _DAMAGE

    def _failure(self, error: SQLAlchemyError) -> StoreError:
        """Convert a database error; if the file is damaged, name it and add a hint."""
        if self._is_damaged(error):
            self.damage = str(Fault(str(self.file), _damage(error), RESTORE_HINT))
            return StoreError(self.damage)
        return StoreError(_reason(error))

    def _connect_writer(self) -> Connection:
        return self._engine.connect().execution_options(**{_WRITES: True})

    def _drop_writer(self) -> None:
        if self._writer is not None:
            try:
                self._writer.invalidate()
                self._writer.close()
            except SQLAlchemyError:
                pass  # the connection is already lost
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
                # Detect a dead peer within ten seconds.
                "keepalives_idle": 3,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": 9000,
            },
        )

    def _may_write(self, *, take_over: bool) -> bool:
        """Return whether the connection may write; for a file, the directory lock suffices."""
        assert self._writer is not None
        if self.embedded:
            return True
        return self._advisory.try_acquire(self._writer, self._epoch, take_over=take_over)

    def _store_epoch(self, connection: Connection) -> bool:
        """Store this leader's epoch; return False if the stored epoch is higher."""
        if not self._epoch:
            return True
        with connection.begin():
            stored = stored_value(connection, EPOCH_KEY)
            if stored is not None and int(stored) > self._epoch:
                self.later_epoch = int(stored)
                return False
            self.put(connection, EPOCH_KEY, str(self._epoch))
        return True

    # ---------------------------------------------------------------- versions

    def _migrate(self, connection: Connection) -> None:
        """Create the tables of a new database, or upgrade the tables of an older version."""
        from alembic.runtime.migration import MigrationContext  # noqa: PLC0415  # slow to load

        scripts = _load_migrations()
        with connection.begin():
            context = MigrationContext.configure(connection)
            version = context.get_current_revision()
        if version is None and self.embedded and self._presence.must_exist():
            self._presence.refuse("contains no data")
        if version == scripts.get_current_head():
            return
        if version is None:
            with connection.begin():
                tables.metadata.create_all(connection)
                context.stamp(scripts, "head")
            return
        if version not in {script.revision for script in scripts.walk_revisions()}:
            message = f"the tables have the unknown version {version!r}"
            raise InputError(Fault(f"--data {self.shown}", message, UNKNOWN_FORMAT_HINT))
        config = _migration_config()
        config.attributes["connection"] = connection
        with connection.begin():
            command.upgrade(config, "head")

    # ---------------------------------------------------------------- writing

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a block as one transaction of the writer, or raise `StoreError`."""
        writer = self._writer
        if writer is None:
            raise StoreError("the store is read-only")
        # SQLAlchemy would reconnect, but the lock was lost with the connection.
        if writer.invalidated:
            raise StoreError("the connection to the database was lost")
        if self.embedded and _file_id(self.file) != self._file_id:
            message = "was removed or replaced while the service runs"
            raise StoreError(str(Fault(str(self.file), message, RESTORE_HINT)))
        try:
            self.fault("begin")
            with writer.begin():
                yield writer
                self.fault("commit")
            self.fault("committed")
        except (DBAPIError, PoolTimeoutError) as error:
            raise self._failure(error) from error

    def write(
        self,
        connection: Connection,
        statement: Executable,
        rows: Rows | None = None,
    ) -> None:
        """Execute a statement within a transaction."""
        self.fault("write")
        if rows is None:
            connection.execute(statement)
        elif rows:
            connection.execute(statement, list(rows))

    def delete(self, connection: Connection, column: Column[Any], values: Sequence[Any]) -> None:
        """Delete the rows of a column's table that have one of these values."""
        for chunk in in_chunks(values):
            self.write(connection, delete(column.table).where(column.in_(chunk)))

    def put(self, connection: Connection, key: str, value: str) -> None:
        """Set a key of the key-value table."""
        self.fault("write")
        changed = connection.execute(
            tables.meta.update().where(tables.meta.c.key == key).values(value=value)
        )
        if not changed.rowcount:
            connection.execute(tables.meta.insert().values(key=key, value=value))

    # ---------------------------------------------------------------- reading

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read committed data on a connection of the pool; raise `StoreError` if that fails."""
        try:
            with self._engine.connect() as connection:
                yield connection
        except (DBAPIError, PoolTimeoutError) as error:
            raise self._failure(error) from error

    def get(self, key: str) -> str | None:
        """Return the value of a key; None if it isn't set."""
        with self.reading() as connection:
            return stored_value(connection, key)


def _migration_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


@cache
def _load_migrations() -> ScriptDirectory:
    return ScriptDirectory.from_config(_migration_config())


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # `_begin` starts transactions, not the driver
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    # A backup or a large transaction lets the log grow. Without a limit, it never shrinks again.
    cursor.execute(f"PRAGMA journal_size_limit={WAL_SIZE_LIMIT_BYTES}")
    # 4 MiB for each connection; the page cache of the system serves the rest.
    cursor.execute("PRAGMA cache_size=-4096")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A transaction that reads first can't wait for the lock of another program, such as a backup.
    # Its write would fail at once, whatever the timeout.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgres_url(where: str) -> URL:
    example = "write postgresql+psycopg://user@host/database"
    try:
        url = make_url(where)
    except (ArgumentError, ValueError) as error:
        raise InputError(Fault("--data", "is not an address of a database", example)) from error
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

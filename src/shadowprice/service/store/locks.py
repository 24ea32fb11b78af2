"""The locks that make one process the writer: of a directory, or of a PostgreSQL database."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from shadowprice.core.errors import Fault, InputError
from shadowprice.executors.generations.disk import FileLock
from shadowprice.service.store.lookups import stored_value

LOCK_ID: Final = 0x5AD0_9A1C  # first key of the lock; the second is a hash of the schema's name
EPOCH_KEY: Final = "epoch"  # key of the elected leader's epoch in the store
TAKEOVER_TIMEOUT_SECONDS: Final = 5.0  # for a terminated connection to release the lock
_POLL_SECONDS: Final = 0.05  # between attempts to get the lock from a terminated connection

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


class DirectoryLock:
    """Exclusive right to write in a directory; the file ``lock`` names the holder for people."""

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
        with contextlib.suppress(OSError):  # the lock doesn't need the name
            self._holder.touch(mode=0o600)
            self._holder.write_text(text, encoding="ascii")

    def release(self) -> None:
        """Release the lock."""
        self._write_holder("")
        self._lock.release()


class PostgresAdvisoryLock:
    """An advisory lock, held until its connection ends."""

    def __init__(self) -> None:
        self._session: dict[str, Any] | None = None  # server process that last held the lock

    def try_acquire(self, connection: Connection, epoch: int, *, take_over: bool) -> bool:
        """Try to acquire the lock for a connection; return whether it holds the lock.

        First terminate this instance's previous connection if the server still has it: a proxy may
        keep it open long after this side lost it. If ``take_over``, also terminate the connection
        of a leader with an earlier epoch. Otherwise a frozen process would hold the lock as long as
        its machine answers. ``epoch`` is 0 without an election.
        """
        # The server then detects a dead leader, and releases its lock, within ten seconds.
        for setting, value in (("idle", 3), ("interval", 2), ("count", 3)):
            connection.execute(text(f"SET tcp_keepalives_{setting} = {value}"))
        schema = connection.execute(text("SELECT hashtext(current_schema())")).scalar_one()
        keys = {"one": LOCK_ID, "two": schema}
        try_lock = text("SELECT pg_try_advisory_lock(:one, :two)")
        has_terminated = self._session is not None and bool(
            connection.execute(_END_SESSION, self._session).scalar()
        )
        is_held = connection.execute(try_lock, keys).scalar_one()
        if not is_held and take_over and _is_later(connection, epoch):
            # pg_locks shows the signed keys as unsigned numbers.
            connection.execute(_END_HOLDER, {"one": LOCK_ID, "two": schema % 2**32})
            has_terminated = True
        deadline = time.monotonic() + TAKEOVER_TIMEOUT_SECONDS
        while not is_held and has_terminated and time.monotonic() < deadline:
            connection.commit()
            time.sleep(_POLL_SECONDS)
            is_held = connection.execute(try_lock, keys).scalar_one()
        if is_held:
            self._session = dict(connection.execute(_SESSION).mappings().one())
        connection.commit()
        return bool(is_held)


def _is_later(connection: Connection, epoch: int) -> bool:
    """Return whether an epoch is later than the stored epoch; True if none is stored."""
    exists = connection.execute(text("SELECT to_regclass('meta')")).scalar()
    if exists is None:
        return True
    stored = stored_value(connection, EPOCH_KEY)
    return stored is None or int(stored) < epoch

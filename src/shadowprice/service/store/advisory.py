"""Which of several instances writes to a PostgreSQL: the one whose connection has its lock."""

from __future__ import annotations

import time
from typing import Any, Final

from sqlalchemy import Connection, select, text

from shadowprice.service.store import tables

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


class AdvisoryLock:
    """A lock that lasts as long as the connection that took it."""

    def __init__(self) -> None:
        self._session: dict[str, Any] | None = None  # the server's, which had it last

    def take(self, connection: Connection, epoch: int, *, take_over: bool) -> bool:
        """Try for it; return whether this connection has it now.

        The connection of this instance's own that had it before is ended, if the server has it
        still: what lies between may hold it, long after it was lost here.

        Parameters
        ----------
        connection : Connection
            What is to have it.
        epoch : int
            Number of an elected leader, 0 where nobody is elected.
        take_over : bool
            Whether the connection of a leader that was elected earlier is ended: a process that is
            frozen holds it for as long as its machine answers.
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
        if not taken and take_over and _is_later(connection, epoch):
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


def _is_later(connection: Connection, epoch: int) -> bool:
    """Return whether a leader was elected after the last one that wrote, as far as is known."""
    there = connection.execute(text("SELECT to_regclass('meta')")).scalar()
    if there is None:
        return True
    table = tables.meta
    found = connection.execute(select(table.c.value).where(table.c.key == EPOCH)).scalar()
    return found is None or int(found) < epoch

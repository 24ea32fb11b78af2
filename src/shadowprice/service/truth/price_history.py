"""Prices as they were: a sample a slot, thinned with age.

A sample is of the slot that comes next, as `prices` tells it. It is marked when it is taken as the
first of its hour, of its minute, or neither; what is of no minute goes after an hour, what is of no
hour after a week. So months of slots of a second stay some thousand rows.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final

from sqlalchemy import Connection, delete, select

from shadowprice.rest.monitoring import PriceSlot
from shadowprice.service.clock import SECOND, Calendar, to_datetime
from shadowprice.service.store import Store, tables
from shadowprice.service.truth.prices import prices
from shadowprice.service.truth.truth import Truth

HOUR: Final = 3_600 * SECOND
MINUTE: Final = 60 * SECOND

_LEAST: Final = 5.0
"""Seconds between two samples, at least, and at least `_SHARE` times what one takes."""

_SHARE: Final = 100.0

_LOOKED: Final = 20
"""Samples that are passed over for one that is told, at most; then coarser ones are looked at."""

_SWEPT: Final = 1_000
"""Rows of a kind that leave at once."""


class Sampler:
    """Takes samples, in the thread that owns the truth.

    Parameters
    ----------
    truth : Truth
        Whose prices.
    """

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._slot: int | None = None
        self._hour = self._minute = -1
        self._not_before = 0.0

    @property
    def due(self) -> bool:
        """Whether there is something new to note."""
        running = self._truth.engine.slot_running
        return (
            running is not None and running != self._slot and time.monotonic() >= self._not_before
        )

    def take(self) -> None:
        """Take a sample and write it down.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        truth, began = self._truth, time.monotonic()
        self._slot = truth.engine.slot_running
        now = truth.clock.now()
        found = prices(truth, 1)
        if found.slots:
            [row] = found.slots
            hour, minute = now // HOUR, now // MINUTE
            grain = 2 if hour != self._hour else 1 if minute != self._minute else 0
            self._hour, self._minute = hour, minute
            kinds = json.dumps(row.kinds, separators=(",", ":"))
            record = {"at": now, "slot": row.slot, "grain": grain, "record": kinds}
            with truth.store.transaction() as connection:
                truth.store.write(connection, tables.prices.insert(), [record])
        spent = time.monotonic() - began
        self._not_before = time.monotonic() + max(_LEAST, _SHARE * spent)


def history(connection: Connection, calendar: Calendar, since: int, most: int) -> list[PriceSlot]:
    """Return samples from a moment on, at most so many, evenly left out.

    Parameters
    ----------
    connection : Connection
        To read by.
    calendar : Calendar
        When slots are.
    since : int
        The moment, in nanoseconds since 1970.
    most : int
        How many.
    """
    table = tables.prices
    ids: list[int] = []
    for grain in (0, 1, 2):
        query = select(table.c.id).where(table.c.at >= since, table.c.grain >= grain)
        query = query.order_by(table.c.id.desc()).limit(_LOOKED * most)
        ids = list(connection.execute(query).scalars())
        if len(ids) < _LOOKED * most:
            break
    chosen = ids[:: max(1, -(-len(ids) // most))]
    rows: list[Any] = []
    for at in range(0, len(chosen), 500):
        part = select(table).where(table.c.id.in_(chosen[at : at + 500]))
        rows += connection.execute(part).all()
    return [
        PriceSlot(
            slot=row.slot,
            begins=to_datetime(calendar.begins(row.slot)),
            kinds=json.loads(row.record),
        )
        for row in sorted(rows, key=lambda row: row.id)
    ]


def sweep_prices(store: Store, now: int, before: int) -> None:
    """Delete samples that are older than what their grain is kept for.

    Raises
    ------
    StoreError
        If the store cannot be written.
    """
    table = tables.prices
    old = (
        (table.c.at < before)
        | ((table.c.grain == 0) & (table.c.at < now - HOUR))
        | ((table.c.grain == 1) & (table.c.at < now - 7 * 24 * HOUR))
    )
    with store.reading() as connection:
        gone = list(connection.execute(select(table.c.id).where(old).limit(_SWEPT)).scalars())
    if not gone:
        return
    with store.transaction() as connection:
        for at in range(0, len(gone), 500):
            store.write(connection, delete(table).where(table.c.id.in_(gone[at : at + 500])))

"""History of prices: one sample per slot, thinned with age.

A sample holds the prices of the first slot that `prices` returns. Its grain is 2 for the first
sample of an hour, 1 for the first of a minute, else 0. Grain 0 is purged after an hour, and grain 1
after a week. So months of one-second slots need only a few thousand rows.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final

from sqlalchemy import Connection, select

from shadowprice.rest import PriceSlot
from shadowprice.service.clock import SECOND, SlotCalendar, to_datetime
from shadowprice.service.state.durable_state import DurableState
from shadowprice.service.state.prices import prices
from shadowprice.service.store import Store, tables
from shadowprice.service.store.lookups import rows_among

log = logging.getLogger("shadowprice.service")

HOUR: Final = 3_600 * SECOND
MINUTE: Final = 60 * SECOND
_MIN_SAMPLE_INTERVAL_SECONDS: Final = 5.0  # minimum seconds between two samples
_INTERVAL_FACTOR: Final = 100.0  # minimum interval over the time of a sample: costs at most 1 %
_MAX_READ_FACTOR: Final = 20  # samples read per returned sample, above which the grain is coarser
_MAX_PURGED_ROWS: Final = 1_000  # maximum number of rows that one call purges


class PriceSampler:
    """Takes samples of prices, in the thread that owns the durable state."""

    def __init__(self) -> None:
        self._slot: int | None = None  # of the last sample
        self._hour = self._minute = -1
        self._not_before = 0.0

    def is_due(self, state: DurableState) -> bool:
        """Return whether a new slot runs, and enough time passed since the last sample."""
        running = state.engine.slot_running
        return (
            running is not None and running != self._slot and time.monotonic() >= self._not_before
        )

    def take(self, state: DurableState) -> None:
        """Take a sample, and write it to the store; raise `StoreError` if it can't be written."""
        started = time.monotonic()
        self._slot = state.engine.slot_running
        now = state.clock.now()
        try:
            slots = prices(state.engine, state.calendar, state.choice.name, 1).slots
        except Exception:  # a policy from outside the package must not stop the service
            log.exception("failed to sample the prices of slot %s", self._slot)
            slots = []
        if slots:
            [row] = slots
            hour, minute = now // HOUR, now // MINUTE
            grain = 2 if hour != self._hour else 1 if minute != self._minute else 0
            self._hour, self._minute = hour, minute
            kinds = json.dumps(row.kinds, separators=(",", ":"))
            record = {"at": now, "slot": row.slot, "grain": grain, "record": kinds}
            with state.store.transaction() as connection:
                state.store.write(connection, tables.prices.insert(), [record])
        spent = time.monotonic() - started
        interval = max(_MIN_SAMPLE_INTERVAL_SECONDS, _INTERVAL_FACTOR * spent)
        self._not_before = time.monotonic() + interval


def history(
    connection: Connection, calendar: SlotCalendar, since: int, maximum: int
) -> list[PriceSlot]:
    """Return at most ``maximum`` evenly spaced samples since a time in nanoseconds since 1970."""
    table = tables.prices
    ids: list[int] = []
    for grain in (0, 1, 2):
        query = select(table.c.id).where(table.c.at >= since, table.c.grain >= grain)
        query = query.order_by(table.c.id.desc()).limit(_MAX_READ_FACTOR * maximum)
        ids = list(connection.execute(query).scalars())
        if len(ids) < _MAX_READ_FACTOR * maximum:
            break
    chosen = ids[:: max(1, -(-len(ids) // maximum))]
    rows = rows_among(connection, select(table), table.c.id, chosen)
    return [
        PriceSlot(
            slot=row.slot,
            begins=to_datetime(calendar.begins(row.slot)),
            kinds=json.loads(row.record),
        )
        for row in sorted(rows, key=lambda row: row.id)
    ]


def purge_prices(store: Store, now: int, before: int) -> None:
    """Purge samples from before a moment, and samples that are too old for their grain."""
    table = tables.prices
    old = (
        (table.c.at < before)
        | ((table.c.grain == 0) & (table.c.at < now - HOUR))
        | ((table.c.grain == 1) & (table.c.at < now - 7 * 24 * HOUR))
    )
    with store.reading() as connection:
        query = select(table.c.id).where(old).limit(_MAX_PURGED_ROWS)
        ids = list(connection.execute(query).scalars())
    if not ids:
        return
    with store.transaction() as connection:
        store.delete(connection, table.c.id, ids)

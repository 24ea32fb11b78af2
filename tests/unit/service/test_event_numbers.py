"""Numbers of events after a start grow, whatever the clock and the store were set to."""

from __future__ import annotations

from fractions import Fraction

from sqlalchemy import create_engine

from shadowprice.service.clock import SECOND, SlotCalendar
from shadowprice.service.state.recovery import _next_event
from shadowprice.service.store import tables

START = 1_800_000_000 * SECOND
CALENDAR = SlotCalendar(START, Fraction(60 * SECOND))


def test_a_start_skips_to_the_microseconds_since_1970() -> None:
    engine = create_engine("sqlite://")
    tables.events.create(engine)
    with engine.begin() as connection:
        first = _next_event(connection, CALENDAR, START + 5 * SECOND)
        assert first == START // 1_000 + 5_000_000
        later = _next_event(connection, CALENDAR.moved(9 * SECOND), START + 15 * SECOND)
        assert first + 10_000_000 == later < 2**53
        # The clock was set back to before 1970, seven seconds after the first start.
        before_1970 = SlotCalendar(-7 * SECOND, CALENDAR.slot)
        assert _next_event(connection, before_1970, -2 * SECOND) == 5_000_000
        row = {"at": 0, "kind": "warning", "decision": 0}
        names = [column.name for column in tables.events.columns if column.name not in row]
        connection.execute(
            tables.events.insert(), [dict.fromkeys(names, "x") | row | {"id": later + 7}]
        )
        assert _next_event(connection, CALENDAR, START) == later + 8
    engine.dispose()

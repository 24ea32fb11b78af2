"""Slots on real time: physical time moves them, the wall clock only names them.

Times are whole nanoseconds: since 1970 on the wall, since an unknown moment in physical time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final, Protocol

SECOND: Final = 1_000_000_000
"""Nanoseconds in a second."""

TOLERANCE: Final = SECOND
"""A wall clock that differs by more from what physical time makes of it was set."""


class Clock(Protocol):
    """Where time comes from."""

    def wall(self) -> int:
        """Return the wall clock, in nanoseconds since 1970."""
        ...

    def physical(self) -> int:
        """Return nanoseconds since some moment, a suspended machine's too; never set."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> int:
        """Return the wall clock, in nanoseconds since 1970."""
        return time.time_ns()

    def physical(self) -> int:
        """Return the time since the machine was started, suspension included."""
        kind = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic_ns() if kind is None else time.clock_gettime_ns(kind)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Slots by their beginnings on the wall clock.

    Parameters
    ----------
    origin : int
        When slot 0 begins, in nanoseconds since 1970.
    slot : Fraction
        Length of a slot in nanoseconds.
    """

    origin: int
    slot: Fraction

    @classmethod
    def starting(cls, now: int, slot_seconds: Fraction) -> Calendar:
        """Return a calendar in which a slot begins on every whole multiple of its length.

        Parameters
        ----------
        now : int
            A moment in slot 0.
        slot_seconds : Fraction
            Length of a slot.
        """
        slot = slot_seconds * SECOND
        return cls(int(now // slot * slot), slot)

    def begins(self, slot: int) -> int:
        """Return when a slot begins."""
        return self.origin + int(slot * self.slot)

    def ends(self, slot: int) -> int:
        """Return when a slot ends."""
        return self.begins(slot + 1)

    def slot_at(self, moment: int) -> int:
        """Return the slot that runs at a moment; a slot includes its beginning."""
        slot = int((moment - self.origin) // self.slot)
        return slot + 1 if self.begins(slot + 1) <= moment else slot

    def in_slots(self, moment: int) -> Fraction:
        """Return a moment in slots after the beginning of slot 0."""
        return Fraction(moment - self.origin) / self.slot

    def moved(self, by: int) -> Calendar:
        """Return the calendar with every slot later by so many nanoseconds."""
        return Calendar(self.origin + by, self.slot)


class SteadyClock:
    """The time of the service: physical time since it started, told as wall time.

    It never goes back, and a wall clock that is set does not move it until somebody says so
    (`follow`).

    Parameters
    ----------
    clock : Clock
        Where time comes from.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._offset = clock.wall() - clock.physical()
        self._last = 0

    def now(self) -> int:
        """Return the service's time, in nanoseconds since 1970."""
        self._last = max(self._last, self.clock.physical() + self._offset)
        return self._last

    def stepped(self) -> int:
        """Return by how much the wall clock was set forward (below 0: back), 0 within tolerance."""
        before = self.clock.physical()
        step = self.clock.wall() - before - self._offset
        # A process that was held between the two readings sees a step that is none.
        if self.clock.physical() - before > TOLERANCE // 10:
            return 0
        return step if abs(step) > TOLERANCE else 0

    def follow(self, step: int) -> None:
        """Name moments from now on as the wall clock does that was set by ``step``."""
        self._offset += step
        self._last = self.clock.physical() + self._offset


def stamp(moment: int) -> str:
    """Return a time as RFC 3339 in UTC, as the REST API writes it."""
    return f"{to_datetime(moment).isoformat()[:-6]}Z"


def to_datetime(moment: int) -> datetime:
    """Return a time in UTC, to the microsecond. Times after the year 9999 become its end."""
    try:
        return datetime.fromtimestamp(moment // 1_000 / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def to_datetime_or_none(moment: int | None) -> datetime | None:
    """Return a time in UTC, None for None."""
    return None if moment is None else to_datetime(moment)

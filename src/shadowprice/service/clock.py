"""Clocks, and the calendar of slots.

Physical (monotonic) time drives the slots, and the wall clock only labels them. Times are integer
nanoseconds: wall times since 1970, physical times since an arbitrary moment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final, Protocol

SECOND: Final = 1_000_000_000  # nanoseconds in a second
MICROSECOND: Final = 1_000  # nanoseconds in a microsecond
STEP_TOLERANCE_NS: Final = SECOND
"""Maximum drift of the wall clock against physical time; a larger difference is a clock step."""


class Clock(Protocol):
    """Source of time."""

    def wall(self) -> int:
        """Return the wall clock, in nanoseconds since 1970."""

    def physical(self) -> int:
        """Return monotonic nanoseconds, including time in which the machine was suspended."""


class SystemClock:
    """The operating system's clocks."""

    def wall(self) -> int:
        """Return the wall clock, in nanoseconds since 1970."""
        return time.time_ns()

    def physical(self) -> int:
        """Return nanoseconds since boot, including suspension."""
        kind = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic_ns() if kind is None else time.clock_gettime_ns(kind)


@dataclass(frozen=True, slots=True)
class SlotCalendar:
    """Start and end times of slots, in nanoseconds since 1970."""

    origin: int  # start of slot 0
    slot: Fraction  # length in nanoseconds

    @classmethod
    def starting(cls, now: int, slot_seconds: Fraction) -> SlotCalendar:
        """Return the calendar whose slot 0 contains ``now``, aligned to slots since 1970."""
        slot = slot_seconds * SECOND
        return cls(int(now // slot * slot), slot)

    @property
    def slot_seconds(self) -> float:
        """Length of a slot in seconds."""
        return float(self.slot / SECOND)

    def begins(self, slot: int) -> int:
        """Return the start of a slot."""
        return self.origin + int(slot * self.slot)

    def ends(self, slot: int) -> int:
        """Return the end of a slot, which is the start of the next one."""
        return self.begins(slot + 1)

    def slot_length(self, slot: int) -> int:
        """Return the length of a slot in nanoseconds; rounded ends make some longer by one."""
        return self.ends(slot) - self.begins(slot)

    def slot_at(self, moment: int) -> int:
        """Return the slot that contains a moment; a slot includes its start."""
        slot = int((moment - self.origin) // self.slot)
        # `begins` rounds down, so the moment may already be in the next slot.
        return slot + 1 if self.begins(slot + 1) <= moment else slot

    def in_slots(self, moment: int) -> Fraction:
        """Return a moment as the number of slots since the start of slot 0."""
        return Fraction(moment - self.origin) / self.slot

    def moved(self, by: int) -> SlotCalendar:
        """Return the calendar with every slot later by ``by`` nanoseconds."""
        return SlotCalendar(self.origin + by, self.slot)


class MonotonicWallClock:
    """The service's wall clock: physical time plus an offset, which only `follow` changes."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._offset = clock.wall() - clock.physical()
        self._last = 0  # newest result of `now`

    def now(self) -> int:
        """Return the service's time, in nanoseconds since 1970."""
        self._last = max(self._last, self.clock.physical() + self._offset)
        return self._last

    def physical(self) -> int:
        """Return monotonic nanoseconds, for intervals that no step of the wall clock changes."""
        return self.clock.physical()

    def detected_step_ns(self) -> int:
        """Return by how many nanoseconds the wall clock was set; 0 within the tolerance."""
        physical = self.clock.physical()
        step = self.clock.wall() - physical - self._offset
        # If the process was descheduled between the two readings, the step is an artifact.
        if self.clock.physical() - physical > STEP_TOLERANCE_NS // 10:
            return 0
        return step if abs(step) > STEP_TOLERANCE_NS else 0

    def follow(self, step: int) -> None:
        """Apply a step of the wall clock, in nanoseconds, to the service's time."""
        self._offset += step
        self._last = self.clock.physical() + self._offset


def format_rfc3339(moment: int) -> str:
    """Return a time as RFC 3339 in UTC, as the REST API writes it."""
    return f"{to_datetime(moment).isoformat()[:-6]}Z"


def to_datetime(moment: int) -> datetime:
    """Return a time in UTC, to the microsecond, limited to the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(moment // 1_000 / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        limit = datetime.min if moment < 0 else datetime.max
        return limit.replace(tzinfo=UTC)


def to_datetime_or_none(moment: int | None) -> datetime | None:
    """Return a time in UTC, None for None."""
    return None if moment is None else to_datetime(moment)

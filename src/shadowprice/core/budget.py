"""What a tenant may spend: points by period, and how much of them it may keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Final

from shadowprice.core.errors import InputError
from shadowprice.core.wording import shown

POINT: Final = 1_000_000
"""Units of account in one point; a point is one unit of utility, which prices are in."""

MONDAY: Final = 4 * 86_400
"""The first Monday of 1970, midnight in UTC: days begin at midnight and weeks on Mondays."""


PILE: Final = 1_000_000_000 * POINT
"""What is kept at most where all of it is: a thousand million points."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Points that are granted anew every period.

    Parameters
    ----------
    points : int
        Millionths of a point a period.
    period : int
        Length of a period in seconds.
    since : int
        A moment at which a period begins, in seconds since 1970; others follow, and precede, it.
    carry : int or None
        Most of what is left that is kept into the next period, in millionths; None for all of it
        (up to `PILE`).
    """

    points: int
    period: int
    since: int = MONDAY
    carry: int | None = 0

    def index(self, moment: int) -> int:
        """Return the number of the period that runs at a moment, in seconds since 1970."""
        return (moment - self.since) // self.period

    def begins(self, index: int) -> int:
        """Return when a period begins, in seconds since 1970."""
        return self.since + index * self.period

    @property
    def most_kept(self) -> int:
        """Most points that are kept into the next period, in millionths."""
        return PILE if self.carry is None else self.carry

    def kept(self, points: int) -> int:
        """Return what of points that are left is kept into the next period."""
        return min(points, self.most_kept)

    def record(self) -> dict[str, int | None]:
        """Return the budget as plain values."""
        return {
            "points": self.points,
            "period": self.period,
            "since": self.since,
            "carry": self.carry,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, int | None]) -> Budget:
        """Return the budget that `record` described."""
        return cls(**record)  # type: ignore[arg-type]  # as written


def parse_moment(value: object) -> datetime:
    """Read a moment such as ``2026-11-23T00:00:00Z``; a day alone is its midnight in UTC.

    Raises
    ------
    InputError
        If it is none, or has no time zone.
    """
    mend = "write 2026-11-23T00:00:00Z"
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = datetime.fromisoformat(value) if len(value) > 10 else date.fromisoformat(value)
        except ValueError as error:
            raise InputError(f"{shown(value)} is no moment; {mend}") from error
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InputError(f"{value.isoformat()} has no time zone; {mend}")
        try:
            return value.astimezone(UTC)
        except OverflowError as error:
            raise InputError(f"{value.isoformat()} is no moment; {mend}") from error
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise InputError(f"{shown(value)} is no moment; {mend}")


def points_text(units: int) -> str:
    """Write units of account as points, exactly and without zeros at the end."""
    sign, size = ("-", -units) if units < 0 else ("", units)
    whole, rest = divmod(size, POINT)
    return f"{sign}{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")


def in_points(units: int) -> float:
    """Return units of account as points, for JSON."""
    return units / POINT

"""Budgets of tenants: points for each period, and the unused points that are carried over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time
from typing import Final

from shadowprice.core.errors import InputError
from shadowprice.core.wording import quote_for_display

POINT: Final = 1_000_000
"""Units of account per point. A point is one unit of utility, the unit of prices."""

PERIOD_EPOCH_MONDAY: Final = 4 * 86_400
"""First Monday of 1970, midnight UTC. By default, days start at midnight and weeks on Mondays."""


MAX_BALANCE: Final = 1_000_000_000 * POINT  # maximum carry-over if ``carry`` is None: 10⁹ points


@dataclass(frozen=True, slots=True)
class Budget:
    """Points that a tenant is granted in every period, in millionths of a point."""

    points: int
    period: int  # seconds
    since: int = PERIOD_EPOCH_MONDAY  # start of any period, in seconds since 1970
    carry: int | None = 0  # maximum of unused points carried over; None for `MAX_BALANCE`

    def index(self, moment: int) -> int:
        """Return the index of the period at a moment, in seconds since 1970."""
        return (moment - self.since) // self.period

    def begins(self, index: int) -> int:
        """Return the start of a period, in seconds since 1970."""
        return self.since + index * self.period

    @property
    def carry_limit(self) -> int:
        """Maximum carry-over to the next period, in millionths of a point."""
        return MAX_BALANCE if self.carry is None else self.carry

    def kept(self, points: int) -> int:
        """Return the part of the unused points that is carried over to the next period."""
        return min(points, self.carry_limit)

    def record(self) -> dict[str, int | None]:
        """Return the budget as plain values."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, int | None]) -> Budget:
        """Build the budget from the result of `record`."""
        return cls(**record)  # type: ignore[arg-type]  # the fields are those of `record`


def parse_timestamp(value: object) -> datetime:
    """Parse a time such as ``2026-11-23T00:00:00Z``; a date alone is midnight UTC.

    Raises InputError if it isn't a time, or has no time zone.
    """
    hint = "write 2026-11-23T00:00:00Z"
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = datetime.fromisoformat(value) if len(value) > 10 else date.fromisoformat(value)
        except ValueError as error:
            raise InputError(f"{quote_for_display(value)} is not a valid time; {hint}") from error
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InputError(f"{value.isoformat()} has no time zone; {hint}")
        try:
            return value.astimezone(UTC)
        except OverflowError as error:
            raise InputError(f"{value.isoformat()} is not a valid time; {hint}") from error
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise InputError(f"{quote_for_display(value)} is not a valid time; {hint}")


def format_points(units: int) -> str:
    """Format units of account as points, exactly and without trailing zeros."""
    sign, size = ("-", -units) if units < 0 else ("", units)
    whole, rest = divmod(size, POINT)
    return f"{sign}{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")


def points_text(points: float, *, sign: bool = False) -> str:
    """Format points from JSON exactly; ``sign`` also marks positive ones."""
    return ("+" if sign and points >= 0 else "") + format_points(round(points * POINT))


def in_points(units: int) -> float:
    """Convert units of account to points, for JSON."""
    return units / POINT

"""Parsing of moments in user input: date and time, clock time, or span from now."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from fractions import Fraction
from typing import Final

from shadowprice.core.amounts import parse_duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display

SECOND: Final = 1_000_000_000  # nanoseconds in a second

_HINT: Final = "write 18:00, 2026-11-23T18:00, 2026-11-23T18:00:00Z, 6h or '20 slots'"

_MAX_LENGTH: Final = 40  # maximum length of the text; the longest valid moment has 32 characters


def parse_moment_ahead(text: str, now: int, slot_seconds: Fraction, location: str) -> int:
    """Parse a future moment; return nanoseconds since 1970.

    The text is a span from ``now`` (``6h``, ``20 slots``), the next occurrence of a clock time
    (``18:00``), or a date with or without a time. Without a time zone, it is local time. Raises
    InputError if it has none of these forms, or the moment has passed.
    """
    try:
        span = parse_duration(text)
    except InputError:
        moment = _on_clock(text, now, location)
    else:
        moment = now + int(span.in_seconds(slot_seconds) * SECOND)
    if moment <= now:
        raise InputError(Fault(location, f"{quote_for_display(text)} has passed", _HINT))
    return moment


def check_moment(text: str, location: str) -> None:
    """Raise InputError unless a text is a clock time or a date, in the past or in the future."""
    _on_clock(text, 0, location)


def _on_clock(text: str, now: int, location: str) -> int:
    try:
        if len(text) > _MAX_LENGTH:
            raise ValueError(text)
        clock = _clock_time(text)
        if clock is None:
            return _nanoseconds(datetime.fromisoformat(text).astimezone())
        today = datetime.fromtimestamp(now // SECOND, clock.tzinfo).date()
        moment = _nanoseconds(datetime.combine(today, clock).astimezone())
        if moment > now:
            return moment
        # Not always 24 hours later, because the time zone's offset may change in between.
        return _nanoseconds(datetime.combine(today + timedelta(days=1), clock).astimezone())
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            Fault(location, f"{quote_for_display(text)} is not a time", _HINT)
        ) from error


def _clock_time(text: str) -> time | None:
    if ":" not in text[:3]:
        return None
    return time.fromisoformat(text if text[1:2] != ":" else f"0{text}")


def _nanoseconds(moment: datetime) -> int:
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * SECOND + moment.microsecond * 1_000

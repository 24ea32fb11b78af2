"""Clock time: moments in user input, arrival slots, and deadlines in slots.

A job is submitted at a moment and arrives in the first slot that starts no earlier. A span in units
of time (``by: 2h``) lasts from that moment to the *end* of the completion slot. A span in slots
(``by: 6 slots``) is the papers' ``d = completion slot - arrival slot``. All code except the file
readers uses ``d``: completing in slot ``a + d`` ends ``before + d + 1`` slots after the submission.
"""

from __future__ import annotations

import math
from datetime import datetime, time, timedelta
from fractions import Fraction
from typing import Final

from shadowprice.core.amounts import Duration, parse_duration
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


def arrival_slot(submitted: Fraction) -> tuple[int, Fraction]:
    """Return the arrival slot, and the wait from submission to its start in slots, in [0, 1).

    ``submitted`` is the moment of submission, in slots after the start of slot 0.
    """
    arrival = math.ceil(submitted)
    return arrival, arrival - submitted


def deadline_in_slots(span: Duration, slot_seconds: Fraction, before: Fraction) -> float:
    """Convert a span after the submission to the papers' ``d``.

    Returns the maximum of ``completion slot - arrival slot`` within the span, which may be
    fractional. It is negative if the span ends before the arrival slot does. ``before`` is the wait
    from submission to the start of the arrival slot, in slots.
    """
    if not span.on_clock:
        return float(span.slots)
    allowed = span.seconds / slot_seconds - before - 1
    # Add the integer and fractional parts separately: `traces.workload` does so for columns, and
    # both must agree to the bit.
    whole = math.floor(allowed)
    return float(whole) + float(allowed - whole)

"""Conversion between clock time and slots: arrival slots, and deadlines in slots.

A job is submitted at a moment and arrives in the first slot that starts no earlier. A span in units
of time (``by: 2h``) lasts from that moment to the *end* of the completion slot. A span in slots
(``by: 6 slots``) is the papers' ``d = completion slot - arrival slot``. All code except the file
readers uses ``d``, so this module converts the first kind once, exactly: completing in slot ``a +
d`` ends ``before + d + 1`` slots after the submission.
"""

from __future__ import annotations

import math
from fractions import Fraction

from shadowprice.core.amounts import Duration


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

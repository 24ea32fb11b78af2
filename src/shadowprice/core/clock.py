"""Moments on the clock against slots: when a job arrives, and by when a slot must complete it.

A job is submitted at a moment and arrives in the first slot that begins no earlier. A span that is
written on the clock (``by: 2h``) runs from that moment to the *end* of the completion slot; a span
in slots (``by: 6 slots``) is the papers' ``d = completion slot - arrival slot``. Everything behind
the files reckons in ``d``, so the first kind is turned into the second once, here, exactly:
completing in slot ``a + d`` ends ``before + d + 1`` slots after the submission.
"""

from __future__ import annotations

import math
from fractions import Fraction

from shadowprice.core.amounts import Duration


def arrival_of(submitted: Fraction) -> tuple[int, Fraction]:
    """Return the slot in which a job arrives, and how long it waits for that slot to begin.

    Parameters
    ----------
    submitted : Fraction
        Moment of submission, in slots after the beginning of slot 0.

    Returns
    -------
    arrival : int
        The first slot that begins no earlier.
    before : Fraction
        Slots from the submission to its beginning, in [0, 1).
    """
    arrival = math.ceil(submitted)
    return arrival, arrival - submitted


def slots_allowed(span: Duration, slot_seconds: Fraction, before: Fraction) -> float:
    """Return a span after the submission as the papers' ``d``.

    Parameters
    ----------
    span : Duration
        The span, as written.
    slot_seconds : Fraction
        Length of a slot.
    before : Fraction
        Slots from the submission to the beginning of the arrival slot.

    Returns
    -------
    float
        The largest ``completion slot - arrival slot`` (not necessarily whole) that keeps the span;
        below 0 where it is over before the arrival slot is.
    """
    if not span.on_clock:
        return float(span.slots)
    allowed = span.seconds / slot_seconds - before - 1
    # Whole part and rest apart, as `traces.workload` has them by columns: the same to the bit.
    whole = math.floor(allowed)
    return float(whole) + float(allowed - whole)

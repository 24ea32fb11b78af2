"""What of a plan was paid for, slot by slot, and is not used yet.

Places (workers and parameter servers) of a slot cost what was posted for that slot when the job was
admitted. Whoever stands where it was planned uses what it paid for there. Who stands elsewhere, or
holds more than was planned, uses what it missed before that, the earliest first, and then what is
still to come, the latest first. What is left when the job is over comes back, at its own price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule

Unused = tuple[tuple[int, int, int], ...]
"""Slot, places, and their price in millionths of a point; ascending, `ANY_SLOT` at the front."""

ANY_SLOT: Final = -1
"""The slot of places that were paid for later than the plan, and belong to none."""


class Standing(NamedTuple):
    """Who holds what in a slot.

    Attributes
    ----------
    slot : int
        The slot.
    places : mapping of str to int
        Workers and parameter servers, by job.
    """

    slot: int
    places: Mapping[str, int]


def least_places(job: Job) -> int:
    """Return the fewest places times slots with which the work of a job can be done."""
    choices = zip(
        job.worker_counts.tolist(),
        job.ps_counts.tolist(),
        job.gains.tolist(),
        job.internal_gains.tolist(),
        strict=True,
    )
    return min(
        (
            -(-job.required * (workers + ps) // max(gain, inner))
            for workers, ps, gain, inner in choices
            if max(gain, inner)
        ),
        default=1,
    )


def paid_slots(price: int, schedule: Schedule, costs: Sequence[float]) -> Unused | None:
    """Return what a price was paid for, None where nothing tells its slots apart.

    Parameters
    ----------
    price : int
        All of it, in millionths of a point.
    schedule : Schedule
        The plan.
    costs : sequence of float
        What its active slots cost; the price is shared out in proportion, to the last millionth.
    """
    slots = schedule.active_slots.tolist()
    total = sum(costs)
    if len(costs) != len(slots) or not 0.0 < total < float("inf"):
        return None
    workers, ps, _ = schedule.totals()
    found, summed, before = [], 0.0, 0
    for at, (slot, places) in enumerate(zip(slots, (workers + ps).tolist(), strict=True)):
        summed += costs[at]
        until = price if at == len(slots) - 1 else min(price, round(price * (summed / total)))
        found.append((slot, places, until - before))
        before = until
    return tuple(found)


def after_standing(unused: Unused, slot: int, places: int) -> Unused:
    """Return what is unused once a job stood in a slot with so many places.

    A part of a slot's places costs its part of their price, rounded up.
    """
    here = [one for one in unused if one[0] == slot]
    missed = [one for one in unused if one[0] < slot]
    coming = [one for one in unused if one[0] > slot]
    left: list[tuple[int, int, int]] = []
    for at, planned, price in (*here, *missed, *reversed(coming)):
        taken = min(places, planned)
        places -= taken
        if taken < planned:
            left.append((at, planned - taken, price - -(-price * taken // planned)))
    return tuple(sorted(left))


def with_more(unused: Unused, places: int, price: int) -> Unused:
    """Return what is unused once places were paid for that belong to no slot."""
    return ((ANY_SLOT, places, price), *unused)


def price_of_unused(unused: Unused) -> int:
    """Return what was paid for all of it."""
    return sum(price for _, _, price in unused)

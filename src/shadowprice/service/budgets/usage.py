"""Paid but unused processes of a job's plan, slot by slot.

Processes (workers and PS) of a slot cost the price that was posted for the slot at the admission.
A job that runs as planned uses the processes that it paid for in that slot. If it runs in another
slot, or with more processes, it first uses those of missed slots, the earliest first. Then it uses
those of coming slots, the latest first. The remaining processes are refunded at their own price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule

UnusedSlots = tuple[tuple[int, int, int], ...]
"""Slot, process count and price in millionths of a point; ascending, `ANY_SLOT` first."""

ANY_SLOT: Final = -1
"""Slot of the processes of a revised job, which belong to no slot of the plan."""


class SlotUsage(NamedTuple):
    """Workers and PS that jobs hold in a slot, by job."""

    slot: int
    places: Mapping[str, int]


def min_process_slots(job: Job, remaining: int | None = None) -> int:
    """Return the minimum process-slots for a job's work, or for its remaining progress units."""
    work = job.required if remaining is None else remaining
    choices = zip(
        job.worker_counts.tolist(),
        job.ps_counts.tolist(),
        job.gains.tolist(),
        job.internal_gains.tolist(),
        strict=True,
    )
    return min(
        (
            -(-work * (workers + ps) // max(gain, inner))
            for workers, ps, gain, inner in choices
            if max(gain, inner)
        ),
        default=1,
    )


def split_price_by_slot(
    price: int, schedule: Schedule, costs: Sequence[float]
) -> UnusedSlots | None:
    """Divide a price among the active slots of a plan in proportion to their costs.

    The parts add up to the price exactly. Return None if there is no valid cost for each slot.
    """
    slots = schedule.active_slots.tolist()
    total = sum(costs)
    if len(costs) != len(slots) or not 0.0 < total < float("inf"):
        return None
    workers, ps, _ = schedule.totals()
    parts, summed, before = [], 0.0, 0
    for index, (slot, places) in enumerate(zip(slots, (workers + ps).tolist(), strict=True)):
        summed += costs[index]
        end = price if index == len(slots) - 1 else min(price, round(price * (summed / total)))
        parts.append((slot, places, end - before))
        before = end
    return tuple(parts)


def consume_slot(unused: UnusedSlots, slot: int, places: int) -> UnusedSlots:
    """Return the unused processes after a job held ``places`` processes in a slot.

    Part of a slot's processes costs the same part of their price, rounded up.
    """
    here = [entry for entry in unused if entry[0] == slot]
    missed = [entry for entry in unused if entry[0] < slot]
    coming = [entry for entry in unused if entry[0] > slot]
    remaining: list[tuple[int, int, int]] = []
    for planned_slot, planned, price in (*here, *missed, *reversed(coming)):
        taken = min(places, planned)
        places -= taken
        if taken < planned:
            remaining.append((planned_slot, planned - taken, price - -(-price * taken // planned)))
    return tuple(sorted(remaining))


def price_of_unused(unused: UnusedSlots) -> int:
    """Return the total price of unused processes."""
    return sum(price for _, _, price in unused)

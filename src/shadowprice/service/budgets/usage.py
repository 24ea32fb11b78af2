"""Paid but unused processes of a job's plan, slot by slot.

Processes (workers and PS) of a slot cost the price that was posted for the slot at the admission.
A job that runs as planned uses the processes that it paid for in that slot. If it runs in another
slot, or with more processes, it first uses processes of missed slots, the earliest first. Then it
uses processes of coming slots, the latest first. Unused processes are refunded at their own price.
A slot beyond the stated work has another price, which unused processes pay in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule

UnusedSlots = tuple[tuple[int, int, int], ...]
"""Slot, process count and price in millionths of a point; ascending, `ANY_SLOT` first."""

ANY_SLOT: Final = -1  # slot of the processes of a revised job, which belong to no slot of the plan


class JobUsage(NamedTuple):
    """Use of a slot by a job."""

    processes: int  # workers and PS that it holds and has paid for
    covered: int  # stated work that the slot covers, in millionths of a mini-batch
    is_overrun: bool  # whether the slot is beyond the stated work


class SlotUsage(NamedTuple):
    """Use of a slot by the jobs that an event bills."""

    slot: int
    jobs: Mapping[str, JobUsage]


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


def split_price_by_slot(price: int, schedule: Schedule, costs: Sequence[float]) -> UnusedSlots:
    """Divide a price among the active slots of a plan in proportion to their costs.

    The parts add up to the price exactly. Without a valid cost for each slot, all processes cost
    the same.
    """
    slots = schedule.active_slots.tolist()
    total = sum(costs)
    workers, ps, _ = schedule.totals()
    if len(costs) != len(slots) or not 0.0 < total < float("inf"):
        return ((ANY_SLOT, int(workers.sum() + ps.sum()), price),)
    parts, summed, before = [], 0.0, 0
    for index, (slot, processes) in enumerate(zip(slots, (workers + ps).tolist(), strict=True)):
        summed += costs[index]
        end = price if index == len(slots) - 1 else min(price, round(price * (summed / total)))
        parts.append((slot, processes, end - before))
        before = end
    return tuple(parts)


def consume_slot(unused: UnusedSlots, slot: int, processes: int) -> UnusedSlots:
    """Return the unused processes after a job held ``processes`` processes in a slot.

    If only a part of a slot's processes is used, it costs the same part of their price, rounded up.
    """
    remaining: list[tuple[int, int, int]] = []
    for planned_slot, planned, price in _in_order_of_use(unused, slot):
        taken = min(processes, planned)
        processes -= taken
        if taken < planned:
            remaining.append((planned_slot, planned - taken, price - -(-price * taken // planned)))
    return tuple(sorted(remaining))


def _in_order_of_use(unused: UnusedSlots, slot: int) -> UnusedSlots:
    """Return unused processes in the order in which a slot uses them."""
    here = [entry for entry in unused if entry[0] == slot]
    missed = [entry for entry in unused if entry[0] < slot]
    coming = [entry for entry in unused if entry[0] > slot]
    return (*here, *missed, *reversed(coming))


def pay_slot(unused: UnusedSlots, slot: int, processes: int, price: int) -> tuple[UnusedSlots, int]:
    """Pay the price of a coming slot beyond the stated work, first with unused processes.

    Return the unused processes, which include the slot's at ``price``, and the points still to pay.
    """
    remaining = [(slot, processes, price)]
    for planned_slot, planned, points in _in_order_of_use(unused, slot):
        taken = min(price, points)
        price -= taken
        if taken < points:
            # The slot has a new entry, so the rest of its former entry belongs to no slot.
            kept = ANY_SLOT if planned_slot == slot else planned_slot
            remaining.append((kept, planned, points - taken))
    return tuple(sorted(remaining)), price


def price_of_unused(unused: UnusedSlots) -> int:
    """Return the total price of unused processes."""
    return sum(price for _, _, price in unused)

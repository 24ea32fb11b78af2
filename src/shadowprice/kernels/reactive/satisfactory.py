"""Minimum satisfactory shares of a pool, and marginal returns of spare GPUs, as in ElasticFlow.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning"
(ASPLOS 2023), Algorithms 1 (`shares`) and 2. A cluster is a pool: sums of resources in every slot.
If all workers have equal demands and fill servers exactly, a sufficient sum can be placed. In other
cases placement decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.reactive.shares import NOTHING, completes, least_ceiling

Integers = NDArray[np.int64]
Levels = NDArray[np.int16]

NO_CHANGE = 1 << 60

NOW, NEXT = constant(0), constant(1)
"""First slots of a plan, counted from now."""

_LOOK = 64
"""Number of slots that are examined first: jobs with late deadlines end long before them."""


@inlined
def _fits(free: Integers, slot: int, demand: Integers) -> bool:
    enough = True
    for c in range(len(demand)):
        enough = enough and (demand[c] == 0 or demand[c] <= free[slot, c])
    return enough


@inlined
def _take(free: Integers, slot: int, demand: Integers, sign: int) -> None:
    for c in range(len(demand)):
        free[slot, c] -= sign * demand[c]


@kernel
def _room(free: Integers, slot: int, demand: Integers, low: int, high: int) -> int:
    """Return the highest level up to ``high`` that fits in a slot, given that ``low`` fits.

    A level takes at least as much of every column as the level below.
    """
    probe = high  # it fits most often
    while low < high:
        if _fits(free, slot, demand[probe]):
            low = probe
        else:
            high = probe - 1
        probe = (low + high + 1) // 2
    return low


@kernel
def progressive_filling(
    free: Integers,
    demand: Integers,
    gains: Integers,
    levels: int,
    left: int,
    first: int,
    last: int,
    plan: Levels,
    begins: Integers,
    room: Integers,
) -> int:
    """Plan a job with the fewest workers at once that complete it in time (Algorithm 1).

    The plan is subtracted from ``free`` (slots, columns). ``demand`` (levels, columns) and
    ``gains`` (levels,) are the demand and progress units of a slot of each useful worker count,
    ascending. ``left`` are the remaining progress units, above 0. ``first`` and ``last`` are the
    first and last slot that may be used, counted from now. ``plan`` (slots,) receives levels from
    ``first`` to the completion; the rest is meaningless. ``begins`` (slots + 1,) is 0, 1, 2, ...,
    because every slot is an interval, and ``room`` (slots,) is scratch space.

    Returns the completion slot, -1 without a plan.
    """
    slots = last - first + 1
    bottom = 0  # the least level that completes on an empty cluster
    while bottom < levels and (left + gains[bottom] - 1) // gains[bottom] > slots:
        bottom += 1
    if bottom == levels:
        return -1
    starts, known, top, done = begins[first:], 0, bottom, -1
    while known < slots and done < 0:
        until = min(slots, max(_LOOK, 2 * known))
        for at in range(known, until):
            if _fits(free, first + at, demand[top]):  # the usual case
                room[at] = top
            else:
                room[at] = _room(free, first + at, demand, NOTHING, top - 1)
        known = until
        done = completes(starts, known, room, gains, top, left, first + known)
    if done < 0:
        every, more = np.arange(levels), 1
        while done < 0 and top < levels - 1:
            # Higher levels may fit only where the last ceiling fitted.
            below, top = top, min(top + more, levels - 1)
            for at in range(slots):
                if room[at] != below:
                    continue
                if _fits(free, first + at, demand[top]):
                    room[at] = top
                else:
                    room[at] = _room(free, first + at, demand, below, top - 1)
            ceilings = every[below + 1 : top + 1]
            found, done = least_ceiling(
                starts, slots, room, gains, ceilings, len(ceilings), left, last + 1, gains
            )
            more *= 2
            if done >= 0:
                top = ceilings[found]
    for slot in range(first, done + 1):
        level = min(top, room[slot - first])
        plan[slot] = level
        if level >= 0:
            _take(free, slot, demand[level], 1)
    return done


@inlined
def _scratch(plan: Levels) -> tuple[Integers, Integers]:
    """Return ``begins`` and ``room`` of `progressive_filling`."""
    slots = plan.shape[1]
    return np.arange(slots + 1), np.empty(slots, dtype=np.int64)


@kernel
def satisfy(
    free: Integers,
    order: Integers,
    demand: Integers,
    gains: Integers,
    levels: Integers,
    left: Integers,
    last: Integers,
    plan: Levels,
    stop: bool,
    ends: Integers,
) -> bool:
    """Plan jobs in order, each with its minimum satisfactory share of the remaining capacity.

    ``order`` (jobs,) are rows, the earliest deadline first. ``last`` (rows,) is the last slot of
    each, counted from now, and negative after the deadline. ``plan`` (rows, slots) and ``ends``
    (rows,), the completion slots from now or -1, are written. Other arrays are those of
    `progressive_filling`, by row. ``stop`` ends planning at the first job without a plan. Returns
    whether all jobs have a plan.
    """
    begins, room = _scratch(plan)
    every = True
    for row in order:
        ends[row] = -1
        if last[row] >= 0:
            ends[row] = progressive_filling(
                free, demand[row], gains[row], levels[row], left[row], NOW, last[row], plan[row],
                begins, room,
            )  # fmt: skip
        if ends[row] < 0:
            every = False
            if stop:
                break
    return every


@kernel
def _later(
    free: Integers,
    row: int,
    level: int,
    demand: Integers,
    gains: Integers,
    levels: Integers,
    width: Integers,
    left: Integers,
    last: Integers,
    ends: Integers,
    trial: Levels,
    begins: Integers,
    room: Integers,
) -> int:
    """Return the GPU-time that a job needs after the first slot if it has a level in it.

    With a deadline: that of its minimum satisfactory share from the next slot on, in the capacity
    without its own plan. Without one: that of its smallest worker count. -1 if the deadline is
    missed.
    """
    missing = left[row] - (gains[row, level] if level >= 0 else 0)
    if missing <= 0:
        return 0
    if ends[row] < 0:
        return int(-(-missing // gains[row, 0]) * width[row, 0])
    if last[row] < 1:
        return -1
    end = progressive_filling(
        free, demand[row], gains[row], levels[row], missing, NEXT, last[row], trial, begins, room
    )
    if end < 0:
        return -1
    total = 0
    for slot in range(1, end + 1):
        if trial[slot] >= 0:
            total += width[row, trial[slot]]
            _take(free, slot, demand[row, trial[slot]], -1)
    return total


@kernel
def deal_spare(
    free: Integers,
    rows: Integers,
    demand: Integers,
    gains: Integers,
    levels: Integers,
    width: Integers,
    left: Integers,
    last: Integers,
    ends: Integers,
    plan: Levels,
    now: Integers,
) -> None:
    """Allocate the free capacity of the first slot by marginal return (Algorithm 2).

    A step goes to the next useful worker count. Its return is the GPU-time of later slots that it
    saves, per GPU. The job with the largest return gets its step, the first on ties. Its return is
    then computed again with its new plan.

    `satisfy` comes first, and plans are updated. ``rows`` (jobs,) are all jobs that may run, with
    and without deadline. ``width`` (rows, levels) are the GPUs of each level. ``now`` (rows,)
    receives the level of each in the first slot.
    """
    count = len(rows)
    saved = np.zeros(count, dtype=np.int64)
    extra = np.ones(count, dtype=np.int64)
    open_ = np.zeros(count, dtype=np.bool_)
    trial = np.empty(plan.shape[1], dtype=np.int16)
    begins, room = _scratch(plan)
    for n in range(count):
        row = rows[n]
        now[row] = plan[row, 0] if ends[row] >= 0 else NOTHING
        open_[n] = True
    dirty = np.ones(count, dtype=np.bool_)
    while True:
        best = -1
        for n in range(count):
            row = rows[n]
            if not open_[n]:
                continue
            level = now[row]
            if level + 1 >= levels[row] or (level >= 0 and gains[row, level] >= left[row]):
                open_[n] = False
                continue
            # Only the resources beyond the job's current level have to fit.
            short = False
            for c in range(demand.shape[2]):
                had = demand[row, level, c] if level >= 0 else 0
                more = demand[row, level + 1, c] - had
                if more > 0 and more > free[0, c]:
                    short = True
                    break
            if short:
                open_[n] = False
                continue
            if dirty[n]:
                dirty[n] = False
                _put(free, row, demand, ends, plan, -1)
                before = _later(
                    free, row, level, demand, gains, levels, width, left, last, ends, trial,
                    begins, room,
                )  # fmt: skip
                after = _later(
                    free, row, level + 1, demand, gains, levels, width, left, last, ends, trial,
                    begins, room,
                )  # fmt: skip
                _put(free, row, demand, ends, plan, 1)
                had_width = width[row, level] if level >= 0 else 0
                extra[n] = max(width[row, level + 1] - had_width, 1)
                # Without the step the job misses its deadline, so the return is the largest.
                saved[n] = before - after if before >= 0 else np.iinfo(np.int32).max
                if after < 0:
                    open_[n] = False
                    continue
            if best < 0 or saved[n] * extra[best] > saved[best] * extra[n]:
                best = n
        if best < 0:
            return
        row = rows[best]
        level = now[row]
        for c in range(demand.shape[2]):
            free[0, c] -= demand[row, level + 1, c] - (demand[row, level, c] if level >= 0 else 0)
        now[row] = level + 1
        dirty[best] = True
        if ends[row] >= 0:
            _put(free, row, demand, ends, plan, -1)
            plan[row, 0] = level + 1
            ends[row] = 0
            missing = left[row] - gains[row, level + 1]
            if missing > 0:
                ends[row] = progressive_filling(
                    free, demand[row], gains[row], levels[row], missing, NEXT, last[row], plan[row],
                    begins, room,
                )  # fmt: skip


@inlined
def _put(
    free: Integers, row: int, demand: Integers, ends: Integers, plan: Levels, sign: int
) -> None:
    """Subtract a job's plan for later slots from the free capacity; with ``sign`` -1, add it."""
    for slot in range(1, ends[row] + 1):
        if plan[row, slot] >= 0:
            _take(free, slot, demand[row, plan[row, slot]], sign)


@kernel
def next_change(rows: Integers, ends: Integers, plan: Levels, now: Integers) -> int:
    """Return the first slot, counted from now, that needs new plans; `NO_CHANGE` without one.

    That is the slot in which a plan changes its level after the next slot, or 1 if a plan needs
    more in the next slot than the job has now.
    """
    first = NO_CHANGE
    for row in rows:
        if ends[row] >= 1 and plan[row, 1] > now[row]:
            return 1
        for slot in range(2, min(ends[row] + 2, first)):
            if slot > ends[row] or plan[row, slot] != plan[row, slot - 1]:
                first = slot
                break
    return first

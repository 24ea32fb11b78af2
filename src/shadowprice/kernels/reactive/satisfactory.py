"""Minimum satisfactory shares of a pool and the marginal return of spare GPUs, as in ElasticFlow.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning"
(ASPLOS 2023), Algorithms 1 (`shares`) and 2. A cluster is a pool: sums of resources in every slot.
Where every worker takes the same and servers hold a whole number of them, a sum that suffices can
be placed; elsewhere the placement decides.
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
"""Slots looked at first: jobs whose deadlines are far end long before."""


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
    """Return the highest level up to ``high`` that finds room in a slot, where ``low`` does.

    A level takes of every column at least what the one below it takes.
    """
    probe = high  # most often it does
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

    Parameters
    ----------
    free : ndarray of int64, shape (slots, columns)
        What is left in each slot from now on; what the plan takes is taken off.
    demand : ndarray of int64, shape (levels, columns)
        What each useful number of workers takes, ascending.
    gains : ndarray of int64, shape (levels,)
        Progress units of a slot with each, ascending.
    levels : int
        How many there are.
    left : int
        Progress units to make, above 0.
    first, last : int
        Slots, counted from now, that it may use; both included.
    plan : ndarray of int16, shape (slots,)
        Filled with levels from ``first`` to the completion; what it holds beyond means nothing.
    begins : ndarray of int64, shape (slots + 1,)
        0, 1, 2, ...: every slot is an interval of its own.
    room : ndarray of int64, shape (slots,)
        Scratch space.

    Returns
    -------
    int
        Slot in which it completes; -1 where there is no plan.
    """
    slots = last - first + 1
    bottom = 0  # the least with which it completes with nobody else there
    while bottom < levels and (left + gains[bottom] - 1) // gains[bottom] > slots:
        bottom += 1
    if bottom == levels:
        return -1
    starts, known, top, done = begins[first:], 0, bottom, -1
    while known < slots and done < 0:
        until = min(slots, max(_LOOK, 2 * known))
        for at in range(known, until):
            if _fits(free, first + at, demand[top]):  # most often it does
                room[at] = top
            else:
                room[at] = _room(free, first + at, demand, NOTHING, top - 1)
        known = until
        done = completes(starts, known, room, gains, top, left, first + known)
    if done < 0:
        every, more = np.arange(levels), 1
        while done < 0 and top < levels - 1:
            # There may be more room where there was as much as was looked for.
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
    """Return what `progressive_filling` wants besides, for plans of so many slots."""
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
    """Plan jobs in order, each with its minimum satisfactory share of what the others leave.

    Parameters
    ----------
    free : ndarray of int64, shape (slots, columns)
        What is left in each slot from now on; what the plans take is taken off.
    order : ndarray of int64, shape (jobs,)
        Rows, the earliest deadline first.
    demand, gains, levels, left
        As in `progressive_filling`, by row.
    last : ndarray of int64, shape (rows,)
        Last slot of each, counted from now; below 0 where the deadline is over.
    plan : ndarray of int16, shape (rows, slots)
        Filled.
    stop : bool
        Whether to stop at the first job without a plan.
    ends : ndarray of int64, shape (rows,)
        Filled: the slot in which each plan completes, counted from now; -1 where there is none.

    Returns
    -------
    bool
        Whether all have one.
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

    With a deadline, that of its minimum satisfactory share from the next slot on, in what is free
    (its own plan given back); without one, that of running with its fewest workers. -1 where the
    deadline could not be met.
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
    """Deal what is free in the first slot, step by step, by marginal return (Algorithm 2).

    A step is the next useful number of workers. Its return is the GPU-time of later slots that it
    saves, by GPU that it takes; the job of the largest return takes it, the first of equals. A
    job's return is worked out anew when it has taken a step, with its new plan entered.

    Parameters
    ----------
    free, demand, gains, levels, left, last, ends, plan
        As in `satisfy`, which was called before; plans are renewed.
    rows : ndarray of int64, shape (jobs,)
        All jobs that may run, those with a deadline and those without.
    width : ndarray of int64, shape (rows, levels)
        GPUs that each level takes.
    now : ndarray of int64, shape (rows,)
        Level of each in the first slot; filled.
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
            # What the step takes beyond what the job has.
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
                # A deadline that only the step keeps: it saves everything.
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
    """Take a job's plan for the slots after the first off what is free, or (-1) give it back."""
    for slot in range(1, ends[row] + 1):
        if plan[row, slot] >= 0:
            _take(free, slot, demand[row, plan[row, slot]], sign)


@kernel
def next_change(rows: Integers, ends: Integers, plan: Levels, now: Integers) -> int:
    """Return the first slot, counted from now, for which jobs have to be planned anew.

    That is where a plan changes its level after the next slot, or asks for more in the next slot
    than the job has now; until then jobs may go on as they are. A large number where none does.
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

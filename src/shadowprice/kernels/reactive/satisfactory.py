"""Minimum satisfactory shares and the marginal return of spare GPUs, as in ElasticFlow.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning"
(ASPLOS 2023), Algorithms 1 and 2. A cluster is a pool: sums of resources in every slot. Where
every worker takes the same and servers hold a whole number of them, a sum that suffices can be
placed; elsewhere the placement decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel

Integers = NDArray[np.int64]
Levels = NDArray[np.int16]

NOTHING = -1
"""Level of a job that stands still."""

NO_CHANGE = 1 << 60


@kernel
def _fits(free: Integers, slot: int, demand: Integers) -> bool:
    enough = True
    for c in range(len(demand)):
        enough = enough and (demand[c] == 0 or demand[c] <= free[slot, c])
    return enough


@kernel
def _take(free: Integers, slot: int, demand: Integers, sign: int) -> None:
    for c in range(len(demand)):
        free[slot, c] -= sign * demand[c]


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
) -> int:
    """Plan a job with the fewest workers at once that complete it in time (Algorithm 1).

    In every slot the job has the most workers, up to its ceiling, that find room; the smallest
    ceiling that completes the work wins.

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

    Returns
    -------
    int
        Slot in which it completes; -1 where there is no plan.
    """
    slots = last - first + 1
    for ceiling in range(levels):
        if gains[ceiling] < left and slots < -(-left // gains[ceiling]):
            continue  # not even with nobody else there
        missing = left
        for slot in range(first, last + 1):
            level = ceiling
            while level >= 0 and not _fits(free, slot, demand[level]):
                level -= 1
            plan[slot] = level
            if level >= 0:
                missing -= gains[level]
                if missing <= 0:
                    for taken in range(first, slot + 1):
                        if plan[taken] >= 0:
                            _take(free, taken, demand[plan[taken]], 1)
                    return slot
    return -1


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
    order : ndarray of int64, shape (jobs,)
        Rows, the earliest deadline first.
    demand : ndarray of int64, shape (rows, levels, columns)
        As in `progressive_filling`, by row; so are ``gains``, ``levels`` and ``left``.
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
    every = True
    for row in order:
        ends[row] = -1
        if last[row] >= 0:
            ends[row] = progressive_filling(
                free, demand[row], gains[row], levels[row], left[row], 0, last[row], plan[row]
            )
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
        free, demand[row], gains[row], levels[row], missing, 1, last[row], trial
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
                    free, row, level, demand, gains, levels, width, left, last, ends, trial
                )
                after = _later(
                    free, row, level + 1, demand, gains, levels, width, left, last, ends, trial
                )
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
                    free, demand[row], gains[row], levels[row], missing, 1, last[row], plan[row]
                )


@kernel
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

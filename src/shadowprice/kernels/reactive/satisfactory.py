"""Minimum satisfactory shares of a pool, and marginal returns of spare GPUs, as in ElasticFlow.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning"
(ASPLOS 2023), Algorithms 1 (`shares`) and 2. A cluster is a pool: sums of resources in every slot,
one column each. If all workers have equal demands and fill servers exactly, a sufficient sum can be
placed. In other cases placement decides later. Plans begin with slot 0, which is now.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.reactive.shares import PAUSED, completion_slot, min_ceiling

Levels = NDArray[np.int16]


class PlannedJobs(NamedTuple):
    """Jobs as rows of a table; their levels are useful worker counts, ascending (`shares`)."""

    demand: Integers  # of each level, shape (rows, levels, columns)
    gains: Integers  # progress units of each level in a slot, shape (rows, levels)
    levels: Integers  # number of levels
    gpus: Integers  # of each level, shape (rows, levels)
    remaining: Integers  # progress units that are still to be done


NO_CHANGE = 1 << 60  # result of `next_change` if no plan changes

NOW, NEXT = constant(0), constant(1)
"""First slots of plans."""

_INITIAL_SLOTS = 64
"""Number of slots that are examined first: jobs with late deadlines end long before those."""


@inlined
def _fits(free: Integers, slot: int, demand: Integers) -> bool:
    fits = True
    for c in range(len(demand)):
        fits = fits and (demand[c] == 0 or demand[c] <= free[slot, c])
    return fits


@inlined
def _allocate(free: Integers, slot: int, demand: Integers, sign: int) -> None:
    for c in range(len(demand)):
        free[slot, c] -= sign * demand[c]


@kernel
def _max_fitting_level(free: Integers, slot: int, demand: Integers, low: int, high: int) -> int:
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
    remaining: int,
    first: int,
    last: int,
    plan: Levels,
    starts: Integers,
    fitting: Integers,
) -> int:
    """Plan a job with the fewest workers at once that complete it in time (Algorithm 1).

    The plan is subtracted from ``free`` (slots, columns). ``demand`` (levels, columns) and
    ``gains`` (levels,) are those of a row of `PlannedJobs`. The slots from ``first`` to ``last``
    may be used. ``plan`` (slots,) receives the levels from ``first`` to the completion; the rest is
    meaningless. ``starts`` (slots + 1,) is 0, 1, 2, ..., because every slot is an interval, and
    ``fitting`` (slots,) is scratch space. Returns the completion slot, -1 without a plan.
    """
    slots = last - first + 1
    bottom = 0  # the least level that completes in an empty cluster
    while bottom < levels and (remaining + gains[bottom] - 1) // gains[bottom] > slots:
        bottom += 1
    if bottom == levels:
        return -1
    interval_starts, examined, top, completion = starts[first:], 0, bottom, -1
    while examined < slots and completion < 0:
        until = min(slots, max(_INITIAL_SLOTS, 2 * examined))
        for offset in range(examined, until):
            if _fits(free, first + offset, demand[top]):  # the usual case
                fitting[offset] = top
            else:
                fitting[offset] = _max_fitting_level(free, first + offset, demand, PAUSED, top - 1)
        examined = until
        completion = completion_slot(
            interval_starts, examined, fitting, gains, top, remaining, first + examined
        )
    if completion < 0:
        all_levels, step = np.arange(levels), 1
        while completion < 0 and top < levels - 1:
            # Higher levels may fit only where the last ceiling fitted.
            below, top = top, min(top + step, levels - 1)
            for offset in range(slots):
                if fitting[offset] != below:
                    continue
                if _fits(free, first + offset, demand[top]):
                    fitting[offset] = top
                else:
                    fitting[offset] = _max_fitting_level(
                        free, first + offset, demand, below, top - 1
                    )
            ceilings = all_levels[below + 1 : top + 1]
            position, completion = min_ceiling(
                interval_starts, slots, fitting, gains, ceilings, len(ceilings), remaining,
                last + 1, gains,
            )  # fmt: skip
            step *= 2  # so that a much higher ceiling is found in few passes
            if completion >= 0:
                top = ceilings[position]
    for slot in range(first, completion + 1):
        level = min(top, fitting[slot - first])
        plan[slot] = level
        if level >= 0:
            _allocate(free, slot, demand[level], 1)
    return completion


@inlined
def _scratch_arrays(plan: Levels) -> tuple[Integers, Integers]:
    """Return ``starts`` and ``fitting`` of `progressive_filling`."""
    slots = plan.shape[1]
    return np.arange(slots + 1), np.empty(slots, dtype=np.int64)


@kernel
def satisfy(
    free: Integers,
    order: Integers,
    jobs: PlannedJobs,
    last: Integers,
    plan: Levels,
    stop: bool,
    completions: Integers,
) -> bool:
    """Plan jobs in order, each with its minimum satisfactory share of the remaining capacity.

    Plans are subtracted from ``free`` (slots, columns). ``order`` (jobs,) are rows, the earliest
    deadline first. ``last`` (rows,) is the last slot before each deadline, negative if it is over.
    ``plan`` (rows, slots) and ``completions`` (rows,), the completion slots or -1, are written.
    ``stop`` ends planning at the first job without a plan. Returns whether all jobs have a plan.
    """
    starts, fitting = _scratch_arrays(plan)
    all_planned = True
    for row in order:
        completions[row] = -1
        if last[row] >= 0:
            completions[row] = progressive_filling(
                free, jobs.demand[row], jobs.gains[row], jobs.levels[row], jobs.remaining[row], NOW,
                last[row], plan[row], starts, fitting,
            )  # fmt: skip
        if completions[row] < 0:
            all_planned = False
            if stop:
                break
    return all_planned


@kernel
def _later_gpu_time(
    free: Integers,
    row: int,
    level: int,
    jobs: PlannedJobs,
    last: Integers,
    completions: Integers,
    trial: Levels,
    starts: Integers,
    fitting: Integers,
) -> int:
    """Return the GPU-slots that a job needs after the first slot, if it has ``level`` there.

    A job with a deadline takes its minimum satisfactory share from the next slot on, in ``free``,
    from which its own plan was removed. A job without a deadline takes its lowest level. The result
    is -1 if the job misses its deadline.
    """
    missing = jobs.remaining[row] - (jobs.gains[row, level] if level >= 0 else 0)
    if missing <= 0:
        return 0
    if completions[row] < 0:
        return int(-(-missing // jobs.gains[row, 0]) * jobs.gpus[row, 0])
    if last[row] < 1:
        return -1
    completion = progressive_filling(
        free, jobs.demand[row], jobs.gains[row], jobs.levels[row], missing, NEXT, last[row], trial,
        starts, fitting,
    )  # fmt: skip
    if completion < 0:
        return -1
    total = 0
    for slot in range(1, completion + 1):
        if trial[slot] >= 0:
            total += jobs.gpus[row, trial[slot]]
            _allocate(free, slot, jobs.demand[row, trial[slot]], -1)
    return total


@kernel
def allocate_by_return(
    free: Integers,
    rows: Integers,
    jobs: PlannedJobs,
    last: Integers,
    completions: Integers,
    plan: Levels,
    current_level: Integers,
) -> None:
    """Allocate the free capacity of the first slot by marginal return (Algorithm 2).

    A step leads to the next level. Its return is the GPU-slots that it saves later, per GPU that it
    adds. The job with the largest return gets its step, on ties the first. Its next return is
    computed with its new plan.

    ``free``, ``completions`` and ``plan`` come from `satisfy` and are updated. ``rows`` (jobs,) are
    all jobs that may run, with and without deadline; ``last`` is as in `satisfy`. ``current_level``
    (rows,) receives the level of each job in the first slot.
    """
    demand, gains, levels, gpus, remaining = jobs
    count = len(rows)
    saved = np.zeros(count, dtype=np.int64)  # GPU-slots that the next step saves later
    extra = np.ones(count, dtype=np.int64)  # GPUs that it adds
    keeps_deadline = np.zeros(count, dtype=np.bool_)
    can_grow = np.zeros(count, dtype=np.bool_)
    trial = np.empty(plan.shape[1], dtype=np.int16)
    starts, fitting = _scratch_arrays(plan)
    for n in range(count):
        row = rows[n]
        current_level[row] = plan[row, 0] if completions[row] >= 0 else PAUSED
        can_grow[n] = True
    dirty = np.ones(count, dtype=np.bool_)  # whether the job's plan changed since its return
    while True:
        best = -1
        for n in range(count):
            row = rows[n]
            if not can_grow[n]:
                continue
            level = current_level[row]
            if level + 1 >= levels[row] or (level >= 0 and gains[row, level] >= remaining[row]):
                can_grow[n] = False
                continue
            # Only the resources beyond the job's current level have to fit.
            short = False
            for c in range(demand.shape[2]):
                current_demand = demand[row, level, c] if level >= 0 else 0
                needed = demand[row, level + 1, c] - current_demand
                if needed > 0 and needed > free[0, c]:
                    short = True
                    break
            if short:
                can_grow[n] = False
                continue
            if dirty[n]:
                dirty[n] = False
                # The job's own plan is taken out while its alternatives are planned.
                _subtract_later_plan(free, row, demand, completions, plan, -1)
                before = _later_gpu_time(
                    free, row, level, jobs, last, completions, trial, starts, fitting
                )
                after = _later_gpu_time(
                    free, row, level + 1, jobs, last, completions, trial, starts, fitting
                )
                _subtract_later_plan(free, row, demand, completions, plan, 1)
                current_gpus = gpus[row, level] if level >= 0 else 0
                extra[n] = max(gpus[row, level + 1] - current_gpus, 1)
                # Without the step the job misses its deadline, so the return is the largest.
                keeps_deadline[n] = before < 0
                saved[n] = before - after if before >= 0 else 1
                if after < 0:
                    can_grow[n] = False
                    continue
            if (
                best < 0
                or keeps_deadline[n] > keeps_deadline[best]
                or (
                    keeps_deadline[n] == keeps_deadline[best]
                    and _is_larger(saved[n], extra[n], saved[best], extra[best])
                )
            ):
                best = n
        if best < 0:
            return
        row = rows[best]
        level = current_level[row]
        for c in range(demand.shape[2]):
            free[0, c] -= demand[row, level + 1, c] - (demand[row, level, c] if level >= 0 else 0)
        current_level[row] = level + 1
        dirty[best] = True
        if completions[row] >= 0:
            _subtract_later_plan(free, row, demand, completions, plan, -1)
            plan[row, 0] = level + 1
            completions[row] = 0
            missing = remaining[row] - gains[row, level + 1]
            if missing > 0:
                completions[row] = progressive_filling(
                    free, demand[row], gains[row], levels[row], missing, NEXT, last[row], plan[row],
                    starts, fitting,
                )  # fmt: skip


@kernel
def _is_larger(first: int, first_divisor: int, second: int, second_divisor: int) -> bool:
    """Return whether the first fraction is larger, exactly.

    Their continued fractions are compared, because products could exceed int64.
    """
    larger = True  # False while the reciprocals are compared
    while True:
        whole, other = first // first_divisor, second // second_divisor
        if whole != other:
            return (whole > other) == larger
        first, second = first - whole * first_divisor, second - other * second_divisor
        if first == 0 or second == 0:
            return (first > second) if larger else (second > first)
        first, first_divisor = first_divisor, first
        second, second_divisor = second_divisor, second
        larger = not larger


@inlined
def _subtract_later_plan(
    free: Integers, row: int, demand: Integers, completions: Integers, plan: Levels, sign: int
) -> None:
    """Subtract a job's plan for later slots from the free capacity; with ``sign`` -1, add it."""
    for slot in range(1, completions[row] + 1):
        if plan[row, slot] >= 0:
            _allocate(free, slot, demand[row, plan[row, slot]], sign)


@kernel
def next_change(
    rows: Integers, completions: Integers, plan: Levels, current_level: Integers
) -> int:
    """Return the first slot that needs new plans, or `NO_CHANGE`.

    That is the next slot if a plan scales up in it; otherwise the first slot in which a plan
    changes its level or has ended.
    """
    first = NO_CHANGE
    for row in rows:
        if completions[row] >= 1 and plan[row, 1] > current_level[row]:
            return 1
        for slot in range(2, min(completions[row] + 2, first)):
            if slot > completions[row] or plan[row, slot] != plan[row, slot - 1]:
                first = slot
                break
    return first

"""Open jobs as arrays: useful worker counts (levels), and the two placement modes of a job.

A job may run faster if all its processes are on one server (PD-ORS, Fact 1). A *co-located* job is
one demand of one server; a *spread* job is many demands. Capacity for one mode doesn't imply
capacity for the other, so a plan uses one mode throughout, and every search is within one mode.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined
from shadowprice.kernels.reactive.worth import Worths, worth
from shadowprice.kernels.replanning.timeline import PS_ROLE, WORKER_ROLE


class JobArrays(NamedTuple):
    """Open jobs as rows; arrays without a shape are (rows,).

    The levels of a job are its useful worker counts: each gains more than all smaller ones of the
    same mode. Spread levels, at the external rate, come first. Co-located levels, at the internal
    rate, follow; a job with one rate has none. The hulls are the upper hulls of both curves through
    the origin.
    """

    worker: Integers  # demand, shape (rows, resources)
    ps: Integers  # zeros for all-reduce jobs
    levels: Integers  # number of levels
    spread_levels: Integers  # number of levels in spread mode
    worker_counts: Integers  # workers of each level, ascending in each mode, shape (rows, width)
    ps_counts: Integers  # parameter servers of each level
    gains: Integers  # progress units of each level per slot
    # Progress units of a slot in which the job restarts. Plans count on no more, so that no move
    # can break a promise.
    certain_gains: Integers
    starts_free: Flags  # the first slot yields `gains`, because only later starts cost progress
    hull_size: Integers  # number of levels on the hulls
    spread_hull_size: Integers  # number of those on the spread curve
    hull: Integers  # the levels on the hulls, ascending, shape (rows, width)
    remaining: Integers  # progress units
    arrival: Integers  # slot
    last_slot: Integers  # last slot in which completing has a utility that counts
    tenant: Integers  # row of `Timeline.share`
    worths: Worths


@inlined
def with_certain_gains(jobs: JobArrays, certain_gains: Integers) -> JobArrays:
    """Return jobs with other certain progress; numba doesn't support ``_replace``."""
    return JobArrays(
        jobs.worker, jobs.ps, jobs.levels, jobs.spread_levels, jobs.worker_counts, jobs.ps_counts,
        jobs.gains, certain_gains, jobs.starts_free, jobs.hull_size, jobs.spread_hull_size,
        jobs.hull, jobs.remaining, jobs.arrival, jobs.last_slot, jobs.tenant, jobs.worths,
    )  # fmt: skip


SPREAD, COLOCATED = constant(0), constant(1)
"""Placement modes: processes on any servers, or all of them on one."""


@inlined
def mode_count(jobs: JobArrays, row: int) -> int:
    """Return the number of placement modes of a job."""
    return 2 if jobs.levels[row] > jobs.spread_levels[row] else 1


@inlined
def max_gain(jobs: JobArrays, row: int) -> int:
    """Return the maximum progress units of a job in a slot, in either mode."""
    spread, colocated = jobs.spread_levels[row] - 1, jobs.levels[row] - 1
    return int(max(jobs.gains[row, spread], jobs.gains[row, colocated]))


@inlined
def first_slot_gains(jobs: JobArrays, row: int) -> Integers:
    """Return the certain progress units of a job's first slot, by level."""
    first: Integers = jobs.gains[row] if jobs.starts_free[row] else jobs.certain_gains[row]
    return first


@inlined
def level_range(jobs: JobArrays, row: int, mode: int) -> tuple[int, int]:
    """Return the first level of a mode, and the end of its levels."""
    if mode == SPREAD:
        return 0, int(jobs.spread_levels[row])
    return int(jobs.spread_levels[row]), int(jobs.levels[row])


@inlined
def hull_range(jobs: JobArrays, row: int, mode: int) -> tuple[int, int]:
    """Return the first position of a mode on the hulls, and the end of its positions."""
    if mode == SPREAD:
        return 0, int(jobs.spread_hull_size[row])
    return int(jobs.spread_hull_size[row]), int(jobs.hull_size[row])


@inlined
def colocated_role(jobs: JobArrays, row: int) -> int:
    """Return the role that a server needs to host all processes of a job."""
    needs_ps = jobs.ps_counts[row, jobs.spread_levels[row]] > 0
    return WORKER_ROLE | PS_ROLE if needs_ps else WORKER_ROLE


@inlined
def colocated_demand(jobs: JobArrays, row: int, level: int) -> Integers:
    """Return the demand of all workers and parameter servers of a level together."""
    demand = np.empty(jobs.worker.shape[1], np.int64)
    for r in range(len(demand)):
        demand[r] = jobs.worker_counts[row, level] * jobs.worker[row, r]
        demand[r] += jobs.ps_counts[row, level] * jobs.ps[row, r]
    return demand


@inlined
def utility(jobs: JobArrays, row: int, slot: int) -> float:
    """Return the utility of completing in a slot."""
    return worth(jobs.worths, row, float(slot - jobs.arrival[row]))


@allocation_free
def last_slot_worth(jobs: JobArrays, row: int, min_utility: float, low: int, high: int) -> int:
    """Return the last slot of ``[low, high]`` that is worth ``min_utility`` or more, or low - 1.

    Bisection is exact, because utilities never rise.
    """
    if utility(jobs, row, low) < min_utility:
        return low - 1
    while low < high:
        middle = (low + high + 1) // 2
        if utility(jobs, row, middle) >= min_utility:
            low = middle
        else:
            high = middle - 1
    return low

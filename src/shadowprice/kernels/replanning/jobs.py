"""Open jobs as arrays: useful worker counts (levels), and the two placement modes of a job.

A job may run faster if all its processes are on one server (PD-ORS, Fact 1). A *co-located* job is
one demand of one server; a *spread* job is many demands. Capacity that fits one of them says
nothing about the other, so a plan uses one mode throughout, and every search stays in one mode.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.reactive.worth import Worths, worth
from shadowprice.kernels.replanning.timeline import SERVERS, WORKERS

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Jobs(NamedTuple):
    """Open jobs as rows.

    Attributes
    ----------
    worker, ps : int64[rows, resources]
        Demands; zeros for the parameter servers of all-reduce jobs.
    levels : int64[rows]
        Number of useful worker counts: each gains more than all smaller ones of the same mode.
    spread : int64[rows]
        Number of levels in spread mode, at the external rate. The levels after them are co-located,
        at the internal rate; a job with one rate has none.
    workers, servers, gains : int64[rows, width]
        Workers, parameter servers and progress units of each level, ascending in each mode.
    sure : int64[rows, width]
        Progress units of a slot in which the job restarts. Plans count on no more, so that no move
        can break a promise.
    fresh : bool[rows]
        Whether the first slot of a job yields more than ``sure``: it has never run, and only later
        starts cost progress.
    hulls : int64[rows]
        Number of levels on the upper hulls of the curves through the origin.
    hulls_spread : int64[rows]
        Number of those on the spread curve; they come first.
    hull : int64[rows, width]
        The levels on the hulls, ascending.
    left : int64[rows]
        Remaining progress units.
    arrival : int64[rows]
        Arrival slot.
    last : int64[rows]
        Last slot in which completing has a utility that counts.
    tenant : int64[rows]
        Owner, as a row of `Timeline.share`.
    worths : Worths
        Utilities.
    """

    worker: Ints
    ps: Ints
    levels: Ints
    spread: Ints
    workers: Ints
    servers: Ints
    gains: Ints
    sure: Ints
    fresh: Flags
    hulls: Ints
    hulls_spread: Ints
    hull: Ints
    left: Ints
    arrival: Ints
    last: Ints
    tenant: Ints
    worths: Worths


SPREAD, WHOLE = constant(0), constant(1)
"""Placement modes: processes on any servers, or all of them on one."""


@inlined
def ways(jobs: Jobs, row: int) -> int:
    """Return the number of placement modes of a job."""
    return 2 if jobs.levels[row] > jobs.spread[row] else 1


@inlined
def most_gain(jobs: Jobs, row: int) -> int:
    """Return the maximum progress units of a job in a slot, in either mode."""
    return int(max(jobs.gains[row, jobs.spread[row] - 1], jobs.gains[row, jobs.levels[row] - 1]))


@inlined
def first_gains(jobs: Jobs, row: int) -> Ints:
    """Return the certain progress units of a job's first slot, by level."""
    first: Ints = jobs.gains[row] if jobs.fresh[row] else jobs.sure[row]
    return first


@inlined
def levels_of(jobs: Jobs, row: int, way: int) -> tuple[int, int]:
    """Return the first level of a mode, and the end of its levels."""
    if way == SPREAD:
        return 0, int(jobs.spread[row])
    return int(jobs.spread[row]), int(jobs.levels[row])


@inlined
def hull_of(jobs: Jobs, row: int, way: int) -> tuple[int, int]:
    """Return the first position of a mode on the hulls, and the end of its positions."""
    if way == SPREAD:
        return 0, int(jobs.hulls_spread[row])
    return int(jobs.hulls_spread[row]), int(jobs.hulls[row])


@inlined
def role_of_whole(jobs: Jobs, row: int) -> int:
    """Return the role that a server needs to host the whole job."""
    return WORKERS | SERVERS if jobs.servers[row, jobs.spread[row]] > 0 else WORKERS


@inlined
def demand_of_whole(jobs: Jobs, row: int, level: int) -> Ints:
    """Return the demand of all workers and parameter servers of a level together."""
    demand = np.empty(jobs.worker.shape[1], np.int64)
    for r in range(len(demand)):
        demand[r] = jobs.workers[row, level] * jobs.worker[row, r]
        demand[r] += jobs.servers[row, level] * jobs.ps[row, r]
    return demand


@inlined
def utility(jobs: Jobs, row: int, slot: int) -> float:
    """Return the utility of completing in a slot."""
    return worth(jobs.worths, row, float(slot - jobs.arrival[row]))


@kernel
def last_worth(jobs: Jobs, row: int, least: float, low: int, high: int) -> int:
    """Return the last slot of ``[low, high]`` with a utility of at least ``least``, or low - 1.

    Bisection, because utilities never rise.
    """
    if utility(jobs, row, low) < least:
        return low - 1
    while low < high:
        middle = (low + high + 1) // 2
        if utility(jobs, row, middle) >= least:
            low = middle
        else:
            high = middle - 1
    return low

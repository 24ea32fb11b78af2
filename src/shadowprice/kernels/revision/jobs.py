"""Open jobs as plans see them: levels of workers, and the two ways in which a job stands.

A job may run faster where all of it stands on one server (PD-ORS, Fact 1). Such a *whole* job is
one demand of a server, where a *spread* one is many, so that what has room for the one tells
nothing of the other: a plan is one or the other throughout, and every search is within one of these
two ways.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.reactive.worth import Worths, worth
from shadowprice.kernels.revision.timeline import SERVERS, WORKERS

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Jobs(NamedTuple):
    """Open jobs as rows.

    Attributes
    ----------
    worker, ps : int64[rows, resources]
        Demands; zeros for the parameter servers of all-reduce jobs.
    levels : int64[rows]
        Useful numbers of workers: each gains more than all smaller ones that stand the same way.
    spread : int64[rows]
        How many of them stand on any servers, at the external rate. The others, which come after
        them, stand on one server each, at the internal rate; a job with one rate has none.
    workers, servers, gains : int64[rows, width]
        Workers, parameter servers and progress units of each level, ascending in either way.
    sure : int64[rows, width]
        Progress units that remain of a slot where the job restarts in it: plans count on no more,
        so that no move can break a promise.
    fresh : bool[rows]
        Whether the first slot in which a job runs yields more than is sure of any other, as it
        never ran, and its first start costs nothing where later ones do.
    hulls : int64[rows]
        Levels on the upper hulls of the curves through the origin.
    hulls_spread : int64[rows]
        How many of them are of the spread curve, the first ones.
    hull : int64[rows, width]
        Those levels, ascending.
    left : int64[rows]
        Progress units that remain.
    arrival : int64[rows]
        Arrival slot.
    last : int64[rows]
        Last slot in which completing is worth anything that counts.
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
"""The ways in which a job stands: on any servers, or all of it on one."""


@inlined
def ways(jobs: Jobs, row: int) -> int:
    """Return in how many ways a job can stand."""
    return 2 if jobs.levels[row] > jobs.spread[row] else 1


@inlined
def most_gain(jobs: Jobs, row: int) -> int:
    """Return the most progress units that a job can make in a slot, either way."""
    return int(max(jobs.gains[row, jobs.spread[row] - 1], jobs.gains[row, jobs.levels[row] - 1]))


@inlined
def first_gains(jobs: Jobs, row: int) -> Ints:
    """Return what the first slot in which a job runs yields surely, by level."""
    first: Ints = jobs.gains[row] if jobs.fresh[row] else jobs.sure[row]
    return first


@inlined
def levels_of(jobs: Jobs, row: int, way: int) -> tuple[int, int]:
    """Return the first level of a way, and the one after its last."""
    if way == SPREAD:
        return 0, int(jobs.spread[row])
    return int(jobs.spread[row]), int(jobs.levels[row])


@inlined
def hull_of(jobs: Jobs, row: int, way: int) -> tuple[int, int]:
    """Return the first position of a way on the hulls, and the one after its last."""
    if way == SPREAD:
        return 0, int(jobs.hulls_spread[row])
    return int(jobs.hulls_spread[row]), int(jobs.hulls[row])


@inlined
def role_of_whole(jobs: Jobs, row: int) -> int:
    """Return what a server has to carry for all of a job to stand on it."""
    return WORKERS | SERVERS if jobs.servers[row, jobs.spread[row]] > 0 else WORKERS


@inlined
def demand_of_whole(jobs: Jobs, row: int, level: int) -> Ints:
    """Return what all workers and parameter servers of a level take together."""
    demand = np.empty(jobs.worker.shape[1], np.int64)
    for r in range(len(demand)):
        demand[r] = jobs.workers[row, level] * jobs.worker[row, r]
        demand[r] += jobs.servers[row, level] * jobs.ps[row, r]
    return demand


@inlined
def utility(jobs: Jobs, row: int, slot: int) -> float:
    """Return what completing in a slot is worth."""
    return worth(jobs.worths, row, float(slot - jobs.arrival[row]))


@kernel
def last_worth(jobs: Jobs, row: int, least: float, low: int, high: int) -> int:
    """Return the last slot in ``[low, high]`` in which completing is worth ``least``; or low - 1.

    Utilities never rise.
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

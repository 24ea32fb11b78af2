"""Whole jobs that grow into what is left on the servers they stand on."""

import heapq

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.revision.chains import Stood
from shadowprice.kernels.revision.coming import Terms, best_step
from shadowprice.kernels.revision.jobs import Jobs
from shadowprice.kernels.revision.plans import Log

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@kernel
def grow(
    free: Ints,
    jobs: Jobs,
    rows: Ints,
    worth_left: Floats,
    terms: Terms,
    stood: Stood,
    log: Log,
) -> None:
    """Give whole jobs what is left on the servers they stand on: one step up at a time.

    A step is worth what it is in `coming.fill`.

    Parameters
    ----------
    free : int64[servers, resources]
        What each server has left, as `stand` left it; what is taken is taken off.
    jobs : Jobs
        Open jobs.
    rows : int64[jobs]
        Rows of whole jobs that run in the slot.
    worth_left : float64[jobs]
        What completing each is worth.
    terms : Terms
        By what steps are weighed.
    stood : Stood
        Where they stand; written.
    log : Log
        Their levels; written.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        most = jobs.levels[rows[n]]
        _push(heap, jobs, rows[n], worth_left[n], n, most, terms, log)
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        before = log.level[row]
        at = stood.first[row]
        server = stood.server[at]
        workers = jobs.workers[row, target] - jobs.workers[row, before]
        servers = jobs.servers[row, target] - jobs.servers[row, before]
        fits = True
        for r in range(free.shape[1]):
            asked = workers * jobs.worker[row, r] + servers * jobs.ps[row, r]
            fits = fits and (asked <= 0 or asked <= free[server, r])
        most = target
        if fits:
            for r in range(free.shape[1]):
                free[server, r] -= workers * jobs.worker[row, r] + servers * jobs.ps[row, r]
            stood.workers[at] += workers
            stood.ps[at] += servers
            log.level[row] = target
            most = jobs.levels[row]
        _push(heap, jobs, row, worth_left[n], n, most, terms, log)


@inlined
def _push(
    heap: list[tuple[float, int, int]],
    jobs: Jobs,
    row: int,
    worth_left: float,
    n: int,
    most: int,
    terms: Terms,
    log: Log,
) -> None:
    """Push the next step up of a whole job below a level, if it has one that brings anything."""
    before = log.level[row]
    value, target = best_step(jobs, row, before, before + 1, most, terms)
    if target >= 0:
        heapq.heappush(heap, (-value * worth_left / jobs.left[row], n, target))

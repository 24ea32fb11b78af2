"""Scaling co-located jobs up into the free capacity of their servers."""

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
    """Scale co-located jobs up into the free capacity of their servers, one best step at a time.

    A step is weighed as in `coming.fill`.

    Parameters
    ----------
    free : int64[servers, resources]
        Free capacity after `stand`; what is taken is subtracted.
    rows : int64[jobs]
        Rows of co-located jobs that run in the slot.
    worth_left : float64[jobs]
        Utility of completing each.
    stood : Stood
        Placements; written.
    log : Log
        Levels; written.
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
    """Push the best step up of a co-located job below a level, if it adds progress."""
    before = log.level[row]
    value, target = best_step(jobs, row, before, before + 1, most, terms)
    if target >= 0:
        heapq.heappush(heap, (-value * worth_left / jobs.left[row], n, target))

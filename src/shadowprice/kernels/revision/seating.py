"""Placement of jobs for which packing by groups found no capacity, on the capacity of servers."""

import heapq

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import copy_into
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.revision.chains import Chains, Stood, listed, put_on, put_whole, take_back
from shadowprice.kernels.revision.coming import Terms, offer_step
from shadowprice.kernels.revision.crowds import Crowds, best_crowd, gather
from shadowprice.kernels.revision.jobs import Jobs
from shadowprice.kernels.revision.plans import Log
from shadowprice.kernels.revision.timeline import ONE, SERVERS, WORKERS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@kernel
def seat(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    rows: Ints,
    worth_left: Floats,
    terms: Terms,
    stood: Stood,
    log: Log,
) -> Stood:
    """Place paused jobs on the remaining capacity of servers, the best steps first.

    `coming.fill` assumes servers as plans pack them. Jobs that keep their placement leave other
    capacity: less on some servers, more on others.

    Parameters
    ----------
    free : int64[servers, resources]
        Free capacity after `stand` and `grow`; placements are subtracted.
    hosts_workers, hosts_ps : bool[servers]
        Whether each may host workers, and parameter servers.
    rows : int64[jobs]
        Rows that may run in the slot.
    worth_left : float64[jobs]
        Utility of completing each.
    stood : Stood
        Placements so far.
    log : Log
        Levels; written.

    Returns
    -------
    Stood
        All placements; the same object if no job fits.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        if log.level[rows[n]] < 0:
            most = jobs.levels[rows[n]]
            offer_step(heap, jobs, rows[n], worth_left[n], n, most, terms, log)
    if len(heap) == 0:
        return stood
    crowds = gather(free, hosts_workers, hosts_ps)
    chains = _wider(_none(len(stood.first)), len(free))
    found = False
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        if best_crowd(crowds, WORKERS, jobs.worker[row], ONE)[0] < 0:
            continue
        used = chains.used[0]
        chains = _wider(chains, used + 2 * len(free))
        if _seated(free, crowds, jobs, row, target, chains):
            log.level[row] = target
            found = True
        else:
            chains.head[row], chains.used[0] = -1, used
            offer_step(heap, jobs, row, worth_left[n], n, target, terms, log)
    return _joined(stood, listed(chains)) if found else stood


@inlined
def _seated(free: Ints, crowds: Crowds, jobs: Jobs, row: int, level: int, chains: Chains) -> bool:
    """Place a job at a level; on failure nothing changes.

    Workers come first, or parameter servers if they don't fit after the workers.
    """
    if level >= jobs.spread[row]:
        return put_whole(free, crowds, jobs, row, level, chains)
    workers, servers = jobs.workers[row, level], jobs.servers[row, level]
    worker, ps = jobs.worker[row], jobs.ps[row]
    if put_on(free, crowds, WORKERS, worker, workers, row, chains) and put_on(
        free, crowds, SERVERS, ps, servers, row, chains
    ):
        return True
    take_back(free, crowds, worker, ps, row, chains)
    if servers == 0:
        return False
    if put_on(free, crowds, SERVERS, ps, servers, row, chains) and put_on(
        free, crowds, WORKERS, worker, workers, row, chains
    ):
        return True
    take_back(free, crowds, worker, ps, row, chains)
    return False


@inlined
def _none(rows: int) -> Chains:
    """Return empty lists without room for entries."""
    return Chains(
        np.full(rows, -1),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.zeros(1, np.int64),
    )


@kernel
def _wider(chains: Chains, entries: int) -> Chains:
    """Return lists with room for at least ``entries`` entries."""
    if len(chains.after) >= entries:
        return chains
    most = max(entries, 2 * len(chains.after))
    return Chains(
        chains.head,
        _longer(chains.after, most),
        _longer(chains.server, most),
        _longer(chains.workers, most),
        _longer(chains.ps, most),
        chains.used,
    )


@inlined
def _longer(column: Ints, most: int) -> Ints:
    whole = np.empty(most, np.int64)
    copy_into(whole, column)
    return whole


@inlined
def _joined(stood: Stood, more: Stood) -> Stood:
    """Return placements of both; a row has entries in at most one of them."""
    first, number = stood.first.copy(), stood.number.copy()
    for row in range(len(first)):
        if more.number[row] > 0:
            first[row] = len(stood.server) + more.first[row]
            number[row] = more.number[row]
    return Stood(
        first,
        number,
        np.concatenate((stood.server, more.server)),
        np.concatenate((stood.workers, more.workers)),
        np.concatenate((stood.ps, more.ps)),
    )

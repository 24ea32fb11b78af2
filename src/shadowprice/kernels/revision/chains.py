"""Placements of jobs, and the linked lists from which they are computed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.revision.crowds import Crowds, best_crowd, change, lowest_of
from shadowprice.kernels.revision.jobs import Jobs, demand_of_whole, role_of_whole
from shadowprice.kernels.revision.timeline import ONE, WORKERS

Ints = NDArray[np.int64]


class Stood(NamedTuple):
    """Placements of jobs, as entries of one server each.

    Attributes
    ----------
    first, number : int64[rows]
        First entry of a row, and the number of its entries.
    server, workers, ps : int64[entries]
        Server, workers and parameter servers on it; a row's servers ascend.
    """

    first: Ints
    number: Ints
    server: Ints
    workers: Ints
    ps: Ints


class Chains(NamedTuple):
    """Placements while they are computed: a linked list of entries a job.

    Attributes
    ----------
    head : int64[rows]
        Newest entry of a row, -1 for none.
    after : int64[most]
        The entry of the same row before it, -1 for none.
    server, workers, ps : int64[most]
        As in `Stood`.
    used : int64[1]
        Number of entries.
    """

    head: Ints
    after: Ints
    server: Ints
    workers: Ints
    ps: Ints
    used: Ints


@kernel
def entry(chains: Chains, row: int, server: int) -> int:
    """Return a row's entry of a server, and add one if there is none."""
    at = chains.head[row]
    while at >= 0:
        if chains.server[at] == server:
            return int(at)
        at = chains.after[at]
    at = chains.used[0]
    chains.used[0] = at + 1
    chains.server[at] = server
    chains.workers[at] = 0
    chains.ps[at] = 0
    chains.after[at] = chains.head[row]
    chains.head[row] = at
    return int(at)


@kernel
def listed(chains: Chains) -> Stood:
    """Return the placements of all entries that aren't empty."""
    rows, used = len(chains.head), chains.used[0]
    first, number = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    server, workers = np.empty(used, np.int64), np.empty(used, np.int64)
    ps = np.empty(used, np.int64)
    end = 0
    for row in range(rows):
        first[row] = end
        at = chains.head[row]
        while at >= 0:
            if chains.workers[at] > 0 or chains.ps[at] > 0:
                to = end
                while to > first[row] and server[to - 1] > chains.server[at]:
                    server[to], workers[to] = server[to - 1], workers[to - 1]
                    ps[to] = ps[to - 1]
                    to -= 1
                server[to], workers[to] = chains.server[at], chains.workers[at]
                ps[to] = chains.ps[at]
                end += 1
            at = chains.after[at]
        number[row] = end - first[row]
    return Stood(first, number, server[:end].copy(), workers[:end].copy(), ps[:end].copy())


@kernel
def put_on(
    free: Ints, crowds: Crowds, role: int, demand: Ints, number: int, row: int, chains: Chains
) -> bool:
    """Place several of a job's demands on servers, by the rule of `timeline.put`."""
    rest = number
    while rest > 0:
        best, fits = best_crowd(crowds, role, demand, rest)
        if best < 0:
            return False
        server = lowest_of(crowds, best)
        each = min(fits, rest)
        at = entry(chains, row, server)
        if role == WORKERS:
            chains.workers[at] += each
        else:
            chains.ps[at] += each
        change(free, crowds, server, demand, -each)
        rest -= each
    return True


@kernel
def put_whole(free: Ints, crowds: Crowds, jobs: Jobs, row: int, level: int, chains: Chains) -> bool:
    """Place a co-located level on one server, by the rule of `timeline.put`."""
    demand = demand_of_whole(jobs, row, level)
    best, _ = best_crowd(crowds, role_of_whole(jobs, row), demand, ONE)
    if best < 0:
        return False
    server = lowest_of(crowds, best)
    at = entry(chains, row, server)
    chains.workers[at] = jobs.workers[row, level]
    chains.ps[at] = jobs.servers[row, level]
    change(free, crowds, server, demand, -ONE)
    return True


@kernel
def take_back(free: Ints, crowds: Crowds, worker: Ints, ps: Ints, row: int, chains: Chains) -> None:
    """Release everything that a job was given."""
    at = chains.head[row]
    while at >= 0:
        change(free, crowds, chains.server[at], worker, chains.workers[at])
        change(free, crowds, chains.server[at], ps, chains.ps[at])
        chains.workers[at] = 0
        chains.ps[at] = 0
        at = chains.after[at]

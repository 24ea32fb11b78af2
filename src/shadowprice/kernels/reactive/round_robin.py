"""Placing a job's workers and parameter servers round robin.

"In (i)-(iii), we place workers and parameter servers on available servers in a round-robin
fashion" (OASiS, section V): each one goes to the next server after the last one used that has room
for it. One cursor goes round for workers, another for parameter servers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@kernel
def deal(
    free: Integers,
    demand: Integers,
    count: int,
    hosts: Flags,
    cursor: int,
    given: Integers,
) -> int:
    """Deal equal items one by one to the servers that have room, going round.

    Parameters
    ----------
    free : ndarray of int64, shape (servers, resources)
        Room on each server; what is dealt is taken off.
    demand : ndarray of int64, shape (resources,)
        What one item takes.
    count : int
        Items to deal.
    hosts : ndarray of bool, shape (servers,)
        Servers that may carry the item.
    cursor : int
        First server to ask.
    given : ndarray of int64, shape (servers,)
        Zeros; filled with the items dealt to each server.

    Returns
    -------
    int
        First server to ask next time; -1 where not all items found room, and nothing was dealt.
    """
    servers, resources = free.shape
    at = cursor
    dealt = 0
    idle = 0
    while dealt < count:
        if idle == servers:
            # A whole round without room: put everything back.
            for s in range(servers):
                for r in range(resources):
                    free[s, r] += given[s] * demand[r]
                given[s] = 0
            return -1
        fits = hosts[at]
        if fits:
            for r in range(resources):
                if free[at, r] < demand[r] and demand[r] > 0:
                    fits = False
                    break
        if fits:
            for r in range(resources):
                free[at, r] -= demand[r]
            given[at] += 1
            dealt += 1
            idle = 0
        else:
            idle += 1
        at = at + 1 if at + 1 < servers else 0
    return at


@kernel
def place(
    free: Integers,
    worker: Integers,
    ps: Integers,
    workers: int,
    servers_needed: int,
    hosts_workers: Flags,
    hosts_ps: Flags,
    cursors: Integers,
    out: Integers,
) -> int:
    """Place one job, taking its room; all of it or nothing.

    Workers are dealt first. Where that leaves no room for the parameter servers (machines that
    carry both), the parameter servers are dealt first instead.

    Parameters
    ----------
    free : ndarray of int64, shape (servers, resources)
        Room on each server; what is placed is taken off.
    worker, ps : ndarray of int64, shape (resources,)
        Demand of a worker and of a parameter server.
    workers, servers_needed : int
        How many of them.
    hosts_workers, hosts_ps : ndarray of bool, shape (servers,)
        What each server may carry now.
    cursors : ndarray of int64, shape (2,)
        Where the next worker and the next parameter server go first; moved on success.
    out : ndarray of int64, shape (3, servers)
        Filled from the left with server, workers, parameter servers; servers ascend.

    Returns
    -------
    int
        Columns filled; 0 where there is no room, and nothing was taken.
    """
    servers = free.shape[0]
    given_workers = np.zeros(servers, dtype=np.int64)
    given_ps = np.zeros(servers, dtype=np.int64)
    done = False
    for ps_first in range(2):
        if ps_first == 1 and servers_needed == 0:
            break
        next_ps = cursors[1]
        if ps_first == 1:
            next_ps = deal(free, ps, servers_needed, hosts_ps, cursors[1], given_ps)
            if next_ps < 0:
                break
        next_worker = deal(free, worker, workers, hosts_workers, cursors[0], given_workers)
        if next_worker >= 0 and ps_first == 0 and servers_needed > 0:
            next_ps = deal(free, ps, servers_needed, hosts_ps, cursors[1], given_ps)
        if next_worker >= 0 and next_ps >= 0:
            cursors[0] = next_worker
            cursors[1] = next_ps
            done = True
            break
        if next_worker < 0 and ps_first == 0:
            break  # no room for the workers alone
        for s in range(servers):
            for r in range(free.shape[1]):
                free[s, r] += given_workers[s] * worker[r] + given_ps[s] * ps[r]
            given_workers[s] = 0
            given_ps[s] = 0
    if not done:
        return 0
    filled = 0
    for s in range(servers):
        if given_workers[s] > 0 or given_ps[s] > 0:
            out[0, filled] = s
            out[1, filled] = given_workers[s]
            out[2, filled] = given_ps[s]
            filled += 1
    return filled

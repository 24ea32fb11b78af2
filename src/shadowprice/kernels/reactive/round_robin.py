"""Round-robin placement of a job's workers and parameter servers.

"In (i)-(iii), we place workers and parameter servers on available servers in a round-robin fashion"
(OASiS, section V): each process goes to the next server after the last used server on which it
fits. Workers and parameter servers have a cursor each.
"""

from __future__ import annotations

import numpy as np

from shadowprice.kernels.arrays import Flags, Integers
from shadowprice.kernels.jit import kernel


@kernel
def deal(
    free: Integers,
    demand: Integers,
    count: int,
    hosts: Flags,
    cursor: int,
    given: Integers,
) -> int:
    """Distribute ``count`` equal items to the servers on which they fit, round robin; all or none.

    Items are subtracted from ``free`` (servers, resources). ``given`` (servers,), zeros on entry,
    receives the number of items of each server. ``cursor`` is the first server to try. Returns that
    of the next call, or -1 if not all items fit.
    """
    servers, resources = free.shape
    at = cursor
    dealt = 0
    idle = 0
    while dealt < count:
        if idle == servers:
            # No server fits the item: undo all.
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
    """Place one job completely or not at all; return the number of servers, 0 if it doesn't fit.

    Workers are placed first, or parameter servers if they don't fit after the workers. The
    placement is subtracted from ``free`` (servers, resources), and the ``cursors`` (2,) move.
    ``out`` (3, servers) receives columns of server, workers and parameter servers, by ascending
    server.
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
            break  # the workers don't even fit alone
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

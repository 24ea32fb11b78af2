"""Round-robin placement of a job's workers and parameter servers.

"In (i)-(iii), we place workers and parameter servers on available servers in a round-robin fashion"
(OASiS, section V): each process goes to the next server, after the one used last, on which it fits.
Workers and parameter servers have a cursor each.
"""

from __future__ import annotations

import numpy as np

from shadowprice.kernels.arrays import Flags, Integers
from shadowprice.kernels.jit import kernel


@kernel
def _distribute(
    free: Integers,
    demand: Integers,
    count: int,
    hosts: Flags,
    cursor: int,
    allocated: Integers,
) -> int:
    """Place ``count`` equal processes round robin on servers with capacity; all or none.

    Processes are subtracted from ``free`` (servers, resources). ``allocated`` (servers,), zeros on
    entry, receives the number of processes on each server. ``cursor`` is the first server to try.
    Returns the cursor of the next call, or -1 if not all processes fit.
    """
    servers, resources = free.shape
    server = cursor
    placed = 0
    misfits = 0
    while placed < count:
        if misfits == servers:
            # No server fits one more process: undo all.
            for s in range(servers):
                for r in range(resources):
                    free[s, r] += allocated[s] * demand[r]
                allocated[s] = 0
            return -1
        fits = hosts[server]
        if fits:
            for r in range(resources):
                if free[server, r] < demand[r] and demand[r] > 0:
                    fits = False
                    break
        if fits:
            for r in range(resources):
                free[server, r] -= demand[r]
            allocated[server] += 1
            placed += 1
            misfits = 0
        else:
            misfits += 1
        server = server + 1 if server + 1 < servers else 0
    return server


@kernel
def place(
    free: Integers,
    worker: Integers,
    ps: Integers,
    workers: int,
    ps_count: int,
    hosts_workers: Flags,
    hosts_ps: Flags,
    cursors: Integers,
    out: Integers,
) -> int:
    """Place one job completely or not at all; return the number of servers, 0 if it doesn't fit.

    Workers are placed first, or parameter servers if they don't fit after the workers. The
    placement is subtracted from ``free`` (servers, resources), and the ``cursors`` (2,) move.
    ``out`` (3, servers) receives rows of server, workers and parameter servers, by ascending
    server; only the first entries of each row are valid.
    """
    servers = free.shape[0]
    new_workers = np.zeros(servers, dtype=np.int64)
    new_ps = np.zeros(servers, dtype=np.int64)
    done = False
    for ps_first in range(2):
        if ps_first == 1 and ps_count == 0:
            break
        next_ps = cursors[1]
        if ps_first == 1:
            next_ps = _distribute(free, ps, ps_count, hosts_ps, cursors[1], new_ps)
            if next_ps < 0:
                break
        next_worker = _distribute(free, worker, workers, hosts_workers, cursors[0], new_workers)
        if next_worker >= 0 and ps_first == 0 and ps_count > 0:
            next_ps = _distribute(free, ps, ps_count, hosts_ps, cursors[1], new_ps)
        if next_worker >= 0 and next_ps >= 0:
            cursors[0] = next_worker
            cursors[1] = next_ps
            done = True
            break
        if next_worker < 0 and ps_first == 0:
            break  # the workers don't even fit alone
        for s in range(servers):
            for r in range(free.shape[1]):
                free[s, r] += new_workers[s] * worker[r] + new_ps[s] * ps[r]
            new_workers[s] = 0
            new_ps[s] = 0
    if not done:
        return 0
    filled = 0
    for s in range(servers):
        if new_workers[s] > 0 or new_ps[s] > 0:
            out[0, filled] = s
            out[1, filled] = new_workers[s]
            out[2, filled] = new_ps[s]
            filled += 1
    return filled

"""Current and new placements of jobs, and allocation to one job after another.

A job gets its current servers first, then free capacity that no job uses currently (*spare*
capacity), round robin, then any free capacity. This order decides which jobs move, but never how
many processes a job gets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Integers
from shadowprice.kernels.jit import inlined, kernel

SAME, LESS, MORE, MOVED = 0, 1, 2, 3
"""Comparison of a job's new placement with its current one, server by server."""


class PlacementTable(NamedTuple):
    """Open jobs as rows, with their placements."""

    worker: Integers  # demands, shape (rows, resources)
    ps: Integers  # zeros for all-reduce jobs
    hosts_workers: Flags  # whether each server may host workers now
    hosts_ps: Flags
    current_workers: Integers  # current placements, shape (rows, servers)
    current_ps: Integers
    new_workers: Integers  # new placements, shape (rows, servers)
    new_ps: Integers
    is_placed: Flags  # whether each row has a current placement


@inlined
def fits(free: Integers, server: int, demand: Integers) -> bool:
    """Return whether a demand fits on a server."""
    all_fit = True
    for r in range(len(demand)):
        all_fit = all_fit and (demand[r] == 0 or free[server, r] >= demand[r])
    return all_fit


@inlined
def fits_on_any_server(free: Integers, places: PlacementTable, min_demand: Integers) -> bool:
    """Return whether a demand (`min_worker_demand`) fits on any server for workers."""
    fits_anywhere = False
    for s in range(len(free)):
        if places.hosts_workers[s] and fits(free, s, min_demand):
            fits_anywhere = True
            break
    return fits_anywhere


@inlined
def min_worker_demand(places: PlacementTable, rows: Integers) -> Integers:
    """Return the minimum demand of the jobs' workers, by resource."""
    minimum = np.full(places.worker.shape[1], np.iinfo(np.int64).max)
    for j in range(len(rows)):
        for r in range(len(minimum)):
            minimum[r] = min(minimum[r], places.worker[rows[j], r])
    return minimum


@inlined
def subtract_current(spare: Integers, places: PlacementTable, row: int, sign: int) -> None:
    """Subtract a job's current placement from the spare capacity; with ``sign`` -1, add it."""
    for s in range(len(spare)):
        workers, ps_count = sign * places.current_workers[row, s], sign * places.current_ps[row, s]
        if workers != 0 or ps_count != 0:
            for r in range(spare.shape[1]):
                spare[s, r] -= workers * places.worker[row, r] + ps_count * places.ps[row, r]


@inlined
def clear_new(places: PlacementTable, row: int) -> None:
    """Clear a job's new placement."""
    for s in range(places.new_workers.shape[1]):
        places.new_workers[row, s] = 0
        places.new_ps[row, s] = 0


@kernel
def compare_placement(places: PlacementTable, row: int) -> int:
    """Compare a job's new placement with its current one: `SAME`, `LESS`, `MORE` or `MOVED`."""
    has_less = False
    has_more = False
    for s in range(places.new_workers.shape[1]):
        new, current = places.new_workers[row, s], places.current_workers[row, s]
        has_less = has_less or new < current or places.new_ps[row, s] < places.current_ps[row, s]
        has_more = has_more or new > current or places.new_ps[row, s] > places.current_ps[row, s]
    return (LESS if has_less else 0) + (MORE if has_more else 0)


@inlined
def _allocate_process(
    free: Integers,
    spare: Integers,
    demand: Integers,
    hosts: Flags,
    current: Integers,
    allocated: Integers,
    cursors: Integers,
    kind: int,
) -> int:
    """Allocate one process of a job; return its server, or -1 if it fits nowhere.

    If the process takes the place of a current one, it uses no spare capacity. The result is then
    the server plus the number of servers.
    """
    servers = len(hosts)
    for s in range(servers):
        if allocated[s] < current[s] and hosts[s] and fits(free, s, demand):
            for r in range(len(demand)):
                free[s, r] -= demand[r]
            allocated[s] += 1
            return s + servers
    for attempt in range(2):  # first on capacity without a current user, then on any
        server = int(cursors[kind])
        for _ in range(servers):
            next_server = server + 1 if server + 1 < servers else 0
            # Spare capacity is negative after a job took capacity that another job uses.
            if (
                hosts[server]
                and fits(free, server, demand)
                and (attempt == 1 or fits(spare, server, demand))
            ):
                for r in range(len(demand)):
                    free[server, r] -= demand[r]
                    spare[server, r] -= demand[r]
                allocated[server] += 1
                cursors[kind] = next_server
                return server
            server = next_server
    return -1


@kernel
def grant(
    free: Integers,
    spare: Integers,
    places: PlacementTable,
    row: int,
    more_workers: int,
    more_ps: int,
    cursors: Integers,
) -> bool:
    """Allocate more workers and parameter servers to a job; all of them or none.

    Grants are subtracted from ``free`` and ``spare`` (servers, resources). The row's new placement
    grows, and the round-robin ``cursors`` (2,), for workers and for parameter servers, move.
    """
    servers = free.shape[0]
    worker, ps = places.worker[row], places.ps[row]
    current_workers, new_workers = places.current_workers[row], places.new_workers[row]
    current_ps, new_ps = places.current_ps[row], places.new_ps[row]
    log = np.empty(more_workers + more_ps, dtype=np.int64)
    kinds = np.empty(more_workers + more_ps, dtype=np.int64)
    for order in range(2):
        allocated_count = 0
        worker_cursor, ps_cursor = cursors[0], cursors[1]
        for index in range(more_workers + more_ps):
            # Workers first; if the parameter servers don't fit then, they come first.
            kind = (
                (0 if index < more_workers else 1) if order == 0 else (0 if index >= more_ps else 1)
            )
            if kind == 0:
                demand, hosts = worker, places.hosts_workers
                current, allocated = current_workers, new_workers
            else:
                demand, hosts = ps, places.hosts_ps
                current, allocated = current_ps, new_ps
            entry = _allocate_process(free, spare, demand, hosts, current, allocated, cursors, kind)
            if entry < 0:
                break
            log[allocated_count] = entry
            kinds[allocated_count] = kind
            allocated_count += 1
        if allocated_count == more_workers + more_ps:
            return True
        for index in range(allocated_count):
            s = log[index] % servers
            for r in range(len(worker)):
                amount = worker[r] if kinds[index] == 0 else ps[r]
                free[s, r] += amount
                if log[index] < servers:
                    spare[s, r] += amount
            if kinds[index] == 0:
                new_workers[s] -= 1
            else:
                new_ps[s] -= 1
        cursors[0] = worker_cursor
        cursors[1] = ps_cursor
        if more_ps == 0 or (order == 0 and allocated_count < more_workers):
            break  # the workers don't even fit alone
    return False


@kernel
def run_in_order(
    free: Integers,
    rows: Integers,
    places: PlacementTable,
    workers: Integers,
    ps_counts: Integers,
    cursors: Integers,
    change: Integers,
) -> None:
    """Run jobs in order, each with its fixed worker count, while they fit.

    A job may take the servers of later jobs, which are paused unless they fit elsewhere. ``rows``
    (jobs,) are in order of service. Placements are subtracted from ``free`` (servers, resources).
    ``workers`` and ``ps_counts`` are the fixed counts by row. ``change`` (jobs,) receives `SAME`,
    `LESS`, `MORE` or `MOVED`.
    """
    spare = free.copy()
    minimum = min_worker_demand(places, rows)
    for j in range(len(rows)):
        if places.is_placed[rows[j]]:
            subtract_current(spare, places, rows[j], 1)
    has_room = True  # whether any worker fits on any server
    for j in range(len(rows)):
        row = rows[j]
        change[j] = SAME
        if not has_room and not places.is_placed[row]:
            continue
        clear_new(places, row)
        if has_room and not grant(free, spare, places, row, workers[row], ps_counts[row], cursors):
            subtract_current(spare, places, row, -1)
            has_room = fits_on_any_server(free, places, minimum)
        change[j] = compare_placement(places, row)

"""Current and new placements of jobs, and allocation to one job after another.

A job gets its current servers first, then free capacity without a current user, round robin, then
any free capacity. This decides which jobs move, but never how many processes a job gets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Integers
from shadowprice.kernels.jit import inlined, kernel

SAME, LESS, MORE, MOVED = 0, 1, 2, 3
"""Comparison of a job's new placement with its current one, server by server."""


class Places(NamedTuple):
    """Open jobs as rows, with their placements."""

    worker: Integers  # demands, shape (rows, resources)
    ps: Integers  # zeros for all-reduce jobs
    hosts_workers: Flags  # whether each server may host workers now
    hosts_ps: Flags
    on_workers: Integers  # current placements, shape (rows, servers)
    on_ps: Integers
    new_workers: Integers  # new placements, shape (rows, servers)
    new_ps: Integers
    standing: Flags  # whether each row has a current placement


@inlined
def fits(room: Integers, server: int, demand: Integers) -> bool:
    """Return whether a demand fits on a server."""
    enough = True
    for r in range(len(demand)):
        enough = enough and (demand[r] == 0 or room[server, r] >= demand[r])
    return enough


@inlined
def room_left(free: Integers, places: Places, least: Integers) -> bool:
    """Return whether the minimum demand fits on any server for workers."""
    room = False
    for s in range(len(free)):
        if places.hosts_workers[s] and fits(free, s, least):
            room = True
            break
    return room


@inlined
def least_of(places: Places, rows: Integers) -> Integers:
    """Return the minimum demand of the jobs' workers, by resource."""
    least = np.full(places.worker.shape[1], np.iinfo(np.int64).max)
    for j in range(len(rows)):
        for r in range(len(least)):
            least[r] = min(least[r], places.worker[rows[j], r])
    return least


@inlined
def keep(spare: Integers, places: Places, row: int, sign: int) -> None:
    """Subtract a job's current placement from the spare capacity; with ``sign`` -1, add it."""
    for s in range(len(spare)):
        workers, servers = sign * places.on_workers[row, s], sign * places.on_ps[row, s]
        if workers != 0 or servers != 0:
            for r in range(spare.shape[1]):
                spare[s, r] -= workers * places.worker[row, r] + servers * places.ps[row, r]


@inlined
def empty(places: Places, row: int) -> None:
    """Clear a job's new placement."""
    for s in range(places.new_workers.shape[1]):
        places.new_workers[row, s] = 0
        places.new_ps[row, s] = 0


@kernel
def compare_placement(places: Places, row: int) -> int:
    """Compare a job's new placement with its current one."""
    less = False
    more = False
    for s in range(places.new_workers.shape[1]):
        now, then = places.new_workers[row, s], places.on_workers[row, s]
        less = less or now < then or places.new_ps[row, s] < places.on_ps[row, s]
        more = more or now > then or places.new_ps[row, s] > places.on_ps[row, s]
    return (LESS if less else 0) + (MORE if more else 0)


@inlined
def _take(
    free: Integers,
    spare: Integers,
    demand: Integers,
    hosts: Flags,
    kept: Integers,
    given: Integers,
    cursors: Integers,
    kind: int,
) -> int:
    """Allocate one process; return its server or -1. Adds the server count for a current server."""
    servers = len(hosts)
    for s in range(servers):
        if given[s] < kept[s] and hosts[s] and fits(free, s, demand):
            for r in range(len(demand)):
                free[s, r] -= demand[r]
            given[s] += 1
            return s + servers
    for anyone in range(2):
        at = int(cursors[kind])
        for _ in range(servers):
            after = at + 1 if at + 1 < servers else 0
            # Check both, because spare capacity is negative after a job took that of another.
            if hosts[at] and fits(free, at, demand) and (anyone == 1 or fits(spare, at, demand)):
                for r in range(len(demand)):
                    free[at, r] -= demand[r]
                    spare[at, r] -= demand[r]
                given[at] += 1
                cursors[kind] = after
                return at
            at = after
    return -1


@kernel
def grant(
    free: Integers,
    spare: Integers,
    places: Places,
    row: int,
    more_workers: int,
    more_ps: int,
    cursors: Integers,
) -> bool:
    """Allocate more workers and parameter servers to a job; all of them or none.

    Grants are subtracted from ``free`` (servers, resources), and from ``spare``, the free capacity
    without a current user. The row's new placement grows. ``cursors`` (2,) are the round-robin
    cursors of workers and of parameter servers; they move.
    """
    servers = free.shape[0]
    worker, ps = places.worker[row], places.ps[row]
    kept_workers, given_workers = places.on_workers[row], places.new_workers[row]
    kept_ps, given_ps = places.on_ps[row], places.new_ps[row]
    log = np.empty(more_workers + more_ps, dtype=np.int64)
    kinds = np.empty(more_workers + more_ps, dtype=np.int64)
    for order in range(2):
        taken = 0
        before_w, before_p = cursors[0], cursors[1]
        for at in range(more_workers + more_ps):
            # Workers first; if the parameter servers don't fit then, they come first.
            kind = (0 if at < more_workers else 1) if order == 0 else (0 if at >= more_ps else 1)
            if kind == 0:
                demand, hosts = worker, places.hosts_workers
                kept, given = kept_workers, given_workers
            else:
                demand, hosts = ps, places.hosts_ps
                kept, given = kept_ps, given_ps
            got = _take(free, spare, demand, hosts, kept, given, cursors, kind)
            if got < 0:
                break
            log[taken] = got
            kinds[taken] = kind
            taken += 1
        if taken == more_workers + more_ps:
            return True
        for at in range(taken):
            s = log[at] % servers
            for r in range(len(worker)):
                amount = worker[r] if kinds[at] == 0 else ps[r]
                free[s, r] += amount
                if log[at] < servers:
                    spare[s, r] += amount
            if kinds[at] == 0:
                given_workers[s] -= 1
            else:
                given_ps[s] -= 1
        cursors[0] = before_w
        cursors[1] = before_p
        if more_ps == 0 or (order == 0 and taken < more_workers):
            break  # the workers don't even fit alone
    return False

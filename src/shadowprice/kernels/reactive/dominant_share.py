"""Max-min fairness in dominant shares by progressive filling, with placement.

Ghodsi et al., "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types" (NSDI 2011),
Algorithm 1: the job with the smallest dominant share is granted its next workers, until nothing
more fits. Grants are whole workers with the parameter servers that they need.

A job is granted first the places that it had before, then free places that nobody had, round robin,
then any free place: that decides who moves, never who is granted what number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

SAME, LESS, MORE, MOVED = 0, 1, 2, 3
"""How a job's new places compare with those it had, server by server."""


@kernel
def fits(room: Integers, server: int, demand: Integers) -> bool:
    """Return whether a server has room for one more."""
    enough = True
    for r in range(len(demand)):
        enough = enough and (demand[r] == 0 or room[server, r] >= demand[r])
    return enough


@kernel
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
    """Take one place; return its server, plus the number of servers where the job had it; or -1."""
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
            # What is spare may have been taken by force (negative): both must hold.
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
    worker: Integers,
    ps: Integers,
    more_workers: int,
    more_ps: int,
    hosts_workers: Flags,
    hosts_ps: Flags,
    kept_workers: Integers,
    kept_ps: Integers,
    given_workers: Integers,
    given_ps: Integers,
    cursors: Integers,
) -> bool:
    """Grant one job so many more workers and parameter servers; all of them or none."""
    servers = free.shape[0]
    log = np.empty(more_workers + more_ps, dtype=np.int64)
    kinds = np.empty(more_workers + more_ps, dtype=np.int64)
    for order in range(2):
        taken = 0
        before_w, before_p = cursors[0], cursors[1]
        for at in range(more_workers + more_ps):
            # Workers first; where that leaves the servers none to stand on, parameter servers.
            kind = (0 if at < more_workers else 1) if order == 0 else (0 if at >= more_ps else 1)
            if kind == 0:
                got = _take(
                    free, spare, worker, hosts_workers, kept_workers, given_workers, cursors, 0
                )
            else:
                got = _take(free, spare, ps, hosts_ps, kept_ps, given_ps, cursors, 1)
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
            break  # no room for the workers alone
    return False


@kernel
def _sift(heap: Integers, size: int, share: Floats) -> None:
    """Move the root of the heap down to where it belongs: smallest share, then earliest."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        a = heap[child]
        if child + 1 < size:
            b = heap[child + 1]
            if share[b] < share[a] or (share[b] == share[a] and b < a):
                child += 1
                a = b
        top = heap[at]
        if share[top] < share[a] or (share[top] == share[a] and top < a):
            return
        heap[at] = a
        heap[child] = top
        at = child


@kernel
def fill(
    free: Integers,
    total: Floats,
    rows: Integers,
    worker: Integers,
    ps: Integers,
    first: Integers,
    choices: Integers,
    counts: Integers,
    ps_counts: Integers,
    hosts_workers: Flags,
    hosts_ps: Flags,
    kept_workers: Integers,
    kept_ps: Integers,
    new_workers: Integers,
    new_ps: Integers,
    standing: Flags,
    alike: Integers,
    cursors: Integers,
    change: Integers,
) -> Floats:
    """Fill progressively; see the module.

    Parameters
    ----------
    free : ndarray of int64, shape (servers, resources)
        Capacity; what is granted is taken off.
    total : ndarray of float64, shape (resources,)
        Capacity of the cluster in each resource; 0 leaves a resource out of every share.
    rows : ndarray of int64, shape (jobs,)
        Rows of the jobs in order of arrival, which breaks ties.
    worker, ps : ndarray of int64, shape (table rows, resources)
        Demands.
    first, choices : ndarray of int64, shape (table rows,)
        Where a row's numbers of workers begin, and how many there are.
    counts, ps_counts : ndarray of int64, shape (entries,)
        Ascending numbers of workers, and the parameter servers they need.
    hosts_workers, hosts_ps : ndarray of bool, shape (servers,)
        What each server may carry now.
    kept_workers, kept_ps : ndarray of int64, shape (table rows, servers)
        Where jobs stand.
    new_workers, new_ps : ndarray of int64, shape (table rows, servers)
        Filled for the rows given.
    standing : ndarray of bool, shape (table rows,)
        Which jobs stand anywhere.
    alike : ndarray of int64, shape (table rows,)
        A number, from 0, that jobs of equal demands and numbers of workers share: where one found
        no room to begin, the others need not be tried.
    cursors : ndarray of int64, shape (2,)
        Round-robin cursors, moved.
    change : ndarray of int64, shape (jobs,)
        Filled with `SAME`, `LESS`, `MORE` or `MOVED`.

    Returns
    -------
    ndarray of float64, shape (jobs,)
        Dominant shares granted.
    """
    jobs = len(rows)
    servers, resources = free.shape
    share = np.zeros(jobs)
    step = np.zeros(jobs, dtype=np.int64)
    heap = np.arange(jobs)
    least = np.full(resources, np.iinfo(np.int64).max)
    spare = free.copy()
    for j in range(jobs):
        row = rows[j]
        for r in range(resources):
            least[r] = min(least[r], worker[row, r])
        if standing[row]:
            for s in range(servers):
                new_workers[row, s] = 0
                new_ps[row, s] = 0
                if kept_workers[row, s] > 0 or kept_ps[row, s] > 0:
                    for r in range(resources):
                        spare[s, r] -= kept_workers[row, s] * worker[row, r]
                        spare[s, r] -= kept_ps[row, s] * ps[row, r]
    kinds = 0
    for j in range(jobs):
        kinds = max(kinds, alike[rows[j]] + 1)
    hopeless = np.zeros(kinds, dtype=np.bool_)
    touched = np.zeros(jobs, dtype=np.bool_)
    size = jobs
    while size > 0:
        j = heap[0]
        row = rows[j]
        granted = False
        if step[j] < choices[row] and not (step[j] == 0 and hopeless[alike[row]]):
            if not touched[j]:
                touched[j] = True
                if not standing[row]:
                    for s in range(servers):
                        new_workers[row, s] = 0
                        new_ps[row, s] = 0
            at = first[row] + step[j]
            workers, servers_needed = counts[at], ps_counts[at]
            had_workers = counts[at - 1] if step[j] > 0 else 0
            had_ps = ps_counts[at - 1] if step[j] > 0 else 0
            granted = grant(
                free,
                spare,
                worker[row],
                ps[row],
                workers - had_workers,
                max(0, servers_needed - had_ps),
                hosts_workers,
                hosts_ps,
                kept_workers[row],
                kept_ps[row],
                new_workers[row],
                new_ps[row],
                cursors,
            )
            if granted:
                step[j] += 1
                for r in range(resources):
                    if total[r] > 0:
                        used = workers * worker[row, r] + servers_needed * ps[row, r]
                        share[j] = max(share[j], used / total[r])
        if granted:
            _sift(heap, size, share)
            continue
        # The job has all it can use, or nothing more fits: what it had beyond that is spare.
        if standing[row]:
            for s in range(servers):
                over_workers = max(0, kept_workers[row, s] - new_workers[row, s])
                over_ps = max(0, kept_ps[row, s] - new_ps[row, s])
                if over_workers > 0 or over_ps > 0:
                    for r in range(resources):
                        spare[s, r] += over_workers * worker[row, r] + over_ps * ps[row, r]
        known = step[j] == 0 and hopeless[alike[row]]
        if step[j] == 0:
            hopeless[alike[row]] = True
        size -= 1
        heap[0] = heap[size]
        _sift(heap, size, share)
        room = known
        for s in range(0 if known else servers):
            if hosts_workers[s] and fits(free, s, least):
                room = True
                break
        if not room:
            break
    for j in range(jobs):
        row = rows[j]
        change[j] = SAME
        if not touched[j] and not standing[row]:
            continue
        less = False
        more = False
        for s in range(servers):
            now, then = new_workers[row, s], kept_workers[row, s]
            less = less or now < then or new_ps[row, s] < kept_ps[row, s]
            more = more or now > then or new_ps[row, s] > kept_ps[row, s]
        change[j] = (LESS if less else 0) + (MORE if more else 0)
    return share

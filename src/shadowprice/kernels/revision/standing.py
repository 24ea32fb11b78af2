"""Placement on single servers of the levels that were packed by groups.

Jobs use few of all servers. So placements are lists of entries, and servers with equal free
capacity are handled as one group: no step visits every server for every job.
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.revision.chains import (
    Chains,
    Stood,
    entry,
    listed,
    put_on,
    put_whole,
    take_back,
)
from shadowprice.kernels.revision.crowds import Crowds, change, gather
from shadowprice.kernels.revision.jobs import Jobs, demand_of_whole
from shadowprice.kernels.revision.plans import Log
from shadowprice.kernels.revision.timeline import SERVERS, WORKERS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@kernel
def stand(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    log: Log,
    kept: Stood,
    fixed: Stood,
    least: Ints,
    stay: bool,
) -> tuple[bool, Stood]:
    """Place the levels that were packed by groups on servers.

    Parameters
    ----------
    free : int64[servers, resources]
        Capacity of each server; placements are subtracted.
    hosts_workers, hosts_ps : bool[servers]
        Whether each may host workers, and parameter servers.
    log : Log
        Levels to place, in order.
    kept : Stood
        Current placements.
    fixed : Stood
        Pinned placements; the log has the levels beyond them.
    least : int64[rows]
        Pinned level of each row, -1 for jobs that may move; empty if all may.
    stay : bool
        Whether jobs first keep their current servers. If not, everything is packed in the order of
        the log by the rules of the timeline, and fits as it did there. A level that doesn't fit,
        because the timeline ran out of groups, is dropped.

    Returns
    -------
    (bool, Stood)
        Whether everything fits, and the placements. Without ``stay`` they are valid in any case.
    """
    entries = log.used[0]
    rows = len(kept.first)
    chains = _no_chains(jobs, log, kept, len(free), len(fixed.server))
    complete = True
    for row in range(len(least)):
        if least[row] >= 0:
            _fix(free, jobs, row, fixed, chains)
    if stay:
        seen = np.zeros(rows, np.bool_)
        for at in range(entries):
            row = log.row[at]
            if not seen[row]:
                seen[row] = True
                if log.level[row] >= jobs.spread[row]:
                    _stay_whole(
                        free, hosts_workers, hosts_ps, jobs, row, log.level[row], kept, chains
                    )
                else:
                    _stay(free, jobs, row, log.level[row], kept, chains)
        crowds = gather(free, hosts_workers, hosts_ps)
        for row in range(rows):
            if not seen[row]:
                continue
            if log.level[row] >= jobs.spread[row]:
                if chains.head[row] < 0 and not put_whole(
                    free, crowds, jobs, row, log.level[row], chains
                ):
                    complete = False
                    break
                continue
            lack, lack_ps = jobs.workers[row, log.level[row]], jobs.servers[row, log.level[row]]
            at = chains.head[row]
            while at >= 0:
                lack -= chains.workers[at]
                lack_ps -= chains.ps[at]
                at = chains.after[at]
            complete = (
                complete
                and put_on(free, crowds, WORKERS, jobs.worker[row], lack, row, chains)
                and put_on(free, crowds, SERVERS, jobs.ps[row], lack_ps, row, chains)
            )
            if not complete:
                break
        return complete, listed(chains)
    crowds = gather(free, hosts_workers, hosts_ps)
    for at in range(entries):
        row = log.row[at]
        if log.level[row] < 0:
            continue
        if log.level[row] >= jobs.spread[row]:
            found = put_whole(free, crowds, jobs, row, log.level[row], chains)
        else:
            found = put_on(
                free, crowds, WORKERS, jobs.worker[row], log.workers[at], row, chains
            ) and put_on(free, crowds, SERVERS, jobs.ps[row], log.servers[at], row, chains)
        if not found:
            complete = False
            if len(least) > 0 and least[row] >= 0:
                _cut_back(free, crowds, jobs, row, fixed, chains)
                log.level[row] = least[row]
                continue
            take_back(free, crowds, jobs.worker[row], jobs.ps[row], row, chains)
            log.level[row] = -1
    return complete, listed(chains)


@kernel
def compared(rows: Ints, then: Stood, now: Stood) -> Ints:
    """Compare new placements with the current ones.

    Returns
    -------
    int64[rows]
        As in `kernels.reactive.places`: 0 equal, 1 less somewhere, 2 more somewhere, 3 both.
    """
    result = np.zeros(len(rows), np.int64)
    for n in range(len(rows)):
        row = rows[n]
        a, b = then.first[row], now.first[row]
        a_end, b_end = a + then.number[row], b + now.number[row]
        less = False
        more = False
        while a < a_end or b < b_end:
            if b == b_end or (a < a_end and then.server[a] < now.server[b]):
                less = True
                a += 1
            elif a == a_end or now.server[b] < then.server[a]:
                more = True
                b += 1
            else:
                workers, ps = now.workers[b] - then.workers[a], now.ps[b] - then.ps[a]
                less = less or workers < 0 or ps < 0
                more = more or workers > 0 or ps > 0
                a += 1
                b += 1
        result[n] = (1 if less else 0) + (2 if more else 0)
    return result


@inlined
def _no_chains(jobs: Jobs, log: Log, kept: Stood, servers: int, fixed: int) -> Chains:
    """Return empty lists with room for all possible entries."""
    # Placing one number of a demand uses each server at most once.
    rows = len(kept.first)
    most = fixed
    for at in range(log.used[0]):
        most += min(log.workers[at], servers) + min(log.servers[at], servers)
    for row in range(rows):
        level = log.level[row]
        if level >= 0:
            most += min(jobs.workers[row, level], servers) + min(jobs.servers[row, level], servers)
        most += kept.number[row]
    return Chains(
        np.full(rows, -1),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.zeros(1, np.int64),
    )


@inlined
def _fix(free: Ints, jobs: Jobs, row: int, fixed: Stood, chains: Chains) -> None:
    """Add a job's pinned placement."""
    for n in range(fixed.first[row], fixed.first[row] + fixed.number[row]):
        server = fixed.server[n]
        at = entry(chains, row, server)
        chains.workers[at] = fixed.workers[n]
        chains.ps[at] = fixed.ps[n]
        for r in range(free.shape[1]):
            free[server, r] -= fixed.workers[n] * jobs.worker[row, r]
            free[server, r] -= fixed.ps[n] * jobs.ps[row, r]


@inlined
def _cut_back(
    free: Ints, crowds: Crowds, jobs: Jobs, row: int, fixed: Stood, chains: Chains
) -> None:
    """Release what a job was given beyond its pinned placement."""
    at = chains.head[row]
    while at >= 0:
        workers, ps = chains.workers[at], chains.ps[at]
        for n in range(fixed.first[row], fixed.first[row] + fixed.number[row]):
            if fixed.server[n] == chains.server[at]:
                workers -= fixed.workers[n]
                ps -= fixed.ps[n]
        change(free, crowds, chains.server[at], jobs.worker[row], workers)
        change(free, crowds, chains.server[at], jobs.ps[row], ps)
        chains.workers[at] -= workers
        chains.ps[at] -= ps
        at = chains.after[at]


@inlined
def _stay(free: Ints, jobs: Jobs, row: int, level: int, kept: Stood, chains: Chains) -> None:
    """Keep a level's processes where they are, releasing the smallest groups first.

    Capacity that other jobs took meanwhile, such as bags of tasks, is released before that.
    """
    begin, end = kept.first[row], kept.first[row] + kept.number[row]
    workers, ps = kept.workers[begin:end].copy(), kept.ps[begin:end].copy()
    at = chains.head[row]
    while at >= 0:  # pinned processes are placed already
        for n in range(end - begin):
            if kept.server[begin + n] == chains.server[at]:
                workers[n] = max(0, workers[n] - chains.workers[at])
                ps[n] = max(0, ps[n] - chains.ps[at])
        at = chains.after[at]
    for n in range(end - begin):
        room = free[kept.server[begin + n]]
        for r in range(free.shape[1]):
            one, other = jobs.worker[row, r], jobs.ps[row, r]
            if one > 0 and workers[n] * one > room[r]:
                workers[n] = max(0, room[r]) // one
            if other > 0 and workers[n] * one + ps[n] * other > room[r]:
                ps[n] = max(0, room[r] - workers[n] * one) // other
    lack, lack_ps = jobs.workers[row, level], jobs.servers[row, level]
    at = chains.head[row]
    while at >= 0:
        lack -= chains.workers[at]
        lack_ps -= chains.ps[at]
        at = chains.after[at]
    workers = _cut(workers, lack)
    ps = _cut(ps, lack_ps)
    for n in range(end - begin):
        if workers[n] == 0 and ps[n] == 0:
            continue
        server = kept.server[begin + n]
        at = entry(chains, row, server)
        chains.workers[at] += workers[n]
        chains.ps[at] += ps[n]
        for r in range(free.shape[1]):
            free[server, r] -= workers[n] * jobs.worker[row, r] + ps[n] * jobs.ps[row, r]


@inlined
def _stay_whole(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    row: int,
    level: int,
    kept: Stood,
    chains: Chains,
) -> None:
    """Place a co-located level on the server that has most of the job, if it fits there."""
    demand = demand_of_whole(jobs, row, level)
    best = -1
    for n in range(kept.first[row], kept.first[row] + kept.number[row]):
        server = kept.server[n]
        fits = hosts_workers[server] and (jobs.servers[row, level] == 0 or hosts_ps[server])
        for r in range(len(demand)):
            fits = fits and demand[r] <= free[server, r]
        if fits and (best < 0 or kept.workers[n] > kept.workers[best]):
            best = n
    if best >= 0:
        server = kept.server[best]
        at = entry(chains, row, server)
        chains.workers[at] = jobs.workers[row, level]
        chains.ps[at] = jobs.servers[row, level]
        for r in range(len(demand)):
            free[server, r] -= demand[r]


@kernel
def _cut(left: Ints, wanted: int) -> Ints:
    """Reduce numbers to a sum, the smallest first; return them."""
    total = left.sum()
    while total > wanted:
        smallest = -1
        for n in range(len(left)):
            if left[n] > 0 and (smallest < 0 or left[n] < left[smallest]):
                smallest = n
        gone = min(left[smallest], total - wanted)
        left[smallest] -= gone
        total -= gone
    return left

"""The slow twin of `kernels.replanning.placement`: it examines every server for every job."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.replanning.timeline import PS_ROLE, UNLIMITED_COUNT, WORKER_ROLE

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Jobs = Log = Any


def stand(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    log: Log,
    kept_workers: Ints,
    kept_ps: Ints,
    new_workers: Ints,
    new_ps: Ints,
    stay: bool,
) -> bool:
    """Place a packed slot on servers: what each row keeps, or gets, over all servers."""
    entries = log.used[0]
    carries = hosts_workers * WORKER_ROLE + hosts_ps * PS_ROLE
    if stay:
        return _stay(free, carries, jobs, log, kept_workers, kept_ps, new_workers, new_ps)
    complete = True
    for index in range(entries):
        row = log.row[index]
        if log.level[row] < 0:
            continue
        if log.level[row] >= jobs.spread_levels[row]:
            if not _put_whole(free, carries, jobs, row, log.level[row], new_workers, new_ps):
                complete = False
                log.level[row] = -1
            continue
        fits = put_on(
            free, carries, WORKER_ROLE, jobs.worker[row], log.workers[index], new_workers[row]
        )
        if not fits or not put_on(free, carries, PS_ROLE, jobs.ps[row], log.ps[index], new_ps[row]):
            complete = False
            _take_back(free, jobs.worker[row], new_workers[row])
            _take_back(free, jobs.ps[row], new_ps[row])
            log.level[row] = -1
    return complete


def _stay(
    free: Ints,
    carries: Ints,
    jobs: Jobs,
    log: Log,
    kept_workers: Ints,
    kept_ps: Ints,
    new_workers: Ints,
    new_ps: Ints,
) -> bool:
    """Let every job keep its servers, then give it what is missing."""
    entries, servers = log.used[0], len(free)
    seen = np.zeros(len(log.level), np.bool_)
    for index in range(entries):
        row = log.row[index]
        if seen[row]:
            continue
        seen[row] = True
        if log.level[row] >= jobs.spread_levels[row]:
            role = _role_of_whole(jobs, row, log.level[row])
            hosts = carries & role == role
            demand, count, count_ps = _whole(jobs, row, log.level[row])
            options = [
                (-int(kept_workers[row, s]), s)
                for s in np.flatnonzero(hosts & (free >= demand).all(axis=1)).tolist()
                if kept_workers[row, s] + kept_ps[row, s] > 0
            ]
            if options:
                s = min(options)[1]
                free[s] -= demand
                new_workers[row, s], new_ps[row, s] = count, count_ps
            continue
        left, left_ps = kept_workers[row].copy(), kept_ps[row].copy()
        for s in range(servers):
            left[s], left_ps[s] = _still_there(free[s], jobs, row, left[s], left_ps[s])
        level = log.level[row]
        _keep(free, left, jobs.worker[row], jobs.worker_counts[row, level], new_workers[row])
        _keep(free, left_ps, jobs.ps[row], jobs.ps_counts[row, level], new_ps[row])
    for row in range(len(seen)):
        if not seen[row]:
            continue
        if log.level[row] >= jobs.spread_levels[row]:
            if not new_workers[row].any() and not _put_whole(
                free, carries, jobs, row, log.level[row], new_workers, new_ps
            ):
                return False
            continue
        lack = jobs.worker_counts[row, log.level[row]]
        lack_ps = jobs.ps_counts[row, log.level[row]]
        for s in range(servers):
            lack -= new_workers[row, s]
            lack_ps -= new_ps[row, s]
        if lack > 0 and not put_on(
            free, carries, WORKER_ROLE, jobs.worker[row], lack, new_workers[row]
        ):
            return False
        if lack_ps > 0 and not put_on(free, carries, PS_ROLE, jobs.ps[row], lack_ps, new_ps[row]):
            return False
    return True


def _still_there(room: Ints, jobs: Jobs, row: int, workers: int, ps: int) -> tuple[int, int]:
    """Return how many rows fit where they run: whole jobs may have grown there."""
    for has, one, other in zip(
        room.tolist(), jobs.worker[row].tolist(), jobs.ps[row].tolist(), strict=True
    ):
        if one:
            workers = min(workers, has // one)
        if other:
            ps = min(ps, (has - workers * one) // other)
    return workers, ps


def _whole(jobs: Jobs, row: int, level: int) -> tuple[Ints, int, int]:
    """Return what all of a level uses, its workers and its parameter servers."""
    count, count_ps = int(jobs.worker_counts[row, level]), int(jobs.ps_counts[row, level])
    return count * jobs.worker[row] + count_ps * jobs.ps[row], count, count_ps


def _role_of_whole(jobs: Jobs, row: int, level: int) -> int:
    return WORKER_ROLE | PS_ROLE if jobs.ps_counts[row, level] else WORKER_ROLE


def _put_whole(
    free: Ints, carries: Ints, jobs: Jobs, row: int, level: int, new_workers: Ints, new_ps: Ints
) -> bool:
    """Place all of a level on the one server that it fills best."""
    demand, count, count_ps = _whole(jobs, row, level)
    new = np.zeros(len(free), np.int64)
    if not put_on(free, carries, _role_of_whole(jobs, row, level), demand, 1, new):
        return False
    new_workers[row] += new * count
    new_ps[row] += new * count_ps
    return True


def _take_back(free: Ints, demand: Ints, new: Ints) -> None:
    """Release everything that a job got."""
    for s in range(len(new)):
        if new[s] > 0:
            for r in range(len(demand)):
                free[s, r] += new[s] * demand[r]
            new[s] = 0


def _keep(free: Ints, kept: Ints, demand: Ints, wanted: int, new: Ints) -> None:
    """Keep up to ``wanted`` where they run; release the smallest groups first."""
    total = 0
    for s in range(len(kept)):
        new[s] = kept[s]
        total += kept[s]
    while total > wanted:
        smallest = -1
        for s in range(len(kept)):
            if new[s] > 0 and (smallest < 0 or new[s] < new[smallest]):
                smallest = s
        gone = min(new[smallest], total - wanted)
        new[smallest] -= gone
        total -= gone
    for s in range(len(kept)):
        if new[s] > 0:
            for r in range(len(demand)):
                free[s, r] -= new[s] * demand[r]


def put_on(free: Ints, carries: Ints, role: int, demand: Ints, number: int, new: Ints) -> bool:
    """Place a number of a demand on servers that carry a role, by the rule of `timeline.pack`."""
    rest = number
    requested = demand > 0
    hosts = carries & role == role
    while rest > 0:
        options = []
        for server in np.flatnonzero(hosts).tolist():
            room = (
                int((free[server, requested] // demand[requested]).min())
                if requested.any()
                else UNLIMITED_COUNT
            )
            if room:
                options.append((room, free[server].tolist(), int(carries[server]), server))
        if not options:
            return False
        enough = [option for option in options if option[0] >= rest]
        room, *_, best = min(enough or [(-room, *others) for room, *others in options])
        each = min(abs(room), rest)
        new[best] += each
        free[best] -= each * demand
        rest -= each
    return True

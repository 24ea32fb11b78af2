"""The highest level of a job that fits into each interval, in either placement mode."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.revision.jobs import WHOLE, Jobs, role_of_whole
from shadowprice.kernels.revision.timeline import (
    SERVERS,
    WORKERS,
    Timeline,
    copy_state,
    entitled,
    put,
    put_servers_first,
    total_fit,
)

Ints = NDArray[np.int64]

LOWEST = constant(0)


class Asked(NamedTuple):
    """Demand of one job by level; functions that visit every interval get this, not all `Jobs`.

    Attributes
    ----------
    worker, ps : int64[resources]
        Demands.
    workers, servers : int64[levels]
        Workers and parameter servers of each level.
    tenant : int
        Owner, as a row of `Timeline.share`.
    """

    worker: Ints
    ps: Ints
    workers: Ints
    servers: Ints
    tenant: int


@inlined
def _asked(jobs: Jobs, row: int) -> Asked:
    """Return the demand of a job by level."""
    return Asked(
        jobs.worker[row], jobs.ps[row], jobs.workers[row], jobs.servers[row], jobs.tenant[row]
    )


@inlined
def _room_for(line: Timeline, state: int, asked: Asked, last: int, shared: bool) -> int:
    """Return the highest level of a spread job that fits into a state, or -1.

    Parameters
    ----------
    last : int
        Highest level of the job.
    shared : bool
        Whether some servers host both workers and parameter servers, so that only a trial packing
        can tell.
    """
    top = _level_of_tenant(line, state, asked, LOWEST, last)
    if top < 0:
        return -1
    most = total_fit(line, state, WORKERS, asked.worker, asked.workers[top])
    level = _at_most(asked.workers, top + 1, most)
    if level < 0 or asked.servers[top] == 0:
        return level
    if not shared:
        most = total_fit(line, state, SERVERS, asked.ps, asked.servers[level])
        while level >= 0 and asked.servers[level] > most:
            level -= 1
        return level
    scratch = len(line.state) - 1
    low, high = -1, level
    probe = level  # the highest level fits most often
    while low < high:
        workers, servers = asked.workers[probe], asked.servers[probe]
        copy_state(line, state, scratch)
        if (
            put(line, scratch, WORKERS, asked.worker, workers)
            and put(line, scratch, SERVERS, asked.ps, servers)
        ) or put_servers_first(line, scratch, state, asked.worker, workers, asked.ps, servers):
            low = probe
        else:
            high = probe - 1
        probe = (low + high + 1) // 2
    return low


@kernel
def room_for_whole(line: Timeline, state: int, jobs: Jobs, row: int) -> int:
    """Return the highest level of a job that fits on one server of a state, or -1."""
    first = jobs.spread[row]
    top = _level_of_tenant(line, state, _asked(jobs, row), first, jobs.levels[row] - 1)
    role = role_of_whole(jobs, row)
    worker, ps = jobs.worker[row], jobs.ps[row]
    level = first - 1
    for g in range(line.groups[state]):
        if line.role[state, g] & role != role:
            continue
        fits = True
        while fits and level < top:
            workers, servers = jobs.workers[row, level + 1], jobs.servers[row, level + 1]
            for r in range(len(worker)):
                if line.free[state, g, r] < workers * worker[r] + servers * ps[r]:
                    fits = False
                    break
            if fits:
                level += 1
    return level if level >= first else -1


@kernel
def _level_of_tenant(line: Timeline, state: int, asked: Asked, first: int, top: int) -> int:
    """Return the highest level of ``[first, top]`` within the tenant's headroom, or first - 1."""
    level = top
    if len(line.share) == 0:
        return int(level)
    for r in range(len(asked.worker)):
        worker, ps = asked.worker[r], asked.ps[r]
        if worker == 0 and ps == 0:
            continue
        most = entitled(line, state, asked.tenant, r)
        while level >= first and asked.workers[level] * worker > most - asked.servers[level] * ps:
            level -= 1
    return int(level)


@inlined
def _at_most(numbers: Ints, count: int, most: int) -> int:
    """Return the position of the last of ascending numbers that is at most ``most``."""
    low, high = -1, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        if numbers[middle] <= most:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def rooms(
    line: Timeline, jobs: Jobs, row: int, way: int, end: int, shared: bool, room: Ints
) -> int:
    """Write the level that fits into each interval that starts before ``end``; count them."""
    intervals = line.used[0]
    k = 0
    # Two loops, because LLVM unrolls and inlines small bodies only.
    if way == WHOLE:
        while k < intervals and line.start[k] < end:
            room[k] = room_for_whole(line, line.state[k], jobs, row)
            k += 1
        return k
    asked, last = _asked(jobs, row), jobs.spread[row] - 1
    while k < intervals and line.start[k] < end:
        room[k] = _room_for(line, line.state[k], asked, last, shared)
        k += 1
    return k

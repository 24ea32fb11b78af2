"""The highest level of a job that the servers of an interval have room for, in either way."""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.revision.jobs import WHOLE, Jobs, role_of_whole
from shadowprice.kernels.revision.timeline import (
    SERVERS,
    WORKERS,
    Timeline,
    copy_state,
    entitled,
    put,
    total_fit,
)

Ints = NDArray[np.int64]


@kernel
def room_for(line: Timeline, state: int, jobs: Jobs, row: int, shared: bool) -> int:
    """Return the highest level of a job spread over servers that a state has room for, or -1.

    Parameters
    ----------
    shared : bool
        Whether some servers carry both workers and parameter servers; the packing is then tried.
    """
    top = _level_of_tenant(line, state, jobs, row, 0, jobs.spread[row] - 1)
    if top < 0:
        return -1
    worker = jobs.worker[row]
    most = total_fit(line, state, WORKERS, worker, jobs.workers[row, top])
    level = _at_most(jobs.workers[row], top + 1, most)
    if level < 0 or jobs.servers[row, top] == 0:
        return level
    ps = jobs.ps[row]
    if not shared:
        most = total_fit(line, state, SERVERS, ps, jobs.servers[row, level])
        while level >= 0 and jobs.servers[row, level] > most:
            level -= 1
        return level
    scratch = len(line.state) - 1
    low, high = -1, level
    probe = level  # most often everything fits
    while low < high:
        copy_state(line, state, scratch)
        if put(line, scratch, WORKERS, worker, jobs.workers[row, probe]) and put(
            line, scratch, SERVERS, ps, jobs.servers[row, probe]
        ):
            low = probe
        else:
            high = probe - 1
        probe = (low + high + 1) // 2
    return low


@kernel
def room_for_whole(line: Timeline, state: int, jobs: Jobs, row: int) -> int:
    """Return the highest level of a job that one server of a state has room for, -1 for none."""
    first = jobs.spread[row]
    top = _level_of_tenant(line, state, jobs, row, first, jobs.levels[row] - 1)
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
def _level_of_tenant(line: Timeline, state: int, jobs: Jobs, row: int, first: int, top: int) -> int:
    """Return the highest level between two that a job's tenant may hold, or one less."""
    level = top
    if len(line.share) == 0:
        return int(level)
    tenant = jobs.tenant[row]
    for r in range(jobs.worker.shape[1]):
        worker, ps = jobs.worker[row, r], jobs.ps[row, r]
        if worker == 0 and ps == 0:
            continue
        most = entitled(line, state, tenant, r)
        while (
            level >= first
            and jobs.workers[row, level] * worker > most - jobs.servers[row, level] * ps
        ):
            level -= 1
    return int(level)


@kernel
def _at_most(numbers: Ints, count: int, most: int) -> int:
    """Return the position of the last of ascending numbers that is no more than ``most``."""
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
    """Write the level there is room for in each interval that begins before ``end``; count them."""
    intervals = line.used[0]
    k = 0
    # Two loops: what is called for every interval has to be small enough to be taken in.
    if way == WHOLE:
        while k < intervals and line.start[k] < end:
            room[k] = room_for_whole(line, line.state[k], jobs, row)
            k += 1
        return k
    while k < intervals and line.start[k] < end:
        room[k] = room_for(line, line.state[k], jobs, row, shared)
        k += 1
    return k

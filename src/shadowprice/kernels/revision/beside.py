"""The timeline of capacity beside pinned plans, which is known server by server."""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.revision.timeline import FOR_EVER, Timeline, copy_state

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@kernel
def begin_beside(
    line: Timeline,
    starts: Ints,
    free: Ints,
    role: Ints,
    up: Flags,
    first: Ints,
    server: Ints,
    change: Ints,
    held: Ints,
) -> bool:
    """Initialise a timeline of intervals in which servers have different free capacity.

    Parameters
    ----------
    line : Timeline
        Written.
    starts : int64[intervals]
        First slot of each interval, ascending.
    free : int64[servers, resources]
        Free capacity in the first interval; in the last one on return.
    role : int64[servers]
        Role of each server.
    up : bool[servers]
        Whether each is up.
    first : int64[intervals + 1]
        First change before each interval.
    server : int64[changes]
        Server whose free capacity changes.
    change : int64[changes, resources]
        Amount of the change.
    held : int64[intervals, tenants, resources]
        Usage of the pinned plans.

    Returns
    -------
    bool
        False if the timeline is too narrow for all different groups.
    """
    line.groups[0] = 0
    for s in range(len(free)):
        if up[s] and not _add(line, 0, role[s], free[s]):
            return False
    for k in range(len(starts)):
        if k > 0:
            copy_state(line, k - 1, k)
            for at in range(first[k], first[k + 1]):
                s = server[at]
                if not up[s]:
                    continue
                _remove(line, k, role[s], free[s])
                for r in range(free.shape[1]):
                    free[s, r] += change[at, r]
                if not _add(line, k, role[s], free[s]):
                    return False
        line.start[k] = starts[k]
        line.state[k] = k
        for t in range(held.shape[1]):
            for r in range(held.shape[2]):
                line.held[k, t, r] = held[k, t, r]
    line.used[:] = len(starts)
    line.start[len(starts)] = FOR_EVER
    return True


@kernel
def _group(line: Timeline, state: int, role: int, free: Ints) -> int:
    """Return the group of servers with a role and free capacity, -1 for none."""
    for g in range(line.groups[state]):
        equal = line.role[state, g] == role
        for r in range(len(free)):
            equal = equal and line.free[state, g, r] == max(0, free[r])
        if equal:
            return g
    return -1


@kernel
def _add(line: Timeline, state: int, role: int, free: Ints) -> bool:
    """Add a server to a state; return False if all groups are in use."""
    g = _group(line, state, role, free)
    if g < 0:
        g = line.groups[state]
        if g == line.servers.shape[1]:
            return False
        line.groups[state] = g + 1
        line.servers[state, g] = 0
        line.role[state, g] = role
        for r in range(len(free)):
            line.free[state, g, r] = max(0, free[r])
    line.servers[state, g] += 1
    return True


@inlined
def _remove(line: Timeline, state: int, role: int, free: Ints) -> None:
    """Remove a server from a state."""
    g = _group(line, state, role, free)
    line.servers[state, g] -= 1
    if line.servers[state, g] == 0:
        last = line.groups[state] - 1
        line.servers[state, g] = line.servers[state, last]
        line.role[state, g] = line.role[state, last]
        for r in range(len(free)):
            line.free[state, g, r] = line.free[state, last, r]
        line.groups[state] = last

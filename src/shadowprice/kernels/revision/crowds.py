"""Groups of servers with equal free capacity, which split as jobs are placed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.revision.timeline import FOR_EVER, SERVERS, WORKERS

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Crowds(NamedTuple):
    """Servers grouped by free capacity.

    Attributes
    ----------
    free : int64[most, resources]
        Free capacity of each server of a group.
    role : int64[most]
        Role of its servers, as in `Timeline`.
    size : int64[most]
        Number of its servers; an empty group is reused.
    member : int64[servers]
        Servers of the initial groups, ascending in each.
    first, end : int64[most]
        Range of ``member`` on which nothing was placed yet.
    head, after : int64[most], int64[servers]
        Linked list of the group's other servers, unordered; -1 ends it.
    of : int64[servers]
        Group of each server, -1 for one without a role.
    used : int64[1]
        Number of groups.
    """

    free: Ints
    role: Ints
    size: Ints
    member: Ints
    first: Ints
    end: Ints
    head: Ints
    after: Ints
    of: Ints
    used: Ints


@kernel
def best_crowd(crowds: Crowds, role: int, demand: Ints, rest: int) -> tuple[int, int]:
    """Return the best-fitting group for the rest of a demand, -1 for none, and the fit of a server.

    The group that the rest fills best; if the rest fits on no single server, the freest.
    """
    best = -1
    best_fit = 0
    for g in range(crowds.used[0]):
        if crowds.size[g] == 0 or crowds.role[g] & role != role:
            continue
        room = FOR_EVER
        for r in range(len(demand)):
            if demand[r] > 0:
                if crowds.free[g, r] < demand[r]:
                    room = 0
                    break
                room = min(room, crowds.free[g, r] // demand[r])
        if room == 0:
            continue
        if best < 0:
            better = True
        elif room == best_fit:
            better = _before(crowds, g, best)
        elif room >= rest:
            better = best_fit < rest or room < best_fit
        else:
            better = best_fit < rest and room > best_fit
        if better:
            best = g
            best_fit = room
    return best, best_fit


@inlined
def _before(crowds: Crowds, g: int, other: int) -> bool:
    """Return whether a group precedes another with the same fit, as in `timeline`."""
    for r in range(crowds.free.shape[1]):
        if crowds.free[g, r] != crowds.free[other, r]:
            return bool(crowds.free[g, r] < crowds.free[other, r])
    return bool(crowds.role[g] < crowds.role[other])


@kernel
def lowest_of(crowds: Crowds, g: int) -> int:
    """Return the lowest server of a group."""
    lowest = len(crowds.of)
    if crowds.first[g] < crowds.end[g]:
        lowest = crowds.member[crowds.first[g]]
    s = crowds.head[g]
    while s >= 0:
        lowest = min(lowest, s)
        s = crowds.after[s]
    return lowest


@kernel
def change(free: Ints, crowds: Crowds, server: int, demand: Ints, number: int) -> None:
    """Add a number of demands to a server's free capacity, and move it to the matching group."""
    if number == 0:
        return
    g = crowds.of[server]
    role = crowds.role[g]
    if crowds.first[g] < crowds.end[g] and crowds.member[crowds.first[g]] == server:
        crowds.first[g] += 1  # nothing was put on it yet
    elif crowds.head[g] == server:
        crowds.head[g] = crowds.after[server]
    else:
        s = crowds.head[g]
        while crowds.after[s] != server:
            s = crowds.after[s]
        crowds.after[s] = crowds.after[server]
    crowds.size[g] -= 1
    for r in range(len(demand)):
        free[server, r] += number * demand[r]
    g = _crowd_of(crowds, free[server], role)
    crowds.of[server] = g
    crowds.size[g] += 1
    crowds.after[server] = crowds.head[g]
    crowds.head[g] = server


@inlined
def _crowd_of(crowds: Crowds, room: Ints, role: int) -> int:
    """Return the group of a role and free capacity, and add one if there is none."""
    vacant = -1
    for g in range(crowds.used[0]):
        if crowds.size[g] == 0:
            vacant = g if vacant < 0 else vacant
        elif crowds.role[g] == role and _equal(crowds.free[g], room):
            return g
    if vacant < 0:
        vacant = crowds.used[0]
        crowds.used[0] = vacant + 1
    for r in range(len(room)):
        crowds.free[vacant, r] = room[r]
    crowds.role[vacant] = role
    crowds.first[vacant] = 0
    crowds.end[vacant] = 0
    crowds.head[vacant] = -1
    return vacant


@inlined
def _equal(one: Ints, other: Ints) -> bool:
    same = True
    for r in range(len(one)):
        same = same and one[r] == other[r]
    return same


@kernel
def gather(free: Ints, hosts_workers: Flags, hosts_ps: Flags) -> Crowds:
    """Group servers by free capacity."""
    servers, resources = free.shape
    most = servers + 1
    crowds = Crowds(
        np.zeros((most, resources), np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(servers, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.full(most, -1),
        np.full(servers, -1),
        np.full(servers, -1),
        np.zeros(1, np.int64),
    )
    slots = 2 * servers + 1
    table = np.full(slots, -1)  # hash table of groups with open addressing
    for s in range(servers):
        role = (WORKERS if hosts_workers[s] else 0) + (SERVERS if hosts_ps[s] else 0)
        if role == 0:
            continue
        key = role
        for r in range(resources):
            key = (31 * key + free[s, r] % 1_000_003) % slots
        g = table[key]
        while g >= 0 and not (crowds.role[g] == role and _equal(crowds.free[g], free[s])):
            key = key + 1 if key + 1 < slots else 0
            g = table[key]
        if g < 0:
            g = crowds.used[0]
            crowds.used[0] = g + 1
            table[key] = g
            for r in range(free.shape[1]):
                crowds.free[g, r] = free[s, r]
            crowds.role[g] = role
        crowds.of[s] = g
        crowds.size[g] += 1
    begin = 0
    for g in range(crowds.used[0]):
        crowds.first[g] = begin
        crowds.end[g] = begin
        begin += crowds.size[g]
    for s in range(servers):
        g = crowds.of[s]
        if g >= 0:
            crowds.member[crowds.end[g]] = s
            crowds.end[g] += 1
    return crowds

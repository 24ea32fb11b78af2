"""Backfilling: start jobs now that don't delay the reservations of jobs before them.

Lifka, "The ANL/IBM SP Scheduling System" (JSSPP 1995), for EASY, in which the first job that waits
has a reservation; Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime
Estimates in Scheduling the IBM SP2 with Backfilling" (IEEE TPDS 2001), for EASY and conservative,
in which every job that waits has one. Here a reservation is a placement on servers, over several
resources, instead of a number of processors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.reactive.round_robin import place

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Ending(NamedTuple):
    """Capacity that running jobs release, in order of time, as arrays of shape (entries,)."""

    slots: Integers  # slot before which it is released
    servers: Integers
    amounts: Integers  # shape (entries, resources)


class Queued(NamedTuple):
    """Jobs in order of priority as arrays of shape (jobs,), and the roles of servers."""

    worker: Integers  # demands, shape (jobs, resources)
    ps: Integers
    workers: Integers  # fixed number of workers
    servers: Integers  # fixed number of parameter servers
    lengths: Integers  # expected durations in slots
    hosts_workers: Flags  # whether each server may host workers now
    hosts_ps: Flags


@kernel
def carries(room: Integers, queued: Queued, j: int) -> bool:
    """Return whether the workers fit, and the parameter servers fit, each alone.

    Necessary for placing both together, and much cheaper.
    """
    servers, resources = room.shape
    for kind in range(2):
        wanted = queued.workers[j] if kind == 0 else queued.servers[j]
        hosts = queued.hosts_workers if kind == 0 else queued.hosts_ps
        demand = queued.worker[j] if kind == 0 else queued.ps[j]
        for s in range(servers):
            if wanted <= 0:
                break
            if not hosts[s]:
                continue
            most = wanted
            for r in range(resources):
                if demand[r] > 0:
                    most = min(most, max(room[s, r], 0) // demand[r])
            wanted -= most
        if wanted > 0:
            return False
    return True


@kernel
def fitting_now(free: Integers, queued: Queued) -> int:
    """Return one more than the last job that could start on the free capacity, 0 if none could."""
    for j in range(len(queued.workers) - 1, -1, -1):
        if carries(free, queued, j):
            return j + 1
    return 0


@inlined
def insert(
    count: int, slots: Integers, servers: Integers, amounts: Integers, slot: int, server: int
) -> int:
    """Shift the changes to insert one in order of slots; return its position."""
    at = count
    while at > 0 and slots[at - 1] > slot:
        slots[at] = slots[at - 1]
        servers[at] = servers[at - 1]
        amounts[at] = amounts[at - 1]
        at -= 1
    slots[at] = slot
    servers[at] = server
    return at


@inlined
def lay(room: Integers, other: Integers, cap: bool) -> None:
    """Copy free capacity, or (``cap``) reduce it to at most another's."""
    for s in range(room.shape[0]):
        for r in range(room.shape[1]):
            if not cap or other[s, r] < room[s, r]:
                room[s, r] = other[s, r]


@inlined
def take(room: Integers, out: Integers, filled: int, queued: Queued, j: int) -> None:
    """Subtract the demand of a job in its placement."""
    for at in range(filled):
        for r in range(room.shape[1]):
            room[out[0, at], r] -= out[1, at] * queued.worker[j, r] + out[2, at] * queued.ps[j, r]


@kernel
def backfill(
    now: int,
    free: Integers,
    ending: Ending,
    queued: Queued,
    cursors: Integers,
    reservations: int,
    starts: Integers,
) -> Integers:
    """Start the jobs that fit now for their duration, in order; reserve for others.

    Free capacity grows over time, except when a reservation starts. So the capacity that is free
    throughout a job's run is the minimum of that at its start and at the starts of reservations
    during the run. No table of slots is needed.

    The capacity of started jobs is subtracted from ``free`` (servers, resources), and they move the
    round-robin ``cursors`` (2,). ``reservations`` is the maximum number of waiting jobs with a
    reservation: 1 for EASY, all for conservative. ``starts`` (jobs,) receives start slots, now or
    reserved, and -1 for neither; only as many jobs as it has entries are considered.

    The result (places, 4) has the placement of the jobs that start now, in their order: job,
    server, workers, parameter servers.
    """
    jobs = len(starts)
    servers, resources = free.shape
    places = 0
    for j in range(jobs):
        places += min(servers, queued.workers[j] + queued.servers[j])
    # Later changes: released capacity, and the starts and ends of reservations.
    count = len(ending.slots)
    slots = np.empty(count + 2 * places, dtype=np.int64)
    where = np.empty(count + 2 * places, dtype=np.int64)
    amounts = np.empty((count + 2 * places, resources), dtype=np.int64)
    for k in range(count):
        slots[k] = ending.slots[k]
        where[k] = ending.servers[k]
    lay(amounts[:count], ending.amounts, False)
    # Start of each reservation, and the free capacity then.
    held = 0
    begins = np.empty(min(jobs, reservations), dtype=np.int64)
    at_begin = np.empty((len(begins), servers, resources), dtype=np.int64)
    placed = np.empty((places, 4), dtype=np.int64)
    places = 0
    room = np.empty((servers, resources), dtype=np.int64)
    then = np.empty((servers, resources), dtype=np.int64)
    out = np.empty((3, servers), dtype=np.int64)
    trial = np.empty(2, dtype=np.int64)
    for j in range(jobs):
        starts[j] = -1
        lay(then, free, False)
        first = now
        change = 0
        while True:
            end = first + queued.lengths[j]
            filled = 0
            if carries(then, queued, j):
                lay(room, then, False)
                for i in range(held):
                    if first < begins[i] < end:
                        lay(room, at_begin[i], True)
                trial[0] = cursors[0]
                trial[1] = cursors[1]
                filled = place(
                    room,
                    queued.worker[j],
                    queued.ps[j],
                    queued.workers[j],
                    queued.servers[j],
                    queued.hosts_workers,
                    queued.hosts_ps,
                    trial,
                    out,
                )
            if filled > 0:
                break
            if held >= reservations or change == count:
                break
            first = slots[change]
            while change < count and slots[change] == first:
                for r in range(resources):
                    then[where[change], r] += amounts[change, r]
                change += 1
        if filled == 0:
            continue
        starts[j] = first
        for i in range(held):
            if first <= begins[i] < end:
                take(at_begin[i], out, filled, queued, j)
        if first == now:
            cursors[0] = trial[0]
            cursors[1] = trial[1]
            take(free, out, filled, queued, j)
            for at in range(filled):
                placed[places, 0] = j
                for column in range(3):
                    placed[places, 1 + column] = out[column, at]
                places += 1
        else:
            begins[held] = first
            take(then, out, filled, queued, j)
            lay(at_begin[held], then, False)
            held += 1
        if held >= reservations:
            continue  # later slots don't matter any more
        for at in range(filled):
            for back in range(first == now, 2):
                new = insert(count, slots, where, amounts, end if back else first, out[0, at])
                count += 1
                for r in range(resources):
                    given = out[1, at] * queued.worker[j, r] + out[2, at] * queued.ps[j, r]
                    amounts[new, r] = given if back else -given
    return placed[:places]

"""Backfilling: who may start now without delaying what is reserved for those before.

Lifka, "The ANL/IBM SP Scheduling System" (JSSPP 1995), for EASY, where the first job that must
wait holds a reservation; Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User
Runtime Estimates in Scheduling the IBM SP2 with Backfilling" (IEEE TPDS 2001), for both EASY and
conservative, where every job that waits holds one. Here a reservation is of places on servers,
over several resources, not of a number of processors.
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
    """What running jobs give back, in order of time.

    Attributes
    ----------
    slots : int64[entries]
        Before which slot.
    servers : int64[entries]
        Where.
    amounts : int64[entries, resources]
        What.
    """

    slots: Integers
    servers: Integers
    amounts: Integers


class Queued(NamedTuple):
    """Jobs in order of priority, and what servers may carry.

    Attributes
    ----------
    worker, ps : int64[jobs, resources]
        Demands.
    workers, servers : int64[jobs]
        Fixed numbers of workers, and the parameter servers they need.
    lengths : int64[jobs]
        Slots that each is expected to run.
    hosts_workers, hosts_ps : bool[servers]
        What each server may carry now.
    """

    worker: Integers
    ps: Integers
    workers: Integers
    servers: Integers
    lengths: Integers
    hosts_workers: Flags
    hosts_ps: Flags


@kernel
def carries(room: Integers, queued: Queued, j: int) -> bool:
    """Return whether servers have room for the workers, and for the parameter servers, each alone.

    It never says no where the two fit together, and is much cheaper than placing them.
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
    """Return one more than the last job that could stand on what is free now, 0 if none could."""
    for j in range(len(queued.workers) - 1, -1, -1):
        if carries(free, queued, j):
            return j + 1
    return 0


@inlined
def insert(
    count: int, slots: Integers, servers: Integers, amounts: Integers, slot: int, server: int
) -> int:
    """Make room for one more change of a slot and a server in order of slots; return its place."""
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
    """Set what is free to something else, or only what is more than that."""
    for s in range(room.shape[0]):
        for r in range(room.shape[1]):
            if not cap or other[s, r] < room[s, r]:
                room[s, r] = other[s, r]


@inlined
def take(room: Integers, out: Integers, filled: int, queued: Queued, j: int) -> None:
    """Take off what a job holds in the places found for it."""
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
    """Take jobs in order; start those that fit now for as long as they run, reserve for others.

    What is free grows from slot to slot, but where a reservation begins. So what a job finds free
    throughout its run is the least of what is free where it starts, and of what is free where those
    reservations begin that begin before it ends: no table of slots is needed.

    Parameters
    ----------
    now : int
        The slot.
    free : ndarray of int64, shape (servers, resources)
        What is free now. What those take that start is taken off.
    ending : Ending
        What running jobs give back.
    queued : Queued
        The jobs; the first ones, as many as ``starts`` holds, are looked at.
    cursors : ndarray of int64, shape (2,)
        Where round robin goes on; moved by the jobs that start.
    reservations : int
        How many of the jobs that must wait hold a reservation: 1 for EASY, all for conservative.
    starts : ndarray of int64, shape (jobs,)
        Filled with the slot of the start, now or reserved; -1 where neither.

    Returns
    -------
    ndarray of int64, shape (places, 4)
        Places of the jobs that start now, in their order: job, server, workers, parameter servers.
    """
    jobs = len(starts)
    servers, resources = free.shape
    places = 0
    for j in range(jobs):
        places += min(servers, queued.workers[j] + queued.servers[j])
    # What changes later: what ends, and where reservations begin and end.
    count = len(ending.slots)
    slots = np.empty(count + 2 * places, dtype=np.int64)
    where = np.empty(count + 2 * places, dtype=np.int64)
    amounts = np.empty((count + 2 * places, resources), dtype=np.int64)
    for k in range(count):
        slots[k] = ending.slots[k]
        where[k] = ending.servers[k]
    lay(amounts[:count], ending.amounts, False)
    # Where each reservation begins, and what is free then.
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
            continue  # nobody looks at later slots any more
        for at in range(filled):
            for back in range(first == now, 2):
                new = insert(count, slots, where, amounts, end if back else first, out[0, at])
                count += 1
                for r in range(resources):
                    given = out[1, at] * queued.worker[j, r] + out[2, at] * queued.ps[j, r]
                    amounts[new, r] = given if back else -given
    return placed[:places]

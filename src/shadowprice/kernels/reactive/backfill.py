"""Backfilling: start jobs now that don't delay the reservations of jobs before them.

EASY backfilling reserves for the first job that waits, conservative backfilling for every job that
waits. Sources: Lifka, "The ANL/IBM SP Scheduling System" (JSSPP 1995), for EASY; Mu'alem and
Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM
SP2 with Backfilling" (IEEE TPDS 2001), for both. Here a reservation is a placement on servers, over
several resources, instead of a number of processors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Integers
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.reactive.round_robin import place


class ReleasedCapacity(NamedTuple):
    """Capacity that running jobs release, in order of time, as arrays of shape (entries,)."""

    slots: Integers  # slot before which it is released
    servers: Integers
    amounts: Integers  # shape (entries, resources)


class QueueArrays(NamedTuple):
    """Queued jobs in order of priority as arrays of shape (jobs,), and the roles of servers."""

    worker: Integers  # demands, shape (jobs, resources)
    ps: Integers
    workers: Integers  # fixed number of workers
    ps_counts: Integers  # fixed number of parameter servers
    lengths: Integers  # expected durations in slots
    hosts_workers: Flags  # whether each server may host workers now
    hosts_ps: Flags


@kernel
def fits_separately(free: Integers, queued: QueueArrays, j: int) -> bool:
    """Return whether the workers fit alone, and the parameter servers alone: a necessary test."""
    servers, resources = free.shape
    for kind in range(2):
        remaining = queued.workers[j] if kind == 0 else queued.ps_counts[j]
        hosts = queued.hosts_workers if kind == 0 else queued.hosts_ps
        demand = queued.worker[j] if kind == 0 else queued.ps[j]
        for s in range(servers):
            if remaining <= 0:
                break
            if not hosts[s]:
                continue
            fit_count = remaining
            for r in range(resources):
                if demand[r] > 0:
                    fit_count = min(fit_count, max(free[s, r], 0) // demand[r])
            remaining -= fit_count
        if remaining > 0:
            return False
    return True


@kernel
def last_startable(free: Integers, queued: QueueArrays) -> int:
    """Return the last position of a job that may fit now, plus 1; 0 if no job fits."""
    for j in range(len(queued.workers) - 1, -1, -1):
        if fits_separately(free, queued, j):
            return j + 1
    return 0


@inlined
def insert_change(
    count: int, slots: Integers, servers: Integers, amounts: Integers, slot: int, server: int
) -> int:
    """Insert a change of capacity in order of slots, and return its position.

    The caller sets its amounts.
    """
    position = count
    while position > 0 and slots[position - 1] > slot:
        slots[position] = slots[position - 1]
        servers[position] = servers[position - 1]
        amounts[position] = amounts[position - 1]
        position -= 1
    slots[position] = slot
    servers[position] = server
    return position


@inlined
def copy_capacity(target: Integers, source: Integers) -> None:
    """Copy ``source`` to ``target``; both have two dimensions."""
    for s in range(target.shape[0]):
        for r in range(target.shape[1]):
            target[s, r] = source[s, r]


@inlined
def subtract_placement(
    free: Integers, placement: Integers, size: int, queued: QueueArrays, j: int
) -> None:
    """Subtract a placement of job ``j``, of ``size`` entries, from the free capacity."""
    for index in range(size):
        for r in range(free.shape[1]):
            free[placement[0, index], r] -= (
                placement[1, index] * queued.worker[j, r] + placement[2, index] * queued.ps[j, r]
            )


@kernel
def reduce_to_minimum(
    lowest: Integers,
    later: Integers,
    slots: Integers,
    servers: Integers,
    amounts: Integers,
    change: int,
    count: int,
    end: int,
) -> None:
    """Reduce free capacity to its minimum over the changes from ``change`` on, before ``end``.

    On entry, both ``lowest``, the result, and ``later``, scratch space, have the free capacity
    before these changes.
    """
    while change < count and slots[change] < end:
        following = change
        # Add all changes of a slot first, because a job may start where another ends.
        while following < count and slots[following] == slots[change]:
            for r in range(amounts.shape[1]):
                later[servers[following], r] += amounts[following, r]
            following += 1
        for k in range(change, following):
            s = servers[k]
            for r in range(amounts.shape[1]):
                lowest[s, r] = min(lowest[s, r], later[s, r])
        change = following


@kernel
def backfill(
    now: int,
    free: Integers,
    ending: ReleasedCapacity,
    queued: QueueArrays,
    cursors: Integers,
    reservations: int,
    starts: Integers,
) -> Integers:
    """Start the jobs that fit now for their duration, in order; reserve for others.

    Free capacity changes only when a running job or a reservation ends, or a reservation starts. So
    the capacity that is free throughout a job's run is the minimum over these changes, and no table
    of slots is needed. After the start of the last reservation, free capacity only grows.

    The capacity of started jobs is subtracted from ``free`` (servers, resources), and they move the
    round-robin ``cursors`` (2,). ``reservations`` is the maximum number of waiting jobs with a
    reservation. ``starts`` (jobs,) receives start slots, now or reserved, and -1 for neither; only
    its first jobs of the queue, one per entry, are considered. The result (entries, 4) has the
    placements of the jobs that start now, in their order: job, server, workers, parameter servers.
    """
    jobs = len(starts)
    servers, resources = free.shape
    placed_count = 0
    for j in range(jobs):
        # A placement has at most one entry for a server, and at least one process in each.
        placed_count += min(servers, queued.workers[j] + queued.ps_counts[j])
    # Later changes: released capacity, and the starts and ends of reservations.
    count = len(ending.slots)
    slots = np.empty(count + 2 * placed_count, dtype=np.int64)
    change_servers = np.empty(count + 2 * placed_count, dtype=np.int64)
    amounts = np.empty((count + 2 * placed_count, resources), dtype=np.int64)
    for k in range(count):
        slots[k] = ending.slots[k]
        change_servers[k] = ending.servers[k]
    copy_capacity(amounts[:count], ending.amounts)
    reserved = 0
    last_start = now  # of a reservation
    placed = np.empty((placed_count, 4), dtype=np.int64)
    placed_count = 0
    trial_free = np.empty((servers, resources), dtype=np.int64)
    free_then = np.empty((servers, resources), dtype=np.int64)
    later_free = np.empty((servers, resources), dtype=np.int64)
    placement = np.empty((3, servers), dtype=np.int64)
    trial_cursors = np.empty(2, dtype=np.int64)
    for j in range(jobs):
        starts[j] = -1
        copy_capacity(free_then, free)
        first = now
        change = 0
        while True:
            end = first + queued.lengths[j]
            placement_size = 0
            if fits_separately(free_then, queued, j):
                copy_capacity(trial_free, free_then)
                if last_start > first:
                    copy_capacity(later_free, free_then)
                    reduce_to_minimum(
                        trial_free, later_free, slots, change_servers, amounts, change, count,
                        min(end, last_start + 1),
                    )  # fmt: skip
                trial_cursors[0] = cursors[0]
                trial_cursors[1] = cursors[1]
                placement_size = place(
                    trial_free, queued.worker[j], queued.ps[j], queued.workers[j],
                    queued.ps_counts[j], queued.hosts_workers, queued.hosts_ps, trial_cursors,
                    placement,
                )  # fmt: skip
            if placement_size > 0:
                break
            if reserved >= reservations or change == count:
                break
            first = slots[change]
            while change < count and slots[change] == first:
                for r in range(resources):
                    free_then[change_servers[change], r] += amounts[change, r]
                change += 1
        if placement_size == 0:
            continue
        starts[j] = first
        if first == now:
            cursors[0] = trial_cursors[0]
            cursors[1] = trial_cursors[1]
            subtract_placement(free, placement, placement_size, queued, j)
            for index in range(placement_size):
                placed[placed_count, 0] = j
                for column in range(3):
                    placed[placed_count, 1 + column] = placement[column, index]
                placed_count += 1
        else:
            last_start = max(last_start, first)
            reserved += 1
        for index in range(placement_size):
            # The capacity of a job that starts now is subtracted already: only its release counts.
            for is_release in range(1 if first == now else 0, 2):
                slot = end if is_release else first
                if reserved >= reservations and slot > last_start:
                    continue  # no later job is placed or limited then
                position = insert_change(
                    count, slots, change_servers, amounts, slot, placement[0, index]
                )
                count += 1
                for r in range(resources):
                    amount = (
                        placement[1, index] * queued.worker[j, r]
                        + placement[2, index] * queued.ps[j, r]
                    )
                    amounts[position, r] = amount if is_release else -amount
    return placed[:placed_count]

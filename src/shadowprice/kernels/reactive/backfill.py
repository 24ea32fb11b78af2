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

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.reactive.round_robin import place

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


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


@kernel
def backfill(
    times: Integers,
    free: Integers,
    spans: int,
    queued: Queued,
    cursors: Integers,
    reservations: int,
    starts: Integers,
    new_workers: Integers,
    new_ps: Integers,
) -> int:
    """Take jobs in order; start those that fit now for as long as they run, reserve for others.

    Parameters
    ----------
    times : ndarray of int64, shape (size,)
        Ascending slots at which what is free changes, the first of them now; ``spans`` are used,
        and there must be room for as many more as there are jobs.
    free : ndarray of int64, shape (size, servers, resources)
        What is free from each of ``times`` to the next, the last for ever. What jobs take and
        reserve is taken off.
    spans : int
        How many of ``times`` are in use.
    queued : Queued
        The jobs; the first ones, as many as ``starts`` holds.
    cursors : ndarray of int64, shape (2,)
        Where round robin goes on; moved by the jobs that start.
    reservations : int
        How many of the jobs that must wait hold a reservation: 1 for EASY, all for conservative.
    starts : ndarray of int64, shape (jobs,)
        Filled with the slot of the start, now or reserved; -1 where neither.
    new_workers, new_ps : ndarray of int64, shape (jobs, servers)
        Zeros; filled with the places of jobs that start now.

    Returns
    -------
    int
        Spans in use afterwards.
    """
    jobs = len(starts)
    servers, resources = free.shape[1], free.shape[2]
    room = np.empty((servers, resources), dtype=np.int64)
    out = np.empty((3, servers), dtype=np.int64)
    trial = np.empty(2, dtype=np.int64)
    held = 0
    for j in range(jobs):
        starts[j] = -1
        for first in range(spans):
            if first > 0 and held >= reservations:
                break
            end = times[first] + queued.lengths[j]
            # What is free from the first span to the end of the job.
            last = first
            for s in range(servers):
                for r in range(resources):
                    room[s, r] = free[first, s, r]
            while last + 1 < spans and times[last + 1] < end:
                last += 1
                for s in range(servers):
                    for r in range(resources):
                        room[s, r] = min(room[s, r], free[last, s, r])
            if not carries(room, queued, j):
                continue
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
            if filled == 0:
                continue
            if last + 1 == spans or times[last + 1] > end:
                # The job ends within a span: cut it in two.
                for k in range(spans, last + 1, -1):
                    times[k] = times[k - 1]
                    free[k] = free[k - 1]
                times[last + 1] = end
                free[last + 1] = free[last]
                spans += 1
            for k in range(first, last + 1):
                for at in range(filled):
                    s = out[0, at]
                    for r in range(resources):
                        free[k, s, r] -= (
                            out[1, at] * queued.worker[j, r] + out[2, at] * queued.ps[j, r]
                        )
            starts[j] = times[first]
            if first == 0:
                cursors[0] = trial[0]
                cursors[1] = trial[1]
                for at in range(filled):
                    new_workers[j, out[0, at]] = out[1, at]
                    new_ps[j, out[0, at]] = out[2, at]
            else:
                held += 1
            break
    return spans

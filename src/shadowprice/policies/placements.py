"""Helpers for placements: how much fits on servers, demands, and plans with one placement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.core.schedule import Placement, Schedule

_MAX_COUNT = 2**31 - 1  # small enough that the counts of all servers can be summed


def fit_counts(free: Integers, demand: Integers, hosts: Flags | None = None) -> Integers:
    """Return how often a demand fits on each server; 0 on servers outside ``hosts``."""
    needed = demand > 0
    counts = (free[:, needed] // demand[needed]).min(axis=1, initial=_MAX_COUNT)
    return np.maximum(counts, 0) if hosts is None else np.where(hosts, np.maximum(counts, 0), 0)


def dense_placement(workers: Integers, ps: Integers) -> Placement:
    """Return the placement with these counts, which have an element for every server."""
    used = np.flatnonzero(workers + ps)
    return Placement(*(tuple(column.tolist()) for column in (used, workers[used], ps[used])))


def distribute(room: Integers, order: Integers, count: int) -> Integers | None:
    """Fill servers in order with ``count`` processes; return the number on each server.

    ``room`` is the number that fits on each. None if fewer than ``count`` fit.
    """
    offered = np.minimum(room[order], count)
    before = np.cumsum(offered) - offered
    taken = np.clip(count - before, 0, offered)
    if int(taken.sum()) < count:
        return None
    result = np.zeros(len(room), dtype=np.int64)
    result[order] = taken
    return result


def demand_by_server(
    job: Job, workers: Sequence[int] | Integers, ps: Sequence[int] | Integers
) -> Integers:
    """Return the demand on each server, shape (servers, resources), from its process counts."""
    demand = np.outer(workers, job.worker)
    return demand if job.ps is None else demand + np.outer(ps, job.ps)


def slots_needed(job: Job, workers: int, remaining: int, *, colocated: bool, restarts: bool) -> int:
    """Return the slots that the remaining work takes; with ``restarts``, slot 1 has a restart."""
    gain = job.gain(workers, colocated=colocated)
    first = job.gain(workers, colocated=colocated, moved=restarts)
    return 1 + max(0, -(-(remaining - first) // gain))


def constant_schedule(placement: Placement, start: int, end: int) -> Schedule:
    """Return the schedule that keeps one placement in slots ``[start, end)``."""
    entries = list(zip(placement.servers, placement.workers, placement.ps, strict=True))
    return Schedule.of((slot, *entry) for slot in range(start, end) for entry in entries)


def restarts(view: View, state: JobState) -> bool:
    """Return whether replanning a job costs it a restart; copies of a bag's tasks never restart."""
    job = state.job
    counts_restart = view.cluster.restart_first or state.started is not None  # else a free start
    return counts_restart and bool(job.restart) and job.bag is None

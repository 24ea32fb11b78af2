"""The resource that keeps a job from running, and the kind of server that lacks it.

Policies refuse and queue jobs for reasons of their own. The resource that such a job lacks follows
from the cluster and the placements in force, so it is the same for every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import format_amount
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.engine.engine import Engine
from shadowprice.service.state.prices import ServerClasses, build_server_classes

Amounts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScarceResource:
    """The scarcest resource for a job."""

    resource: str
    servers: str  # kind of server that comes closest to running the job
    process: str  # ``worker`` or ``parameter server``
    processes: int  # number of these processes at the job's size
    amount: str  # of the resource, for one process
    largest: str  # amount that a server of the kind has; empty if no server has the resource
    fit_count: int  # processes that fit on the empty servers of all kinds

    def record(self) -> dict[str, str]:
        """Return the resource and the kind of server, as keys of a reason."""
        return {"resource": self.resource, "servers": self.servers}

    @property
    def place(self) -> str:
        """The resource and the kind of server as text."""
        return f"{self.resource} of {self.servers} servers"

    @property
    def limit_text(self) -> str:
        """How the empty cluster limits the job's size."""
        noun = self.process if self.fit_count == 1 else f"{self.process}s"
        return f"{self.place} limits it to {self.fit_count} {noun}"

    @property
    def never_text(self) -> str:
        """Why the empty cluster can't run the job."""
        noun = self.process if self.processes == 1 else f"{self.process}s"
        if not self.largest:
            return f"a {self.process} needs {self.amount} {self.resource}, and no server has any"
        if not self.fit_count:
            return (
                f"a {self.process} needs {self.amount} {self.resource}, and the largest "
                f"{self.servers} server has {self.largest}"
            )
        return (
            f"needs {self.processes} {noun} with {self.amount} {self.resource} each, and the empty "
            f"cluster has room for {self.fit_count}: {self.place} is too little"
        )


def find_scarcest(
    engine: Engine, job: Job, *, empty: bool = False, maximum: bool = False
) -> ScarceResource | None:
    """Return the scarcest resource for a job at its minimum size; None if it needs nothing.

    Kinds of servers that can host a process of the job when empty precede other kinds. With
    ``empty``, return what the empty cluster lacks; None if it has room for all processes. With
    ``maximum``, the job has its maximum size.
    """
    size = -1 if maximum else 0
    cluster = engine.cluster
    classes, free = _server_state(engine)
    if empty:
        free = cluster.capacity
    candidates: list[tuple[tuple[float, ...], ScarceResource]] = []
    for process, demand, count, hosts in _requirements(cluster, job, size):
        columns = np.flatnonzero(demand > 0)
        kinds = [(name, rows) for name, rows in classes.items() if hosts[rows[0]]]
        if not len(columns) or not kinds:
            continue
        units = demand[columns]
        fit_count = sum(
            int((cluster.capacity[rows][:, columns] // units).min(axis=1).sum())
            for _, rows in kinds
        )
        if empty and fit_count >= count:
            continue
        best: tuple[tuple[float, ...], ScarceResource] | None = None  # closest kind, with its rank
        for name, rows in kinds:
            capacity = cluster.capacity[rows[0], columns]
            can_host = int((capacity // units).min()) > 0
            remaining = free[rows][:, columns]
            # If no server can host a process, its capacity matters and not what is free.
            fits = (remaining // units).sum(axis=0) / count if can_host else capacity // units
            shares = (remaining.max(axis=0) if can_host else capacity) / units
            ranks = [*zip(fits.tolist(), shares.tolist(), strict=True)]
            scarcest = min(range(len(columns)), key=ranks.__getitem__)
            rank = (can_host, *ranks[scarcest])
            if best is not None and rank <= best[0]:
                continue
            column = int(columns[scarcest])
            dimension = cluster.dimensions[column]
            amount = format_amount(int(units[scarcest]), dimension)
            largest = format_amount(int(capacity[scarcest]), dimension)
            if not cluster.capacity[:, column].any():
                largest = ""
            resource = cluster.resources[column]
            best = rank, ScarceResource(resource, name, process, count, amount, largest, fit_count)
        if best is not None:
            candidates.append(best)
    # Of workers and parameter servers, the processes that fit least often.
    return min(candidates, key=lambda item: item[0])[1] if candidates else None


def has_free_capacity(engine: Engine, job: Job) -> bool:
    """Return whether a job fits at its minimum size beside running and promised jobs."""
    classes, state = _server_state(engine)
    free = state.copy()
    for _, demand, count, hosts in _requirements(engine.cluster, job, 0):
        remaining = count
        for rows in classes.values():
            if hosts[rows[0]]:
                remaining -= _take(free, rows, demand, remaining)
        if remaining:
            return False
    return True


def _requirements(
    cluster: Cluster, job: Job, size: int
) -> list[tuple[str, Amounts, int, NDArray[np.bool_]]]:
    """Return each kind of process with its demand, its count at a size, and its servers."""
    needed = [("worker", job.worker, int(job.worker_counts[size]), cluster.hosts_workers)]
    if job.ps is not None:
        needed.append(("parameter server", job.ps, int(job.ps_counts[size]), cluster.hosts_ps))
    return needed


_MAX_EXACT_JOBS: Final = 500
"""Maximum number of open jobs with which free amounts are computed after every event.

With more open jobs, they are computed once a slot: that takes 50 us a job, in the thread that
decides.
"""

Version = tuple[int | None, ...]

_CACHE: WeakKeyDictionary[Engine, tuple[Version, Cluster, ServerClasses, Amounts]] = (
    WeakKeyDictionary()
)
"""Kinds of servers and free amounts of each engine, because one event may refuse many jobs."""


def _server_state(engine: Engine) -> tuple[ServerClasses, Amounts]:
    few = len(engine.open_jobs) <= _MAX_EXACT_JOBS
    version = (engine.slot, engine.slot_running, engine.sequence if few else None)
    cached = _CACHE.get(engine)
    if cached is not None and cached[:2] == (version, engine.cluster):
        return cached[2], cached[3]
    is_same = cached is not None and cached[1] is engine.cluster
    classes = cached[2] if cached and is_same else build_server_classes(engine.cluster)
    free = _free_amounts(engine, classes)
    _CACHE[engine] = version, engine.cluster, classes, free
    return classes, free


def _free_amounts(engine: Engine, classes: ServerClasses) -> Amounts:
    """Return the free amounts, shape (servers, resources).

    Running jobs have their placements. Promised jobs that don't run count with their minimum
    number of workers, on the first servers that fit.
    """
    cluster = engine.cluster
    free = cluster.capacity.copy()
    free[sorted(engine.lost)] = 0
    for name, placement in engine.running.items():
        record = engine.jobs.get(name)
        if record is None:
            continue
        job, rows = record.job, np.asarray(placement.servers)
        free[rows] -= np.outer(placement.workers, job.worker)
        if job.ps is not None:
            free[rows] -= np.outer(placement.ps, job.ps)
    for name, record in engine.open_jobs.items():
        if record.status is not Status.ADMITTED or name in engine.running:
            continue
        remaining = int(record.job.worker_counts[0])
        for rows in classes.values():
            if not remaining or not cluster.hosts_workers[rows[0]]:
                continue
            remaining -= _take(free, rows, record.job.worker, remaining)
    return np.maximum(free, 0)


def _take(free: Amounts, rows: NDArray[np.int64], demand: Amounts, count: int) -> int:
    """Take the demands of up to ``count`` processes from servers; return how many fit."""
    needed = demand > 0
    if not needed.any():
        return count
    fits = np.maximum((free[rows][:, needed] // demand[needed]).min(axis=1), 0)
    before = np.concatenate(([0], np.cumsum(fits)[:-1]))
    taken = np.clip(count - before, 0, fits)
    free[rows] -= np.outer(taken, demand)
    return int(taken.sum())

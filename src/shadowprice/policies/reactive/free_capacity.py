"""Available servers and their free capacity, which a policy tracks by its own decisions.

The ledger has the same data, but reading it at every event would copy arrays of all servers. The
engine still checks every placement against the ledger.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.round_robin import place
from shadowprice.policies.placements import demand_by_server, fit_counts

NO_PLACEMENT: Final = Refusal(
    RefusalReason.NEVER_FITS, "round-robin placement finds no room for it even in the empty cluster"
)

_MAX_CACHED: Final = 4096  # demands; a service that runs for years has any number of them


class AvailableServers:
    """Which servers are available (up), and what each may host."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.up = np.ones(cluster.servers, dtype=np.bool_)
        self.hosts_workers = cluster.hosts_workers.copy()
        self.hosts_ps = cluster.hosts_ps.copy()
        self._total: Floats | None = None

    def lose(self, server: int) -> None:
        """Mark a server as lost; displaced jobs are released by other calls."""
        self._set_up(server, up=False)

    def restore(self, server: int) -> None:
        """Mark a lost server as up."""
        self._set_up(server, up=True)

    def _set_up(self, server: int, *, up: bool) -> None:
        self.up[server] = up
        self.hosts_workers[server] = up and self._cluster.hosts_workers[server]
        self.hosts_ps[server] = up and self._cluster.hosts_ps[server]
        self._total = None

    def total(self) -> Floats:
        """Return the total capacity of available servers by resource; 0 if one has no limit."""
        if self._total is None:
            rows = self._cluster.capacity[self.up]
            total = rows.astype(np.float64).sum(axis=0)
            self._total = np.where((rows >= UNLIMITED).any(axis=0), 0.0, total)
        return self._total


class FreeCapacity(AvailableServers):
    """Free capacity of every server, and the placements of jobs.

    A lost server keeps its free capacity, but may not host processes.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.free = cluster.capacity.copy()
        # Servers at which the round robin of workers and of PS continues.
        self.cursors = np.zeros(2, dtype=np.int64)
        self.placed: dict[str, tuple[Job, Placement]] = {}  # jobs with a placement
        self._out = np.zeros((3, cluster.servers), dtype=np.int64)  # output of the kernel
        self._none = np.zeros(len(cluster.resources), dtype=np.int64)
        self._none.setflags(write=False)

    @property
    def pristine(self) -> bool:
        """Whether every server is available and no job has a placement."""
        return not self.placed and bool(self.up.all())

    def place(self, job: Job, workers: int) -> Placement | None:
        """Place a job round robin; if it doesn't fit, return None and change nothing."""
        filled = place(
            self.free, job.worker, self.ps_demand(job), workers, job.ps_needed(workers),
            self.hosts_workers, self.hosts_ps, self.cursors, self._out,
        )  # fmt: skip
        if not filled:
            return None
        servers, counts, ps = self._out[:, :filled].tolist()
        placement = Placement(tuple(servers), tuple(counts), tuple(ps))
        self.placed[job.name] = (job, placement)
        return placement

    def allocate(self, job: Job, placement: Placement) -> None:
        """Allocate a given placement."""
        self.placed[job.name] = (job, placement)
        self._add(job, placement, -1)

    def release(self, name: str) -> bool:
        """Release a job's placement; return whether it had one."""
        entry = self.placed.pop(name, None)
        if entry is None:
            return False
        self._add(*entry, 1)
        return True

    def ps_demand(self, job: Job) -> Integers:
        """Return the demand of a job's parameter server, zeros for all-reduce jobs."""
        return self._none if job.ps is None else job.ps

    def _add(self, job: Job, placement: Placement, sign: int) -> None:
        demand = demand_by_server(job, placement.workers, placement.ps)
        self.free[list(placement.servers)] += sign * demand


class EmptyCluster:
    """Round-robin placement on the empty cluster, with results cached by demand."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._empty_cluster = FreeCapacity(cluster)
        self._cached_fits: dict[tuple[bytes, bytes, int, int], bool] = {}

    def workers(self, job: Job, wanted: int) -> int:
        """Return the largest allowed worker count up to ``wanted`` that fits, 0 for none."""
        if self._carries(job, wanted):
            return wanted
        # Skip counts that exceed the total capacity, because a try of thousands takes seconds.
        cluster, ps = self._cluster, self._empty_cluster.ps_demand(job)
        max_workers = fit_counts(cluster.capacity, job.worker, cluster.hosts_workers).sum()
        possible = job.worker_counts <= min(wanted - 1, max_workers)
        possible &= job.ps_counts <= fit_counts(cluster.capacity, ps, cluster.hosts_ps).sum()
        fitting = (
            count
            for count in job.worker_counts[possible][::-1].tolist()
            if self._carries(job, count)
        )
        return next(fitting, 0)

    def _carries(self, job: Job, workers: int) -> bool:
        ps_count = job.ps_needed(workers)
        demand = self._empty_cluster.ps_demand(job)
        key = (job.worker.tobytes(), demand.tobytes(), workers, ps_count)
        cached = self._cached_fits.get(key)
        if cached is None:
            self._empty_cluster.cursors[:] = 0
            cached = self._empty_cluster.place(job, workers) is not None
            self._empty_cluster.release(job.name)
            if len(self._cached_fits) >= _MAX_CACHED:
                self._cached_fits.clear()
            self._cached_fits[key] = cached
        return cached

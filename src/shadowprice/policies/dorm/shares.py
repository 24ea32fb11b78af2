"""Jobs as the program sees them, and the groups of servers that define their shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.dominant_share import Widths, fill
from shadowprice.kernels.reactive.places import PlacementTable
from shadowprice.policies.placements import fit_counts
from shadowprice.policies.reactive.table import increasing_positions


@dataclass(slots=True, eq=False)
class OpenJob:
    """An open job."""

    job: Job
    order: int  # position among all arrivals
    counts: Integers  # numbers of workers that gain more than every smaller one, ascending
    ps_counts: Integers  # parameter servers that they need
    ps: Integers  # zero if the job has no parameter servers
    choice: int = -1  # index of the number it runs with; -1 while it is queued

    @classmethod
    def of(cls, job: Job, order: int) -> OpenJob:
        """Build the entry of a queued job."""
        useful = increasing_positions(job.gains)
        ps = np.zeros_like(job.worker) if job.ps is None else job.ps
        return cls(job, order, job.worker_counts[useful], job.ps_counts[useful], ps)


def _classes(cluster: Cluster, rows: Integers, maximum: int) -> Integers:
    """Return the class of each server: equal servers, or a role if those are too many.

    A program over dozens of classes takes seconds. Servers of one role that have and limit the same
    resources then count as one pool, and the placement afterwards finds servers that fit.
    """
    kinds = cluster.kinds[rows]
    if len(np.unique(kinds)) <= maximum:
        return kinds
    capacity = cluster.capacity[rows]
    traits = np.column_stack(
        (cluster.hosts_workers[rows], cluster.hosts_ps[rows], capacity > 0, capacity >= UNLIMITED)
    )
    return np.unique(traits, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


class DormServerGroups:
    """The servers that are up, grouped one by one or by classes of equal or similar servers.

    ``exact_servers`` is the maximum of servers for groups of one server, and of kinds for groups of
    equal servers.
    """

    def __init__(self, cluster: Cluster, up: Flags, exact_servers: int) -> None:
        rows = np.flatnonzero(up)
        kinds = rows if len(rows) <= exact_servers else _classes(cluster, rows, exact_servers)
        self._group = np.full(cluster.servers, -1, dtype=np.int64)
        names, self._group[rows] = np.unique(kinds, return_inverse=True)
        # Masks of the servers of each group.
        self.members = [self._group == group for group in range(len(names))]
        self._capacity = cluster.capacity
        self._hosts = (cluster.hosts_workers, cluster.hosts_ps)
        firsts = [int(np.flatnonzero(member)[0]) for member in self.members]
        self._group_hosts = tuple(hosts[firsts] for hosts in self._hosts)
        width = len(cluster.resources)
        # Whether all servers of a group have a limit, shape (groups, resources).
        self.limited = cluster.capacity[firsts].reshape(len(firsts), width) < UNLIMITED
        total = cluster.capacity[up].astype(np.float64).sum(axis=0)
        counted = self.limited.all(axis=0) & (total > 0)
        # Number limited throughout the cluster, the m of the bound on fairness.
        self.resources = int(counted.sum())
        self._total = np.where(counted, total, 0.0)
        self._weights = np.divide(1.0, total, out=np.zeros(width), where=counted)
        self._used: dict[OpenJob, tuple[Floats, Floats]] = {}
        self._max_by_group: dict[bytes, tuple[Integers, Integers]] = {}

    @property
    def has_single_group(self) -> bool:
        """Whether at most one group can carry workers, and one parameter servers."""
        return all(int(hosts.sum()) <= 1 for hosts in self._group_hosts)

    def gains(self, entry: OpenJob) -> Floats:
        """Return the sum over resources of used / capacity for each of a job's choices."""
        return self._fractions(entry)[0]

    def shares(self, entry: OpenJob) -> Floats:
        """Return the dominant share of each of a job's choices."""
        return self._fractions(entry)[1]

    def share(self, entry: OpenJob, choice: int) -> float:
        """Return the dominant share of one choice; 0 for -1, a waiting job."""
        return 0.0 if choice < 0 else float(self.shares(entry)[choice])

    def max_by_group(self, entry: OpenJob) -> tuple[Integers, Integers]:
        """Return how many of a job's workers and PS fit on each empty group."""
        key = entry.job.worker.tobytes() + entry.ps.tobytes()
        if key not in self._max_by_group:
            workers, ps = (
                self._sums(fit_counts(self._capacity, demand, hosts))
                for demand, hosts in zip((entry.job.worker, entry.ps), self._hosts, strict=True)
            )
            self._max_by_group[key] = (workers, ps)
        return self._max_by_group[key]

    def gather(self, free: Integers) -> Integers:
        """Return the free capacity of each group; meaningless if it isn't limited."""
        rows = [
            np.where(limited, free[member].sum(axis=0), UNLIMITED)
            for member, limited in zip(self.members, self.limited, strict=True)
        ]
        return np.array(rows, dtype=np.int64).reshape(self.limited.shape)

    def counts_by_group(self, placement: Placement) -> tuple[Integers, Integers]:
        """Return a placement's workers and parameter servers on each group."""
        workers = np.zeros(len(self.members), dtype=np.int64)
        ps = np.zeros(len(self.members), dtype=np.int64)
        groups = self._group[list(placement.servers)]
        np.add.at(workers, groups, placement.workers)
        np.add.at(ps, groups, placement.ps)
        return workers, ps

    def fair_shares(self, entries: Sequence[OpenJob]) -> list[float]:
        """Return the jobs' max-min fair dominant shares on the empty groups.

        Progressive filling in whole workers (Ghodsi et al. 2011, Algorithm 1), as `drf` does it,
        with groups instead of servers.
        """
        jobs, groups = len(entries), len(self.members)
        if not jobs or not groups:
            return [0.0] * jobs
        sizes = np.array([len(entry.counts) for entry in entries], dtype=np.int64)
        empty = np.zeros((jobs, groups), dtype=np.int64)
        placements = PlacementTable(
            np.array([entry.job.worker for entry in entries]),
            np.array([entry.ps for entry in entries]), self._group_hosts[0], self._group_hosts[1],
            empty, empty, np.zeros_like(empty), np.zeros_like(empty),
            np.zeros(jobs, dtype=np.bool_),
        )  # fmt: skip
        widths = Widths(
            np.cumsum(sizes) - sizes,
            sizes,
            np.concatenate([entry.counts for entry in entries]),
            np.concatenate([entry.ps_counts for entry in entries]),
            np.arange(jobs),
        )
        shares = fill(
            self.gather(self._capacity), self._total, np.arange(jobs), placements, widths,
            np.zeros(2, dtype=np.int64), np.zeros(jobs, dtype=np.int64),
        )  # fmt: skip
        return [float(share) for share in shares]

    def _fractions(self, entry: OpenJob) -> tuple[Floats, Floats]:
        if entry not in self._used:
            amounts = entry.counts[:, None] * entry.job.worker + entry.ps_counts[:, None] * entry.ps
            fractions = amounts * self._weights
            self._used[entry] = (fractions.sum(axis=1), fractions.max(axis=1))
        return self._used[entry]

    def remove(self, entry: OpenJob) -> None:
        """Drop a job's cached shares."""
        self._used.pop(entry, None)

    def _sums(self, counts: Integers) -> Integers:
        return np.array([counts[member].sum() for member in self.members], dtype=np.int64)

"""Problem (1) of OASiS over a set of jobs: what there is to decide, and what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule
from shadowprice.policies.offline.packing import Machines

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Request:
    """A job, or what remains of it.

    Parameters
    ----------
    job : Job
        The job.
    required : int
        Progress units still to make.
    first, last : int
        Slots in which it may run, relative to the problem's first; ``last`` is included.
    completions : tuple of (int, float)
        Slots in which it is worth completing, ascending, with the utility of each. Of slots that
        earn the same only the latest is kept: completing earlier is allowed.
    """

    job: Job
    required: int
    first: int
    last: int
    completions: tuple[tuple[int, float], ...]

    @cached_property
    def linear(self) -> bool:
        """Whether n workers gain n, for every n from 1 up, and (6) alone sets the servers."""
        job = self.job
        counts = np.arange(1, len(job.worker_counts) + 1)
        b, capital = job.worker_bandwidth, job.ps_bandwidth
        if not np.array_equal(job.worker_counts, counts) or not np.array_equal(job.gains, counts):
            return False
        if job.ps is None:
            return True
        return bool(b and capital) and np.array_equal(job.ps_counts, -(-counts * b // capital))


@dataclass(frozen=True)
class Problem:
    """Jobs that compete for servers over a range of slots.

    Parameters
    ----------
    requests : tuple of Request
        The jobs.
    free : ndarray of int64, shape (slots, servers, resources)
        Room in each slot.
    start : int
        First slot.
    hosts_workers, hosts_ps : ndarray of bool, shape (servers,)
        What each server may carry.
    """

    requests: tuple[Request, ...]
    free: Integers
    start: int
    hosts_workers: NDArray[np.bool_]
    hosts_ps: NDArray[np.bool_]

    def __post_init__(self) -> None:
        # Where nothing is ever free the server is lost, and carries not even what takes nothing.
        there = (self.free != 0).any(axis=(0, 2))
        object.__setattr__(self, "hosts_workers", self.hosts_workers & there)
        object.__setattr__(self, "hosts_ps", self.hosts_ps & there)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.free)

    @property
    def separate(self) -> bool:
        """Whether no server carries both workers and parameter servers."""
        return not bool((self.hosts_workers & self.hosts_ps).any())

    def machines(self, slot: int) -> Machines:
        """Return the servers as they are in a slot."""
        return Machines(self.free[slot], self.hosts_workers, self.hosts_ps)


@dataclass(frozen=True)
class Solution:
    """Schedules, and what they are worth.

    Parameters
    ----------
    schedules : tuple of Schedule or None
        One for each request; None where it is not admitted.
    utility : float
        Utility of the admitted jobs, at their completion slots.
    bound : float
        No solution earns more than this.
    optimal : bool
        Whether the optimum was proved within the gap asked for.
    rounds : int
        Programs solved: one, and one more for every time that slots had to be modelled server by
        server.
    seconds : float
        Time taken.
    """

    schedules: tuple[Schedule | None, ...]
    utility: float
    bound: float
    optimal: bool
    rounds: int
    seconds: float

    @property
    def gap(self) -> float:
        """Relative distance of utility and bound: 0 where the optimum was proved."""
        return 0.0 if self.optimal else (self.bound - self.utility) / max(abs(self.bound), 1e-12)


def whole_problem(cluster: Cluster, jobs: Sequence[Job], until: int | None) -> Problem:
    """Return problem (1) for a job set.

    Parameters
    ----------
    cluster : Cluster
        The servers, all up and empty.
    jobs : sequence of Job
        The job set.
    until : int or None
        End of the timespan T; without it, each job has its horizon.
    """
    start = min(job.arrival for job in jobs)
    slots = max(0, max(end_of(job, cluster.horizon, until) for job in jobs) - start)
    free = np.broadcast_to(cluster.capacity, (slots, *cluster.capacity.shape)).copy()
    requests = [request_of(job, start, end_of(job, cluster.horizon, until)) for job in jobs]
    return Problem(tuple(requests), free, start, cluster.hosts_workers, cluster.hosts_ps)


def end_of(job: Job, horizon: int, until: int | None) -> int:
    """Return the first slot that a job may not use: its horizon's end, or T."""
    end = job.arrival + horizon
    return end if until is None else min(end, until)


def request_of(job: Job, start: int, end: int, required: int | None = None) -> Request:
    """Return what a job asks of a problem that begins in slot ``start``.

    Parameters
    ----------
    job : Job
        The job.
    start : int
        First slot of the problem; the job may run from there or its arrival on.
    end : int
        First slot that it may not use.
    required : int, optional
        Progress units still to make; all by default.

    Raises
    ------
    InputError
        If the job runs at two rates, which problem (1) does not know.
    """
    if job.two_rates:
        mend = "leave out internal_bandwidth, or use another policy"
        raise InputError(Fault(f"job {job.name}", "optimum: problem (1) knows one rate", mend))
    left = job.required if required is None else required
    first = max(start, job.arrival)
    earliest = first + -(-left // int(job.gains.max())) - 1
    slots = np.arange(earliest, end)
    worth = job.utility.values(slots - job.arrival)
    later = np.append(worth[1:], 0.0)
    keep = (worth > 0) & (worth > later)
    completions = zip((slots[keep] - start).tolist(), worth[keep].tolist(), strict=True)
    return Request(job, left, first - start, end - 1 - start, tuple(completions))

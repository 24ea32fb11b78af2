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
from shadowprice.policies.pricing.alone import Alone

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
        End of the timespan T; without it, no slot is left out in which anything can be gained.
    """
    start = min(job.arrival for job in jobs)
    ends = ends_of(cluster, jobs, until)
    slots = max(0, max(ends) - start)
    free = np.broadcast_to(cluster.capacity, (slots, *cluster.capacity.shape)).copy()
    requests = [request_of(job, start, end) for job, end in zip(jobs, ends, strict=True)]
    return Problem(tuple(requests), free, start, cluster.hosts_workers, cluster.hosts_ps)


def ends_of(
    cluster: Cluster,
    jobs: Sequence[Job],
    until: int | None,
    *,
    begin: int = 0,
    left: Sequence[int | None] | None = None,
) -> list[int]:
    """Return the first slot that each job has no use for.

    That is T; or from where the job is worth nothing; or where all can be done (`all_done`).

    Parameters
    ----------
    cluster : Cluster
        The servers, as they are.
    jobs : sequence of Job
        The jobs.
    until : int or None
        T.
    begin : int
        Slot from which on all servers are free.
    left : sequence of int or None, optional
        Progress units that each job still has to make; None for all.

    Returns
    -------
    list of int
        One for each job.
    """
    done = all_done(cluster, jobs, begin=begin, left=left)
    ends = []
    for job in jobs:
        end = done if until is None else min(done, until)
        worth = job.utility.values(np.arange(max(0, end - job.arrival)))
        ends.append(job.arrival + int(np.count_nonzero(worth > 0)))
    return ends


def all_done(
    cluster: Cluster,
    jobs: Sequence[Job],
    *,
    begin: int = 0,
    left: Sequence[int | None] | None = None,
) -> int:
    """Return a slot by which some best solution of problem (1) without T is over.

    All work is done there if, once every job has arrived, they run one after the other, each alone
    at its greatest speed. For take a best solution, its jobs in the order in which they complete,
    and let c(k) be the slot in which the k-th does, s(k) that in which it would one after the
    other. Keep all up to the last k with c(k) <= s(k), and run the others one after the other from
    there: each is done by its s < c, and utilities do not increase.

    Parameters
    ----------
    cluster, jobs, begin, left
        As of `ends_of`.
    """
    alone = Alone(cluster, cluster.hosts_workers, cluster.hosts_ps)
    exact = not bool((cluster.hosts_workers & cluster.hosts_ps).any())
    done = max([begin, *(job.arrival for job in jobs)])
    for job, required in zip(jobs, left or [None] * len(jobs), strict=True):
        gain = alone.gain(job)
        if not gain and not exact:
            # That it finds room on servers that carry both is not ruled out. Then it does so with
            # the fewest workers that get on at all.
            useful = job.gains[job.gains > 0]
            gain = int(useful.min()) if len(useful) else 0
        if gain:
            done += -(-(job.required if required is None else required) // gain)
    return done


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

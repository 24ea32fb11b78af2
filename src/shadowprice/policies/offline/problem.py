"""Input and solution of OASiS's problem (1): schedules of known jobs with maximum utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule
from shadowprice.policies.placements import fit_counts
from shadowprice.policies.pricing.alone import StandaloneValue


@dataclass(frozen=True, slots=True)
class EqualItems:
    """Equal items to be packed: workers, or parameter servers, of one job."""

    owner: int  # position of the job
    is_worker: bool
    count: int
    demand: Integers  # of one item
    hosts: Flags  # servers that may carry them

    def fit_counts(self, free: Integers) -> Integers:
        """Return how many of the items fit on each server, if nothing else is added."""
        return fit_counts(free, self.demand, self.hosts)


@dataclass(frozen=True)
class JobRequest:
    """A job, or its remaining work. Slots count from the problem's first slot."""

    job: Job
    required: int  # remaining progress units
    first: int  # first slot in which the job can run
    completions: tuple[tuple[int, float], ...]
    """Completion slots with their positive utilities, ascending. Of slots with equal utility, only
    the latest is listed, because a job may complete earlier."""

    @cached_property
    def linear(self) -> bool:
        """Whether n workers make n units of progress, and (6) determines the number of PS."""
        job = self.job
        counts = np.arange(1, len(job.worker_counts) + 1)
        worker_bandwidth, ps_bandwidth = job.worker_bandwidth, job.ps_bandwidth
        if not np.array_equal(job.worker_counts, counts) or not np.array_equal(job.gains, counts):
            return False
        if job.ps is None:
            return True
        if not worker_bandwidth or not ps_bandwidth:
            return False
        return np.array_equal(job.ps_counts, -(-counts * worker_bandwidth // ps_bandwidth))


@dataclass(frozen=True)
class Problem:
    """Jobs that compete for servers over a range of slots."""

    requests: tuple[JobRequest, ...]
    free: Integers  # free capacity, shape (slots, servers, resources)
    start: int  # number of the first slot
    hosts_workers: Flags
    hosts_ps: Flags

    def __post_init__(self) -> None:
        # A server without free capacity in all slots is lost. Even a demand of 0 can't use it.
        available = (self.free != 0).any(axis=(0, 2))
        object.__setattr__(self, "hosts_workers", self.hosts_workers & available)
        object.__setattr__(self, "hosts_ps", self.hosts_ps & available)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.free)

    @property
    def has_separate_roles(self) -> bool:
        """Whether no server carries both workers and parameter servers."""
        return not bool((self.hosts_workers & self.hosts_ps).any())

    def items(self, owner: int, workers: int, ps: int | None = None) -> list[EqualItems]:
        """Return the items of a job with some workers, and the PS that they need or ``ps`` PS."""
        job = self.requests[owner].job
        items = [EqualItems(owner, True, workers, job.worker, self.hosts_workers)]
        ps = job.ps_needed(workers) if ps is None else ps
        if job.ps is not None and ps:
            items.append(EqualItems(owner, False, ps, job.ps, self.hosts_ps))
        return items


@dataclass(frozen=True)
class OfflineSolution:
    """Schedules and their total utility."""

    schedules: tuple[Schedule | None, ...]  # one for each request; None if it isn't admitted
    utility: float  # of the admitted jobs at their completion slots
    bound: float  # upper bound on the utility of every solution
    optimal: bool  # whether the optimum was proved within the requested gap
    nodes: int  # of the search

    @property
    def gap(self) -> float:
        """Relative distance of utility and bound; 0 if the optimum was proved."""
        return 0.0 if self.optimal else (self.bound - self.utility) / max(abs(self.bound), 1e-12)


def full_problem(cluster: Cluster, jobs: Sequence[Job], until: int | None) -> Problem:
    """Build problem (1) for a job set on empty servers; ``until`` is T, None for no end."""
    start = min(job.arrival for job in jobs)
    ends = utility_end_slots(cluster, jobs, until)
    slots = max(0, max(ends) - start)
    free = np.broadcast_to(cluster.capacity, (slots, *cluster.capacity.shape)).copy()
    requests = [build_request(job, start, end) for job, end in zip(jobs, ends, strict=True)]
    return Problem(tuple(requests), free, start, cluster.hosts_workers, cluster.hosts_ps)


def utility_end_slots(
    cluster: Cluster,
    jobs: Sequence[Job],
    until: int | None,
    *,
    begin: int = 0,
    remaining: Sequence[int | None] | None = None,
) -> list[int]:
    """Return the slot from which each job has no use for slots.

    It is the earliest of T, the end of its utility, and `finish_bound`. All servers are free from
    ``begin`` on. ``remaining`` are the jobs' progress units; None for all of a job's.
    """
    done = finish_bound(cluster, jobs, begin=begin, remaining=remaining)
    ends = []
    for job in jobs:
        end = done if until is None else min(done, until)
        utilities = job.utility.values(np.arange(max(0, end - job.arrival)))
        ends.append(job.arrival + int(np.count_nonzero(utilities > 0)))
    return ends


def finish_bound(
    cluster: Cluster,
    jobs: Sequence[Job],
    *,
    begin: int = 0,
    remaining: Sequence[int | None] | None = None,
) -> int:
    """Return a slot by which some optimal solution of problem (1) without T has ended.

    It is the end of a run of all jobs one after the other, each alone at its maximum speed, from
    the last arrival on. Proof: order the jobs of an optimal solution by completion. Let c(k) be the
    completion slot of the k-th job, and s(k) its completion slot if the jobs run one after the
    other. Keep all jobs up to the last k with c(k) <= s(k), and run the others one after the other
    from there. Each of these completes by its s < c, which loses nothing, as utilities never rise.

    The parameters are those of `utility_end_slots`.
    """
    alone = StandaloneValue(cluster, cluster.hosts_workers, cluster.hosts_ps)
    exact = not bool((cluster.hosts_workers & cluster.hosts_ps).any())
    done = max([begin, *(job.arrival for job in jobs)])
    for job, required in zip(jobs, remaining or [None] * len(jobs), strict=True):
        gain = alone.gain(job)
        if not gain and not exact:
            # `gain` is only a lower bound, so the job may still fit. Its speed is then at least
            # that of the slowest useful number of workers.
            useful = job.gains[job.gains > 0]
            gain = int(useful.min()) if len(useful) else 0
        if gain:
            done += -(-(job.required if required is None else required) // gain)
    return done


def build_request(job: Job, start: int, end: int, required: int | None = None) -> JobRequest:
    """Build the request of a job that may run in slots ``[start, end)``.

    ``start`` is the first slot of the problem; ``required`` is None for all of the job's work.
    Raises `InputError` if the job has two rates, which problem (1) can't express.
    """
    if job.two_rates:
        hint = "leave out internal_bandwidth, or use another policy"
        raise InputError(Fault(f"job {job.name}", "optimum: problem (1) knows one rate", hint))
    work = job.required if required is None else required
    first = max(start, job.arrival)
    earliest = first + -(-work // int(job.gains.max())) - 1
    slots = np.arange(earliest, end)
    utility = job.utility.values(slots - job.arrival)
    later = np.append(utility[1:], 0.0)
    keep = (utility > 0) & (utility > later)
    completions = zip((slots[keep] - start).tolist(), utility[keep].tolist(), strict=True)
    return JobRequest(job, work, first - start, tuple(completions))

"""Bounds that prices prove: the Lagrangian relaxation of problem (1) of OASiS.

By weak duality of (14) and (19) (papers' README, reading 7), for any prices >= 0,

    sum over slots and limits of price * capacity
    + sum over jobs of max(0, best payoff at those prices on an empty cluster)

is an upper bound on the total utility. A job's best payoff is problem (27), which the exact search
over slots solves. Prices are per pool of servers, not per server. The bound therefore belongs to a
relaxation: a pool is one large machine, under the limits that integral servers set
(`policies.pricing.posted`). The relaxation allows every schedule that the servers allow.

The bound is only valid with upper bounds on payoffs. `Relaxation.price` therefore returns a
`ProvenPayoff`. Numbers of copies of bags of tasks aren't proved optimal, so a job set with a bag is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.kernels.horizon.batch import JobRows, JobSchedules, price_jobs
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.policies.offline.problem import finish_bound
from shadowprice.policies.placements import fit_counts
from shadowprice.policies.pricing.posted import pool_limits, shares


def demand_key(job: Job) -> bytes:
    """Return a key that jobs with equal demands share."""
    return job.worker.tobytes() + (b"" if job.ps is None else job.ps.tobytes())


def ps_counts_for(job: Job, workers: Integers) -> Integers:
    """Return how many parameter servers each number of workers needs."""
    if job.ps is None:
        return np.zeros_like(workers)
    return np.asarray(job.ps_counts[np.searchsorted(job.worker_counts, workers)])


def _offsets(parts: Sequence[Integers | Floats]) -> Integers:
    return np.cumsum([0, *map(len, parts)], dtype=np.int64)


def _concatenate(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


ProvenPayoff = NewType("ProvenPayoff", float)
"""Upper bound on the payoff of any schedule of the job at the given prices."""

_ROUNDING: Final = 1e-9
"""Relative error of the search over slots; added to every payoff, which then is an upper bound."""
_PAIRS: Final = 200_000
"""Pairs of a job and a slot up to which every slot with a possible gain is searched."""
_CELLS: Final = 1 << 24
"""Values of free capacity (slots x servers x resources) up to which every such slot is searched.

`certificate.rounding` stores all of these values.
"""
_SHORTEST_MULTIPLE: Final = 4
"""Multiple of a job's minimum slots that is searched above `_PAIRS` or `_CELLS`."""
_LATE_MULTIPLE: Final = 2
"""Maximum end of late jobs, as a multiple of the relaxation's slots.

A late job completes after its window.
"""
_NEGLIGIBLE_SHARE: Final = 1e-12  # share of a job's initial utility that isn't worth a search


@dataclass(frozen=True, slots=True)
class Column:
    """Schedule of a job: its utility, and its shares of the pools' capacities by slot."""

    utility: float  # utility of the schedule
    first: int  # first slot of ``use``, counted from the relaxation's first
    use: Floats  # used share of each limit of each pool, shape (slots, pools, limits)
    choice: Integers  # number of workers in each slot, 0 for none


@dataclass(frozen=True, slots=True)
class PricedJobs:
    """Payoffs and schedules of several jobs at given prices."""

    total: ProvenPayoff  # bound on the sum of their payoffs
    payoffs: Floats  # bound on the payoff of each job; 0 for jobs that weren't priced
    utilities: Floats  # utility of each job's schedule at the prices
    use: Floats  # shares that all schedules take, shape (slots, pools, limits)


@dataclass(frozen=True, slots=True)
class Window:
    """Slots that are searched for a job."""

    first: int  # arrival of the job
    end: int  # first slot that isn't searched
    tail: float  # largest utility from ``end`` on; 0 if some best schedule completes before


def windows_of(cluster: Cluster, jobs: Sequence[Job], end: int) -> list[Window]:
    """Return the slots to search for each job; completions after ``end`` can't be better.

    A window ends at ``end``, or earlier if the job's utility is nearly 0 from some slot on. Above
    `_PAIRS` or `_CELLS`, a window has at most as many slots as the horizon, or as
    `_SHORTEST_MULTIPLE` times the job's minimum slots if these are more. Every later completion
    earns at most ``tail``.
    """
    spans = [max(0, end - job.arrival) for job in jobs]
    if sum(spans) > _PAIRS or max(spans) * cluster.capacity.size > _CELLS:
        minimum = (_SHORTEST_MULTIPLE * max(1, job.min_slots_colocated) for job in jobs)
        spans = [
            min(span, max(cluster.horizon, slots))
            for span, slots in zip(spans, minimum, strict=True)
        ]
    return [
        _window(job, span, complete=job.arrival + span >= end)
        for job, span in zip(jobs, spans, strict=True)
    ]


def _window(job: Job, slots: int, *, complete: bool) -> Window:
    """Return a window of at most ``slots``; ``complete`` if no later slot can be better."""
    utility = job.utility.values(np.arange(slots + 1))
    # Where a utility is nearly 0, a search gains nothing.
    useful = int(np.count_nonzero(utility > _NEGLIGIBLE_SHARE * utility[0]))
    if useful <= slots:
        return Window(job.arrival, job.arrival + useful, float(utility[useful]))
    return Window(job.arrival, job.arrival + slots, 0.0 if complete else float(utility[-1]))


class Relaxation:
    """A job set on a cluster whose pools are one large machine each.

    A job whose rate depends on its placement always runs at its faster rate. Raises `InputError` if
    a job is a bag of tasks.
    """

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], until: int | None) -> None:
        bags = [job.name for job in jobs if job.bag is not None]
        if bags:
            message = (
                "the best schedule of a bag of tasks can't be proved "
                f"({len(bags)} of {len(jobs)} jobs are bags)"
            )
            hint = "leave bags out of the job file for `bound`"
            raise InputError(Fault(f"job {bags[0]}", message, hint))
        self.members = list(jobs)
        end = finish_bound(cluster, jobs) if jobs else 0
        end = end if until is None else min(end, until)
        self.windows = windows_of(cluster, jobs, end) if jobs else []
        self.start = min((window.first for window in self.windows), default=0)
        self.slots = max(0, max((w.end for w in self.windows), default=0) - self.start)
        late = any(window.tail > 0 for window in self.windows)
        self.late_slots = max(0, min(end - self.start, _LATE_MULTIPLE * self.slots)) if late else 0
        """Number of slots, from ``start`` on, in which late jobs may run; 0 without late jobs."""
        # The first pool hosts workers, the last one parameter servers. A single pool hosts both.
        self.limits = pool_limits(cluster)
        width = max(map(len, self.limits))
        self.counted = np.array([np.arange(width) < len(mine) for mine in self.limits])
        self._shares: dict[tuple[int, bytes], Floats] = {}
        self._capacity = cluster.capacity
        self._hosts = (cluster.hosts_workers, cluster.hosts_ps)
        self._choices = [self._feasible_choices(job) for job in self.members]
        self._drop_dominated()
        self._rows = self._job_rows()
        self._largest = np.array(
            [self.utilities(index).max(initial=0.0) for index in range(self.jobs)]
        )
        self._kind_shares = self._shares_of_kinds()
        self._capacity_shares = np.repeat(self.counted[None].astype(np.float64), self.slots, axis=0)

    def _job_rows(self) -> JobRows:
        """Return windows, choices and utilities of the jobs; jobs of a kind have equal demands."""
        kinds: dict[bytes, int] = {}
        counts = [workers for workers, _, _ in self._choices]
        gains = [progress for _, progress, _ in self._choices]
        jobs, windows = self.members, self.windows
        spans = [max(0, window.end - window.first) for window in windows]
        ps_counts = [ps_counts_for(job, workers) for job, workers in zip(jobs, counts, strict=True)]
        worth = [job.utility.values(np.arange(span)) for job, span in zip(jobs, spans, strict=True)]
        return JobRows(
            first=np.array([window.first - self.start for window in windows], np.int64),
            slots=np.array(spans, np.int64),
            required=np.array([job.required for job in jobs], np.int64),
            kind=np.array(
                [kinds.setdefault(demand_key(job), len(kinds)) for job in jobs], np.int64
            ),
            choice_start=_offsets(counts),
            workers=_concatenate(counts),
            ps_counts=_concatenate(ps_counts),
            gains=_concatenate(gains),
            worth_start=_offsets(worth),
            worth=np.concatenate([np.zeros(0), *worth]),
            tail=np.array([window.tail for window in windows]),
        )

    def _shares_of_kinds(self) -> tuple[Floats, Floats]:
        """Return the shares of a worker and of a parameter server of each kind of job."""
        _, representatives = np.unique(self._rows.kind, return_index=True)
        worker, ps = np.zeros((2, len(representatives), *self.counted.shape))
        for row, index in enumerate(representatives.tolist()):
            job = self.members[index]
            worker[row, 0] = self._share(0, job.worker)
            if job.ps is not None:
                ps[row, -1] = self._share(len(self.limits) - 1, job.ps)
        return worker * self.counted, ps * self.counted

    def _drop_dominated(self) -> None:
        """Drop limits that no schedule can exhaust before another limit of the same pool.

        Without a limit the problem is more relaxed, so its bound stays valid.
        """
        stacked = [use for _, _, use in self._choices if len(use)]
        if not stacked:
            return
        use = np.concatenate(stacked)
        for pool in range(use.shape[1]):
            uses = np.unique(use[:, pool], axis=0)
            for limit in reversed(range(uses.shape[1])):
                for other in range(uses.shape[1]):
                    if limit == other or not (
                        self.counted[pool, limit] and self.counted[pool, other]
                    ):
                        continue
                    if (uses[:, limit] <= uses[:, other]).all():
                        self.counted[pool, limit] = False
                        break
        self._choices = [
            (counts, gains, np.where(self.counted, use, 0.0))
            for counts, gains, use in self._choices
        ]
        self._shares = {
            (pool, demand): np.where(self.counted[pool], share, 0.0)
            for (pool, demand), share in self._shares.items()
        }

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of prices: slots, pools, limits."""
        return (self.slots, *self.counted.shape)

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.members)

    @property
    def capacity(self) -> Floats:
        """Capacity as a share of itself, shape `shape`: 1, or 0 for a dropped or missing limit."""
        return self._capacity_shares

    def utilities(self, job: int) -> Floats:
        """Return the utility of completing in each slot of a job's window."""
        start, end = self._rows.worth_start[job : job + 2]
        return self._rows.worth[start:end]

    def choices(self, job: int) -> tuple[Integers, Integers, Floats]:
        """Return a job's feasible worker counts, their progress, and shares of the pools."""
        return self._choices[job]

    def costs(self, job: int, prices: Floats) -> Floats:
        """Return the cost of each choice of a job by slot of the ``prices``, (slots, choices)."""
        member, counts = self.members[job], self._choices[job][0]
        worker, ps = self.unit_costs(job, prices)
        cost = np.outer(worker, counts)
        if member.ps is not None:
            cost += np.outer(ps, ps_counts_for(member, counts))
        return cost

    def unit_costs(self, job: int, prices: Floats) -> tuple[Floats, Floats]:
        """Return the cost of a worker and of a PS of a job, by slot of the ``prices``."""
        member = self.members[job]
        worker = prices[:, 0] @ self._share(0, member.worker)
        if member.ps is None:
            return worker, np.zeros_like(worker)
        return worker, prices[:, -1] @ self._share(len(self.limits) - 1, member.ps)

    def _feasible_choices(self, job: Job) -> tuple[Integers, Integers, Floats]:
        gains = np.maximum(job.gains, job.internal_gains)
        maximum = int(fit_counts(self._capacity, job.worker, self._hosts[0]).sum())
        fits = (gains > 0) & (job.worker_counts <= maximum)
        if job.ps is not None:
            maximum = int(fit_counts(self._capacity, job.ps, self._hosts[1]).sum())
            fits &= job.ps_counts <= maximum
        use = np.zeros((int(fits.sum()), *self.counted.shape))
        use[:, 0] += job.worker_counts[fits, None] * self._share(0, job.worker)
        if job.ps is not None:
            use[:, -1] += job.ps_counts[fits, None] * self._share(len(self.limits) - 1, job.ps)
        return job.worker_counts[fits], gains[fits], use

    def _share(self, pool: int, demand: Integers) -> Floats:
        """Return the share of each limit of a pool that a demand takes."""
        key = (pool, demand.tobytes())
        if key not in self._shares:
            share = np.zeros(self.counted.shape[1])
            share[: len(self.limits[pool])] = shares(self.limits[pool], demand)
            self._shares[key] = share
        return self._shares[key]

    def price(self, job: int, prices: Floats) -> tuple[ProvenPayoff, Column | None]:
        """Return a bound on a job's payoff at prices, and the schedule that reaches it.

        The schedule is None if no schedule gains anything. It is empty if the bound assumes that
        the job completes after its window at no cost.
        """
        window = self.windows[job]
        counts, gains, use = self._choices[job]
        member = self.members[job]
        first, slots = window.first - self.start, window.end - window.first
        if slots <= 0 or not len(gains) or int(gains.max()) * slots < member.required:
            return self._late_payoff(window)
        cost = self.costs(job, prices[first : first + slots])
        utility = member.utility.values(np.arange(slots))
        result = best_schedule(np.maximum(cost, 0.0), gains, member.required, utility)
        if not result.feasible or result.payoff < window.tail:
            return self._late_payoff(window)
        length = result.completion + 1
        choice = result.choice[:length]
        active = choice >= 0
        used = np.where(active[:, None, None], use[np.maximum(choice, 0)], 0.0)
        earned = float(utility[result.completion])
        column = Column(earned, first, used, np.where(active, counts[np.maximum(choice, 0)], 0))
        return ProvenPayoff(result.payoff + _ROUNDING * abs(earned)), column

    def price_all(self, members: Integers, prices: Floats, gap: float = 0.0) -> PricedJobs:
        """Return bounds on the payoffs of some jobs, and the use of schedules within ``gap``."""
        worker, ps = (
            np.ascontiguousarray(np.maximum(np.einsum("tpl,kpl->kt", prices, share), 0.0))
            for share in self._kind_shares
        )
        priced = JobSchedules(
            np.zeros(self.jobs),
            np.zeros(self.jobs),
            np.zeros(worker.shape, np.int64),
            np.zeros(worker.shape, np.int64),
        )
        payoffs = price_jobs(members, self._rows, worker, ps, gap, priced)
        use = np.einsum("kt,kpl->tpl", priced.workers, self._kind_shares[0])
        use += np.einsum("kt,kpl->tpl", priced.ps, self._kind_shares[1])
        # The errors of the searches are relative to utilities, which add up to at most this.
        total = payoffs + _ROUNDING * float(self._largest[members].sum())
        return PricedJobs(ProvenPayoff(total), priced.payoff, priced.earned, use)

    def _late_payoff(self, window: Window) -> tuple[ProvenPayoff, Column | None]:
        """Return the payoff of completing after the window at no cost."""
        if window.tail <= 0:
            return ProvenPayoff(0.0), None
        no_use = np.zeros((0, *self.counted.shape))
        late = Column(window.tail, window.first - self.start, no_use, np.zeros(0, dtype=np.int64))
        return ProvenPayoff(window.tail), late

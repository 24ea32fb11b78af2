"""Upper bounds on the offline optimum at any size, from prices.

Weak duality of (14) and (19) of OASiS (papers' README, reading 7): for any prices >= 0,

    sum over jobs of max(0, best payoff at those prices on an empty cluster)
        + sum over slots and resources of price * capacity

is at least what any schedule earns. A job's best payoff is problem (27), which the exact search
over slots answers; the prices come from column generation, with that search as the pricing step and
a linear program over the schedules found so far as the master. Every round's prices give a bound;
the least of them is kept. Prices are per pool of servers, not per server, so that the bound is that
of the relaxation in which a pool is one large machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.policies.milp import Program
from shadowprice.policies.offline.packing import places
from shadowprice.policies.offline.problem import end_of

Floats = NDArray[np.float64]

_SMOOTH: Final = 0.5
"""Share of the best prices so far in the prices tried next: the master's alone swing wildly."""
_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound on what any schedule of a job set earns.

    Parameters
    ----------
    value : float
        The bound.
    prices : ndarray of float64, shape (slots, pools, resources)
        The prices that prove it: utility per slot for all that a pool holds.
    master : float
        Value of the linear program over the schedules found; the bound of the relaxation lies
        between it and ``value``.
    rounds : int
        Rounds of column generation.
    """

    value: float
    prices: Floats
    master: float
    rounds: int


@dataclass(frozen=True, slots=True)
class _Column:
    """One schedule: its utility, and its shares of the pools' capacities by slot."""

    utility: float
    first: int
    use: Floats


class PricedJobs:
    """A job set on a cluster of pools, answering prices with schedules.

    Parameters
    ----------
    cluster : Cluster
        The servers. Servers for workers and for parameter servers are two pools where no server
        carries both, else one.
    jobs : sequence of Job
        The job set; of jobs with two rates the faster one counts.
    until : int or None
        End of the timespan T; without it, each job has its horizon.
    """

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], until: int | None) -> None:
        self._jobs = list(jobs)
        self._ends = [end_of(job, cluster.horizon, until) for job in jobs]
        self.start = min((job.arrival for job in jobs), default=0)
        self.slots = max(0, max(self._ends, default=0) - self.start)
        separate = not bool((cluster.hosts_workers & cluster.hosts_ps).any())
        members = (
            [cluster.hosts_workers, cluster.hosts_ps]
            if separate
            else [cluster.hosts_workers | cluster.hosts_ps]
        )
        rows = [cluster.capacity[member] for member in members]
        unlimited = np.array([(row >= UNLIMITED).any(axis=0) for row in rows])
        totals = np.array([np.where(row >= UNLIMITED, 0, row).sum(axis=0) for row in rows])
        self.counted = ~unlimited & (totals > 0)
        self._totals = np.maximum(totals, 1).astype(np.float64)
        self._capacity = cluster.capacity
        self._hosts = (cluster.hosts_workers, cluster.hosts_ps)
        self._choices = [self._choices_of(job) for job in self._jobs]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of prices: slots, pools, resources."""
        return (self.slots, *self.counted.shape)

    def _choices_of(self, job: Job) -> tuple[NDArray[np.int64], Floats]:
        """Return the gain of each number of workers that fits, and its share of each pool."""
        gains = np.maximum(job.gains, job.internal_gains)
        room = int(places(self._capacity, job.worker, self._hosts[0]).sum())
        fits = (gains > 0) & (job.worker_counts <= room)
        if job.ps is not None:
            room = int(places(self._capacity, job.ps, self._hosts[1]).sum())
            fits &= job.ps_counts <= room
        use = np.zeros((int(fits.sum()), *self.counted.shape))
        use[:, 0] += job.worker_counts[fits, None] * job.worker
        if job.ps is not None:
            use[:, -1] += job.ps_counts[fits, None] * job.ps
        return gains[fits], np.where(self.counted, use / self._totals, 0.0)

    def bound(self, prices: Floats) -> tuple[float, list[_Column | None]]:
        """Return the bound that prices prove, and each job's best schedule at them."""
        total = float(np.where(self.counted, prices, 0.0).sum())
        columns: list[_Column | None] = []
        for at, job in enumerate(self._jobs):
            column, payoff = self._answer(at, job, prices)
            columns.append(column)
            total += max(0.0, payoff)
        return total, columns

    def _answer(self, at: int, job: Job, prices: Floats) -> tuple[_Column | None, float]:
        gains, use = self._choices[at]
        first, slots = job.arrival - self.start, self._ends[at] - job.arrival
        if slots <= 0 or not len(gains):
            return None, 0.0
        here = prices[first : first + slots].reshape(slots, -1)
        cost = here @ use.reshape(len(gains), -1).T
        utility = job.utility.values(np.arange(slots))
        found = best_schedule(np.maximum(cost, 0.0), gains, job.required, utility)
        if not found.feasible:
            return None, 0.0
        length = found.completion + 1
        chosen = found.choice[:length]
        used = np.where((chosen >= 0)[:, None, None], use[np.maximum(chosen, 0)], 0.0)
        return _Column(float(utility[found.completion]), first, used), found.payoff


def upper_bound(
    cluster: Cluster,
    jobs: Sequence[Job],
    until: int | None = None,
    *,
    rounds: int = 60,
    tolerance: float = 1e-3,
    prices: Floats | None = None,
) -> Bound:
    """Bound the offline optimum of a job set from above.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    jobs : sequence of Job
        The job set.
    until : int, optional
        End of the timespan T.
    rounds : int
        Most rounds of column generation; the bound holds after any number of them.
    tolerance : float
        Relative distance of bound and master at which to stop.
    prices : ndarray of float64, shape (slots, pools, resources), optional
        Prices to begin with, such as a run's own; 0 by default.

    Returns
    -------
    Bound
        The least bound found, with the prices that prove it.
    """
    priced = PricedJobs(cluster, jobs, until)
    best_prices = np.zeros(priced.shape) if prices is None else np.asarray(prices, np.float64)
    best, found = priced.bound(best_prices)
    columns: list[list[_Column]] = [[] for _ in jobs]
    _keep(columns, found)
    master, done = 0.0, 1
    while done < rounds:
        master, theirs = _master(priced, columns)
        if best - master <= tolerance * max(abs(best), _NOTHING):
            break
        trial = _SMOOTH * best_prices + (1 - _SMOOTH) * theirs
        value, found = priced.bound(trial)
        done += 1
        news = _keep(columns, found)
        if value < best:
            best, best_prices = value, trial
        if not news:
            # Smoothed prices found nothing new: the master's own decide.
            value, found = priced.bound(theirs)
            done += 1
            if value < best:
                best, best_prices = value, theirs
            if not _keep(columns, found):
                break
    return Bound(best, best_prices, master, done)


def _keep(columns: list[list[_Column]], found: list[_Column | None]) -> bool:
    """Add schedules that are new; return whether any is."""
    news = False
    for known, column in zip(columns, found, strict=True):
        if column is None:
            continue
        if not any(
            other.utility == column.utility and np.array_equal(other.use, column.use)
            for other in known
        ):
            known.append(column)
            news = True
    return news


def _master(priced: PricedJobs, columns: list[list[_Column]]) -> tuple[float, Floats]:
    """Solve (14) over the schedules found; return its value and the prices of its rows."""
    program = Program()
    used: dict[tuple[int, int, int], list[tuple[int, float]]] = {}
    for known in columns:
        mine = []
        for column in known:
            number = program.column(cost=column.utility, integer=False)
            mine.append(number)
            for place in np.argwhere(column.use > 0).tolist():
                key = (column.first + place[0], place[1], place[2])
                used.setdefault(key, []).append((number, float(column.use[tuple(place)])))
        if mine:
            program.row(mine, [1.0] * len(mine), upper=1)
    rows = {}
    for key, terms in used.items():
        rows[key] = program.row([at for at, _ in terms], [share for _, share in terms], upper=1)
    prices = np.zeros(priced.shape)
    answer = program.solve(relaxed=True)
    for key, row in rows.items():
        prices[key] = max(0.0, float(answer.row_duals[row]))
    return answer.objective, prices

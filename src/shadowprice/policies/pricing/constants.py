"""Constants L and U of exponential prices: OASiS (23)-(26), PD-ORS (3.13)-(3.14).

All computation is on logarithms. With a sigmoid of decay 5, the smallest utility underflows and U/L
reaches e^1400 (papers' README, reading 3). Amounts are shares of the largest capacity in the pool,
so that prices do not depend on units (reading 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.job import Job
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.clearing import ClearingPrice
from shadowprice.policies.pricing.extremes import ExtremeShareSum
from shadowprice.policies.pricing.measures import Measures, PriceContribution, active_cache

Floats = NDArray[np.float64]

Carries = Literal["workers", "ps", "both"]
Lower = Literal["theory", "guaranteed", "clearing"]
Absorbs = Literal["U", "L"]


class LowerConstant(NamedTuple):
    """Definition of L, and the data that it needs.

    Attributes
    ----------
    kind : {"theory", "guaranteed", "clearing"}
        theory: (25), (26), (3.14). clearing: that, raised to the price at which the demand would
        clear (`ClearingPrice`). guaranteed: the L at which the prices of empty servers add up to
        half of what one job earns alone.
    alone : Alone or None
        Utility of a job alone, for ``guaranteed``.
    """

    kind: Lower = "theory"
    alone: StandaloneValue | None = None


@dataclass(frozen=True, eq=False)
class PricePool:
    """Servers that are priced together.

    Parameters
    ----------
    members : ndarray of bool, shape (servers,)
        Whether each server belongs to the pool.
    scale : ndarray of float64, shape (resources,)
        Largest capacity in the pool; 0 if the pool lacks a resource or doesn't limit it.
    total_shares : ndarray of float64, shape (resources,)
        Sum of the priced capacities, as shares of the scale. A resource is free on servers that
        don't limit it.
    unlimited : ndarray of bool, shape (resources,)
        Resources that some server does not limit.
    """

    members: NDArray[np.bool_]
    scale: Floats
    total_shares: Floats
    unlimited: NDArray[np.bool_]

    @property
    def room(self) -> Floats:
        """Capacity of the pool by resource, in shares; infinite if a server doesn't limit it."""
        return np.where(self.unlimited, np.inf, self.total_shares)

    @classmethod
    def of(cls, cluster: Cluster, members: NDArray[np.bool_]) -> PricePool:
        """Build the pool of some servers of a cluster."""
        scale = cluster.pool_scale(members)
        unlimited = cluster.capacity[members] >= UNLIMITED
        amounts = np.where(unlimited, 0, cluster.capacity[members]).sum(axis=0)
        total = np.divide(amounts, scale, out=np.zeros(len(scale)), where=scale > 0)
        return cls(members, scale, total, np.asarray(unlimited.any(axis=0), dtype=np.bool_))

    def shares(self, demand: Amounts) -> Floats:
        """Return a demand as shares of the pool's scale, 0 for resources without a limit."""
        return np.divide(
            demand,
            self.scale,
            out=np.zeros(len(self.scale)),
            where=self.scale > 0,
            dtype=np.float64,
        )


@dataclass(frozen=True, eq=False)
class PriceConstants:
    """L and U of one pool, as natural logarithms.

    Parameters
    ----------
    ln_lower : float
        ln L, utility per slot for a share of 1; the same for all resources.
    ln_upper : ndarray of float64, shape (resources,)
        ln U by resource; ``-inf`` for resources that no job needs, which are free.
    """

    ln_lower: float
    ln_upper: Floats

    def scaled(self, factor: float, absorbs: Absorbs = "U") -> PriceConstants:
        """Return constants with each ratio U/L multiplied by ``factor``.

        OASiS's Fig. 6 estimates the ratios, and does not say which constant is then wrong. A ratio
        never falls below 1.

        Parameters
        ----------
        factor : float
            The estimated ratio over the true one.
        absorbs : {"U", "L"}
            The constant that changes; the other one stays.
        """
        priced = np.isfinite(self.ln_upper)
        lower = self.ln_lower - math.log(factor) if absorbs == "L" else self.ln_lower
        upper = self.ln_upper + (math.log(factor) if absorbs == "U" else 0.0)
        return PriceConstants(lower, np.where(priced, np.maximum(upper, lower), -np.inf))

    def record(self, resources: Sequence[str]) -> dict[str, object]:
        """Return the constants in the form of ``run.json``."""
        upper = {
            name: float(value)
            for name, value in zip(resources, self.ln_upper, strict=True)
            if np.isfinite(value)
        }
        return {"ln_L": self.ln_lower if math.isfinite(self.ln_lower) else None, "ln_U": upper}


_AS_PRINTED: Final = LowerConstant()

_ROUNDING: Final = 1e-9
"""Tolerated error of a difference of logarithms."""


@dataclass
class ConstantsLearner:
    """Learns the constants over the jobs seen so far: (23)-(26), or (3.13)-(3.14).

    Parameters
    ----------
    pool : Pool
        The servers priced.
    carries : {"workers", "ps", "both"}
        Processes that the pool hosts: workers (23), (25); parameter servers (24), (26); or both. In
        the last case a job needs the sum of the two demands, and may run at its internal rate
        (3.13), (3.14).
    horizon : int
        Slots that a planner looks ahead.
    until : int or None
        End of the timespan T.
    floor : Floor
        Definition of L.
    known : bool
        Whether all jobs are known (`ClearingPrice`).
    since : int
        First slot of the timespan; in a live service, the slot in which it was set.
    """

    pool: PricePool
    carries: Carries
    horizon: int
    until: int | None
    floor: LowerConstant = _AS_PRINTED
    known: bool = True
    since: int = 0
    _ln_upper: Floats = field(init=False)
    _ln_least_rate: float = field(init=False, default=math.inf)
    _ln_least_use: float = field(init=False, default=math.inf)
    _longest: int = field(init=False, default=1)
    _ln_alone: float = field(init=False, default=-math.inf)
    _arrivals: tuple[int, int] | None = field(init=False, default=None)
    _ln_clearing: float = field(init=False, default=-math.inf)
    _market: ClearingPrice = field(init=False)
    _elsewhere: _Elsewhere = field(init=False)
    _worked_out: tuple[object, PriceConstants] | None = field(
        init=False, default=None, repr=False, compare=False
    )
    """Cached result of `constants` with its inputs; not part of the policy state."""

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_worked_out"}

    def __setstate__(self, state: dict[str, object]) -> None:
        if "_elsewhere" not in state:
            raise AttributeError("what was learnt was kept for servers of one size")
        vars(self).update(state, _worked_out=None)

    def __post_init__(self) -> None:
        self._ln_upper = np.full(len(self.pool.scale), -np.inf)
        span = self.horizon if self.until is None else min(self.horizon, self.until)
        self._market = ClearingPrice(self.pool.room, span, known=self.known)
        self._elsewhere = _Elsewhere.of(len(self.pool.scale))

    def copy(self) -> ConstantsLearner:
        """Return an independent copy."""
        clone = copy(self)
        clone._ln_upper = self._ln_upper.copy()
        clone._market = self._market.copy()
        clone._elsewhere = self._elsewhere.copy()
        return clone

    def moved(self, pool: PricePool, alone: StandaloneValue | None = None) -> ConstantsLearner:
        """Return a learner with the same jobs for other servers.

        Learnt values are in shares of the pool's largest capacities. If these differ, the values
        are computed again from the jobs' amounts. Utilities of jobs alone stay, and so do constants
        of a job set that was known in advance.
        """
        clone = self.copy()
        clone.pool = pool
        clone.floor = self.floor._replace(alone=alone)
        clone._worked_out = None
        resized = not np.array_equal(pool.scale, self.pool.scale)
        clone._market.resize(pool.room, pool.scale if resized else None)
        if resized and not self.known:
            clone._ln_upper = self._elsewhere.ln_upper(pool.scale)
            clone._ln_least_rate = -self._elsewhere.rates.ln_sum(pool.scale)
            clone._ln_least_use = self._elsewhere.uses.ln_sum(pool.scale)
            clone._ln_clearing = clone._market.ln_price()
        return clone

    def within(self, until: int | None, since: int) -> ConstantsLearner:
        """Return a learner with the same jobs for a timespan [since, until)."""
        clone = self.copy()
        clone.until, clone.since, clone._worked_out = until, since, None
        return clone

    def learn(self, jobs: Iterable[Job]) -> bool:
        """Add jobs; return whether the constants changed."""
        before = self.constants()
        for job in jobs:
            self._learn(job)
        return _differ(before, self.constants())

    def update_job(self, job: Job, position: int, measures: Measures) -> bool:
        """Add a job of a set that is processed repeatedly; return as `learn`."""
        before = self.constants()
        self._take_in(job, self._measured(job, position, measures))
        return _differ(before, self.constants())

    def _measured(self, job: Job, position: int, measures: Measures) -> PriceContribution | None:
        """Return the contribution of a job of a set, computed once."""
        scale = self.pool.scale.tobytes()
        cached = measures.setdefault((*self._kind, scale), {})
        if position not in cached:
            cached[position] = self._measure(job)
        return cached[position]

    @property
    def _kind(self) -> tuple[object, ...]:
        """Everything besides the pool that affects a job's contribution."""
        return self.carries, self.floor.kind, self.horizon, self.until, self.known

    def learn_all(self, jobs: Sequence[Job]) -> None:
        """Add the whole job set.

        If job sets that differ in one job follow each other (`remembered`), the other jobs are
        processed once.
        """
        memory = active_cache()
        if memory is None:
            self.learn(jobs)
            return
        changed = memory.position
        key = (*self._kind, self.pool.scale.tobytes())
        if key not in memory.around:
            earlier, later = self.copy(), self.copy()
            for position, job in enumerate(jobs):
                if position != changed:
                    learner = earlier if position < changed else later
                    learner._take_in(job, self._measured(job, position, memory.measures))
            memory.around[key] = earlier, later
        earlier, later = memory.around[key]
        merged = earlier.copy()
        merged._learn(jobs[changed])
        merged._join(later)
        vars(self).update(vars(merged))

    def _join(self, other: ConstantsLearner) -> None:
        """Add the jobs of another learner, as if they had come later."""
        np.maximum(self._ln_upper, other._ln_upper, out=self._ln_upper)
        self._ln_least_rate = min(self._ln_least_rate, other._ln_least_rate)
        self._ln_least_use = min(self._ln_least_use, other._ln_least_use)
        self._longest = max(self._longest, other._longest)
        self._ln_alone = max(self._ln_alone, other._ln_alone)
        if other._arrivals is not None:
            first, last = self._arrivals or other._arrivals
            self._arrivals = min(first, other._arrivals[0]), max(last, other._arrivals[1])
        self._market.join(other._market)
        self._elsewhere.join(other._elsewhere)

    def constants_with(self, job: Job) -> PriceConstants | None:
        """Return the constants with one more job, None if they stayed the same; learns nothing.

        A job's clearing price is that of earlier jobs, so nothing that grows with their number is
        copied unless all jobs are known.
        """
        if self.known and self.floor.kind == "clearing":
            clone = self.copy()
            return clone.constants() if clone.learn((job,)) else None
        clone = copy(self)
        clone._ln_upper = self._ln_upper.copy()
        before = self.constants()
        clone._learn(job, for_good=False)
        after = clone.constants()
        return after if _differ(before, after) else None

    def _learn(self, job: Job, *, for_good: bool = True) -> None:
        self._take_in(job, self._measure(job), for_good=for_good)

    def _take_in(
        self, job: Job, measure: PriceContribution | None, *, for_good: bool = True
    ) -> None:
        if not job.payable:
            return
        window = self._window(job)
        if self.floor.kind == "guaranteed" and self.floor.alone is not None and window > 0:
            # D0 and the optimum are over all pools and jobs, whatever this job needs.
            ln_alone = min(self.floor.alone.ln_utility(job, window), math.log(job.payable))
            self._ln_alone = max(self._ln_alone, ln_alone)
            first, last = self._arrivals or (job.arrival, job.arrival)
            self._arrivals = min(first, job.arrival), max(last, job.arrival)
        if measure is None:
            return
        if for_good and not self.known:
            self._elsewhere.add(measure)
        np.maximum(self._ln_upper, measure.ln_upper, out=self._ln_upper)
        if math.isfinite(measure.ln_worst) and math.isfinite(measure.ln_use):
            self._ln_least_rate = min(self._ln_least_rate, measure.ln_worst - measure.ln_use)
        self._ln_least_use = min(self._ln_least_use, measure.ln_use)
        self._longest = max(self._longest, measure.window)
        if self.floor.kind == "clearing":
            market = self._market
            if not self.known:
                # The price of earlier jobs: a job doesn't raise its own price.
                self._ln_clearing = market.ln_price() if for_good else market.ln_price_to_come()
            if for_good:
                rate = measure.ln_best - measure.ln_use
                amounts = measure.demand * np.float64(measure.slots)
                uses = measure.slots * measure.shares
                market.add(job.arrival, measure.ln_best, rate, uses, amounts)

    def _measure(self, job: Job) -> PriceContribution | None:
        """Return a job's contribution, None if it has no demand, no points or no time to run.

        Its utility counts up to what its tenant could pay.
        """
        if not job.payable:
            return None
        demand = self._demand(job)
        window = self._window(job)
        if demand is None or not demand.any() or window <= 0:
            return None
        shares = self.pool.shares(demand)
        priced = shares > 0
        # (23), (24), (3.13); reading 2: the argument is the shortest duration itself. The proof
        # wants the most a job can earn, which is a slot earlier: d = 0 in the slot of arrival.
        duration = self._shortest(job) - (self.floor.kind == "guaranteed")
        ln_payable = math.log(job.payable)
        ln_best = min(float(job.utility.log_values(np.array([duration]))[0]), ln_payable)
        ln_upper = np.full(len(shares), -np.inf)
        ln_upper[priced] = ln_best - np.log(shares[priced])
        slots = worker_slots(job)
        # Infinite if no server of the pool has the resources: the job then doesn't count.
        ln_use = math.log(slots) + _ln(float(shares.sum())) if priced.any() else math.inf
        useful = window if job.bag is None else min(window, job.bag.slots)
        ln_worst = min(_ln_smallest_utility(job, useful), ln_payable)
        return PriceContribution(ln_upper, ln_best, ln_worst, ln_use, slots, window, demand, shares)

    def covers(self, job: Job, constants: PriceConstants) -> bool:
        """Return whether no utility of a job per share of a resource exceeds U.

        The proofs of OASiS's Theorem 4 and PD-ORS's Theorem 3 assume it. A job can complete in its
        arrival slot, so the largest utility is that of the shortest duration less one. (23), (24)
        and (3.13) take the shortest duration itself.
        """
        demand = self._demand(job)
        if demand is None:
            return True
        shares = self.pool.shares(demand)
        requested = shares > 0
        ln_best = float(job.utility.log_values(np.array([self._shortest(job) - 1]))[0])
        needed = ln_best - np.log(shares[requested])
        return bool((needed <= constants.ln_upper[requested] + _ROUNDING).all())

    @property
    def _pools(self) -> int:
        """Return the number of pools that share D0, which is at most half of the optimum.

        OASiS prices two pools, hence 1/4 in (25) and (26); PD-ORS prices one, hence 1/2 in (3.14).
        """
        return 1 if self.carries == "both" else 2

    def _demand(self, job: Job) -> Amounts | None:
        if self.carries == "workers" or (self.carries == "both" and job.ps is None):
            return job.worker
        if self.carries == "ps" or job.ps is None:
            return job.ps
        return np.asarray(job.worker + job.ps, dtype=np.int64)

    def _shortest(self, job: Job) -> int:
        """Return the minimum slots in which the job could complete on this pool."""
        return job.min_slots_colocated if self.carries == "both" else job.shortest_slots

    def _window(self, job: Job) -> int:
        """Return the number of slots in which the job could run."""
        if self.until is None:
            return self.horizon
        return min(self.horizon, self.until - job.arrival)

    def constants(self) -> PriceConstants:
        """Return the constants over the jobs so far, the same object until they change."""
        # Cached, because most jobs change nothing and each needs the constants twice.
        market = self._market.seen if self.known and self.floor.kind == "clearing" else 0
        state = (
            self._ln_upper.tobytes(),
            (self._ln_least_rate, self._ln_least_use, self._longest),
            (self._ln_alone, self._arrivals),
            (self._ln_clearing, market),
        )
        if self._worked_out is None or self._worked_out[0] != state:
            self._worked_out = state, self._constants()
        return self._worked_out[1]

    def _constants(self) -> PriceConstants:
        if not math.isfinite(self._ln_least_rate):
            return PriceConstants(-math.inf, self._ln_upper.copy())
        timespan = self._longest if self.until is None else max(1, self.until - self.since)
        # 1 / eta <= use_i / (T * sum of capacities) for every job i, below (26).
        ln_eta = (
            math.log(timespan) + math.log(float(self.pool.total_shares.sum())) - self._ln_least_use
        )
        ln_lower = -math.log(2.0 * self._pools) - ln_eta + self._ln_least_rate
        if self.floor.kind == "guaranteed":
            ln_lower = self._ln_guaranteed()
        elif self.floor.kind == "clearing":
            clearing = self._market.ln_price() if self.known else self._ln_clearing
            ln_lower = max(ln_lower, clearing)
        upper = np.where(np.isneginf(self._ln_upper), -np.inf, np.maximum(self._ln_upper, ln_lower))
        return PriceConstants(ln_lower, upper)

    def _ln_guaranteed(self) -> float:
        """Return ln L at which this pool's part of D0 is its part of half the best job's utility.

        D0 = T * L * sum of the priced capacities; over all pools it must be at most OPT / 2. If no
        job is known to complete alone, only L = 0 ensures that.
        """
        priced = float(self.pool.total_shares[np.isfinite(self._ln_upper)].sum())
        if self._arrivals is None or not priced:
            return -math.inf
        first, last = self._arrivals
        if self.until is not None:
            timespan = max(1, self.until - max(first, self.since))
        else:
            timespan = last - first + self.horizon
            if not self.known:
                # Rounded up to a power of two, so that not every arrival changes the prices.
                timespan = self.horizon << (-(-timespan // self.horizon) - 1).bit_length()
        return self._ln_alone - math.log(2.0 * self._pools * timespan * priced)


@dataclass
class _Elsewhere:
    """Amounts of the jobs seen so far, independent of the servers' capacities.

    Attributes
    ----------
    ln_worth : ndarray of float64, shape (resources,)
        ln of the maximum utility for an amount of 1 of each resource; ``-inf`` without a demand.
    rates : Extreme
        Amounts over all worker-slots, divided by the smallest utility: 1 over the least density.
    uses : Extreme
        Amounts over all worker-slots.
    """

    ln_worth: Floats
    rates: ExtremeShareSum
    uses: ExtremeShareSum

    @classmethod
    def of(cls, resources: int) -> _Elsewhere:
        rates, uses = (
            ExtremeShareSum(resources, largest=True),
            ExtremeShareSum(resources, largest=False),
        )
        return cls(np.full(resources, -np.inf), rates, uses)

    def copy(self) -> _Elsewhere:
        return _Elsewhere(self.ln_worth, copy(self.rates), copy(self.uses))

    def add(self, measure: PriceContribution) -> None:
        needed = measure.demand > 0
        ln_demand = np.log(measure.demand, out=np.full(len(needed), -np.inf), where=needed)
        ln_worth = np.where(needed, measure.ln_best, -np.inf)
        np.subtract(ln_worth, ln_demand, out=ln_worth, where=needed)
        self.ln_worth = np.maximum(self.ln_worth, ln_worth)
        used = ln_demand + math.log(measure.slots)
        self.uses.add(used)
        if math.isfinite(measure.ln_worst):
            self.rates.add(used - measure.ln_worst)

    def join(self, other: _Elsewhere) -> None:
        self.ln_worth = np.maximum(self.ln_worth, other.ln_worth)
        self.rates.join(other.rates)
        self.uses.join(other.uses)

    def ln_upper(self, scale: Floats) -> Floats:
        """Return ln U for servers whose largest capacities are ``scale``."""
        priced = scale > 0
        return np.where(priced, self.ln_worth + np.log(np.where(priced, scale, 1.0)), -np.inf)


def worker_slots(job: Job) -> int:
    """Return the maximum worker-slots that a job takes, ``ceil(E N M (tau + 2 e / b))``.

    With a measured throughput curve, the amount depends on the worker count. The most wasteful
    count applies, because L is a lower bound. A bag of tasks counts with one copy of each.
    """
    if job.bag is not None:
        return math.ceil(job.bag.worker_slots)
    # A float is exact enough: the amount only enters L, through its logarithm.
    return math.ceil(float((job.worker_counts * (job.required / job.gains)).max()))


def given_constants(
    lower: float, upper: Mapping[str, float], resources: Sequence[str]
) -> PriceConstants:
    """Return constants given by a user, as utilities per slot for a share of 1."""
    ln_upper = np.array([_ln(upper.get(resource, 0.0)) for resource in resources])
    return PriceConstants(_ln(lower), ln_upper)


def _ln_smallest_utility(job: Job, window: int) -> float:
    """Return the logarithm of the smallest positive utility of completing within the window."""
    ln_utilities = job.utility.log_values(np.arange(window))
    positive = ln_utilities[np.isfinite(ln_utilities)]
    return float(positive[-1]) if len(positive) else -math.inf


def _differ(one: PriceConstants, other: PriceConstants) -> bool:
    if one is other:
        return False
    return one.ln_lower != other.ln_lower or bool((one.ln_upper != other.ln_upper).any())


def _ln(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf

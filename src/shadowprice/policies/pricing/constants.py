"""The constants L and U of the exponential price functions: OASiS (23)-(26), PD-ORS (3.13)-(3.14).

All of it happens on logarithms: with a sigmoid of decay 5, the smallest utility underflows and U/L
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
from shadowprice.policies.pricing.alone import Alone
from shadowprice.policies.pricing.clearing import ClearingPrice
from shadowprice.policies.pricing.extremes import Extreme
from shadowprice.policies.pricing.measures import Measure, Measures, what_is_remembered

Floats = NDArray[np.float64]

Carries = Literal["workers", "ps", "both"]
Lower = Literal["theory", "guaranteed", "clearing"]
Absorbs = Literal["U", "L"]


class Floor(NamedTuple):
    """What L is, and what it takes to know it.

    Attributes
    ----------
    kind : {"theory", "guaranteed", "clearing"}
        theory: (25), (26), (3.14). clearing: that, raised to the price at which the demand would
        clear (`ClearingPrice`). guaranteed: the L at which prices of empty servers come to half of
        what one job earns alone.
    alone : Alone or None
        What a job earns alone, for ``guaranteed``.
    """

    kind: Lower = "theory"
    alone: Alone | None = None


@dataclass(frozen=True, eq=False)
class Pool:
    """Servers that are priced together.

    Parameters
    ----------
    members : ndarray of bool, shape (servers,)
        Which servers belong to it.
    scale : ndarray of float64, shape (resources,)
        Largest capacity in the pool; 0 where the pool has none of a resource or does not limit it.
    total_shares : ndarray of float64, shape (resources,)
        Sum of the capacities that have a price, as shares of the resource's scale: a server that
        does not limit a resource asks nothing for it.
    unlimited : ndarray of bool, shape (resources,)
        Resources that some server does not limit.
    """

    members: NDArray[np.bool_]
    scale: Floats
    total_shares: Floats
    unlimited: NDArray[np.bool_]

    @property
    def room(self) -> Floats:
        """What the pool holds of each resource, in shares; infinite where a server limits none."""
        return np.where(self.unlimited, np.inf, self.total_shares)

    @classmethod
    def of(cls, cluster: Cluster, members: NDArray[np.bool_]) -> Pool:
        """Measure a pool of a cluster's servers."""
        scale = cluster.pool_scale(members)
        unlimited = cluster.capacity[members] >= UNLIMITED
        amounts = np.where(unlimited, 0, cluster.capacity[members]).sum(axis=0)
        total = np.divide(amounts, scale, out=np.zeros(len(scale)), where=scale > 0)
        return cls(members, scale, total, np.asarray(unlimited.any(axis=0), dtype=np.bool_))

    def shares(self, demand: Amounts) -> Floats:
        """Return a demand as shares of the pool's scale, 0 for what the pool does not limit."""
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
        ln L, utility per slot for a share of 1; one for all resources.
    ln_upper : ndarray of float64, shape (resources,)
        ln U by resource; ``-inf`` where no job asks for it, and the resource is then free.
    """

    ln_lower: float
    ln_upper: Floats

    def scaled(self, factor: float, absorbs: Absorbs = "U") -> PriceConstants:
        """Return constants whose every ratio U/L is ``factor`` times this one's.

        OASiS's Fig. 6 estimates the ratios, and does not say which constant is then wrong. A ratio
        never falls below 1.

        Parameters
        ----------
        factor : float
            The estimated ratio over the true one.
        absorbs : {"U", "L"}
            U: L stays, and U is estimated wrongly. L: U stays, and L is.
        """
        asked = np.isfinite(self.ln_upper)
        lower = self.ln_lower - math.log(factor) if absorbs == "L" else self.ln_lower
        upper = self.ln_upper + (math.log(factor) if absorbs == "U" else 0.0)
        return PriceConstants(lower, np.where(asked, np.maximum(upper, lower), -np.inf))

    def record(self, resources: Sequence[str]) -> dict[str, object]:
        """Return the constants as ``run.json`` writes them."""
        upper = {
            name: float(value)
            for name, value in zip(resources, self.ln_upper, strict=True)
            if np.isfinite(value)
        }
        return {"ln_L": self.ln_lower if math.isfinite(self.ln_lower) else None, "ln_U": upper}


_AS_PRINTED: Final = Floor()


@dataclass
class ConstantsLearner:
    """The constants over the jobs seen so far; (23)-(26), or (3.13)-(3.14), over exactly those.

    Parameters
    ----------
    pool : Pool
        The servers priced.
    carries : {"workers", "ps", "both"}
        What the pool carries: workers (23), (25); parameter servers (24), (26); or both, where a
        job asks for the sum of the two demands and may run at its internal rate (3.13), (3.14).
    horizon : int
        Slots a planner looks ahead.
    until : int or None
        End of the timespan T.
    floor : Floor
        What L is.
    known : bool
        Whether the jobs taken in are all there will be (`ClearingPrice`).
    since : int
        Slot in which the timespan began: a live service has one only once it is set.
    """

    pool: Pool
    carries: Carries
    horizon: int
    until: int | None
    floor: Floor = _AS_PRINTED
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
    """What `constants` gave last, and all that it depends on: no part of the memory."""

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
        """Return a learner that has seen the same jobs, and may be shown others."""
        twin = copy(self)
        twin._ln_upper = self._ln_upper.copy()
        twin._market = self._market.copy()
        twin._elsewhere = self._elsewhere.copy()
        return twin

    def moved(self, pool: Pool, alone: Alone | None = None) -> ConstantsLearner:
        """Return a learner that has seen the same jobs, for other servers.

        What was learnt is in shares of the pool's largest capacities. Where those are others, it is
        what the same jobs would have taught in shares of these. What jobs seen so far earn alone
        stays as it was, and so does what was known of all jobs beforehand.
        """
        twin = self.copy()
        twin.pool = pool
        twin.floor = self.floor._replace(alone=alone)
        twin._worked_out = None
        resized = not np.array_equal(pool.scale, self.pool.scale)
        twin._market.resize(pool.room, pool.scale if resized else None)
        if resized and not self.known:
            twin._ln_upper = self._elsewhere.ln_upper(pool.scale)
            twin._ln_least_rate = -self._elsewhere.rates.ln_sum(pool.scale)
            twin._ln_least_use = self._elsewhere.uses.ln_sum(pool.scale)
            twin._ln_clearing = twin._market.ln_price()
        return twin

    def within(self, until: int | None, since: int) -> ConstantsLearner:
        """Return a learner that has seen the same jobs, for a timespan [since, until)."""
        twin = self.copy()
        twin.until, twin.since, twin._worked_out = until, since, None
        return twin

    def learn(self, jobs: Iterable[Job]) -> bool:
        """Take jobs in; return whether the constants changed."""
        before = self.constants()
        for job in jobs:
            self._learn(job)
        return _differ(before, self.constants())

    def learn_again(self, job: Job, position: int, measures: Measures) -> bool:
        """Take a job of a set in that is gone through again and again, as `learn` does."""
        before = self.constants()
        self._take_in(job, self._measured(job, position, measures))
        return _differ(before, self.constants())

    def _measured(self, job: Job, position: int, measures: Measures) -> Measure | None:
        """Return what a job of a set adds, worked out once."""
        scale = self.pool.scale.tobytes()
        known = measures.setdefault((*self._kind, scale), {})
        if position not in known:
            known[position] = self._measure(job)
        return known[position]

    @property
    def _kind(self) -> tuple[object, ...]:
        """What makes a difference to what a job adds, the pool apart."""
        return self.carries, self.floor.kind, self.horizon, self.until, self.known

    def learn_all(self, jobs: Sequence[Job]) -> None:
        """Take the whole job set in.

        Where job sets that differ in one job are taken in one after the other (`remembered`), all
        but that one is worked out once.
        """
        memory = what_is_remembered()
        if memory is None:
            self.learn(jobs)
            return
        at = memory.position
        key = (*self._kind, self.pool.scale.tobytes())
        if key not in memory.around:
            before, behind = self.copy(), self.copy()
            for position, job in enumerate(jobs):
                if position != at:
                    learner = before if position < at else behind
                    learner._take_in(job, self._measured(job, position, memory.measures))
            memory.around[key] = before, behind
        before, behind = memory.around[key]
        whole = before.copy()
        whole._learn(jobs[at])
        whole._join(behind)
        vars(self).update(vars(whole))

    def _join(self, other: ConstantsLearner) -> None:
        """Take in what another learner has seen, as if it had come behind."""
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

    def if_shown(self, job: Job) -> PriceConstants | None:
        """Return the constants if a job were taken in, None if they stayed as they are.

        Nothing is learnt, and nothing is copied that grows with the jobs seen so far: the clearing
        price that a job meets is that of those before it.
        """
        if self.known and self.floor.kind == "clearing":
            twin = self.copy()
            return twin.constants() if twin.learn((job,)) else None
        twin = copy(self)
        twin._ln_upper = self._ln_upper.copy()
        before = self.constants()
        twin._learn(job, for_good=False)
        after = twin.constants()
        return after if _differ(before, after) else None

    def _learn(self, job: Job, *, for_good: bool = True) -> None:
        self._take_in(job, self._measure(job), for_good=for_good)

    def _take_in(self, job: Job, measure: Measure | None, *, for_good: bool = True) -> None:
        window = self._window(job)
        if self.floor.kind == "guaranteed" and self.floor.alone is not None and window > 0:
            # D0 and the optimum are those of all pools and jobs, whoever asks for what.
            self._ln_alone = max(self._ln_alone, self.floor.alone.ln_utility(job, window))
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
                # What those before it suggest: no job raises the price that it is asked itself.
                self._ln_clearing = market.ln_price() if for_good else market.ln_price_to_come()
            if for_good:
                rate = measure.ln_best - measure.ln_use
                amounts = measure.demand * np.float64(measure.slots)
                uses = measure.slots * measure.shares
                market.add(job.arrival, measure.ln_best, rate, uses, amounts)

    def _measure(self, job: Job) -> Measure | None:
        """Return what a job adds, None where it asks for nothing or has no time to run."""
        demand = self._demand(job)
        window = self._window(job)
        if demand is None or not demand.any() or window <= 0:
            return None
        shares = self.pool.shares(demand)
        asked = shares > 0
        # (23), (24), (3.13); reading 2: the argument is the shortest duration itself. The proof
        # wants the most a job can earn, which is a slot earlier: d = 0 in the slot of arrival.
        duration = self._shortest(job) - (self.floor.kind == "guaranteed")
        ln_best = float(job.utility.log_values(np.array([duration]))[0])
        ln_upper = np.full(len(shares), -np.inf)
        ln_upper[asked] = ln_best - np.log(shares[asked])
        slots = worker_slots(job)
        # Of what no server of the pool has, nothing is used.
        ln_use = math.log(slots) + _ln(float(shares.sum())) if asked.any() else math.inf
        useful = window if job.bag is None else min(window, job.bag.slots)
        ln_worst = _ln_smallest_utility(job, useful)
        return Measure(ln_upper, ln_best, ln_worst, ln_use, slots, window, demand, shares)

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
        """Return the fewest slots in which the job could complete on this pool."""
        return job.fastest_slots if self.carries == "both" else job.shortest_slots

    def _window(self, job: Job) -> int:
        """Return the slots in which the job could run."""
        if self.until is None:
            return self.horizon
        return min(self.horizon, self.until - job.arrival)

    def constants(self) -> PriceConstants:
        """Return the constants over the jobs taken in so far, the same object until they change."""
        # Most jobs add nothing new, and every one of them has it asked for twice.
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
        """Return ln L with which this pool's part of D0 is its part of half the best job's worth.

        D0 = T * L * sum of the capacities that have a price, all pools together at most OPT / 2.
        Where no job is known to complete alone, nothing but L = 0 is known to keep that.
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
                # It grows with every arrival, and prices would change with it: to a power of two.
                timespan = self.horizon << (-(-timespan // self.horizon) - 1).bit_length()
        return self._ln_alone - math.log(2.0 * self._pools * timespan * priced)


@dataclass
class _Elsewhere:
    """What the jobs seen so far come to on servers of whatever size.

    Attributes
    ----------
    ln_worth : ndarray of float64, shape (resources,)
        ln of the largest utility for an amount of 1 of each resource; ``-inf`` where none was
        asked for.
    rates : Extreme
        Of amounts over all worker-slots, over the smallest utility: one over the least density.
    uses : Extreme
        Of amounts over all worker-slots.
    """

    ln_worth: Floats
    rates: Extreme
    uses: Extreme

    @classmethod
    def of(cls, resources: int) -> _Elsewhere:
        rates, uses = Extreme(resources, largest=True), Extreme(resources, largest=False)
        return cls(np.full(resources, -np.inf), rates, uses)

    def copy(self) -> _Elsewhere:
        return _Elsewhere(self.ln_worth, copy(self.rates), copy(self.uses))

    def add(self, measure: Measure) -> None:
        asked = measure.demand > 0
        ln_demand = np.log(measure.demand, out=np.full(len(asked), -np.inf), where=asked)
        worth = np.where(asked, measure.ln_best, -np.inf)
        np.subtract(worth, ln_demand, out=worth, where=asked)
        self.ln_worth = np.maximum(self.ln_worth, worth)
        used = ln_demand + math.log(measure.slots)
        self.uses.add(used)
        if math.isfinite(measure.ln_worst):
            self.rates.add(used - measure.ln_worst)

    def join(self, other: _Elsewhere) -> None:
        self.ln_worth = np.maximum(self.ln_worth, other.ln_worth)
        self.rates.join(other.rates)
        self.uses.join(other.uses)

    def ln_upper(self, scale: Floats) -> Floats:
        """Return ln U of servers whose largest capacities are ``scale``."""
        here = scale > 0
        return np.where(here, self.ln_worth + np.log(np.where(here, scale, 1.0)), -np.inf)


def worker_slots(job: Job) -> int:
    """Return the most worker-slots that a job takes, ``ceil(E N M (tau + 2 e / b))``.

    For a measured throughput curve the amount depends on the number of workers; the most wasteful
    number counts, as L is a lower bound. A bag of tasks counts with one copy of each.
    """
    if job.bag is not None:
        return math.ceil(job.bag.worker_slots)
    # A float is exact enough: the amount only enters L, through its logarithm.
    return math.ceil(float((job.worker_counts * (job.required / job.gains)).max()))


def given_constants(
    lower: float, upper: Mapping[str, float], resources: Sequence[str]
) -> PriceConstants:
    """Return constants that a user gives, as utilities per slot for a share of 1."""
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

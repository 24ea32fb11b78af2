"""Constants L and U of exponential prices: OASiS (23)-(26), PD-ORS (3.13)-(3.14).

All computation is on logarithms. With a sigmoid of decay 5, the smallest utility underflows and U/L
reaches e^1400 (papers' README, reading 3). Amounts are shares of the largest capacity in the pool,
so that prices do not depend on units (reading 4).

A job *teaches* a pool if the pool's constants are computed over it. With ``prices=offline`` all
jobs of the set teach, with ``prices=online`` only admitted ones
(`design/0039-what-teaches-a-price.md`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.job import Job
from shadowprice.policies.pricing.alone import StandaloneValue

_IDLE_WINDOW_DIVISOR: Final = 8  # an idle eighth of a window is assumed before the first slot
_RENEWAL_DIVISOR: Final = 50  # the clearing price changes when a fiftieth of the jobs is new


class PriceContribution(NamedTuple):
    """Contribution of one job to the constants of a pool."""

    ln_best: Floats
    """Ln of two utilities, where n is the job's shortest duration in slots: u(n), which the papers
    print, and u(n - 1), of completion in the first possible slot. The second replaces the first
    where the first is 0 for all jobs."""
    ln_upper: Floats
    """Ln of both per share of each resource, shape (2, resources); -inf if it isn't needed."""
    ln_worst: float  # ln of the job's smallest positive utility
    ln_use: float
    """Ln of the shares that the job takes, summed over resources and worker-slots. Infinite if no
    server of the pool has the resources; the job then contributes nothing."""
    slots: int  # worker-slots of the job
    window: int  # slots in which the job could run
    demand: Amounts  # of one worker (or parameter server)
    shares: Floats  # the demand in shares


def ln_price_of_known(
    jobs: Sequence[tuple[int, PriceContribution]], capacity: Floats, window: int
) -> float:
    """Return ln of the price at which the demand of jobs that are known in advance clears.

    The papers' L, (25), (26) and (3.14), is for the worst case. It is below the utility density
    (utility per share and slot) of every job, even of one that completes at T for nearly nothing.
    Prices are then near 0 until a server is nearly full.

    The clearing price treats the pool as one big machine over one planning window. It accepts the
    window's jobs by falling density until a resource is used up. The price is the density of the
    last accepted job, or 0 if all fit. The result is that of the busiest window, because demand is
    bursty.

    ``jobs`` are arrivals and contributions; ``capacity`` is the pool's, in shares.
    """
    arrivals, densities, uses = _demand_arrays(jobs)
    if not len(arrivals):
        return -math.inf
    window = max(window, 1)
    windows = (arrivals - arrivals.min()) // window
    return max(
        _ln_clearing(densities[windows == index], uses[windows == index], window * capacity)
        for index in np.unique(windows)
    )


def _demand_arrays(
    jobs: Sequence[tuple[int, PriceContribution]],
) -> tuple[Integers, Floats, Floats]:
    """Return each job's arrival, ln of its utility density, and use by resource.

    Jobs with a utility u(n) of 0 are left out. If it is 0 for all jobs, u(n - 1) replaces it.
    """
    ln_bests, ln_firsts = np.array([job.ln_best for _, job in jobs]).reshape(-1, 2).T
    if np.isinf(ln_bests).all():
        ln_bests = ln_firsts
    useful = np.isfinite(ln_bests)
    arrivals = np.array([arrival for arrival, _ in jobs], dtype=np.int64)
    ln_uses = np.array([job.ln_use for _, job in jobs])
    slots = np.array([job.slots for _, job in jobs], dtype=np.int64)
    shares = np.array([job.shares for _, job in jobs])
    return arrivals[useful], (ln_bests - ln_uses)[useful], (slots[:, None] * shares)[useful]


def _ln_clearing(densities: Floats, uses: Floats, room: Floats) -> float:
    """Return the density of the job that uses up a resource, densest first; ``-inf`` if none."""
    limited = room > 0
    order = np.argsort(-densities, kind="stable")
    taken = np.cumsum(uses[order][:, limited], axis=0)
    full = (taken >= room[limited]).any(axis=1)
    return float(densities[order][int(np.argmax(full))]) if full.any() else -math.inf


_PRICED_PART: Final = 0.5  # part of the pool that promised jobs fill at their clearing price
_DEMAND_EXPONENT: Final = 4
"""If promised jobs fill less than the priced part, the price falls with this power of the ratio."""
_DISCOUNT: Final = 0.45
"""Price over the density of the last accepted job. It is below a half, so that equal jobs still
have a positive payoff if they pay in two pools."""


def ln_price_of_promises(
    jobs: Sequence[tuple[int, PriceContribution]], capacity: Floats, slots: int, window: int
) -> float:
    """Return ln of the price at which the promised jobs fill half of the pool.

    Promised jobs never exceed the capacity, so the price at which they would fill all of it is 0
    even under heavy demand. The price at which they fill half is stable: if it is too high, fewer
    jobs are promised, and it falls. If they fill less than half, the price is below the density of
    every promised job, and falls with the demand.

    ``jobs`` are in the order of their promises. Up to the latest 2 % are left out, because a change
    of prices costs time in all slots. The capacity is that of the ``slots`` so far, at most
    ``window``.
    """
    _, densities, uses = _demand_arrays(jobs[: _renewed_count(len(jobs))])
    if not len(densities):
        return -math.inf
    slots = min(slots + max(1, window // _IDLE_WINDOW_DIVISOR), window)
    room = _PRICED_PART * slots * capacity
    ln_price = _ln_clearing(densities, uses, room)
    if ln_price > -math.inf:
        return ln_price + math.log(_DISCOUNT)
    limited = room > 0
    part = float((uses.sum(axis=0)[limited] / room[limited]).max(initial=0.0))
    if part <= 0:
        return -math.inf
    return float(densities.min()) + math.log(_DISCOUNT) + _DEMAND_EXPONENT * math.log(part)


def _renewed_count(count: int) -> int:
    """Return how many of ``count`` jobs set the price; it grows in steps of a fiftieth."""
    counted = 0
    while (following := counted + max(1, counted // _RENEWAL_DIVISOR)) <= count:
        counted = following
    return counted


Carries = Literal["workers", "ps", "both"]
Lower = Literal["theory", "guaranteed", "clearing"]
Absorbs = Literal["U", "L"]


class LowerConstant(NamedTuple):
    """Definition of L, and the data that it needs."""

    kind: Lower = "theory"
    """"theory" is L of (25), (26), (3.14). "clearing" is the larger of that L and the clearing
    price: `ln_price_of_known` if all jobs are known, else `ln_price_of_promises`. With
    "guaranteed", the prices of empty servers over the timespan add up to half of what one job earns
    alone."""
    alone: StandaloneValue | None = None  # needed for "guaranteed"


@dataclass(frozen=True, eq=False)
class PricePool:
    """Servers that are priced together."""

    members: Flags  # shape (servers,)
    scale: Floats
    """Largest capacity in the pool by resource; 0 if the pool lacks it or doesn't limit it."""
    total_shares: Floats
    """Sum of the limited capacities by resource, in shares of `scale`. A resource is free on
    servers that don't limit it."""
    unlimited: Flags  # resources that some server doesn't limit

    @property
    def room(self) -> Floats:
        """Capacity of the pool by resource, in shares; infinite if some server has no limit."""
        return np.where(self.unlimited, np.inf, self.total_shares)

    @classmethod
    def of(cls, cluster: Cluster, members: Flags) -> PricePool:
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
    """L and U of one pool, as natural logarithms of utilities per slot for a share of 1."""

    ln_lower: float  # ln L, the same for all resources
    ln_upper: Floats  # ln U by resource; -inf for resources that no job needs, which are free

    def differ(self, other: PriceConstants) -> bool:
        """Return whether other constants give other prices."""
        same_lower = self.ln_lower == other.ln_lower
        return not same_lower or bool((self.ln_upper != other.ln_upper).any())

    def scaled(self, factor: float, absorbs: Absorbs = "U") -> PriceConstants:
        """Return constants with each ratio U/L multiplied by ``factor``, but at least 1.

        OASiS's Fig. 6 uses estimated ratios, and does not say which constant is wrong. ``factor``
        is the estimated ratio over the true one; ``absorbs`` is the constant that changes.
        """
        priced = np.isfinite(self.ln_upper)
        lower = self.ln_lower - math.log(factor) if absorbs == "L" else self.ln_lower
        upper = self.ln_upper + (math.log(factor) if absorbs == "U" else 0.0)
        return PriceConstants(lower, np.where(priced, np.maximum(upper, lower), -np.inf))

    def lowered(self, ln_factor: float) -> PriceConstants:
        """Return constants with L multiplied by a factor of at most 1, given as its logarithm."""
        return PriceConstants(self.ln_lower + ln_factor, self.ln_upper)

    def record(self, resources: Sequence[str]) -> dict[str, object]:
        """Return the constants in the form of ``run.json``."""
        upper = {
            name: float(value)
            for name, value in zip(resources, self.ln_upper, strict=True)
            if np.isfinite(value)
        }
        return {"ln_L": self.ln_lower if math.isfinite(self.ln_lower) else None, "ln_U": upper}


_AS_PRINTED: Final = LowerConstant()

_ROUNDING: Final = 1e-9  # tolerated error of a difference of logarithms


class TaughtJob(NamedTuple):
    """Input of one job to the constants of a pool."""

    name: str
    arrival: int
    ln_alone: float | None  # ln of its utility alone on the cluster; None if L doesn't depend on it
    contribution: PriceContribution | None  # None if it doesn't use the pool

    def on(self, pool: PricePool) -> TaughtJob:
        """Return the input of the same job to another pool."""
        if self.contribution is None:
            return self
        return self._replace(contribution=_in_shares(pool, self.contribution))


class _Extremes(NamedTuple):
    """Extremes over the jobs that teach; the constants are computed from them."""

    ln_upper: Floats  # largest `PriceContribution.ln_upper`
    ln_min_density: float = math.inf  # of the smallest positive utility over the use of each job
    ln_min_use: float = math.inf
    max_window: int = 1
    ln_alone: float = -math.inf  # largest utility of a job that runs alone
    arrivals: tuple[int, int] | None = None  # first and last, of jobs with a utility alone

    def with_job(self, taught: TaughtJob) -> _Extremes:
        """Return the extremes over one more job."""
        ln_alone, arrivals = self.ln_alone, self.arrivals
        if taught.ln_alone is not None:
            ln_alone = max(ln_alone, taught.ln_alone)
            first, last = arrivals or (taught.arrival, taught.arrival)
            arrivals = min(first, taught.arrival), max(last, taught.arrival)
        contribution = taught.contribution
        if contribution is None:
            return self._replace(ln_alone=ln_alone, arrivals=arrivals)
        density = self.ln_min_density
        if math.isfinite(contribution.ln_worst) and math.isfinite(contribution.ln_use):
            density = min(density, contribution.ln_worst - contribution.ln_use)
        return _Extremes(
            np.maximum(self.ln_upper, contribution.ln_upper),
            density,
            min(self.ln_min_use, contribution.ln_use),
            max(self.max_window, contribution.window),
            ln_alone,
            arrivals,
        )

    @property
    def ln_upper_in_force(self) -> Floats:
        """Ln U of (23), (24), (3.13), with u(n); with u(n - 1) for resources where that is 0.

        A U of 0 would make the resource free at any load.
        """
        printed, first_slot = self.ln_upper
        return np.asarray(np.where(np.isneginf(printed), first_slot, printed), dtype=np.float64)


class ContributionCache:
    """Cache for learners of job sets that differ only in the job at one position.

    Advice changes one job of a set again and again. Caches of one job set can share
    ``contributions``; their keys are the learner's settings and the job.
    """

    def __init__(
        self,
        position: int,
        contributions: dict[tuple[object, ...], PriceContribution | None] | None = None,
    ) -> None:
        self.position = position
        self.contributions = {} if contributions is None else contributions
        # By the learner's settings: a learner of all other jobs, and how many precede the position.
        self.others: dict[tuple[object, ...], tuple[ConstantsLearner, int]] = {}


_ACTIVE: Final[ContextVar[ContributionCache | None]] = ContextVar("contributions", default=None)


@contextmanager
def use_cache(cache: ContributionCache) -> Iterator[None]:
    """Make learners that are built within the block use a cache."""
    token = _ACTIVE.set(cache)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


@dataclass
class ConstantsLearner:
    """Learns the constants (23)-(26), or (3.13)-(3.14), over a set of jobs.

    The set is known in advance, or grows by every promised job. A promised job teaches for one
    horizon from its arrival, unless it is cancelled or fails. The constants depend only on the jobs
    that teach and on the slot, so a job that was taken out leaves no trace.
    """

    pool: PricePool
    carries: Carries
    """Processes that the pool hosts: workers, for (23) and (25); parameter servers, for (24) and
    (26); or both, for (3.13) and (3.14). With both, a job's demand is the sum of the two demands,
    and the job may run at its internal rate."""
    horizon: int  # slots that a planner looks ahead
    until: int | None  # end of the timespan T
    floor: LowerConstant = _AS_PRINTED  # definition of L
    known: bool = True  # whether all jobs are known in advance
    since: int = 0  # first slot of the timespan; in a live service, the slot in which it was set
    _taught: tuple[TaughtJob, ...] = field(init=False, default=())
    """Jobs that teach, in order of their promises."""
    _extremes: _Extremes = field(init=False)
    _slot: int = field(init=False, default=0)
    _observed_since: int = field(init=False, default=0)
    """Slot since which demand is observed; unlike ``since``, a new timespan doesn't change it."""
    # Caches outside the policy state: inputs and result of `constants`, ln of the clearing price,
    # and contributions of jobs.
    _cached: tuple[object, PriceConstants] | None = field(init=False, default=None, repr=False)
    _cached_ln_clearing: float | None = field(init=False, default=None, repr=False)
    _cache: ContributionCache | None = field(init=False, default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_cached": None, "_cached_ln_clearing": None, "_cache": None}

    def __copy__(self) -> ConstantsLearner:
        clone = object.__new__(ConstantsLearner)
        vars(clone).update(vars(self))  # with the caches, unlike a pickled learner
        return clone

    def __post_init__(self) -> None:
        self._observed_since = self.since
        self._cache = _ACTIVE.get()
        self._relearn(())

    def moved(self, pool: PricePool, alone: StandaloneValue | None = None) -> ConstantsLearner:
        """Return a learner with the same jobs for other servers.

        Contributions are computed again from the amounts. A job's utility alone stays that on the
        former servers, because a learner doesn't keep the jobs.
        """
        clone = copy(self)
        clone.pool = pool
        clone.floor = self.floor._replace(alone=alone)
        clone._relearn([job.on(pool) for job in self._taught])
        return clone

    def within(self, until: int | None, since: int) -> ConstantsLearner:
        """Return a learner with the same jobs for the timespan ``[since, until)``."""
        clone = copy(self)
        clone.until, clone.since = until, since
        clone._cached = clone._cached_ln_clearing = None
        return clone

    def at(self, slot: int) -> ConstantsLearner:
        """Return the learner of a later slot, without jobs that arrived a horizon ago."""
        if self.known or slot <= self._slot:
            return self
        clone = copy(self)
        clone._slot, clone._cached_ln_clearing = slot, None
        taught = [job for job in self._taught if job.arrival > slot - self.horizon]
        if len(taught) < len(self._taught):
            clone._relearn(taught)
        return clone

    def without(self, name: str) -> ConstantsLearner:
        """Return a learner without the latest job of this name."""
        names = [job.name for job in self._taught]
        if name not in names:
            return self
        clone = copy(self)
        latest = len(names) - 1 - names[::-1].index(name)  # a name can be used again
        clone._relearn([*self._taught[:latest], *self._taught[latest + 1 :]])
        return clone

    def _relearn(self, jobs: Sequence[TaughtJob]) -> None:
        """Replace the jobs that teach by these."""
        self._extremes = _Extremes(np.full((2, len(self.pool.scale)), -np.inf))
        for job in jobs:
            self._extremes = self._extremes.with_job(job)
        self._taught, self._cached, self._cached_ln_clearing = tuple(jobs), None, None

    @property
    def is_used(self) -> bool:
        """Whether a job that teaches uses the pool."""
        return any(job.contribution is not None for job in self._taught)

    def learn(self, jobs: Iterable[Job]) -> bool:
        """Add jobs; return whether the constants changed."""
        before = self.constants()
        taught = [entry for entry in map(self._taught_job, jobs) if entry is not None]
        for job in taught:
            self._extremes = self._extremes.with_job(job)
        self._taught, self._cached_ln_clearing = (*self._taught, *taught), None
        return before.differ(self.constants())

    def learn_all(self, jobs: Sequence[Job]) -> None:
        """Add all jobs of a set. With a cache, the jobs that don't change are processed once."""
        cache = self._cache
        if cache is None:
            self.learn(jobs)
            return
        changed = cache.position
        if self._key not in cache.others:
            others = copy(self)
            others.learn(jobs[:changed])
            before = len(others._taught)
            others.learn(jobs[changed + 1 :])
            cache.others[self._key] = others, before
        others, before = cache.others[self._key]
        taught = self._taught_job(jobs[changed])
        self._extremes, self._taught = others._extremes, others._taught
        self._cached_ln_clearing = None
        if taught is not None:
            self._extremes = self._extremes.with_job(taught)
            self._taught = (*others._taught[:before], taught, *others._taught[before:])

    def constants_with(self, job: Job) -> PriceConstants:
        """Return the constants if the job taught too; the same object if nothing changes.

        If prices are learnt, the clearing price is still that of earlier jobs, so that a job
        doesn't raise the price that it meets.
        """
        before, taught = self.constants(), self._taught_job(job)
        if taught is None:
            return before
        clone = copy(self)
        clone._extremes = self._extremes.with_job(taught)
        if self.known:
            clone._taught, clone._cached_ln_clearing = (*self._taught, taught), None
        after = clone.constants()
        return after if before.differ(after) else before

    def _taught_job(self, job: Job) -> TaughtJob | None:
        if not job.payable:
            return None
        contribution = self._cached_contribution(job)
        ln_alone, window = None, self.window(job)
        if self.floor.kind == "guaranteed" and self.floor.alone is not None and window > 0:
            # Also of a job that doesn't use the pool: the optimum is over all pools and jobs.
            ln_alone = min(self.floor.alone.ln_utility(job, window), math.log(job.payable))
        if ln_alone is None and contribution is None:
            return None
        return TaughtJob(job.name, job.arrival, ln_alone, contribution)

    @property
    def _key(self) -> tuple[object, ...]:
        """All settings that affect a contribution, for cache keys."""
        scale = self.pool.scale.tobytes()
        return self.carries, self.floor.kind, self.horizon, self.until, self.known, scale

    def _cached_contribution(self, job: Job) -> PriceContribution | None:
        if self._cache is None:
            return self._contribution(job)
        key = (*self._key, job)
        if key not in self._cache.contributions:
            self._cache.contributions[key] = self._contribution(job)
        return self._cache.contributions[key]

    def _ln_clearing(self) -> float:
        """Return ln of the price at which the demand clears."""
        if self._cached_ln_clearing is None:
            jobs = [(job.arrival, job.contribution) for job in self._taught if job.contribution]
            span = self.horizon if self.until is None else min(self.horizon, self.until)
            if self.known:
                self._cached_ln_clearing = ln_price_of_known(jobs, self.pool.room, span)
            else:
                slots = max(0, self._slot - self._observed_since)
                self._cached_ln_clearing = ln_price_of_promises(jobs, self.pool.room, slots, span)
        return self._cached_ln_clearing

    def _contribution(self, job: Job) -> PriceContribution | None:
        """Return a job's contribution, None if it has no demand or no time to run.

        Its utilities are capped at the points that its tenant can pay (`Job.payable`).
        """
        demand, window = self._demand(job), self.window(job)
        if demand is None or not demand.any() or window <= 0:
            return None
        # u(n) of (23), (24), (3.13), by reading 2, and u(n - 1). The proof needs the largest
        # utility, which is u(n - 1), because the duration is 0 in the slot of arrival.
        shortest = self._shortest(job)
        ln_payable = math.log(job.payable)
        durations = np.array([shortest, shortest - 1])
        ln_best = np.minimum(job.utility.log_values(durations), ln_payable)
        if self.floor.kind == "guaranteed":
            ln_best[0] = ln_best[1]
        useful = window if job.bag is None else min(window, job.bag.slots)
        ln_worst = min(_ln_smallest_utility(job, useful), ln_payable)
        none, slots = np.zeros(len(demand)), worker_slots(job)
        amounts = PriceContribution(ln_best, none, ln_worst, 0.0, slots, window, demand, none)
        return _in_shares(self.pool, amounts)

    def shares_per_slot(self, job: Job) -> Floats:
        """Return the shares that each worker count takes per slot, summed over resources."""
        total = np.zeros(len(job.worker_counts))
        if self.carries != "ps":
            total += job.worker_counts * self.pool.shares(job.worker).sum()
        if self.carries != "workers" and job.ps is not None:
            total += job.ps_counts * self.pool.shares(job.ps).sum()
        return total

    def covers(self, job: Job, constants: PriceConstants) -> bool:
        """Return whether U is at least the job's largest utility per share of each resource.

        The proofs of OASiS's Theorem 4 and PD-ORS's Theorem 3 assume it. The largest utility is
        u(n - 1), because a job can complete in its arrival slot; (23), (24) and (3.13) print u(n).
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
        """Number of pools, which divide D0, the total of the initial prices, equally.

        D0 is at most half of the optimum. OASiS prices two pools, hence 1/4 in (25) and (26).
        PD-ORS prices one, hence 1/2 in (3.14).
        """
        return 1 if self.carries == "both" else 2

    def _demand(self, job: Job) -> Amounts | None:
        if self.carries == "workers" or (self.carries == "both" and job.ps is None):
            return job.worker
        if self.carries == "ps" or job.ps is None:
            return job.ps
        return np.asarray(job.worker + job.ps, dtype=np.int64)

    def _shortest(self, job: Job) -> int:
        return job.min_slots_colocated if self.carries == "both" else job.shortest_slots

    def window(self, job: Job) -> int:
        """Return the number of slots in which the job could run."""
        if self.until is None:
            return self.horizon
        return min(self.horizon, self.until - job.arrival)

    def constants(self) -> PriceConstants:
        """Return the constants over the jobs so far, the same object until they change."""
        # Cached, because each job reads the constants twice, and most jobs don't change them.
        ln_clearing = self._ln_clearing() if self.floor.kind == "clearing" else -math.inf
        ln_upper = self._extremes.ln_upper_in_force
        state = ln_upper.tobytes(), self._extremes[1:], ln_clearing
        if self._cached is None or self._cached[0] != state:
            self._cached = state, self._constants(ln_upper, ln_clearing)
        return self._cached[1]

    def _constants(self, ln_upper: Floats, ln_clearing: float) -> PriceConstants:
        extremes = self._extremes
        if not math.isfinite(extremes.ln_min_density):
            return PriceConstants(-math.inf, ln_upper)
        timespan = extremes.max_window if self.until is None else max(1, self.until - self.since)
        # 1 / eta <= use_i / (T * sum of capacities) for every job i, below (26).
        ln_eta = (
            math.log(timespan) + math.log(float(self.pool.total_shares.sum())) - extremes.ln_min_use
        )
        ln_theory = -math.log(2.0 * self._pools) - ln_eta + extremes.ln_min_density
        ln_lower = max(ln_theory, ln_clearing)
        if self.floor.kind == "guaranteed":
            ln_lower = self._ln_guaranteed()
        upper = np.where(np.isneginf(ln_upper), -np.inf, np.maximum(ln_upper, ln_lower))
        return PriceConstants(ln_lower, upper)

    def _ln_guaranteed(self) -> float:
        """Return ln of the largest L at which D0 is at most half of one job's utility alone.

        D0 = T * L * sum of the priced capacities over all pools; the proof needs D0 <= OPT / 2. The
        best job alone bounds OPT from below. If no job can complete alone, L is 0.
        """
        extremes = self._extremes
        priced = float(self.pool.total_shares[np.isfinite(extremes.ln_upper[0])].sum())
        if extremes.arrivals is None or not priced:
            return -math.inf
        first, last = extremes.arrivals
        if self.until is not None:
            # If jobs are learnt, refused ones may have arrived before the first that teaches.
            begin = max(first, self.since) if self.known else self.since
            timespan = max(1, self.until - begin)
        else:
            timespan = last - first + self.horizon
            if not self.known:
                # Rounded up to a power of two, so that not every arrival changes the prices.
                timespan = self.horizon << (-(-timespan // self.horizon) - 1).bit_length()
        return extremes.ln_alone - math.log(2.0 * self._pools * timespan * priced)


def _in_shares(pool: PricePool, contribution: PriceContribution) -> PriceContribution:
    """Return a contribution with its shares, and what follows from them, for this pool."""
    shares = pool.shares(contribution.demand)
    priced = shares > 0
    ln_upper = np.full((2, len(shares)), -np.inf)
    ln_upper[:, priced] = contribution.ln_best[:, None] - np.log(shares[priced])
    ln_use = math.inf  # no server of the pool has the resources, so the job contributes nothing
    if priced.any():
        ln_use = math.log(contribution.slots) + _ln(float(shares.sum()))
    return contribution._replace(ln_upper=ln_upper, ln_use=ln_use, shares=shares)


def worker_slots(job: Job) -> int:
    """Return the maximum worker-slots that a job takes, ``ceil(E N M (tau + 2 e / b))``.

    With a measured throughput curve, the worker-slots depend on the worker count. The result is the
    maximum over the counts, because L must be a lower bound. A task of a bag counts with one copy.
    """
    if job.bag is not None:
        return math.ceil(job.bag.worker_slots)
    # A float is exact enough, because only ln of the result is used, in L.
    return math.ceil(float((job.worker_counts * (job.required / job.gains)).max()))


def given_constants(
    lower: float, upper: Mapping[str, float], resources: Sequence[str]
) -> PriceConstants:
    """Return the constants that a user gave as utilities per slot for a share of 1."""
    ln_upper = np.array([_ln(upper.get(resource, 0.0)) for resource in resources])
    return PriceConstants(_ln(lower), ln_upper)


def _ln_smallest_utility(job: Job, window: int) -> float:
    """Return ln of the smallest positive utility within the window; utilities never rise."""
    ln_utilities = job.utility.log_values(np.arange(window))
    positive = ln_utilities[np.isfinite(ln_utilities)]
    return float(positive[-1]) if len(positive) else -math.inf


def _ln(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


LN_COST_PART: Final = math.log(0.5)
"""Ln of the part of its utility that a job pays on an empty cluster at the maximum L. Theorem 4's
proof also needs a half, but as the price of the whole cluster."""


def limit_lower(
    constants: Sequence[PriceConstants],
    learners: Sequence[ConstantsLearner],
    alone: StandaloneValue,
    jobs: Iterable[Job],
) -> list[PriceConstants]:
    """Lower L until some job pays at most half of its utility on an empty cluster.

    The clearing price regards each pool as one machine. But a job pays in both pools, and takes
    longer on a small cluster. So an empty cluster could refuse every one of a few large jobs. The L
    of all pools are lowered by the same factor, if necessary. They don't change if no job can
    complete alone.
    """
    ln_largest = -math.inf
    for job in jobs:
        ln_largest = max(ln_largest, _ln_utility_per_cost(job, constants, learners, alone))
        if ln_largest + LN_COST_PART >= 0:
            return list(constants)
    if ln_largest == -math.inf:
        return list(constants)
    return [pool.lowered(ln_largest + LN_COST_PART) for pool in constants]


def _ln_utility_per_cost(
    job: Job,
    constants: Sequence[PriceConstants],
    learners: Sequence[ConstantsLearner],
    alone: StandaloneValue,
) -> float:
    """Return ln of the maximum utility per cost of a job that runs alone with one worker count."""
    counts, slots = alone.plans(job, learners[0].window(job))
    if not len(counts):
        return -math.inf
    ln_rate = np.full(len(counts), -np.inf)  # ln of the cost per slot, by worker count
    for pool, learner in zip(constants, learners, strict=True):
        shares = learner.shares_per_slot(job)[counts]
        ln_shares = np.log(shares, out=np.full(len(shares), -np.inf), where=shares > 0)
        ln_rate = np.logaddexp(ln_rate, pool.ln_lower + ln_shares)
    ln_utilities = job.utility.log_values(slots - 1)
    useful = np.isfinite(ln_utilities)  # the ratio is +inf without a cost, -inf without a utility
    ratios = ln_utilities[useful] - ln_rate[useful] - np.log(slots[useful])
    return float(ratios.max(initial=-np.inf))

"""Shadow prices learnt from the jobs that have arrived, and the promises that they justify."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Final, NamedTuple, Self

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job, name_key
from shadowprice.core.refusal import Refusal
from shadowprice.kernels.replanning.duals import shadow_prices
from shadowprice.kernels.replanning.next_slot import min_cluster_slots
from shadowprice.kernels.replanning.plans import JobArrays
from shadowprice.policies.rolling.offers import (
    Offer,
    refuse_below_price,
    refuse_little_evidence,
    refuse_little_utility,
)
from shadowprice.policies.rolling.open_jobs import ColocationFit, OpenJobs
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.quotas import Quotas, tenant_rows

_MAX_ARRIVALS: Final = 2000  # prices are learnt from the latest ones
_INITIAL_ARRIVALS: Final = 64
_HORIZONS_BEFORE: Final = 0.25  # horizons without demand that are assumed before the first arrival

_MIN_WEIGHT: Final = 1e-12  # arrivals that count less change no price: most of a long trace
_MAX_AGE: Final = -math.log(_MIN_WEIGHT) + 1.0  # memories after which an arrival counts less
# Horizons after which an arrival counts 1/e. From 1 to 6 horizons, `rolling` earns as much.
_MEMORY_HORIZONS: Final = 2.0
# Share of the cluster for which promises are priced: the price is the lowest utility density among
# the densest jobs that fill it; 1 would be the clearing price. Better jobs that arrive later need
# the rest, so most jobs are promised once little of their work is left.
_SCARCITY: Final = 0.1
_SWEEPS: Final = 4
_SLOTS_SOLVED_TOGETHER: Final = 64  # limits the memory of the weights of arrivals
# Weight of the dominant share relative to a price of 1, so that free resources rank too.
_DOMINANT_SHARE_WEIGHT: Final = 1e-4
# Minimum cost of a job, as a share of its cost if only dominant shares were scarce. A resource that
# isn't scarce has no price. Yet a job that is promised all of it keeps out all others that need a
# little of it. Workers and parameter servers pay it each.
_DOMINANT_PRICE_SHARE: Final = 0.15
_ALONE_FACTOR: Final = 6.0  # on the limit of a promise that could keep no other open job out
# Minimum use when a density is computed: far below any share, so that no density is infinite.
_MIN_USE: Final = 1e-200
_MIN_PROMISED_SHARE: Final = 0.3  # minimum utility of a promise, as a share of the job's maximum


class ServerPools:
    """Total capacity of the servers for workers, and of those for parameter servers.

    If some servers host both, everything is one pool.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Whether some servers host both roles.
        self.shared = bool((cluster.hosts_workers & cluster.hosts_ps).any())
        self.colocation = ColocationFit(cluster)
        self.up = np.ones(cluster.servers, np.bool_)  # whether each server is up
        self._refresh()

    def lose(self, server: int) -> None:
        """Mark a server as lost."""
        self.up[server] = False
        self._refresh()

    def restore(self, server: int) -> None:
        """Mark a lost server as up."""
        self.up[server] = True
        self._refresh()

    def capacity(self) -> Integers:
        """Return a new array of the capacity of each server, 0 for lost ones."""
        capacity = self._cluster.capacity
        return capacity.copy() if self.all_up else np.where(self.up[:, None], capacity, 0)

    def server_prices(self, price: Floats) -> Floats:
        """Return the price of all of each server's resources, shape (..., servers, resources).

        The shape of ``price`` is (..., columns).
        """
        worker, ps = self._kind_shares
        width = len(self._cluster.resources)
        by_kind = worker * price[..., None, :width]
        if not self.shared:
            by_kind += ps * price[..., None, width:]
        prices: Floats = by_kind[..., self._cluster.kinds, :]
        if not self.all_up:
            prices[..., ~self.up, :] = 0.0
        return prices

    def _refresh(self) -> None:
        cluster = self._cluster
        self.all_up = bool(self.up.all())
        kinds = int(cluster.kinds.max(initial=-1)) + 1
        self.kind_count = np.bincount(cluster.kinds[self.up], minlength=kinds).astype(np.int64)
        if self.shared:
            inverse = self._inverse(self.up)
            self.inverse = (inverse, inverse)
        else:
            self.inverse = (
                self._inverse(self.up & cluster.hosts_workers),
                self._inverse(self.up & cluster.hosts_ps),
            )
        # The shares of both pools that all of a server of each kind takes.
        first = np.unique(cluster.kinds, return_index=True)[1]
        limited = np.where(cluster.capacity >= UNLIMITED, 0, cluster.capacity)[first]
        hosts = (cluster.hosts_workers | self.shared, cluster.hosts_ps)
        self._kind_shares = tuple(
            limited * inverse * host[first, None]
            for inverse, host in zip(self.inverse, hosts, strict=True)
        )

    @property
    def columns(self) -> int:
        """Number of priced resources: one for each resource and pool."""
        return len(self._cluster.resources) * (1 if self.shared else 2)

    def shares(self, worker: Integers, ps: Integers) -> tuple[Floats, Floats]:
        """Return the shares of each priced resource that a worker and a parameter server take.

        Demands and shares have a row for each job.
        """
        if self.shared:
            return worker * self.inverse[0], ps * self.inverse[1]
        width = worker.shape[1]
        on_worker, on_ps = np.zeros((2, len(worker), 2 * width))
        np.multiply(worker, self.inverse[0], out=on_worker[:, :width])
        np.multiply(ps, self.inverse[1], out=on_ps[:, width:])
        return on_worker, on_ps

    def _inverse(self, members: Flags) -> Floats:
        rows = self._cluster.capacity[members]
        total = rows.astype(np.float64).sum(axis=0)
        limited = (total > 0) & ~(rows >= UNLIMITED).any(axis=0)
        return np.asarray(
            np.divide(1.0, total, out=np.zeros(len(total)), where=limited), np.float64
        )


class JobShares(NamedTuple):
    """Shares of each priced resource that a worker and a parameter server of each job take."""

    worker: Floats  # shape (jobs, columns)
    ps: Floats
    largest: Floats  # the largest share of each, shape (jobs, 2)

    @classmethod
    def of(cls, shares: tuple[Floats, Floats]) -> JobShares:
        """Return the shares that `ServerPools.shares` returned, with the largest of each job."""
        return cls(*shares, np.column_stack([_row_maxima(share) for share in shares]))

    def select(self, rows: Integers | Flags) -> JobShares:
        """Return the shares of some jobs."""
        return JobShares(self.worker[rows], self.ps[rows], self.largest[rows])


class PriceLearner:
    """Learns the prices at which the demand so far would fill a part of the cluster.

    Demand is remembered for ``memory`` slots: then an arrival counts 1/e. Without the ``before``
    slots without demand that are assumed, the first job alone would look like a rush. ``part`` is
    the part of the cluster that the demand may have, by resource. At the prices, it would fill the
    share `_SCARCITY` of that.
    """

    def __init__(self, pools: ServerPools, memory: float, before: float, part: Floats) -> None:
        self._pools = pools
        self._set_part(part)
        self._memory = memory
        self._before = before
        self._first: int | None = None
        self._count = 0
        fields = [
            ("slot", np.float64),
            ("value", np.float64),  # utility
            ("use", np.float64, (pools.columns,)),
            ("largest_share", np.float64),  # of a priced resource that the job takes in a slot
            ("key", np.int64),  # of the name
        ]
        self._arrivals = np.zeros(_INITIAL_ARRIVALS, fields)
        self._has_overwritten = False
        # Slot, number of arrivals, shadow prices, and price of the dominant share.
        self._cached: tuple[int, int, Floats, float] | None = None

    def rebased_on(self, pools: ServerPools, part: Floats) -> PriceLearner:
        """Return the learner for other pools; an empty one if they price other resources."""
        if pools.columns != self._pools.columns:
            return PriceLearner(pools, self._memory, self._before, part)
        moved = copy.copy(self)
        moved._pools, moved._cached = pools, None
        moved._set_part(part)
        return moved

    def _set_part(self, part: Floats) -> None:
        self._part = np.resize(part, self._pools.columns)
        # The part that dominant shares are relative to, by column; above 0.
        self._relative_to = np.maximum(self._part, 1e-12)
        self._is_whole = bool((self._part == 1.0).all())

    def add_arrival(self, job: Job, slot: int) -> None:
        """Record an arrival: utility and usage at the worker count of the highest density.

        The utility counts up to what the tenant could pay.
        """
        if not job.payable:
            return
        if self._first is None:
            self._first = slot
        ps = np.zeros_like(job.worker) if job.ps is None else job.ps
        on_worker, on_ps = self._pools.shares(job.worker[None, :], ps[None, :])
        if job.bag is not None:  # one copy a task, for its expected duration
            shortest = np.array([job.bag.shortest_slots - 1], np.float64)
            value = min(job.utility.values(shortest)[0], job.payable)
            self._append(job.name, slot, value, on_worker[0] * job.bag.worker_slots, np.inf)
            return
        share = job.worker_counts[:, None] * on_worker + job.ps_counts[:, None] * on_ps
        gains, colocated = job.gains, self._pools.colocation.choices(job)
        if len(colocated):
            share = np.concatenate((share, share[colocated]))
            gains = np.concatenate((gains, job.internal_gains[colocated]))
        positive = gains > 0
        slots = np.where(positive, -(-job.required // np.maximum(gains, 1)), 1)
        value = np.where(positive, job.utility.values((slots - 1).astype(np.float64)), 0.0)
        value = np.minimum(value, job.payable)
        dominant_use = share.max(axis=1) * slots
        best = int(np.argmax(value / np.maximum(dominant_use, _MIN_USE)))
        largest = np.inf if job.predicted else float(share.max())
        self._append(job.name, slot, value[best], share[best] * slots[best], largest)

    def limit_use(self, name: str, slots: int) -> None:
        """Reduce the demand of a job that finished sooner than its stated work can take.

        It ran in so many ``slots``. Its density is still the stated one: a job that states an hour
        and ends in a second isn't worth more for each second. In a simulation no job ends early.
        """
        order, match = self._find(name)
        if match is None:
            return
        arrival = self._arrivals[order[match]]
        limit = arrival["largest_share"] * max(slots, 1)
        stated = arrival["use"].max()
        if limit < stated:
            arrival["use"] *= limit / stated
            arrival["value"] *= limit / stated
            self._cached = None

    def _find(self, name: str) -> tuple[Integers, int | None]:
        """Return the sample's rows from the oldest, and the position of a name's latest one."""
        count = min(self._count, _MAX_ARRIVALS)
        oldest = self._count % _MAX_ARRIVALS if self._count >= _MAX_ARRIVALS else 0
        order = np.roll(np.arange(count), -oldest)
        matches = np.flatnonzero(self._arrivals["key"][order] == name_key(name))
        return order, int(matches[-1]) if len(matches) else None

    def take_back(self, name: str) -> None:
        """Remove the latest arrival of a name, if the sample has it."""
        order, match = self._find(name)
        if match is None:
            return
        order = np.delete(order, match)
        self._count = remaining = len(order)
        self._arrivals[:remaining] = self._arrivals[order]
        if not self._has_overwritten:
            self._first = int(self._arrivals["slot"][0]) if remaining else None
        self._cached = None

    def _append(self, name: str, slot: int, value: float, use: Floats, largest: float) -> None:
        index = self._count % _MAX_ARRIVALS
        self._has_overwritten |= self._count >= _MAX_ARRIVALS
        if index == len(self._arrivals):
            longer = np.concatenate((self._arrivals, np.zeros_like(self._arrivals)))
            self._arrivals = longer[:_MAX_ARRIVALS]
        self._arrivals[index] = (slot, value, use, largest, name_key(name))
        self._count += 1

    def prices(self, slot: int) -> Floats:
        """Return the shadow prices, shape (columns,), and cache them.

        A price is the utility for a slot of the pool's whole capacity of a resource.
        """
        return self._cache(slot)[0]

    def posted(self, slot: int) -> Floats:
        """Return the result of `prices` without caching it, so that no later decision changes."""
        if self._cached is not None and self._is_cached(slot):
            return self._cached[2]
        return self._solve(self._sample(slot), self.observed_slots(slot))

    def posted_in(self, slots: range) -> Floats:
        """Return the results of `posted` for slots, shape (slots, columns)."""
        prices = np.zeros((len(slots), self._pools.columns))
        for start in range(0, len(slots), _SLOTS_SOLVED_TOGETHER):
            part = slots[start : start + _SLOTS_SOLVED_TOGETHER]
            prices[start : start + len(part)] = self._solve_in(part)
        cached = self._cached
        if cached is not None and cached[0] in slots and self._is_cached(cached[0]):
            prices[slots.index(cached[0])] = cached[2]
        return prices

    def costs(self, slot: int, shares: JobShares) -> Floats:
        """Return the cost of a worker and of a PS of each job in a slot, shape (jobs, 2).

        The cost is that of all resources at their shadow prices, and at least
        `_DOMINANT_PRICE_SHARE` of that of the dominant share.
        """
        prices, dominant = self._cache(slot)
        minimum = _DOMINANT_PRICE_SHARE * dominant
        costs = np.empty((len(shares.worker), 2))
        for role, share in enumerate(shares[:2]):
            dominant_share = shares.largest[:, role]
            if not self._is_whole:
                dominant_share = _row_maxima(share / self._relative_to)
            np.maximum(share @ prices, minimum * dominant_share, out=costs[:, role])
        return costs

    def _cache(self, slot: int) -> tuple[Floats, float]:
        """Return shadow prices and the price of the dominant share, computed again if necessary."""
        cached = self._cached
        if cached is None or not self._is_cached(slot):
            sample, observed = self._sample(slot), self.observed_slots(slot)
            prices, dominant = self._solve(sample, observed), self._solve_dominant(sample, observed)
            self._cached = cached = (slot, self._count, prices, dominant)
        return cached[2:]

    def _is_cached(self, slot: int) -> bool:
        """Return whether the cache is of this slot and the sample grew by at most a twentieth."""
        if self._cached is None:
            return False
        cached_slot, count = self._cached[:2]
        return cached_slot == slot and self._count - count <= max(1, count // 20)

    def observed_slots(self, slot: int | Floats) -> Floats:
        """Return for how many slots demand was observed; old slots count less."""
        since = (slot if self._first is None else self._first) - self._before
        if self._has_overwritten and self._count:
            since = float(self._arrivals["slot"][: min(self._count, _MAX_ARRIVALS)].min())
        return np.asarray(self._memory * -np.expm1(-(slot - since + 1) / self._memory))

    def _weights(self, earliest: int, slots: int | Floats) -> tuple[int, Floats]:
        """Return the first arrival with a weight from slot ``earliest`` on, and the weights."""
        arrival = self._arrivals["slot"][: min(self._count, _MAX_ARRIVALS)]
        first = 0
        if not self._has_overwritten:  # arrivals are in order, and most were long ago
            first = int(np.searchsorted(arrival, earliest - _MAX_AGE * self._memory))
        return first, np.exp(-(slots - arrival[first:]) / self._memory)

    def _sample(self, slot: int) -> tuple[Floats, Floats, Floats]:
        """Return the utility, usage and weight of the arrivals that are remembered."""
        first, weight = self._weights(slot, slot)
        remembered = weight > _MIN_WEIGHT
        value, use = self._remembered(first, remembered)
        return value, use, weight[remembered]

    def _remembered(self, first: int, remembered: Flags) -> tuple[Floats, Floats]:
        """Return the utility and usage of remembered arrivals, as marked from the first one on."""
        arrivals = self._arrivals[first : first + len(remembered)]
        return arrivals["value"][remembered], arrivals["use"][remembered]

    def _solve(self, sample: tuple[Floats, Floats, Floats], observed: Floats) -> Floats:
        """Return the shadow prices of a slot."""
        value, use, weight = sample
        if not len(value):
            return np.zeros(self._pools.columns)
        budget = _SCARCITY * observed * self._part
        prices: Floats = shadow_prices(value, use, weight[None], budget[None], _SWEEPS)[0]
        return prices

    def _solve_in(self, slots: range) -> Floats:
        """Return the shadow prices of slots, shape (slots, columns)."""
        every = np.arange(slots.start, slots.stop, dtype=np.float64)
        first, weights = self._weights(slots.start, every[:, None])
        budgets = (_SCARCITY * self.observed_slots(every))[:, None] * self._part
        prices = np.zeros((len(slots), self._pools.columns))
        remembered = weights > _MIN_WEIGHT
        # Arrivals are only forgotten, so slots that remember as many remember the same ones.
        changes = np.flatnonzero(np.diff(remembered.sum(axis=1))) + 1
        for start, end in pairwise((0, *changes.tolist(), len(slots))):
            value, use = self._remembered(first, remembered[start])
            if not len(value):
                break
            # Rows of this array are contiguous; those of an array indexed by a mask aren't.
            weight = np.compress(remembered[start], weights[start:end], axis=1)
            prices[start:end] = shadow_prices(value, use, weight, budgets[start:end], _SWEEPS)
        return prices

    def _solve_dominant(self, sample: tuple[Floats, Floats, Floats], observed: Floats) -> float:
        """Return the price of the dominant share if nothing else were scarce."""
        value, use, weight = sample
        if not len(value):
            return 0.0
        budget = np.array([[_SCARCITY * observed]])
        dominant_use = _row_maxima(use / self._relative_to)[:, None]
        return float(shadow_prices(value, dominant_use, weight[None], budget, 1)[0, 0])


class DemandPrices:
    """Learns prices: from all demand to rank jobs, by tenant to price promises.

    Without shares, both are the same. Prices also limit promises (`justifies`): they are learnt
    from arrivals, so the first jobs pay none. A job without a promise still runs while capacity is
    spare. So a promise that is large compared with the observed demand gains little and may keep
    later jobs out, above all if it earns a small part of the job's utility.
    """

    def __init__(
        self, cluster: Cluster, pools: ServerPools, quotas: Quotas, parameters: RollingParameters
    ) -> None:
        self._cluster, self._pools = cluster, pools
        self._quotas, self._parameters = quotas, parameters
        self._overall = self._new_learner(self._whole_cluster)
        # One for each row of the quotas if tenants have shares, otherwise one for all demand.
        self.learners = (
            [self._new_learner(part) for part in quotas.part] if quotas.given else [self._overall]
        )
        # Rows of jobs, shares of servers, and the shares that follow from both.
        self._cached_shares: tuple[JobArrays, object, JobShares] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_cached_shares": None}

    @property
    def _whole_cluster(self) -> Floats:
        return np.ones(len(self._cluster.resources))

    def _new_learner(self, part: Floats) -> PriceLearner:
        horizon = self._cluster.horizon
        memory, before = _MEMORY_HORIZONS * horizon, _HORIZONS_BEFORE * horizon
        return PriceLearner(self._pools, memory, before, part)

    def copy(self) -> Self:
        """Return a copy that caches prices of its own; it must not learn."""
        copied = copy.copy(self)
        copied._overall = copy.copy(self._overall)
        copied.learners = [
            copied._overall if learner is self._overall else copy.copy(learner)
            for learner in self.learners
        ]
        return copied

    def restore_learnt(self, before: Self) -> None:
        """Keep the prices learnt before the cluster changed."""
        self._overall = before._overall.rebased_on(self._pools, self._whole_cluster)
        if not self._quotas.given:
            self.learners = [self._overall]
            return
        # Tenants keep their learnt prices; new tenants start without any.
        by_owner: dict[str | None, PriceLearner] = {}
        if before._quotas.given:
            by_owner = dict(zip(tenant_rows(before._cluster), before.learners, strict=True))
        self.learners = [
            by_owner[name].rebased_on(self._pools, part)
            if name in by_owner
            else self._new_learner(part)
            for name, part in zip(tenant_rows(self._cluster), self._quotas.part, strict=True)
        ]

    def add_arrival(self, job: Job, slot: int) -> None:
        """Record an arrival."""
        self._overall.add_arrival(job, slot)
        if self._quotas.given:
            self.learners[self._quotas.row_of(self._cluster, job)].add_arrival(job, slot)

    @property
    def _all_learners(self) -> list[PriceLearner]:
        return [self._overall, *self.learners] if self._quotas.given else self.learners

    def limit_use(self, name: str, slots: int) -> None:
        """Reduce the demand of a job that finished after it ran in so many slots."""
        for learner in self._all_learners:
            learner.limit_use(name, slots)

    def take_back(self, name: str) -> None:
        """Remove the arrival of a job that was cancelled or failed."""
        for learner in self._all_learners:
            learner.take_back(name)

    def price(self, slot: int) -> Floats:
        """Return the shadow prices of all demand, by pool and resource, shape (columns,)."""
        if self._parameters.prices == "given":
            return self._given_prices
        return self._overall.prices(slot)

    def posted(self, slot: int) -> Floats:
        """Return the result of `price` and change nothing; for readers between two decisions."""
        if self._parameters.prices == "given":
            return self._given_prices
        return self._overall.posted(slot)

    def posted_in(self, slots: range) -> Floats:
        """Return the results of `posted` for slots, shape (slots, columns)."""
        if self._parameters.prices == "given":
            return np.tile(self._given_prices, (len(slots), 1))
        return self._overall.posted_in(slots)

    def costs(self, slot: int, arrays: JobArrays, rows: Integers | None = None) -> Floats:
        """Return the cost of a worker and of a parameter server of rows in a slot, shape (rows, 2).

        With ``rows`` None, of all rows. Prices are those of each job's tenant if tenants have
        shares.
        """
        shares, owner = self._shares(arrays), arrays.tenant
        if rows is not None:
            shares, owner = shares.select(rows), owner[rows]
        if not self._quotas.given:
            return self._costs(slot, self._overall, shares)
        costs = np.zeros((len(owner), 2))
        for tenant in np.unique(owner).tolist():
            owned = owner == tenant
            costs[owned] = self._costs(slot, self.learners[tenant], shares.select(owned))
        return costs

    def _shares(self, arrays: JobArrays) -> JobShares:
        """Return the shares of all rows, computed again once a job or a server changed.

        `OpenJobs` makes a new record of its arrays for each job that it adds.
        """
        cached, inverse = self._cached_shares, self._pools.inverse
        if cached is None or cached[0] is not arrays or cached[1] is not inverse:
            shares = JobShares.of(self._pools.shares(arrays.worker, arrays.ps))
            self._cached_shares = cached = (arrays, inverse, shares)
        return cached[2]

    def weights(self, slot: int, arrays: JobArrays) -> Floats:
        """Return the weight of a worker and of a PS of all rows, for ranking: above 0.

        Unlike costs, weights use one price for all tenants.
        """
        return ranking_weights(self.price(slot), self._shares(arrays))

    def copy_cost(self, slot: int, job: Job) -> float:
        """Return the cost of a copy of a bag's tasks in a slot."""
        learner = self.learners[self._quotas.row_of(self._cluster, job)]
        return float(self._costs(slot, learner, self._copy_shares(job))[0, 0])

    def copy_weight(self, slot: int, job: Job) -> float:
        """Return the weight of a copy of a bag's tasks, for ranking: above 0."""
        return float(ranking_weights(self.price(slot), self._copy_shares(job))[0, 0])

    def _copy_shares(self, job: Job) -> JobShares:
        worker = job.worker[None, :]
        return JobShares.of(self._pools.shares(worker, np.zeros_like(worker)))

    @property
    def _given_prices(self) -> Floats:
        return np.full(self._pools.columns, self._parameters.price)

    def _costs(self, slot: int, learner: PriceLearner, shares: JobShares) -> Floats:
        if self._parameters.prices == "given":
            return np.column_stack([share @ self._given_prices for share in shares[:2]])
        return learner.costs(slot, shares)

    # ---------------------------------------------------------------- evidence

    def justifies(self, slot: int, jobs: OpenJobs, rows: Integers, utility: Floats) -> Flags:
        """Return for which jobs the observed demand justifies a promise that earns a utility.

        A promise that earns little of a job's utility is never justified. With given prices, or if
        jobs can't wait, every promise is.
        """
        parameters = self._parameters
        if parameters.prices == "given" or not parameters.standby or not len(rows):
            return np.ones(len(rows), np.bool_)
        size, observed = self._promise_size(slot, jobs.arrays, rows)
        is_small = size <= parameters.evidence * observed * self._evidence_factor(jobs, rows)
        return np.asarray(is_small & ~_earns_little(jobs, rows, utility), np.bool_)

    def _evidence_factor(self, jobs: OpenJobs, rows: Integers) -> Floats:
        """Return the factor of the limit of each promise, which is larger for a lone job.

        A lone job competes with no open job, or none of its tenant if it has a share. Jobs that
        their tenants can't pay for don't count: they get no promise.
        """
        owner = jobs.arrays.tenant
        competing = np.zeros(jobs.row_count, np.bool_)
        competing[list(jobs.rows.values())] = True
        competing &= jobs.payable
        count = np.bincount(owner[competing], minlength=len(self.learners))
        return np.where(count[owner[rows]] <= competing[rows], _ALONE_FACTOR, 1.0)

    def refusal(self, slot: int, jobs: OpenJobs, row: int, offer: Offer) -> Refusal | None:
        """Return the refusal of an offer below its cost, or that observed demand doesn't justify.

        None if the offer may be promised.
        """
        if offer.utility <= offer.cost:
            return refuse_below_price(offer)
        rows, utility = np.array([row]), np.array([offer.utility])
        if self.justifies(slot, jobs, rows, utility)[0]:
            return None
        if _earns_little(jobs, rows, utility)[0]:
            return refuse_little_utility(offer, float(jobs.full_utility[row]), _MIN_PROMISED_SHARE)
        size, observed = self._promise_size(slot, jobs.arrays, rows)
        factor = float(self._evidence_factor(jobs, rows)[0])
        evidence = self._parameters.evidence
        return refuse_little_evidence(offer, float(size[0]), evidence, float(observed[0]), factor)

    def _promise_size(self, slot: int, arrays: JobArrays, rows: Integers) -> tuple[Floats, Floats]:
        """Return the minimum size of each promise and the time observed, in cluster slots."""
        shares = self._shares(arrays).select(rows)[:2]
        observed = np.array([learner.observed_slots(slot) for learner in self.learners])
        owner = arrays.tenant[rows] if self._quotas.given else np.zeros(len(rows), np.int64)
        if self._quotas.given:  # relative to the part of the cluster that the tenant may have
            part = np.maximum(self._quotas.part[owner], 1e-12)
            part = np.tile(part, self._pools.columns // part.shape[1])
            shares = (shares[0] / part, shares[1] / part)
        return min_cluster_slots(arrays, rows, *shares), observed[owner]


def ranking_weights(price: Floats, shares: JobShares) -> Floats:
    """Return the prices of a worker and a parameter server of each job, for ranking.

    The shape is (jobs, 2). Prices are above 0 for every nonzero demand, because dominant shares
    count a little.
    """
    trace = _DOMINANT_SHARE_WEIGHT * float(price.max(initial=0.0)) or 1.0
    weights = np.empty((len(shares.worker), 2))
    for role, share in enumerate(shares[:2]):
        weights[:, role] = share @ price + trace * shares.largest[:, role]
    return weights


def _row_maxima(array: Floats) -> Floats:
    """Return the maximum of each row."""
    # numpy needs about 0.1 µs for each row of `max(axis=1)`, whatever its length.
    return np.asarray(array.T.copy().max(axis=0), np.float64)


def _earns_little(jobs: OpenJobs, rows: Integers, utility: Floats) -> Flags:
    """Return which jobs would earn little of their maximum utility."""
    return np.asarray(utility < _MIN_PROMISED_SHARE * jobs.full_utility[rows], np.bool_)

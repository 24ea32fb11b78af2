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
from shadowprice.policies.rolling.offers import Offer
from shadowprice.policies.rolling.open_jobs import ColocationFit, OpenJobs
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.quotas import Quotas, tenant_rows

_MAX_ARRIVALS: Final = 2000  # prices are learnt from the latest ones
# Horizons without demand that are assumed before the first arrival, which alone would otherwise
# look like a rush.
_HORIZONS_BEFORE: Final = 0.25

# Time constant, in horizons, at which the weight of an arrival decays: the memory. From 1 to 6
# horizons, `rolling` earns as much.
_MEMORY_HORIZONS: Final = 2.0
_MIN_WEIGHT: Final = 1e-12  # arrivals with less weight change no price
_MAX_AGE: Final = -math.log(_MIN_WEIGHT) + 1.0  # in memories; older arrivals have less weight
# Promises are priced as if the cluster had this share of its capacity, so most jobs are promised
# only once little of their work remains. With one scarce resource, its price is the utility per use
# of the job with which the densest jobs exceed the share; with 1, prices would clear. The rest of
# the capacity is for better jobs that arrive later.
_SCARCITY: Final = 0.1
_SWEEPS: Final = 4  # maximum rounds of `shadow_prices`
_SLOTS_SOLVED_TOGETHER: Final = 64  # limits the memory of the weights of arrivals
# Weight of the dominant share relative to a price of 1, so that free resources rank too.
_DOMINANT_SHARE_WEIGHT: Final = 1e-4
# Minimum cost of a job, as a share of its cost if only dominant shares were scarce. A resource that
# isn't scarce has no price, yet a job that is promised all of it keeps out all jobs that need a
# little. The minimum holds for workers and for parameter servers separately.
_DOMINANT_PRICE_SHARE: Final = 0.15
# Factor of the limit of a lone job's promise: the job keeps no other job out, and a user of an idle
# cluster expects an answer. On drawn workloads this costs 0.2 points of the value on offer
# (`design/0017-rolling.md`). A job that can't earn much of its utility, however early it completes,
# gets no factor: it would keep out the first jobs that can.
_ALONE_FACTOR: Final = 6.0
_MIN_USE: Final = 1e-200  # far below any share, so that no density is infinite
_MIN_PROMISED_SHARE: Final = 0.3  # minimum utility, as a share of `OpenJobs.full_utility`


class ServerPools:
    """Total capacity of the servers for workers, and of those for parameter servers.

    If some servers host both, everything is one pool.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._members = cluster.hosts_workers, cluster.hosts_ps  # by pool
        # Whether some servers host both roles.
        self.shared = bool(np.logical_and(*self._members).any())
        if self.shared:
            self._members = (np.ones(cluster.servers, np.bool_),) * 2
        # Number of priced resources: one for each resource and pool.
        self.columns = len(cluster.resources) * (1 if self.shared else 2)
        self.colocation = ColocationFit(cluster)
        self.up = np.ones(cluster.servers, np.bool_)  # whether each server is up
        self._refresh()

    def mark(self, server: int, *, is_up: bool) -> None:
        """Mark a server as up or lost."""
        self.up[server] = is_up
        self._refresh()

    def capacity(self) -> Integers:
        """Return a new array of the capacity of each server, 0 for lost ones."""
        capacity = self._cluster.capacity
        return capacity.copy() if self.all_up else np.where(self.up[:, None], capacity, 0)

    def server_prices(self, price: Floats) -> Floats:
        """Return the price of all of each server's resources, shape (..., servers, resources)."""
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
        # Servers that are up by kind; kinds have equal capacity and roles.
        self.kind_count = np.bincount(cluster.kinds[self.up], minlength=kinds).astype(np.int64)
        # 1 / capacity by pool and resource; 0 for a resource without capacity or limit.
        self.inverse = tuple(self._inverse(self.up & members) for members in self._members)
        # The share of each pool that a whole server of each kind has.
        first = np.unique(cluster.kinds, return_index=True)[1]
        limited = np.where(cluster.capacity >= UNLIMITED, 0, cluster.capacity)[first]
        self._kind_shares = tuple(
            limited * inverse * members[first, None]
            for inverse, members in zip(self.inverse, self._members, strict=True)
        )

    def shares(self, worker: Integers, ps: Integers) -> tuple[Floats, Floats]:
        """Return the shares of the priced resources that a worker and a PS of each job take."""
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
    """Share of each priced resource that a worker and a parameter server of each job take."""

    worker: Floats  # shape (jobs, columns)
    ps: Floats
    largest: Floats  # dominant share of a worker and of a parameter server, shape (jobs, 2)

    @classmethod
    def of(cls, shares: tuple[Floats, Floats]) -> JobShares:
        """Return the shares that `ServerPools.shares` returned, with the largest of each job."""
        return cls(*shares, np.column_stack([_row_maxima(share) for share in shares]))

    def select(self, rows: Integers | Flags) -> JobShares:
        """Return the shares of some jobs."""
        return JobShares(self.worker[rows], self.ps[rows], self.largest[rows])


class PriceLearner:
    """Learns the prices at which the demand so far would fill a part of the cluster.

    ``tenant_part`` is the part of the cluster that the demand may have, by resource. At the learnt
    prices, the demand would fill `_SCARCITY` of that part. If ``given`` is set, it is every price.
    """

    def __init__(
        self, pools: ServerPools, horizon: int, tenant_part: Floats, given: float | None
    ) -> None:
        self._pools, self._given = pools, given
        self._tenant_part = np.resize(tenant_part, pools.columns)
        # Dominant shares are relative to this part of each priced resource, which is above 0.
        self._relative_to = np.maximum(self._tenant_part, 1e-12)
        self._is_whole = bool((self._tenant_part == 1.0).all())
        self._memory_slots, self._before = _MEMORY_HORIZONS * horizon, _HORIZONS_BEFORE * horizon
        fields = [
            ("slot", np.float64),
            ("value", np.float64),  # utility
            ("use", np.float64, (pools.columns,)),
            ("largest_share", np.float64),  # with the most workers; inf exempts from `limit_use`
            ("key", np.int64),  # `name_key` of the job
        ]
        self._arrivals = np.zeros(0, fields)  # the latest ones, in order
        self._count = 0  # grows with each arrival; only its growth since the cached prices counts
        self._has_forgotten = False  # whether there were more than `_MAX_ARRIVALS`
        # Slot, number of arrivals, shadow prices, and price of the dominant share.
        self._cached: tuple[int, int, Floats, float] | None = None

    def adopt(self, other: PriceLearner) -> None:
        """Take over everything that another learner of the same resources has learnt."""
        for name in ("_memory_slots", "_before", "_arrivals", "_count", "_has_forgotten"):
            setattr(self, name, getattr(other, name))

    def add_arrival(self, job: Job, slot: int) -> None:
        """Record a job's utility and usage at its worker count of the highest density.

        The utility counts up to the amount that the tenant could pay.
        """
        if not job.payable:
            return
        ps = np.zeros_like(job.worker) if job.ps is None else job.ps
        on_worker, on_ps = self._pools.shares(job.worker[None, :], ps[None, :])
        if job.bag is not None:  # usage of one copy of each task, for its expected duration
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
        """Limit a finished job's demand to what it can have used in the ``slots`` in which it ran.

        Utility and usage fall in proportion, so the density stays as stated: a job that states an
        hour and ends in a second isn't denser for that. In a simulation no job ends early.
        """
        matches = self._matches(name)
        if not len(matches):
            return
        arrival = self._arrivals[matches[-1]]
        limit = arrival["largest_share"] * max(slots, 1)
        stated = arrival["use"].max()
        if limit < stated:
            arrival["use"] *= limit / stated
            arrival["value"] *= limit / stated
            self._cached = None

    def _matches(self, name: str) -> Integers:
        return np.flatnonzero(self._arrivals["key"] == name_key(name))

    def take_back(self, name: str) -> None:
        """Remove the latest arrival of a name, if the sample has it."""
        matches = self._matches(name)
        if len(matches):
            self._arrivals = np.delete(self._arrivals, matches[-1])
            self._count = len(self._arrivals)
            self._cached = None

    def _append(self, name: str, slot: int, value: float, use: Floats, largest: float) -> None:
        arrival = np.array([(slot, value, use, largest, name_key(name))], self._arrivals.dtype)
        self._has_forgotten |= len(self._arrivals) == _MAX_ARRIVALS
        self._arrivals = np.concatenate((self._arrivals[1 - _MAX_ARRIVALS :], arrival))
        self._count += 1

    def prices(self, slot: int) -> tuple[Floats, float]:
        """Return the shadow prices, shape (columns,), and the price of the dominant share.

        A price is in utility for the pool's whole capacity of a resource in one slot. The dominant
        share is priced as if nothing else were scarce. The result is cached.
        """
        if self._given is not None:
            return np.full(self._pools.columns, self._given), 0.0
        cached = self._cached
        if cached is None or not self._is_cached(slot):
            first, weight = self._weights(slot, slot)
            remembered = weight > _MIN_WEIGHT
            value, use = self._remembered(first, remembered)
            weight, budget = weight[remembered][None], _SCARCITY * self.observed_slots(slot)
            budgets = (budget * self._tenant_part)[None]
            prices = shadow_prices(value, use, weight, budgets, _SWEEPS)[0]
            use = _row_maxima(use / self._relative_to)[:, None]
            dominant = float(shadow_prices(value, use, weight, budget.reshape(1, 1), 1)[0, 0])
            self._cached = cached = slot, self._count, prices, dominant
        return cached[2:]

    def posted_in(self, slots: range) -> Floats:
        """Return the shadow prices of slots, shape (slots, columns).

        These are the results of `prices`, but not cached: reading them changes no later decision.
        """
        if self._given is not None:
            return np.full((len(slots), self._pools.columns), self._given)
        if len(slots) == 1 and self._is_cached(slots.start):
            return self.prices(slots.start)[0][None]
        prices = np.zeros((len(slots), self._pools.columns))
        for start in range(0, len(slots), _SLOTS_SOLVED_TOGETHER):
            batch = slots[start : start + _SLOTS_SOLVED_TOGETHER]
            prices[start : start + len(batch)] = self._solve_in(batch)
        cached = self._cached
        if cached is not None and cached[0] in slots and self._is_cached(cached[0]):
            prices[slots.index(cached[0])] = cached[2]
        return prices

    def costs(self, slot: int, shares: JobShares) -> Floats:
        """Return the cost of a worker and of a PS of each job in a slot, shape (jobs, 2).

        The cost is the sum over all resources at their shadow prices, and at least
        `_DOMINANT_PRICE_SHARE` of the dominant share at its price.
        """
        prices, dominant = self.prices(slot)
        minimum = _DOMINANT_PRICE_SHARE * dominant
        costs = np.empty((len(shares.worker), 2))
        for role, share in enumerate(shares[:2]):
            dominant_share = shares.largest[:, role]
            if not self._is_whole:
                dominant_share = _row_maxima(share / self._relative_to)
            np.maximum(share @ prices, minimum * dominant_share, out=costs[:, role])
        return costs

    def _is_cached(self, slot: int) -> bool:
        """Return whether the cache is of this slot, and at most one arrival or 5 % newer."""
        cached_slot, count, *_ = self._cached or (None, 0)
        return cached_slot == slot and self._count - count <= max(1, count // 20)

    def observed_slots(self, slot: int | Floats) -> Floats:
        """Return for how many slots demand was observed; old slots count less.

        The result is the integral of the weight exp(-age / memory), from the start of the sample to
        the end of ``slot``.
        """
        since = self._arrivals["slot"][0] if len(self._arrivals) else slot
        # The time without demand before the first arrival counts while the sample has that arrival.
        if not self._has_forgotten:
            since = since - self._before
        return np.asarray(self._memory_slots * -np.expm1(-(slot - since + 1) / self._memory_slots))

    def _weights(self, earliest: int, slots: int | Floats) -> tuple[int, Floats]:
        """Return the first arrival that counts in or after ``earliest``, and weights in slots."""
        arrival = self._arrivals["slot"]
        # Late in a long trace, almost all arrivals are too old to count.
        first = int(np.searchsorted(arrival, earliest - _MAX_AGE * self._memory_slots))
        return first, np.exp(-(slots - arrival[first:]) / self._memory_slots)

    def _remembered(self, first: int, remembered: Flags) -> tuple[Floats, Floats]:
        """Return utility and usage of arrivals from ``first`` on that are marked as remembered."""
        arrivals = self._arrivals[first : first + len(remembered)]
        return arrivals["value"][remembered], arrivals["use"][remembered]

    def _solve_in(self, slots: range) -> Floats:
        """Return the shadow prices of slots, shape (slots, columns)."""
        slot_numbers = np.arange(slots.start, slots.stop, dtype=np.float64)
        first, weights = self._weights(slots.start, slot_numbers[:, None])
        budgets = (_SCARCITY * self.observed_slots(slot_numbers))[:, None] * self._tenant_part
        prices = np.zeros((len(slots), self._pools.columns))
        remembered = weights > _MIN_WEIGHT
        # Later slots only forget arrivals, so slots that remember as many remember the same ones.
        changes = np.flatnonzero(np.diff(remembered.sum(axis=1))) + 1
        for start, end in pairwise((0, *changes.tolist(), len(slots))):
            value, use = self._remembered(first, remembered[start])
            # Rows of this array are contiguous; those of an array indexed by a mask aren't.
            weight = np.compress(remembered[start], weights[start:end], axis=1)
            prices[start:end] = shadow_prices(value, use, weight, budgets[start:end], _SWEEPS)
        return prices


class DemandPrices:
    """Learns prices: from all demand to rank jobs, from each tenant's to price its promises.

    Without shares, both are the same. The observed demand also limits promises (`justifies`),
    because the first jobs meet no prices. A large promise then gains its job little, which could
    also run on spare capacity, but may keep later jobs out.
    """

    def __init__(
        self, cluster: Cluster, pools: ServerPools, quotas: Quotas, parameters: RollingParameters
    ) -> None:
        self._cluster, self._pools = cluster, pools
        self._quotas, self._parameters = quotas, parameters
        given = parameters.price if parameters.prices == "given" else None
        # If tenants have shares, one for each row of the quotas. The last learns from all demand.
        parts = [*(quotas.part if quotas.has_shares else ()), np.ones(len(cluster.resources))]
        self._learners = [PriceLearner(pools, cluster.horizon, part, given) for part in parts]
        # The arguments of `_shares`, by identity, and its result.
        self._cached_shares: tuple[JobArrays, object, JobShares] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_cached_shares": None}

    def copy(self) -> Self:
        """Return a copy that caches prices of its own; it must not learn."""
        copied = copy.copy(self)
        copied._learners = [copy.copy(learner) for learner in self._learners]
        return copied

    def restore_learnt(self, before: Self) -> None:
        """Keep the prices learnt before the cluster changed; new tenants start without any."""
        if before._pools.columns != self._pools.columns:
            return
        self._learners[-1].adopt(before._learners[-1])
        if self._quotas.has_shares and before._quotas.has_shares:
            learnt = dict(zip(tenant_rows(before._cluster), before._learners[:-1], strict=True))
            for name, learner in zip(tenant_rows(self._cluster), self._learners, strict=False):
                if name in learnt:
                    learner.adopt(learnt[name])

    def add_arrival(self, job: Job, slot: int) -> None:
        """Record an arrival."""
        self._learners[-1].add_arrival(job, slot)
        if self._quotas.has_shares:
            self._learners[self._quotas.row_of(self._cluster, job)].add_arrival(job, slot)

    def limit_use(self, name: str, slots: int) -> None:
        """Limit the demand of a finished job to what it can have used; see `PriceLearner`."""
        for learner in self._learners:
            learner.limit_use(name, slots)

    def take_back(self, name: str) -> None:
        """Remove the arrival of a job that was cancelled or failed."""
        for learner in self._learners:
            learner.take_back(name)

    def price(self, slot: int) -> Floats:
        """Return the shadow prices of all demand, by pool and resource, shape (columns,)."""
        return self._learners[-1].prices(slot)[0]

    def posted_in(self, slots: range) -> Floats:
        """Return the results of `price` for slots, shape (slots, columns), without caching."""
        return self._learners[-1].posted_in(slots)

    def costs(self, slot: int, arrays: JobArrays, rows: Integers | None = None) -> Floats:
        """Return the cost of a worker and of a parameter server in a slot, shape (rows, 2).

        Without ``rows``, the result is for all rows. If tenants have shares, each job pays the
        prices of its tenant.
        """
        shares, owner = self._shares(arrays), arrays.tenant
        if rows is not None:
            shares, owner = shares.select(rows), owner[rows]
        if not self._quotas.has_shares:
            return self._learners[-1].costs(slot, shares)
        costs = np.zeros((len(owner), 2))
        for tenant in np.unique(owner).tolist():
            owned = owner == tenant
            costs[owned] = self._learners[tenant].costs(slot, shares.select(owned))
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
        """Return the `ranking_weights` of all rows; unlike costs, at one price for all tenants."""
        return ranking_weights(self.price(slot), self._shares(arrays))

    def copy_cost(self, slot: int, job: Job) -> float:
        """Return the cost of a copy of a bag's tasks in a slot."""
        learner = self._learners[self._quotas.row_of(self._cluster, job)]
        return float(learner.costs(slot, self._copy_shares(job))[0, 0])

    def copy_weight(self, slot: int, job: Job) -> float:
        """Return the weight of a copy of a bag's tasks; see `ranking_weights`."""
        return float(ranking_weights(self.price(slot), self._copy_shares(job))[0, 0])

    def _copy_shares(self, job: Job) -> JobShares:
        worker = job.worker[None, :]
        return JobShares.of(self._pools.shares(worker, np.zeros_like(worker)))

    def justifies(self, slot: int, jobs: OpenJobs, rows: Integers, utility: Floats) -> Flags:
        """Return for which jobs the observed demand justifies a promise that earns ``utility``.

        A promise that earns little of a job's full utility is never justified. With given prices,
        or if jobs can't wait, every promise is justified.
        """
        parameters = self._parameters
        if parameters.prices == "given" or not parameters.standby or not len(rows):
            return np.ones(len(rows), np.bool_)
        size, observed, factor = self._evidence(slot, jobs, rows)
        earns_enough = utility >= _MIN_PROMISED_SHARE * jobs.full_utility[rows]
        is_small = size <= parameters.evidence * observed * factor
        return np.asarray(is_small & earns_enough, np.bool_)

    def refusal(self, slot: int, jobs: OpenJobs, row: int, offer: Offer) -> Refusal | None:
        """Return the refusal if an offer costs too much or isn't justified; None otherwise."""
        if offer.utility <= offer.cost:
            return offer.refuse_below_price()
        rows, maximum = np.array([row]), float(jobs.full_utility[row])
        if self.justifies(slot, jobs, rows, np.array([offer.utility]))[0]:
            return None
        if offer.utility < _MIN_PROMISED_SHARE * maximum:
            return offer.refuse_little_utility(maximum, _MIN_PROMISED_SHARE)
        size, observed, factor = (float(each[0]) for each in self._evidence(slot, jobs, rows))
        return offer.refuse_little_evidence(size, self._parameters.evidence, observed, factor)

    def _evidence(self, slot: int, jobs: OpenJobs, rows: Integers) -> tuple[Floats, Floats, Floats]:
        """Return the minimum size of promises, the time observed, and the factor of their limit.

        Size and time are in slots of the part of the cluster that the job's tenant may have. The
        limit is larger for a lone job, which competes with no open job (of its tenant, if tenants
        have shares), if the job can earn enough of its initial utility. Jobs that their tenants
        can't pay for don't compete: they get no promise.
        """
        arrays, owner = jobs.arrays, jobs.arrays.tenant
        shares = self._shares(arrays).select(rows)[:2]
        if self._quotas.has_shares:
            part = np.maximum(self._quotas.part[owner[rows]], 1e-12)
            part = np.tile(part, self._pools.columns // part.shape[1])
            shares = (shares[0] / part, shares[1] / part)
        observed = np.array([learner.observed_slots(slot) for learner in self._learners])
        competing = np.zeros(jobs.row_count, np.bool_)
        competing[list(jobs.rows.values())] = True
        competing &= jobs.payable
        count = np.bincount(owner[competing], minlength=len(observed))
        others = count[owner[rows]] - competing[rows]  # a job doesn't compete with itself
        attainable = jobs.full_utility[rows] >= _MIN_PROMISED_SHARE * jobs.initial_utility[rows]
        factor = np.where((others == 0) & attainable, _ALONE_FACTOR, 1.0)
        return min_cluster_slots(arrays, rows, *shares), observed[owner[rows]], factor


def ranking_weights(price: Floats, shares: JobShares) -> Floats:
    """Return a weight of a worker and of a parameter server by which densities rank jobs.

    The shape is (jobs, 2). Weights are prices plus a little for the dominant share, so that jobs
    which only need free resources have a finite density.
    """
    # If no resource has a price, only dominant shares rank jobs; any factor above 0 does.
    dominant_weight = _DOMINANT_SHARE_WEIGHT * float(price.max(initial=0.0))
    if not dominant_weight:
        dominant_weight = 1.0
    weights = np.empty((len(shares.worker), 2))
    for role, share in enumerate(shares[:2]):
        weights[:, role] = share @ price + dominant_weight * shares.largest[:, role]
    return weights


def _row_maxima(array: Floats) -> Floats:
    # Faster than `max(axis=1)`, which takes about 0.1 µs for each row, whatever its length.
    return np.asarray(array.T.copy().max(axis=0), np.float64)

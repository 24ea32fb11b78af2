"""Pools of units, and a round on them: a pass over own shares, then one over unused units.

Algorithm 2 (lines 3-6) around Algorithm 3. A round is a window of slots without earlier
reservations, and all its gangs end within it. Slots count from the start of the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.kernels.market import gangs
from shadowprice.policies.astraea import Theta
from shadowprice.policies.astraea.prices import max_theta, min_thetas, price_table
from shadowprice.policies.tenants.cells import assign_cells
from shadowprice.policies.tenants.tenancy import (
    MAX_UTILITY_MICROS,
    MICRO,
    GangJob,
    TenantShares,
    UnitClaim,
    gang_job,
    units_for,
)


@dataclass(frozen=True, eq=False)
class Gang:
    """Placement, slots and prices of a job in a round; slots are ``[start, end)`` of the round."""

    start: int
    end: int
    workers: int  # in each of these slots
    ps: int
    colocated: bool  # whether all processes are on one server
    workers_on: Integers  # by server
    ps_on: Integers
    value: int  # ideal utility, millionths
    worker_prices: Integers  # of one worker in each slot, millionths
    ps_prices: Integers

    @property
    def worker_costs(self) -> Integers:
        """Cost of its workers in each slot, millionths."""
        return self.workers * self.worker_prices

    @property
    def ps_costs(self) -> Integers:
        """Cost of its parameter servers in each slot, millionths."""
        return self.ps * self.ps_prices

    @property
    def cost(self) -> int:
        """Cost over all slots, millionths."""
        return int(self.worker_costs.sum() + self.ps_costs.sum())

    @property
    def payoff(self) -> int:
        """Ideal utility less cost, millionths: Eq. (7)."""
        return self.value - self.cost


@dataclass(eq=False)
class UnitPool:
    """Capacity units of one type over a round."""

    capacity: Integers  # units of each server
    shares: Integers  # units that each tenant owns; their sum is all units
    prices: Integers  # of a unit for a slot by the number of units taken, see `prices.price_table`
    slots: int  # length of the round
    free: Integers = field(init=False)
    ends: npt.NDArray[np.int32] = field(init=False)
    taken: Integers = field(init=False)
    taken_by: Integers = field(init=False)

    def __post_init__(self) -> None:
        total, max_units = int(self.capacity.sum()), int(self.capacity.max(initial=0))
        if int(self.prices.max()) * max(total, 1) * self.slots >= MAX_UTILITY_MICROS:
            raise InputError("prices are too high to count; lower theta or scale utilities down")
        self.free = np.tile(self.capacity, (self.slots, 1))
        self.ends = np.empty((self.slots, max_units + 1, self.capacity.size), np.int32)
        gangs.fill_run_ends(self.free, self.ends)
        self.taken = np.zeros(self.slots, np.int64)
        self.taken_by = np.zeros((self.shares.size, self.slots), np.int64)

    def available_units(self, tenant: int, *, borrow: bool) -> Integers:
        """Return the units that a tenant's job may use by slot: its unused share, or all unused."""
        if borrow:
            return np.asarray(self.capacity.sum() - self.taken, np.int64)
        return np.asarray(np.maximum(self.shares[tenant] - self.taken_by[tenant], 0), np.int64)

    def current_prices(self) -> Integers:
        """Return the price of a unit in each slot."""
        # Overrunning gangs keep their units, so that more can be taken than the shares of the pool.
        taken = np.minimum(self.taken, len(self.prices) - 1)
        return np.asarray(self.prices[taken], np.int64)

    def reserve(self, tenant: int, start: int, end: int, amounts: Integers) -> None:
        """Reserve units on each server over slots ``[start, end)``."""
        for server in np.flatnonzero(amounts).tolist():
            gangs.reserve_units(self.free, self.ends, server, start, end, int(amounts[server]))
        self.taken[start:end] += amounts.sum()
        self.taken_by[tenant, start:end] += amounts.sum()

    def unused_shares(self) -> Integers:
        """Return the unused share of every tenant, shape (slots, tenants)."""
        return np.ascontiguousarray(np.maximum(self.shares[:, None] - self.taken_by, 0).T)


@dataclass(frozen=True, eq=False)
class GangAward:
    """A job that a round schedules."""

    job: GangJob
    gang: Gang
    income: Mapping[int, Integers] | None = None
    """Income of each tenant, the owner included, for the units of each type in each slot, shape
    (slots of the gang, tenants): Eq. (2), Eq. (11). None within the tenant's own share, which is
    free."""
    lenders: Flags | None = None
    """Tenants whose unused share the gang uses in each slot, even at price 0."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a batch, in slots ``[start, end)``."""

    batch: int  # number of the batch, from 1
    number: int  # position among the rounds of its batch, from 0
    start: int
    end: int
    collected: int  # its batch collects the unscheduled jobs that arrived before this slot


class RoundMarket:
    """State of one round, with the units by type.

    Of servers with equally many free units, gangs prefer the least busy one over the round, or the
    busiest one with ``pack_in_time``.
    """

    def __init__(self, pools: Sequence[UnitPool], *, pack_in_time: bool = False) -> None:
        self.pools = tuple(pools)
        first = self.pools[0]
        self.slots = first.slots
        self._empty_pool = UnitPool(
            np.zeros_like(first.capacity),
            np.zeros_like(first.shares),
            np.zeros(1, np.int64),
            self.slots,
        )
        self._sign = -1 if pack_in_time else 1

    def pools_for(self, job: GangJob) -> tuple[UnitPool, UnitPool]:
        """Return the pools of a job's workers and its parameter servers."""
        ps = self.pools[job.ps_type] if job.uses_ps else self._empty_pool
        return self.pools[job.worker_type], ps

    def search(self, job: GangJob, *, borrow: bool, bonus: int = 0) -> Gang | None:
        """Return the gang of greatest positive payoff; None if there is none: Algorithm 3.

        With ``borrow``, it may use all unused units. ``bonus``, in millionths, is added to every
        utility.
        """
        workers, ps = self.pools_for(job)
        values = job.values(self.slots)
        worker_prices, ps_prices = workers.current_prices(), ps.current_prices()
        late = self.slots + 1
        _, start, end, count, servers, colocated = gangs.best_gang(
            values + bonus, gangs.running_sums(worker_prices), gangs.running_sums(ps_prices),
            workers.available_units(job.tenant, borrow=borrow),
            ps.available_units(job.tenant, borrow=borrow),
            job.counts, np.minimum(job.spread_slots, late), np.minimum(job.colocated_slots, late),
            job.reach[: ps.ends.shape[1]], workers.ends, ps.ends,
        )  # fmt: skip
        if start < 0:
            return None
        busy = self._sign * (workers.capacity * self.slots - workers.free.sum(axis=0))
        workers_on, ps_on = gangs.place_gang(
            start, end, count, servers, colocated, job.reach[: ps.ends.shape[1]], busy,
            workers.ends, ps.ends,
        )  # fmt: skip
        return Gang(
            start,
            end,
            count,
            servers,
            colocated,
            workers_on,
            ps_on,
            int(values[end]),
            worker_prices[start:end],
            ps_prices[start:end],
        )

    def reserve(self, job: GangJob, gang: Gang) -> None:
        """Reserve a gang for a job."""
        workers, ps = self.pools_for(job)
        workers.reserve(job.tenant, gang.start, gang.end, gang.workers_on)
        if gang.ps:
            ps.reserve(job.tenant, gang.start, gang.end, gang.ps_on)

    def hold(self, jobs: Iterable[GangJob], *, sharing: bool = True) -> list[GangAward]:
        """Schedule jobs in both passes, by arrival, then name: one round of Algorithm 2.

        Without ``sharing``, there is no second pass, in which jobs borrow.
        """
        awards = []
        waiting = []
        for job in sorted(jobs, key=lambda job: (job.arrival, job.name)):
            gang = self.search(job, borrow=False)
            if gang is None:
                waiting.append(job)
                continue
            self.reserve(job, gang)
            awards.append(GangAward(job, gang))
        if not sharing:
            return awards
        # A tenant contributes the units of its share that the first pass left unused: line 4.
        unused = [pool.unused_shares() for pool in self.pools]
        for job in waiting:
            gang = self.search(job, borrow=True)
            if gang is None:
                continue
            self.reserve(job, gang)
            costs = {job.worker_type: gang.worker_costs}
            if gang.ps:
                costs[job.ps_type] = gang.ps_costs
            lent = {kind: unused[kind][gang.start : gang.end] for kind in costs}
            income = {kind: gangs.divide(paid, lent[kind]) for kind, paid in costs.items()}
            lenders = np.any([units > 0 for units in lent.values()], axis=0)
            awards.append(GangAward(job, gang, income, lenders))
        return awards


BONUS: Final = MAX_UTILITY_MICROS // 4
"""Added to every utility to find a job's best gang even if its payoff isn't positive."""


def explain_refusal(
    tenancy: TenantShares, market: RoundMarket, gang: GangJob, turn: Round, *, borrow: bool
) -> Refusal:
    """Return the dominant reason after all other jobs of the round have been scheduled."""
    best = market.search(gang, borrow=borrow, bonus=BONUS)
    where = f"slots {turn.start} to {turn.start + market.slots - 1}"
    if best is not None:
        return _refuse_below_price(best, turn)
    return Refusal(
        RefusalReason.NO_ROOM,
        f"no gang fits the free capacity of {where}",
        bottleneck=_bottleneck(tenancy, market, gang, where),
    )


def _refuse_below_price(gang: Gang, turn: Round) -> Refusal:
    missing = -gang.payoff / MICRO
    value, cost = gang.value / MICRO, gang.cost / MICRO
    first, last = turn.start + gang.start, turn.start + gang.end - 1
    return Refusal(
        RefusalReason.PRICE,
        f"its utility with the best gang left is {value:.6g}, not above the gang's price, "
        f"{cost:.6g}",
        value=value,
        cost=cost,
        completion=last,
        bottleneck=f"price of places in slots {first} to {last}",
        numbers={"missing": missing},
    )


def _bottleneck(tenancy: TenantShares, market: RoundMarket, gang: GangJob, where: str) -> str:
    """Return the scarcer unit type of a round: the larger fraction taken."""
    workers, ps = market.pools_for(gang)
    kinds = [(tenancy.types[gang.worker_type], workers)]
    if gang.uses_ps:
        kinds.append((tenancy.types[gang.ps_type], ps))
    taken = [
        (float(kind.taken.mean() / max(int(kind.capacity.sum()), 1)), -index)
        for index, (_, kind) in enumerate(kinds)
    ]
    name = kinds[-max(taken)[1]][0]
    return f"{name} places of {where}, {max(taken)[0]:.0%} taken"


NEARLY_FREE = 1.0 + 1e-9  # minimum of theta: prices are then below a millionth


class TaughtTheta(NamedTuple):
    """Theta that one job requires of its types."""

    arrival: int
    thetas: Mapping[int, float]


@dataclass(eq=False)
class TenantPool:
    """Servers with the tenants that may use them."""

    tenants: tuple[int, ...]  # their indices in the cluster
    servers: Integers  # their indices in the cluster
    units: Integers  # shape (types, servers of the pool)
    owned: Integers  # units that each tenant owns, shape (types, tenants of the pool)
    worker_types: int  # number of types of workers, which come first
    theta: Theta
    seen: list[float] = field(init=False)
    taught: dict[str, TaughtTheta] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = [1.0] * len(self.units)

    def position(self, tenant: int) -> int:
        """Return a tenant's position in the pool."""
        return self.tenants.index(tenant)

    def max_ps(self, claim: UnitClaim) -> int:
        """Return the maximum of parameter servers of a claim's type on one server."""
        return int(self.units_for(claim)[1].max(initial=0))

    def units_for(self, claim: UnitClaim) -> tuple[Integers, Integers]:
        """Return the units of a claim's types on each server."""
        return units_for(self.units, claim)

    def learn(self, job: Job, claim: UnitClaim, *, rigid: bool) -> None:
        """Raise theta to its definition over one more job, whose points cap its utility."""
        # The definition assumes that a job is worth at least 1 per worker-slot.
        _raise_thetas(self.seen, self._compute_theta(job, claim, rigid=rigid, min_price=1.0))

    def teach(self, job: Job, claim: UnitClaim, *, rigid: bool) -> None:
        """Learn theta from an open job, until it is taken back or forgotten."""
        # Values in a service have any scale: a plain job of a minute is worth 0.02 points. At a
        # price of at least 1, a second such job would wait until the first one ends.
        self.taught[job.name] = self._compute_theta(job, claim, rigid=rigid, min_price=0.0)

    def take_back(self, name: str) -> None:
        """Undo what a job has taught, if it has."""
        self.taught.pop(name, None)

    def _compute_theta(
        self, job: Job, claim: UnitClaim, *, rigid: bool, min_price: float
    ) -> TaughtTheta:
        gang = gang_job(job, claim, self.max_ps(claim), rigid=rigid, tenant=0)
        max_workers = int(self.units[claim.worker_type].max(initial=0))
        worker, ps = min_thetas([gang], max_workers, job.payable, min_price)
        thetas = {claim.worker_type: worker}
        if claim.ps_type is not None:
            thetas[claim.ps_type] = ps
        return TaughtTheta(job.arrival, thetas)

    def thetas(self) -> list[float]:
        """Return theta in force by type."""
        thetas = list(self.seen)
        for taught in self.taught.values():
            _raise_thetas(thetas, taught)
        if self.theta.worker is not None and self.theta.ps is not None:
            ps_types = len(thetas) - self.worker_types
            thetas = [self.theta.worker] * self.worker_types + [self.theta.ps] * ps_types
        return [max(self.theta.scale * theta, NEARLY_FREE) for theta in thetas]

    def max_thetas(self) -> tuple[float, float]:
        """Return the largest theta of workers and of parameter servers, 1 without PS units."""
        thetas = self.thetas()
        # Without parameter servers, (8) prices only workers.
        return max(thetas[: self.worker_types]), max(thetas[self.worker_types :], default=1.0)

    def open(self, slots: int, lost: Sequence[bool], *, pack_in_time: bool) -> RoundMarket:
        """Open an empty market of some slots on the servers that are up.

        A learnt theta is lowered where prices would be too high to count: a job may have any value.
        """
        up = np.array([not lost[server] for server in self.servers.tolist()], np.bool_)
        pools = []
        for units, owned, theta in zip(self.units, self.owned, self.thetas(), strict=True):
            total = int(units[up].sum())
            countable = min(theta, max_theta(total, slots)) if self.taught else theta
            prices = price_table(countable, total)
            pools.append(UnitPool(np.where(up, units, 0), owned, prices, slots))
        return RoundMarket(pools, pack_in_time=pack_in_time)


def _raise_thetas(thetas: list[float], taught: TaughtTheta) -> None:
    """Raise thetas by type to what a job requires."""
    for kind, theta in taught.thetas.items():
        thetas[kind] = max(thetas[kind], theta)


def shared_pool(tenancy: TenantShares, theta: Theta) -> TenantPool:
    """Return the pool that all tenants share."""
    return TenantPool(
        tuple(range(len(tenancy.tenants))),
        np.arange(tenancy.cluster.servers),
        tenancy.units,
        tenancy.owned,
        len(tenancy.worker_types),
        theta,
    )


def private_pools(tenancy: TenantShares, theta: Theta) -> list[TenantPool]:
    """Return one pool per tenant, each on servers of its own."""
    assigned, worker_types = assign_units(tenancy), len(tenancy.worker_types)
    pools = []
    for tenant in range(len(tenancy.tenants)):
        servers = np.flatnonzero(assigned[:, tenant].sum(axis=0))
        units = np.ascontiguousarray(assigned[:, tenant, servers])
        owned = tenancy.owned[:, [tenant]]
        pools.append(TenantPool((tenant,), servers, units, owned, worker_types, theta))
    return pools


def assign_worker_units(units: Integers, shares: Integers) -> Integers:
    """Allocate worker units of one type in cells as large as shares allow, (tenants, servers)."""
    allocated = np.zeros((shares.size, units.size), np.int64)
    for tenant, cells in enumerate(assign_cells(units.tolist(), shares.tolist())):
        for cell in cells:
            allocated[tenant, cell.server] += cell.size
    return allocated


def assign_ps_units(units: Integers, shares: Integers, workers: Integers) -> Integers:
    """Allocate the PS units of one type, close to the tenant's ``workers`` if possible.

    Tenants take turns: a unit on the server with the most worker units per PS unit.
    """
    free = units.copy()
    allocated = np.zeros((shares.size, units.size), np.int64)
    remaining = shares.copy()
    while remaining.any():
        for tenant in np.flatnonzero(remaining).tolist():
            score = np.where(free > 0, workers[tenant] / (1 + allocated[tenant]), -1.0)
            server = int(np.argmax(score))
            allocated[tenant, server] += 1
            free[server] -= 1
            remaining[tenant] -= 1
    return allocated


def assign_units(tenancy: TenantShares) -> Integers:
    """Allocate all units, shape (types, tenants, servers)."""
    kinds = list(zip(tenancy.units, tenancy.owned, strict=True))
    count = len(tenancy.worker_types)
    workers = [assign_worker_units(*kind) for kind in kinds[:count]]
    worker_units = np.sum(workers, axis=0)
    return np.array([*workers, *(assign_ps_units(*kind, worker_units) for kind in kinds[count:])])

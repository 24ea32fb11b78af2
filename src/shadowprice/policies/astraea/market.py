"""One round of Astraea on pools of units: Algorithm 2, lines 3-6, with Algorithm 3 for each job.

In a first pass, jobs may use the unused units of their tenant's share. In a second pass, the other
jobs may borrow all unused units, and pay for them. A *gang* is a job's workers and parameter
servers: it runs in consecutive slots and never moves. All gangs of a round end within it. Slots
here count from the start of the round.
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
    """Placement, slots and prices of a job; it runs in slots ``[start, end)`` of the round."""

    start: int
    end: int
    workers: int  # in each slot
    ps: int
    colocated: bool  # whether all processes are on one server
    workers_on: Integers  # number of workers by server
    ps_on: Integers  # number of parameter servers by server
    value: int  # utility as if the job arrived at the round's start (ideal utility), millionths
    worker_prices: Integers  # of one worker in each slot, millionths
    ps_prices: Integers  # of one parameter server in each slot, millionths

    @property
    def worker_costs(self) -> Integers:
        """Cost of all workers in each slot, millionths."""
        return self.workers * self.worker_prices

    @property
    def ps_costs(self) -> Integers:
        """Cost of all parameter servers in each slot, millionths."""
        return self.ps * self.ps_prices

    @property
    def cost(self) -> int:
        """Cost over all slots, millionths."""
        return int(self.worker_costs.sum() + self.ps_costs.sum())

    @property
    def payoff(self) -> int:
        """Ideal utility minus cost, millionths: Eq. (7)."""
        return self.value - self.cost


@dataclass(eq=False)
class UnitPool:
    """Capacity units of one type over a round."""

    capacity: Integers  # units of each server
    shares: Integers  # units that each tenant owns, in total all units
    prices: Integers  # of a unit for a slot by the number of units taken, see `prices.price_table`
    slots: int  # length of the round
    free: Integers = field(init=False)  # shape (slots, servers)
    ends: npt.NDArray[np.int32] = field(init=False)  # see `gangs.fill_run_ends`
    taken: Integers = field(init=False)  # units, shape (slots,)
    taken_by: Integers = field(init=False)  # units, shape (tenants, slots)

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
        """Return the units by slot that a tenant's job may use: its unused share, or all unused."""
        if borrow:
            return np.asarray(self.capacity.sum() - self.taken, np.int64)
        return np.asarray(np.maximum(self.shares[tenant] - self.taken_by[tenant], 0), np.int64)

    def current_prices(self) -> Integers:
        """Return the price of a unit in each slot."""
        # Overrunning gangs keep their units, so more can be taken than the pool has.
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
    """A job that a round schedules, and who is paid for it."""

    job: GangJob
    gang: Gang
    income: Mapping[int, Integers] | None = None
    """Income by unit type, shape (slots of the gang, tenants): Eq. (2), Eq. (11). The job's own
    tenant can be among the earners. None if the gang uses its tenant's own share, which is free."""
    lenders: Flags | None = None
    """Tenants who lend units to the gang, even at price 0, shape (slots of the gang, tenants)."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a batch, in slots ``[start, end)``."""

    batch: int  # number of the batch, from 1
    number: int  # position among the rounds of its batch, from 0
    start: int
    end: int
    collected: int  # the batch has the unscheduled jobs that arrived before this slot


class RoundMarket:
    """State of one round: a pool for each type of units.

    Of servers with equally many free units, a gang gets the one with the fewest reservations over
    the whole round, or with ``pack_in_time`` the one with the most.
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
        """Return the pools of a job's workers and of its parameter servers."""
        ps = self.pools[job.ps_type] if job.uses_ps else self._empty_pool
        return self.pools[job.worker_type], ps

    def search(self, job: GangJob, *, borrow: bool, bonus: int = 0) -> Gang | None:
        """Return the gang with the largest positive payoff, None without one: Algorithm 3.

        With ``borrow``, it may use all unused units. ``bonus``, in millionths, is added to every
        utility during the search.
        """
        workers, ps = self.pools_for(job)
        values = job.values(self.slots)
        worker_prices, ps_prices = workers.current_prices(), ps.current_prices()
        late = self.slots + 1  # any duration that the round can't hold
        _, start, end, count, ps_count, colocated = gangs.best_gang(
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
            start, end, count, ps_count, colocated, job.reach[: ps.ends.shape[1]], busy,
            workers.ends, ps.ends,
        )  # fmt: skip
        return Gang(
            start,
            end,
            count,
            ps_count,
            colocated,
            workers_on,
            ps_on,
            int(values[end]),
            worker_prices[start:end],
            ps_prices[start:end],
        )

    def reserve(self, job: GangJob, gang: Gang) -> None:
        """Reserve the units of a job's gang."""
        workers, ps = self.pools_for(job)
        workers.reserve(job.tenant, gang.start, gang.end, gang.workers_on)
        if gang.ps:
            ps.reserve(job.tenant, gang.start, gang.end, gang.ps_on)

    def schedule(self, jobs: Iterable[GangJob], *, sharing: bool = True) -> list[GangAward]:
        """Schedule jobs in two passes: one round of Algorithm 2.

        In each pass, jobs come by arrival, then name. Without ``sharing``, there is no second pass,
        in which jobs borrow.
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
        # Line 4: tenants lend what the first pass left unused; the second doesn't change that.
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
"""Large number that is added to every utility, to find the best gang even if it doesn't pay."""


def explain_refusal(
    tenancy: TenantShares, market: RoundMarket, gang: GangJob, turn: Round, *, borrow: bool
) -> Refusal:
    """Return why a round doesn't schedule a job, after it has scheduled the others."""
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
    """Return the unit type of which the larger fraction is taken, as text."""
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


NEARLY_FREE = 1.0 + 1e-9  # minimum theta, above 1: prices are below a millionth, so 0


class TaughtTheta(NamedTuple):
    """Theta that one job requires of the unit types that it uses."""

    arrival: int
    thetas: Mapping[int, float]  # by unit type


@dataclass(eq=False)
class TenantPool:
    """Servers with the tenants that may use them."""

    tenants: tuple[int, ...]  # their indices in the cluster
    servers: Integers  # their indices in the cluster
    units: Integers  # shape (types, servers of the pool)
    owned: Integers  # units that each tenant owns, shape (types, tenants of the pool)
    worker_types: int  # number of types of workers, which come first
    theta: Theta
    known_thetas: list[float] = field(init=False)  # theta over the known jobs, by unit type
    taught: dict[str, TaughtTheta] = field(init=False, default_factory=dict)  # by job

    def __post_init__(self) -> None:
        self.known_thetas = [1.0] * len(self.units)

    def position(self, tenant: int) -> int:
        """Return a tenant's position in the pool."""
        return self.tenants.index(tenant)

    def max_ps(self, claim: UnitClaim) -> int:
        """Return the maximum number of units for a claim's parameter servers on one server."""
        return int(self.units_for(claim)[1].max(initial=0))

    def units_for(self, claim: UnitClaim) -> tuple[Integers, Integers]:
        """Return the units of a claim's types on each server."""
        return units_for(self.units, claim)

    def learn(self, job: Job, claim: UnitClaim, *, rigid: bool) -> None:
        """Raise theta to its definition over one more known job, whose points cap its utility."""
        # The paper's definition has a minimum price of 1 for an exhausted type.
        _raise_thetas(
            self.known_thetas, self._compute_theta(job, claim, rigid=rigid, min_price=1.0)
        )

    def teach(self, job: Job, claim: UnitClaim, *, rigid: bool) -> None:
        """Learn theta from an arrived job, until `take_back`."""
        # Values in a service have any scale: a one-minute job of default value is worth 0.02
        # points. At a minimum price of 1, a second such job would wait until the first one ends.
        self.taught[job.name] = self._compute_theta(job, claim, rigid=rigid, min_price=0.0)

    def take_back(self, name: str) -> None:
        """Remove a job from those that teach, if it is among them."""
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
        """Return the present theta of each unit type."""
        thetas = list(self.known_thetas)
        for taught in self.taught.values():
            _raise_thetas(thetas, taught)
        if self.theta.worker is not None and self.theta.ps is not None:
            ps_types = len(thetas) - self.worker_types
            thetas = [self.theta.worker] * self.worker_types + [self.theta.ps] * ps_types
        return [max(self.theta.scale * theta, NEARLY_FREE) for theta in thetas]

    def max_thetas(self) -> tuple[float, float]:
        """Return the largest theta of workers and of parameter servers."""
        thetas = self.thetas()
        # Without units for parameter servers, only workers have prices; a theta of 1 adds nothing.
        return max(thetas[: self.worker_types]), max(thetas[self.worker_types :], default=1.0)

    def open(self, slots: int, lost: Sequence[bool], *, pack_in_time: bool) -> RoundMarket:
        """Open an empty market of ``slots`` slots, without units on ``lost`` servers.

        A learnt theta is lowered to `max_theta`, because the values of jobs have no limit.
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
    """Raise the theta of each type to what a job requires, in place."""
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
    """Return a pool for each tenant, with its own part of the servers' units."""
    assigned, worker_types = assign_units(tenancy), len(tenancy.worker_types)
    pools = []
    for tenant in range(len(tenancy.tenants)):
        servers = np.flatnonzero(assigned[:, tenant].sum(axis=0))
        units = np.ascontiguousarray(assigned[:, tenant, servers])
        owned = tenancy.owned[:, [tenant]]
        pools.append(TenantPool((tenant,), servers, units, owned, worker_types, theta))
    return pools


def assign_worker_units(units: Integers, shares: Integers) -> Integers:
    """Allocate worker units of one type in large cells, shape (tenants, servers)."""
    allocated = np.zeros((shares.size, units.size), np.int64)
    for tenant, cells in enumerate(assign_cells(units.tolist(), shares.tolist())):
        for cell in cells:
            allocated[tenant, cell.server] += cell.size
    return allocated


def assign_ps_units(units: Integers, shares: Integers, workers: Integers) -> Integers:
    """Allocate the PS units of one type, on servers with the tenant's ``workers`` if possible.

    Tenants take turns. Each gets a unit on the server where it has the most worker units per PS
    unit. The result has the shape (tenants, servers).
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
    """Allocate all units to tenants, shape (types, tenants, servers)."""
    kinds = list(zip(tenancy.units, tenancy.owned, strict=True))
    count = len(tenancy.worker_types)
    workers = [assign_worker_units(*kind) for kind in kinds[:count]]
    worker_units = np.sum(workers, axis=0)
    return np.array([*workers, *(assign_ps_units(*kind, worker_units) for kind in kinds[count:])])

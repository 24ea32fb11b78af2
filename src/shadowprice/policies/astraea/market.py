"""One round: a pass over own shares, then a pass over all unused units.

Algorithm 2 (lines 3-6) around Algorithm 3. A round is a window of slots without earlier
reservations, and all its gangs end within it. Slots count from the start of the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.errors import InputError
from shadowprice.kernels.market.gangs import (
    best_gang,
    fill_run_ends,
    place_gang,
    reserve_units,
    running_sums,
)
from shadowprice.kernels.market.income import divide
from shadowprice.policies.tenants.gang_jobs import MAX_UTILITY_MICROS, GangJob


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
        fill_run_ends(self.free, self.ends)
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
            reserve_units(self.free, self.ends, server, start, end, int(amounts[server]))
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
    worker_income: Integers | None = None
    """Income of each tenant, the owner included, for the workers in each slot, shape (slots of the
    gang, tenants): Eq. (2), Eq. (11). None within the tenant's own share, which is free."""
    ps_income: Integers | None = None
    lenders: Flags | None = None
    """Tenants whose unused share the gang uses in each slot, even at price 0."""


class RoundMarket:
    """State of one round, with the units by type.

    Of servers with equally many free units, gangs prefer the least busy one over the round, or the
    busiest one with ``pack_in_time``.
    """

    def __init__(
        self, workers: Sequence[UnitPool], ps: Sequence[UnitPool], *, pack_in_time: bool = False
    ) -> None:
        self.workers = tuple(workers)
        self.ps = tuple(ps)
        self.slots = self.workers[0].slots
        self._empty_pool = UnitPool(
            np.zeros_like(self.workers[0].capacity),
            np.zeros_like(self.workers[0].shares),
            np.zeros(1, np.int64),
            self.slots,
        )
        self._sign = -1 if pack_in_time else 1

    def pools_for(self, job: GangJob) -> tuple[UnitPool, UnitPool]:
        """Return the pools of a job's workers and its parameter servers."""
        ps = self.ps[job.ps_type] if job.uses_ps else self._empty_pool
        return self.workers[job.worker_type], ps

    def search(self, job: GangJob, *, borrow: bool, bonus: int = 0) -> Gang | None:
        """Return the gang of greatest positive payoff; None if there is none: Algorithm 3.

        With ``borrow``, it may use all unused units instead of only its tenant's unused share. The
        bonus, in millionths, is added to the utility of every completion: a large one finds the
        gang of greatest payoff even if that isn't positive.
        """
        workers, ps = self.pools_for(job)
        values = job.values(self.slots)
        worker_prices, ps_prices = workers.current_prices(), ps.current_prices()
        late = self.slots + 1
        _, start, end, count, servers, colocated = best_gang(
            values + bonus, running_sums(worker_prices), running_sums(ps_prices),
            workers.available_units(job.tenant, borrow=borrow),
            ps.available_units(job.tenant, borrow=borrow),
            job.counts, np.minimum(job.spread_slots, late), np.minimum(job.colocated_slots, late),
            job.reach[: ps.ends.shape[1]], workers.ends, ps.ends,
        )  # fmt: skip
        if start < 0:
            return None
        busy = self._sign * (workers.capacity * self.slots - workers.free.sum(axis=0))
        workers_on, ps_on = place_gang(
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

        Without ``sharing``, there is no second pass, in which jobs borrow. Awards are in the order
        in which they were scheduled.
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
        worker_unused = [pool.unused_shares() for pool in self.workers]
        ps_unused = [pool.unused_shares() for pool in self.ps]
        for job in waiting:
            gang = self.search(job, borrow=True)
            if gang is None:
                continue
            self.reserve(job, gang)
            used = slice(gang.start, gang.end)
            worker_income = divide(gang.worker_costs, worker_unused[job.worker_type][used])
            lenders = worker_unused[job.worker_type][used] > 0
            if gang.ps:
                ps_income = divide(gang.ps_costs, ps_unused[job.ps_type][used])
                lenders = lenders | (ps_unused[job.ps_type][used] > 0)
            else:
                ps_income = np.zeros_like(worker_income)
            awards.append(GangAward(job, gang, worker_income, ps_income, lenders))
        return awards

"""The price board of one pool: prices and free capacity by groups of equal servers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.prices.exponential import exponential_prices
from shadowprice.kernels.slots.groups import Groups, SlotGroups, find_groups
from shadowprice.policies.pricing.constants import PriceConstants, PricePool

_MAX_CACHED_DEMANDS = 4096


class PriceBoard:
    """Prices and free capacity of a pool over the ledger's window, updated incrementally."""

    def __init__(
        self, cluster: Cluster, pool: PricePool, constants: PriceConstants, slots: int
    ) -> None:
        cluster.check_plan(slots)
        self.pool = pool
        self.constants = constants
        self.servers: Integers = np.flatnonzero(pool.members).astype(np.int64)
        self._position = np.full(cluster.servers, -1, dtype=np.int64)
        self._position[self.servers] = np.arange(len(self.servers))
        self._capacity = np.ascontiguousarray(cluster.capacity[self.servers])
        self._slots = slots
        limited = np.minimum(self._capacity, pool.scale)
        # Share of the pool's scale that a whole server is; unlimited amounts count as the scale.
        self._whole = np.divide(
            limited, pool.scale, out=np.zeros(limited.shape), where=pool.scale > 0
        )
        self._out = np.zeros(len(self.servers), dtype=np.bool_)  # unavailable servers
        self._start = 0
        self._capacity_version = 0
        self._followed = -1  # position in the ledger's log of changes
        self._shares: dict[bytes, Floats] = {}

    @cached_property
    def _groups(self) -> SlotGroups:
        """Groups of equal servers, built at first use: many boards only hold constants."""
        constants = self.constants
        return SlotGroups(
            self._capacity, self._slots, _lower(constants), constants.ln_upper, self.servers
        )

    def set_constants(self, constants: PriceConstants, ledger: LedgerView) -> None:
        """Set new constants, and compute the prices of all slots again."""
        self.constants = constants
        self._roll(ledger)
        self._groups.set_prices(_lower(constants), constants.ln_upper)
        self._follow(ledger)

    def follow(self, ledger: LedgerView) -> None:
        """Update the board from the ledger; only slots that changed are grouped again."""
        self._roll(ledger)
        self._follow(ledger)

    def _follow(self, ledger: LedgerView) -> None:
        self._followed, changes = ledger.changes_since(self._followed)
        if changes is None:
            self._groups.follow(ledger.used, ledger.versions)
        elif changes and len(self.servers):
            slots, servers = changes[0].slots, changes[0].servers
            if len(changes) > 1:
                slots = np.concatenate([schedule.slots for schedule in changes])
                servers = np.concatenate([schedule.servers for schedule in changes])
                # Kernels are compiled again for arrays that aren't read-only.
                slots.setflags(write=False)
                servers.setflags(write=False)
            self._groups.follow_changes(ledger.used, ledger.versions, slots, servers, ledger.start)

    def __getstate__(self) -> Mapping[str, object]:
        # Pickled groups lose the reservations, so the ledger must be read from the beginning.
        return self.__dict__ | {"_followed": -1}

    def _roll(self, ledger: LedgerView) -> None:
        if ledger.start < self._start:  # an event was rolled back, but not the policy's state
            self._groups.lose(self._out)
            self._followed = -1
        elif ledger.start > self._start:
            self._groups.roll(ledger.start - self._start)
        self._start = ledger.start
        if ledger.capacity_version != self._capacity_version:
            self._out = (ledger.capacity[self.servers] == 0).all(axis=1)
            self._groups.lose(self._out)
            self._followed = -1
            self._capacity_version = ledger.capacity_version

    def shares(self, demand: Amounts) -> Floats:
        """Return a demand as shares of the pool's scale; the result is cached by demand."""
        key = demand.tobytes()
        if key not in self._shares:
            if len(self._shares) >= _MAX_CACHED_DEMANDS:
                self._shares.clear()
            self._shares[key] = self.pool.shares(demand)
        return self._shares[key]

    def window(self, slots: int) -> Groups:
        """Return the groups of the first ``slots`` slots of the window, for kernels."""
        groups = self._groups.groups
        return groups._replace(row_of=groups.row_of[:slots])

    def server_totals(self, ledger: LedgerView, constants: PriceConstants) -> Floats:
        """Return the price of all of each server's resources in the ledger's first slot.

        The result has a row for each server of the pool, and a column for each resource. Prices are
        computed from ``constants``, without the groups: a query of prices must not change them, and
        the ledger's window may be later than theirs.
        """
        used = ledger.used[0][self.servers]
        prices = exponential_prices(used, self._capacity, _lower(constants), constants.ln_upper)
        out = (ledger.capacity[self.servers] == 0).all(axis=1)
        whole = np.where(out[:, None], 0.0, self._whole)
        # A resource that a server lacks costs nothing, although its price is infinite.
        return np.asarray(np.where(whole > 0, prices, 0.0) * whole, dtype=np.float64)

    def scarcest(self, job: Job, *, ps: bool, ledger: LedgerView, slots: int) -> tuple[int, float]:
        """Return the column of the resource that limits a job most, and how many fit with it.

        The number is the mean of workers (or with ``ps`` parameter servers) per slot that would fit
        if only this resource were limited. ``(0, inf)`` if the process needs nothing.
        """
        demand = job.ps if ps else job.worker
        assert demand is not None
        columns = np.flatnonzero(demand > 0)
        if not len(columns):
            return 0, math.inf
        self.follow(ledger)
        groups = self._groups.groups
        # Slots with the same row have equal free capacity.
        rows, times = np.unique(groups.row_of[:slots], return_counts=True)
        free = (groups.free[rows][:, columns] // demand[columns, None]).astype(np.float64)
        exists = np.arange(groups.members.shape[1]) < groups.groups[rows, None]
        by_group = (
            np.where(exists[:, None], free, 0.0)
            * np.where(exists, groups.members[rows], 0)[:, None]
        )
        room = (by_group.sum(axis=2) * times[:, None]).sum(axis=0) / slots
        bottleneck = int(np.argmin(room))
        return int(columns[bottleneck]), float(room[bottleneck])

    def spent(
        self, ledger: LedgerView, schedule: Schedule, counts: Integers, demand: Amounts
    ) -> Floats:
        """Return the cost of a schedule by resource.

        ``counts`` is the number of processes in each entry of the schedule, ``demand`` that of one
        process. Entries outside the pool cost nothing here.
        """
        _, paid = self._paid(ledger, schedule, counts, demand)
        return np.asarray(paid.sum(axis=0), dtype=np.float64)

    def cost_by_slot(
        self, ledger: LedgerView, schedule: Schedule, counts: Integers, demand: Amounts
    ) -> Floats:
        """Return the cost of a schedule in each of its active slots; parameters as in `spent`."""
        entries, paid = self._paid(ledger, schedule, counts, demand)
        active = schedule.active_slots
        index = np.searchsorted(active, schedule.slots[entries])
        costs = np.bincount(index, weights=paid.sum(axis=1), minlength=len(active))
        return np.asarray(costs, dtype=np.float64)

    def _paid(
        self, ledger: LedgerView, schedule: Schedule, counts: Integers, demand: Amounts
    ) -> tuple[Integers, Floats]:
        """Return the entries of a schedule in this pool, and the cost of each by resource."""
        share = self.shares(demand)
        self.follow(ledger)
        entries = np.flatnonzero((counts > 0) & (self._position[schedule.servers] >= 0))
        groups = self._groups.groups
        rows = groups.row_of[schedule.slots[entries] - ledger.start]
        group = find_groups(groups, rows, self._position[schedule.servers[entries]])
        prices = groups.price[rows, :, group]
        # A resource without a demand costs nothing, although its price may be infinite.
        paid = np.where(share > 0, prices, 0.0) * share
        return entries, np.asarray(counts[entries, None] * paid, dtype=np.float64)


def _lower(constants: PriceConstants) -> Floats:
    """Return ln L by resource; a resource without demand (U = 0) is free at every load."""
    return np.where(np.isneginf(constants.ln_upper), -np.inf, constants.ln_lower)

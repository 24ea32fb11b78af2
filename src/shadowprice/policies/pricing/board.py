"""The price board of one pool: the ledger seen as groups of equal servers with prices."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.slots.groups import Groups, SlotGroups
from shadowprice.policies.pricing.constants import Pool, PriceConstants

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_SHAPES = 4096
"""Demands whose shares are kept."""


class PriceBoard:
    """Prices and free room of a pool over the ledger's window, refreshed where it changed.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    pool : Pool
        Which of them, and what shares refer to.
    constants : PriceConstants
        L and U.
    slots : int
        Length of the ledger's window.
    """

    def __init__(self, cluster: Cluster, pool: Pool, constants: PriceConstants, slots: int) -> None:
        cluster.check_plan(slots)
        self.pool = pool
        self.constants = constants
        self.servers: Integers = np.flatnonzero(pool.members).astype(np.int64)
        self._position = np.full(cluster.servers, -1, dtype=np.int64)
        self._position[self.servers] = np.arange(len(self.servers))
        self._capacity = np.ascontiguousarray(cluster.capacity[self.servers])
        self._slots = slots
        limited = np.minimum(self._capacity, pool.scale)
        self._whole = np.divide(
            limited, pool.scale, out=np.zeros(limited.shape), where=pool.scale > 0
        )
        self._out = np.zeros(len(self.servers), dtype=np.bool_)
        self._start = 0
        self._capacity_version = 0
        self._shares: dict[bytes, Floats] = {}

    @cached_property
    def _groups(self) -> SlotGroups:
        """Made with the first price: many a board is built for what its constants are alone."""
        constants = self.constants
        return SlotGroups(
            self._capacity, self._slots, _lower(constants), constants.ln_upper, self.servers
        )

    def reprice(self, constants: PriceConstants, ledger: LedgerView) -> None:
        """Take new constants; every slot is priced anew."""
        self.constants = constants
        self._roll(ledger)
        self._groups.set_prices(_lower(constants), constants.ln_upper)
        self._groups.follow(ledger.used, ledger.versions, priced_before=False)

    def follow(self, ledger: LedgerView) -> None:
        """Catch up with the ledger: only slots that changed since are grouped anew."""
        self._roll(ledger)
        self._groups.follow(ledger.used, ledger.versions)

    def _roll(self, ledger: LedgerView) -> None:
        if ledger.start != self._start:
            self._groups.roll(ledger.start - self._start)
            self._start = ledger.start
        if ledger.capacity_version != self._capacity_version:
            self._out = (ledger.capacity[self.servers] == 0).all(axis=1)
            self._groups.lose(self._out)
            self._capacity_version = ledger.capacity_version

    def shares(self, demand: Amounts) -> Floats:
        """Return a demand as shares of the pool's scale; jobs of one shape ask for the same."""
        key = demand.tobytes()
        if key not in self._shares:
            if len(self._shares) >= _SHAPES:
                self._shares.clear()
            self._shares[key] = self.pool.shares(demand)
        return self._shares[key]

    def window(self, slots: int) -> Groups:
        """Return the groups of the first ``slots`` slots, as kernels read them."""
        groups = self._groups.groups
        return groups._replace(row_of=groups.row_of[:slots])

    def server_prices(self, ledger: LedgerView, slot: int) -> Floats:
        """Return the price of a share of 1 on each of the pool's servers.

        Parameters
        ----------
        ledger : LedgerView
            The ledger.
        slot : int
            Slot of the window, 0 being its first.

        Returns
        -------
        ndarray of float64, shape (pool servers, resources)
        """
        row = self._row(ledger, slot)
        groups = self._groups.groups
        return np.asarray(groups.price[row][:, groups.group_of[row]].T, dtype=np.float64)

    def whole_prices(self, ledger: LedgerView) -> Floats:
        """Return the price of all of each of the pool's servers' resources in the first slot.

        Returns
        -------
        ndarray of float64, shape (pool servers, resources)
        """
        prices = self.server_prices(ledger, 0)
        whole = np.where(self._out[:, None], 0.0, self._whole)
        # An infinite price of what a server lacks is none.
        return np.where(whole > 0, prices, 0.0) * whole

    def scarcest(self, job: Job, *, ps: bool, ledger: LedgerView, slots: int) -> tuple[int, float]:
        """Return the resource that leaves the least room for a job, and that room.

        Returns
        -------
        (int, float)
            Column of the resource, and the mean number of workers (or parameter servers) per slot
            that it alone would allow; the first one, and any number, where nothing is asked for.
        """
        demand = job.ps if ps else job.worker
        assert demand is not None
        columns = np.flatnonzero(demand > 0)
        if not len(columns):
            return 0, math.inf
        groups = self._groups.groups
        self._row(ledger, 0)
        # Slots that share a row have the same room.
        rows, times = np.unique(groups.row_of[:slots], return_counts=True)
        free = (groups.free[rows][:, columns] // demand[columns, None]).astype(np.float64)
        there = np.arange(groups.members.shape[1]) < groups.groups[rows, None]
        each = (
            np.where(there[:, None], free, 0.0) * np.where(there, groups.members[rows], 0)[:, None]
        )
        room = (each.sum(axis=2) * times[:, None]).sum(axis=0) / slots
        least = int(np.argmin(room))
        return int(columns[least]), float(room[least])

    def spent(
        self, ledger: LedgerView, schedule: Schedule, counts: Integers, demand: Amounts
    ) -> Floats:
        """Return what a schedule costs by resource.

        Parameters
        ----------
        ledger : LedgerView
            The ledger, at whose prices it is paid.
        schedule : Schedule
            Entries within the window.
        counts : ndarray of int64, shape (entries,)
            How many of ``demand`` each entry takes; entries outside the pool take none.
        demand : ndarray of int64, shape (resources,)
            Amounts of one worker or parameter server.

        Returns
        -------
        ndarray of float64, shape (resources,)
        """
        _, paid = self._paid(ledger, schedule, counts, demand)
        return np.asarray(paid.sum(axis=0), dtype=np.float64)

    def spent_by_slot(
        self, ledger: LedgerView, schedule: Schedule, counts: Integers, demand: Amounts
    ) -> Floats:
        """Return what a schedule costs in each of its slots; parameters as of `spent`.

        Returns
        -------
        ndarray of float64, shape (active slots,)
        """
        mine, paid = self._paid(ledger, schedule, counts, demand)
        active = schedule.active_slots
        at = np.searchsorted(active, schedule.slots[mine])
        found = np.bincount(at, weights=paid.sum(axis=1), minlength=len(active))
        return np.asarray(found, dtype=np.float64)

    def _paid(
        self, ledger: LedgerView, schedule: Schedule, counts: Integers, demand: Amounts
    ) -> tuple[Integers, Floats]:
        """Return the entries of a schedule in this pool, and what each costs by resource."""
        share = self.shares(demand)
        self._row(ledger, 0)
        mine = np.flatnonzero((counts > 0) & (self._position[schedule.servers] >= 0))
        groups = self._groups.groups
        rows = groups.row_of[schedule.slots[mine] - ledger.start]
        group = groups.group_of[rows, self._position[schedule.servers[mine]]]
        prices = groups.price[rows, :, group]
        # An infinite price of what is not asked for costs nothing.
        paid = np.where(share > 0, prices, 0.0) * share
        return mine, np.asarray(counts[mine, None] * paid, dtype=np.float64)

    def _row(self, ledger: LedgerView, slot: int) -> int:
        """Return the row of a slot, once the board has caught up with the ledger."""
        self.follow(ledger)
        return int(self._groups.groups.row_of[slot])


def _lower(constants: PriceConstants) -> Floats:
    """Return ln L by resource; a resource that no job asks for (U = 0) is free at every load."""
    return np.where(np.isneginf(constants.ln_upper), -np.inf, constants.ln_lower)

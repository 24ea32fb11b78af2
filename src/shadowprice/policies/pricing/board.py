"""The price board of one pool: the ledger seen as groups of equal servers with prices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.pricing import exponential_prices
from shadowprice.kernels.slotgroups import Groups, SlotGroups
from shadowprice.policies.pricing.constants import Pool, PriceConstants

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


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
        self.pool = pool
        self.constants = constants
        self.servers: Integers = np.flatnonzero(pool.members).astype(np.int64)
        self._capacity = np.ascontiguousarray(cluster.capacity[self.servers])
        self._groups = SlotGroups(
            self._capacity, slots, _floor(constants, pool), constants.ln_upper
        )
        self._versions = np.zeros(slots, dtype=np.int64)
        self._start = 0

    def reprice(self, constants: PriceConstants, ledger: LedgerView) -> None:
        """Take new constants; every slot is priced anew."""
        self.constants = constants
        self.follow(ledger)
        self._groups.set_prices(
            _floor(constants, self.pool), constants.ln_upper, self._used(ledger, slice(None))
        )

    def follow(self, ledger: LedgerView) -> None:
        """Catch up with the ledger: only slots that changed since are grouped anew."""
        steps = ledger.start - self._start
        if steps:
            self._groups.roll(steps)
            kept = self._versions[min(steps, len(self._versions)) :]
            self._versions = np.concatenate(
                [kept, np.zeros(len(self._versions) - len(kept), dtype=np.int64)]
            )
            self._start = ledger.start
        stale = np.flatnonzero(self._versions != ledger.versions)
        for slot in stale.tolist():
            self._groups.refresh(slot, self._used(ledger, slot))
        self._versions[stale] = ledger.versions[stale]

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
        used = np.ascontiguousarray(self._used(ledger, slot))
        floor = _floor(self.constants, self.pool)
        return exponential_prices(used, self._capacity, floor, self.constants.ln_upper)

    def scarcest(self, job: Job, *, ps: bool, ledger: LedgerView, slots: int) -> tuple[int, float]:
        """Return the resource that leaves the least room for a job, and that room.

        Returns
        -------
        (int, float)
            Column of the resource, and the mean number of workers (or parameter servers) per slot
            that it alone would allow.
        """
        demand = job.ps if ps else job.worker
        assert demand is not None
        columns = np.flatnonzero(demand > 0)
        capacity = ledger.capacity[self.servers]
        used = ledger.used[:slots, self.servers]
        free = np.maximum(capacity[:, columns] - used[:, :, columns], 0)
        room = (free // demand[columns]).sum(axis=1, dtype=np.float64).mean(axis=0)
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
        share = self.pool.shares(demand)
        position = {int(server): at for at, server in enumerate(self.servers)}
        total = np.zeros(len(share))
        for slot in schedule.active_slots:
            here = np.flatnonzero((schedule.slots == slot) & (counts > 0))
            prices = self.server_prices(ledger, int(slot) - ledger.start)
            rows = [position[int(server)] for server in schedule.servers[here]]
            # An infinite price of what is not asked for costs nothing.
            paid = np.where(share > 0, prices[rows], 0.0) * share
            total += (counts[here, None] * paid).sum(axis=0)
        return total

    def _used(self, ledger: LedgerView, slot: int | slice) -> Integers:
        used = np.ascontiguousarray(ledger.used[slot][..., self.servers, :])
        lost = (ledger.capacity[self.servers] == 0).all(axis=1)
        if lost.any():
            # A lost server has no room: to the prices it is full.
            used[..., lost, :] = np.where(
                self._capacity[lost] < np.iinfo(np.int64).max // 2, self._capacity[lost], 0
            )
        return used


def _floor(constants: PriceConstants, pool: Pool) -> Floats:
    return np.full(len(pool.scale), constants.ln_lower)

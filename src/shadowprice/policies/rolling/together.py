"""Waiting jobs planned together: they move over for one another, as promised ones do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.kernels.revision.together import needs, wishes, within
from shadowprice.policies.rolling.book import Book
from shadowprice.policies.rolling.planner import Offer, Planner
from shadowprice.policies.rolling.prices import Pools

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LAYINGS: Final = 8
"""Times in a slot that jobs are laid out together, each time with fewer."""

_EFFORT: Final = 4096
"""Jobs laid out for that in a slot, over all times, beyond which it is not tried again."""


@dataclass(frozen=True, slots=True)
class Waiters:
    """Plans as many of the densest waiting jobs together as can all be completed in time.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    book : Book
        The open jobs.
    planner : Planner
        Where they are planned.
    pools : Pools
        What the cluster holds.
    """

    cluster: Cluster
    book: Book
    planner: Planner
    pools: Pools

    def plan(self, slot: int, rows: Integers, price: Floats) -> list[tuple[int, Offer]]:
        """Lay out promised jobs, and with them the waiting ones that all resources could complete.

        Parameters
        ----------
        slot : int
            The slot that begins; promised jobs are laid out from it on.
        rows : ndarray of int64
            Waiting jobs, the densest first.
        price : ndarray of float64, shape (rows of the table, 2)
            Price of a worker and of a parameter server of each job.

        Returns
        -------
        list of (int, Offer)
            Rows that were planned, the densest first, with their plans.
        """
        rows, wish = self._wishes(slot, rows, price)
        if not len(rows):
            return []
        promised = self.planner.promised()
        due = wish[:, 0].astype(np.int64)
        need = self._needs(
            slot,
            np.concatenate((promised, rows)),
            np.concatenate((self.book.promise[promised], due)),
        )
        kept = within(slot, np.concatenate((self.book.promise[promised], due)), need, len(promised))
        chosen = np.flatnonzero(kept[len(promised) :])
        weight = need[len(promised) :].max(axis=1, initial=0.0)
        chosen = self._laid(slot, rows, due, weight, chosen)
        return [(int(rows[at]), self._offer(int(rows[at]), wish[at])) for at in chosen.tolist()]

    def _laid(
        self, slot: int, rows: Integers, due: Integers, weight: Floats, chosen: Integers
    ) -> Integers:
        """Lay jobs out together, without the least dense where one finds no plan."""
        effort, promised = 0, int((self.book.promise >= 0).sum())
        for time in range(_LAYINGS):
            effort += len(chosen) + promised
            if not len(chosen) or (time and effort > _EFFORT):
                break
            failed = self.planner.together(slot, rows[chosen], due[chosen])
            if failed is None:
                return chosen
            # Whatever is due later did not stand in its way.
            mine = np.flatnonzero(rows[chosen] == failed)
            until = due[chosen[mine[0]]] if len(mine) else self.book.promise[failed]
            least = weight[chosen[mine[0]]] if len(mine) else 0.0
            at = np.flatnonzero(due[chosen] <= until)
            if len(mine):
                at = at[at >= mine[0]]
            if not len(at):
                break
            room = least * 0.25 * 2.0**time
            freed = np.cumsum(weight[chosen[at]][::-1])
            count = int(np.searchsorted(freed, room)) + 1
            chosen = np.delete(chosen, at[-count:])
        return chosen[:0]

    def _offer(self, row: int, wish: Floats) -> Offer:
        end, _, value, cost = wish.tolist()
        steps = self.planner.layout.steps
        done = int(steps.until[row, steps.runs[row] - 1]) - 1
        return Offer(int(end), 0, done, value, cost)

    def _wishes(self, slot: int, rows: Integers, price: Floats) -> tuple[Integers, Floats]:
        """Return the jobs that complete in time were they alone, and how; see `wishes`."""
        line = self.planner.blank(slot).line
        wish = np.zeros((len(rows), 4))
        wishes(
            line, self.book.jobs, rows, price, self.cluster.horizon, self.planner.shared,
            self.planner.room, wish,
        )  # fmt: skip
        there = wish[:, 0] >= 0
        return rows[there], wish[there]

    def _needs(self, slot: int, rows: Integers, due: Integers) -> Floats:
        """Return what jobs take of all resources with the fewest workers; see `needs`."""
        jobs = self.book.jobs
        line = self.planner.blank(slot).line
        need = np.zeros((len(rows), self.pools.columns))
        needs(
            line, jobs, rows, due, self.planner.shared, self.planner.room,
            *self.pools.shares(jobs.worker[rows], jobs.ps[rows]), need,
        )  # fmt: skip
        return need

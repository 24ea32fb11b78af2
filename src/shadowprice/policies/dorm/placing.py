"""Placement of the program's decisions: shrink jobs first, then grow others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.schedule import Placement
from shadowprice.policies.placements import dense_placement, fit_counts

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(slots=True)
class MutablePlacement:
    """Mutable placement of one job; its resources are always subtracted from ``free``.

    Pairs are of workers and of parameter servers; a ``kind`` is 0 or 1, their index.
    """

    free: Integers  # of each server, changed in place
    demands: tuple[Integers, Integers]
    hosts: tuple[Flags, Flags]
    given: tuple[Integers, Integers]  # number on each server

    @property
    def placement(self) -> Placement:
        """The layout as an immutable placement."""
        return dense_placement(*self.given)

    def trim(self, kind: int, surplus: int, members: Flags | None = None) -> None:
        """Remove processes, from the servers with the fewest first, to keep the rest together."""
        given = self.given[kind]
        used = np.flatnonzero(given if members is None else given * members)
        for server in used[np.argsort(given[used], kind="stable")].tolist():
            if surplus <= 0:
                return
            removed = min(surplus, int(given[server]))
            self._add(kind, server, -removed)
            surplus -= removed

    def extend(self, kind: int, more: int, members: Flags | None = None) -> bool:
        """Add processes: best fit on one server if it can take all, else the emptiest first.

        Return whether there was enough free capacity; otherwise nothing is added.
        """
        if more <= 0:
            return True
        hosts = self.hosts[kind] if members is None else self.hosts[kind] & members
        room = fit_counts(self.free, self.demands[kind], hosts)
        enough = np.flatnonzero(room >= more)
        if len(enough):
            # A server of the job first, then the tightest fit, then the first server.
            own = self.given[0][enough] + self.given[1][enough] > 0
            best = np.lexsort((enough, room[enough], ~own))[0]
            self._add(kind, int(enough[best]), more)
            return True
        if int(room.sum()) < more:
            return False
        for server in np.argsort(-room, kind="stable").tolist():
            added = min(more, int(room[server]))
            self._add(kind, server, added)
            more -= added
            if not more:
                break
        return True

    def reach(self, workers: int, ps: int) -> bool:
        """Trim and extend to these numbers on any servers; if that fails, change nothing."""
        before = (self.given[0].copy(), self.given[1].copy())
        wanted = (workers, ps)
        for order in ((0, 1), (1, 0)):  # one kind may take the only servers of the other
            for kind in (0, 1):
                self.trim(kind, int(self.given[kind].sum()) - wanted[kind])
            if all(self.extend(role, wanted[role] - int(self.given[role].sum())) for role in order):
                return True
            self.restore(before)
        return False

    def restore(self, before: tuple[Integers, Integers]) -> None:
        """Restore an earlier layout whose capacity is still free."""
        for kind in (0, 1):
            change = before[kind] - self.given[kind]
            self.free -= change[:, None] * self.demands[kind]
            self.given[kind][:] = before[kind]

    def _add(self, kind: int, server: int, count: int) -> None:
        self.free[server] -= count * self.demands[kind]
        self.given[kind][server] += count

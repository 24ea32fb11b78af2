"""Turning decided numbers into places: what shrinks gives places back, what grows finds some."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.schedule import Placement

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def places(free: Integers, demand: Integers, hosts: Flags) -> Integers:
    """Return how many of a demand each server has room for, shape (servers,)."""
    asked = demand > 0
    if not asked.any():
        return np.where(hosts, np.iinfo(np.int32).max, 0).astype(np.int64)
    room = (free[:, asked] // demand[asked]).min(axis=1)
    return np.where(hosts, np.maximum(room, 0), 0)


@dataclass(slots=True)
class Layout:
    """Where one job stands while it is rearranged; its room is taken off ``free`` throughout.

    Parameters
    ----------
    free : ndarray of int64, shape (servers, resources)
        Room on each server, changed in place.
    demands : (ndarray of int64, ndarray of int64)
        What a worker and a parameter server take.
    hosts : (ndarray of bool, ndarray of bool)
        Which servers may carry them.
    given : (ndarray of int64, ndarray of int64)
        Workers and parameter servers on each server.
    """

    free: Integers
    demands: tuple[Integers, Integers]
    hosts: tuple[Flags, Flags]
    given: tuple[Integers, Integers]

    @property
    def placement(self) -> Placement:
        """The layout as a placement."""
        workers, ps = self.given
        at = np.flatnonzero(workers + ps)
        return Placement(tuple(at.tolist()), tuple(workers[at].tolist()), tuple(ps[at].tolist()))

    def trim(self, kind: int, surplus: int, members: Flags | None = None) -> None:
        """Give places back, on the servers with the fewest first, so that the rest stays together.

        Parameters
        ----------
        kind : int
            0 for workers, 1 for parameter servers.
        surplus : int
            How many.
        members : ndarray of bool, shape (servers,), optional
            Servers to take them from.
        """
        given = self.given[kind]
        at = np.flatnonzero(given if members is None else given * members)
        for server in at[np.argsort(given[at], kind="stable")].tolist():
            if surplus <= 0:
                return
            taken = min(surplus, int(given[server]))
            self._add(kind, server, -taken)
            surplus -= taken

    def extend(self, kind: int, more: int, members: Flags | None = None) -> bool:
        """Take places, best fit: one server where one is enough, else the roomiest first.

        Returns
        -------
        bool
            Whether there was room; without it nothing is taken.
        """
        if more <= 0:
            return True
        hosts = self.hosts[kind] if members is None else self.hosts[kind] & members
        room = places(self.free, self.demands[kind], hosts)
        enough = np.flatnonzero(room >= more)
        if len(enough):
            # Beside the job's own first, then where least is left over, then the first server.
            own = self.given[0][enough] + self.given[1][enough] > 0
            best = np.lexsort((enough, room[enough], ~own))[0]
            self._add(kind, int(enough[best]), more)
            return True
        if int(room.sum()) < more:
            return False
        for server in np.argsort(-room, kind="stable").tolist():
            taken = min(more, int(room[server]))
            self._add(kind, server, taken)
            more -= taken
            if not more:
                break
        return True

    def reach(self, workers: int, ps: int) -> bool:
        """Trim and extend to these numbers anywhere; all of it, or nothing changes."""
        before = (self.given[0].copy(), self.given[1].copy())
        wanted = (workers, ps)
        for order in ((0, 1), (1, 0)):  # one kind may take the other's only places
            for kind in (0, 1):
                self.trim(kind, int(self.given[kind].sum()) - wanted[kind])
            if all(self.extend(k, wanted[k] - int(self.given[k].sum())) for k in order):
                return True
            self.restore(before)
        return False

    def restore(self, before: tuple[Integers, Integers]) -> None:
        """Go back to an earlier layout whose room is still there."""
        for kind in (0, 1):
            change = before[kind] - self.given[kind]
            self.free -= change[:, None] * self.demands[kind]
            self.given[kind][:] = before[kind]

    def _add(self, kind: int, server: int, count: int) -> None:
        self.free[server] -= count * self.demands[kind]
        self.given[kind][server] += count

"""Where a job's workers and parameter servers stand, slot by slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Workers and parameter servers of one job in one slot.

    Parameters
    ----------
    servers : tuple of int
        Server rows, ascending.
    workers, ps : tuple of int
        Counts on each of them.
    """

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    ps: tuple[int, ...]

    @property
    def total_workers(self) -> int:
        """Workers in all."""
        return sum(self.workers)

    @property
    def total_ps(self) -> int:
        """Parameter servers in all."""
        return sum(self.ps)

    @property
    def colocated(self) -> bool:
        """Whether everything stands on one machine (PD-ORS, Fact 1)."""
        return len(self.servers) == 1

    def renumbered(self, rows: Integers) -> Placement:
        """Return the same on servers whose rows changed; ``rows`` gives the new ones."""
        entries = zip(self.servers, self.workers, self.ps, strict=True)
        return Placement.of((int(rows[server]), workers, ps) for server, workers, ps in entries)

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int, int]]) -> Placement:
        """Build from (server, workers, parameter servers), merging equal servers."""
        merged: dict[int, tuple[int, int]] = {}
        for server, workers, ps in entries:
            before = merged.get(server, (0, 0))
            merged[server] = (before[0] + workers, before[1] + ps)
        rows = sorted((server, *counts) for server, counts in merged.items() if any(counts))
        servers, workers_, ps_ = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(servers, workers_, ps_)


@dataclass(frozen=True, eq=False)
class Schedule:
    """What a plan reserves, as parallel arrays sorted by slot, then server.

    Parameters
    ----------
    slots, servers, workers, ps : ndarray of int64, shape (entries,)
        An entry is a slot, a server and the counts that stand there; (slot, server) is unique
        and no entry is empty.
    """

    slots: Integers
    servers: Integers
    workers: Integers
    ps: Integers

    def __post_init__(self) -> None:
        for array in (self.slots, self.servers, self.workers, self.ps):
            array.setflags(write=False)

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int, int, int]]) -> Schedule:
        """Build from (slot, server, workers, parameter servers), in any order."""
        merged: dict[tuple[int, int], tuple[int, int]] = {}
        for slot, server, workers, ps in entries:
            before = merged.get((slot, server), (0, 0))
            merged[slot, server] = (before[0] + workers, before[1] + ps)
        rows = [(*place, *counts) for place, counts in sorted(merged.items()) if any(counts)]
        table = np.array(rows, dtype=np.int64).reshape(len(rows), 4)
        return cls(*(np.ascontiguousarray(table[:, column]) for column in range(4)))

    @classmethod
    def from_arrays(
        cls, slots: Integers, servers: Integers, workers: Integers, ps: Integers
    ) -> Schedule:
        """Build from parallel arrays in any order; (slot, server) must be unique."""
        order = np.lexsort((servers, slots))
        return cls(slots[order], servers[order], workers[order], ps[order])

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def start(self) -> int:
        """First slot in which anything runs."""
        return int(self.slots[0])

    @property
    def completion(self) -> int:
        """Last slot in which anything runs, the papers' t^ (0-based)."""
        return int(self.slots[-1])

    @cached_property
    def _bounds(self) -> tuple[Integers, Integers]:
        """Distinct slots and where each begins, with the end appended."""
        slots, begins = np.unique(self.slots, return_index=True)
        return slots, np.append(begins, len(self.slots))

    @property
    def active_slots(self) -> Integers:
        """The distinct slots in which the job runs, ascending."""
        return self._bounds[0]

    def totals(self) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        """Return workers, parameter servers and co-location for each of ``active_slots``."""
        begins = self._bounds[1][:-1]
        if not len(begins):
            return self.workers, self.ps, np.zeros(0, dtype=np.bool_)
        workers = np.add.reduceat(self.workers, begins)
        ps = np.add.reduceat(self.ps, begins)
        return workers, ps, np.diff(self._bounds[1]) == 1

    def placements(self) -> Iterator[tuple[int, Placement]]:
        """Yield each active slot with its placement, in order."""
        slots, bounds = self._bounds
        servers, workers, ps = self.servers.tolist(), self.workers.tolist(), self.ps.tolist()
        edges = bounds.tolist()
        for at, slot in enumerate(slots.tolist()):
            cut = slice(edges[at], edges[at + 1])
            yield slot, Placement(tuple(servers[cut]), tuple(workers[cut]), tuple(ps[cut]))

    def moved(self, before: Placement | None, *, ran: bool) -> NDArray[np.bool_]:
        """Return before which of ``active_slots`` the placement changes, the first start apart.

        Parameters
        ----------
        before : Placement or None
            Where the job runs in the slot before ``start``, None if nowhere.
        ran : bool
            Whether it ever ran; the first slot of a job that never did is its first start.

        Returns
        -------
        ndarray of bool, shape (active slots,)
            True where a restart is lost: see `core.job`.
        """
        slots = self.active_slots
        moved = np.ones(len(slots), dtype=np.bool_)
        standing, last = before, None
        for at, (slot, placement) in enumerate(self.placements()):
            paused = last is not None and slot != last + 1
            moved[at] = paused or placement != standing
            standing, last = placement, slot
        if len(slots) and not ran:
            moved[0] = False
        return moved

    def without(self, placement: Placement) -> Schedule:
        """Return the slots that have another placement than this one."""
        slots = [slot for slot, other in self.placements() if other != placement]
        kept = np.isin(self.slots, slots)
        return Schedule(self.slots[kept], self.servers[kept], self.workers[kept], self.ps[kept])

    def leaves(self, placement: Placement) -> bool:
        """Return whether any slot has another placement than this one."""
        return any(other != placement for _, other in self.placements())

    def from_slot(self, slot: int) -> Schedule:
        """Return the part that lies in ``slot`` and later."""
        at = int(np.searchsorted(self.slots, slot))
        return Schedule(self.slots[at:], self.servers[at:], self.workers[at:], self.ps[at:])

    def renumbered(self, rows: Integers) -> Schedule:
        """Return the same on servers whose rows changed, without what stood on one now gone.

        Parameters
        ----------
        rows : ndarray of int64, shape (servers before,)
            The new row of each server, -1 where it is gone.
        """
        servers = rows[self.servers]
        kept = servers >= 0
        return Schedule.from_arrays(
            self.slots[kept], servers[kept], self.workers[kept], self.ps[kept]
        )

    def rows(self) -> list[list[int]]:
        """Return ``[slot, server, workers, ps]`` rows, servers by their positions."""
        columns = (self.slots, self.servers, self.workers, self.ps)
        return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


EMPTY = Schedule.of(())
"""A schedule that reserves nothing."""

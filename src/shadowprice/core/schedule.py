"""Placements and schedules: the servers of a job's workers and parameter servers, by slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shadowprice.core.arrays import Flags, Integers


@dataclass(frozen=True, slots=True)
class Placement:
    """Workers and parameter servers of one job in one slot, by server row in ascending order."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    ps: tuple[int, ...]

    @property
    def total_workers(self) -> int:
        """Total number of workers."""
        return sum(self.workers)

    @property
    def total_ps(self) -> int:
        """Total number of parameter servers."""
        return sum(self.ps)

    @property
    def colocated(self) -> bool:
        """Whether all processes are on one server (PD-ORS, Fact 1)."""
        return len(self.servers) == 1

    def renumbered(self, rows: Integers) -> Placement:
        """Return the placement with new server rows; ``rows`` maps old rows to new ones."""
        entries = zip(self.servers, self.workers, self.ps, strict=True)
        return Placement.of((int(rows[server]), workers, ps) for server, workers, ps in entries)

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int, int]]) -> Placement:
        """Build from (server, workers, parameter servers), adding up entries of one server."""
        merged: dict[int, tuple[int, int]] = {}
        for server, workers, ps in entries:
            previous = merged.get(server, (0, 0))
            merged[server] = (previous[0] + workers, previous[1] + ps)
        rows = sorted((server, *counts) for server, counts in merged.items() if any(counts))
        servers, workers_, ps_ = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(servers, workers_, ps_)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The reservations of a plan, as parallel arrays sorted by slot, then server.

    An entry is a slot, a server row, and the counts on it. (slot, server) is unique, and no entry
    is empty. The arrays are read-only.
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
        """Build from (slot, server, workers, parameter servers) in any order, adding up repeats."""
        merged: dict[tuple[int, int], tuple[int, int]] = {}
        for slot, server, workers, ps in entries:
            previous = merged.get((slot, server), (0, 0))
            merged[slot, server] = (previous[0] + workers, previous[1] + ps)
        rows = [(*key, *counts) for key, counts in sorted(merged.items()) if any(counts)]
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
        """First slot in which the job runs."""
        return int(self.slots[0])

    @property
    def completion(self) -> int:
        """Last slot in which the job runs, the papers' t^ (0-based)."""
        return int(self.slots[-1])

    @cached_property
    def _bounds(self) -> tuple[Integers, Integers]:
        """Distinct slots, and the index of each slot's first entry, followed by the length."""
        slots, starts = np.unique(self.slots, return_index=True)
        return slots, np.append(starts, len(self.slots))

    @property
    def active_slots(self) -> Integers:
        """Distinct slots in which the job runs, ascending."""
        return self._bounds[0]

    def totals(self) -> tuple[Integers, Integers, Flags]:
        """Return workers, parameter servers and co-location for each of ``active_slots``."""
        starts = self._bounds[1][:-1]
        if not len(starts):  # `reduceat` needs at least one index
            return self.workers, self.ps, np.zeros(0, dtype=np.bool_)
        workers = np.add.reduceat(self.workers, starts)
        ps = np.add.reduceat(self.ps, starts)
        return workers, ps, np.diff(self._bounds[1]) == 1

    def placements(self) -> Iterator[tuple[int, Placement]]:
        """Yield each active slot with its placement, in order."""
        slots, bounds = self._bounds
        servers, workers, ps = self.servers.tolist(), self.workers.tolist(), self.ps.tolist()
        starts = bounds.tolist()
        for index, slot in enumerate(slots.tolist()):
            entries = slice(starts[index], starts[index + 1])
            yield (
                slot,
                Placement(tuple(servers[entries]), tuple(workers[entries]), tuple(ps[entries])),
            )

    def moved(self, before: Placement | None, *, ran: bool) -> Flags:
        """Return which of ``active_slots`` begin with a restart, see `core.job`.

        ``before`` is the job's placement in the slot before ``start``, None if it doesn't run.
        ``ran`` is False if the job never ran: its first slot then isn't a restart.
        """
        slots = self.active_slots
        moved = np.ones(len(slots), dtype=np.bool_)
        previous, previous_slot = before, None
        for index, (slot, placement) in enumerate(self.placements()):
            paused = previous_slot is not None and slot != previous_slot + 1
            moved[index] = paused or placement != previous
            previous, previous_slot = placement, slot
        if len(slots) and not ran:
            moved[0] = False
        return moved

    def without(self, placement: Placement) -> Schedule:
        """Return the slots whose placement differs from this one."""
        slots = [slot for slot, other in self.placements() if other != placement]
        is_kept = np.isin(self.slots, slots)
        return Schedule(
            self.slots[is_kept], self.servers[is_kept], self.workers[is_kept], self.ps[is_kept]
        )

    def leaves(self, placement: Placement) -> bool:
        """Return whether the placement of any slot differs from this one."""
        return any(other != placement for _, other in self.placements())

    def from_slot(self, slot: int) -> Schedule:
        """Return the entries of ``slot`` and later."""
        index = int(np.searchsorted(self.slots, slot))
        return Schedule(
            self.slots[index:], self.servers[index:], self.workers[index:], self.ps[index:]
        )

    def renumbered(self, rows: Integers) -> Schedule:
        """Return the schedule with new server rows, without slots on removed servers.

        ``rows`` has the new row of each old server, -1 if it was removed.
        """
        servers = rows[self.servers]
        is_kept = ~np.isin(self.slots, self.slots[servers < 0])
        return Schedule.from_arrays(
            self.slots[is_kept], servers[is_kept], self.workers[is_kept], self.ps[is_kept]
        )

    def rows(self) -> list[list[int]]:
        """Return rows of slot, server row, workers and PS."""
        columns = (self.slots, self.servers, self.workers, self.ps)
        return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


EMPTY_SCHEDULE = Schedule.of(())
"""A schedule that reserves nothing."""

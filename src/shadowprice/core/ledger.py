"""Reservations on every server, for every resource, in every slot of a rolling window.

Only the ledger reserves and releases capacity, and it refuses to exceed a server's capacity. OASiS
and PD-ORS compute their prices from it.

Every operation that an event runs has an inverse. The engine rolls back an event by running the
inverses in reverse order. Version numbers never decrease: a change and its rollback count as two
changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.errors import OverbookingError, ShadowpriceError
from shadowprice.core.schedule import EMPTY_SCHEDULE, Placement, Schedule

_LIFE_BITS: Final = 20
"""log2 of the maximum number of version changes that one event makes."""

_FEW: Final = 64
"""Maximum size of an array that Python searches faster than numpy."""

Mark = tuple[int, int, NDArray[np.int64] | None]
"""Position of a window: its start, its offset in the buffer, and the overwritten rows."""


@dataclass(slots=True)
class JobReservation:
    """The reservations of one job: a plan of future slots, and a placement for all slots."""

    worker: Amounts
    ps: Amounts
    plan: Schedule = EMPTY_SCHEDULE
    standing: Placement | None = None
    taken: tuple[int | list[int], Amounts] | None = None
    """Cached amounts of the placement: index of the servers, and amounts."""


class LedgerView:
    """Read-only access to a ledger, for policies."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def start(self) -> int:
        """First slot of the window."""
        return self._ledger.start

    @property
    def end(self) -> int:
        """First slot after the window."""
        return self._ledger.end

    @property
    def capacity(self) -> Amounts:
        """Present capacity of each server, shape (servers, resources); 0 for a lost server."""
        return _read_only(self._ledger.capacity)

    @property
    def used(self) -> Amounts:
        """Reserved amounts, shape (window slots, servers, resources); row 0 is slot ``start``."""
        return _read_only(self._ledger.used)

    @property
    def versions(self) -> NDArray[np.int64]:
        """Number of changes of each slot of the window, shape (window slots,)."""
        return _read_only(self._ledger.versions)

    @property
    def capacity_version(self) -> int:
        """Number of changes of the servers' capacity."""
        return self._ledger.capacity_version

    def holding(self, job: str) -> JobReservation | None:
        """Return a job's reservations, None if it has none."""
        return self._ledger.holdings.get(job)


@dataclass
class Ledger:
    """Reservations over the window ``[start, start + horizon)``.

    A horizon of 1 suffices for policies that only place the coming slot.
    """

    cluster: Cluster
    horizon: int
    start: int = 0
    capacity: Amounts = field(init=False)
    holdings: dict[str, JobReservation] = field(init=False, default_factory=dict)
    capacity_version: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        shape = self.cluster.capacity.shape
        self.cluster.check_plan(self.horizon)
        # Twice the window: advancing moves an offset, and the window stays contiguous. Rows are
        # copied back to the start only once per horizon.
        self._buffer = np.zeros((2 * self.horizon, *shape), dtype=np.int64)
        self._versions = np.zeros(2 * self.horizon, dtype=np.int64)
        self._offset = 0
        self._changes = 0  # changes of all slots, added to each slot's own version
        self._standing = np.zeros(shape, dtype=np.int64)
        self._nothing = np.zeros(shape[1], dtype=np.int64)
        self.capacity = self.cluster.capacity.copy()

    @property
    def end(self) -> int:
        """First slot after the window."""
        return self.start + self.horizon

    @property
    def used(self) -> Amounts:
        """Reserved amounts, shape (horizon, servers, resources)."""
        return self._buffer[self._offset : self._offset + self.horizon]

    @property
    def versions(self) -> NDArray[np.int64]:
        """Number of changes of each slot of the window, shape (horizon,)."""
        return self._versions[self._offset : self._offset + self.horizon] + self._changes

    def _touch(self, slots: NDArray[np.int64]) -> None:
        """Increment the versions of these slots."""
        self._versions[slots - self.start + self._offset] += 1

    def advance(self, slot: int) -> Mark:
        """Move the window so that it starts at ``slot``; earlier slots are discarded.

        Returns the argument for `undo_advance`, the inverse. Raises ShadowpriceError if the window
        would move backwards.
        """
        steps = slot - self.start
        if steps < 0:
            raise ShadowpriceError(
                f"the ledger is at slot {self.start} and cannot return to {slot}"
            )
        start, offset, rows = self.start, self._offset, None
        if steps >= self.horizon:
            # The old and new window don't overlap.
            rows = self.used.copy()
            self._offset = 0
            self._buffer[: self.horizon] = self._standing
            self._versions[: self.horizon] = 0
        elif steps:
            if self._offset + steps > self.horizon:
                rows = self.used.copy()
                # Slots beyond the window were never reserved: they hold only placements.
                self._buffer[: self.horizon] = rows
                versions = self._versions[self._offset :][: self.horizon]
                self._versions[: self.horizon] = versions.copy()
                self._offset = 0
            entering = slice(self._offset + self.horizon, self._offset + self.horizon + steps)
            self._buffer[entering] = self._standing
            self._versions[entering] = 0
            self._offset += steps
        self.start = slot
        return start, offset, rows

    def undo_advance(self, mark: Mark) -> None:
        """Undo `advance`; all later changes must have been undone before."""
        self.start, offset, rows = mark
        if rows is None:
            self._offset = offset
        else:
            # `advance` overwrote the rows of the old window.
            self._buffer[: self.horizon] = rows
            self._offset = 0
        self._changes += int(self._versions.max()) + 1

    def reserve(self, job: str, plan: Schedule, worker: Amounts, ps: Amounts | None) -> None:
        """Reserve a plan for a job that has none; ``worker`` and ``ps`` are demands of a process.

        Raises OverbookingError, and reserves nothing, if a server's capacity would be exceeded or a
        slot is outside the window.
        """
        holding = self._holding(job, worker, ps)
        if len(holding.plan):
            raise OverbookingError(f"job {job!r} holds a plan already; release it first")
        if not len(plan):
            return
        if plan.start < self.start or plan.completion >= self.end:
            self._forget_if_empty(job)
            raise OverbookingError(
                f"job {job!r}: slots {plan.start}..{plan.completion} lie outside the window "
                f"{self.start}..{self.end - 1}"
            )
        rows = plan.slots - self.start
        amounts = self.used[rows, plan.servers] + self._amounts(plan, holding)
        exceeds = amounts > self.capacity[plan.servers]
        if exceeds.any():
            self._forget_if_empty(job)
            entry, column = (int(index) for index in np.argwhere(exceeds)[0])
            raise OverbookingError(
                f"job {job!r} would overbook {self.cluster.resources[column]} of server "
                f"{self.cluster.names[int(plan.servers[entry])]!r} in slot {plan.slots[entry]}"
            )
        self.used[rows, plan.servers] = amounts
        self._touch(plan.active_slots)
        holding.plan = plan

    def release(self, job: str) -> Schedule:
        """Release a job's plan and placement from ``start`` on; return the released entries."""
        holding = self.holdings.pop(job, None)
        if holding is None:
            return EMPTY_SCHEDULE
        released = EMPTY_SCHEDULE
        if len(holding.plan):
            released = holding.plan.from_slot(self.start)
            rows = released.slots - self.start
            self.used[rows, released.servers] -= self._amounts(released, holding)
            self._touch(released.active_slots)
        if holding.standing is not None:
            self._take_away(*self._taken(holding))
        return released

    def put_back(self, job: str, holding: JobReservation, rest: Schedule) -> None:
        """Undo `release`; ``rest`` is its result."""
        self.holdings[job] = holding
        if len(rest):
            rows = rest.slots - self.start
            self.used[rows, rest.servers] += self._amounts(rest, holding)
            self._touch(rest.active_slots)
        if holding.standing is not None:
            self._add(*self._taken(holding))

    def undo_reserve(self, job: str) -> None:
        """Undo `reserve`."""
        holding = self.holdings[job]
        plan, holding.plan = holding.plan, EMPTY_SCHEDULE
        self.used[plan.slots - self.start, plan.servers] -= self._amounts(plan, holding)
        self._touch(plan.active_slots)
        self._forget_if_empty(job)

    def undo_place(self, job: str, before: Placement | None) -> None:
        """Undo `stand`; ``before`` is the job's previous placement."""
        holding = self.holdings[job]
        assert holding.standing is not None
        self._take_away(*self._taken(holding))
        holding.standing, holding.taken = before, None
        if before is not None:
            self._add(*self._taken(holding))
        self._forget_if_empty(job)

    def stand(self, job: str, placement: Placement, worker: Amounts, ps: Amounts | None) -> None:
        """Place a job in every slot from ``start`` on, replacing its present placement.

        Raises OverbookingError, and keeps the present placement, if a server's capacity would be
        exceeded in any slot of the window.
        """
        holding = self._holding(job, worker, ps)
        previous_placement = holding.standing
        if previous_placement is not None:
            previous = self._taken(holding)
            self._take_away(*previous)
        servers, added = amounts_taken = self._standing_amounts(placement, holding)
        amounts = self.used[:, servers] + added
        exceeds = amounts > self.capacity[servers]
        # Most placements are small: searching bytes is then faster than `any`.
        if (b"\1" in exceeds.tobytes()) if exceeds.size <= _FEW else exceeds.any():
            if previous_placement is not None:
                self._add(*previous)
            self._forget_if_empty(job)
            entry, resource = divmod(int(exceeds.any(axis=0).argmax()), len(added.T))
            raise OverbookingError(
                f"job {job!r} would overbook {self.cluster.resources[resource]} of server "
                f"{self.cluster.names[placement.servers[entry]]!r}"
            )
        self.used[:, servers] = amounts
        self._standing[servers] += added
        self._changes += 1
        holding.standing, holding.taken = placement, amounts_taken

    def can_stand(
        self, job: str, placement: Placement, worker: Amounts, ps: Amounts | None
    ) -> bool:
        """Return whether `stand` would succeed."""
        holding = JobReservation(worker, self._nothing if ps is None else ps)
        servers, added = self._standing_amounts(placement, holding)
        amounts = self.used[:, servers] + added
        reserved = self.holdings.get(job)
        if reserved is not None and reserved.standing is not None:
            own = np.zeros_like(self.capacity)
            own_servers, own_amounts = self._taken(reserved)
            own[own_servers] += own_amounts
            amounts = amounts - own[servers]
        return bool((amounts <= self.capacity[servers]).all())

    def lose(self, server: int) -> tuple[str, ...]:
        """Set a server's capacity to 0; return the jobs with reservations on it, sorted by name.

        The reservations stay. The caller must release them before anything else is reserved.
        """
        self.capacity[server] = 0
        self.bump_capacity_version()
        return self.holders(server)

    def holders(self, server: int) -> tuple[str, ...]:
        """Return the jobs with reservations on a server, sorted by name."""
        return tuple(sorted(job for job in self.holdings if self._holds(job, server)))

    def restore(self, server: int) -> None:
        """Restore a lost server's full capacity."""
        self.capacity[server] = self.cluster.capacity[server]
        self.bump_capacity_version()

    def overbooked(self, server: int) -> bool:
        """Return whether reservations on a server exceed its capacity, which may have shrunk."""
        return bool((self.used[:, server] > self.capacity[server]).any())

    def rebuilt(self, cluster: Cluster, rows: NDArray[np.int64], out: Collection[int]) -> Ledger:
        """Return the ledger of a cluster whose servers changed; its resources must be the same.

        ``rows`` has the new row of each old server, -1 for a removed one, which must have no
        reservations. ``out`` are the new rows of unavailable servers.
        """
        ledger = Ledger(cluster, self.horizon, self.start)
        kept_rows = np.flatnonzero(rows >= 0)
        ledger._buffer[: self.horizon, rows[kept_rows]] = self.used[:, kept_rows]
        ledger._standing[rows[kept_rows]] = self._standing[kept_rows]
        ledger._changes = self._changes + int(self._versions.max()) + 1
        ledger.capacity_version = self.capacity_version + 1
        ledger.capacity[list(out)] = 0
        ledger.holdings = {
            job: JobReservation(
                holding.worker,
                holding.ps,
                holding.plan.from_slot(self.start).renumbered(rows),
                None if holding.standing is None else holding.standing.renumbered(rows),
            )
            for job, holding in self.holdings.items()
        }
        return ledger

    def become(self, other: Ledger) -> None:
        """Replace this ledger's contents by those of another; views then show them."""
        self.__dict__.update(other.__dict__)

    def clone(self) -> Ledger:
        """Return an independent copy."""
        ledger = copy(self)
        ledger._buffer, ledger._versions = self._buffer.copy(), self._versions.copy()
        ledger._standing, ledger.capacity = self._standing.copy(), self.capacity.copy()
        ledger.holdings = {
            job: JobReservation(holding.worker, holding.ps, holding.plan, holding.standing)
            for job, holding in self.holdings.items()
        }
        return ledger

    def recompute_usage(self) -> Amounts:
        """Return the reserved amounts, recomputed from all reservations; for checks."""
        total = np.zeros_like(self.used)
        for holding in self.holdings.values():
            plan = holding.plan.from_slot(self.start)
            total[plan.slots - self.start, plan.servers] += self._amounts(plan, holding)
            if holding.standing is not None:
                servers, added = self._standing_amounts(holding.standing, holding)
                total[:, servers] += added
        return total

    def digest(self) -> Mapping[str, object]:
        """Return the reservations as plain values, which are equal for equal ledgers."""
        return {
            job: [
                holding.plan.from_slot(self.start).rows(),
                None
                if holding.standing is None
                else [holding.standing.servers, holding.standing.workers, holding.standing.ps],
            ]
            for job, holding in sorted(self.holdings.items())
        }

    def _holds(self, job: str, server: int) -> bool:
        holding = self.holdings[job]
        if holding.standing is not None and server in holding.standing.servers:
            return True
        plan = holding.plan
        entries = np.flatnonzero(plan.servers == server)
        return bool(len(entries) and plan.slots[entries[-1]] >= self.start)

    def _holding(self, job: str, worker: Amounts, ps: Amounts | None) -> JobReservation:
        holding = self.holdings.get(job)
        if holding is None:
            self.holdings[job] = holding = JobReservation(
                worker, self._nothing if ps is None else ps
            )
        return holding

    def _forget_if_empty(self, job: str) -> None:
        holding = self.holdings[job]
        if not len(holding.plan) and holding.standing is None:
            del self.holdings[job]

    def _add(self, servers: int | list[int], change: Amounts) -> None:
        if isinstance(servers, int):  # in-place changes of views avoid a second write
            row, column = self._standing[servers], self.used[:, servers]
            row += change
            column += change
        else:
            self._standing[servers] += change
            self.used[:, servers] += change
        self._changes += 1

    def _take_away(self, servers: int | list[int], change: Amounts) -> None:
        if isinstance(servers, int):
            row, column = self._standing[servers], self.used[:, servers]
            row -= change
            column -= change
        else:
            self._standing[servers] -= change
            self.used[:, servers] -= change
        self._changes += 1

    def _taken(self, holding: JobReservation) -> tuple[int | list[int], Amounts]:
        """Return the amounts of a job's placement, cached."""
        if holding.taken is None:
            assert holding.standing is not None
            holding.taken = self._standing_amounts(holding.standing, holding)
        return holding.taken

    def advance_versions_past(self, life: int) -> None:
        """Advance the versions past those of all ledgers of earlier processes.

        Restored policy state may contain versions of an earlier ledger. A new change with an equal
        version would be missed. So ``life`` must exceed its value for every ledger whose versions
        may be stored.
        """
        self._changes = max(self._changes, life << _LIFE_BITS)
        self.capacity_version = max(self.capacity_version, life << _LIFE_BITS)

    def bump_capacity_version(self) -> None:
        """Increment the versions after a change of `capacity`."""
        self.capacity_version += 1
        self._changes += 1

    @staticmethod
    def _amounts(plan: Schedule, holding: JobReservation) -> Amounts:
        return plan.workers[:, None] * holding.worker + plan.ps[:, None] * holding.ps

    @staticmethod
    def _standing_amounts(
        placement: Placement, holding: JobReservation
    ) -> tuple[int | list[int], Amounts]:
        """Return the index of a placement's servers, and the amounts on them.

        A single server, the most frequent case, is an integer and a row: plain indexing costs a
        fifth of indexing by a list.
        """
        if len(placement.servers) == 1:
            workers, ps = placement.workers[0], placement.ps[0]
            amounts = holding.worker if workers == 1 else workers * holding.worker
            if ps:
                amounts = amounts + (holding.ps if ps == 1 else ps * holding.ps)
            return placement.servers[0], amounts
        counts = np.array((placement.workers, placement.ps), dtype=np.int64)[:, :, None]
        return list(placement.servers), counts[0] * holding.worker + counts[1] * holding.ps


def _read_only(array: NDArray[np.int64]) -> NDArray[np.int64]:
    view = array.view()
    view.setflags(write=False)
    return view

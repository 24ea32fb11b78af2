"""Reservations on every server, for every resource, in every slot of a rolling window.

Only the ledger reserves and releases capacity, and it refuses to exceed a server's capacity. OASiS
and PD-ORS compute their prices from it.

Every operation that an event runs has an inverse. The engine rolls back an event by running the
inverses in reverse order. Version numbers never decrease: a change and its rollback count as two
changes.
"""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.errors import OverbookingError, ShadowpriceError
from shadowprice.core.schedule import EMPTY_SCHEDULE, Placement, Schedule

_CHANGES_PER_EVENT_BITS: Final = 20
"""log2 of the maximum number of version changes that one event makes."""

_MAX_LOGGED_ENTRIES: Final = 100_000
"""Maximum number of entries of the schedules in the log of changes."""

_HUGE_PAGE_BYTES: Final = 2**21

_MAX_SMALL_ARRAY_SIZE: Final = 64
"""Maximum size of an array that Python searches faster than numpy."""

AdvanceUndo = tuple[int, int, NDArray[np.int64], NDArray[np.int64]]
"""The window before `advance`: its start, its offset in the two arrays, amounts and versions."""


@dataclass(slots=True)
class JobReservation:
    """A job's plan, and its placement in every slot from the current one on.

    ``worker`` and ``ps`` are the demands of one worker and of one parameter server.
    """

    worker: Amounts
    ps: Amounts
    plan: Schedule = EMPTY_SCHEDULE
    placement: Placement | None = None


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
        """Capacity of each server for new work, shape (servers, resources).

        It is 0 for an unavailable server, even if jobs still run there because it is cordoned.
        """
        return _read_only(self._ledger.capacity)

    @property
    def limits(self) -> Amounts:
        """Maximum reserved amounts: ``capacity``, but cordoned servers keep their full amounts."""
        return _read_only(self._ledger.limits)

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

    def changes_since(self, position: int) -> tuple[int, tuple[Schedule, ...] | None]:
        """Return the schedules reserved or released since a position, and the next position.

        The schedules contain every server and slot that changed, and possibly others, even before
        the window. They are None if every slot may have changed: other kinds of changes were made,
        or the log was truncated. A caller without a position passes a negative one.
        """
        return self._ledger.changes_since(position)

    def reservation(self, job: str) -> JobReservation | None:
        """Return a job's reservation, None if it has none."""
        return self._ledger.reservations.get(job)


@dataclass
class Ledger:
    """Reservations over the window ``[start, start + horizon)``.

    A horizon of 1 suffices for policies that only place the coming slot.
    """

    cluster: Cluster
    horizon: int
    start: int = 0
    capacity: Amounts = field(init=False)  # for new work; 0 for unavailable servers
    limits: Amounts = field(init=False)  # maximum reserved amounts; the capacity if not cordoned
    reservations: dict[str, JobReservation] = field(init=False, default_factory=dict)
    capacity_version: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        shape = self.cluster.capacity.shape
        self.cluster.check_plan(self.horizon)
        # Twice the window: advancing moves an offset, and the window stays contiguous. Rows are
        # copied to the start of a new buffer only once per horizon.
        self._buffer = _sparse_zeros((2 * self.horizon, *shape))
        self._versions = np.zeros(2 * self.horizon, dtype=np.int64)
        self._offset = 0
        # Number of changes that affected every slot. A slot's version is this plus its own count.
        self._changes = 0
        # Schedules that were reserved or released since the last change of every slot.
        self._log: deque[Schedule] = deque()
        self._log_start = 0
        self._logged_entries = 0
        self._placed = np.zeros(shape, dtype=np.int64)  # amounts of all placements
        self._has_placed = False  # whether there was ever a placement
        self._zero_demand = np.zeros(shape[1], dtype=np.int64)
        self.capacity, self.limits = self.cluster.capacity.copy(), self.cluster.capacity.copy()

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

    def changes_since(self, position: int) -> tuple[int, tuple[Schedule, ...] | None]:
        """See `LedgerView.changes_since`."""
        end = self._log_start + len(self._log)
        if not self._log_start <= position <= end:
            return end, None
        newest_first = islice(reversed(self._log), end - position)
        return end, tuple(newest_first)[::-1]

    def _touch(self, changed: Schedule) -> None:
        """Record a change of a schedule's reservations."""
        self._versions[changed.active_slots - self.start + self._offset] += 1
        self._log.append(changed)
        self._logged_entries += len(changed) + 1
        while self._logged_entries > _MAX_LOGGED_ENTRIES:
            self._logged_entries -= len(self._log.popleft()) + 1
            self._log_start += 1

    def _touch_all(self, changes: int = 1) -> None:
        """Record changes of every slot."""
        self._changes += changes
        self._restart_log(self._log_start + len(self._log) + 1)

    def _restart_log(self, start: int) -> None:
        # A copy of this ledger may share the log.
        self._log, self._log_start, self._logged_entries = deque(), start, 0

    def advance(self, slot: int) -> AdvanceUndo:
        """Move the window so that it starts at ``slot``; earlier slots are discarded.

        Returns the argument for `undo_advance`, the inverse. Raises ShadowpriceError if the window
        would move backwards.
        """
        steps = slot - self.start
        if steps < 0:
            raise ShadowpriceError(
                f"the ledger is at slot {self.start} and cannot return to {slot}"
            )
        old_amounts, old_versions = self._buffer, self._versions
        before = self.start, self._offset, old_amounts, old_versions
        kept = max(0, self.horizon - steps)  # number of slots that stay in the window
        if self._offset + steps > self.horizon:
            stays = slice(self._offset + steps, self._offset + self.horizon)
            # Pages of a new array of zeros take neither memory nor time until they are written.
            self._buffer = _sparse_zeros(self._buffer.shape)
            self._versions = np.zeros(self._versions.shape, dtype=np.int64)
            if self._has_placed or not _has_large_rows(self._buffer.shape):
                for row, amounts in enumerate(old_amounts[stays]):
                    if amounts.any():
                        self._buffer[row] = amounts
            else:  # adding up all plans is faster than reading mostly empty rows of many servers
                self._add_plans(self._buffer, slot)
            self._versions[:kept] = old_versions[stays]
            self._offset = 0
        else:
            self._offset += steps
        entering = slice(self._offset + kept, self._offset + self.horizon)
        # Slots beyond the window were never reserved: they hold only placements.
        if self._has_placed:
            self._buffer[entering] = self._placed
            if steps:  # no schedule in the log has these slots
                self._restart_log(self._log_start + len(self._log) + 1)
        self._versions[entering] = 0
        self.start = slot
        return before

    def undo_advance(self, before: AdvanceUndo) -> None:
        """Undo `advance`, which returned ``before``; later changes must have been undone."""
        newest = int(self._versions.max())
        self.start, self._offset, self._buffer, self._versions = before
        # Every slot's version must exceed all that policies have seen of it since `advance`.
        self._touch_all(max(newest, int(self._versions.max())) + 1)

    def reserve(self, job: str, plan: Schedule, worker: Amounts, ps: Amounts | None) -> None:
        """Reserve a plan for a job that has none.

        ``worker`` and ``ps`` are the demands of one worker and of one parameter server. Raises
        OverbookingError, and reserves nothing, if a server's capacity would be exceeded or a slot
        is outside the window.
        """
        reservation = self._get_or_create(job, worker, ps)
        if len(reservation.plan):
            raise OverbookingError(f"job {job!r} already has a plan; release it first")
        if not len(plan):
            return
        if plan.start < self.start or plan.completion >= self.end:
            self._delete_if_empty(job)
            raise OverbookingError(
                f"job {job!r}: slots {plan.start}..{plan.completion} lie outside the window "
                f"{self.start}..{self.end - 1}"
            )
        rows = plan.slots - self.start
        amounts = self.used[rows, plan.servers] + _plan_amounts(plan, reservation)
        exceeds = amounts > self.limits[plan.servers]
        if exceeds.any():
            self._delete_if_empty(job)
            entry, column = (int(index) for index in np.argwhere(exceeds)[0])
            raise OverbookingError(
                f"job {job!r} would overbook {self.cluster.resources[column]} of server "
                f"{self.cluster.names[int(plan.servers[entry])]!r} in slot {plan.slots[entry]}"
            )
        self.used[rows, plan.servers] = amounts
        self._touch(plan)
        reservation.plan = plan

    def release(self, job: str) -> Schedule:
        """Release a job's plan and placement from ``start`` on; return the released entries."""
        reservation = self.reservations.pop(job, None)
        if reservation is None:
            return EMPTY_SCHEDULE
        released, plan = EMPTY_SCHEDULE, reservation.plan
        if len(plan) and plan.completion >= self.start:
            released = plan.from_slot(self.start)
            rows = released.slots - self.start
            self.used[rows, released.servers] -= _plan_amounts(released, reservation)
            self._touch(released)
        if reservation.placement is not None:
            servers, amounts = _placement_amounts(reservation.placement, reservation)
            self._change_placed(servers, -amounts)
        return released

    def undo_release(self, job: str, reservation: JobReservation, released: Schedule) -> None:
        """Undo `release`, which returned ``released``; ``reservation`` is the job's reservation."""
        self.reservations[job] = reservation
        if len(released):
            rows = released.slots - self.start
            self.used[rows, released.servers] += _plan_amounts(released, reservation)
            self._touch(released)
        if reservation.placement is not None:
            self._change_placed(*_placement_amounts(reservation.placement, reservation))

    def undo_reserve(self, job: str) -> None:
        """Undo `reserve`."""
        reservation = self.reservations[job]
        plan, reservation.plan = reservation.plan, EMPTY_SCHEDULE
        self.used[plan.slots - self.start, plan.servers] -= _plan_amounts(plan, reservation)
        self._touch(plan)
        self._delete_if_empty(job)

    def place(self, job: str, placement: Placement, worker: Amounts, ps: Amounts | None) -> None:
        """Place a job in every slot from ``start`` on, replacing its present placement.

        Raises OverbookingError, and keeps the present placement, if a server's capacity would be
        exceeded in any slot of the window.
        """
        reservation = self._get_or_create(job, worker, ps)
        previous_placement = reservation.placement
        if previous_placement is not None:
            previous_servers, previous_amounts = _placement_amounts(previous_placement, reservation)
            self._change_placed(previous_servers, -previous_amounts)
        servers, added = _placement_amounts(placement, reservation)
        amounts = self.used[:, servers] + added
        exceeds = amounts > self.limits[servers]
        # Most placements are small: searching bytes is then faster than `any`.
        if (b"\1" in exceeds.tobytes()) if exceeds.size <= _MAX_SMALL_ARRAY_SIZE else exceeds.any():
            if previous_placement is not None:
                self._change_placed(previous_servers, previous_amounts)
            self._delete_if_empty(job)
            # `added` is a row of resources for one server, else a matrix with a row per server.
            entry, resource = divmod(int(exceeds.any(axis=0).argmax()), len(added.T))
            raise OverbookingError(
                f"job {job!r} would overbook {self.cluster.resources[resource]} of server "
                f"{self.cluster.names[placement.servers[entry]]!r}"
            )
        self.used[:, servers] = amounts
        self._placed[servers] += added
        self._has_placed = True
        self._touch_all()
        reservation.placement = placement

    def undo_place(self, job: str, previous: Placement | None) -> None:
        """Undo `place`; ``previous`` is the job's placement before."""
        reservation = self.reservations[job]
        assert reservation.placement is not None
        servers, amounts = _placement_amounts(reservation.placement, reservation)
        self._change_placed(servers, -amounts)
        reservation.placement = previous
        if previous is not None:
            self._change_placed(*_placement_amounts(previous, reservation))
        self._delete_if_empty(job)

    def can_place(
        self, job: str, placement: Placement, worker: Amounts, ps: Amounts | None
    ) -> bool:
        """Return whether `place` would succeed."""
        reservation = JobReservation(worker, self._zero_demand if ps is None else ps)
        servers, added = _placement_amounts(placement, reservation)
        amounts = self.used[:, servers] + added
        present = self.reservations.get(job)
        if present is not None and present.placement is not None:
            replaced = np.zeros_like(self.capacity)
            replaced_servers, replaced_amounts = _placement_amounts(present.placement, present)
            replaced[replaced_servers] += replaced_amounts
            amounts = amounts - replaced[servers]
        return bool((amounts <= self.limits[servers]).all())

    def lose(self, server: int) -> tuple[str, ...]:
        """Set a server's capacity to 0; return the jobs with reservations on it, sorted by name.

        The reservations stay. The caller must release them before anything else is reserved.
        """
        self.set_capacity(server, 0, 0)
        return self.holders(server)

    def cordon(self, server: int) -> None:
        """Set a server's capacity for new work to 0; its reservations can stay."""
        self.set_capacity(server, 0, self.cluster.capacity[server])

    def holders(self, server: int) -> tuple[str, ...]:
        """Return the jobs with reservations on a server, sorted by name."""
        return tuple(sorted(job for job in self.reservations if self._uses_server(job, server)))

    def restore(self, server: int) -> None:
        """Restore a lost server's full capacity."""
        self.set_capacity(server, self.cluster.capacity[server], self.cluster.capacity[server])

    def set_capacity(self, server: int, capacity: Amounts | int, limits: Amounts | int) -> None:
        """Set a server's row of `capacity` and of `limits`."""
        self.capacity[server], self.limits[server] = capacity, limits
        self.capacity_version += 1
        self._touch_all()

    def uses(self, job: str, server: int) -> bool:
        """Return whether a job has reservations on a server."""
        return job in self.reservations and self._uses_server(job, server)

    def is_overbooked(self, server: int) -> bool:
        """Return whether reservations on a server exceed its capacity, which may have shrunk."""
        return bool((self.used[:, server] > self.limits[server]).any())

    def for_changed_cluster(
        self,
        cluster: Cluster,
        rows: NDArray[np.int64],
        unavailable: Collection[int],
        cordoned: Collection[int] = (),
    ) -> Ledger:
        """Return the ledger of a cluster whose servers changed; its resources must be the same.

        ``rows`` has the new row of each old server, -1 for a removed one, which must have no
        reservations. ``unavailable`` are the new rows of servers without capacity for new work, and
        ``cordoned`` those of them whose reservations stay.
        """
        ledger = Ledger(cluster, self.horizon, self.start)
        kept_rows = np.flatnonzero(rows >= 0)
        ledger._buffer[: self.horizon, rows[kept_rows]] = self.used[:, kept_rows]
        ledger._placed[rows[kept_rows]] = self._placed[kept_rows]
        ledger._has_placed = self._has_placed
        ledger._changes = self._changes + int(self._versions.max()) + 1
        ledger._restart_log(self._log_start + len(self._log) + 1)
        ledger.capacity_version = self.capacity_version + 1
        ledger.capacity[list(unavailable)] = 0
        ledger.limits[list(set(unavailable).difference(cordoned))] = 0
        ledger.reservations = {
            job: JobReservation(
                reservation.worker,
                reservation.ps,
                reservation.plan.from_slot(self.start).renumbered(rows),
                None if reservation.placement is None else reservation.placement.renumbered(rows),
            )
            for job, reservation in self.reservations.items()
        }
        return ledger

    def replace_contents(self, other: Ledger) -> None:
        """Replace this ledger's contents by another's, so that views of this ledger show them."""
        self.__dict__.update(other.__dict__)

    def clone(self) -> Ledger:
        """Return an independent copy."""
        ledger = copy(self)
        ledger._buffer, ledger._versions = self._buffer.copy(), self._versions.copy()
        ledger._placed = self._placed.copy()
        ledger.capacity, ledger.limits = self.capacity.copy(), self.limits.copy()
        ledger._log = self._log.copy()
        ledger.reservations = {
            job: JobReservation(
                reservation.worker, reservation.ps, reservation.plan, reservation.placement
            )
            for job, reservation in self.reservations.items()
        }
        return ledger

    def _add_plans(self, used: Amounts, start: int) -> None:
        """Add the amounts of all plans to ``used``, whose first row is slot ``start``."""
        for reservation in self.reservations.values():
            plan = reservation.plan.from_slot(start)
            used[plan.slots - start, plan.servers] += _plan_amounts(plan, reservation)

    def _uses_server(self, job: str, server: int) -> bool:
        reservation = self.reservations[job]
        if reservation.placement is not None and server in reservation.placement.servers:
            return True
        plan = reservation.plan
        entries = np.flatnonzero(plan.servers == server)
        return bool(len(entries) and plan.slots[entries[-1]] >= self.start)

    def _get_or_create(self, job: str, worker: Amounts, ps: Amounts | None) -> JobReservation:
        reservation = self.reservations.get(job)
        if reservation is None:
            self.reservations[job] = reservation = JobReservation(
                worker, self._zero_demand if ps is None else ps
            )
        return reservation

    def _delete_if_empty(self, job: str) -> None:
        reservation = self.reservations[job]
        if not len(reservation.plan) and reservation.placement is None:
            del self.reservations[job]

    def _change_placed(self, servers: int | list[int], change: Amounts) -> None:
        """Add amounts, which may be negative, to those placed on servers."""
        if isinstance(servers, int):  # in-place changes of views avoid a second write
            row, column = self._placed[servers], self.used[:, servers]
            row += change
            column += change
        else:
            self._placed[servers] += change
            self.used[:, servers] += change
        self._touch_all()

    def raise_versions(self, sequence: int) -> None:
        """Raise the versions above every version that a stored policy state can contain.

        ``sequence`` is the engine's number of events. A policy would miss a change whose version
        its restored state already contains.
        """
        minimum = sequence << _CHANGES_PER_EVENT_BITS  # no event makes more changes
        self._changes = max(self._changes, minimum)
        self._restart_log(max(self._log_start + len(self._log), minimum) + 1)
        self.capacity_version = max(self.capacity_version, minimum)


def _plan_amounts(plan: Schedule, reservation: JobReservation) -> Amounts:
    return plan.workers[:, None] * reservation.worker + plan.ps[:, None] * reservation.ps


def _placement_amounts(
    placement: Placement, reservation: JobReservation
) -> tuple[int | list[int], Amounts]:
    """Return the index of a placement's servers, and the amounts on them.

    A single server, the most frequent case, is an integer and a row: plain indexing costs a fifth
    of indexing by a list.
    """
    if len(placement.servers) == 1:
        workers, ps = placement.workers[0], placement.ps[0]
        amounts = reservation.worker if workers == 1 else workers * reservation.worker
        if ps:
            amounts = amounts + (reservation.ps if ps == 1 else ps * reservation.ps)
        return placement.servers[0], amounts
    counts = np.array((placement.workers, placement.ps), dtype=np.int64)[:, :, None]
    return list(placement.servers), counts[0] * reservation.worker + counts[1] * reservation.ps


def _has_large_rows(shape: tuple[int, ...]) -> bool:
    """Return whether a row of an int64 array fills a huge page or more."""
    return 8 * math.prod(shape[1:]) >= _HUGE_PAGE_BYTES


def _sparse_zeros(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return an array of zeros for use with few nonzero entries in each row.

    numpy requests huge pages. With large rows, each write would make the kernel clear one of them,
    so such an array has pages of normal size.
    """
    if not _has_large_rows(shape) or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape, dtype=np.int64)
    size = 8 * math.prod(shape)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.int64).reshape(shape)


def _read_only(array: NDArray[np.int64]) -> NDArray[np.int64]:
    view = array.view()
    view.setflags(write=False)
    return view

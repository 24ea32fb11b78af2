"""What is reserved on every server, for every resource, in every slot of a rolling window.

The ledger is the only thing that can reserve or release, and it refuses to overbook. Prices are a
view of it, not a second truth.

Everything it does can be taken back by its opposite, last thing first, which is how the engine lets
an event leave no trace. Versions never go back: they say that something changed, and a change that
was taken back is two.
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
from shadowprice.core.schedule import EMPTY, Placement, Schedule

_LIFE_BITS: Final = 20
"""Room for the changes that one event makes, in numbers of changes."""

_FEW: Final = 64
"""Numbers up to which Python looks through an array sooner than numpy does."""

Mark = tuple[int, int, NDArray[np.int64] | None]
"""Where a window was: its start, its place in the buffer, and rows that were overwritten."""


@dataclass(slots=True)
class Holding:
    """What one job holds: a plan of future slots, and a standing placement until told otherwise."""

    worker: Amounts
    ps: Amounts
    plan: Schedule = EMPTY
    standing: Placement | None = None
    taken: tuple[int | list[int], Amounts] | None = None
    """What it takes where it stands, once worked out: index of the servers, and amounts."""


class LedgerView:
    """Read-only access to a ledger; what policies see.

    Parameters
    ----------
    ledger : Ledger
        The ledger to look at.
    """

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
        """Capacity of each server now, shape (servers, resources); 0 on a lost one."""
        return _read_only(self._ledger.capacity)

    @property
    def used(self) -> Amounts:
        """Reserved amounts, shape (window slots, servers, resources), row 0 being ``start``."""
        return _read_only(self._ledger.used)

    @property
    def versions(self) -> NDArray[np.int64]:
        """Changes seen by each slot of the window, shape (window slots,)."""
        return _read_only(self._ledger.versions)

    @property
    def capacity_version(self) -> int:
        """Times that a server was lost or came back."""
        return self._ledger.capacity_version

    def holding(self, job: str) -> Holding | None:
        """Return what a job holds, None if nothing."""
        return self._ledger.holdings.get(job)


@dataclass
class Ledger:
    """Reservations over the window ``[start, end)``.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    horizon : int
        Slots in the window; 1 is enough for policies that only place the coming slot.
    start : int
        First slot of the window.
    """

    cluster: Cluster
    horizon: int
    start: int = 0
    capacity: Amounts = field(init=False)
    holdings: dict[str, Holding] = field(init=False, default_factory=dict)
    capacity_version: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        shape = self.cluster.capacity.shape
        self.cluster.check_plan(self.horizon)
        # Twice the window, so that advancing moves an offset and the window stays one contiguous
        # block; the copy down comes once a horizon.
        self._buffer = np.zeros((2 * self.horizon, *shape), dtype=np.int64)
        self._versions = np.zeros(2 * self.horizon, dtype=np.int64)
        self._offset = 0
        self._changes = 0  # those that every slot saw, on top of its own
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
        """Changes seen by each slot of the window, shape (horizon,)."""
        return self._versions[self._offset : self._offset + self.horizon] + self._changes

    def _touch(self, slots: NDArray[np.int64]) -> None:
        """Take note that these slots of the window changed."""
        self._versions[slots - self.start + self._offset] += 1

    def advance(self, slot: int) -> Mark:
        """Move the window so that it starts at ``slot``; earlier slots are forgotten.

        Returns
        -------
        Mark
            What `retreat` needs to move it back.

        Raises
        ------
        ShadowpriceError
            If the window would move backwards.
        """
        steps = slot - self.start
        if steps < 0:
            raise ShadowpriceError(
                f"the ledger is at slot {self.start} and cannot return to {slot}"
            )
        start, offset, rows = self.start, self._offset, None
        if steps >= self.horizon:
            # No slot of the old window is left in the new one, however far away it is.
            rows = self.used.copy()
            self._offset = 0
            self._buffer[: self.horizon] = self._standing
            self._versions[: self.horizon] = 0
        elif steps:
            if self._offset + steps > self.horizon:
                rows = self.used.copy()
                # A slot beyond the window has never been touched: it holds only what stands.
                self._buffer[: self.horizon] = rows
                kept = self._versions[self._offset :][: self.horizon]
                self._versions[: self.horizon] = kept.copy()
                self._offset = 0
            entering = slice(self._offset + self.horizon, self._offset + self.horizon + steps)
            self._buffer[entering] = self._standing
            self._versions[entering] = 0
            self._offset += steps
        self.start = slot
        return start, offset, rows

    def retreat(self, mark: Mark) -> None:
        """Move the window back to where it was before `advance`, all else being as it was then."""
        self.start, offset, rows = mark
        if rows is None:
            self._offset = offset
        else:
            # The copy down overwrote the rows that had left the window.
            self._buffer[: self.horizon] = rows
            self._offset = 0
        self._changes += int(self._versions.max()) + 1

    def reserve(self, job: str, plan: Schedule, worker: Amounts, ps: Amounts | None) -> None:
        """Reserve a plan for a job that holds none.

        Parameters
        ----------
        job : str
            Who holds it.
        plan : Schedule
            Entries within the window.
        worker, ps : ndarray of int64, shape (resources,)
            Demand of one worker and of one parameter server.

        Raises
        ------
        OverbookingError
            If a server would be overbooked or a slot lies outside the window; nothing is
            reserved then.
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
        over = amounts > self.capacity[plan.servers]
        if over.any():
            self._forget_if_empty(job)
            entry, column = (int(at) for at in np.argwhere(over)[0])
            raise OverbookingError(
                f"job {job!r} would overbook {self.cluster.resources[column]} of server "
                f"{self.cluster.names[int(plan.servers[entry])]!r} in slot {plan.slots[entry]}"
            )
        self.used[rows, plan.servers] = amounts
        self._touch(plan.active_slots)
        holding.plan = plan

    def release(self, job: str) -> Schedule:
        """Give back what a job still holds, planned and standing, from ``start`` on.

        Returns
        -------
        Schedule
            The part of its plan that was given back.
        """
        holding = self.holdings.pop(job, None)
        if holding is None:
            return EMPTY
        rest = EMPTY
        if len(holding.plan):
            rest = holding.plan.from_slot(self.start)
            rows = rest.slots - self.start
            self.used[rows, rest.servers] -= self._amounts(rest, holding)
            self._touch(rest.active_slots)
        if holding.standing is not None:
            self._take_away(*self._taken(holding))
        return rest

    def put_back(self, job: str, holding: Holding, rest: Schedule) -> None:
        """Let a job hold again what `release` gave back."""
        self.holdings[job] = holding
        if len(rest):
            rows = rest.slots - self.start
            self.used[rows, rest.servers] += self._amounts(rest, holding)
            self._touch(rest.active_slots)
        if holding.standing is not None:
            self._add(*self._taken(holding))

    def unreserve(self, job: str) -> None:
        """Take back what `reserve` did."""
        holding = self.holdings[job]
        plan, holding.plan = holding.plan, EMPTY
        self.used[plan.slots - self.start, plan.servers] -= self._amounts(plan, holding)
        self._touch(plan.active_slots)
        self._forget_if_empty(job)

    def unstand(self, job: str, before: Placement | None) -> None:
        """Let a job stand where it stood before `stand`."""
        holding = self.holdings[job]
        assert holding.standing is not None
        self._take_away(*self._taken(holding))
        holding.standing, holding.taken = before, None
        if before is not None:
            self._add(*self._taken(holding))
        self._forget_if_empty(job)

    def stand(self, job: str, placement: Placement, worker: Amounts, ps: Amounts | None) -> None:
        """Place a job in every slot from ``start`` on, in place of where it stands now.

        Raises
        ------
        OverbookingError
            If a server would be overbooked in any slot of the window; the job then stands where
            it stood.
        """
        holding = self._holding(job, worker, ps)
        before = holding.standing
        if before is not None:
            held = self._taken(holding)
            self._take_away(*held)
        servers, added = taken = self._standing_amounts(placement, holding)
        amounts = self.used[:, servers] + added
        over = amounts > self.capacity[servers]
        # Of the few numbers that most placements are, bytes are looked through sooner.
        if (b"\1" in over.tobytes()) if over.size <= _FEW else over.any():
            if before is not None:
                self._add(*held)
            self._forget_if_empty(job)
            entry, resource = divmod(int(over.any(axis=0).argmax()), len(added.T))
            raise OverbookingError(
                f"job {job!r} would overbook {self.cluster.resources[resource]} of server "
                f"{self.cluster.names[placement.servers[entry]]!r}"
            )
        self.used[:, servers] = amounts
        self._standing[servers] += added
        self._changes += 1
        holding.standing, holding.taken = placement, taken

    def can_stand(
        self, job: str, placement: Placement, worker: Amounts, ps: Amounts | None
    ) -> bool:
        """Return whether `stand` would succeed."""
        holding = Holding(worker, self._nothing if ps is None else ps)
        servers, added = self._standing_amounts(placement, holding)
        amounts = self.used[:, servers] + added
        held = self.holdings.get(job)
        if held is not None and held.standing is not None:
            own = np.zeros_like(self.capacity)
            at, taken = self._taken(held)
            own[at] += taken
            amounts = amounts - own[servers]
        return bool((amounts <= self.capacity[servers]).all())

    def lose(self, server: int) -> tuple[str, ...]:
        """Take a server out; return the jobs that hold something on it, in name order.

        Their reservations stay until released: the caller releases them before anything else is
        reserved.
        """
        self.capacity[server] = 0
        self.capacity_changed()
        return self.holders(server)

    def holders(self, server: int) -> tuple[str, ...]:
        """Return the jobs that hold something on a server, in name order."""
        return tuple(sorted(job for job in self.holdings if self._holds(job, server)))

    def restore(self, server: int) -> None:
        """Bring a lost server back with its full capacity."""
        self.capacity[server] = self.cluster.capacity[server]
        self.capacity_changed()

    def overbooked(self, server: int) -> bool:
        """Whether more is held on a server, in any slot, than it has; so after it shrank."""
        return bool((self.used[:, server] > self.capacity[server]).any())

    def rebuilt(self, cluster: Cluster, rows: NDArray[np.int64], out: Collection[int]) -> Ledger:
        """Return the ledger of a cluster whose servers changed.

        Parameters
        ----------
        cluster : Cluster
            The servers now, with the same resources.
        rows : ndarray of int64, shape (servers before,)
            Row of each server now; -1 where it is gone, and nothing may be held there.
        out : collection of int
            Rows, now, of servers that are out.
        """
        made = Ledger(cluster, self.horizon, self.start)
        kept = np.flatnonzero(rows >= 0)
        made._buffer[: self.horizon, rows[kept]] = self.used[:, kept]
        made._standing[rows[kept]] = self._standing[kept]
        made._changes = self._changes + int(self._versions.max()) + 1
        made.capacity_version = self.capacity_version + 1
        made.capacity[list(out)] = 0
        made.holdings = {
            job: Holding(
                held.worker,
                held.ps,
                held.plan.from_slot(self.start).renumbered(rows),
                None if held.standing is None else held.standing.renumbered(rows),
            )
            for job, held in self.holdings.items()
        }
        return made

    def become(self, other: Ledger) -> None:
        """Take over all that another ledger holds; views of this one then show it."""
        self.__dict__.update(other.__dict__)

    def clone(self) -> Ledger:
        """Return a ledger that changes on its own from now on."""
        made = copy(self)
        made._buffer, made._versions = self._buffer.copy(), self._versions.copy()
        made._standing, made.capacity = self._standing.copy(), self.capacity.copy()
        made.holdings = {
            job: Holding(held.worker, held.ps, held.plan, held.standing)
            for job, held in self.holdings.items()
        }
        return made

    def recount(self) -> Amounts:
        """Return what the window should hold by adding up all holdings; for checks."""
        total = np.zeros_like(self.used)
        for holding in self.holdings.values():
            plan = holding.plan.from_slot(self.start)
            total[plan.slots - self.start, plan.servers] += self._amounts(plan, holding)
            if holding.standing is not None:
                servers, added = self._standing_amounts(holding.standing, holding)
                total[:, servers] += added
        return total

    def digest(self) -> Mapping[str, object]:
        """Return the reservations as plain values, equal for equal ledgers."""
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
        on = np.flatnonzero(plan.servers == server)
        return bool(len(on) and plan.slots[on[-1]] >= self.start)

    def _holding(self, job: str, worker: Amounts, ps: Amounts | None) -> Holding:
        holding = self.holdings.get(job)
        if holding is None:
            self.holdings[job] = holding = Holding(worker, self._nothing if ps is None else ps)
        return holding

    def _forget_if_empty(self, job: str) -> None:
        holding = self.holdings[job]
        if not len(holding.plan) and holding.standing is None:
            del self.holdings[job]

    def _add(self, servers: int | list[int], change: Amounts) -> None:
        if isinstance(servers, int):  # views: what is indexed is not written back a second time
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

    def _taken(self, holding: Holding) -> tuple[int | list[int], Amounts]:
        """Return what a job takes where it stands, worked out once."""
        if holding.taken is None:
            assert holding.standing is not None
            holding.taken = self._standing_amounts(holding.standing, holding)
        return holding.taken

    def renumber(self, life: int) -> None:
        """Let changes be numbered beyond all that a ledger of an earlier life told.

        Who remembers that one's numbers would otherwise take a change of this one for one that it
        has seen.

        Parameters
        ----------
        life : int
            Larger than that of every ledger whose numbers anybody remembers.
        """
        self._changes = max(self._changes, life << _LIFE_BITS)
        self.capacity_version = max(self.capacity_version, life << _LIFE_BITS)

    def capacity_changed(self) -> None:
        """Take note that `capacity` was changed."""
        self.capacity_version += 1
        self._changes += 1

    @staticmethod
    def _amounts(plan: Schedule, holding: Holding) -> Amounts:
        return plan.workers[:, None] * holding.worker + plan.ps[:, None] * holding.ps

    @staticmethod
    def _standing_amounts(
        placement: Placement, holding: Holding
    ) -> tuple[int | list[int], Amounts]:
        """Return the index of the servers of a placement, and what it takes of them.

        One server, the most frequent case by far, is an integer and a row: plain indexing costs a
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

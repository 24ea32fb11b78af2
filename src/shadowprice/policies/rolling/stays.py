"""Promised jobs that are planned to stay where they stand, and lose nothing by restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.kernels.revision.chains import Stood
from shadowprice.policies.rolling.bags import BagBook
from shadowprice.policies.rolling.book import Book
from shadowprice.policies.rolling.quotas import Quotas
from shadowprice.policies.rolling.standing import NOWHERE

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Stay:
    """What a job holds from the coming slot on until it is done, on servers that it stands on.

    Parameters
    ----------
    level : int
        Its level.
    end : int
        Last slot.
    servers, workers, ps : ndarray of int64
        Servers, ascending, and what it has on each.
    """

    level: int
    end: int
    servers: Integers
    workers: Integers
    ps: Integers


Plans = dict[int, Stay]
"""Plans by row of the book."""


class Stays:
    """Plans of promised jobs that run, and that lose a part of a slot by a restart.

    A plan of levels counts a restart in every slot, since it does not say where the job stands.
    One that names its servers counts none while it stays, and one where it is less than what the
    job holds now. Everybody else is laid out around them.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    book : Book
        The open jobs.
    bags : BagBook
        Plans of bags, which name their servers, too.
    quotas : Quotas
        What promises to each tenant may hold.

    Attributes
    ----------
    plans : dict of int to Stay
        The plans in force. They are replaced as a whole, never changed in place.
    """

    def __init__(self, cluster: Cluster, book: Book, bags: BagBook, quotas: Quotas) -> None:
        self._cluster, self._book, self._bags, self._quotas = cluster, book, bags, quotas
        self.plans: Plans = {}

    # ---------------------------------------------------------------- what holds no longer

    def remove(self, row: int) -> None:
        """Forget a job that is gone, or stands nowhere."""
        if row in self.plans:
            self.plans = {other: plan for other, plan in self.plans.items() if other != row}

    def lose(self, server: int) -> None:
        """Forget plans on a server that is out."""
        self.plans = {
            row: plan for row, plan in self.plans.items() if server not in plan.servers.tolist()
        }

    # ---------------------------------------------------------------- choosing

    def going_on(self, now: int) -> Plans:
        """Return the plans in force that still keep their promises, as they go on."""
        book = self._book
        kept: Plans = {}
        for row, plan in self.plans.items():
            if book.promise[row] >= 0 and book.jobs.left[row] > 0:
                gain = int(book.jobs.gains[row, plan.level])
                first = gain if self._stands(row, plan) else int(book.jobs.sure[row, plan.level])
                end = now + slots_of(int(book.jobs.left[row]), first, gain) - 1
                if end <= book.promise[row]:
                    kept[row] = plan if end == plan.end else replace(plan, end=end)
        return kept

    def choices(
        self,
        now: int,
        order: Integers,
        going_on: Plans,
        *,
        new_only: bool = False,
        least_first: bool = False,
    ) -> Iterator[Plans]:
        """Yield plans to lay everybody else out around, the best first.

        All who complete in time where they are stay there as they are, or each holds the fewest
        workers that still do; last, what is in force goes on.

        Parameters
        ----------
        now : int
            The coming slot.
        order : ndarray of int64
            Rows of promised jobs, the earliest promise first.
        going_on : dict of int to Stay
            What is in force.
        new_only : bool
            Whether those who have a plan keep it.
        least_first : bool
            Whether the fewest workers come first: then others see what room there is for them.
        """
        book = self._book
        order = order[(book.loss[order] > 0.0) & (book.standing[order] >= 0)]
        rows = [row for row in order.tolist() if not (new_only and row in going_on)]
        first = self._chosen(now, rows, going_on, least=least_first)
        yield first
        second = self._chosen(now, rows, going_on, least=not least_first)
        if not _same(second, first):
            yield second
        if not _same(going_on, first):
            yield going_on

    def _chosen(self, now: int, rows: list[int], going_on: Plans, *, least: bool) -> Plans:
        """Return the plans of all who can stay where they stand, by promise."""
        found = dict(going_on)
        held = self._held_by(found)
        standing = self._book.standing
        for row in rows:
            before = found.get(row)
            if before is not None and not least and before.level == standing[row]:
                continue  # it stays as it is
            if before is not None:
                self._count(held, row, before, -1)
            for plan in self._candidates(now, row, least=least):
                if self._has_room(now, row, plan, held):
                    found[row] = plan
                    break
            if row in found:
                self._count(held, row, found[row], 1)
        return found

    def _candidates(self, now: int, row: int, *, least: bool) -> Iterator[Stay]:
        """Yield plans that keep a promise on what the job holds now, the most workers first."""
        book, jobs = self._book, self._book.jobs
        servers, workers, ps = book.table.entries(row)
        if not len(servers):
            return
        top, spread = int(book.standing[row]), int(jobs.spread[row])
        hull = jobs.hull[row, : jobs.hulls[row]]
        below = hull[(hull < top) & ((hull >= spread) == (top >= spread))].tolist()
        left, last = int(jobs.left[row]), int(book.promise[row])
        for level in [*below, top] if least else [top, *reversed(below)]:
            some = cut(workers, int(jobs.workers[row, level]))
            some_ps = cut(ps, int(jobs.servers[row, level]))
            if some.sum() != jobs.workers[row, level] or some_ps.sum() != jobs.servers[row, level]:
                continue
            stays = np.array_equal(some, workers) and np.array_equal(some_ps, ps)
            gain = int(jobs.gains[row, level])
            if gain <= 0:
                continue
            first = gain if stays else int(jobs.sure[row, level])
            end = now + slots_of(left, first, gain) - 1
            if end <= last:
                at = np.flatnonzero(some + some_ps)
                yield Stay(level, end, servers[at].copy(), some[at], some_ps[at])

    def _has_room(self, now: int, row: int, plan: Stay, held: Integers) -> bool:
        """Whether bags leave a plan its servers, and its tenant's share covers it.

        Jobs that stand do not stand in each other's way.
        """
        jobs, bags = self._book.jobs, self._bags
        if not bags.plans and not self._quotas.given:
            return True
        asked = plan.workers[:, None] * jobs.worker[row] + plan.ps[:, None] * jobs.ps[row]
        tenant = int(jobs.tenant[row])
        for slot in (now, *(cut for cut in bags.cuts(now) if cut <= plan.end)):
            if bags.plans:
                free = self._cluster.capacity[plan.servers] - bags.held(slot)[plan.servers]
                if (asked > free).any():
                    return False
            if self._quotas.given:
                left = self._quotas.left(held + bags.held_by(slot), tenant)
                total = asked.sum(axis=0)
                if (total > left)[(left >= 0) & (total > 0)].any():
                    return False
        return True

    def _stands(self, row: int, plan: Stay) -> bool:
        """Whether a job stands just as it is planned."""
        servers, workers, ps = self._book.table.entries(row)
        return (
            np.array_equal(servers, plan.servers)
            and np.array_equal(workers, plan.workers)
            and np.array_equal(ps, plan.ps)
        )

    # ---------------------------------------------------------------- what they hold

    def ends(self) -> set[int]:
        """Return the first slots in which plans are over."""
        return {plan.end + 1 for plan in self.plans.values()}

    def entries(self) -> tuple[Integers, Integers, Integers]:
        """Return what plans hold, as entries: last slot, server, and amounts."""
        jobs, width = self._book.jobs, len(self._cluster.resources)
        if not self.plans:
            none = np.zeros(0, np.int64)
            return none, none, np.zeros((0, width), np.int64)
        plans = self.plans.items()
        return (
            np.concatenate([np.full(len(plan.servers), plan.end) for _, plan in plans]),
            np.concatenate([plan.servers for _, plan in plans]),
            np.concatenate(
                [
                    plan.workers[:, None] * jobs.worker[row] + plan.ps[:, None] * jobs.ps[row]
                    for row, plan in plans
                ]
            ),
        )

    def held(self, slot: int) -> Integers:
        """Return what plans hold in a slot, shape (servers, resources)."""
        held = np.zeros_like(self._cluster.capacity)
        end, server, amount = self.entries()
        np.add.at(held, server[end >= slot], amount[end >= slot])
        return held

    def held_by(self, slot: int) -> Integers:
        """Return what plans hold in a slot by tenant, shape as of `Quotas.share`."""
        if not self._quotas.given:
            return np.zeros_like(self._quotas.share)
        return self._held_by({row: one for row, one in self.plans.items() if one.end >= slot})

    def _held_by(self, plans: Plans) -> Integers:
        held = np.zeros_like(self._quotas.share)
        for row, plan in plans.items() if len(held) else ():
            self._count(held, row, plan, 1)
        return held

    def _count(self, held: Integers, row: int, plan: Stay, sign: int) -> None:
        if len(held):
            jobs = self._book.jobs
            total = plan.workers.sum() * jobs.worker[row] + plan.ps.sum() * jobs.ps[row]
            held[jobs.tenant[row]] += sign * total

    # ---------------------------------------------------------------- the coming slot

    def fixed(self) -> tuple[Stood, Integers]:
        """Return where jobs stand in the coming slot, and their levels, as `Standing.put` asks."""
        if not self.plans:
            return NOWHERE, NOWHERE.first
        rows = self._book.rows
        least, first, number = np.full(rows, -1), np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        at = 0
        for row, plan in self.plans.items():
            least[row], first[row], number[row] = plan.level, at, len(plan.servers)
            at += len(plan.servers)
        plans = self.plans.values()
        columns = (
            np.concatenate([plan.servers for plan in plans]),
            np.concatenate([plan.workers for plan in plans]),
            np.concatenate([plan.ps for plan in plans]),
        )
        return Stood(first, number, *columns), least

    def barred(self, now: int) -> Flags:
        """Return to which levels jobs may not rise in the coming slot; empty where to all.

        A job that rises for a slot has to come back to its plan, and be done by when it ends.
        """
        if not self.plans:
            return np.zeros((0, 0), np.bool_)
        book, jobs = self._book, self._book.jobs
        barred = np.zeros(jobs.gains.shape, np.bool_)
        rows = np.fromiter(self.plans, np.int64, len(self.plans))
        level = np.array([plan.level for plan in self.plans.values()])
        end = np.array([plan.end for plan in self.plans.values()])
        made = jobs.sure[rows]
        standing = np.flatnonzero(book.standing[rows] >= 0)
        at = rows[standing], book.standing[rows[standing]]
        made[standing, at[1]] = jobs.gains[at]
        back, gain = jobs.sure[rows, level], jobs.gains[rows, level]
        left = jobs.left[rows, None] - made
        barred[rows] = ~_ends(now, left, back[:, None], gain[:, None], end[:, None])
        return barred

    def cannot_move(self, now: int, row: int, level: int) -> bool:
        """Whether a job would not be done by when its plan ends if it moved to a level now."""
        plan = self.plans.get(row)
        if plan is None or level == plan.level:
            return False
        jobs = self._book.jobs
        left = jobs.left[row] - jobs.sure[row, level]
        back, gain = jobs.sure[row, plan.level], jobs.gains[row, plan.level]
        return not bool(_ends(now, left, back, gain, plan.end))


def _ends(now: int, left: Integers, back: Integers, gain: Integers, end: Integers | int) -> Flags:
    """Return which plans, resumed with a restart after the coming slot, still end in time.

    Parameters
    ----------
    now : int
        The coming slot.
    left : ndarray of int64
        What remains after it.
    back, gain : ndarray of int64
        Progress units of the slot in which a plan is resumed, and of those after it.
    end : ndarray of int64
        Last slot of each plan.
    """
    done = now + 1 + np.maximum(0, -(-(left - back) // gain))
    return np.asarray((left <= 0) | (done <= end))


def slots_of(left: int, first: int, gain: int) -> int:
    """Return the slots that work takes whose first slot yields another amount."""
    return 1 + max(0, -(-(left - first) // gain))


def cut(numbers: Integers, wanted: int) -> Integers:
    """Cut numbers down to a sum, the smallest first."""
    kept = numbers.copy()
    total = int(kept.sum())
    while total > wanted:
        some = np.flatnonzero(kept)
        at = int(some[np.argmin(kept[some])])
        gone = min(int(kept[at]), total - wanted)
        kept[at] -= gone
        total -= gone
    return kept


def _same(one: Plans, other: Plans) -> bool:
    return one.keys() == other.keys() and all(one[row] is other[row] for row in one)

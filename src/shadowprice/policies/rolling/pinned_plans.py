"""Pinned plans: promised jobs that keep their servers, and so lose nothing by restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.kernels.replanning.placement import Placements
from shadowprice.policies.rolling.bags import BagBook
from shadowprice.policies.rolling.open_jobs import NOWHERE, Book
from shadowprice.policies.rolling.quotas import Quotas

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Stay:
    """A pinned plan: the processes of a job on its current servers, until it is done.

    Parameters
    ----------
    level : int
        Its level.
    end : int
        Last slot.
    servers, workers, ps : ndarray of int64
        Servers, ascending, and workers and parameter servers on each.
    """

    level: int
    end: int
    servers: Integers
    workers: Integers
    ps: Integers


Plans = dict[int, Stay]
"""Pinned plans by row of the book."""


class Stays:
    """Pinned plans of promised jobs that run and lose part of a slot by a restart.

    A plan of levels doesn't name servers, so it counts a restart in every slot. A pinned plan
    counts none while the job keeps its placement, and one if the job scales down first. All other
    jobs are planned around pinned plans.

    Attributes
    ----------
    plans : dict of int to Stay
        The plans in force. They are replaced as a whole, never changed in place.
    """

    def __init__(self, cluster: Cluster, book: Book, bags: BagBook, quotas: Quotas) -> None:
        self._cluster, self._book, self._bags, self._quotas = cluster, book, bags, quotas
        self.plans: Plans = {}

    # ---------------------------------------------------------------- invalidation

    def remove(self, row: int) -> None:
        """Remove the plan of a job that is gone or has no placement."""
        if row in self.plans:
            self.plans = {other: plan for other, plan in self.plans.items() if other != row}

    def lose(self, server: int) -> None:
        """Remove the plans that use a lost server."""
        self.plans = {
            row: plan for row, plan in self.plans.items() if server not in plan.servers.tolist()
        }

    # ---------------------------------------------------------------- choosing

    def going_on(self, now: int) -> Plans:
        """Return the plans in force that still keep their promises, with new end slots."""
        book = self._book
        kept: Plans = {}
        for row, plan in self.plans.items():
            if book.promise[row] >= 0 and book.jobs.remaining[row] > 0:
                gain = int(book.jobs.gains[row, plan.level])
                first = (
                    gain
                    if self._stands(row, plan)
                    else int(book.jobs.certain_gains[row, plan.level])
                )
                end = now + slots_of(int(book.jobs.remaining[row]), first, gain) - 1
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
        """Yield sets of pinned plans to plan other jobs around, the best first.

        In one set, jobs keep their current placement if that completes in time. In another, each
        has the fewest workers that do. The last set has the plans in force only.

        Parameters
        ----------
        now : int
            The next slot.
        order : ndarray of int64
            Rows of promised jobs, the earliest promise first.
        going_on : dict of int to Stay
            Plans in force.
        new_only : bool
            Whether jobs with a plan keep it.
        least_first : bool
            Whether the set with the fewest workers comes first, to show arrivals how much is free.
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
        """Return pinned plans of all jobs that can keep their servers, by promise."""
        chosen = dict(going_on)
        usage = self._held_by(chosen)
        standing = self._book.standing
        for row in rows:
            previous = chosen.get(row)
            if previous is not None and not least and previous.level == standing[row]:
                continue  # it stays as it is
            if previous is not None:
                self._count(usage, row, previous, -1)
            for plan in self._candidates(now, row, least=least):
                if self._has_room(now, row, plan, usage):
                    chosen[row] = plan
                    break
            if row in chosen:
                self._count(usage, row, chosen[row], 1)
        return chosen

    def _candidates(self, now: int, row: int, *, least: bool) -> Iterator[Stay]:
        """Yield plans on a job's current servers that keep its promise.

        The most workers come first, or with ``least`` the fewest.
        """
        book, jobs = self._book, self._book.jobs
        servers, workers, ps = book.table.entries(row)
        if not len(servers):
            return
        top, spread = int(book.standing[row]), int(jobs.spread_levels[row])
        hull = jobs.hull[row, : jobs.hull_size[row]]
        below = hull[(hull < top) & ((hull >= spread) == (top >= spread))].tolist()
        remaining, last = int(jobs.remaining[row]), int(book.promise[row])
        for level in [*below, top] if least else [top, *reversed(below)]:
            kept = cut(workers, int(jobs.worker_counts[row, level]))
            kept_ps = cut(ps, int(jobs.ps_counts[row, level]))
            if (
                kept.sum() != jobs.worker_counts[row, level]
                or kept_ps.sum() != jobs.ps_counts[row, level]
            ):
                continue
            unchanged = np.array_equal(kept, workers) and np.array_equal(kept_ps, ps)
            gain = int(jobs.gains[row, level])
            if gain <= 0:
                continue
            first = gain if unchanged else int(jobs.certain_gains[row, level])
            end = now + slots_of(remaining, first, gain) - 1
            if end <= last:
                used = np.flatnonzero(kept + kept_ps)
                yield Stay(level, end, servers[used].copy(), kept[used], kept_ps[used])

    def _has_room(self, now: int, row: int, plan: Stay, held: Integers) -> bool:
        """Return whether bags leave a plan its servers, and its tenant's share covers it.

        Other running jobs can't conflict, because the job already runs on this capacity.
        """
        jobs, bags = self._book.jobs, self._bags
        if not bags.plans and not self._quotas.given:
            return True
        demand = plan.workers[:, None] * jobs.worker[row] + plan.ps[:, None] * jobs.ps[row]
        tenant = int(jobs.tenant[row])
        for slot in (now, *(cut for cut in bags.cuts(now) if cut <= plan.end)):
            if bags.plans:
                free = self._cluster.capacity[plan.servers] - bags.held(slot)[plan.servers]
                if (demand > free).any():
                    return False
            if self._quotas.given:
                headroom = self._quotas.left(held + bags.held_by(slot), tenant)
                total = demand.sum(axis=0)
                if (total > headroom)[(headroom >= 0) & (total > 0)].any():
                    return False
        return True

    def _stands(self, row: int, plan: Stay) -> bool:
        """Return whether a job's current placement is the planned one."""
        servers, workers, ps = self._book.table.entries(row)
        return (
            np.array_equal(servers, plan.servers)
            and np.array_equal(workers, plan.workers)
            and np.array_equal(ps, plan.ps)
        )

    # ---------------------------------------------------------------- usage

    def ends(self) -> set[int]:
        """Return the first slots after the ends of plans."""
        return {plan.end + 1 for plan in self.plans.values()}

    def entries(self) -> tuple[Integers, Integers, Integers]:
        """Return the usage of plans as entries: last slot, server, and amounts."""
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
        """Return the usage of plans in a slot, shape (servers, resources)."""
        usage = np.zeros_like(self._cluster.capacity)
        end, server, amount = self.entries()
        np.add.at(usage, server[end >= slot], amount[end >= slot])
        return usage

    def held_by(self, slot: int) -> Integers:
        """Return the usage of plans in a slot by tenant, shaped as `Quotas.share`."""
        if not self._quotas.given:
            return np.zeros_like(self._quotas.share)
        return self._held_by({row: plan for row, plan in self.plans.items() if plan.end >= slot})

    def _held_by(self, plans: Plans) -> Integers:
        usage = np.zeros_like(self._quotas.share)
        for row, plan in plans.items() if len(usage) else ():
            self._count(usage, row, plan, 1)
        return usage

    def _count(self, held: Integers, row: int, plan: Stay, sign: int) -> None:
        if len(held):
            jobs = self._book.jobs
            total = plan.workers.sum() * jobs.worker[row] + plan.ps.sum() * jobs.ps[row]
            held[jobs.tenant[row]] += sign * total

    # ---------------------------------------------------------------- the next slot

    def fixed(self) -> tuple[Placements, Integers]:
        """Return the pinned placements of the next slot, and the pinned level of each row."""
        if not self.plans:
            return NOWHERE, NOWHERE.first
        rows = self._book.rows
        level, first, number = np.full(rows, -1), np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        entry = 0
        for row, plan in self.plans.items():
            level[row], first[row], number[row] = plan.level, entry, len(plan.servers)
            entry += len(plan.servers)
        plans = self.plans.values()
        columns = (
            np.concatenate([plan.servers for plan in plans]),
            np.concatenate([plan.workers for plan in plans]),
            np.concatenate([plan.ps for plan in plans]),
        )
        return Placements(first, number, *columns), level

    def barred(self, now: int) -> Flags:
        """Return the levels that jobs may not scale up to in the next slot; empty without limits.

        A job that scales up for a slot must return to its plan and complete by the plan's end.
        """
        if not self.plans:
            return np.zeros((0, 0), np.bool_)
        book, jobs = self._book, self._book.jobs
        barred = np.zeros(jobs.gains.shape, np.bool_)
        rows = np.fromiter(self.plans, np.int64, len(self.plans))
        level = np.array([plan.level for plan in self.plans.values()])
        end = np.array([plan.end for plan in self.plans.values()])
        progress = jobs.certain_gains[rows]
        running = np.flatnonzero(book.standing[rows] >= 0)
        current = rows[running], book.standing[rows[running]]
        progress[running, current[1]] = jobs.gains[current]
        resumed, gain = jobs.certain_gains[rows, level], jobs.gains[rows, level]
        remaining = jobs.remaining[rows, None] - progress
        barred[rows] = ~_ends(now, remaining, resumed[:, None], gain[:, None], end[:, None])
        return barred

    def cannot_move(self, now: int, row: int, level: int) -> bool:
        """Return whether a job that moved to a level now would miss its plan's end."""
        plan = self.plans.get(row)
        if plan is None or level == plan.level:
            return False
        jobs = self._book.jobs
        remaining = jobs.remaining[row] - jobs.certain_gains[row, level]
        resumed, gain = jobs.certain_gains[row, plan.level], jobs.gains[row, plan.level]
        return not bool(_ends(now, remaining, resumed, gain, plan.end))


def _ends(now: int, left: Integers, back: Integers, gain: Integers, end: Integers | int) -> Flags:
    """Return which plans, resumed with a restart after the next slot, still end in time.

    Parameters
    ----------
    now : int
        The next slot.
    left : ndarray of int64
        Progress units that remain after it.
    back, gain : ndarray of int64
        Progress units of the slot in which a plan is resumed, and of those after it.
    end : ndarray of int64
        Last slot of each plan.
    """
    done = now + 1 + np.maximum(0, -(-(left - back) // gain))
    return np.asarray((left <= 0) | (done <= end))


def slots_of(left: int, first: int, gain: int) -> int:
    """Return the number of slots that work takes if the first one yields another amount."""
    return 1 + max(0, -(-(left - first) // gain))


def cut(numbers: Integers, wanted: int) -> Integers:
    """Reduce numbers to a sum, the smallest first."""
    kept = numbers.copy()
    total = int(kept.sum())
    while total > wanted:
        nonzero = np.flatnonzero(kept)
        smallest = int(nonzero[np.argmin(kept[nonzero])])
        removed = min(int(kept[smallest]), total - wanted)
        kept[smallest] -= removed
        total -= removed
    return kept


def _same(one: Plans, other: Plans) -> bool:
    return one.keys() == other.keys() and all(one[row] is other[row] for row in one)

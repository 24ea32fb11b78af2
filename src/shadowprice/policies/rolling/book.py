"""Open jobs as rows of the arrays that the kernels of `kernels.revision` read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.kernels.revision.jobs import Jobs
from shadowprice.policies.reactive.worths import WorthTable
from shadowprice.policies.rolling.quotas import Quotas
from shadowprice.policies.rolling.standing import Standing
from shadowprice.policies.rolling.ways import Ways, useful

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

NEVER: Final = int(np.iinfo(np.int64).max) // 16
"""Last useful slot of a job whose utility never ends."""

_DOUBLINGS: Final = NEVER.bit_length() + 1
_DOUBLED: Final = 1 << np.arange(_DOUBLINGS)
_NOW: Final = np.zeros(1)
_SIXTY_FOUR: Final = np.arange(1, 65)

LEAST_WORTH: Final = 1e-3
"""Share of its best utility below which a job counts as worth nothing any more."""


class Book:
    """Open jobs in rows, which are reused; where they stand is kept by `Standing`.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    until : int or None
        End of the timespan T.
    quotas : Quotas
        What promises to each tenant may hold.
    restart_limit : float
        Part of a slot from which on a restart takes so much that no plan counts on the job, not
        even on a first start that costs nothing.

    Attributes
    ----------
    table : Standing
        Rows by name, and where jobs stand.
    jobs : Jobs
        What the kernels read.
    promise : ndarray of int64, shape (rows,)
        Slot by whose end each row has to be complete; -1 for jobs without a promise.
    loss : ndarray of float64, shape (rows,)
        Share of a slot that a change of placement costs.
    standing : ndarray of int64, shape (rows,)
        Level at which each stood in the slot before, -1 for none.
    started : ndarray of bool, shape (rows,)
        Which ran before, or lose as much by a first start.
    after : ndarray of int64, shape (rows,)
        Progress units that remain after the slot under way if it yields what plans count on, also
        where the job restarts; -1 for rows that do not run in it.
    fastest : ndarray of int64, shape (rows,)
        Most progress units of a slot at the better of the two rates.
    at_once : ndarray of float64, shape (rows,)
        What completing in the slot of its arrival would be worth.
    final : int
        Last slot in which anything may run.
    """

    def __init__(
        self, cluster: Cluster, until: int | None, quotas: Quotas, *, restart_limit: float = 1.0
    ) -> None:
        self.table = Standing(cluster)
        self._restart_limit = restart_limit
        self._cluster, self._quotas = cluster, quotas
        self.until = until
        self.final = NEVER if until is None else until - 1
        self._resources = len(cluster.resources)
        self._rows = 0
        self._width = 8
        self.promise = np.zeros(0, np.int64)
        self.loss = np.zeros(0)
        self.standing = np.zeros(0, np.int64)
        self.started = np.zeros(0, np.bool_)
        self.after = np.zeros(0, np.int64)
        self.fastest = np.zeros(0, np.int64)
        self.at_once = np.zeros(0)
        self._ways = Ways(cluster)
        self._worths = WorthTable()
        self.jobs = self._empty(0, self._width)

    @property
    def rows(self) -> int:
        """Rows of the table, used or not."""
        return self._rows

    def add(self, job: Job) -> int:
        """Take a job in; return its row."""
        row = self.table.add(job)
        spread, whole = useful(job.gains), self._ways.whole(job)
        whole = whole[useful(job.internal_gains[whole])]
        chosen = np.concatenate((spread, whole))
        workers, servers = job.worker_counts[chosen], job.ps_counts[chosen]
        gains = np.concatenate((job.gains[spread], job.internal_gains[whole]))
        sure = np.concatenate((job.moved_gains[spread], job.moved_internal_gains[whole]))
        self._reserve(len(self.table.jobs), len(workers))
        self._worths.enter(row, job.utility)
        self.jobs = self.jobs._replace(worths=self._worths.columns)
        jobs, count = self.jobs, len(workers)
        jobs.worker[row] = job.worker
        jobs.ps[row] = 0 if job.ps is None else job.ps
        jobs.levels[row] = count
        jobs.workers[row, :count] = workers
        jobs.servers[row, :count] = servers
        jobs.gains[row, :count] = gains
        jobs.sure[row, :count] = sure
        apart = jobs.spread[row] = len(spread)
        hull = upper_hull(workers[:apart], gains[:apart])
        jobs.hulls_spread[row] = len(hull)
        if count > apart:
            on_one = apart + upper_hull(workers[apart:], gains[apart:])
            hull = np.concatenate((hull, on_one))
        jobs.hulls[row] = len(hull)
        jobs.hull[row, : len(hull)] = hull
        jobs.left[row] = job.required
        jobs.arrival[row] = job.arrival
        jobs.last[row] = self._last_slot(job, self.final)
        jobs.tenant[row] = self._quotas.row_of(self._cluster, job)
        loss = self.loss[row] = float(job.restart)
        self.started[row] = self._cluster.restart_first
        jobs.fresh[row] = 0.0 < loss < self._restart_limit and not self.started[row]
        if loss >= self._restart_limit:
            jobs.sure[row] = 0
        self.promise[row] = -1
        self.standing[row] = -1
        self.after[row] = -1
        self.fastest[row] = int(job.internal_gains.max())
        self.at_once[row] = float(job.utility.values(_NOW)[0])
        return row

    def resume(self, state: JobState, before: Book, under_way: int | None) -> None:
        """Take in a job that was decided before, with its promise and where it stands.

        Where it runs in a slot that is under way, what that is to yield is known from before, or
        else counted from where the job stands: without it each promise would seem a slot late.
        """
        row = self.add(state.job)
        self.jobs.left[row] = state.remaining
        self.promise[row] = -1 if state.promise is None else state.promise
        begun = state.started == under_way and not self.started[row]
        self.started[row] |= state.started is not None
        self.jobs.fresh[row] &= not self.started[row]
        if state.placement is not None:
            self.table.stand(row, state.placement)
            apart, levels = int(self.jobs.spread[row]), int(self.jobs.levels[row])
            whole = state.placement.colocated and levels > apart
            first, end = (apart, levels) if whole else (0, apart)
            workers = self.jobs.workers[row, first:end]
            at = int(np.searchsorted(workers, state.placement.total_workers))
            self.standing[row] = first + min(at, len(workers) - 1)
            if under_way is not None:
                made = self.jobs.gains if begun else self.jobs.sure
                self.after[row] = max(state.remaining - int(made[row, self.standing[row]]), 0)
        known = before.table.rows.get(state.job.name)
        if known is not None and before.table.jobs[known] is state.job:
            self.after[row] = before.after[known]

    def remove(self, name: str) -> None:
        """Forget a job."""
        if name in self.table.rows:
            self.promise[self.table.remove(name)] = -1

    def clear(self, name: str) -> None:
        """Take note that a job stands nowhere any more."""
        if name in self.table.rows:
            row = self.table.rows[name]
            self.table.clear(row)
            self.standing[row] = -1

    def refresh(self, view: View) -> bool:
        """Take note of the progress that jobs made.

        While a slot is under way, what it is yet to yield is counted as it is planned: what is laid
        out begins with the next slot. Counted as done by nobody, each promise without much slack
        would seem broken whenever a job arrives.

        Returns
        -------
        bool
            Whether a slot is, so that what is noted of some is expected only.
        """
        left, states, expected = self.jobs.left, view.open_jobs, False
        for name, row in self.table.rows.items():
            left[row] = states[name].remaining
            if view.runs(name):
                expected = True
                if self.after[row] >= 0:
                    left[row] = min(left[row], self.after[row])
        return expected

    def stood(self, rows: Integers, level: Integers, staying: Flags) -> None:
        """Take note of the level at which each row stands in the slot that begins, -1 for none.

        Those who are staying, as they were planned to, do not restart, nor do fresh ones.
        """
        jobs = self.jobs
        self.standing[rows] = level
        at = np.maximum(level, 0)
        whole = staying | ~self.started[rows]
        sure = np.where(whole, jobs.gains[rows, at], jobs.sure[rows, at])
        self.after[rows] = np.where(level >= 0, np.maximum(jobs.left[rows] - sure, 0), -1)
        self.started[rows] |= level >= 0
        jobs.fresh[rows] &= ~self.started[rows]

    def hoped(self, rows: Integers) -> Integers:
        """Return what rows make of a slot, by level, if they move no more than they have to.

        One that stands restarts unless it stays at its level: on more levels it is counted as if it
        stayed, or restarted in every slot, whichever is more.
        """
        jobs = self.jobs
        sure, gains, standing = jobs.sure[rows], jobs.gains[rows], self.standing[rows, None]
        stays = np.take_along_axis(gains, np.maximum(standing, 0), axis=1)
        staying = np.where(np.arange(gains.shape[1]) >= standing, stays, 0)
        return np.where(standing < 0, gains, np.maximum(sure, staying))

    @contextmanager
    def hopeful(self, rows: Integers) -> Iterator[None]:
        """Let plans of some rows count on that meanwhile."""
        sure = self.jobs.sure[rows]
        self.jobs.sure[rows] = self.hoped(rows)
        try:
            yield
        finally:
            self.jobs.sure[rows] = sure

    def most_gain(self, rows: Integers) -> Integers:
        """Return the most progress units of a slot that each row can make where it finds room."""
        jobs = self.jobs
        most = np.maximum(
            jobs.gains[rows, jobs.spread[rows] - 1], jobs.gains[rows, jobs.levels[rows] - 1]
        )
        return np.asarray(most, np.int64)

    def name(self, row: int) -> str:
        """Return the job of a row."""
        job = self.table.jobs[row]
        assert job is not None
        return job.name

    def ends_first(self, job: Job, done: int) -> bool:
        """Whether only the end of the timespan makes completing a job in a slot too late."""
        return done > self.final and done <= self._last_slot(job, NEVER)

    def _last_slot(self, job: Job, final: int) -> int:
        """Return the last slot, up to a final one, in which completing a job is worth something."""
        shortest = job.fastest_slots - 1
        best = float(job.utility.values(np.array([shortest], np.float64))[0])
        low, high = job.arrival + shortest, final
        if best <= 0.0 or low > high:
            return job.arrival - 1
        # Utilities do not rise: a search that looks at some sixty slots at a time.
        steps = np.minimum(_DOUBLED, high - low)
        while low < high:
            tried = low + np.unique(np.minimum(steps, high - low))
            now = job.utility.values((tried - job.arrival).astype(np.float64))
            worth = int(np.count_nonzero(now >= LEAST_WORTH * best))
            if worth == len(tried):
                return high
            high = int(tried[worth]) - 1
            low = int(tried[worth - 1]) if worth else low
            steps = _SIXTY_FOUR * max(1, -(-(high - low) // 64))
        return low

    def _reserve(self, rows: int, width: int) -> None:
        if rows <= self._rows and width <= self._width:
            return
        old, kept = self.jobs, self._rows
        before = self._width
        self._width = max(self._width, 1 << (width - 1).bit_length())
        self._rows = max(rows, self._rows)
        self.jobs = self._empty(self._rows, self._width)
        for new_array, old_array in zip(self.jobs[:-1], old[:-1], strict=True):  # worths grow alone
            if new_array.ndim == 2 and new_array.shape[1] != old_array.shape[1]:
                new_array[:kept, :before] = old_array
            else:
                new_array[:kept] = old_array
        more = self._rows - kept
        self.promise = np.concatenate((self.promise, np.full(more, -1, np.int64)))
        self.loss = np.concatenate((self.loss, np.zeros(more)))
        self.standing = np.concatenate((self.standing, np.full(more, -1, np.int64)))
        self.started = np.concatenate((self.started, np.zeros(more, np.bool_)))
        self.after = np.concatenate((self.after, np.full(more, -1, np.int64)))
        self.fastest = np.concatenate((self.fastest, np.zeros(more, np.int64)))
        self.at_once = np.concatenate((self.at_once, np.zeros(more)))

    def _empty(self, rows: int, width: int) -> Jobs:
        wide = (rows, width)
        return Jobs(
            worker=np.zeros((rows, self._resources), np.int64),
            ps=np.zeros((rows, self._resources), np.int64),
            levels=np.zeros(rows, np.int64),
            spread=np.zeros(rows, np.int64),
            workers=np.zeros(wide, np.int64),
            servers=np.zeros(wide, np.int64),
            gains=np.zeros(wide, np.int64),
            sure=np.zeros(wide, np.int64),
            fresh=np.zeros(rows, np.bool_),
            hulls=np.zeros(rows, np.int64),
            hulls_spread=np.zeros(rows, np.int64),
            hull=np.zeros(wide, np.int64),
            left=np.zeros(rows, np.int64),
            arrival=np.zeros(rows, np.int64),
            last=np.zeros(rows, np.int64),
            worths=self._worths.columns,
            tenant=np.zeros(rows, np.int64),
        )


def upper_hull(workers: Integers, gains: Integers) -> Integers:
    """Return the levels on the upper hull of a curve through the origin.

    Parameters
    ----------
    workers, gains : ndarray of int64, shape (levels,)
        Both strictly ascending.

    Returns
    -------
    ndarray of int64
        Positions, ascending; points on a straight line of the hull belong to it, to within the
        rounding of gains to whole units.
    """
    x = np.concatenate(([0], workers)).astype(np.float64)
    y = np.concatenate(([0], gains)).astype(np.float64)
    if len(workers) == 1 or (np.diff(y / x.clip(1))[1:] == 0).all():
        return np.arange(len(workers), dtype=np.int64)
    kept = [0]
    for at in range(1, len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            # b lies below the line from a to at, by more than the rounding of gains.
            line = y[a] + (y[at] - y[a]) * (x[b] - x[a]) / (x[at] - x[a])
            if y[b] + 2.0 < line and y[b] < line * (1.0 - 1e-9):
                kept.pop()
            else:
                break
        kept.append(at)
    return np.array(kept[1:], dtype=np.int64) - 1

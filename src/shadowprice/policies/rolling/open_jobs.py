"""Open training jobs as rows of the arrays that the kernels of `kernels.replanning` read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.core.schedule import Placement
from shadowprice.kernels.replanning.jobs import JobArrays
from shadowprice.kernels.replanning.next_slot import StepWeights
from shadowprice.kernels.replanning.placement import (
    Placements,
    compare_placements,
    place_packed_jobs,
    place_paused_jobs,
    scale_up_colocated,
)
from shadowprice.kernels.replanning.plans import PackingLog
from shadowprice.policies.reactive.table import Rows
from shadowprice.policies.reactive.worths import WorthTable
from shadowprice.policies.rolling.quotas import Quotas

Integers = NDArray[np.int64]

_NONE = np.zeros(0, np.int64)


class Ways:
    """Computes the worker counts with which a job fits on one server of a cluster.

    Lost servers count too, because planning checks the free capacity.
    """

    def __init__(self, cluster: Cluster) -> None:
        both = cluster.hosts_workers & cluster.hosts_ps
        self._either = np.unique(cluster.capacity[cluster.hosts_workers], axis=0)
        self._both = np.unique(cluster.capacity[both], axis=0)

    def whole(self, job: Job) -> Integers:
        """Return the choices with which a job fits on one server, if it is faster there.

        Returns
        -------
        ndarray of int64
            Positions in ``job.worker_counts``, ascending; empty if co-location changes nothing.
        """
        if not job.two_rates:
            return _NONE
        demand = job.worker_counts[:, None] * job.worker
        servers = self._either
        if job.ps is not None:
            demand = demand + job.ps_counts[:, None] * job.ps
            servers = self._both
        too_large = (demand[:, None, :] > servers).any(axis=2)
        return np.flatnonzero(~np.all(too_large, axis=1))


def useful(gains: Integers) -> Integers:
    """Return the positions of gains that exceed all before them, the first included."""
    best = np.maximum.accumulate(gains)
    return np.flatnonzero(np.diff(best, prepend=-1) > 0)


Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NOWHERE: Final = Placements(*(np.zeros(0, np.int64) for _ in Placements._fields))
"""No pinned placements."""


class Standing(Rows):
    """Open jobs in order of arrival, with their current and next placements."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._stood = Placements(*(np.zeros(0, np.int64) for _ in Placements._fields))
        self._next = self._stood

    def clear(self, row: int) -> None:
        """Record that a job has no placement."""
        self._stood.size[row] = 0

    def stand(self, row: int, placement: Placement) -> None:
        """Record the placement of a job."""
        stood, count = self._stood, len(placement.servers)
        self._stood = stood._replace(
            server=np.append(stood.server, placement.servers),
            workers=np.append(stood.workers, placement.workers),
            ps=np.append(stood.ps, placement.ps),
        )
        stood.first[row], stood.size[row] = len(stood.server), count

    def entries(self, row: int) -> tuple[Integers, Integers, Integers]:
        """Return the servers of a job's placement, and its workers and PS on each."""
        stood = self._stood
        part = slice(int(stood.first[row]), int(stood.first[row] + stood.size[row]))
        return stood.server[part], stood.workers[part], stood.ps[part]

    def held(self, jobs: JobArrays, shape: tuple[int, int]) -> Integers:
        """Return the usage of all current placements, shape (servers, resources)."""
        stood, usage = self._stood, np.zeros(shape, np.int64)
        for row in self.rows.values():
            part = slice(int(stood.first[row]), int(stood.first[row] + stood.size[row]))
            entries = stood.workers[part, None] * jobs.worker[row]
            np.add.at(usage, stood.server[part], entries + stood.ps[part, None] * jobs.ps[row])
        return usage

    def put(
        self,
        free: Integers,
        jobs: JobArrays,
        log: PackingLog,
        fixed: Placements = NOWHERE,
        least: Integers = NOWHERE.first,
        *,
        stay: bool,
    ) -> bool:
        """Compute the next placements; return False if a level of the log didn't fit.

        See `kernels.replanning.placement.place_packed_jobs`.
        """
        complete, self._next = place_packed_jobs(
            free, self.hosts_workers, self.hosts_ps, jobs, log, self._stood, fixed, least, stay
        )
        return bool(complete)

    def put_back(self, row: int, fixed: Placements) -> None:
        """Replace the next placement of a job with its pinned one."""
        following = self._next
        part = slice(int(fixed.first[row]), int(fixed.first[row] + fixed.size[row]))
        following.first[row], following.size[row] = len(following.server), fixed.size[row]
        self._next = following._replace(
            server=np.append(following.server, fixed.server[part]),
            workers=np.append(following.workers, fixed.workers[part]),
            ps=np.append(following.ps, fixed.ps[part]),
        )

    def moves(self, rows: Integers) -> Flags:
        """Return which rows change their placement."""
        return np.asarray(compare_placements(rows, self._stood, self._next) != 0)

    def grow(
        self,
        free: Integers,
        jobs: JobArrays,
        rows: Integers,
        worth_left: Floats,
        terms: StepWeights,
        log: PackingLog,
    ) -> None:
        """Scale co-located jobs up on their servers; see `placement.scale_up_colocated`."""
        following = self._next
        scale_up_colocated(free, jobs, rows, worth_left, terms, following, log)

    def seat(
        self,
        free: Integers,
        jobs: JobArrays,
        rows: Integers,
        worth_left: Floats,
        terms: StepWeights,
        log: PackingLog,
    ) -> None:
        """Place paused jobs on the free capacity; see `placement.place_paused_jobs`."""
        self._next = place_paused_jobs(
            free, self.hosts_workers, self.hosts_ps, jobs, rows, worth_left, terms, self._next, log,
        )  # fmt: skip

    def rearrange(self, rows: Integers) -> Iterator[Decision]:
        """Yield the moves of all running rows to their next placements."""
        following = self._next
        yield from self._move(rows, compare_placements(rows, self._stood, following))
        self._stood = following

    def _placement(self, row: int) -> Placement:
        following = self._next
        first = int(following.first[row])
        part = slice(first, first + int(following.size[row]))
        servers, workers, ps = (column[part].tolist() for column in following[2:])
        return Placement(tuple(servers), tuple(workers), tuple(ps))

    def _grow(self, size: int) -> None:
        stood = self._stood
        added = np.zeros(size - len(stood.first), np.int64)
        self._stood = stood._replace(
            first=np.concatenate((stood.first, added)), size=np.concatenate((stood.size, added))
        )


NEVER: Final = int(np.iinfo(np.int64).max) // 16
"""Last useful slot of a job whose utility never expires."""

_DOUBLINGS: Final = NEVER.bit_length() + 1
_DOUBLED: Final = 1 << np.arange(_DOUBLINGS)
_NOW: Final = np.zeros(1)
_SIXTY_FOUR: Final = np.arange(1, 65)

MIN_UTILITY_SHARE: Final = 1e-3
"""Share of its maximum utility below which a job counts as worthless."""


class Book:
    """Open jobs in rows, which are reused; `Standing` has their placements.

    Parameters
    ----------
    until : int or None
        End of the timespan T.
    restart_limit : float
        Share of a slot. If a restart costs a job that much or more, no plan counts on its progress,
        not even on a first start that costs nothing.

    Attributes
    ----------
    table : Standing
        Rows by name, and placements.
    jobs : JobArrays
        Arrays for the kernels.
    promise : ndarray of int64, shape (rows,)
        Promised completion slot of each row; -1 for jobs without a promise.
    loss : ndarray of float64, shape (rows,)
        Share of a slot that a change of placement costs.
    standing : ndarray of int64, shape (rows,)
        Level of each row in the slot before, -1 for none.
    started : ndarray of bool, shape (rows,)
        Whether the next start costs progress: the job ran before, or first starts cost some too.
    after : ndarray of int64, shape (rows,)
        Progress units that remain after the slot under way, if it yields what plans count on; -1
        for rows that don't run in it.
    fastest : ndarray of int64, shape (rows,)
        Maximum progress units of a slot at the better of the two rates.
    at_once : ndarray of float64, shape (rows,)
        Utility of completing in the slot of arrival.
    final : int
        Last slot in which a job may run.
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
        """Number of rows, used or not."""
        return self._rows

    def add(self, job: Job) -> int:
        """Add a job; return its row."""
        row = self.table.add(job)
        spread, whole = useful(job.gains), self._ways.whole(job)
        whole = whole[useful(job.internal_gains[whole])]
        chosen = np.concatenate((spread, whole))
        workers, ps_counts = job.worker_counts[chosen], job.ps_counts[chosen]
        gains = np.concatenate((job.gains[spread], job.internal_gains[whole]))
        sure = np.concatenate((job.moved_gains[spread], job.restart_internal_gains[whole]))
        self._reserve(len(self.table.jobs), len(workers))
        self._worths.enter(row, job.utility)
        self.jobs = self.jobs._replace(worths=self._worths.columns)
        jobs, count = self.jobs, len(workers)
        jobs.worker[row] = job.worker
        jobs.ps[row] = 0 if job.ps is None else job.ps
        jobs.levels[row] = count
        jobs.worker_counts[row, :count] = workers
        jobs.ps_counts[row, :count] = ps_counts
        jobs.gains[row, :count] = gains
        jobs.certain_gains[row, :count] = sure
        spread_count = jobs.spread_levels[row] = len(spread)
        hull = upper_hull(workers[:spread_count], gains[:spread_count])
        jobs.spread_hull_size[row] = len(hull)
        if count > spread_count:
            whole_hull = spread_count + upper_hull(workers[spread_count:], gains[spread_count:])
            hull = np.concatenate((hull, whole_hull))
        jobs.hull_size[row] = len(hull)
        jobs.hull[row, : len(hull)] = hull
        jobs.remaining[row] = job.required
        jobs.arrival[row] = job.arrival
        jobs.last_slot[row] = self._last_slot(job, self.final)
        jobs.tenant[row] = self._quotas.row_of(self._cluster, job)
        loss = self.loss[row] = float(job.restart)
        self.started[row] = self._cluster.restart_first
        jobs.starts_free[row] = 0.0 < loss < self._restart_limit and not self.started[row]
        if loss >= self._restart_limit:
            jobs.certain_gains[row] = 0
        self.promise[row] = -1
        self.standing[row] = -1
        self.after[row] = -1
        self.fastest[row] = int(job.internal_gains.max())
        self.at_once[row] = float(job.utility.values(_NOW)[0])
        return row

    def resume(self, state: JobState, before: Book, under_way: int | None) -> None:
        """Add a job that was decided on earlier, with its promise and placement.

        ``under_way`` is the slot in progress if the job runs in it. Its expected progress comes
        from ``before``, or else from the placement. Without it, every promise would seem a slot
        late.
        """
        row = self.add(state.job)
        self.jobs.remaining[row] = state.remaining
        self.promise[row] = -1 if state.promise is None else state.promise
        first_run = state.started == under_way and not self.started[row]
        self.started[row] |= state.started is not None
        self.jobs.starts_free[row] &= not self.started[row]
        if state.placement is not None:
            self.table.stand(row, state.placement)
            spread_count, levels = int(self.jobs.spread_levels[row]), int(self.jobs.levels[row])
            whole = state.placement.colocated and levels > spread_count
            first, end = (spread_count, levels) if whole else (0, spread_count)
            workers = self.jobs.worker_counts[row, first:end]
            index = int(np.searchsorted(workers, state.placement.total_workers))
            self.standing[row] = first + min(index, len(workers) - 1)
            if under_way is not None:
                progress = self.jobs.gains if first_run else self.jobs.certain_gains
                self.after[row] = max(state.remaining - int(progress[row, self.standing[row]]), 0)
        old_row = before.table.rows.get(state.job.name)
        if old_row is not None and before.table.jobs[old_row] is state.job:
            self.after[row] = before.after[old_row]

    def remove(self, name: str) -> None:
        """Remove a job, if it has a row."""
        if name in self.table.rows:
            self.promise[self.table.remove(name)] = -1

    def clear(self, name: str) -> None:
        """Record that a job has no placement any more."""
        if name in self.table.rows:
            row = self.table.rows[name]
            self.table.clear(row)
            self.standing[row] = -1

    def refresh(self, view: View) -> bool:
        """Update the remaining work of all jobs.

        Plans begin with the next slot. So while a slot is under way, its progress counts as
        planned; otherwise every promise without much slack would seem broken whenever a job
        arrives.

        Returns
        -------
        bool
            Whether a slot is under way, so that some of the remaining work is an estimate.
        """
        remaining, states, expected = self.jobs.remaining, view.open_jobs, False
        for name, row in self.table.rows.items():
            remaining[row] = states[name].remaining
            if view.runs(name):
                expected = True
                if self.after[row] >= 0:
                    remaining[row] = min(remaining[row], self.after[row])
        return expected

    def stood(self, rows: Integers, level: Integers, staying: Flags) -> None:
        """Record the levels of the slot that begins, -1 for none, and its expected progress.

        Jobs in ``staying`` keep their pinned placement and don't restart; a first start may be
        free.
        """
        jobs = self.jobs
        self.standing[rows] = level
        index = np.maximum(level, 0)
        no_restart = staying | ~self.started[rows]
        progress = np.where(no_restart, jobs.gains[rows, index], jobs.certain_gains[rows, index])
        self.after[rows] = np.where(level >= 0, np.maximum(jobs.remaining[rows] - progress, 0), -1)
        self.started[rows] |= level >= 0
        jobs.starts_free[rows] &= ~self.started[rows]

    def hoped(self, rows: Integers) -> Integers:
        """Return the expected progress units of a slot by level, if jobs move only when they must.

        A running job restarts unless it stays at its level. On higher levels it counts as if it
        stayed, or as if it restarted in every slot, whichever yields more.
        """
        jobs = self.jobs
        sure, gains, standing = (
            jobs.certain_gains[rows],
            jobs.gains[rows],
            self.standing[rows, None],
        )
        at_current = np.take_along_axis(gains, np.maximum(standing, 0), axis=1)
        staying = np.where(np.arange(gains.shape[1]) >= standing, at_current, 0)
        return np.where(standing < 0, gains, np.maximum(sure, staying))

    @contextmanager
    def hopeful(self, rows: Integers) -> Iterator[None]:
        """Plan some rows by `hoped` instead of certain progress within the block."""
        sure = self.jobs.certain_gains[rows]
        self.jobs.certain_gains[rows] = self.hoped(rows)
        try:
            yield
        finally:
            self.jobs.certain_gains[rows] = sure

    def most_gain(self, rows: Integers) -> Integers:
        """Return the maximum progress units of each row in a slot, in either mode."""
        jobs = self.jobs
        maximum = np.maximum(
            jobs.gains[rows, jobs.spread_levels[rows] - 1], jobs.gains[rows, jobs.levels[rows] - 1]
        )
        return np.asarray(maximum, np.int64)

    def name(self, row: int) -> str:
        """Return the name of the job of a row."""
        job = self.table.jobs[row]
        assert job is not None
        return job.name

    def ends_first(self, job: Job, done: int) -> bool:
        """Return whether completing in a slot is too late only because the timespan ends."""
        return done > self.final and done <= self._last_slot(job, NEVER)

    def _last_slot(self, job: Job, final: int) -> int:
        """Return the last slot, up to ``final``, in which completing has a utility that counts.

        The slot before arrival if there is none.
        """
        shortest = job.min_slots_colocated - 1
        best = float(job.utility.values(np.array([shortest], np.float64))[0])
        low, high = job.arrival + shortest, final
        if best <= 0.0 or low > high:
            return job.arrival - 1
        # Utilities never rise, so search by sections; one call evaluates some sixty slots.
        steps = np.minimum(_DOUBLED, high - low)
        while low < high:
            slots = low + np.unique(np.minimum(steps, high - low))
            values = job.utility.values((slots - job.arrival).astype(np.float64))
            useful_count = int(np.count_nonzero(values >= MIN_UTILITY_SHARE * best))
            if useful_count == len(slots):
                return high
            high = int(slots[useful_count]) - 1
            low = int(slots[useful_count - 1]) if useful_count else low
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
        # All but `worths`, which grows by itself.
        for new_array, old_array in zip(self.jobs[:-1], old[:-1], strict=True):
            if new_array.ndim == 2 and new_array.shape[1] != old_array.shape[1]:
                new_array[:kept, :before] = old_array
            else:
                new_array[:kept] = old_array
        added = self._rows - kept
        self.promise = np.concatenate((self.promise, np.full(added, -1, np.int64)))
        self.loss = np.concatenate((self.loss, np.zeros(added)))
        self.standing = np.concatenate((self.standing, np.full(added, -1, np.int64)))
        self.started = np.concatenate((self.started, np.zeros(added, np.bool_)))
        self.after = np.concatenate((self.after, np.full(added, -1, np.int64)))
        self.fastest = np.concatenate((self.fastest, np.zeros(added, np.int64)))
        self.at_once = np.concatenate((self.at_once, np.zeros(added)))

    def _empty(self, rows: int, width: int) -> JobArrays:
        by_level = (rows, width)
        return JobArrays(
            worker=np.zeros((rows, self._resources), np.int64),
            ps=np.zeros((rows, self._resources), np.int64),
            levels=np.zeros(rows, np.int64),
            spread_levels=np.zeros(rows, np.int64),
            worker_counts=np.zeros(by_level, np.int64),
            ps_counts=np.zeros(by_level, np.int64),
            gains=np.zeros(by_level, np.int64),
            certain_gains=np.zeros(by_level, np.int64),
            starts_free=np.zeros(rows, np.bool_),
            hull_size=np.zeros(rows, np.int64),
            spread_hull_size=np.zeros(rows, np.int64),
            hull=np.zeros(by_level, np.int64),
            remaining=np.zeros(rows, np.int64),
            arrival=np.zeros(rows, np.int64),
            last_slot=np.zeros(rows, np.int64),
            worths=self._worths.columns,
            tenant=np.zeros(rows, np.int64),
        )


def upper_hull(workers: Integers, gains: Integers) -> Integers:
    """Return the levels on the upper hull of a curve through the origin, ascending.

    Points on a straight line of the hull belong to it, within the rounding of gains to units.

    Parameters
    ----------
    workers, gains : ndarray of int64, shape (levels,)
        Both strictly ascending.
    """
    x = np.concatenate(([0], workers)).astype(np.float64)
    y = np.concatenate(([0], gains)).astype(np.float64)
    if len(workers) == 1 or (np.diff(y / x.clip(1))[1:] == 0).all():
        return np.arange(len(workers), dtype=np.int64)
    kept = [0]
    for index in range(1, len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            # Remove b if it lies below the line from a to `index` by more than rounding.
            line = y[a] + (y[index] - y[a]) * (x[b] - x[a]) / (x[index] - x[a])
            if y[b] + 2.0 < line and y[b] < line * (1.0 - 1e-9):
                kept.pop()
            else:
                break
        kept.append(index)
    return np.array(kept[1:], dtype=np.int64) - 1

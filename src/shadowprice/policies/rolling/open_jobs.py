"""Open training jobs as arrays: demands, remaining work, promises and placements."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, Self

import numpy as np

from shadowprice.core import bounds
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.core.schedule import Placement
from shadowprice.core.utility import utility_value
from shadowprice.kernels.replanning.placement import Placements, compare_placements
from shadowprice.kernels.replanning.plans import JobArrays
from shadowprice.policies.placements import fit_counts
from shadowprice.policies.reactive.table import JobRows, increasing_positions, resized
from shadowprice.policies.reactive.worths import UtilityTable
from shadowprice.policies.rolling.quotas import Quotas

NO_LAST_SLOT: Final = int(np.iinfo(np.int64).max) // 16  # if a utility never expires
MIN_UTILITY_SHARE: Final = 1e-3  # of its maximum utility, below which a job counts as worthless
# Jobs that lose this part of a slot or more by a restart only get plans that never move: a plan
# that counts a restart in every slot would take more than three times as long.
_MAX_COUNTED_RESTART: Final = 0.7
# Maximum levels of a job in each mode. The arrays are as wide as the job with the most levels.
_MAX_LEVELS: Final = 1024
_NONE: Final = np.zeros(0, np.int64)
_POWERS_OF_TWO: Final = 1 << np.arange(NO_LAST_SLOT.bit_length() + 1)
_SECTIONS: Final = np.arange(1, 65)


class RunningJobs(NamedTuple):
    """Running jobs of a slot, and their progress in another slot with the same placements."""

    names: list[str]
    rows: Integers
    progress: Integers  # progress units that are certain


class OpenJobs(JobRows):
    """Open training jobs as rows; rows of removed jobs are reused.

    A *level* is a useful worker count in a *mode*: on several servers, or on one (`JobArrays`).
    If a restart costs a job `_MAX_COUNTED_RESTART` of a slot or more, `JobArrays.counted_gains` is
    0, so only plans that never move count on its progress.
    """

    promise: Integers  # completion slot; -1 without a promise
    restart_loss: Floats  # share of a slot that a change of placement costs
    level: Integers  # in the newest slot, as position in `JobArrays.worker_counts`; -1 for none
    # Whether the next start is a restart: the job ran before, or first starts count as restarts.
    start_costs: Flags
    slots_run: Integers  # number of slots in which it ran, including the present one; upper bound
    # Progress units that remain after the slot under way, if it yields what plans count on; -1 for
    # rows that don't run in it.
    expected_remaining: Integers
    max_gain: Integers  # maximum progress units in a slot, in either mode
    max_gain_colocated: Integers  # the same if every worker count fitted on one server
    gain_alone: Integers  # the same on the empty cluster, within the tenant's part of it
    full_utility: Floats  # of completing as early as `gain_alone` allows
    initial_utility: Floats  # of completing at once, as if the work took no time
    predicted: Flags  # whether the remaining work is a prediction (`limit_predictions`)
    unstoppable: Flags  # whether a stop would lose all work: it hasn't shown checkpoints
    # Whether plans must have one level without a pause. An elastic job that may still show
    # checkpoints may change its level in plans, because it can as soon as it shows one.
    keeps_level: Flags
    payable: Flags  # whether its tenant could pay for a promise

    def __init__(self, cluster: Cluster, until: int | None, quotas: Quotas) -> None:
        super().__init__(cluster)
        self._quotas = quotas
        self._colocation = ColocationFit(cluster)
        # Capacity and number of equal servers for workers, and for parameter servers.
        self._servers = [
            np.unique(cluster.capacity[hosts], axis=0, return_counts=True)
            for hosts in (cluster.hosts_workers, cluster.hosts_ps)
        ]
        self.until = until
        # Last slot in which a job may run.
        self.final_slot = NO_LAST_SLOT if until is None else until - 1
        for name, value in _COLUMNS.items():
            setattr(self, name, np.full(0, value))
        self._utilities = UtilityTable()
        arrays: dict[str, Any] = dict.fromkeys(JobArrays._fields, np.zeros(0, np.int64))
        arrays |= dict.fromkeys(("worker", "ps"), np.zeros((0, len(cluster.resources)), np.int64))
        arrays |= dict.fromkeys(_BY_LEVEL, np.zeros((0, 8), np.int64))
        arrays |= {"first_start_free": np.zeros(0, np.bool_), "worths": self._utilities.columns}
        self.arrays = JobArrays(**arrays)
        self._next = self.placements = Placements.empty(0)

    def copy(self) -> Self:
        """Return a copy that shares no array with this table."""
        copied = copy.copy(self)
        for name, value in vars(self).items():
            setattr(copied, name, _copy_arrays(value))
        copied._utilities = copy.copy(self._utilities)
        copied._utilities.columns = copied.arrays.worths
        return copied

    # ---------------------------------------------------------------- rows

    @property
    def row_count(self) -> int:
        """Number of rows, used or not."""
        return len(self.promise)

    def add(self, job: Job) -> int:
        """Add a job; return its row."""
        row = super().add(job)
        # Levels are worker counts on several servers, then those on one server if that is faster.
        spread, colocated = increasing_positions(job.gains), self._colocation.choices(job)
        colocated = colocated[increasing_positions(job.internal_gains[colocated])]
        spread, colocated = _thinned(spread), _thinned(colocated)
        chosen = np.concatenate((spread, colocated))
        workers, ps_counts = job.worker_counts[chosen], job.ps_counts[chosen]
        gains = np.concatenate((job.gains[spread], job.internal_gains[colocated]))
        restart_gains = job.moved_gains[spread], job.restart_internal_gains[colocated]  # by mode
        self._widen(len(workers))
        tenant = self._quotas.row_of(self._cluster, job)
        fits = self._fits_alone(tenant, job, workers, ps_counts)
        self.gain_alone[row] = int(gains[fits].max(initial=0))
        self._enter_utility(row, job)
        arrays = self.arrays
        count, spread_count = len(workers), len(spread)
        arrays.worker[row] = job.worker
        arrays.ps[row] = 0 if job.ps is None else job.ps
        arrays.levels[row] = count
        arrays.worker_counts[row, :count] = workers
        arrays.ps_counts[row, :count] = ps_counts
        arrays.gains[row, :count] = gains
        arrays.counted_gains[row, :count] = np.concatenate(restart_gains)
        arrays.spread_levels[row] = spread_count
        hull = upper_hull(workers[:spread_count], gains[:spread_count])
        arrays.spread_hull_size[row] = len(hull)
        if count > spread_count:
            colocated_hull = upper_hull(workers[spread_count:], gains[spread_count:])
            hull = np.concatenate((hull, spread_count + colocated_hull))
        arrays.hull_size[row] = len(hull)
        arrays.hull[row, : len(hull)] = hull
        arrays.remaining[row] = job.required
        self.predicted[row] = job.predicted
        self.payable[row] = job.payable > 0
        self.unstoppable[row] = job.resumable is not True
        self.keeps_level[row] = job.resumable is False or (job.resumable is None and count == 1)
        arrays.arrival[row] = job.arrival
        arrays.tenant[row] = tenant
        loss = self.restart_loss[row] = float(job.restart)
        self.start_costs[row] = self._cluster.restart_first
        arrays.first_start_free[row] = 0 < loss < _MAX_COUNTED_RESTART and not self.start_costs[row]
        if loss >= _MAX_COUNTED_RESTART:
            arrays.counted_gains[row] = 0
        self.slots_run[row] = 0
        self.max_gain[row] = int(gains.max())
        self.max_gain_colocated[row] = int(job.internal_gains.max())
        self.limit_predictions(job.arrival)
        return row

    def revise_length(self, job: Job) -> None:
        """Replace the description of an open job of which only work and utility changed."""
        row = self.rows[job.name]
        self.jobs[row] = job
        self._enter_utility(row, job)

    def _enter_utility(self, row: int, job: Job) -> None:
        """Set everything that depends on the utility of a job."""
        self._utilities.enter(row, job.utility)
        self.arrays = self.arrays._replace(worths=self._utilities.columns)
        self.arrays.last_slot[row] = self._last_slot(job, self.final_slot)
        gain = int(self.gain_alone[row])
        self.full_utility[row] = (
            utility_value(job.utility, -(-job.required // gain) - 1) if gain else 0.0
        )
        self.initial_utility[row] = utility_value(job.utility, 0)

    def _fits_alone(self, tenant: int, job: Job, workers: Integers, ps_counts: Integers) -> Flags:
        """Return which worker counts fit into the empty cluster and the tenant's part of it.

        The test is optimistic: workers don't compete with parameter servers, and lost servers count
        as up.
        """
        ps = np.zeros_like(job.worker) if job.ps is None else job.ps
        on_workers, on_ps = (
            fit_counts(capacity, demand) @ count
            for (capacity, count), demand in zip(self._servers, (job.worker, ps), strict=True)
        )
        fits = (workers <= on_workers) & (ps_counts <= on_ps)
        if self._quotas.has_shares:
            limit = self._quotas.headroom(np.zeros_like(self._quotas.share), tenant)
            used = workers[:, None] * job.worker + ps_counts[:, None] * ps
            fits &= ((used <= limit) | (limit < 0)).all(axis=1)  # negative: not shared out
        return np.asarray(fits, np.bool_)

    def restore_job(
        self, state: JobState, before: OpenJobs, slot: int, running_slot: int | None
    ) -> None:
        """Add an open job when the policy resyncs, with its promise and placement.

        ``running_slot`` is the slot in progress if the job runs in it. The progress expected in
        this slot comes from ``before``, or else from the placement; without it, every promise would
        seem a slot late.
        """
        row = self.add(state.job)
        arrays = self.arrays
        arrays.remaining[row] = state.remaining
        self.promise[row] = -1 if state.promise is None else state.promise
        is_first_run = state.started == running_slot and not self.start_costs[row]
        self.start_costs[row] |= state.started is not None
        arrays.first_start_free[row] &= not self.start_costs[row]
        old_row = before.rows.get(state.job.name)
        if old_row is not None:
            self.slots_run[row] = before.slots_run[old_row]
        elif state.started is not None:
            self.slots_run[row] = slot - state.started
        if state.placement is not None:
            placement = state.placement.servers, state.placement.workers, state.placement.ps
            self.placements = self.placements.replaced(row, *map(np.array, placement))
            spread_count, levels = int(arrays.spread_levels[row]), int(arrays.levels[row])
            colocated = state.placement.colocated and levels > spread_count
            first, end = (spread_count, levels) if colocated else (0, spread_count)
            workers = arrays.worker_counts[row, first:end]
            index = int(np.searchsorted(workers, state.placement.total_workers))
            level = self.level[row] = first + min(index, len(workers) - 1)
            if running_slot is not None:
                gains = arrays.gains if is_first_run else arrays.counted_gains
                self.expected_remaining[row] = max(state.remaining - int(gains[row, level]), 0)
        if old_row is not None and before.jobs[old_row] is state.job:
            self.expected_remaining[row] = before.expected_remaining[old_row]

    def remove(self, name: str) -> int:
        """Remove a job; return its former row."""
        row = super().remove(name)
        for column, value in _COLUMNS.items():
            getattr(self, column)[row] = value
        return row

    def name(self, row: int) -> str:
        """Return the name of a row's job."""
        return self.job(row).name

    # ---------------------------------------------------------------- work and time

    def refresh(self, view: View) -> bool:
        """Update the remaining work of all jobs; return whether some of it is an estimate.

        Plans begin with the next slot. While a slot is under way, its planned progress therefore
        counts as done; otherwise promises with little slack would seem broken at every arrival.
        """
        remaining, states, is_estimate = self.arrays.remaining, view.open_jobs, False
        for name, row in self.rows.items():
            remaining[row] = states[name].remaining
            if view.runs(name):
                is_estimate = True
                if self.expected_remaining[row] >= 0:
                    remaining[row] = min(remaining[row], self.expected_remaining[row])
        self.limit_predictions(view.slot)
        return is_estimate

    def refresh_unstoppable(self, view: View) -> None:
        """Clear the mark of jobs that have shown checkpoints since, and of all in a simulation."""
        states = view.open_jobs
        for row in np.flatnonzero(self.unstoppable).tolist():
            state = states.get(self.name(row))  # None for the job of a quote
            if not view.may_have_unstoppable_jobs or (
                state is not None and state.job.resumable is True
            ):
                self.unstoppable[row] = self.keeps_level[row] = False

    def limit_predictions(self, slot: int) -> None:
        """Limit predicted work to what a job can do from a slot on while it has a utility.

        Beyond that, the job earns nothing if the prediction is right, and plans only matter if it
        is too long. So plans count on the most work with which the job still earns something.
        """
        rows = np.flatnonzero(self.predicted)
        if len(rows):
            arrays = self.arrays
            # Gains ascend in each of the two modes; a row may have entries of an earlier job.
            spread, colocated = arrays.spread_levels[rows] - 1, arrays.levels[rows] - 1
            gains = arrays.counted_gains
            counted = np.maximum(gains[rows, spread], gains[rows, colocated])
            gain = np.where(counted > 0, counted, self.max_gain[rows])
            slots = np.clip(arrays.last_slot[rows] - slot + 1, 1, bounds.JOB_SLOTS.maximum)
            remaining = arrays.remaining[rows]
            # Never more slots than the work takes, so that the product fits into int64.
            slots = np.minimum(slots, -(-remaining // gain))
            arrays.remaining[rows] = np.minimum(remaining, gain * slots)

    def record_levels(self, rows: Integers, level: Integers, unmoved: Flags) -> None:
        """Record the levels of the slot that begins, -1 for none, and its expected progress.

        Rows with ``unmoved`` keep their pinned placement, so they don't restart.
        """
        arrays = self.arrays
        self.level[rows] = level
        progress = self._progress(rows, unmoved | ~self.start_costs[rows])
        remaining = np.maximum(arrays.remaining[rows] - progress, 0)
        self.expected_remaining[rows] = np.where(level >= 0, remaining, -1)
        self.start_costs[rows] |= level >= 0
        self.slots_run[rows] += level >= 0
        arrays.first_start_free[rows] &= ~self.start_costs[rows]

    def _progress(self, rows: Integers, no_restart: Flags) -> Integers:
        """Return the progress units that plans count on for rows in a slot at their levels."""
        arrays, level = self.arrays, np.maximum(self.level[rows], 0)
        progress = np.where(
            no_restart, arrays.gains[rows, level], arrays.counted_gains[rows, level]
        )
        return np.asarray(progress, np.int64)

    def running_jobs(self, pinned: Collection[int]) -> RunningJobs:
        """Return the running jobs; all but pinned rows count on a restart in each slot."""
        rows = self.in_order()
        rows = rows[self.level[rows] >= 0]
        no_restart = np.isin(rows, list(pinned)) if pinned else np.zeros(len(rows), np.bool_)
        progress = self._progress(rows, no_restart)
        return RunningJobs([self.name(row) for row in rows.tolist()], rows, progress)

    def record_held_slots(
        self, view: View, running: RunningJobs, progress: Mapping[str, int], slots: int
    ) -> int:
        """Record up to ``slots`` more slots with the same placements; return how many.

        A slot is only held if every running job made its planned progress before it. If a job
        didn't before the first slot, the result is 0, and only remaining work is recorded. In slots
        before the last one, jobs make ``progress`` (units a slot), and no job completes.
        """
        states, rows = view.open_jobs, running.rows
        # A loop over all jobs, as in `refresh`, would take most of the time of a held slot.
        self.arrays.remaining[rows] = [states[name].remaining for name in running.names]
        self.limit_predictions(view.slot)
        remaining = self.arrays.remaining[rows]
        if (remaining > self.expected_remaining[rows]).any():
            return 0
        if slots > 1:
            gained = np.array([progress.get(name, 0) for name in running.names], np.int64)
            # The limit of predictions changes in every slot.
            if (gained < running.progress).any() or self.predicted.any():
                slots = 1
            remaining -= (slots - 1) * gained
            self.arrays.remaining[rows] = remaining
        self.expected_remaining[rows] = np.maximum(remaining - running.progress, 0)
        self.slots_run[rows] += slots
        return slots

    def expected_gains(self, rows: Integers) -> Integers:
        """Return `JobArrays.counted_gains` with expected instead of certain progress of ``rows``.

        A waiting job counts with its full gains. A running job restarts unless it stays at its
        level. On higher levels it counts as if it stayed, or as if it restarted in every slot,
        whichever yields more.
        """
        arrays, level = self.arrays, self.level[rows, None]
        gains = arrays.gains[rows]
        at_current = np.take_along_axis(gains, np.maximum(level, 0), axis=1)
        staying = np.where(np.arange(gains.shape[1]) >= level, at_current, 0)
        expected = arrays.counted_gains.copy()
        expected[rows] = np.where(level < 0, gains, np.maximum(expected[rows], staying))
        return expected

    def amounts(self, rows: Integers, levels: Integers) -> Integers:
        """Return the usage of each row at its level in ``levels``, shape (rows, resources)."""
        arrays = self.arrays
        workers, ps_counts = arrays.worker_counts[rows, levels], arrays.ps_counts[rows, levels]
        total = workers[:, None] * arrays.worker[rows] + ps_counts[:, None] * arrays.ps[rows]
        return np.asarray(total, np.int64)

    def useful_amounts(self, rows: Integers) -> Integers:
        """Return the most that rows could use of each resource in a slot, shape (rows, resources).

        In each mode, take the lowest level that completes the job in this slot, else the highest
        level. A job that completes at its current level needs no more than that level.
        """
        arrays = self.arrays
        gains, remaining = arrays.gains[rows], arrays.remaining[rows, None]
        completes, column = gains >= remaining, np.arange(gains.shape[1])
        ends = arrays.spread_levels[rows], arrays.levels[rows]  # of the levels of each mode
        useful = np.zeros((len(rows), arrays.worker.shape[1]), np.int64)
        for first, end in ((np.zeros_like(ends[0]), ends[0]), ends):
            inside = (column >= first[:, None]) & (column < end[:, None])
            lowest = np.argmax(completes & inside, axis=1)
            level = np.where((completes & inside).any(axis=1), lowest, end - 1)
            amounts = self.amounts(rows, np.maximum(level, 0))
            useful = np.maximum(useful, np.where((end > first)[:, None], amounts, 0))
        level = self.level[rows]
        done = (level >= 0) & completes[np.arange(len(rows)), level]
        useful[done] = self.amounts(rows[done], level[done])
        return useful

    def min_slots(self, rows: Integers) -> Integers:
        """Return the minimum number of slots that each row needs for its remaining work."""
        fastest = np.maximum(self.max_gain[rows], self.max_gain_colocated[rows])
        return np.asarray(-(-self.arrays.remaining[rows] // fastest), np.int64)

    def only_after_end(self, job: Job, completion: int) -> bool:
        """Return whether a completion slot is too late only because it is after the timespan."""
        return self.final_slot < completion <= self._last_slot(job, NO_LAST_SLOT)

    def _last_slot(self, job: Job, final: int) -> int:
        """Return the last slot, up to ``final``, in which completing has a utility that counts."""
        shortest = 0 if job.predicted else job.min_slots_colocated - 1
        best = float(job.utility.values(np.array([shortest], np.float64))[0])
        low, high = job.arrival + shortest, final
        if best <= 0.0 or low > high:
            return job.arrival - 1
        # Utilities never rise, so search by sections; one call evaluates some sixty slots. First
        # take steps of powers of two, because `final` may be far away; then 64 equal sections.
        steps = np.minimum(_POWERS_OF_TWO, high - low)
        while low < high:
            slots = low + np.unique(np.minimum(steps, high - low))
            values = job.utility.values((slots - job.arrival).astype(np.float64))
            useful_count = int(np.count_nonzero(values >= MIN_UTILITY_SHARE * best))
            if useful_count == len(slots):
                return high
            high = int(slots[useful_count]) - 1
            low = int(slots[useful_count - 1]) if useful_count else low
            steps = _SECTIONS * max(1, -(-(high - low) // len(_SECTIONS)))
        return low

    # ---------------------------------------------------------------- placements

    def clear(self, row: int) -> None:
        """Record that a job has no placement."""
        self.placements.size[row] = 0
        self.level[row] = -1

    def usage(self) -> Integers:
        """Return the usage of all current placements, shape (servers, resources)."""
        arrays, usage = self.arrays, np.zeros_like(self._cluster.capacity)
        for row in self.rows.values():
            server, workers, ps = self.placements.of_row(row)
            amount = workers[:, None] * arrays.worker[row] + ps[:, None] * arrays.ps[row]
            np.add.at(usage, server, amount)
        return usage

    def moves(self, rows: Integers, following: Placements) -> Flags:
        """Return which rows would change their placement."""
        return np.asarray(compare_placements(rows, self.placements, following) != 0)

    def move(self, rows: Integers, following: Placements) -> Iterator[Decision]:
        """Yield the changes of rows to the placements ``following``, which become current."""
        self._next = following
        yield from self._move(rows, compare_placements(rows, self.placements, following))
        self.placements = following

    def _placement(self, row: int) -> Placement:
        return Placement(*(tuple(part.tolist()) for part in self._next.of_row(row)))

    # ---------------------------------------------------------------- capacity of the arrays

    def _grow(self, size: int) -> None:
        self._resize_arrays(size, self.arrays.gains.shape[1])
        for name, value in _COLUMNS.items():
            setattr(self, name, resized(getattr(self, name), (size,), value))
        first, count = (resized(part, (size,)) for part in self.placements[:2])
        self.placements = self.placements._replace(first=first, size=count)

    def _widen(self, levels: int) -> None:
        if levels > self.arrays.gains.shape[1]:
            self._resize_arrays(self.row_count, 1 << (levels - 1).bit_length())

    def _resize_arrays(self, rows: int, width: int) -> None:
        """Change the size of all arrays but `worths`, which grows by itself."""
        columns = self.arrays._asdict()
        for name in JobArrays._fields[:-1]:
            wide = (width,) if name in _BY_LEVEL else columns[name].shape[1:]
            columns[name] = resized(columns[name], (rows, *wide))
        self.arrays = JobArrays(**columns)


_BY_LEVEL: Final = ("worker_counts", "ps_counts", "gains", "counted_gains", "hull")

_UNUSED: Final = {"Integers": -1, "Floats": 0.0, "Flags": False}
_COLUMNS: Final = {name: _UNUSED[kind] for name, kind in OpenJobs.__annotations__.items()}
"""Columns besides `JobArrays` and placements, and their values in an unused row."""


def _thinned(positions: Integers) -> Integers:
    """Return at most `_MAX_LEVELS` positions: half are the first ones, the rest ever sparser."""
    count, dense = len(positions), _MAX_LEVELS // 2
    if count <= _MAX_LEVELS:
        return positions
    sparse = np.geomspace(dense, count - 1, _MAX_LEVELS - dense).round().astype(np.int64)
    return positions[np.unique(np.concatenate((np.arange(dense), sparse)))]


class ColocationFit:
    """Computes the worker counts with which a job fits on one server of a cluster.

    Lost servers count too, because planning checks the free capacity.
    """

    def __init__(self, cluster: Cluster) -> None:
        both = cluster.hosts_workers & cluster.hosts_ps
        self._worker_capacities = np.unique(cluster.capacity[cluster.hosts_workers], axis=0)
        self._both_capacities = np.unique(cluster.capacity[both], axis=0)

    def choices(self, job: Job) -> Integers:
        """Return the positions of worker counts that fit on one server, if that is faster."""
        if not job.two_rates:
            return _NONE
        demand = job.worker_counts[:, None] * job.worker
        servers = self._worker_capacities
        if job.ps is not None:
            demand = demand + job.ps_counts[:, None] * job.ps
            servers = self._both_capacities
        too_large = (demand[:, None, :] > servers).any(axis=2)
        return np.flatnonzero(~np.all(too_large, axis=1))


def upper_hull(workers: Integers, gains: Integers) -> Integers:
    """Return the levels on the upper hull of a curve through the origin, ascending.

    Workers and gains are strictly ascending. A point on an edge of the hull belongs to it, also if
    the rounding of gains to units puts it slightly below.
    """
    x = np.concatenate(([0], workers)).astype(np.float64)
    y = np.concatenate(([0], gains)).astype(np.float64)
    if len(workers) == 1 or (np.diff(y / x.clip(1))[1:] == 0).all():
        return np.arange(len(workers), dtype=np.int64)  # a proportional curve is its own hull
    kept = [0]
    for index in range(1, len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            # Remove b if it is below the line from a to `index` by more than rounding (2 units).
            line = y[a] + (y[index] - y[a]) * (x[b] - x[a]) / (x[index] - x[a])
            if y[b] + 2.0 < line and y[b] < line * (1.0 - 1e-9):
                kept.pop()
            else:
                break
        kept.append(index)
    return np.array(kept[1:], dtype=np.int64) - 1


def _copy_arrays(value: Any) -> Any:
    """Return a copy of an array or a collection; jobs and other objects are shared."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_copy_arrays, value))
    return value.copy() if isinstance(value, np.ndarray | dict | list) else value

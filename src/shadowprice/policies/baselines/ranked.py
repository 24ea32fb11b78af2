"""Preemptive baselines, which run the jobs of fixed worker counts that fit, in an order.

`SrtfPolicy` orders jobs by remaining run time. `LasPolicy` is discretised least attained service
with the two queues of Tiresias (Gu et al., NSDI 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Self, TypeVar

import numpy as np

from shadowprice.core.amounts import MILLI, parse_duration
from shadowprice.core.arrays import Integers
from shadowprice.core.devices import gpus_of_worker
from shadowprice.core.events import Decision
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.kernels.reactive.places import run_in_order
from shadowprice.policies.baselines import FixedWorkersParameters, LasParameters, SrtfParameters
from shadowprice.policies.reactive.base import TableReactivePolicy

P = TypeVar("P", bound=FixedWorkersParameters)


class FixedWorkersPolicy(TableReactivePolicy[P]):
    """Base of policies with a fixed worker count per job; subclasses add columns to the table."""

    capabilities: ClassVar = Capabilities(wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        super().__init__(context, parameters)
        self._columns = self._table.columns
        self._table.add_columns("workers", "ps")

    def _target_worker_count(self, job: Job) -> int:
        return self._parameters.worker_count(job, self._context.seed)

    def _enter(self, job: Job, workers: int) -> None:
        row = self._table.add(job)
        self._columns["workers"][row] = workers
        self._columns["ps"][row] = job.ps_needed(workers)
        self._fill_columns(job, row)

    def _fill_columns(self, job: Job, row: int) -> None:
        """Fill a subclass's columns of a job that was added to the table."""

    def _place_in_order(self, view: View, order: Integers) -> Iterator[Decision]:
        """Place jobs in this order of rows, skip those that don't fit, and yield the changes."""
        # Jobs that can't stop keep their places, and `capacity` is what they leave.
        order, capacity = self._movable(view, order)
        change = np.zeros(len(order), dtype=np.int64)
        run_in_order(
            capacity, order, self._table.places, self._columns["workers"],
            self._columns["ps"], self._cursors, change,
        )  # fmt: skip
        yield from self._table.rearrange(order, change)


class PreemptiveQueuePolicy(FixedWorkersPolicy[P]):
    """Admit every job that fits the empty cluster, and run jobs in an order.

    A job that doesn't fit beside the jobs before it pauses, but later jobs may still fit. If
    neither jobs nor their order have changed, nothing is placed again.
    """

    capabilities: ClassVar = Capabilities(wakes_every_slot=True, holds=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        super().__init__(context, parameters)
        self._last_order: Integers = np.zeros(0, dtype=np.int64)  # of the last placement

    def _order(self, view: View, rows: Integers) -> Integers:
        """Return the rows of open jobs in the order to run; ``rows`` is in order of arrival."""
        raise NotImplementedError

    def _record_running(self, rows: Integers) -> None:
        """Record which jobs run in the coming slot (``table.is_placed``) and which wait."""

    def _begin(self, view: View) -> Iterator[Decision]:
        rows = self._table.in_order()
        if not len(rows):
            return
        ranked = self._order(view, rows)
        if self._changed or not np.array_equal(ranked, self._last_order):
            self._changed = False
            self._last_order = ranked
            yield from self._place_in_order(view, ranked)
        self._record_running(rows)


class SrtfPolicy(PreemptiveQueuePolicy[SrtfParameters]):
    """Run jobs in order of remaining slots, or of remaining GPU-time."""

    def __init__(self, context: PolicyContext, parameters: SrtfParameters) -> None:
        super().__init__(context, parameters)
        self._by_service = parameters.by == "service"
        self._table.add_columns("gain", "internal_gain", "must_colocate", "gpus")

    def _fill_columns(self, job: Job, row: int) -> None:
        workers = int(self._columns["workers"][row])
        self._columns["gain"][row] = job.gain(workers)
        self._columns["internal_gain"][row] = job.gain(workers, colocated=True)
        self._columns["must_colocate"][row] = self._must_colocate(job, workers)
        self._columns["gpus"][row] = workers * gpus_of_worker(job, self._cluster)

    def _order(self, view: View, rows: Integers) -> Integers:
        if not self._changed:
            # Only running jobs got shorter, so none falls behind a waiting job, and the same jobs
            # would run.
            return self._last_order
        states = view.open_jobs
        # `rows` is in the order of `self._table.rows`.
        remaining = np.array([states[name].remaining for name in self._table.rows], dtype=np.int64)
        # A running job's rate follows from its placement. A waiting job has the internal rate only
        # if every placement is co-located.
        colocated = self._columns["must_colocate"][rows] > 0
        for index, name in enumerate(self._table.rows):
            placement = states[name].placement
            if placement is not None:
                colocated[index] = placement.colocated
        internal, gain = self._columns["internal_gain"][rows], self._columns["gain"][rows]
        slots = -(-remaining // np.where(colocated, internal, gain))
        key = slots * self._columns["gpus"][rows] if self._by_service else slots
        return rows[np.argsort(key, kind="stable")]

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        del view, names
        self._changed = True

    def _must_colocate(self, job: Job, workers: int) -> bool:
        """Return whether every placement of the job is on one server."""
        if workers == 1 and not job.ps_needed(workers):
            return True
        cluster = self._cluster
        usable = cluster.hosts_workers & (cluster.capacity >= job.worker).all(axis=1)
        if job.ps is not None:
            usable |= cluster.hosts_ps & (cluster.capacity >= job.ps).all(axis=1)
        return int(usable.sum()) == 1


_HISTORY: Final = ("queue", "position", "ran", "waited")
"""Integer columns that depend on a job's past; ``queue`` is 0 for the first, 1 for the second."""


class LasPolicy(PreemptiveQueuePolicy[LasParameters]):
    """Run jobs with little attained GPU-time first.

    Within a queue, jobs that ran in the last slot come first, so that equal jobs don't preempt each
    other. Otherwise the order of entry holds.

    A job starts in the first queue. It moves to the end of the second queue when its GPU-time
    reaches the threshold. It returns to the end of the first queue, with a GPU-time of 0, when it
    has waited ``promote`` times as long as it ran; both times count from its last return.
    """

    def __init__(self, context: PolicyContext, parameters: LasParameters) -> None:
        super().__init__(context, parameters)
        slots = parse_duration(parameters.threshold).in_slots(context.cluster.slot_seconds)
        # In thousandths of a GPU times slots. Rounding up changes nothing, because attained times
        # are integers in this unit.
        self._threshold = -(-slots * MILLI // 1)
        self._promote = parameters.promote
        self._table.add_columns("gpus", *_HISTORY)  # `gpus` in thousandths
        self._table.add_columns("runs", dtype=np.bool_)
        self._next_position = 0

    def _fill_columns(self, job: Job, row: int) -> None:
        columns = self._columns
        columns["gpus"][row] = columns["workers"][row] * gpus_of_worker(job, self._cluster)
        columns["queue"][row] = columns["ran"][row] = columns["waited"][row] = 0
        columns["runs"][row] = False
        columns["position"][row] = self._take_positions(1)[0]

    def _order(self, view: View, rows: Integers) -> Integers:
        del view  # attained time follows from which jobs ran
        columns = self._columns
        queue, ran, waited = (columns[name][rows] for name in ("queue", "ran", "waited"))
        runs = columns["runs"][rows]
        demoted = rows[runs & (queue == 0) & (ran * columns["gpus"][rows] >= self._threshold)]
        columns["queue"][demoted] = 1
        columns["position"][demoted] = self._take_positions(len(demoted))
        if self._promote:
            starved = ~runs & (queue == 1) & (waited >= self._promote * ran)
            promoted = rows[starved]
            columns["queue"][promoted] = 0
            columns["ran"][promoted] = columns["waited"][promoted] = 0
            columns["position"][promoted] = self._take_positions(len(promoted))
        return rows[np.lexsort((columns["position"][rows], columns["queue"][rows]))]

    def hold(self, view: View, progress: Mapping[str, int], slots: int) -> int:
        """Return the number of slots until a job changes its queue, and count these slots."""
        del view, progress
        rows, columns = self._table.in_order(), self._columns
        ranked = rows[np.lexsort((columns["position"][rows], columns["queue"][rows]))]
        if self._changed or not np.array_equal(ranked, self._last_order):
            return 0
        runs, second = columns["runs"][rows], columns["queue"][rows] == 1
        attaining = rows[runs & ~second & (columns["gpus"][rows] > 0)]
        needed = -(-self._threshold // columns["gpus"][attaining])
        slots = min(slots, (needed - columns["ran"][attaining]).min(initial=slots))
        if self._promote:
            starving = rows[~runs & second]
            needed = np.ceil(self._promote * columns["ran"][starving])
            slots = min(slots, (needed - columns["waited"][starving]).min(initial=slots))
        if slots <= 0:
            return 0
        self._record_running(rows, int(slots))
        return int(slots)

    def _record_running(self, rows: Integers, slots: int = 1) -> None:
        columns = self._columns
        runs = self._table.is_placed[rows]
        columns["runs"][rows] = runs
        columns["ran"][rows[runs]] += slots
        # Waiting counts from a job's first run since it entered the first queue.
        waiting = rows[~runs]
        columns["waited"][waiting[columns["ran"][waiting] > 0]] += slots
        # Number all jobs again, running jobs first.
        order = np.lexsort((columns["position"][rows], ~runs))
        columns["position"][rows[order]] = np.arange(len(rows))
        self._next_position = len(rows)

    def _take_positions(self, count: int) -> Integers:
        positions = self._next_position + np.arange(count)
        self._next_position += count
        return positions

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        super()._restore_job(view, state, before)
        row, old_row = self._table.rows[state.job.name], before._table.rows.get(state.job.name)
        if old_row is not None:
            for name in (*_HISTORY, "runs"):
                self._columns[name][row] = before._columns[name][old_row]

    def _keep_learnt_state(self, before: Self) -> None:
        # Open jobs keep their positions, so new jobs need larger ones.
        self._next_position = max(self._next_position, before._next_position)

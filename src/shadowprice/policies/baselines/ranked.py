"""Preemptive baselines: jobs of fixed worker counts run in an order while they fit.

`SrtfPolicy` knows the remaining run times. `LasPolicy` is discretised least attained service:
Tiresias's two queues (Gu et al., NSDI 2019).
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
    """Base with a fixed worker count per job; a subclass adds ``_columns`` by table row."""

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
        """Fill the extra columns of a job that entered the table."""

    def _place_in_order(self, view: View, order: Integers) -> Iterator[Decision]:
        """Place jobs in the given order of rows and yield the changes."""
        order, capacity = self._movable(view, order)
        change = np.zeros(len(order), dtype=np.int64)
        run_in_order(
            capacity, order, self._table.places, self._columns["workers"],
            self._columns["ps"], self._cursors, change,
        )  # fmt: skip
        yield from self._table.rearrange(order, change)


class PreemptiveQueuePolicy(FixedWorkersPolicy[P]):
    """Admit every job that fits the empty cluster, and run jobs in an order while they fit.

    A job that doesn't fit beside those before it pauses, and smaller jobs behind it run. In a slot
    in which neither the jobs nor their order changed, only the order is computed.
    """

    capabilities: ClassVar = Capabilities(wakes_every_slot=True, holds=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        super().__init__(context, parameters)
        self._ran_in: Integers = np.zeros(0, dtype=np.int64)

    def _order(self, view: View, rows: Integers) -> Integers:
        """Return the rows of the open jobs, given in order of arrival, in the order to run."""
        raise NotImplementedError

    def _record_running(self, rows: Integers) -> None:
        """Record which jobs run in the coming slot (``table.is_placed``) and which wait."""

    def _begin(self, view: View) -> Iterator[Decision]:
        rows = self._table.in_order()
        if not len(rows):
            return
        ranked = self._order(view, rows)
        if self._changed or not np.array_equal(ranked, self._ran_in):
            self._changed = False
            self._ran_in = ranked
            yield from self._place_in_order(view, ranked)
        self._record_running(rows)


class SrtfPolicy(PreemptiveQueuePolicy[SrtfParameters]):
    """Run jobs in order of remaining slots, or GPU-time, at their fixed worker count."""

    def __init__(self, context: PolicyContext, parameters: SrtfParameters) -> None:
        super().__init__(context, parameters)
        self._by_service = parameters.by == "service"
        self._table.add_columns("gain", "internal", "together", "width")

    def _fill_columns(self, job: Job, row: int) -> None:
        workers = int(self._columns["workers"][row])
        self._columns["gain"][row] = job.gain(workers)
        self._columns["internal"][row] = job.gain(workers, colocated=True)
        self._columns["together"][row] = self._must_colocate(job, workers)
        self._columns["width"][row] = workers * gpus_of_worker(job, self._cluster)

    def _order(self, view: View, rows: Integers) -> Integers:
        if not self._changed:
            # Running jobs only got shorter, and they already precede the waiting jobs.
            return self._ran_in
        states = view.open_jobs
        remaining = np.array([states[name].remaining for name in self._table.rows], dtype=np.int64)
        # A running job's rate follows from its placement; a waiting job counts as co-located only
        # if no other placement exists.
        together = self._columns["together"][rows] > 0
        for index, name in enumerate(self._table.rows):
            placement = states[name].placement
            if placement is not None:
                together[index] = placement.colocated
        internal, gain = self._columns["internal"][rows], self._columns["gain"][rows]
        slots = -(-remaining // np.where(together, internal, gain))
        key = slots * self._columns["width"][rows] if self._by_service else slots
        return rows[np.argsort(key, kind="stable")]

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        del view, names
        self._changed = True

    def _must_colocate(self, job: Job, workers: int) -> bool:
        """Return whether exactly one server can carry processes of the job, so it is co-located."""
        if workers == 1 and not job.ps_needed(workers):
            return True
        cluster = self._cluster
        usable = cluster.hosts_workers & (cluster.capacity >= job.worker).all(axis=1)
        if job.ps is not None:
            usable |= cluster.hosts_ps & (cluster.capacity >= job.ps).all(axis=1)
        return int(usable.sum()) == 1


_HISTORY: Final = ("queue", "place", "ran", "waited")
"""Columns of integers that follow from the past of a job, not from its specification."""


class LasPolicy(PreemptiveQueuePolicy[LasParameters]):
    """Run jobs with little attained GPU-time first; within a queue, in order of entry.

    A job starts in the first queue and moves to the end of the second when it has attained its
    threshold of GPU-time. It returns to the end of the first queue when it has waited ``promote``
    times as long as it ran, both counted since it was last in the first queue. Its attained time is
    then reset. Within a queue, jobs that ran in the last slot precede the others, so that equal
    jobs don't preempt each other.
    """

    def __init__(self, context: PolicyContext, parameters: LasParameters) -> None:
        super().__init__(context, parameters)
        slots = parse_duration(parameters.threshold).in_slots(context.cluster.slot_seconds)
        # In thousandths of a GPU times slots. Rounding up is exact because attained time is an
        # integer of this unit.
        self._threshold = -(-slots * MILLI // 1)
        self._promote = parameters.promote
        self._table.add_columns("width", *_HISTORY)
        self._table.add_columns("runs", dtype=np.bool_)
        self._last_place = 0

    def _fill_columns(self, job: Job, row: int) -> None:
        columns = self._columns
        columns["width"][row] = columns["workers"][row] * gpus_of_worker(job, self._cluster)
        columns["queue"][row] = columns["ran"][row] = columns["waited"][row] = 0
        columns["runs"][row] = False
        columns["place"][row] = self._next_places(1)[0]

    def _order(self, view: View, rows: Integers) -> Integers:
        del view  # attained time follows from which jobs ran
        columns = self._columns
        queue, ran, waited = (columns[name][rows] for name in ("queue", "ran", "waited"))
        runs = columns["runs"][rows]
        demoted = rows[runs & (queue == 0) & (ran * columns["width"][rows] >= self._threshold)]
        columns["queue"][demoted] = 1
        columns["place"][demoted] = self._next_places(len(demoted))
        if self._promote:
            starved = ~runs & (queue == 1) & (waited >= self._promote * ran)
            promoted = rows[starved]
            columns["queue"][promoted] = 0
            columns["ran"][promoted] = columns["waited"][promoted] = 0
            columns["place"][promoted] = self._next_places(len(promoted))
        return rows[np.lexsort((columns["place"][rows], columns["queue"][rows]))]

    def hold(self, view: View, progress: Mapping[str, int], slots: int) -> int:
        """Keep all jobs where they run until one changes its queue."""
        del view, progress
        rows, columns = self._table.in_order(), self._columns
        ranked = rows[np.lexsort((columns["place"][rows], columns["queue"][rows]))]
        if self._changed or not np.array_equal(ranked, self._ran_in):
            return 0
        runs, second = columns["runs"][rows], columns["queue"][rows] == 1
        attaining = rows[runs & ~second & (columns["width"][rows] > 0)]
        needed = -(-self._threshold // columns["width"][attaining])
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
        # A job that never ran is in the first queue, where waiting doesn't count.
        waiting = rows[~runs]
        columns["waited"][waiting[columns["ran"][waiting] > 0]] += slots
        order = np.lexsort((columns["place"][rows], ~runs))
        columns["place"][rows[order]] = np.arange(len(rows))
        self._last_place = len(rows)

    def _next_places(self, count: int) -> Integers:
        places = self._last_place + np.arange(count)
        self._last_place += count
        return places

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        super()._restore_job(view, state, before)
        row, old_row = self._table.rows[state.job.name], before._table.rows.get(state.job.name)
        if old_row is not None:
            for name in (*_HISTORY, "runs"):
                self._columns[name][row] = before._columns[name][old_row]

    def _keep_learnt_state(self, before: Self) -> None:
        # Arrivals come after all open jobs, which keep their places.
        self._last_place = max(self._last_place, before._last_place)

"""Discretised least attained service: Tiresias's two queues (Gu et al., NSDI 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import numpy as np

from shadowprice.core.amounts import MILLI, parse_duration
from shadowprice.core.arrays import Integers
from shadowprice.core.devices import gpus_of_worker
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, PolicyContext, View
from shadowprice.policies.baselines.parameters import LasParameters
from shadowprice.policies.baselines.ranked import PreemptiveQueuePolicy

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
        for name in ("width", *_HISTORY):
            self._columns[name] = np.zeros(0, dtype=np.int64)
        self._columns["runs"] = np.zeros(0, dtype=np.bool_)
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

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        super()._take_up(view, state, before)
        row, old_row = self._table.rows[state.job.name], before._table.rows.get(state.job.name)
        if old_row is not None:
            for name in (*_HISTORY, "runs"):
                self._columns[name][row] = before._columns[name][old_row]

    def _keep_learnt_state(self, before: Self) -> None:
        # Arrivals come after all open jobs, which keep their places.
        self._last_place = max(self._last_place, before._last_place)

"""ElasticFlow: jobs get the fewest workers that meet deadlines, then spare GPUs by return.

The paper calls the first part *minimum satisfactory shares*. Spare GPUs go to the jobs whose
progress they raise most per GPU. A *level* is an index into a job's useful numbers of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.devices import gpus_of_worker
from shadowprice.core.events import Decision, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import Deadline, Sigmoid
from shadowprice.kernels.reactive.places import LESS, run_in_order
from shadowprice.kernels.reactive.satisfactory import (
    PlannedJobs,
    allocate_by_return,
    next_change,
    satisfy,
)
from shadowprice.policies.baselines import ElasticFlowParameters
from shadowprice.policies.reactive.base import TableReactivePolicy
from shadowprice.policies.reactive.free_capacity import NO_PLACEMENT
from shadowprice.policies.reactive.table import enlarged, increasing_positions

NO_DEADLINE: Final = np.iinfo(np.int64).max  # the slot of a missing deadline
_MAX_HALVINGS: Final = 8  # times per slot that jobs that don't fit are tried with fewer workers


def deadline_slot(job: Job) -> int:
    """Return the last slot in time, by a deadline or a sigmoid's target, else `NO_DEADLINE`."""
    utility = job.utility
    if isinstance(utility, Deadline):
        return job.arrival + int(np.floor(utility.by))
    return (
        job.arrival + int(np.floor(utility.target)) if isinstance(utility, Sigmoid) else NO_DEADLINE
    )


class ClusterTotals:
    """Totals of limited resources over servers for workers, for PS, and for either."""

    def __init__(self, cluster: Cluster) -> None:
        capacity = cluster.capacity
        unlimited = (capacity >= UNLIMITED).any(axis=0)
        self._counted = np.flatnonzero(~unlimited & (capacity > 0).any(axis=0))
        self.columns = 3 * len(self._counted)
        self._capacity = capacity[:, self._counted]
        self._workers = np.array([role is not Role.PS for role in cluster.roles])
        self._ps = np.array([role is not Role.WORKER for role in cluster.roles])

    def total(self, up: Flags) -> Integers:
        """Return the total capacity of available servers by column."""
        capacity = self._capacity * up[:, None]
        sums = (capacity[self._workers], capacity[self._ps], capacity)
        return np.concatenate([part.sum(axis=0) for part in sums])

    def demand(self, job: Job, workers: Integers, ps: Integers) -> Integers:
        """Return the demand of each level's workers and PS, shape (levels, columns)."""
        of_workers = workers[:, None] * job.worker[self._counted]
        of_ps = np.zeros_like(of_workers)
        if job.ps is not None:
            of_ps = ps[:, None] * job.ps[self._counted]
        return np.concatenate((of_workers, of_ps, of_workers + of_ps), axis=1)


class ElasticFlow(TableReactivePolicy[ElasticFlowParameters]):
    """Admit a job if all deadlines can be met together; give spare capacity to any job.

    Plans are computed in ``O(jobs x slots x levels)`` when jobs or servers change, or when a plan
    changes a worker count. A job with more workers than planned gets ahead of its plan.
    """

    capabilities: ClassVar = Capabilities(
        elastic=True, wakes_every_slot=True, holds=True, quotes=True
    )

    def __init__(self, context: PolicyContext, parameters: ElasticFlowParameters) -> None:
        super().__init__(context, parameters)
        self._sums = ClusterTotals(context.cluster)
        self._changes_at = 0  # slot in which worker counts may change next
        self._rows = self._table.columns
        # By level. `gpus` is in thousandths; the width grows with the levels of jobs.
        self._table.add_columns("gains", "gpus", "workers", "ps", width=[4])
        self._table.add_columns("demand", width=[4, self._sums.columns])
        self._table.add_columns("levels", "remaining", "deadline")
        self._table.add_columns("promised", dtype=np.bool_)

    def _begin(self, view: View) -> Iterator[Decision]:
        if view.slot >= self._changes_at and self._table.rows:
            yield from self._run(view, view.slot)

    def hold(self, view: View, progress: Mapping[str, int], slots: int) -> int:
        """Return the number of slots until a plan changes a worker count."""
        del progress
        return max(0, min(slots, self._changes_at - view.slot))

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        del view, event
        self._changes_at = 0
        yield from ()

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        del view, names
        self._changes_at = 0

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        """Add an open job. If it has a deadline, its admission was a promise."""
        super()._restore_job(view, state, before)
        row = self._table.rows[state.job.name]
        self._rows["promised"][row] = self._rows["deadline"][row] != NO_DEADLINE

    # ------------------------------------------------------------ admission

    def _target_worker_count(self, job: Job) -> int:
        return job.max_workers

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        self._refresh(view)
        yield from super()._arrive(view, jobs)

    def _find_refusal(self, view: View, job: Job) -> Refusal | None:
        self._refresh(view)
        refusal = self._try_admitting(view, job)
        if refusal is None:
            self._table.remove(job.name)
        return refusal

    def _try_admitting(self, view: View, job: Job) -> Refusal | None:
        """Add a job; if its deadline can't be promised, remove it and return the reason."""
        workers = self._empty.workers(job, self._target_worker_count(job))
        if not workers:
            return NO_PLACEMENT
        self._enter(job, workers)
        row = self._table.rows[job.name]
        if self._rows["deadline"][row] == NO_DEADLINE:
            return None
        if self._all_satisfied(view.slot):
            self._rows["promised"][row] = True
            return None
        refusal = self._refusal(job, row, view.slot)
        self._table.remove(job.name)
        return refusal

    def _refusal(self, job: Job, row: int, slot: int) -> Refusal:
        deadline = int(self._rows["deadline"][row])
        shortest = -(-job.required // int(self._rows["gains"][row].max()))
        if slot + shortest - 1 > deadline:
            ends = deadline < deadline_slot(job)  # `_enter` cut it at the end of the timespan
            return Refusal(
                RefusalReason.TOO_LATE,
                f"with most workers it takes {shortest} slots, and {deadline - slot + 1} "
                f"are left until {'the timespan ends' if ends else 'its deadline'}",
                bottleneck="end of the timespan" if ends else None,
            )
        return Refusal(
            RefusalReason.NO_ROOM,
            "its deadline cannot be met together with those of the jobs admitted before",
            completion=deadline,
        )

    def _all_satisfied(self, slot: int) -> bool:
        """Return whether all promised deadlines and that of the newest job can be met."""
        rows = self._table.in_order()
        jobs, newest = self._rows, rows[-1]
        deadline_rows = rows[jobs["promised"][rows] | (rows == newest)]
        order = deadline_rows[np.argsort(jobs["deadline"][deadline_rows], kind="stable")]
        last, plan, free = self._horizon(slot, order)
        ends = np.full(len(jobs["remaining"]), -1, dtype=np.int64)
        return bool(satisfy(free, order, self._planned_jobs, last, plan, True, ends))

    # ------------------------------------------------------------ the coming slot

    def _run(self, view: View, slot: int) -> Iterator[Decision]:
        self._refresh(view)
        table, jobs = self._table, self._rows
        rows = table.in_order()
        # Order by deadline. Jobs without a promise come last, in order of arrival.
        deadline = np.where(jobs["promised"][rows], jobs["deadline"][rows], NO_DEADLINE)
        order = rows[np.argsort(deadline, kind="stable")]
        promised = order[jobs["promised"][order]]
        last, plan, free = self._horizon(slot, promised)
        # Completion slot of each row's plan, and level of each row in this slot; -1 without one.
        ends = np.full(len(jobs["remaining"]), -1, dtype=np.int64)
        satisfy(free, promised, self._planned_jobs, last, plan, False, ends)
        levels = np.full(len(jobs["remaining"]), -1, dtype=np.int64)
        allocate_by_return(free, order, self._planned_jobs, last, ends, plan, levels)
        allocated = levels.copy()
        self._changed = False
        yield from self._place_levels(view, order, levels)
        # A job that got fewer workers than allocated is behind its plan: plan again in the next
        # slot.
        all_placed = np.array_equal(allocated, levels) and not self._changed
        self._changes_at = slot + (next_change(promised, ends, plan, levels) if all_placed else 1)

    def _place_levels(self, view: View, order: Integers, levels: Integers) -> Iterator[Decision]:
        """Place jobs at their levels (by row, -1 to wait); lower those that don't fit, in place.

        A job that can't move keeps its workers, whatever its plan says. Then all other jobs are
        tried, because capacity may be free for jobs that would wait.
        """
        table, jobs, count = self._table, self._rows, len(order)
        order, capacity = self._movable(view, order)
        if len(order) < count:
            order = np.concatenate((order[levels[order] >= 0], order[levels[order] < 0]))
            levels[order] = np.maximum(levels[order], 0)
        running = order[levels[order] >= 0]
        each = np.arange(len(levels))
        change = np.zeros(len(running), dtype=np.int64)
        for attempt in range(_MAX_HALVINGS + 1):
            level = np.maximum(levels, 0)
            change = np.zeros(len(running), dtype=np.int64)
            run_in_order(
                capacity.copy(), running, table.places, jobs["workers"][each, level],
                jobs["ps"][each, level], self._cursors, change,
            )  # fmt: skip
            moved = (change > 0) & table.new_workers[running].any(axis=1)
            # Jobs that would have to stop, or wait on, because they don't fit at their level.
            excluded = running[~moved & ((change > 0) | ~table.is_placed[running])]
            if not len(excluded) or attempt == _MAX_HALVINGS:
                break
            levels[excluded] = (levels[excluded] + 1) // 2 - 1  # from level 0 to -1
            running = order[levels[order] >= 0]
        idle = np.setdiff1d(order, running)
        idle = idle[table.is_placed[idle]]
        table.new_workers[idle] = 0
        table.new_ps[idle] = 0
        paused = np.full(len(idle), LESS, dtype=np.int64)
        yield from table.rearrange(
            np.concatenate((idle, running)), np.concatenate((paused, change))
        )

    # ------------------------------------------------------------ rows

    @property
    def _planned_jobs(self) -> PlannedJobs:
        names = ("demand", "gains", "levels", "gpus", "remaining")
        return PlannedJobs(*(self._rows[name] for name in names))

    def _horizon(self, slot: int, rows: Integers) -> tuple[Integers, NDArray[np.int16], Integers]:
        """Return each row's last slot in time, space for plans, and free capacity by slot.

        Slots count from ``slot``. The space covers the last slots of ``rows``.
        """
        deadline = self._rows["deadline"]
        last = np.minimum(deadline - slot, self._parameters.slots - 1)
        slots = int(last[rows].max(initial=0)) + 1
        # Not initialised, which would take most of the time: no plan is read past its last slot.
        plan = np.empty((len(deadline), slots), dtype=np.int16)
        free = np.tile(self._sums.total(self._servers.up), (slots, 1))
        return last, plan, free

    def _refresh(self, view: View) -> None:
        """Record progress of the open jobs, and drop promises whose deadline has passed."""
        remaining, states = self._rows["remaining"], view.open_jobs
        for name, row in self._table.rows.items():
            if name in states:
                remaining[row] = states[name].remaining
                if self._rows["deadline"][row] < view.slot:
                    self._rows["promised"][row] = False

    def _enter(self, job: Job, workers: int) -> None:
        row = self._table.add(job)
        useful = increasing_positions(job.gains)
        useful = useful[job.worker_counts[useful] <= workers]
        counts, ps = job.worker_counts[useful], job.ps_counts[useful]
        columns, count = self._rows, len(counts)
        for name, values in (
            ("demand", self._sums.demand(job, counts, ps)),
            ("gains", job.gains[useful]),
            ("gpus", counts * gpus_of_worker(job, self._cluster)),
            ("workers", counts),
            ("ps", ps),
        ):
            rows, width = columns[name].shape[:2]
            if count > width:
                columns[name] = enlarged(columns[name], rows, count)
            columns[name][row] = 0
            columns[name][row, :count] = values
        columns["levels"][row] = count
        columns["remaining"][row] = job.required
        deadline, until = deadline_slot(job), self._context.until
        if deadline != NO_DEADLINE and until is not None and self._context.end_moves:
            # Not in a simulation, whose decisions must not depend on where it is stopped.
            deadline = min(deadline, until - 1)
        columns["deadline"][row] = deadline
        columns["promised"][row] = False

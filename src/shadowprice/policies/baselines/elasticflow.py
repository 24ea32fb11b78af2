"""ElasticFlow: deadlines by minimum satisfactory shares, spare GPUs by marginal return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.events import Decision, PolicyEvent, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.utility import Deadline, Sigmoid
from shadowprice.kernels.reactive.in_order import run_in_order
from shadowprice.kernels.reactive.places import LESS
from shadowprice.kernels.reactive.satisfactory import deal_spare, next_change, satisfy
from shadowprice.policies.baselines.parameters import ElasticFlowParameters
from shadowprice.policies.baselines.service import gpus_of_worker
from shadowprice.policies.reactive.base import Tabled
from shadowprice.policies.reactive.room import NO_PLACEMENT

Integers = NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).max
"""Deadline of a job that has none."""

_NARROWINGS: Final = 8
"""Times that jobs which find no places are tried with fewer workers in a slot."""


def deadline_of(job: Job) -> int:
    """Return the last slot in which a job should complete, `NEVER` where it has no deadline.

    That of a deadline utility, and the target of a sigmoid.
    """
    utility = job.utility
    if isinstance(utility, Deadline):
        return job.arrival + int(np.floor(utility.by))
    return job.arrival + int(np.floor(utility.target)) if isinstance(utility, Sigmoid) else NEVER


class Sums:
    """A cluster as sums of resources, of the servers that are up.

    Workers may have what worker servers hold, parameter servers what theirs hold, both together
    what there is: three sums of every resource that some server limits.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    """

    def __init__(self, cluster: Cluster) -> None:
        capacity = cluster.capacity
        unlimited = (capacity >= UNLIMITED).any(axis=0)
        self._counted = np.flatnonzero(~unlimited & (capacity > 0).any(axis=0))
        self._capacity = capacity[:, self._counted]
        self._workers = np.array([role is not Role.PS for role in cluster.roles])
        self._ps = np.array([role is not Role.WORKER for role in cluster.roles])
        self._up = np.ones(cluster.servers, dtype=np.bool_)

    def set_up(self, server: int, *, up: bool) -> None:
        """Take note that a server is lost or back."""
        self._up[server] = up

    def total(self) -> Integers:
        """Return what there is, by column."""
        there = self._capacity * self._up[:, None]
        sums = (there[self._workers], there[self._ps], there)
        return np.concatenate([part.sum(axis=0) for part in sums])

    def demand(self, job: Job, workers: Integers, ps: Integers) -> Integers:
        """Return what numbers of workers and parameter servers take, shape (levels, columns)."""
        of_workers = workers[:, None] * job.worker[self._counted]
        of_ps = np.zeros_like(of_workers)
        if job.ps is not None:
            of_ps = ps[:, None] * job.ps[self._counted]
        return np.concatenate((of_workers, of_ps, of_workers + of_ps), axis=1)


class ElasticFlow(Tabled[ElasticFlowParameters]):
    """Jobs whose deadlines can all be met together are admitted, and run with what that takes.

    Parameters
    ----------
    context : PolicyContext
        The cluster.
    parameters : ElasticFlowParameters
        What was set.

    Notes
    -----
    Plans are made anew when jobs come or go, servers are lost or back, and when a plan changes
    its number of workers; ``O(jobs x slots x levels)`` each time. In between jobs go on as they
    are: what they have beyond their plans brings them ahead of these.
    """

    capabilities: ClassVar = Capabilities(elastic=True, wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: ElasticFlowParameters) -> None:
        super().__init__(context, parameters)
        self._capacity = context.cluster.capacity
        self._sums = Sums(context.cluster)
        self._columns = len(self._sums.total())
        self._changes_at = 0
        self._width = 4
        self._rows: dict[str, NDArray[Any]] = {}
        self._grow(0, 4)

    def _begin(self, view: View) -> Iterator[Decision]:
        if view.slot >= self._changes_at and self._table.rows:
            yield from self._run(view, view.slot)

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        del view, event
        self._changes_at = 0
        yield from ()

    def _lose(self, server: int) -> None:
        super()._lose(server)
        self._sums.set_up(server, up=False)

    def _restore(self, server: int) -> None:
        super()._restore(server)
        self._sums.set_up(server, up=True)

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        """Take in a job as it stands; one with a deadline was promised it when it was taken in."""
        super()._take_up(view, state, before)
        row = self._table.rows[state.job.name]
        self._rows["promised"][row] = self._rows["deadline"][row] != NEVER

    # ------------------------------------------------------------ admission

    def _wanted(self, job: Job) -> int:
        return job.most_workers

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        self._refresh(view)
        for job in jobs:
            refusal = self._taken_in(view, job)
            yield Queue(job.name) if refusal is None else Reject(job.name, refusal)

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job's deadline could be met together with those that are promised.

        It enters the table for as long as that is worked out: so does a job that is refused.
        """
        del explained  # the reason comes with the answer
        self._refresh(view)
        refusal = self._taken_in(view, job)
        if refusal is not None:
            return Quote.of(Reject(job.name, refusal), view.slot)
        self._table.remove(job.name)
        return Quote.of(Queue(job.name), view.slot)

    def _taken_in(self, view: View, job: Job) -> Refusal | None:
        """Take a job in; put it out again and return the reason if it cannot be promised."""
        most = self._empty.workers(job, self._wanted(job))
        if not most:
            return NO_PLACEMENT
        row = self._enter(job, most)
        if self._rows["deadline"][row] == NEVER:
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
            ends = deadline < deadline_of(job)
            return Refusal(
                Reason.TOO_LATE,
                f"with most workers it takes {shortest} slots, and {deadline - slot + 1} "
                f"are left until {'the timespan ends' if ends else 'its deadline'}",
                bottleneck="end of the timespan" if ends else None,
            )
        return Refusal(
            Reason.NO_ROOM,
            "its deadline cannot be met together with those of the jobs admitted before",
            completion=deadline,
        )

    def _all_satisfied(self, slot: int) -> bool:
        """Return whether every promised deadline and the newest can be met together."""
        rows = self._table.in_order()
        known, newest = self._rows, rows[-1]
        some = rows[known["promised"][rows] | (rows == newest)]
        order = some[np.argsort(known["deadline"][some], kind="stable")]
        last, plan, free = self._horizon(slot, order)
        ends = np.full(len(known["left"]), -1, dtype=np.int64)
        return bool(
            satisfy(
                free, order, known["demand"], known["gains"], known["levels"], known["left"], last,
                plan, True, ends,
            )
        )  # fmt: skip

    # ------------------------------------------------------------ the coming slot

    def _run(self, view: View, slot: int) -> Iterator[Decision]:
        self._refresh(view)
        table, known = self._table, self._rows
        rows = table.in_order()
        # By deadline; those without one come last, in order of arrival.
        deadline = np.where(known["promised"][rows], known["deadline"][rows], NEVER)
        order = rows[np.argsort(deadline, kind="stable")]
        promised = order[known["promised"][order]]
        last, plan, free = self._horizon(slot, promised)
        ends = np.full(len(known["left"]), -1, dtype=np.int64)
        common = (known["demand"], known["gains"], known["levels"])
        satisfy(free, promised, *common, known["left"], last, plan, False, ends)
        now = np.full(len(known["left"]), -1, dtype=np.int64)
        deal_spare(free, order, *common, known["gpus"], known["left"], last, ends, plan, now)
        dealt = now.copy()
        yield from self._stand(order, now)
        # A job that found no places for what it was dealt is behind its plan.
        kept = np.array_equal(dealt, now)
        self._changes_at = slot + (next_change(promised, ends, plan, now) if kept else 1)

    def _stand(self, order: Integers, now: Integers) -> Iterator[Decision]:
        """Place jobs with their numbers of workers; where one finds no places, with fewer."""
        table, known = self._table, self._rows
        running = order[now[order] >= 0]
        each = np.arange(len(now))
        change = np.zeros(len(running), dtype=np.int64)
        for attempt in range(_NARROWINGS + 1):
            level = np.maximum(now, 0)
            change = np.zeros(len(running), dtype=np.int64)
            run_in_order(
                self._capacity.copy(),
                running,
                table.places,
                known["workers"][each, level],
                known["ps"][each, level],
                self._cursors,
                change,
            )
            moved = (change > 0) & table.new_workers[running].any(axis=1)
            left_out = running[~moved & ((change > 0) | ~table.standing[running])]
            if not len(left_out) or attempt == _NARROWINGS:
                break
            now[left_out] = (now[left_out] + 1) // 2 - 1
            running = order[now[order] >= 0]
        idle = np.setdiff1d(order, running)
        idle = idle[table.standing[idle]]
        table.new_workers[idle] = 0
        table.new_ps[idle] = 0
        paused = np.full(len(idle), LESS, dtype=np.int64)
        yield from table.rearrange(
            np.concatenate((idle, running)), np.concatenate((paused, change))
        )

    # ------------------------------------------------------------ rows

    def _horizon(self, slot: int, rows: Integers) -> tuple[Integers, NDArray[np.int16], Integers]:
        """Return the last slot of each row, counted from now, empty plans, and what is free."""
        deadline = self._rows["deadline"]
        last = np.minimum(deadline - slot, self._parameters.slots - 1)
        most = int(last[rows].max(initial=0)) + 1
        plan = np.full((len(deadline), most), -1, dtype=np.int16)
        free = np.tile(self._sums.total(), (most, 1))
        return last, plan, free

    def _refresh(self, view: View) -> None:
        """Take note of the progress that jobs made, and of deadlines that are over."""
        left, states = self._rows["left"], view.open_jobs
        for name, row in self._table.rows.items():
            if name in states:
                left[row] = states[name].remaining
                if self._rows["deadline"][row] < view.slot:
                    self._rows["promised"][row] = False

    def _enter(self, job: Job, workers: int) -> int:
        row = self._table.add(job)
        best = np.maximum.accumulate(job.gains)
        useful = np.concatenate(([True], best[1:] > best[:-1])) & (job.worker_counts <= workers)
        counts, ps = job.worker_counts[useful], job.ps_counts[useful]
        count = len(counts)
        self._grow(len(self._table.jobs), count)
        known = self._rows
        for name, values in (
            ("demand", self._sums.demand(job, counts, ps)),
            ("gains", job.gains[useful]),
            ("gpus", counts * gpus_of_worker(job, self._cluster)),
            ("workers", counts),
            ("ps", ps),
        ):
            known[name][row] = 0
            known[name][row, :count] = values
        known["levels"][row] = count
        known["left"][row] = job.required
        known["deadline"][row] = self._due(job)
        known["promised"][row] = False
        return row

    def _due(self, job: Job) -> int:
        """Return the last slot that keeps a job's deadline, and is within a timespan that can move.

        A simulation that ends runs the same jobs up to its end as one that goes on.
        """
        deadline, until = deadline_of(job), self._context.until
        if deadline == NEVER or until is None or not self._context.end_moves:
            return deadline
        return min(deadline, until - 1)

    def _grow(self, rows: int, width: int) -> None:
        before = dict(self._rows)
        self._width = max(self._width, width)
        size = max(rows, len(before["left"]) if before else 0)
        wide = (size, self._width)
        shapes: dict[str, tuple[int, ...]] = {
            "demand": (*wide, self._columns),
            **dict.fromkeys(("gains", "gpus", "workers", "ps"), wide),
            **dict.fromkeys(("levels", "left", "deadline"), (size,)),
        }
        if before and before["gains"].shape == wide:
            return
        self._rows = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
        self._rows["promised"] = np.zeros(size, dtype=np.bool_)
        for name, column in before.items():
            self._rows[name][tuple(slice(length) for length in column.shape)] = column


def build(context: PolicyContext, parameters: ElasticFlowParameters) -> ElasticFlow:
    """Build the policy, as the registry asks."""
    return ElasticFlow(context, parameters)

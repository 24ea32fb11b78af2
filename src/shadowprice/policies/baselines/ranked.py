"""What the preemptive baselines share: jobs of fixed widths, run in an order while they fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.events import (
    Decision,
    JobCancelled,
    JobsArrived,
    JobsDisplaced,
    JobsFinished,
    PolicyEvent,
    Queue,
    Reject,
    ServerBack,
    ServerLost,
    SlotBegan,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, PolicyContext, View, servers_out
from shadowprice.core.quote import Quote
from shadowprice.kernels.reactive.risk_reward import run_in_order
from shadowprice.policies.baselines.fixed import fixed_workers
from shadowprice.policies.baselines.parameters import FixedWorkers
from shadowprice.policies.reactive.room import NO_PLACEMENT, EmptyCluster
from shadowprice.policies.reactive.table import JobTable
from shadowprice.policies.registry import Parameters

Integers = NDArray[np.int64]


class Ranked:
    """Every job that can run at all is taken in; in each slot they run in an order while they fit.

    A job that does not fit beside those before it pauses and keeps its progress; smaller ones
    behind it run in its place. A subclass says the order.

    Parameters
    ----------
    context : PolicyContext
        The cluster and the seed.
    parameters : Parameters
        What was set.
    workers : str or int
        How many workers a job has, as `fixed_workers` reads it.

    Notes
    -----
    A slot in which neither the jobs nor their order changed costs the ordering alone.
    """

    capabilities: Final = Capabilities(wakes_every_slot=True, quotes=True)

    def __init__(
        self, context: PolicyContext, parameters: Parameters, workers: FixedWorkers
    ) -> None:
        self._context = replace(context, known_jobs=None)
        self._parameters_set = parameters
        self._capacity = context.cluster.capacity
        self._workers_of = fixed_workers(workers, context.seed)
        self._empty = EmptyCluster(context.cluster)
        self._table = JobTable(context.cluster)
        self._cursors = np.zeros(2, dtype=np.int64)
        self._changed = False
        self._ran_in: Integers = np.zeros(0, dtype=np.int64)
        self._columns: dict[str, NDArray[Any]] = {
            "workers": np.zeros(0, dtype=np.int64),
            "ps": np.zeros(0, dtype=np.int64),
        }

    def resume(self, view: View) -> None:
        """Take in all open jobs where they stand, with what was noted of them before."""
        before, columns = dict(self._table.rows), dict(self._columns)
        kept = {name: {key: columns[key][row] for key in columns} for name, row in before.items()}
        context = replace(self._context, cluster=view.cluster)
        type(self).__init__(self, context, self._parameters_set)  # type: ignore[call-arg]
        for server in servers_out(view):
            self._table.lose(server)
        for name, state in view.open_jobs.items():
            wanted = self._workers_of(state.job)
            row = self._admit(state.job, self._empty.workers(state.job, wanted) or wanted)
            for key, value in kept.get(name, {}).items():
                if key not in ("workers", "ps"):
                    self._columns[key][row] = value
            if state.placement is not None:
                self._table.stand(row, state.placement)
        self._changed = True

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force."""
        return self._parameters_set.model_dump()

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        match event:
            case SlotBegan():
                yield from self._run(view)
                return
            case JobsArrived(_, jobs):
                yield from self._take_in(jobs)
            case JobsFinished(_, names):
                for name in names:
                    self._table.remove(name)
            case JobCancelled(_, name):
                self._table.remove(name)
            case JobsDisplaced(_, names):
                for name in names:
                    self._table.clear(self._table.rows[name])
            case ServerLost(_, _, server):
                self._table.lose(server)
            case ServerBack(_, _, server):
                self._table.restore(server)
        self._changed = True

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued."""
        del explained  # there is one reason
        return self._empty.quote(job, self._workers_of(job), view.slot)

    # ------------------------------------------------------------ for subclasses

    def _enter(self, job: Job, row: int) -> None:
        """Take note of a job that was taken in."""

    def _order(self, view: View, rows: Integers) -> Integers:
        """Return the rows of the open jobs, which are in order of arrival, by who runs first."""
        raise NotImplementedError

    def _ran(self, rows: Integers) -> None:
        """Take note of who runs in the coming slot (``table.standing``) and who waits."""

    # ------------------------------------------------------------ shared steps

    def _take_in(self, jobs: Iterable[Job]) -> Iterator[Decision]:
        for job in jobs:
            workers = self._empty.workers(job, self._workers_of(job))
            if not workers:
                yield Reject(job.name, NO_PLACEMENT)
                continue
            self._admit(job, workers)
            yield Queue(job.name)

    def _admit(self, job: Job, workers: int) -> int:
        """Take a job in; return its row."""
        row = self._table.add(job)
        size = len(self._table.jobs)
        for name, column in self._columns.items():
            if len(column) < size:
                more = np.zeros((size - len(column), *column.shape[1:]), column.dtype)
                self._columns[name] = np.concatenate((column, more))
        self._columns["workers"][row] = workers
        self._columns["ps"][row] = job.ps_needed(workers)
        self._enter(job, row)
        return row

    def _run(self, view: View) -> Iterator[Decision]:
        table, columns = self._table, self._columns
        rows = table.in_order()
        if not len(rows):
            return
        ranked = self._order(view, rows)
        if self._changed or not np.array_equal(ranked, self._ran_in):
            self._changed = False
            self._ran_in = ranked
            change = np.zeros(len(rows), dtype=np.int64)
            run_in_order(
                self._capacity.copy(),
                ranked,
                table.worker,
                table.ps,
                columns["workers"],
                columns["ps"],
                table.hosts_workers,
                table.hosts_ps,
                table.on_workers,
                table.on_ps,
                table.new_workers,
                table.new_ps,
                table.standing,
                self._cursors,
                change,
            )
            yield from table.rearrange(ranked, change)
        self._ran(rows)

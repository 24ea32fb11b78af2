"""Base of preemptive baselines: fixed worker counts, run in an order while they fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.arrays import Integers
from shadowprice.core.events import Decision
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, PolicyContext, View
from shadowprice.kernels.reactive.in_order import run_in_order
from shadowprice.policies.baselines.fixed import fixed_workers
from shadowprice.policies.baselines.parameters import FixedWorkersParameters
from shadowprice.policies.reactive.base import TableReactivePolicy

P = TypeVar("P", bound=FixedWorkersParameters)


class FixedWorkersPolicy(TableReactivePolicy[P]):
    """Policy base with a fixed worker count per job and extra columns beside the job table.

    A subclass adds its own columns to ``_columns``; they are indexed by table row.
    """

    capabilities: ClassVar = Capabilities(wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        super().__init__(context, parameters)
        self._workers_of = fixed_workers(parameters.workers, context.seed)
        self._columns: dict[str, NDArray[Any]] = {
            "workers": np.zeros(0, dtype=np.int64),
            "ps": np.zeros(0, dtype=np.int64),
        }

    def _target_worker_count(self, job: Job) -> int:
        return self._workers_of(job)

    def _enter(self, job: Job, workers: int) -> int:
        row = self._table.add(job)
        size = len(self._table.jobs)
        for name, column in self._columns.items():
            if len(column) < size:
                extension = np.zeros((size - len(column), *column.shape[1:]), column.dtype)
                self._columns[name] = np.concatenate((column, extension))
        self._columns["workers"][row] = workers
        self._columns["ps"][row] = job.ps_needed(workers)
        self._fill_columns(job, row)
        return row

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

    A job that doesn't fit beside those before it pauses and keeps its progress. Smaller jobs
    behind it run instead. A subclass defines the order.

    In a slot in which neither the jobs nor their order changed, only the order is computed.
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

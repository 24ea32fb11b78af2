"""Base classes of policies that only decide the next slot; they dispatch events to methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np

from shadowprice.core import events
from shadowprice.core.arrays import Integers
from shadowprice.core.events import Decision, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import (
    Capabilities,
    JobState,
    PolicyContext,
    Status,
    View,
    unavailable_server_rows,
)
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Refusal, RevisionRefusedError
from shadowprice.policies.reactive.free_capacity import (
    NO_PLACEMENT,
    AvailableServers,
    EmptyCluster,
)
from shadowprice.policies.reactive.table import JobTable
from shadowprice.policies.registry import Parameters

P = TypeVar("P", bound=Parameters)


class ReactivePolicy(ABC, Generic[P]):
    """A policy whose decisions only place jobs in the next slot, with a method for each event."""

    capabilities: ClassVar[Capabilities]

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        self._context = replace(context, known_jobs=None)  # the policy is pickled with it
        self._parameters = parameters
        self._cluster = context.cluster
        self._servers = AvailableServers(context.cluster)
        self._changed = False  # whether the next slot must be decided

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return all parameters with their values, defaults included."""
        return self._parameters.model_dump()

    def resume(self, view: View) -> None:
        """Resync with the view: rebuild the state from its servers and open jobs."""
        before = copy(self)
        context = replace(self._context, cluster=view.cluster, until=view.until)
        type(self).__init__(self, context, self._parameters)
        for server in unavailable_server_rows(view):
            self._lose_server(server)
        for state in view.open_jobs.values():
            if state.status is not Status.ARRIVED:  # the event of their arrival follows
                self._restore_job(view, state, before)
        self._keep_learnt_state(before)
        self._changed = True

    def decide(self, view: View, event: events.PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        match event:
            case events.SlotBegan():
                yield from self._begin(view)
                return
            case events.LengthsRevised(_, names):
                self._revise_lengths(view, names)
                return
            case events.JobsArrived(_, jobs):
                yield from self._arrive(view, jobs)
            case events.JobsFinished(_, names):
                for name in names:
                    self._finish(view, name)
            case events.JobCancelled(_, name):
                self._cancel(name)
            case events.JobsDisplaced(_, names):
                self._displace(view, names)
            case events.ServerLost(_, _, server):
                self._lose_server(server)
            case events.ServerBack(_, _, server):
                self._restore_server(server)
            case events.JobRevised(_, job, admission=True):
                yield from self._readmit(view, job)
            case events.CapacityChanged() | events.JobRevised() | events.TimespanChanged():
                pass  # the engine has called `resume`
        yield from self._settle(view, event)

    def hold(self, view: View, progress: Mapping[str, int], slots: int) -> int:
        """Return for how many of the next slots nothing is decided; see `HoldingPolicy`."""
        del view, progress
        return 0 if self._changed else slots

    # ------------------------------------------------------------ steps

    def _begin(self, view: View) -> Iterator[Decision]:
        """Decide the slot that begins, if the policy wakes in every slot."""
        del view
        yield from ()

    @abstractmethod
    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        """Answer arriving jobs."""

    def _readmit(self, view: View, job: Job) -> Iterator[Decision]:
        """Decide about a job whose revision needs a new admission.

        Raises `RevisionRefusedError` to refuse the revision.
        """
        del view, job
        yield from ()

    @abstractmethod
    def _remove_job(self, name: str) -> None:
        """Remove a job that ended, if the policy has it; after a resync it may not."""

    def _finish(self, view: View, name: str) -> None:
        """Remove a job that finished, if the policy has it."""
        del view
        self._remove_job(name)

    def _cancel(self, name: str) -> None:
        """Remove a job that was cancelled or failed, if the policy has it."""
        self._remove_job(name)

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        """Record that open jobs are longer than stated so far, if the policy uses lengths."""
        del view, names

    @abstractmethod
    def _displace(self, view: View, names: Sequence[str]) -> None:
        """Record that jobs have lost their placements."""

    def _lose_server(self, server: int) -> None:
        self._servers.lose(server)

    def _restore_server(self, server: int) -> None:
        self._servers.restore(server)

    @abstractmethod
    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        """Add an open job again at a resync; ``before`` is the policy's former state."""

    def _settle(self, view: View, event: events.PolicyEvent) -> Iterator[Decision]:
        """Finish an event. By default, record that the next slot must be decided."""
        del view, event
        self._changed = True
        yield from ()

    def _keep_learnt_state(self, before: Self) -> None:
        """Keep learnt state of ``before`` at a resync, after the open jobs were added."""


class QueueingPolicy(ReactivePolicy[P]):
    """A reactive policy that queues every job that fits on the empty cluster."""

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        super().__init__(context, parameters)
        self._empty = EmptyCluster(context.cluster)

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued."""
        del explained  # reasons are always included
        refusal = self._find_refusal(view, job)
        decision = Queue(job.name) if refusal is None else Reject(job.name, refusal)
        return Quote.of(decision, view.slot)

    def _find_refusal(self, view: View, job: Job) -> Refusal | None:
        """Return why a job would be refused now; don't add it."""
        del view
        fits = self._empty.workers(job, self._target_worker_count(job))
        return None if fits else NO_PLACEMENT

    @abstractmethod
    def _enter(self, job: Job, workers: int) -> None:
        """Add a queued job, with a worker count that fits on the empty cluster."""

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        for job in jobs:
            refusal = self._try_admitting(view, job)
            yield Queue(job.name) if refusal is None else Reject(job.name, refusal)

    def _try_admitting(self, view: View, job: Job) -> Refusal | None:
        """Add a job, or return why it is refused."""
        del view
        workers = self._empty.workers(job, self._target_worker_count(job))
        if not workers:
            return NO_PLACEMENT
        self._enter(job, workers)
        return None

    def _readmit(self, view: View, job: Job) -> Iterator[Decision]:
        del view
        if not self._empty.workers(job, self._target_worker_count(job)):
            raise RevisionRefusedError(NO_PLACEMENT)
        yield from ()

    @abstractmethod
    def _target_worker_count(self, job: Job) -> int:
        """Return the worker count that a job should have, if it fits on the empty cluster."""


class TableReactivePolicy(QueueingPolicy[P]):
    """A reactive policy whose open jobs are the rows of a `JobTable`."""

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        super().__init__(context, parameters)
        self._servers = self._table = JobTable(context.cluster)
        self._cursors = np.zeros(2, dtype=np.int64)

    def _movable(self, view: View, rows: Integers) -> tuple[Integers, Integers]:
        """Return the rows that may move, and the capacity that the other rows leave."""
        table, capacity = self._table, self._cluster.capacity.copy()
        if not view.may_have_unstoppable_jobs:
            return rows, capacity
        unstoppable = np.zeros(len(rows), dtype=np.bool_)
        for index in np.flatnonzero(table.is_placed[rows]).tolist():
            row = int(rows[index])
            if view.is_unstoppable(table.job(row).name):
                unstoppable[index] = True
                capacity -= table.current_workers[row, :, None] * table.worker[row]
                capacity -= table.current_ps[row, :, None] * table.ps[row]
        self._changed |= bool(unstoppable.any())  # they may be able to move in the next slot
        return rows[~unstoppable], capacity

    def _remove_job(self, name: str) -> None:
        if name in self._table.rows:
            self._table.remove(name)

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        for name in names:
            self._table.clear(self._table.rows[name])

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        del view, before
        wanted = self._target_worker_count(state.job)
        self._enter(state.job, self._empty.workers(state.job, wanted) or wanted)
        if state.placement is not None:
            self._table.set_placement(self._table.rows[state.job.name], state.placement)

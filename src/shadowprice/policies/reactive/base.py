"""What the policies that place the next slot have in common: one dispatch of events to steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np

from shadowprice.core.events import (
    CapacityChanged,
    Decision,
    JobCancelled,
    JobRevised,
    JobsArrived,
    JobsDisplaced,
    JobsFinished,
    PolicyEvent,
    Queue,
    Reject,
    ServerBack,
    ServerLost,
    SlotBegan,
    TimespanChanged,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, Status, View, servers_out
from shadowprice.core.quote import Quote
from shadowprice.policies.reactive.room import NO_PLACEMENT, EmptyCluster
from shadowprice.policies.reactive.table import JobTable
from shadowprice.policies.registry import Parameters

P = TypeVar("P", bound=Parameters)


class Reactive(ABC, Generic[P]):
    """A policy that places the next slot; a subclass says what each event means to it.

    Parameters
    ----------
    context : PolicyContext
        The cluster and the seed; the job set is not kept.
    parameters : Parameters
        What was set.
    """

    capabilities: ClassVar[Capabilities]

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        self._context = replace(context, known_jobs=None)
        self._parameters = parameters
        self._cluster = context.cluster
        self._changed = False

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force."""
        return self._parameters.model_dump()

    def resume(self, view: View) -> None:
        """Begin anew on the servers that there are, with the open jobs where they stand."""
        before = copy(self)
        context = replace(self._context, cluster=view.cluster, until=view.until)
        type(self).__init__(self, context, self._parameters)
        for server in servers_out(view):
            self._lose(server)
        for state in view.open_jobs.values():
            if state.status is not Status.ARRIVED:  # those are about to be answered
                self._take_up(view, state, before)
        self._recall(before)
        self._changed = True

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        match event:
            case SlotBegan():
                yield from self._begin(view)
                return
            case JobsArrived(_, jobs):
                yield from self._arrive(view, jobs)
            case JobsFinished(_, names):
                for name in names:
                    self._leave(name)
            case JobCancelled(_, name):
                self._leave(name)
            case JobsDisplaced(_, names):
                self._displace(view, names)
            case ServerLost(_, _, server):
                self._lose(server)
            case ServerBack(_, _, server):
                self._restore(server)
            case CapacityChanged() | JobRevised() | TimespanChanged():
                pass  # it has resumed
        yield from self._settle(view, event)

    # ------------------------------------------------------------ steps

    def _begin(self, view: View) -> Iterator[Decision]:
        """Decide on the slot that begins; only where the policy wakes in every slot."""
        del view
        yield from ()

    @abstractmethod
    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        """Answer jobs."""

    @abstractmethod
    def _leave(self, name: str) -> None:
        """Forget a job that finished or was cancelled, if the policy knows it.

        It does not where it began anew on a state in which the job had ended.
        """

    @abstractmethod
    def _displace(self, view: View, names: Sequence[str]) -> None:
        """Take note of jobs that stand nowhere any more."""

    @abstractmethod
    def _lose(self, server: int) -> None:
        """Take a server out."""

    @abstractmethod
    def _restore(self, server: int) -> None:
        """Bring a server back."""

    @abstractmethod
    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        """Take in an open job as it stands; ``before`` is the policy as it was.

        A policy that was not there before knows nothing of the job.
        """

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Do what follows an event; by default, note that the next slot has to be looked at."""
        del view, event
        self._changed = True
        yield from ()

    def _recall(self, before: Self) -> None:
        """Take over what outlives a new beginning, once the open jobs are there."""


class Tabled(Reactive[P]):
    """A reactive policy whose open jobs are the rows of a `JobTable`."""

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        super().__init__(context, parameters)
        self._empty = EmptyCluster(context.cluster)
        self._table = JobTable(context.cluster)
        self._cursors = np.zeros(2, dtype=np.int64)

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued."""
        del explained  # there is one reason
        return self._empty.quote(job, self._wanted(job), view.slot)

    @abstractmethod
    def _wanted(self, job: Job) -> int:
        """Return the number of workers that a job should have, if the empty cluster carries it."""

    @abstractmethod
    def _enter(self, job: Job, workers: int) -> int:
        """Take a job in, with the number of workers that can be carried; return its row."""

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        del view  # what the empty cluster carries decides
        for job in jobs:
            workers = self._empty.workers(job, self._wanted(job))
            if workers:
                self._enter(job, workers)
                yield Queue(job.name)
            else:
                yield Reject(job.name, NO_PLACEMENT)

    def _leave(self, name: str) -> None:
        if name in self._table.rows:
            self._table.remove(name)

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        for name in names:
            self._table.clear(self._table.rows[name])

    def _lose(self, server: int) -> None:
        self._table.lose(server)

    def _restore(self, server: int) -> None:
        self._table.restore(server)

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        del view, before
        wanted = self._wanted(state.job)
        row = self._enter(state.job, self._empty.workers(state.job, wanted) or wanted)
        if state.placement is not None:
            self._table.stand(row, state.placement)

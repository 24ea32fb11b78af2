"""DRF, the default of YARN and Mesos (OASiS, section V, (ii))."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

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
from shadowprice.kernels.reactive.dominant_share import fill
from shadowprice.policies.baselines.parameters import DrfParameters
from shadowprice.policies.reactive.room import NO_PLACEMENT, EmptyCluster
from shadowprice.policies.reactive.table import JobTable


class Drf:
    """All jobs are admitted; numbers of workers are max-min fair in dominant shares.

    A job's dominant share is the largest share that its workers and parameter servers take of any
    resource of the cluster. Whenever a job arrived or left, or a server was lost or came back, the
    shares are filled anew, worker by worker, at the beginning of the slot.

    Parameters
    ----------
    context : PolicyContext
        The cluster.
    parameters : DrfParameters
        What was set.

    Notes
    -----
    One filling a slot, however many events it had: ``O(jobs + grants (log jobs + servers))``, with
    at most as many grants as the cluster has places. Jobs keep their places where their number
    allows it, so that what the engine has to do follows from what changed.
    """

    capabilities: Final = Capabilities(elastic=True, wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: DrfParameters) -> None:
        self._context = replace(context, known_jobs=None)
        self._parameters = parameters
        self._capacity = context.cluster.capacity
        self._empty = EmptyCluster(context.cluster)
        self._table = JobTable(context.cluster)
        self._cursors = np.zeros(2, dtype=np.int64)
        self._changed = False

    def resume(self, view: View) -> None:
        """Take in all open jobs where they stand; shares are worked out anew."""
        Drf.__init__(self, replace(self._context, cluster=view.cluster), self._parameters)
        for server in servers_out(view):
            self._table.lose(server)
        for state in view.open_jobs.values():
            row = self._table.add(state.job)
            if state.placement is not None:
                self._table.stand(row, state.placement)
        self._changed = True

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force."""
        return self._parameters.model_dump()

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        del view  # the policy keeps its own books
        match event:
            case SlotBegan():
                if self._changed:
                    self._changed = False
                    yield from self._fill()
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
        return self._empty.quote(job, int(job.worker_counts[0]), view.slot)

    def _take_in(self, jobs: Iterable[Job]) -> Iterator[Decision]:
        for job in jobs:
            if self._empty.workers(job, int(job.worker_counts[0])):
                self._table.add(job)
                yield Queue(job.name)
            else:
                yield Reject(job.name, NO_PLACEMENT)

    def _fill(self) -> Iterator[Decision]:
        table = self._table
        rows = table.in_order()
        change = np.zeros(len(rows), dtype=np.int64)
        fill(
            self._capacity.copy(),
            table.total(),
            rows,
            table.worker,
            table.ps,
            table.first,
            table.choices,
            table.counts,
            table.ps_counts,
            table.hosts_workers,
            table.hosts_ps,
            table.on_workers,
            table.on_ps,
            table.new_workers,
            table.new_ps,
            table.standing,
            table.alike,
            self._cursors,
            change,
        )
        yield from table.rearrange(rows, change)


def build(context: PolicyContext, parameters: DrfParameters) -> Drf:
    """Build the policy, as the registry asks."""
    return Drf(context, parameters)

"""FIFO, the default scheduler of Hadoop and Spark (OASiS, section V, scheme (i))."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar, Self

from shadowprice.core.events import Decision, Drop, Place, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.policies.baselines import FifoParameters
from shadowprice.policies.reactive.base import QueueingPolicy
from shadowprice.policies.reactive.free_capacity import NO_PLACEMENT, FreeCapacity


class FifoPolicy(QueueingPolicy[FifoParameters]):
    """Run jobs in order of arrival, each with a fixed number of workers.

    The first job that doesn't fit blocks all later ones, except the next ``backfill`` jobs. A job
    that loses a server returns to its position and keeps its progress. Jobs that no longer fit the
    empty cluster, because servers have shrunk, wait outside the queue. Without backfilling, an
    event takes one placement attempt, plus one for each job that starts.
    """

    capabilities: ClassVar = Capabilities(quotes=True)

    def __init__(self, context: PolicyContext, parameters: FifoParameters) -> None:
        super().__init__(context, parameters)
        self._servers = self._free_capacity = FreeCapacity(context.cluster)
        self._open: dict[str, Job] = {}  # in order of arrival
        self._queue: dict[str, int] = {}  # worker counts of jobs that wait, in order of arrival
        self._blocked = False  # whether no queued job can start before the next change

    def _target_worker_count(self, job: Job) -> int:
        return self._parameters.worker_count(job, self._context.seed)

    def _enter(self, job: Job, workers: int) -> None:
        if len(self._queue) <= self._parameters.backfill:
            self._blocked = False  # the new job is near enough to the head to be backfilled
        self._open[job.name] = job
        self._queue[job.name] = workers

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        del view, before
        job, placement = state.job, state.placement
        self._open[job.name] = job
        if placement is not None:
            self._free_capacity.allocate(job, placement)
        else:
            self._enqueue(job, self._target_worker_count(job))

    def _enqueue(self, job: Job, wanted: int) -> None:
        workers = self._empty.workers(job, wanted)
        if workers:  # else it needs larger servers, whose arrival causes another resync
            self._queue[job.name] = workers

    def _remove_job(self, name: str) -> None:
        self._open.pop(name, None)
        self._queue.pop(name, None)
        self._free_capacity.release(name)
        self._blocked = False

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        for name in names:
            if name not in self._free_capacity.placed:
                continue  # `resume` has already queued it
            job, placement = self._free_capacity.placed[name]
            self._free_capacity.release(name)
            wanted = placement.total_workers
            if job.worker_count_index(wanted) is None:  # a revision disallowed this worker count
                wanted = self._target_worker_count(job)
            self._enqueue(job, wanted)
        self._queue = {name: self._queue[name] for name in self._open if name in self._queue}
        self._blocked = False

    def _restore_server(self, server: int) -> None:
        super()._restore_server(server)
        self._blocked = False

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Place jobs from the head of the queue until one doesn't fit."""
        del view, event
        if self._blocked:
            return
        while self._queue:
            name, workers = next(iter(self._queue.items()))
            job = self._open[name]
            placement = self._free_capacity.place(job, workers)
            if placement is None and self._free_capacity.pristine:
                # The job was only queued because it fits the empty cluster from server 0 on.
                self._free_capacity.cursors[:] = 0
                placement = self._free_capacity.place(job, workers)
                if placement is None:
                    self._remove_job(name)
                    yield Drop(name, NO_PLACEMENT)
                    continue
            if placement is None:
                break
            del self._queue[name]
            yield Place(name, placement)
        self._blocked = bool(self._queue)
        if self._blocked and self._parameters.backfill:
            yield from self._backfill()

    def _backfill(self) -> Iterator[Decision]:
        """Start any of the ``backfill`` jobs behind the blocked head that fit."""
        started: list[Place] = []
        for position, (name, workers) in enumerate(islice(self._queue.items(), 1, None)):
            if position - len(started) == self._parameters.backfill:
                break
            placement = self._free_capacity.place(self._open[name], workers)
            if placement is not None:
                started.append(Place(name, placement))
        for place in started:
            del self._queue[place.job]
        yield from started

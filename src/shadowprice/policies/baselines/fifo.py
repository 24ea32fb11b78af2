"""FIFO, the default scheduler of Hadoop and Spark (OASiS, section V, scheme (i))."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

from shadowprice.core.events import Decision, Drop, Place, PolicyEvent, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.policies.baselines import FifoParameters
from shadowprice.policies.reactive.base import QueueingPolicy
from shadowprice.policies.reactive.free_capacity import NO_PLACEMENT, FreeCapacity


class FifoPolicy(QueueingPolicy[FifoParameters]):
    """Run jobs in order of arrival, each with a fixed number of workers.

    The first job that doesn't fit blocks all later ones, except the next ``backfill`` jobs. A job
    that loses a server returns to its position and keeps its progress. After servers shrank, jobs
    that the empty cluster can't run wait outside the queue. An event costs one placement attempt,
    plus one for each job that starts.
    """

    capabilities: ClassVar = Capabilities(quotes=True)

    def __init__(self, context: PolicyContext, parameters: FifoParameters) -> None:
        super().__init__(context, parameters)
        self._free_capacity = FreeCapacity(context.cluster)
        self._order: dict[str, int] = {}
        self._queue: deque[tuple[Job, int]] = deque()
        self._too_large: set[str] = set()
        self._arrivals = 0
        self._blocked = False

    def _target_worker_count(self, job: Job) -> int:
        return self._parameters.worker_count(job, self._context.seed)

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        del view
        for job in jobs:
            workers = self._empty.workers(job, self._target_worker_count(job))
            if not workers:
                yield Reject(job.name, NO_PLACEMENT)
                continue
            self._order[job.name] = self._arrivals
            self._arrivals += 1
            if len(self._queue) <= self._parameters.backfill:
                self._blocked = False  # close enough to the head to be backfilled
            self._queue.append((job, workers))
            yield Queue(job.name)

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        del view, before
        job, placement = state.job, state.placement
        self._order[job.name] = self._arrivals
        self._arrivals += 1
        if placement is not None:
            self._free_capacity.allocate(job, placement)
            return
        workers = self._empty.workers(job, self._target_worker_count(job))
        if workers:
            self._queue.append((job, workers))
        else:  # only larger servers help, and these cause another resync
            self._too_large.add(job.name)

    def _remove_job(self, name: str) -> None:
        if self._order.pop(name, None) is None:
            return
        if name in self._too_large:
            self._too_large.remove(name)
            return
        if not self._free_capacity.release(name):
            self._queue = deque(entry for entry in self._queue if entry[0].name != name)
        self._blocked = False

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        displaced = []
        for name in names:
            if name not in self._free_capacity.placed:
                continue  # the job had lost its placement before the policy resumed
            job, placement = self._free_capacity.placed[name]
            self._free_capacity.release(name)
            wanted = placement.total_workers
            if job.worker_count_index(wanted) is None:  # a revision disallowed this worker count
                wanted = self._target_worker_count(job)
            workers = self._empty.workers(job, wanted)
            if workers:
                displaced.append((job, workers))
            else:
                self._too_large.add(name)
        entries = sorted([*displaced, *self._queue], key=lambda entry: self._order[entry[0].name])
        self._queue = deque(entries)
        self._blocked = False

    def _lose(self, server: int) -> None:
        self._free_capacity.lose(server)

    def _restore(self, server: int) -> None:
        self._free_capacity.restore(server)
        self._blocked = False

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Place jobs from the head of the queue until one doesn't fit."""
        del view, event
        if self._blocked:
            return
        queue = self._queue
        while queue:
            job, workers = queue[0]
            placement = self._free_capacity.place(job, workers)
            if placement is None:
                if not self._free_capacity.pristine:
                    break
                # In an empty cluster the job is known to fit if round robin starts at server 0.
                self._free_capacity.cursors[:] = 0
                placement = self._free_capacity.place(job, workers)
                if placement is None:
                    queue.popleft()
                    del self._order[job.name]
                    yield Drop(job.name, NO_PLACEMENT)
                    continue
            queue.popleft()
            yield Place(job.name, placement)
        self._blocked = bool(queue)
        if queue and self._parameters.backfill:
            yield from self._backfill()

    def _backfill(self) -> Iterator[Decision]:
        """Start those of the next ``backfill`` jobs behind the blocked head that fit."""
        head = self._queue.popleft()
        passed: list[tuple[Job, int]] = []
        while self._queue and len(passed) < self._parameters.backfill:
            job, workers = self._queue.popleft()
            placement = self._free_capacity.place(job, workers)
            if placement is None:
                passed.append((job, workers))
            else:
                yield Place(job.name, placement)
        self._queue.extendleft(reversed(passed))
        self._queue.appendleft(head)

"""FIFO, the default of Hadoop and Spark (OASiS, section V, (i))."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

from shadowprice.core.events import Decision, Drop, Place, PolicyEvent, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.quote import Quote
from shadowprice.policies.baselines.fixed import fixed_workers
from shadowprice.policies.baselines.parameters import FifoParameters
from shadowprice.policies.reactive.base import Reactive
from shadowprice.policies.reactive.room import NO_PLACEMENT, EmptyCluster, Room


class Fifo(Reactive[FifoParameters]):
    """Jobs run in the order of their arrival, each with a fixed number of workers.

    The first job that finds no room blocks all later ones, except for as many of those that wait
    next as ``backfill`` says. A job that loses a server goes back to its place in the queue and
    keeps its progress.

    Parameters
    ----------
    context : PolicyContext
        The cluster and the seed.
    parameters : FifoParameters
        What was set.

    Notes
    -----
    An event costs one attempt to place, plus one for each job that starts, whatever the length of
    the queue: arrivals behind a blocked head only queue.
    """

    capabilities: ClassVar = Capabilities(quotes=True)

    def __init__(self, context: PolicyContext, parameters: FifoParameters) -> None:
        super().__init__(context, parameters)
        self._workers_of = fixed_workers(parameters.workers, context.seed)
        self._empty = EmptyCluster(context.cluster)
        self._room = Room(context.cluster)
        self._order: dict[str, int] = {}
        self._queue: deque[tuple[Job, int]] = deque()
        self._arrivals = 0
        self._blocked = False

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued."""
        del explained  # there is one reason
        return self._empty.quote(job, self._workers_of(job), view.slot)

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        del view  # the policy keeps its own books
        for job in jobs:
            workers = self._empty.workers(job, self._workers_of(job))
            if not workers:
                yield Reject(job.name, NO_PLACEMENT)
                continue
            self._order[job.name] = self._arrivals
            self._arrivals += 1
            if len(self._queue) <= self._parameters.backfill:
                self._blocked = False  # within reach although the head is blocked
            self._queue.append((job, workers))
            yield Queue(job.name)

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        del view, before
        job, placement = state.job, state.placement
        self._order[job.name] = self._arrivals
        self._arrivals += 1
        if placement is not None:
            self._room.stand(job, placement)
            return
        wanted = self._workers_of(job)
        self._queue.append((job, self._empty.workers(job, wanted) or wanted))

    def _leave(self, name: str) -> None:
        if self._order.pop(name, None) is None:
            return
        if not self._room.release(name):
            self._queue = deque(entry for entry in self._queue if entry[0].name != name)
        self._blocked = False

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        back = []
        for name in names:
            if name not in self._room.standing:
                continue  # it was not standing any more when the policy resumed
            job, placement = self._room.standing[name]
            self._room.release(name)
            workers = placement.total_workers
            if job.choice_of(workers) is None:  # it was revised
                wanted = self._workers_of(job)
                workers = self._empty.workers(job, wanted) or wanted
            back.append((job, workers))
        entries = sorted([*back, *self._queue], key=lambda entry: self._order[entry[0].name])
        self._queue = deque(entries)
        self._blocked = False

    def _lose(self, server: int) -> None:
        self._room.lose(server)

    def _restore(self, server: int) -> None:
        self._room.restore(server)
        self._blocked = False

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Place from the head of the queue until a job finds no room."""
        del view, event
        if self._blocked:
            return
        queue = self._queue
        while queue:
            job, workers = queue[0]
            placement = self._room.place(job, workers)
            if placement is None:
                if not self._room.pristine:
                    break
                # The cursors stand where this mix of machines cannot take it: begin anew, where
                # it is known to fit.
                self._room.cursors[:] = 0
                placement = self._room.place(job, workers)
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
        """Let the next few that wait behind the blocked head run where they fit.

        Who runs does not wait any more: the one after the last of them comes within reach.
        """
        head = self._queue.popleft()
        passed: list[tuple[Job, int]] = []
        while self._queue and len(passed) < self._parameters.backfill:
            job, workers = self._queue.popleft()
            placement = self._room.place(job, workers)
            if placement is None:
                passed.append((job, workers))
            else:
                yield Place(job.name, placement)
        self._queue.extendleft(reversed(passed))
        self._queue.appendleft(head)


def build(context: PolicyContext, parameters: FifoParameters) -> Fifo:
    """Build the policy, as the registry asks."""
    return Fifo(context, parameters)

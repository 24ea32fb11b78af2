"""A priority queue with EASY or conservative backfilling, what Slurm does on batch clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED, parse_duration
from shadowprice.core.events import Decision, Drop, Place, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.backfill import Queued, backfill, fitting_now
from shadowprice.policies.baselines.fixed import fixed_workers
from shadowprice.policies.baselines.parameters import BackfillParameters
from shadowprice.policies.reactive.base import Reactive
from shadowprice.policies.reactive.room import NO_PLACEMENT, EmptyCluster, Room

Integers = NDArray[np.int64]


@dataclass(slots=True)
class _Waiting:
    """A job in the queue.

    Parameters
    ----------
    job : Job
        The job.
    workers : int
        Its fixed number of workers.
    order : int
        How many arrived before it.
    share : float
        Its dominant share of the cluster.
    length : int
        Slots that it is expected to run.
    """

    job: Job
    workers: int
    order: int
    share: float
    length: int


@dataclass(slots=True)
class _Running:
    """A job that runs.

    Parameters
    ----------
    entry : _Waiting
        What it was in the queue.
    ends : int
        Slot before which it is expected to be done.
    """

    entry: _Waiting
    ends: int


class Backfill(Reactive[BackfillParameters]):
    """Jobs start in order of priority; others may go before as long as they delay no reservation.

    A job keeps its workers until it is done. How long it runs is taken from its stated
    ``walltime``, at the end of which it is dropped, or else from its own remaining work at the
    width it has. A job that loses a server goes back to the queue and keeps its progress.

    Parameters
    ----------
    context : PolicyContext
        The cluster and the seed.
    parameters : BackfillParameters
        What was set.

    Notes
    -----
    Reservations are made anew in every slot in which jobs or their order changed and something in
    the queue fits at all, as Slurm's backfill scheduler does: a reservation is kept only as well
    as the estimates and priorities are.
    """

    capabilities: ClassVar = Capabilities(wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: BackfillParameters) -> None:
        super().__init__(context, parameters)
        self._workers_of = fixed_workers(parameters.workers, context.seed)
        self._empty = EmptyCluster(context.cluster)
        self._room = Room(context.cluster)
        span = parse_duration(parameters.max_age).in_slots(context.cluster.slot_seconds)
        self._max_age = max(float(span), 1e-9)
        limited = np.where(context.cluster.capacity >= UNLIMITED, 0, context.cluster.capacity)
        self._total = limited.astype(np.float64).sum(axis=0)
        self._queue: dict[str, _Waiting] = {}
        self._running: dict[str, _Running] = {}
        self._arrivals = 0
        self._looked_at: list[str] = []

    def _begin(self, view: View) -> Iterator[Decision]:
        yield from self._end_overdue(view, view.slot)
        yield from self._start(view.slot)

    def _lose(self, server: int) -> None:
        self._room.lose(server)

    def _restore(self, server: int) -> None:
        self._room.restore(server)

    def _displace(self, view: View, names: Sequence[str]) -> None:
        for name in names:
            if name in self._queue:
                continue  # it was not standing any more when the policy resumed
            self._room.release(name)
            entry = self._running.pop(name).entry
            self._queue[name] = entry
            entry.length = _expected(entry, view.open_jobs[name].remaining)

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        """Keep what stands where it stands, expected to end as its work says; queue the rest."""
        job, placement = state.job, state.placement
        wanted = self._workers_of(job)
        entry = self._entry(job, self._empty.workers(job, wanted) or wanted, state.remaining)
        if placement is None:
            self._queue[job.name] = entry
        else:
            self._room.stand(job, placement)
            ends = view.slot + entry.length
            if job.name in before._running:
                ends = before._running[job.name].ends
            self._running[job.name] = _Running(entry, ends)

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued."""
        del explained  # there is one reason
        return self._empty.quote(job, self._workers_of(job), view.slot)

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        del view  # what the empty cluster carries decides
        for job in jobs:
            workers = self._empty.workers(job, self._workers_of(job))
            if not workers:
                yield Reject(job.name, NO_PLACEMENT)
                continue
            self._queue[job.name] = self._entry(job, workers, job.required)
            yield Queue(job.name)

    def _entry(self, job: Job, workers: int, remaining: int) -> _Waiting:
        entry = _Waiting(job, workers, self._arrivals, self._share(job, workers), 0)
        entry.length = _expected(entry, remaining)
        self._arrivals += 1
        return entry

    def _share(self, job: Job, workers: int) -> float:
        used = workers * job.worker.astype(np.float64)
        used += job.ps_needed(workers) * self._room.ps_demand(job)
        there = self._total > 0
        return float((used[there] / self._total[there]).max(initial=0.0))

    def _leave(self, name: str) -> None:
        self._room.release(name)
        self._running.pop(name, None)
        self._queue.pop(name, None)

    def _end_overdue(self, view: View, slot: int) -> Iterator[Decision]:
        """Drop what ran for its wall time; expect what runs longer than estimated to end next."""
        for name, running in list(self._running.items()):
            if running.ends > slot:
                continue
            if running.entry.job.walltime is None:
                left = view.open_jobs[name].remaining
                running.ends = slot + max(1, -(-left // _gain(running.entry)))
                continue
            refusal = Refusal(
                Reason.POLICY,
                f"it ran for the wall time that it states, {running.entry.job.walltime} slots, "
                "without being done",
            )
            self._leave(name)
            self._changed = True
            yield Drop(name, refusal)

    # ------------------------------------------------------------ starting

    def _start(self, slot: int) -> Iterator[Decision]:
        if not self._queue:
            return
        ordered = self._ordered(slot)
        names = [entry.job.name for entry in ordered]
        if not self._changed and names == self._looked_at:
            return
        self._changed, self._looked_at = False, names
        queued = self._queued(ordered)
        # What comes after the last job that fits now cannot start, nor delay one that could.
        count = fitting_now(self._room.free, queued)
        if not count:
            return
        starts = np.empty(count, dtype=np.int64)
        new = (np.zeros((count, self._cluster.servers), dtype=np.int64) for _ in range(2))
        new_workers, new_ps = new
        if not self._running:
            # In the empty cluster a job fits for sure where round robin begins anew.
            self._room.cursors[:] = 0
        reservations = 1 if self._parameters.mode == "easy" else count
        profile = self._profile(slot, count)
        backfill(*profile, queued, self._room.cursors, reservations, starts, new_workers, new_ps)
        for at in np.flatnonzero(starts == slot).tolist():
            entry = ordered[at]
            placement = _placement(new_workers[at], new_ps[at])
            self._room.stand(entry.job, placement)
            del self._queue[entry.job.name]
            self._running[entry.job.name] = _Running(entry, slot + entry.length)
            yield Place(entry.job.name, placement)

    def _queued(self, ordered: Sequence[_Waiting]) -> Queued:
        """Return jobs in order as the rows that kernels read."""
        jobs = [entry.job for entry in ordered]
        workers = [entry.workers for entry in ordered]
        needed = [entry.job.ps_needed(entry.workers) for entry in ordered]
        return Queued(
            np.stack([job.worker for job in jobs]),
            np.stack([self._room.ps_demand(job) for job in jobs]),
            np.array(workers, dtype=np.int64),
            np.array(needed, dtype=np.int64),
            np.array([entry.length for entry in ordered], dtype=np.int64),
            self._room.hosts_workers,
            self._room.hosts_ps,
        )

    def _ordered(self, slot: int) -> list[_Waiting]:
        """Return the jobs to look at, in order of priority."""
        entries = sorted(self._queue.values(), key=lambda entry: entry.order)
        if self._parameters.rule == "shortest":
            entries.sort(key=lambda entry: entry.length)
        elif self._parameters.rule == "multifactor":
            priority = {entry.order: self._priority(entry, slot) for entry in entries}
            entries.sort(key=lambda entry: -priority[entry.order])
        return entries[: self._parameters.depth]

    def _priority(self, entry: _Waiting, slot: int) -> float:
        """Return Slurm's multifactor sum, for the factors that there are here."""
        set_ = self._parameters
        age = min((slot - entry.job.arrival) / self._max_age, 1.0)
        return set_.age * age + set_.size * entry.share + set_.stated * entry.job.priority

    def _profile(self, slot: int, more: int) -> tuple[Integers, Integers, int]:
        """Return when what is free changes as running jobs end, and what is free from then on."""
        ends = sorted({running.ends for running in self._running.values()})
        spans = 1 + len(ends)
        times = np.zeros(spans + more, dtype=np.int64)
        times[:spans] = [slot, *ends]
        free = np.zeros((spans + more, *self._room.free.shape), dtype=np.int64)
        free[:spans] = self._room.free
        at = {end: span for span, end in enumerate(ends, start=1)}
        for name, running in self._running.items():
            job, placement = self._room.standing[name]
            after = free[at[running.ends] : spans]
            for server, workers, ps in zip(
                placement.servers, placement.workers, placement.ps, strict=True
            ):
                after[:, server] += workers * job.worker
                if job.ps is not None:
                    after[:, server] += ps * job.ps
        return times, free, spans


def _gain(entry: _Waiting) -> int:
    return entry.job.gain(entry.workers)


def _expected(entry: _Waiting, remaining: int) -> int:
    """Return the slots that a job is expected to run: what it states, or its own work."""
    if entry.job.walltime is not None:
        return entry.job.walltime
    return max(1, -(-remaining // _gain(entry)))


def _placement(workers: Integers, ps: Integers) -> Placement:
    at = np.flatnonzero(workers + ps)
    return Placement(tuple(at.tolist()), tuple(workers[at].tolist()), tuple(ps[at].tolist()))


def build(context: PolicyContext, parameters: BackfillParameters) -> Backfill:
    """Build the policy, as the registry asks."""
    return Backfill(context, parameters)

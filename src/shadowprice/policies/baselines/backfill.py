"""A priority queue with EASY or conservative backfilling, what Slurm does on batch clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED, parse_duration
from shadowprice.core.events import (
    Decision,
    Drop,
    JobCancelled,
    JobsArrived,
    JobsDisplaced,
    JobsFinished,
    Place,
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
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.backfill import backfill, fitting_now
from shadowprice.policies.baselines.fixed import fixed_workers
from shadowprice.policies.baselines.parameters import BackfillParameters
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


class Backfill:
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

    capabilities: Final = Capabilities(wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: BackfillParameters) -> None:
        self._context = replace(context, known_jobs=None)
        self._parameters = parameters
        self._cluster = context.cluster
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
        self._changed = False
        self._looked_at: list[str] = []

    def resume(self, view: View) -> None:
        """Keep what stands where it stands, expected to end as its work says; queue the rest."""
        ends = {name: running.ends for name, running in self._running.items()}
        Backfill.__init__(self, replace(self._context, cluster=view.cluster), self._parameters)
        for server in servers_out(view):
            self._room.lose(server)
        for name, state in view.open_jobs.items():
            job, placement = state.job, state.placement
            wanted = self._workers_of(job)
            workers = self._empty.workers(job, wanted) or wanted
            entry = _Waiting(job, workers, self._arrivals, self._share(job, workers), 0)
            entry.length = _expected(entry, state.remaining)
            self._arrivals += 1
            if placement is None:
                self._queue[name] = entry
            else:
                self._room.stand(job, placement)
                self._running[name] = _Running(entry, ends.get(name, view.slot + entry.length))
        self._changed = True

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force."""
        return self._parameters.model_dump()

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        match event:
            case SlotBegan(slot):
                yield from self._end_overdue(view, slot)
                yield from self._start(slot)
                return
            case JobsArrived(_, jobs):
                yield from self._take_in(jobs)
            case JobsFinished(_, names):
                for name in names:
                    self._leave(name)
            case JobCancelled(_, name):
                self._leave(name)
            case JobsDisplaced(_, names):
                for name in names:
                    if name in self._queue:
                        continue  # it was not standing any more when the policy resumed
                    self._room.release(name)
                    entry = self._running.pop(name).entry
                    self._queue[name] = entry
                    entry.length = _expected(entry, view.open_jobs[name].remaining)
            case ServerLost(_, _, server):
                self._room.lose(server)
            case ServerBack(_, _, server):
                self._room.restore(server)
        self._changed = True

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued."""
        del explained  # there is one reason
        return self._empty.quote(job, self._workers_of(job), view.slot)

    def _take_in(self, jobs: Iterable[Job]) -> Iterator[Decision]:
        for job in jobs:
            workers = self._empty.workers(job, self._workers_of(job))
            if not workers:
                yield Reject(job.name, NO_PLACEMENT)
                continue
            entry = _Waiting(job, workers, self._arrivals, self._share(job, workers), 0)
            entry.length = _expected(entry, job.required)
            self._arrivals += 1
            self._queue[job.name] = entry
            yield Queue(job.name)

    def _share(self, job: Job, workers: int) -> float:
        used = workers * job.worker.astype(np.float64)
        used += job.ps_needed(workers) * self._room.ps_demand(job)
        there = self._total > 0
        return float((used[there] / self._total[there]).max(initial=0.0))

    def _leave(self, name: str) -> None:
        """Forget a job that finished, was dropped or cancelled."""
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
        jobs = [entry.job for entry in ordered]
        worker = np.stack([job.worker for job in jobs])
        ps = np.stack([self._room.ps_demand(job) for job in jobs])
        workers = np.array([entry.workers for entry in ordered], dtype=np.int64)
        needed = np.array(
            [job.ps_needed(entry.workers) for job, entry in zip(jobs, ordered, strict=True)],
            dtype=np.int64,
        )
        hosts = (self._room.hosts_workers, self._room.hosts_ps)
        # What comes after the last job that fits now cannot start, nor delay one that could.
        count = fitting_now(self._room.free, worker, ps, workers, needed, *hosts)
        if not count:
            return
        lengths = np.array([entry.length for entry in ordered], dtype=np.int64)
        starts = np.empty(count, dtype=np.int64)
        servers = self._cluster.servers
        new_workers = np.zeros((count, servers), dtype=np.int64)
        new_ps = np.zeros((count, servers), dtype=np.int64)
        if not self._running:
            # In the empty cluster a job fits for sure where round robin begins anew.
            self._room.cursors[:] = 0
        times, free, spans = self._profile(slot, count)
        backfill(
            times,
            free,
            spans,
            worker[:count],
            ps[:count],
            workers[:count],
            needed[:count],
            lengths[:count],
            *hosts,
            self._room.cursors,
            1 if self._parameters.mode == "easy" else count,
            starts,
            new_workers,
            new_ps,
        )
        for at in np.flatnonzero(starts == slot).tolist():
            entry = ordered[at]
            placement = _placement(new_workers[at], new_ps[at])
            self._room.stand(entry.job, placement)
            del self._queue[entry.job.name]
            self._running[entry.job.name] = _Running(entry, slot + entry.length)
            yield Place(entry.job.name, placement)

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

"""Priority queue with EASY or conservative backfilling, as Slurm runs batch clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED, parse_duration
from shadowprice.core.arrays import Integers
from shadowprice.core.events import Decision, Drop, Place, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.backfill import (
    QueueArrays,
    ReleasedCapacity,
    backfill,
    last_startable,
)
from shadowprice.policies.baselines import BackfillParameters
from shadowprice.policies.reactive.base import QueueingPolicy
from shadowprice.policies.reactive.free_capacity import NO_PLACEMENT, FreeCapacity


@dataclass(slots=True)
class QueuedJob:
    """A queued job."""

    job: Job
    workers: int
    order: int  # position among all arrivals
    share: float  # dominant, of the cluster
    length: int  # expected run time in slots


class JobQueue:
    """Queued jobs in order of arrival."""

    def __init__(self, resources: int) -> None:
        integers = ("order", "arrival", "length", "workers", "servers")
        self._fields: list[Any] = [
            *((name, np.int64) for name in integers),
            *((name, np.float64) for name in ("share", "stated")),
            *((name, np.int64, (resources,)) for name in ("worker", "ps")),
        ]
        # The fields decide the order and the placement: `arrival` is a slot, `stated` the job's
        # priority, `servers` a number of PS; `worker` and `ps` are the demands of one process by
        # resource.
        self.rows = np.zeros(0, dtype=self._fields)
        self._entries: dict[int, QueuedJob] = {}
        self._orders: dict[str, int] = {}

    def entry(self, order: int) -> QueuedJob:
        """Return the job with this arrival number."""
        return self._entries[order]

    def insert(self, entries: Sequence[QueuedJob]) -> None:
        """Insert jobs at their positions in the order of arrival."""
        if not entries:
            return
        added = np.zeros(len(entries), dtype=self._fields)
        for row, entry in zip(
            added, sorted(entries, key=lambda waiting: waiting.order), strict=True
        ):
            job = entry.job
            row["order"], row["arrival"], row["length"] = entry.order, job.arrival, entry.length
            row["workers"], row["servers"] = entry.workers, job.ps_needed(entry.workers)
            row["share"], row["stated"] = entry.share, job.priority
            row["worker"], row["ps"] = job.worker, 0 if job.ps is None else job.ps
            self._entries[entry.order] = entry
            self._orders[job.name] = entry.order
        positions = np.searchsorted(self.rows["order"], added["order"])
        self.rows = np.insert(self.rows, positions, added)

    def remove(self, names: Iterable[str]) -> None:
        """Remove jobs; names that aren't queued are ignored."""
        orders = [self._orders.pop(name) for name in names if name in self._orders]
        if not orders:
            return
        for order in orders:
            del self._entries[order]
        self.rows = np.delete(self.rows, np.searchsorted(self.rows["order"], orders))


Rows = NDArray[np.void]


@dataclass(slots=True)
class _Running:
    """A running job."""

    entry: QueuedJob
    start: int  # slot in which it started
    ends: int  # first slot in which it is expected not to run
    servers: Integers  # of its placement
    amounts: Integers  # resources that it releases on each of them when it ends


class BackfillPolicy(QueueingPolicy[BackfillParameters]):
    """Start jobs in order of priority; later jobs go first if they delay no reservation.

    A job keeps its workers until it ends. Its expected run time is its ``walltime``, after which it
    is abandoned, or else its remaining work at its worker count. A job that loses a server returns
    to the queue with its progress. Like Slurm's backfill scheduler, all reservations are recomputed
    when jobs or their order changed, so they are only as reliable as the estimates and priorities.
    """

    capabilities: ClassVar = Capabilities(wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: BackfillParameters) -> None:
        super().__init__(context, parameters)
        self._free_capacity = FreeCapacity(context.cluster)
        span = parse_duration(parameters.max_age).in_slots(context.cluster.slot_seconds)
        self._max_age = max(float(span), 1e-9)
        limited = np.where(context.cluster.capacity >= UNLIMITED, 0, context.cluster.capacity)
        self._total = limited.astype(np.float64).sum(axis=0)
        self._waiting = JobQueue(len(context.cluster.resources))
        self._resumed: list[QueuedJob] = []  # queued jobs during a resync
        self._running: dict[str, _Running] = {}
        self._none = np.zeros((0, len(context.cluster.resources)), dtype=np.int64)
        self._arrivals = 0
        self._last_order: Integers = np.zeros(0, dtype=np.int64)

    def _begin(self, view: View) -> Iterator[Decision]:
        yield from self._end_overdue(view, view.slot)
        yield from self._start(view.slot)

    def _lose(self, server: int) -> None:
        self._free_capacity.lose(server)

    def _restore(self, server: int) -> None:
        self._free_capacity.restore(server)

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        del view, names
        self._changed = True  # reservations behind these jobs move

    def _displace(self, view: View, names: Sequence[str]) -> None:
        displaced = []
        for name in names:
            if name not in self._running:
                continue  # the job had lost its placement before the policy resumed
            self._free_capacity.release(name)
            entry = self._running.pop(name).entry
            entry.length = _expected_slots(entry.job, entry.workers, view.open_jobs[name].remaining)
            displaced.append(entry)
        self._waiting.insert(displaced)

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        """Resume an open job: keep its placement and expected end, or queue it."""
        job, placement = state.job, state.placement
        wanted = self._target_worker_count(job)
        entry = self._entry(job, self._empty.workers(job, wanted) or wanted, state.remaining)
        if placement is None:
            self._resumed.append(entry)
            return
        running = before._running.get(job.name)
        start = view.slot if running is None else running.start
        ends = view.slot + _slots(job, entry.workers, state.remaining)
        if job.walltime is not None:
            ends = start + job.walltime
        elif running is not None and running.entry.job is job:
            ends = running.ends  # the estimate is extended only once it has passed
        self._run(entry, placement, start, ends)

    def _keep_learnt_state(self, before: Self) -> None:
        del before  # nothing else outlives a resync
        # All at once: each insertion copies the queue.
        self._waiting.insert(self._resumed)
        self._resumed = []

    def _target_worker_count(self, job: Job) -> int:
        return self._parameters.worker_count(job, self._context.seed)

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        del view  # only the capacity of the empty cluster decides
        entries = []
        for job in jobs:
            workers = self._empty.workers(job, self._target_worker_count(job))
            if not workers:
                yield Reject(job.name, NO_PLACEMENT)
                continue
            entries.append(self._entry(job, workers, job.required))
            yield Queue(job.name)
        self._waiting.insert(entries)

    def _entry(self, job: Job, workers: int, remaining: int) -> QueuedJob:
        self._arrivals += 1
        return QueuedJob(
            job,
            workers,
            self._arrivals,
            self._share(job, workers),
            _expected_slots(job, workers, remaining),
        )

    def _run(self, entry: QueuedJob, placement: Placement, start: int, ends: int) -> None:
        """Record a job's placement from now on."""
        job = entry.job
        self._free_capacity.allocate(job, placement)
        amounts = np.outer(placement.workers, job.worker)
        amounts += np.outer(placement.ps, self._free_capacity.ps_demand(job))
        servers = np.array(placement.servers, dtype=np.int64)
        self._running[job.name] = _Running(entry, start, ends, servers, amounts)

    def _share(self, job: Job, workers: int) -> float:
        used = workers * job.worker.astype(np.float64)
        used += job.ps_needed(workers) * self._free_capacity.ps_demand(job)
        limited = self._total > 0
        return float((used[limited] / self._total[limited]).max(initial=0.0))

    def _remove_job(self, name: str) -> None:
        self._free_capacity.release(name)
        self._running.pop(name, None)
        self._waiting.remove([name])

    def _end_overdue(self, view: View, slot: int) -> Iterator[Decision]:
        """Abandon jobs whose wall time is over; extend estimates of jobs that run longer."""
        for name, running in list(self._running.items()):
            if running.ends > slot:
                continue
            if running.entry.job.walltime is None:
                remaining = view.open_jobs[name].remaining
                running.ends = slot + _slots(running.entry.job, running.entry.workers, remaining)
                continue
            refusal = Refusal(
                RefusalReason.POLICY,
                f"it ran for the wall time that it states, {running.entry.job.walltime} slots, "
                "without being done",
            )
            self._remove_job(name)
            self._changed = True
            yield Drop(name, refusal)

    # ------------------------------------------------------------ starting

    def _start(self, slot: int) -> Iterator[Decision]:
        rows = self._by_priority(slot)
        orders = rows["order"]
        if not self._changed and np.array_equal(orders, self._last_order):
            return
        self._changed, self._last_order = False, orders
        columns = ("worker", "ps", "workers", "servers", "length")
        hosts = self._free_capacity.hosts_workers, self._free_capacity.hosts_ps
        worker, ps, workers, servers, lengths = (np.ascontiguousarray(rows[c]) for c in columns)
        queued = QueueArrays(worker, ps, workers, servers, lengths, *hosts)
        # Jobs after the last one that fits now can't start, and delay none that could.
        count = last_startable(self._free_capacity.free, queued)
        if not count:
            return
        if not self._running:
            # In an empty cluster a job is known to fit if round robin starts at server 0.
            self._free_capacity.cursors[:] = 0
        placed = backfill(
            slot, self._free_capacity.free.copy(), self._releases(), queued,
            self._free_capacity.cursors,
            1 if self._parameters.mode == "easy" else count, np.empty(count, dtype=np.int64),
        )  # fmt: skip
        started = []
        for index in np.unique(placed[:, 0]).tolist():
            entry = self._waiting.entry(int(orders[index]))
            servers, workers, ps = placed[placed[:, 0] == index, 1:].T.tolist()
            placement = Placement(tuple(servers), tuple(workers), tuple(ps))
            self._run(entry, placement, slot, slot + entry.length)
            started.append(Place(entry.job.name, placement))
        self._waiting.remove([placing.job for placing in started])
        yield from started

    def _releases(self) -> ReleasedCapacity:
        """Return the resources that running jobs will release, in order of time."""
        running = sorted(self._running.values(), key=lambda job: job.ends)
        slots = np.array([job.ends for job in running], dtype=np.int64)
        return ReleasedCapacity(
            np.repeat(slots, [len(job.servers) for job in running]),
            np.concatenate([self._none[:, 0], *(job.servers for job in running)]),
            np.concatenate([self._none, *(job.amounts for job in running)]),
        )

    def _by_priority(self, slot: int) -> Rows:
        """Return the first `depth` jobs in order of priority, equal ones in order of arrival."""
        parameters, rows = self._parameters, self._waiting.rows
        if parameters.rule == "arrival":
            return rows[: parameters.depth]
        if parameters.rule == "shortest":
            key = rows["length"]
        else:  # Slurm's multifactor sum, with the factors known here
            age = np.minimum((slot - rows["arrival"]) / self._max_age, 1.0)
            key = -(
                parameters.age_weight * age
                + parameters.size_weight * rows["share"]
                + parameters.priority_weight * rows["stated"]
            )
        return rows[np.argsort(key, kind="stable")[: parameters.depth]]


def _slots(job: Job, workers: int, remaining: int) -> int:
    """Return the slots in which this many workers complete the remaining work."""
    return max(1, -(-remaining // job.gain(workers)))


def _expected_slots(job: Job, workers: int, remaining: int) -> int:
    """Return a job's expected run time in slots: the stated wall time, or from its work."""
    return _slots(job, workers, remaining) if job.walltime is None else job.walltime

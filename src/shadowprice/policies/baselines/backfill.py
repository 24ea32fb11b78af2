"""Priority queue with EASY or conservative backfilling, as in Slurm.

*Backfilling* starts a later job before a waiting one that doesn't fit yet, if that doesn't delay
the reserved start of the waiting job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from shadowprice.core.amounts import UNLIMITED, parse_duration
from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.events import Decision, Drop, Place
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
from shadowprice.policies.placements import demand_by_server
from shadowprice.policies.reactive.base import QueueingPolicy
from shadowprice.policies.reactive.free_capacity import FreeCapacity
from shadowprice.policies.reactive.table import JobRows


@dataclass(slots=True)
class _Running:
    job: Job
    start: int  # slot in which it started
    end: int  # first slot after its expected end
    servers: Integers  # of its placement
    amounts: Integers  # resources that it uses on each of these servers


class BackfillPolicy(QueueingPolicy[BackfillParameters]):
    """Start jobs in order of priority; backfill later jobs that delay no reservation.

    A job keeps its workers until it ends. Its expected run time is its ``walltime``, after which it
    is dropped, or without one the time of its remaining work. A job that loses a server returns to
    the queue with its progress. As in Slurm's backfill scheduler, all reservations are computed
    again when jobs or their order have changed. So they are only as reliable as the estimates and
    priorities.
    """

    capabilities: ClassVar = Capabilities(wakes_every_slot=True, quotes=True)

    def __init__(self, context: PolicyContext, parameters: BackfillParameters) -> None:
        super().__init__(context, parameters)
        self._servers = self._free_capacity = FreeCapacity(context.cluster)
        span = parse_duration(parameters.max_age).in_slots(context.cluster.slot_seconds)
        self._max_age = max(float(span), 1e-9)  # slots
        limited = np.where(context.cluster.capacity >= UNLIMITED, 0, context.cluster.capacity)
        self._total = limited.astype(np.float64).sum(axis=0)
        resources = len(context.cluster.resources)
        self._table = JobRows(context.cluster)
        self._columns = self._table.columns
        # `length` is the expected run time in slots; `worker` and `ps` are demands.
        self._table.add_columns("arrival", "length", "workers", "ps_count")
        self._table.add_columns("share", "priority", dtype=np.float64)
        self._table.add_columns("worker", "ps", width=[resources])
        self._table.add_columns("is_queued", dtype=np.bool_)
        self._running: dict[str, _Running] = {}
        self._none = np.zeros((0, resources), dtype=np.int64)  # for `_releases` of no job
        self._last_order: Integers = np.zeros(0, dtype=np.int64)

    def _begin(self, view: View) -> Iterator[Decision]:
        yield from self._end_overdue(view, view.slot)
        yield from self._start(view.slot)

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        del view, names
        self._changed = True  # these jobs end later, so reservations may change

    def _displace(self, view: View, names: Sequence[str]) -> None:
        for name in names:
            running = self._running.pop(name, None)
            if running is None:
                continue  # `resume` has already queued it
            self._free_capacity.release(name)
            self._columns["is_queued"][self._table.rows[name]] = True
            self._expect(running.job, view.open_jobs[name].remaining)

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        """Add an open job: keep its placement and expected end, or queue it."""
        job, placement = state.job, state.placement
        wanted = self._target_worker_count(job)
        self._enter(job, self._empty.workers(job, wanted) or wanted)
        self._expect(job, state.remaining)
        if placement is None:
            return
        running = before._running.get(job.name)
        start = view.slot if running is None else running.start
        end = view.slot + self._slots(job, state.remaining)
        if job.walltime is not None:
            end = start + job.walltime
        elif running is not None and running.job is job:
            end = running.end  # an estimate only changes after it has passed
        self._run(job, placement, start, end)

    def _target_worker_count(self, job: Job) -> int:
        return self._parameters.worker_count(job, self._context.seed)

    def _enter(self, job: Job, workers: int) -> None:
        row, columns = self._table.add(job), self._columns
        columns["arrival"][row], columns["priority"][row] = job.arrival, job.priority
        columns["workers"][row], columns["ps_count"][row] = workers, job.ps_needed(workers)
        columns["worker"][row] = job.worker
        columns["ps"][row] = self._free_capacity.ps_demand(job)
        columns["share"][row] = self._share(job, workers)
        columns["is_queued"][row] = True
        self._expect(job, job.required)

    def _expect(self, job: Job, remaining: int) -> None:
        """Set a job's expected run time: its wall time, or the time of its remaining work."""
        slots = self._slots(job, remaining) if job.walltime is None else job.walltime
        self._columns["length"][self._table.rows[job.name]] = slots

    def _slots(self, job: Job, remaining: int) -> int:
        """Return the slots that a job's workers need for the remaining work."""
        workers = int(self._columns["workers"][self._table.rows[job.name]])
        return max(1, -(-remaining // job.gain(workers)))

    def _run(self, job: Job, placement: Placement, start: int, end: int) -> None:
        """Record that a job runs, with its placement and expected end."""
        self._free_capacity.allocate(job, placement)
        amounts = demand_by_server(job, placement.workers, placement.ps)
        servers = np.array(placement.servers, dtype=np.int64)
        self._running[job.name] = _Running(job, start, end, servers, amounts)
        self._columns["is_queued"][self._table.rows[job.name]] = False

    def _share(self, job: Job, workers: int) -> float:  # the dominant share
        used = workers * job.worker.astype(np.float64)
        used += job.ps_needed(workers) * self._free_capacity.ps_demand(job)
        limited = self._total > 0
        return float((used[limited] / self._total[limited]).max(initial=0.0))

    def _remove_job(self, name: str) -> None:
        self._free_capacity.release(name)
        self._running.pop(name, None)
        if name in self._table.rows:
            self._table.remove(name)

    def _end_overdue(self, view: View, slot: int) -> Iterator[Decision]:
        """Drop jobs whose wall time is over; extend the estimates of others that run longer."""
        for name, running in list(self._running.items()):
            if running.end > slot:
                continue
            if running.job.walltime is None:
                running.end = slot + self._slots(running.job, view.open_jobs[name].remaining)
                continue
            refusal = Refusal(
                RefusalReason.POLICY,
                f"it didn't complete within its wall time of {running.job.walltime} slots",
            )
            self._remove_job(name)
            self._changed = True
            yield Drop(name, refusal)

    # ------------------------------------------------------------ starting

    def _start(self, slot: int) -> Iterator[Decision]:
        rows = self._by_priority(slot)
        if not self._changed and np.array_equal(rows, self._last_order):
            return
        self._changed, self._last_order = False, rows
        names = ("worker", "ps", "workers", "ps_count", "length")
        hosts = self._free_capacity.hosts_workers, self._free_capacity.hosts_ps
        worker, ps, workers, ps_counts, lengths = (self._columns[name][rows] for name in names)
        queued = QueueArrays(worker, ps, workers, ps_counts, lengths, *hosts)
        # Jobs after the last one that fits now can't start, and can't delay earlier ones.
        count = last_startable(self._free_capacity.free, queued)
        if not count:
            return
        if not self._running:
            # Jobs were only admitted if they fit an empty cluster with cursors at server 0.
            self._free_capacity.cursors[:] = 0
        placed = backfill(
            slot, self._free_capacity.free.copy(), self._releases(), queued,
            self._free_capacity.cursors,
            1 if self._parameters.mode == "easy" else count, np.empty(count, dtype=np.int64),
        )  # fmt: skip
        started = []
        for index in np.unique(placed[:, 0]).tolist():
            row = int(rows[index])
            servers, workers, ps = placed[placed[:, 0] == index, 1:].T.tolist()
            placement = Placement(tuple(servers), tuple(workers), tuple(ps))
            job = self._table.job(row)
            self._run(job, placement, slot, slot + int(self._columns["length"][row]))
            started.append(Place(job.name, placement))
        yield from started

    def _releases(self) -> ReleasedCapacity:
        """Return the resources that running jobs will release, in order of expected end."""
        running = sorted(self._running.values(), key=lambda job: job.end)
        slots = np.array([job.end for job in running], dtype=np.int64)
        return ReleasedCapacity(
            np.repeat(slots, [len(job.servers) for job in running]),
            np.concatenate([self._none[:, 0], *(job.servers for job in running)]),
            np.concatenate([self._none, *(job.amounts for job in running)]),
        )

    def _by_priority(self, slot: int) -> Integers:
        """Return the rows of the first ``depth`` queued jobs by priority, ties by arrival."""
        parameters, columns, rows = self._parameters, self._columns, self._table.in_order()
        is_queued: Flags = columns["is_queued"]
        rows = rows[is_queued[rows]]
        if parameters.rule == "arrival":
            return rows[: parameters.depth]
        if parameters.rule == "shortest":
            key = columns["length"][rows]
        else:  # Slurm's priority/multifactor, without factors that this model doesn't have
            age = np.minimum((slot - columns["arrival"][rows]) / self._max_age, 1.0)
            key = -(
                parameters.age_weight * age
                + parameters.size_weight * columns["share"][rows]
                + parameters.priority_weight * columns["priority"][rows]
            )
        return rows[np.argsort(key, kind="stable")[: parameters.depth]]

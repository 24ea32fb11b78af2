"""Checks of a job's own constraints before a decision is applied.

The ledger checks capacity, constraints (4) and (5) of OASiS. This module checks the others: (2),
(3), (6), (7), the servers' roles, and the window. For policies that declare
`local_traffic_is_free`, Astraea's (3i) replaces (6).

A bag's workers are copies of tasks. All copies start in the first slot of the plan, and afterwards
copies only end. So the number of workers never grows from slot to slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.bag import Bag, TaskCopies
from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.errors import PolicyError
from shadowprice.core.events import Place
from shadowprice.core.job import Job
from shadowprice.core.potential import progress_and_loss
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.engine.job_record import JobRecord


def check_commitment(
    record: JobRecord,
    plan: Schedule,
    cluster: Cluster,
    end: int,
    *,
    moved: NDArray[np.bool_] | None = None,
    local_free: bool = False,
    unstoppable: bool = False,
) -> None:
    """Check a schedule against all constraints except capacity.

    ``end`` is the first slot that no plan may use. ``moved`` (active slots,) marks slots that begin
    with a restart, if restarts cost time; see `Schedule.moved`. With ``local_free``, parameter
    servers only serve workers on other servers. The plan of an ``unstoppable`` job, which runs and
    must keep its placement, may end with the planning horizon without completing the job.

    Raise `PolicyError` if a constraint is broken; the message includes the job's history.
    """
    job = record.job
    if not len(plan):
        raise record.error("committed to an empty schedule")
    if plan.completion >= end:
        raise record.error(
            f"planned for slot {plan.completion}, but no plan may use slot {end} or later"
        )
    _check_roles(record, plan.servers, plan.workers, plan.ps, cluster)
    workers, ps, colocated = plan.totals()
    choices = _check_counts(record, workers, ps, local_free=local_free)
    if local_free:
        elsewhere = workers[np.searchsorted(plan.active_slots, plan.slots)] - plan.workers
        _check_reach(record, elsewhere, plan.ps)
    progress, lost = progress_and_loss(job, choices, colocated, moved)
    suffices = progress - lost >= record.remaining
    if not suffices and not (unstoppable and plan.completion == end - 1):
        raise record.error(
            f"the schedule makes {progress - lost} progress units of "
            f"the {record.remaining} that remain (2)"
            + (f"; {lost} are lost to {int(moved.sum())} restarts" if moved is not None else "")
        )


def check_placement(
    record: JobRecord, placement: Placement, cluster: Cluster, *, local_free: bool = False
) -> None:
    """Check a placement against all constraints except capacity.

    If ``local_free``, parameter servers only serve workers on other servers. Raises PolicyError if
    a constraint is broken; the message includes the job's history.
    """
    if not placement.servers:
        raise record.error("placed on no server; pause it instead")
    # Plain integers: arrays would cost more than checking the few servers of a placement.
    for server, workers, ps in zip(placement.servers, placement.workers, placement.ps, strict=True):
        _check_entry(record, server, workers, ps, cluster)
    job, workers, ps = record.job, placement.total_workers, placement.total_ps
    choice = job.worker_count_index(workers)
    if choice is None:
        raise _wrong_count(record, workers)
    needed = int(job.ps_counts[choice])
    if local_free:
        needed = min(needed, 1)
        elsewhere = np.array([workers - local for local in placement.workers])
        _check_reach(record, elsewhere, np.array(placement.ps))
    if not needed <= ps <= (needed if job.ps is None else max(workers, needed)):
        raise _wrong_ps(record, [workers], [ps])


def check_bag(
    record: JobRecord, plan: Schedule, copies: Sequence[TaskCopies], cluster: Cluster, end: int
) -> None:
    """Check a bag's schedule and copies against all rules except capacity.

    ``copies`` must cover every remaining task. ``end`` is the first slot that no plan may use.
    Raises PolicyError, with the job's history, if a rule is broken.
    """
    bag = record.job.bag
    if bag is None:
        raise record.error("committed with copies, but isn't a bag of tasks")
    if not len(plan):
        raise record.error("committed to an empty schedule")
    last = record.job.arrival + bag.slots - 1
    if plan.completion >= end or plan.completion > last:
        raise record.error(
            f"planned for slot {plan.completion}, but no plan may use slot "
            f"{min(end, last + 1)} or later"
        )
    _check_roles(record, plan.servers, plan.workers, plan.ps, cluster)
    if plan.ps.any():
        raise record.error("a bag of tasks has no parameter servers")
    started = _check_tasks(record, bag, copies)
    workers, _, _ = plan.totals()
    if int(workers[0]) != started:
        raise record.error(f"{int(workers[0])} workers in the first slot for {started} copies")
    if (np.diff(plan.active_slots) != 1).any() or (np.diff(workers) > 0).any():
        raise record.error(
            f"copies run without a break and none starts later, but the plan has "
            f"{workers.tolist()} workers in slots {plan.active_slots.tolist()}"
        )


def _check_tasks(record: JobRecord, bag: Bag, copies: Sequence[TaskCopies]) -> int:
    """Check that the copies cover all remaining tasks; return the number of copies."""
    task_counts = np.zeros(len(bag.groups), dtype=np.int64)
    for entry in copies:
        if not 0 <= entry.group < len(task_counts) or entry.tasks < 1 or entry.copies < 1:
            raise record.error(f"{tuple(entry)} are not copies of its tasks")
        task_counts[entry.group] += entry.tasks
    if tuple(task_counts.tolist()) != record.tasks_left:
        raise record.error(
            f"copies for {task_counts.tolist()} tasks by group, but "
            f"{list(record.tasks_left)} remain"
        )
    return sum(entry.tasks * entry.copies for entry in copies)


def check_copies(record: JobRecord, decision: Place, cluster: Cluster, slot: int) -> None:
    """Check a bag's placement for the coming slot against all rules except capacity.

    The decision starts new copies, or keeps some of the workers of the running copies. Raises
    PolicyError, with the job's history, if a rule is broken.
    """
    bag, placement = record.job.bag, decision.placement
    if bag is None:
        raise record.error("placed with copies, but isn't a bag of tasks")
    if not placement.servers:
        raise record.error("placed on no server; pause it instead")
    last = record.job.arrival + bag.slots - 1
    if slot > last:
        raise record.error(f"placed in slot {slot}, but its deadline fell in slot {last}")
    columns = (placement.servers, placement.workers, placement.ps)
    servers, workers, ps = (np.array(column, dtype=np.int64) for column in columns)
    _check_roles(record, servers, workers, ps, cluster)
    if ps.any():
        raise record.error("a bag of tasks has no parameter servers")
    if decision.copies:
        started = _check_tasks(record, bag, decision.copies)
        if placement.total_workers != started:
            raise record.error(f"{placement.total_workers} workers for {started} copies")
        return
    present = record.placement
    current = {} if present is None else dict(zip(present.servers, present.workers, strict=True))
    for server, count in zip(placement.servers, placement.workers, strict=True):
        if count > current.get(server, 0):
            raise record.error(
                f"without new copies, it is placed with {count} workers "
                f"on server {server}, where only {current.get(server, 0)} run"
            )


def never_fits(job: Job, cluster: Cluster, *, local_free: bool = False) -> Refusal | None:
    """Return why a job can't run even in an empty cluster, None if nothing forbids it.

    The check covers the minimum worker count and its parameter servers, each against all servers of
    the role. If local traffic is free, one parameter server is the minimum. It is a necessary
    condition: a job that fails here fails in any state of the cluster.
    """
    min_workers = int(job.worker_counts[0])
    requirements = [("worker", job.worker, min_workers, cluster.hosts_workers)]
    if job.ps is not None:
        servers = 1 if local_free else int(job.ps_counts[0])
        requirements.append(("parameter server", job.ps, servers, cluster.hosts_ps))
    for kind, demand, count, has_role in requirements:
        # Counts are capped, because those of unlimited capacity add up to more than an int64.
        total = int(np.minimum(_fit_counts(cluster.capacity[has_role], demand), count).sum())
        if total < count:
            return Refusal(
                RefusalReason.NEVER_FITS,
                f"needs room for {count} {kind}{'s' if count > 1 else ''}, "
                f"the empty cluster has room for {total}",
                bottleneck=f"{_scarcest(cluster, has_role, demand)}{kind} servers",
            )
    return None


class EmptyClusterCheck:
    """`never_fits` for many jobs of a cluster, cached by demand and minimum counts."""

    def __init__(self, cluster: Cluster, *, local_free: bool = False) -> None:
        self._cluster = cluster
        self._local_free = local_free
        self._cached: dict[tuple[bytes, int, bytes, int], Refusal | None] = {}

    def __call__(self, job: Job) -> Refusal | None:
        """Return why a job can't run even in an empty cluster, None if nothing forbids it."""
        ps = b"" if job.ps is None else job.ps.tobytes()
        key = (job.worker.tobytes(), int(job.worker_counts[0]), ps, int(job.ps_counts[0]))
        if key not in self._cached:
            self._cached[key] = never_fits(job, self._cluster, local_free=self._local_free)
        return self._cached[key]


def _fit_counts(capacity: Amounts, demand: Amounts) -> NDArray[np.int64]:
    """Return how many processes with a demand fit on each empty server."""
    is_demanded = demand > 0
    if not is_demanded.any():
        return np.full(len(capacity), np.iinfo(np.int32).max, dtype=np.int64)
    return np.asarray((capacity[:, is_demanded] // demand[is_demanded]).min(axis=1), dtype=np.int64)


def _scarcest(cluster: Cluster, members: NDArray[np.bool_], demand: Amounts) -> str:
    """Return "RESOURCE of " for the resource that fits the fewest processes; "" without demand."""
    columns = np.flatnonzero(demand > 0)
    if not len(columns):
        return ""
    fits = [(cluster.capacity[members, c] // demand[c]).sum() for c in columns]
    return f"{cluster.resources[int(columns[int(np.argmin(fits))])]} of "


def _check_roles(
    record: JobRecord,
    servers: NDArray[np.int64],
    workers: NDArray[np.int64],
    ps: NDArray[np.int64],
    cluster: Cluster,
) -> None:
    """Check that the servers' roles allow the workers and parameter servers of a plan's entries.

    The arrays have the shape (entries,). Raises PolicyError for a negative count or a wrong role.
    """
    is_invalid = (workers < 0) | (ps < 0)
    is_invalid |= (workers > 0) & ~cluster.hosts_workers[servers]
    is_invalid |= (ps > 0) & ~cluster.hosts_ps[servers]
    for entry in np.flatnonzero(is_invalid)[:1]:
        _check_entry(record, int(servers[entry]), int(workers[entry]), int(ps[entry]), cluster)


def _check_entry(record: JobRecord, server: int, workers: int, ps: int, cluster: Cluster) -> None:
    if workers < 0 or ps < 0:
        raise record.error("a negative number of workers or parameter servers")
    if workers and not cluster.hosts_workers[server]:
        raise record.error("workers on a server for parameter servers")
    if ps and not cluster.hosts_ps[server]:
        raise record.error("parameter servers on a server for workers")


def _check_reach(record: JobRecord, elsewhere: NDArray[np.int64], ps: NDArray[np.int64]) -> None:
    """Check Astraea (3i): each server's PS can serve all workers on other servers.

    ``elsewhere`` holds the job's workers in the entry's slot on other servers than the entry's,
    ``ps`` the parameter servers of the entry. Both have the shape (entries,).
    """
    job = record.job
    if job.all_reduce or not job.worker_bandwidth or not job.ps_bandwidth:
        return
    # Rounded up in Python integers: a product of counts and bit/s could overflow int64.
    needed = np.array(
        [-(-int(n) * job.worker_bandwidth // job.ps_bandwidth) for n in elsewhere], dtype=np.int64
    )
    is_short = (ps > 0) & (ps < needed)
    if is_short.any():
        entry = int(np.argmax(is_short))
        raise record.error(
            f"{int(ps[entry])} parameter servers on a server cannot carry "
            f"{int(elsewhere[entry])} workers elsewhere, {int(needed[entry])} could (Astraea (3i))"
        )


def _check_counts(
    record: JobRecord, workers: NDArray[np.int64], ps: NDArray[np.int64], *, local_free: bool
) -> NDArray[np.int64]:
    """Check (3), (6) and (7) in each slot; return the indices of the worker counts.

    If local traffic is free, (6) only requires one parameter server, and (3i) covers the rest.
    """
    job = record.job
    choices = np.minimum(np.searchsorted(job.worker_counts, workers), len(job.worker_counts) - 1)
    is_invalid = job.worker_counts[choices] != workers
    if is_invalid.any():
        raise _wrong_count(record, int(workers[is_invalid][0]))
    needed = np.minimum(job.ps_counts[choices], 1) if local_free else job.ps_counts[choices]
    max_ps = np.zeros_like(workers) if job.all_reduce else workers
    if (ps < needed).any() or (ps > np.maximum(max_ps, needed)).any():
        raise _wrong_ps(record, workers.tolist(), ps.tolist())
    return choices


def _wrong_count(record: JobRecord, workers: int) -> PolicyError:
    job = record.job
    return record.error(
        f"{workers} workers, but its {len(job.worker_counts)} allowed counts are from "
        f"{job.worker_counts[0]} to {job.max_workers} (3)"
    )


def _wrong_ps(record: JobRecord, workers: list[int], ps: list[int]) -> PolicyError:
    return record.error(f"{ps} parameter servers for {workers} workers break (6) or (7)")

"""The job's own constraints, checked before anything happens.

Capacity, constraints (4) and (5) of OASiS, is the ledger's part; here are the rest: (2), (3), (6),
(7), the roles of servers, and the window. Policies that declare `local_traffic_is_free` answer to
Astraea (3i) in place of (6).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.errors import PolicyError
from shadowprice.core.job import Job
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.engine.state import JobRecord


def check_commitment(
    record: JobRecord,
    plan: Schedule,
    cluster: Cluster,
    end: int,
    *,
    moved: NDArray[np.bool_] | None = None,
    local_free: bool = False,
) -> None:
    """Check a schedule against everything but capacity.

    Parameters
    ----------
    record : JobRecord
        The job.
    plan : Schedule
        What the policy wants to commit.
    cluster : Cluster
        The servers.
    end : int
        First slot that no plan may use.
    moved : ndarray of bool, shape (active slots,), optional
        Before which slots the placement changes, where that costs time; see `Schedule.moved`.
    local_free : bool
        Whether parameter servers serve the workers on other servers alone.

    Raises
    ------
    PolicyError
        If a constraint is broken, with the job's story.
    """
    job = record.job
    if not len(plan):
        raise PolicyError(f"{record.story()}: committed to an empty schedule")
    if plan.completion >= end:
        raise PolicyError(
            f"{record.story()}: planned for slot {plan.completion}, but no plan may use "
            f"slot {end} or later"
        )
    check_roles(record, plan.servers, plan.workers, plan.ps, cluster)
    workers, ps, colocated = plan.totals()
    choices = _check_counts(record, workers, ps, local_free=local_free)
    if local_free:
        elsewhere = workers[np.searchsorted(plan.active_slots, plan.slots)] - plan.workers
        _check_reach(record, elsewhere, plan.ps)
    gains = np.where(colocated, job.internal_gains[choices], job.gains[choices])
    lost = 0
    if moved is not None:
        left = np.where(colocated, job.moved_internal_gains[choices], job.moved_gains[choices])
        lost = int((gains - left)[moved].sum())
    if int(gains.sum()) - lost < record.remaining:
        raise PolicyError(
            f"{record.story()}: the schedule makes {int(gains.sum()) - lost} progress units of the "
            f"{record.remaining} that remain (2)"
            + (f"; {lost} are lost to {int(moved.sum())} restarts" if moved is not None else "")
        )


def check_placement(
    record: JobRecord, placement: Placement, cluster: Cluster, *, local_free: bool = False
) -> None:
    """Check a standing placement against everything but capacity.

    Parameters
    ----------
    record : JobRecord
        The job.
    placement : Placement
        Where the policy wants it to stand.
    cluster : Cluster
        The servers.
    local_free : bool
        Whether parameter servers serve the workers on other servers alone.

    Raises
    ------
    PolicyError
        If a constraint is broken, with the job's story.
    """
    if not placement.servers:
        raise PolicyError(f"{record.story()}: placed nowhere; pause it instead")
    # Plain integers: for the few servers of a placement, arrays would cost more than the checks.
    for server, workers, ps in zip(placement.servers, placement.workers, placement.ps, strict=True):
        _check_entry(record, server, workers, ps, cluster)
    job, workers, ps = record.job, placement.total_workers, placement.total_ps
    choice = job.choice_of(workers)
    if choice is None:
        raise PolicyError(_wrong_count(record, workers))
    needed = int(job.ps_counts[choice])
    if local_free:
        needed = min(needed, 1)
        elsewhere = np.array([workers - beside for beside in placement.workers])
        _check_reach(record, elsewhere, np.array(placement.ps))
    if not needed <= ps <= (needed if job.ps is None else max(workers, needed)):
        raise PolicyError(_wrong_ps(record, [workers], [ps]))


def never_fits(job: Job, cluster: Cluster, *, local_free: bool = False) -> Refusal | None:
    """Return why a job could not run even in an empty cluster, None if nothing forbids it.

    The smallest number of workers the job accepts, and the parameter servers they need, are counted
    against all servers of each role on their own: a job that fails here fails everywhere. Where
    local traffic is free, one parameter server is the least.
    """
    fewest = int(job.worker_counts[0])
    needs = [("worker", job.worker, fewest, cluster.hosts_workers)]
    if job.ps is not None:
        servers = 1 if local_free else int(job.ps_counts[0])
        needs.append(("parameter server", job.ps, servers, cluster.hosts_ps))
    for kind, demand, count, members in needs:
        # The first server alone has room for most jobs: to count on all takes ten times as long.
        if _holds(cluster.capacity[members.argmax()], demand, count) and members.any():
            continue
        places = _places(cluster.capacity[members], demand)
        if places.sum() < count:
            found = int(places.sum())
            return Refusal(
                Reason.NEVER_FITS,
                f"needs room for {count} {kind}{'s' if count > 1 else ''}, "
                f"the empty cluster has room for {found}",
                bottleneck=f"{_scarcest(cluster, members, demand)}{kind} servers",
            )
    return None


class EmptyClusterCheck:
    """`never_fits` for many jobs of a cluster: worked out once a shape of demand.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    local_free : bool
        Whether parameter servers serve the workers on other servers alone.
    """

    def __init__(self, cluster: Cluster, *, local_free: bool = False) -> None:
        self._cluster = cluster
        self._local_free = local_free
        self._known: dict[tuple[bytes, int, bytes, int], Refusal | None] = {}

    def __call__(self, job: Job) -> Refusal | None:
        """Return why a job could not run even in an empty cluster, None if nothing forbids it."""
        ps = b"" if job.ps is None else job.ps.tobytes()
        key = (job.worker.tobytes(), int(job.worker_counts[0]), ps, int(job.ps_counts[0]))
        if key not in self._known:
            self._known[key] = never_fits(job, self._cluster, local_free=self._local_free)
        return self._known[key]


def _holds(capacity: Amounts, demand: Amounts, count: int) -> bool:
    """Return whether one server holds a demand that often when empty."""
    pairs = zip(capacity.tolist(), demand.tolist(), strict=True)
    return all(asked * count <= room for room, asked in pairs)


def _places(capacity: Amounts, demand: Amounts) -> NDArray[np.int64]:
    """Return how many of a demand each server holds when empty."""
    asked = demand > 0
    if not asked.any():
        return np.full(len(capacity), np.iinfo(np.int32).max, dtype=np.int64)
    return np.asarray((capacity[:, asked] // demand[asked]).min(axis=1), dtype=np.int64)


def _scarcest(cluster: Cluster, members: NDArray[np.bool_], demand: Amounts) -> str:
    """Return the resource that leaves the least room as a prefix; none where nothing is asked."""
    columns = np.flatnonzero(demand > 0)
    if not len(columns):
        return ""
    fits = [(cluster.capacity[members, c] // demand[c]).sum() for c in columns]
    return f"{cluster.resources[int(columns[int(np.argmin(fits))])]} of "


def check_roles(
    record: JobRecord,
    servers: NDArray[np.int64],
    workers: NDArray[np.int64],
    ps: NDArray[np.int64],
    cluster: Cluster,
) -> None:
    """Check that workers and parameter servers stand where the roles of servers allow them.

    Parameters
    ----------
    record : JobRecord
        The job, for its story.
    servers, workers, ps : ndarray of int64, shape (entries,)
        Server and counts of each entry of a plan.
    cluster : Cluster
        The servers.

    Raises
    ------
    PolicyError
        If a count is negative or a server does not carry its kind.
    """
    wrong = (workers < 0) | (ps < 0)
    wrong |= (workers > 0) & ~cluster.hosts_workers[servers]
    wrong |= (ps > 0) & ~cluster.hosts_ps[servers]
    for at in np.flatnonzero(wrong)[:1]:
        _check_entry(record, int(servers[at]), int(workers[at]), int(ps[at]), cluster)


def _check_entry(record: JobRecord, server: int, workers: int, ps: int, cluster: Cluster) -> None:
    if workers < 0 or ps < 0:
        raise PolicyError(f"{record.story()}: a negative number of workers or parameter servers")
    if workers and not cluster.hosts_workers[server]:
        raise PolicyError(f"{record.story()}: workers on a server that carries none")
    if ps and not cluster.hosts_ps[server]:
        raise PolicyError(f"{record.story()}: parameter servers on a server that carries none")


def _check_reach(record: JobRecord, elsewhere: NDArray[np.int64], ps: NDArray[np.int64]) -> None:
    """Check Astraea (3i): each server's parameter servers carry all workers that stand elsewhere.

    Parameters
    ----------
    elsewhere : ndarray of int64, shape (entries,)
        Workers of the job in the entry's slot on other servers than the entry's.
    ps : ndarray of int64, shape (entries,)
        Parameter servers of the entry.
    """
    job = record.job
    if job.all_reduce or not job.worker_bandwidth or not job.ps_bandwidth:
        return
    # Rounded up, so that no product of counts and bit/s can leave int64.
    needed = np.array(
        [-(-int(n) * job.worker_bandwidth // job.ps_bandwidth) for n in elsewhere], dtype=np.int64
    )
    short = (ps > 0) & (ps < needed)
    if short.any():
        at = int(np.argmax(short))
        raise PolicyError(
            f"{record.story()}: {int(ps[at])} parameter servers on a server cannot carry "
            f"{int(elsewhere[at])} workers elsewhere, {int(needed[at])} could (Astraea (3i))"
        )


def _check_counts(
    record: JobRecord, workers: NDArray[np.int64], ps: NDArray[np.int64], *, local_free: bool
) -> NDArray[np.int64]:
    """Check (3), (6) and (7) in each slot; return the positions of the worker counts.

    Where local traffic is free, (6) asks for one parameter server only; (3i) does the rest.
    """
    job = record.job
    choices = np.minimum(np.searchsorted(job.worker_counts, workers), len(job.worker_counts) - 1)
    wrong = job.worker_counts[choices] != workers
    if wrong.any():
        raise PolicyError(_wrong_count(record, int(workers[wrong][0])))
    needed = np.minimum(job.ps_counts[choices], 1) if local_free else job.ps_counts[choices]
    most = np.zeros_like(workers) if job.all_reduce else workers
    if (ps < needed).any() or (ps > np.maximum(most, needed)).any():
        raise PolicyError(_wrong_ps(record, workers.tolist(), ps.tolist()))
    return choices


def _wrong_count(record: JobRecord, workers: int) -> str:
    job = record.job
    return (
        f"{record.story()}: {workers} workers, but it runs with "
        f"{job.worker_counts[0]}..{job.most_workers} of {len(job.worker_counts)} counts (3)"
    )


def _wrong_ps(record: JobRecord, workers: list[int], ps: list[int]) -> str:
    return f"{record.story()}: parameter servers outside (6) and (7): {ps} for {workers} workers"

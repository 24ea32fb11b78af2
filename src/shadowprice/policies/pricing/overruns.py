"""Extensions of plans that fell short, and the jobs that they displace.

A job may take longer than stated. Its plan is then extended in place, because a stopped job loses
start-up time and, without checkpoints, all its work. If other jobs have reserved the capacity, the
extension displaces those that lose least by running later. They are replanned: they shift, because
a job that hasn't started only loses time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.core.potential import planned_progress
from shadowprice.core.schedule import EMPTY_SCHEDULE, Placement, Schedule
from shadowprice.core.utility import utility_value
from shadowprice.policies.placements import constant_schedule, demand_by_server, slots_needed

SHORT: Final = "its plan falls short of the work that remains"
OVERRUN: Final = "a running job takes longer than stated and keeps its place"


@dataclass(frozen=True, eq=False)
class Extension:
    """A longer plan for a job, and the jobs that it displaces."""

    plan: Schedule
    """All future slots of the job: the rest of its plan, then its last placement again."""
    displaced: tuple[str, ...]  # jobs that have reserved capacity which the plan needs
    loss: float  # utility that these lose if each completes later by the length of the extension


def find_extension(view: View, state: JobState, *, charged: bool) -> Extension | None:
    """Return the extension of a job's plan, None if its servers or slots aren't available.

    The job is not a bag, and still has the reservations of its plan.
    """
    job, running = state.job, view.running_placement(state.job.name)
    ahead = state.plan.from_slot(view.slot)
    if view.is_unstoppable(job.name):
        kept, placement, start = EMPTY_SCHEDULE, running, view.slot
    elif not len(state.plan):
        return None
    else:
        last = state.plan.from_slot(state.plan.completion)
        kept, placement = ahead, next((entry for _, entry in last.placements()), None)
        start = max(view.slot, state.plan.completion + 1)
    limits, unstoppable = view.ledger.limits, view.is_unstoppable(job.name)
    if placement is None or any(
        # An unstoppable job stays on a cordoned server, whose limits aren't 0.
        view.is_lost(server) and not (unstoppable and limits[server].any())
        for server in placement.servers
    ):
        return None
    counts = (*kept.totals()[0].tolist(), placement.total_workers)
    if any(job.worker_count_index(count) is None for count in counts):
        return None  # a revision has changed the allowed worker counts
    done = planned_progress(job, kept, running, charged=charged)
    continues = bool(len(kept)) or running == placement
    end = start + slots_needed(
        job,
        placement.total_workers,
        state.remaining - done,
        colocated=placement.colocated,
        restarts=charged and not continues,
    )
    if end > view.end:
        if not view.is_unstoppable(job.name) or view.end == view.until:
            return None
        end = view.end  # a slow job that saved nothing runs on: its plan follows the horizon
    rows = [*kept.rows(), *constant_schedule(placement, start, end).rows()]
    plan = Schedule.from_arrays(*np.array(rows, dtype=np.int64).T)
    # The job's own reservations are replaced by the new plan.
    excess = _excess(view, job, placement, start, end, own=ahead)
    displaced, loss = _choose_displaced(view, job, placement, start, end, excess)
    return None if (excess > 0).any() else Extension(plan, displaced, loss)


def _excess(
    view: View, job: Job, placement: Placement, start: int, end: int, *, own: Schedule
) -> Integers:
    """Return the missing capacity of a placement's servers, shape (slots, servers, resources)."""
    servers, ledger = list(placement.servers), view.ledger
    used = ledger.used[start - ledger.start : end - ledger.start][:, servers].copy()
    used -= _plan_usage(job, own, servers, start, end)
    demand = demand_by_server(job, placement.workers, placement.ps)
    return np.asarray(used + demand - ledger.limits[servers], dtype=np.int64)


def _choose_displaced(
    view: View, job: Job, placement: Placement, start: int, end: int, excess: Integers
) -> tuple[tuple[str, ...], float]:
    """Choose the jobs to displace, and subtract their reservations from the excess.

    Jobs that don't run come first, because they can shift without a stop; then those that lose
    least. Of an unstoppable job, only slots count in which its plan would move it.
    """
    if not (excess > 0).any():
        return (), 0.0
    servers = list(placement.servers)
    candidates = sorted(
        _candidates(view, job.name, servers, start, end), key=lambda candidate: candidate[:2]
    )
    chosen: list[str] = []
    loss = 0.0
    for _, lost, other, reserved in candidates:
        if not ((excess > 0) & (reserved > 0)).any():
            continue
        excess -= reserved
        chosen.append(other.job.name)
        loss += lost
        if not (excess > 0).any():
            break
    return tuple(chosen), loss


def _candidates(
    view: View, name: str, servers: list[int], start: int, end: int
) -> Iterator[tuple[bool, float, JobState, Integers]]:
    """Yield the other jobs there: whether they run, loss by a shift, state, and reservations."""
    for other in view.open_jobs.values():
        job = other.job
        if job.name == name or not len(other.plan) or job.bag is not None:
            continue
        if other.plan.completion < start:
            continue
        plan, running = other.plan, view.running_placement(job.name)
        unstoppable = view.is_unstoppable(job.name)
        if unstoppable and running is not None:
            plan = plan.without(running)
        reserved = _plan_usage(job, plan, servers, start, end)
        if not reserved.any():
            continue
        if unstoppable:
            yield False, 0.0, other, reserved
            continue
        due = other.plan.completion - job.arrival
        shifted_utility = utility_value(job.utility, due + end - start)
        loss = utility_value(job.utility, due) - shifted_utility
        yield running is not None, loss, other, reserved


def _plan_usage(job: Job, plan: Schedule, servers: list[int], start: int, end: int) -> Integers:
    """Return the reservations of a plan, shape (slots, servers, resources)."""
    reserved = np.zeros((end - start, len(servers), len(job.worker)), dtype=np.int64)
    if not len(plan):
        return reserved
    positions = {server: index for index, server in enumerate(servers)}
    first, last = np.searchsorted(plan.slots, (start, end)).tolist()
    used = [index for index in range(first, last) if int(plan.servers[index]) in positions]
    rows = [positions[server] for server in plan.servers[used].tolist()]
    demand = demand_by_server(job, plan.workers[used], plan.ps[used])
    reserved[plan.slots[used] - start, rows] = demand  # an entry for each slot and server
    return reserved

"""Extensions of plans that fell short, and the jobs that they displace.

A job may take longer than stated. Its plan is then extended in place, because a stopped job loses
start-up time and, without checkpoints, all its work. If other jobs have reserved the capacity, the
extension displaces those that lose the least utility by running later. The caller replans them.
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
    """The rest of the job's plan, then its last placement for as many slots as needed."""
    displaced: tuple[str, ...]  # jobs that have reserved capacity which the extension needs
    loss: float  # utility that they lose if each completes later by the extension's slots


def find_extension(view: View, state: JobState, *, charged: bool) -> Extension | None:
    """Return the extension of a job's plan, None if its servers or slots aren't available.

    The job isn't a bag, and still has the reservations of its plan. If ``charged``, restarts reduce
    its progress.
    """
    job, running = state.job, view.running_placement(state.job.name)
    ahead = state.plan.from_slot(view.slot)
    if view.is_unstoppable(job.name):
        # It must keep its running placement, whatever its plan says.
        kept, placement, start = EMPTY_SCHEDULE, running, view.slot
    elif not len(state.plan):
        return None
    else:
        last = state.plan.from_slot(state.plan.completion)
        kept, placement = ahead, next((entry for _, entry in last.placements()), None)
        start = max(view.slot, state.plan.completion + 1)
    limits, unstoppable = view.ledger.limits, view.is_unstoppable(job.name)
    if placement is None or any(
        # An unstoppable job stays on a cordoned server, whose capacity is 0 but not its limits.
        view.is_lost(server) and not (unstoppable and limits[server].any())
        for server in placement.servers
    ):
        return None
    counts = (*kept.totals()[0].tolist(), placement.total_workers)
    if any(job.worker_count_index(count) is None for count in counts):
        return None  # a revision changed the allowed worker counts
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
        end = view.end  # an unstoppable job runs on, and is extended again when the window moves
    rows = [*kept.rows(), *constant_schedule(placement, start, end).rows()]
    plan = Schedule.from_arrays(*np.array(rows, dtype=np.int64).T)
    # Without the job's own reservations, which the new plan replaces.
    excess = _excess(view, job, placement, start, end, own=ahead)
    displaced, loss = _choose_displaced(view, job, placement, start, end, excess)
    return None if (excess > 0).any() else Extension(plan, displaced, loss)


def _excess(
    view: View, job: Job, placement: Placement, start: int, end: int, *, own: Schedule
) -> Integers:
    """Return the capacity that a placement lacks (slots, servers, resources), if positive."""
    servers, ledger = list(placement.servers), view.ledger
    used = ledger.used[start - ledger.start : end - ledger.start][:, servers].copy()
    used -= _plan_usage(job, own, servers, start, end)
    demand = demand_by_server(job, placement.workers, placement.ps)
    return np.asarray(used + demand - ledger.limits[servers], dtype=np.int64)


def _choose_displaced(
    view: View, job: Job, placement: Placement, start: int, end: int, excess: Integers
) -> tuple[tuple[str, ...], float]:
    """Choose the jobs to displace, and subtract their reservations from the excess.

    Jobs that don't run come first, because they shift without a stop. Then jobs are chosen by the
    smallest loss. ``excess`` changes in place; it stays positive if displacing doesn't suffice.
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
    """Yield the other jobs on these servers in ``[start, end)``.

    For each: whether it runs, its loss of utility by a shift, its state, and its reservations.
    """
    for other in view.open_jobs.values():
        job = other.job
        if job.name == name or not len(other.plan) or job.bag is not None:
            continue
        if other.plan.completion < start:
            continue
        plan, running = other.plan, view.running_placement(job.name)
        unstoppable = view.is_unstoppable(job.name)
        if unstoppable and running is not None:
            # It keeps its placement, so only reservations after a planned move can be displaced.
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
    """Return a plan's reservations in ``[start, end)``, shape (slots, servers, resources)."""
    reserved = np.zeros((end - start, len(servers), len(job.worker)), dtype=np.int64)
    if not len(plan):
        return reserved
    positions = {server: index for index, server in enumerate(servers)}
    first, last = np.searchsorted(plan.slots, (start, end)).tolist()
    used = [index for index in range(first, last) if int(plan.servers[index]) in positions]
    rows = [positions[server] for server in plan.servers[used].tolist()]
    demand = demand_by_server(job, plan.workers[used], plan.ps[used])
    reserved[plan.slots[used] - start, rows] = demand  # a plan has one entry per slot and server
    return reserved

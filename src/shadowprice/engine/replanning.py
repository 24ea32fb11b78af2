"""Whether a plan or placement still suffices for the remaining work, and replanning if not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.core.events import Command, Displaced, JobsDisplaced, PlansFellShort
from shadowprice.core.job import Job
from shadowprice.core.potential import planned_progress
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.policy_session import PolicySession
from shadowprice.engine.state import EngineState


def falls_short(state: EngineState, record: JobRecord) -> bool:
    """Return whether a plan can't complete its job any more, after a slot yielded too little."""
    if record.job.bag is not None:
        return False  # copies take random times, so only the end of the plan shows whether it held
    future, present = record.plan.from_slot(state.slot), state.running.get(record.job.name)
    charged = state.capabilities.charges_restarts
    return planned_progress(record.job, future, present, charged=charged) < record.remaining


def revised_plan_holds(state: EngineState, record: JobRecord, old: Job) -> bool:
    """Return whether a revised job's plan is still valid and completes the job."""
    if not plan_is_allowed(record, old, state.slot):
        return False
    job, future = record.job, record.plan.from_slot(state.slot)
    present = state.running.get(job.name)
    if job.resumable is False and present is not None and future.leaves(present):
        return False
    # The first start is free unless the cluster says otherwise.
    ran = state.cluster.restart_first or record.started is not None
    charged = state.capabilities.charges_restarts and ran
    planned = planned_progress(job, future, present, charged=charged)
    return planned + _expected_progress(state, record) >= record.remaining


def _expected_progress(state: EngineState, record: JobRecord) -> int:
    """Return the progress units that a job should make in the slot under way, if one runs."""
    present = state.running.get(record.job.name)
    if state.slot_running is None or present is None:
        return 0
    begun = record.generation_slot == state.slot_running
    moved = begun and (record.generation > 1 or state.cluster.restart_first)
    return record.job.gain(present.total_workers, colocated=present.colocated, moved=moved)


def plan_is_allowed(record: JobRecord, old: Job, now: int) -> bool:
    """Return whether a revised job allows the demand and worker counts of the rest of its plan."""
    # The last slot counts even if it is under way, because the plan may be extended from it.
    job, future = record.job, record.plan.from_slot(min(now, record.plan.completion))
    if not job.same_demand(old):
        return False
    workers, ps, _ = future.totals()
    positions = np.searchsorted(job.worker_counts, workers)
    is_in_range = positions < len(job.worker_counts)
    if not is_in_range.all() or (job.worker_counts[positions] != workers).any():
        return False
    return not bool((ps < job.ps_counts[positions]).any())


def placement_is_allowed(record: JobRecord, old: Job) -> bool:
    """Return whether a revised job's placement is still valid."""
    job, placement = record.job, record.placement
    if placement is None:
        return True
    choice = job.worker_count_index(placement.total_workers)
    return (
        job.same_demand(old)
        and choice is not None
        and placement.total_ps >= int(job.ps_counts[choice])
    )


def extend(state: EngineState, session: PolicySession, names: Sequence[str]) -> list[Command]:
    """Query the policy about plans that fell short; displace jobs that it doesn't replan."""
    jobs = state.jobs
    ordered = tuple(sorted(names, key=state.arrival_order))
    plans = {name: jobs[name].plans for name in ordered}
    commands = session.query(PlansFellShort(state.slot, ordered))
    remaining = [
        name
        for name in ordered
        if name in state.open_jobs and jobs[name].plans == plans[name] and len(jobs[name].plan)
    ]
    if remaining:
        commands += replan(
            state, session, remaining, "its plan falls short of the work that remains"
        )
    return commands


def replan(
    state: EngineState, session: PolicySession, names: Sequence[str], reason: str
) -> list[Command]:
    """Displace jobs, and query the policy about new plans or placements for them."""
    displaced = state.displace(names)
    commands: list[Command] = [Displaced(state.slot, name, reason) for name in displaced]
    return commands + session.query(JobsDisplaced(state.slot, displaced, None))

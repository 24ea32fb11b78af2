"""Handlers of job events: arrival, revision, failure, progress, end and cancellation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shadowprice.core.events import (
    Acknowledged,
    Command,
    Completed,
    Decided,
    Displaced,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    JobsDisplaced,
    JobsFinished,
    JobStarted,
    ProgressMeasured,
    Reject,
    StartFailed,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import utility_value
from shadowprice.engine import replanning
from shadowprice.engine.commands import stop
from shadowprice.engine.decisions import apply_decision
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.policy_session import PolicySession
from shadowprice.engine.state import EngineState


def add_jobs(state: EngineState, session: PolicySession, event: JobsArrived) -> list[Command]:
    """Add jobs that arrived, and query the policy about those that can ever run."""
    commands: list[Command] = []
    candidates = []
    for job in event.jobs:
        state.arrivals += 1
        state.insert_job(JobRecord(job, state.arrivals))
        refusal = refusal_without_policy(state, job)
        if refusal is None:
            candidates.append(job)
        else:
            commands += apply_decision(state, Reject(job.name, refusal))
    if candidates:
        commands += session.query(JobsArrived(event.slot, tuple(candidates)))
    for job in candidates:
        record = state.jobs[job.name]
        if record.status is Status.ARRIVED:
            if not session.is_replaying:  # replay follows the record, also without a decision
                raise record.error("the policy decided nothing")
            state.set_status(record, Status.QUEUED)
    return commands


def refusal_without_policy(state: EngineState, job: Job) -> Refusal | None:
    """Return why a job is refused without querying the policy, or None."""
    if job.bag is not None and not state.capabilities.runs_bags:
        return Refusal(
            RefusalReason.POLICY,
            "a bag of tasks needs a policy that plans copies, and this one runs training jobs "
            "only; `shadowprice policies` lists which do",
        )
    return state.never_fits(job)


def cancel_job(state: EngineState, session: PolicySession, event: JobCancelled) -> list[Command]:
    """Close an open job that its owner cancelled, and stop it if it runs."""
    if event.job not in state.open_jobs:  # the job may have ended before the request arrived
        return []
    refusal = Refusal(RefusalReason.CANCELLED, "cancelled by its owner")
    return _withdraw(state, session, event, Status.CANCELLED, refusal)


def _withdraw(
    state: EngineState,
    session: PolicySession,
    event: JobCancelled,
    status: Status,
    refusal: Refusal,
) -> list[Command]:
    placement = state.running.get(event.job)
    state.close(event.job, status).refusal = refusal
    commands: list[Command] = []
    if placement is not None:
        commands.append(stop(state, event.slot, event.job, placement, finished=False))
    return commands + session.query(event)


def revise_job(state: EngineState, session: PolicySession, event: JobRevised) -> list[Command]:
    """Replace a job's specification; replan it if its plan or placement no longer suffices."""
    job = event.job
    record = state.open_jobs[job.name]
    old_job = record.job
    done = Fraction(record.progress * old_job.work, old_job.required)
    if not _has_same_speed(job, old_job):
        # The partial mini-batch is discarded, because it was counted at the old, wrong speed.
        done = Fraction(int(done))
    state.touch(record).job = job
    if job.resumable and job.differs_only("resumable", old_job):
        return []  # every plan stays valid
    progress = record.units(record.measured) if record.measured else done * job.required / job.work
    # The job completes when a slot or its processes end, so some work is always left.
    record.progress = min(job.required - 1, int(progress))
    name, commands = job.name, list[Command]()
    if len(record.plan):
        is_allowed = replanning.plan_is_allowed(record, old_job, state.slot)
    else:
        is_allowed = replanning.placement_is_allowed(record, old_job)
    if not is_allowed:  # before the query, so that the policy sees the real reservations
        state.displace([name])
        commands.append(Displaced(state.slot, name, "it was revised"))
    session.resync_in_event()
    decisions = session.query(event)
    if name not in state.open_jobs:
        return commands + decisions
    if any(isinstance(command, Decided) and command.decision.job == name for command in decisions):
        if record.status is not Status.ADMITTED:
            return commands + decisions
        # The job has a plan or promise again, so to the driver nothing displaced it.
        return [
            command
            for command in decisions
            if not (isinstance(command, Displaced) and command.job == name)
        ]
    commands += decisions
    if not is_allowed:
        return commands + session.query(JobsDisplaced(state.slot, (name,), None))
    if len(record.plan) and not replanning.revised_plan_holds(state, record, old_job):
        commands += replanning.extend(state, session, [name])
    return commands


def _has_same_speed(job: Job, other: Job) -> bool:
    """Return whether two jobs do as many mini-batches in a slot, with any worker count."""
    if job.worker_counts.tolist() != other.worker_counts.tolist():
        return False
    speed, before = (each.gains * (each.work / each.required) for each in (job, other))
    return bool(np.allclose(speed, before, rtol=1e-9))  # equal except for rounding


def fail_generation(state: EngineState, session: PolicySession, event: JobFailed) -> list[Command]:
    """End a generation that failed; close the job after too many failures."""
    record = _running_record(state, event.job, event.generation)
    if record is None:
        return []
    state.touch(record).failures = record.failures + 1
    state.end_run(event.job)
    if record.failures <= event.retries:
        cordoned = [row for row in state.cordoned if state.ledger.uses(event.job, row)]
        if cordoned:  # the next generation can't start there
            name = state.cluster.names[min(cordoned)]
            return replanning.replan(state, session, [event.job], f"{name} is cordoned")
        return []  # the next `SlotBegan` restarts the job in its plan or placement
    refusal = Refusal(RefusalReason.FAILED, event.reason, numbers={"failures": record.failures})
    withdrawn = JobCancelled(event.slot, event.job)
    return _withdraw(state, session, withdrawn, Status.FAILED, refusal)


def fail_to_start(state: EngineState, session: PolicySession, event: StartFailed) -> list[Command]:
    """End a generation that couldn't be started, and replan its job."""
    if _running_record(state, event.job, event.generation) is None:
        return []
    state.end_run(event.job)
    return replanning.replan(
        state, session, [event.job], f"it could not be started: {event.reason}"
    )


def finish_job(state: EngineState, session: PolicySession, event: JobEnded) -> list[Command]:
    """Complete a job whose processes ended successfully, also if they were being stopped."""
    record = state.open_jobs.get(event.job)
    if record is None or not 0 < event.generation == record.generation:
        return []
    state.touch(record).progress = record.job.required
    if event.job not in state.running:
        # The job waits, so the policy has no run that could finish: to it, the job is cancelled.
        commands = complete(state, event.job, event.slot - 1)
        return commands + session.query(JobCancelled(event.slot, event.job))
    state.end_run(event.job)  # so that `complete` stops nothing
    commands = complete(state, event.job, event.slot - 1)
    return commands + session.query(JobsFinished(event.slot, (event.job,)))


def complete(state: EngineState, name: str, slot: int) -> list[Command]:
    """Close a job that completed in a slot, and stop its generation if it still runs."""
    placement = state.running.get(name)
    record = state.close(name, Status.FINISHED)
    record.completion = slot
    utility = utility_value(record.job.earned_utility, slot - record.job.arrival)
    commands: list[Command] = []
    if placement is not None:
        commands.append(stop(state, slot + 1, name, placement, finished=True))
    return [*commands, Completed(slot, name, utility)]


def _running_record(state: EngineState, name: str, generation: int) -> JobRecord | None:
    """Return an open job if this generation is its newest and still runs, else None."""
    record = state.open_jobs.get(name)
    if record is None or record.generation != generation or name not in state.running:
        return None
    return record


def record_acknowledgements(
    state: EngineState, _session: PolicySession, event: Acknowledged
) -> list[Command]:
    """Discard commands that the driver carried out."""
    for number in event.commands:
        if number in state.unacknowledged:
            state.undo.drop(state.unacknowledged, number, order=int)  # sorted by number
    return []


def record_start(state: EngineState, _session: PolicySession, event: JobStarted) -> list[Command]:
    """Count a generation's run time from here on; its start-up before doesn't count."""
    record = _running_record(state, event.job, event.generation)
    if record is not None and record.running_since < 0:
        state.touch(record).running_since = max(record.generation_slot, event.since)
    return []


def record_measurements(
    state: EngineState, _session: PolicySession, event: ProgressMeasured
) -> list[Command]:
    """Record the progress that running jobs report."""
    for name, (generation, measured) in event.progress.items():
        record = _running_record(state, name, generation)
        if record is None:
            continue
        if measured < record.measured:
            # The generation reported nothing above its start: it repeats work that wasn't saved.
            if record.measured <= record.resumed_at:
                lost = max(record.lost, record.measured - measured)
                state.touch(record).lost = lost
            continue
        previous = state.touch(record).measured
        record.measured = measured
        progress = min(record.job.required, record.units(measured))
        # The first report replaces progress that was estimated by time, even by a smaller value.
        record.progress = max(record.progress, progress) if previous else progress
    return []

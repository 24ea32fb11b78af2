"""Handlers of the start and the end of a slot.

A live job may take longer than stated, and an unstoppable job isn't stopped for other jobs. So live
runs have limits: a job that hangs would hold its servers until its owner cancels it. In quiet slots
nothing starts, stops or completes, so a simulation passes many at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.events import (
    Command,
    Displaced,
    Drop,
    JobCancelled,
    JobsFinished,
    LengthsRevised,
    Resize,
    SlotBegan,
    SlotEnded,
    Start,
)
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.core.utility import utility_value
from shadowprice.engine.commands import add_dependencies, launch, stop
from shadowprice.engine.decisions import apply_decision
from shadowprice.engine.job_events import complete
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.policy_session import PolicySession
from shadowprice.engine.replanning import extend, falls_short
from shadowprice.engine.state import EngineState
from shadowprice.engine.unstoppable import would_move

ENDLESS_FACTOR: Final = 3
"""Multiple of its stated duration after which a running job counts as endless.

An endless job is abandoned once its utility is 0.
"""


def begin_slot(state: EngineState, session: PolicySession, event: SlotBegan) -> list[Command]:
    """Create the commands for the plans and placements of a slot."""
    slot = event.slot
    commands = session.query(event) if state.capabilities.wakes_every_slot else []
    undo = state.undo
    for mapping in (state.moved, state.planned, state.ran):
        undo.keep(mapping)
    planned: dict[str, Placement] = {}
    if state.until is not None and slot >= state.until:
        for name in state.running:  # without a placement from now on, so that all jobs stop
            state.moved[name] = None
    elif slot in state.agenda:
        planned = undo.drop(state.agenda, slot)
    # First the jobs whose placement changed, and jobs whose plan pauses or has ended.
    for name in (*state.moved, *(name for name in state.planned if name not in planned)):
        placement = planned.get(name, state.unplanned_placement(name))
        _apply_placement(state, slot, name, placement, commands)
    for name, placement in planned.items():
        _apply_placement(state, slot, name, placement, commands)
    if state.until is not None and slot >= state.until:
        commands += _leave_cordoned_servers(state, session, slot)
    add_dependencies(state, commands)
    state.planned.clear()
    state.planned.update(dict.fromkeys(planned))
    state.moved.clear()
    state.ran.clear()
    undo.assign(state, "slot_running", slot)
    return commands


def _leave_cordoned_servers(state: EngineState, session: PolicySession, slot: int) -> list[Command]:
    """Displace the jobs that stopped on cordoned servers: they can't start there again."""
    names = {row: state.cluster.names[row] for row in sorted(state.cordoned)}
    leaving = {job: name for row, name in names.items() for job in state.ledger.holders(row)}
    if not leaving:
        return []
    displaced = state.displace(leaving)
    session.resync_in_event()
    return [Displaced(slot, job, f"{leaving[job]} is cordoned") for job in displaced]


def _apply_placement(
    state: EngineState, slot: int, name: str, placement: Placement | None, commands: list[Command]
) -> None:
    """Append the command that brings a job from its running placement to another one."""
    present = state.running.get(name)
    if placement is None:
        if present is not None:
            state.undo.drop(state.running, name, state.start_order)
            commands.append(stop(state, slot, name, present, finished=False))
    elif present is None:
        commands.append(launch(state, Start, slot, name, placement))
    elif placement != present or _has_new_copies(state.jobs[name]):
        commands.append(launch(state, Resize, slot, name, placement))


def _has_new_copies(record: JobRecord) -> bool:
    """Return whether a bag has a newer plan than its generation: other copies must start."""
    return record.job.bag is not None and record.generation_plan != record.plans


def end_slot(state: EngineState, session: PolicySession, event: SlotEnded) -> list[Command]:
    """Record a slot's progress, and complete, abandon or replan jobs."""
    slot = event.slot
    state.undo.assign(state, "slot_running", None)
    if state.ledger.start == slot:  # unless an earlier event of the slot advanced it
        state.advance(slot + 1)
    longer = _revise_lengths(state, event.lengths)
    finished, behind = _record_progress(state, slot, event.progress, event.finished)
    commands: list[Command] = []
    for name in finished:
        commands += complete(state, name, slot)
    if finished:
        commands += session.query(JobsFinished(slot + 1, tuple(finished)))
    longer = [name for name in longer if name in state.open_jobs]
    if longer:
        behind.update(longer)
        commands += session.query(LengthsRevised(slot + 1, tuple(longer)))
    commands += _abandon_endless(state, session)
    # Plans that ended, no longer suffice, or would move an unstoppable job need an extension.
    falling_short = [
        name
        for name in state.planned
        if _plan_fell_short(state, name, slot, behind) or would_move(state, name, slot + 1)
    ]
    if falling_short:
        commands += extend(state, session, falling_short)
    return commands


def _revise_lengths(state: EngineState, lengths: Mapping[str, Job]) -> list[str]:
    """Replace the descriptions of open jobs whose length changed; return their names."""
    revised = [name for name in lengths if name in state.open_jobs]
    for name in revised:
        state.touch(state.open_jobs[name]).job = lengths[name]
    return revised


def _record_progress(
    state: EngineState,
    slot: int,
    progress: Mapping[str, int],
    done: Mapping[str, tuple[int, ...]],
) -> tuple[list[str], set[str]]:
    """Record the progress of a slot; return the finished jobs, and those behind their plan."""
    planned, open_job = state.planned, state.open_jobs.get
    finished: list[str] = []
    behind: set[str] = set()
    # Progress is the most frequent change: one list is cheaper than `touch` for each job.
    previous_progress: list[tuple[JobRecord, int]] = []
    changed = state.digest.changed
    changed.update(progress)
    state.undo.push(_undo_progress, previous_progress, changed)
    for name, gained in progress.items():
        record = open_job(name)
        if record is None:
            continue  # the job ended or was closed during the slot
        job = record.job
        if job.bag is None:
            previous = record.progress
            previous_progress.append((record, previous))
            record.progress = current = previous + gained
            if current >= job.required:
                finished.append(name)
            if planned and name in planned and _is_below_expectation(state, record, gained):
                behind.add(name)
        elif _record_bag_progress(state, slot, record, gained, done.get(name)):
            finished.append(name)
    # Jobs without an entry report progress themselves, or ended early. They may be behind.
    behind |= (state.running.keys() | state.ran.keys()) - progress.keys()
    if behind:  # jobs that report progress are finished if the reports reach their work
        jobs = state.jobs
        finished += [
            name
            for name in state.running
            if name not in progress and jobs[name].progress >= jobs[name].job.required
        ]
    return finished, behind


def _undo_progress(counted: list[tuple[JobRecord, int]], changed: set[str]) -> None:
    for record, progress in counted:
        record.progress = progress
        changed.add(record.job.name)


def _record_bag_progress(
    state: EngineState, slot: int, record: JobRecord, gained: int, done: tuple[int, ...] | None
) -> bool:
    """Record a bag's progress in a slot; return whether the bag is finished."""
    state.touch(record).progress += gained
    record.unfinished = list(record.unfinished)
    record.finished = list(record.finished)
    _count_finished(record, slot, gained, done)
    if record.progress >= record.job.required:
        return True
    _release_unused(state, record)
    return False


def _release_unused(state: EngineState, record: JobRecord) -> None:
    """Release the capacity of a bag that its copies can't use any more."""
    name, job, ledger, undo = record.job.name, record.job, state.ledger, state.undo
    smaller = _narrow_plan(record, state.slot)
    if smaller is None:
        return
    reservation = ledger.reservations[name]
    undo.push(ledger.undo_release, name, reservation, ledger.release(name))
    ledger.reserve(name, smaller.from_slot(state.slot), job.worker, None)
    undo.push(ledger.undo_reserve, name)
    for slot, placement in smaller.placements():
        if slot >= state.slot:
            undo.put(state.agenda[slot], name, placement)
    state.touch(record).plan = smaller


def _is_below_expectation(state: EngineState, record: JobRecord, gained: int) -> bool:
    """Return whether a slot yielded less progress than a job's placement should."""
    placement = state.running.get(record.job.name)
    if placement is None:
        return True
    return gained < record.job.gain(placement.total_workers, colocated=placement.colocated)


def _plan_fell_short(state: EngineState, name: str, slot: int, behind: set[str]) -> bool:
    record = state.open_jobs.get(name)
    if record is None or not len(record.plan):
        return False
    if record.plan.completion <= slot or name not in behind:
        return record.plan.completion <= slot
    return falls_short(state, record)


def _count_finished(
    record: JobRecord, slot: int, gained: int, done: tuple[int, ...] | None
) -> None:
    """Record the tasks of a bag that finished in a slot, by entry of ``record.copies``.

    Raises ShadowpriceError if they contradict the bag's progress.
    """
    assert record.job.bag is not None
    if (
        done is None
        or len(done) != len(record.unfinished)
        or sum(done) != gained
        or any(
            not 0 <= number <= remaining
            for number, remaining in zip(done, record.unfinished, strict=True)
        )
    ):
        raise ShadowpriceError(
            f"bag {record.job.name!r} finished {done} tasks in slot {slot} with a progress of "
            f"{gained}; {record.unfinished} of {list(map(tuple, record.copies))} were left"
        )
    if not record.finished:
        record.finished = [0] * len(record.job.bag.groups)
    for position, (entry, number) in enumerate(zip(record.copies, done, strict=True)):
        record.unfinished[position] -= number
        record.finished[entry.group] += number


def _narrow_plan(record: JobRecord, now: int) -> Schedule | None:
    """Return a bag's plan without the workers that exceed its live copies from slot ``now`` on.

    Within a slot, the first servers keep their workers. None if no plan entry changes.
    """
    live_copies = sum(
        remaining * entry.copies
        for remaining, entry in zip(record.unfinished, record.copies, strict=True)
    )
    plan = record.plan
    is_future = plan.slots >= now
    # Workers of the entries before each entry in its slot: entries of a plan are sorted by slot.
    preceding = np.cumsum(plan.workers) - plan.workers
    slot_starts = np.searchsorted(plan.slots, plan.slots)
    allowed = np.clip(live_copies - (preceding - preceding[slot_starts]), 0, plan.workers)
    workers = np.where(is_future, allowed, plan.workers)
    if (workers == plan.workers).all():
        return None
    is_kept = workers > 0
    return Schedule(plan.slots[is_kept], plan.servers[is_kept], workers[is_kept], plan.ps[is_kept])


# ---------------------------------------------------------------- limits of live runs


def _abandon_endless(state: EngineState, session: PolicySession) -> list[Command]:
    """Abandon running jobs that reached a limit, or that are endless and have no utility left."""
    commands: list[Command] = []
    if not state.acknowledges:  # simulated jobs end as stated
        return commands
    for name in list(state.running):
        refusal = _endless_refusal(state, name) if name in state.open_jobs else None
        if refusal is not None:
            commands += apply_decision(state, Drop(name, refusal))
            commands += session.query(JobCancelled(state.slot, name))
    return commands


def _is_long_worthless(job: Job, slot: int) -> bool:
    """Return whether a job of unknown length has had no utility since a third of its age."""
    # Its predicted length grows while it runs, so it never runs `ENDLESS_FACTOR` times as long.
    age = (slot - job.arrival) / ENDLESS_FACTOR
    return job.predicted and utility_value(job.utility, age) <= 0


def _endless_refusal(state: EngineState, name: str) -> Refusal | None:
    """Return why a running job is abandoned, or None."""
    record, placement = state.jobs[name], state.running[name]
    job = record.job
    if job.bag is not None:
        return None  # a bag ends at its deadline
    # Earlier generations count too, because policies that let jobs take turns restart them often.
    generation_slots = record.slots_run(state.slot)
    slots = record.earlier_slots + generation_slots
    share = record.earlier_share + generation_slots / record.stated_slots(placement)
    if job.walltime is not None and slots >= job.walltime:
        return Refusal(
            RefusalReason.TIME_LIMIT,
            f"has run for {slots} slots without an end, and its walltime is {job.walltime} slots",
            bottleneck="its walltime",
            numbers={"slots": float(slots), "walltime_slots": float(job.walltime)},
        )
    numbers = {"slots": float(slots), "share": share}
    overrun = f"has run for {slots} slots without an end, {share:.3g} times as long as stated"
    is_worthless = utility_value(job.utility, state.slot - job.arrival) <= 0
    if is_worthless and (share >= ENDLESS_FACTOR or _is_long_worthless(job, state.slot)):
        return Refusal(
            RefusalReason.NO_VALUE,
            f"{overrun}, and its utility is 0 from slot {state.slot} on",
            value=0.0,
            bottleneck="its utility",
            numbers=numbers,
        )
    if job.max_overrun is not None and not job.predicted and share >= job.max_overrun:
        return Refusal(
            RefusalReason.TIME_LIMIT,
            f"{overrun}, and the limit is {job.max_overrun:g}",
            bottleneck="the service's --max-overrun",
            numbers=numbers,
        )
    return None


# ---------------------------------------------------------------- quiet slots


def count_quiet_slots(state: EngineState, progress: Mapping[str, int], limit: int) -> int:
    """Return how many next slots, up to ``limit``, are quiet if the policy decides nothing.

    It is 0 within `atomic`, if plans or moves are due, and in live runs. In these, each slot checks
    the jobs' progress and limits.
    """
    if state.slot_running is not None or state.enclosing_undo is not None or state.acknowledges:
        return 0
    if state.moved or state.planned or state.agenda or progress.keys() != state.running.keys():
        return 0
    if state.until is not None:
        limit = min(limit, state.until - state.slot)
    for name, gained in progress.items():
        record = state.jobs[name]
        if type(gained) is not int or gained < 0 or record.job.bag is not None:
            return 0
        if gained:  # the slot in which a job completes isn't quiet
            limit = min(limit, (record.remaining - 1) // gained)
    return max(limit, 0)


def pass_quiet_slots(state: EngineState, progress: Mapping[str, int], slots: int) -> None:
    """Record the progress of the next slots; without an undo log, because no step can fail."""
    for name, gained in progress.items():
        state.jobs[name].progress += slots * gained
    state.digest.changed.update(progress)
    state.ran.clear()
    state.ledger.advance(state.slot + slots)
    state.sequence += 2 * slots  # `SlotBegan` and `SlotEnded`

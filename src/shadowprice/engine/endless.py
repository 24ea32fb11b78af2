"""Limits of live runs, because a job that hangs would hold its servers until its owner cancels it.

A live job may take longer than stated, and a pinned job isn't stopped for other jobs.
"""

from __future__ import annotations

from typing import Final

from shadowprice.core.events import Command, Drop, JobCancelled
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import utility_value
from shadowprice.engine.decisions import apply_decision
from shadowprice.engine.policy_session import PolicySession
from shadowprice.engine.state import EngineState

ENDLESS_FACTOR: Final = 3
"""A job that has run this many times its stated duration counts as endless."""


def abandon_endless(state: EngineState, session: PolicySession) -> list[Command]:
    """Abandon running jobs that reached a limit, or that far overran and lost all their utility.

    Simulated jobs end as stated. So only jobs of a driver that acknowledges commands can be
    endless.
    """
    commands: list[Command] = []
    if not state.acknowledges:
        return commands
    for name in list(state.running):
        refusal = _refusal(state, name) if name in state.open_jobs else None
        if refusal is not None:
            commands += apply_decision(state, Drop(name, refusal))
            commands += session.query(JobCancelled(state.slot, name))
    return commands


def _is_long_worthless(job: Job, slot: int) -> bool:
    """Return whether a job of unknown length was worth something for a third of its life at most.

    Its predicted length grows while it runs, so it never runs far beyond that.
    """
    age = (slot - job.arrival) / ENDLESS_FACTOR
    return job.predicted and utility_value(job.utility, age) <= 0


def _refusal(state: EngineState, name: str) -> Refusal | None:
    """Return why a running job is abandoned, or None."""
    record, placement = state.jobs[name], state.running[name]
    job = record.job
    if job.bag is not None:
        return None  # its deadline bounds it
    # Earlier generations count too: a policy that lets jobs take turns starts new ones often.
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

"""Running jobs that seem never to end, and are worth nothing any more.

A live job takes as long as it takes, and a pinned one is stopped for no other job. So a job that
hangs would hold its servers until its owner cancels it.
"""

from __future__ import annotations

from typing import Final

from shadowprice.core.events import Command, Drop, JobCancelled
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import utility_value
from shadowprice.engine.decisions import apply_decision
from shadowprice.engine.policy_session import PolicySession
from shadowprice.engine.state import EngineState

ENDLESS_FACTOR: Final = 3
"""A generation that has run this many times its stated duration counts as endless."""


def abandon_endless(state: EngineState, session: PolicySession) -> list[Command]:
    """Abandon running jobs that are worth nothing any more and have overrun far.

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


def _refusal(state: EngineState, name: str) -> Refusal | None:
    """Return why a running job is abandoned, or None."""
    record, placement = state.jobs[name], state.running[name]
    job, slots = record.job, state.slot - record.generation_slot
    if job.bag is not None:
        return None  # its deadline bounds it
    gain = job.gain(placement.total_workers, colocated=placement.colocated)
    stated = -(-job.required // gain)
    if slots < ENDLESS_FACTOR * stated or utility_value(job.utility, state.slot - job.arrival) > 0:
        return None
    return Refusal(
        RefusalReason.NO_VALUE,
        f"has run for {slots} slots without an end, instead of {stated}, and is worth nothing "
        f"from slot {state.slot} on",
        value=0.0,
        bottleneck="its utility",
        numbers={"slots": float(slots), "stated_slots": float(stated)},
    )

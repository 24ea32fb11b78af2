"""Quiet slots: nothing starts, stops or completes in them, so a simulation passes many at once."""

from __future__ import annotations

from collections.abc import Mapping

from shadowprice.engine.state import EngineState


def count_quiet_slots(state: EngineState, progress: Mapping[str, int], limit: int) -> int:
    """Return how many next slots, up to ``limit``, are quiet if the policy decides nothing.

    ``progress`` is that of each running job in each of these slots. The result is 0 if the engine
    can't know, or has to check the progress or the limits of live runs.
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
        if gained:
            limit = min(limit, (record.remaining - 1) // gained)
    return max(limit, 0)


def pass_quiet_slots(state: EngineState, progress: Mapping[str, int], slots: int) -> None:
    """Record the progress of the next slots, as the start and the end of each one would.

    No step can fail, so nothing is logged for a rollback.
    """
    for name, gained in progress.items():
        state.jobs[name].progress += slots * gained
    state.digest.changed.update(progress)
    state.ran.clear()
    state.ledger.advance(state.slot + slots)
    state.sequence += 2 * slots

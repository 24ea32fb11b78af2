"""The end of the timespan, after which nothing runs: operators set, move and remove it.

The end is stored as a moment, which falls into another slot if the slots are moved in time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.events import TimespanChanged
from shadowprice.core.job import Job
from shadowprice.core.moments import parse_moment_ahead
from shadowprice.core.policy import Status
from shadowprice.core.quote import Quote, QuoteAnswer
from shadowprice.engine.engine import Engine
from shadowprice.engine.snapshot import clone
from shadowprice.service.clock import SlotCalendar, format_rfc3339
from shadowprice.service.state import ending
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.state.engine_events import apply_event
from shadowprice.service.state.job_views import view_changes

log = logging.getLogger("shadowprice.service")

NONE: Final = "none"  # value of ``--until`` that removes the end


@operation
def set_timespan_end(batch: Batch, at: int | None) -> None:
    """Set the end of the timespan to nanoseconds since 1970, or remove it if None."""
    change_end(batch, replace(batch.state.end, at=at))


@operation
def follow_option(batch: Batch, option: str | None) -> None:
    """Apply the text of ``--until`` at the start of the service, if it has changed.

    A restart with the same text keeps the stored end. So a duration isn't counted from the restart,
    a clock time doesn't move to the next day, and an operator's change persists. ``option`` is None
    if the option isn't given.
    """
    if option is None or option == batch.state.end.option:
        return
    at = None
    if option != NONE:
        slot_seconds = batch.engine.cluster.slot_seconds
        at = parse_moment_ahead(option, batch.now, slot_seconds, "--until")
    change_end(batch, ending.TimespanEnd(at, option))


def change_end(batch: Batch, end: ending.TimespanEnd) -> None:
    """Store an end, update the engine, and emit an event."""
    batch.undo.assign(batch.state, "end", end)
    batch.set_value(ending.END_KEY, end.stored())
    follow_clock(batch)
    ends = ending.end_text(batch.engine, batch.calendar)
    batch.emit("timespan", until=None if end.at is None else format_rfc3339(end.at), ends=ends)


def follow_clock(batch: Batch) -> None:
    """Update the engine's end slot from the stored end, and the views of all open jobs."""
    state, at = batch.state, batch.state.end.at
    # Nothing may run in the slot that contains the end.
    slot = None if at is None else max(0, batch.calendar.slot_at(at))
    if slot != batch.engine.until:
        apply_event(batch, TimespanChanged(state.next_slot, slot))
    for name, view in list(state.views.items()):
        record = batch.engine.open_jobs.get(name)
        if record is not None:
            batch.update_view(
                name, **view_changes(batch.engine, record, view, state.calendar, batch.now)
            )


def explain_end(batch: Batch, jobs: Sequence[Job]) -> None:
    """Explain jobs that were refused or not promised only because the timespan ends."""
    engine = batch.engine
    if not ending.is_near(engine) or not engine.capabilities.quotes:
        return
    excluded = [job for job in jobs if _is_left_out(engine, job.name)]
    if not excluded:
        return
    twin = without_end(engine)
    end = str(ending.end_text(engine, batch.calendar))
    text = ending.without_end_text(end)
    for job in excluded:
        refused = engine.jobs[job.name].status is Status.REFUSED
        if admitted_without_end(twin, job, promised=not refused):
            reason = batch.state.views[job.name].reason or {}
            batch.update_view(job.name, reason=ending.append_end_text(reason, text, end))
            batch.emit("timespan", job.name, reason=text)


def _is_left_out(engine: Engine, name: str) -> bool:
    """Return whether a job was refused, or waits without a plan or promise."""
    record = engine.jobs.get(name)
    if record is None or record.status not in {Status.REFUSED, Status.QUEUED}:
        return False
    return record.promise is None and not len(record.plan)


def without_end(engine: Engine) -> Engine:
    """Return a copy of the engine without an end, with its policy resynced."""
    twin = clone(engine)
    twin.state.until = None
    twin.session.resync()
    return twin


def admitted_without_end(twin: Engine, job: Job, *, promised: bool) -> bool:
    """Return whether ``twin`` would admit a job; ``promised`` requires a promise."""
    name = job.name
    while name in twin.jobs:
        name += " (without the end)"
    try:
        quote = twin.quote(replace(job, name=name))
    except ShadowpriceError as error:
        log.info("job %s could not be quoted without the end: %s", job.name, error)
        return False
    return quote.answer is QuoteAnswer.ADMITTED or (quote.admitted and not promised)


def end_of_quote(engine: Engine, calendar: SlotCalendar, job: Job, quote: Quote) -> dict[str, Any]:
    """Return the effect of the timespan's end on a quote; empty if the end can't limit it."""
    if not ending.is_near(engine):
        return {}
    effect: dict[str, Any] = {"ends": ending.end_text(engine, calendar)}
    refused = quote.answer is QuoteAnswer.REFUSED
    if quote.answer is not QuoteAnswer.ADMITTED:
        effect["admitted_without"] = admitted_without_end(
            without_end(engine), job, promised=not refused
        )
    return effect

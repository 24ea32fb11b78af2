"""Driver events as lines of text, and back: the complete record of a run.

An engine takes nothing in but events, so the journal of its events, replayed into a new engine of
the same cluster and policy, ends in the same state (`Engine.state_digest`). A line is a JSON object
with the event's name and fields; jobs are written out in full, so a journal needs no other file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import (
    DriverEvent,
    JobCancelled,
    JobsArrived,
    ServerBack,
    ServerLost,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.engine.engine import Engine

_EVENTS: Final[Mapping[str, type[DriverEvent]]] = {
    kind.__name__: kind
    for kind in (ServerLost, ServerBack, JobCancelled, JobsArrived, SlotBegan, SlotEnded)
}
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(event: DriverEvent) -> str:
    """Return an event as one line, without the line's end."""
    record: dict[str, Any] = {"event": type(event).__name__, "slot": event.slot}
    match event:
        case ServerLost() | ServerBack():
            record["server"] = event.server
        case JobCancelled():
            record["job"] = event.job
        case JobsArrived():
            record["jobs"] = [job.record() for job in event.jobs]
        case SlotEnded():
            record["progress"] = dict(event.progress)
            if event.finished:
                record["finished"] = dict(event.finished)
        case SlotBegan():
            pass
    return _ENCODE(record)


def decode(line: str, place: str = "journal") -> DriverEvent:
    """Return the event that a line tells.

    Parameters
    ----------
    line : str
        As `encode` wrote it.
    place : str
        Where it was read, for errors.

    Raises
    ------
    InputError
        If the line is no event.
    """
    try:
        record = json.loads(line)
        kind = _EVENTS[record.pop("event")]
        if kind is JobsArrived:
            record["jobs"] = tuple(Job.from_record(job) for job in record["jobs"])
        if "finished" in record:
            record["finished"] = {job: tuple(done) for job, done in record["finished"].items()}
        return kind(**record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(Fault(place, "is no event of a journal")) from error


def replay(events: Iterable[DriverEvent], engine: Engine) -> Engine:
    """Let a new engine take the events of a journal in.

    Parameters
    ----------
    events : iterable of DriverEvent
        From the first on.
    engine : Engine
        Freshly built, on the same cluster and with the same policy and parameters.

    Returns
    -------
    Engine
        The same engine, in the state that the journal ends in.

    Raises
    ------
    ShadowpriceError
        If the events are out of order or do not fit the cluster.
    """
    for event in events:
        engine.handle(event)
    return engine

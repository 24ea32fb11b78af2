"""Reasons of jobs in clock times, and the end of the timespan, which causes some of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core.amounts import format_seconds
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.relative_values import utility_factor
from shadowprice.engine.engine import Engine
from shadowprice.service.clock import SlotCalendar, format_rfc3339
from shadowprice.service.state.scarcity import find_scarcest, has_free_capacity

CODE: Final = "timespan"  # code of the reason of a job that waits because the timespan has ended
END_KEY: Final = "timespan"  # key of the end in the store
_LIMITED: Final = frozenset({RefusalReason.TOO_LATE, RefusalReason.NO_ROOM, RefusalReason.NO_VALUE})
"""Reasons that an earlier end of the timespan can cause."""
_LACKING: Final = frozenset({RefusalReason.NEVER_FITS, RefusalReason.NO_ROOM, RefusalReason.PRICE})
"""Reasons for which a job lacks a resource."""
_LATE: Final = frozenset({RefusalReason.TOO_LATE, RefusalReason.NO_VALUE})
"""Reasons for which a job lacks time that more workers would save."""
_HOLDER: Final = re.compile(r"the promise to (.*?) would break")

# Forms of slots in the texts of policies; see `with_clock_times`.
_SPAN: Final = re.compile(r"\b(in )?slots (\d{1,15}) to (\d{1,15})\b")
_START: Final = re.compile(
    r"\b(?<!moved )(from|until|ending at|ends at|begins in|begins by|decided in|not before) slot "
    r"(\d{1,15})\b"
)
_END: Final = re.compile(r"\b(?:(by|in|for) )?(the end of )?slot (\d{1,15})\b")
_EARLIEST: Final = re.compile(r"\bin slot (\d{1,15}) at the earliest\b")
_OR_LATER: Final = re.compile(r"\bin slot (\d{1,15}) or later\b")
_COUNT: Final = re.compile(r"(?<![\w.+-])(\d{1,12}(?:\.\d{1,12})?) slots?\b(?! \(\d)")
_COUNT_WITHOUT_NOUN: Final = re.compile(
    r"\b(?:(after |the longest round has )(\d{1,12})(?=$|[;,)])|(\d{1,12})( are left\b))"
)
# Prepositions of slots, and the prepositions of moments that replace them:
_START_PREPOSITIONS: Final = {"begins in": "begins at", "decided in": "decided at"}
_END_PREPOSITIONS: Final = {"in": "by"}


def with_clock_times(text: str, calendar: SlotCalendar) -> str:
    """Replace slots by times in UTC, and add durations to counts of slots that have none.

    Policies have no calendar, so their texts name slots. A slot in which something completes is
    replaced by its end. A slot from or until which something holds is replaced by its start.
    """

    def start(slot: str) -> str:
        return format_rfc3339(calendar.begins(int(slot)))

    def end(slot: str) -> str:
        return format_rfc3339(calendar.ends(int(slot)))

    def span(match: re.Match[str]) -> str:
        return f"{'from ' if match[1] else ''}{start(match[2])} to {end(match[3])}"

    def completion(match: re.Match[str]) -> str:
        word = match[1] or ""
        return f"{_END_PREPOSITIONS.get(word, word)} {end(match[3])}".lstrip()

    def count(match: re.Match[str]) -> str:
        return f"{match[0]} ({format_seconds(float(match[1]) * calendar.slot_seconds)})"

    def with_noun(match: re.Match[str]) -> str:
        return f"{match[1] or ''}{match[2] or match[3]} slots{match[4] or ''}"

    if "slot" not in text:
        return text
    # First, so that counts without a noun, such as "5 are left", get a duration too.
    text = _COUNT_WITHOUT_NOUN.sub(with_noun, text)
    text = _SPAN.sub(span, text)
    text = _EARLIEST.sub(lambda match: f"at {end(match[1])} at the earliest", text)
    text = _OR_LATER.sub(lambda match: f"at {start(match[1])} or later", text)
    text = _START.sub(
        lambda match: f"{_START_PREPOSITIONS.get(match[1], match[1])} {start(match[2])}", text
    )
    return _COUNT.sub(count, _END.sub(completion, text))


@dataclass(frozen=True, slots=True)
class TimespanEnd:
    """The stored end of the timespan.

    ``at`` is in nanoseconds since 1970, and None means no end. ``option`` is the last applied text
    of ``--until``: the same text at the next start changes nothing.
    """

    at: int | None = None
    option: str | None = None

    def stored(self) -> str:
        """Serialize the end for the store."""
        return json.dumps({"at": self.at, "option": self.option})


def end_text(engine: Engine, calendar: SlotCalendar) -> str | None:
    """Return the time at which the timespan ends, as text; None without an end."""
    return None if engine.until is None else format_rfc3339(calendar.begins(engine.until))


def queue_reason(engine: Engine, calendar: SlotCalendar, job: Job, message: str) -> dict[str, Any]:
    """Return the reason of a job that waits: what it waits for, and the policy's message."""
    text = with_clock_times(message.removeprefix("waits without a promise: "), calendar)
    text = _without_others(engine, job, text)
    if job.predicted:  # it gets no promise until its speed is measured
        text = text.partition("; it gets a promise")[0]
    if (text or _waits_alone(engine, job)) and job.bag is None and has_free_capacity(engine, job):
        message = "waits for the next slot, in which it can start"
        if text:
            message = f"not promised, but fits on free capacity: {text}"
        return {"code": "standby", "message": message}
    scarce = find_scarcest(engine, job)
    if scarce is None:
        return {"code": "standby", "message": text or "waits its turn"}
    waits = f"waits for {scarce.place}"
    return {"code": "standby", "message": f"{waits}: {text}" if text else waits, **scarce.record()}


def _waits_alone(engine: Engine, job: Job) -> bool:
    """Return whether no other job is queued."""
    return not any(
        record.status is Status.QUEUED and name != job.name
        for name, record in engine.open_jobs.items()
    )


def _is_others(engine: Engine, job: Job, name: str) -> bool:
    """Return whether an open job of that name belongs to another tenant."""
    record = engine.open_jobs.get(name)
    return record is not None and record.job.tenant != job.tenant


def _without_others(engine: Engine, job: Job, text: str) -> str:
    """Return a text that doesn't name the jobs of other tenants."""

    def holder(match: re.Match[str]) -> str:
        if not _is_others(engine, job, match[1]):
            return match[0]
        return "the promise to another tenant's job would break"

    return _HOLDER.sub(holder, text)


def has_ended(engine: Engine) -> bool:
    """Return whether nothing may run in the running slot, or between slots, in the next one."""
    running = engine.slot_running
    current = engine.slot if running is None else running
    return engine.until is not None and current >= engine.until


def is_near(engine: Engine) -> bool:
    """Return whether the end of the timespan may limit a plan that starts now."""
    until, horizon = engine.until, engine.cluster.horizon
    return until is not None and until - engine.slot <= horizon


def reason_to_wait(engine: Engine, calendar: SlotCalendar) -> dict[str, Any]:
    """Return the reason of an open job that waits because the timespan has ended."""
    end = end_text(engine, calendar)
    message = f"the timespan ends at {end}: nothing runs from then on, until it is moved or removed"
    return {"code": CODE, "message": message, "timespan_ends": end}


def refusal_reason(
    engine: Engine, calendar: SlotCalendar, job: Job, refusal: Refusal
) -> dict[str, Any]:
    """Return the reason of a refusal, with clock times and the resource that the job lacks."""
    reason: dict[str, Any] = refusal.record()
    for key in ("message", "bottleneck"):
        if key in reason:
            reason[key] = _without_others(engine, job, with_clock_times(reason[key], calendar))
    if refusal.bottleneck is not None and _is_others(engine, job, refusal.bottleneck):
        reason["bottleneck"] = "another tenant's job"
    never_fits = refusal.reason is RefusalReason.NEVER_FITS
    scarce = find_scarcest(engine, job, empty=never_fits) if refusal.reason in _LACKING else None
    if scarce is not None:
        reason |= scarce.record()
        if never_fits:
            reason["message"] = scarce.never_text
        else:
            reason["message"] += f" (scarcest: {scarce.place})"
    elif refusal.reason in _LATE and job.bag is None:
        scarce = find_scarcest(engine, job, empty=True, maximum=True)
        if scarce is not None:
            reason |= scarce.record()
            reason["message"] += f" ({scarce.limit_text})"
    if refusal.value is not None and job.stated_utility is not None:
        share = utility_factor(job)
        reason["message"] += f" (in points; a value of 1 as stated is {share:.3g} points)"
    if refusal.reason in _LIMITED and is_near(engine):
        end = end_text(engine, calendar)
        reason["timespan_ends"] = end
        if "timespan" in f"{refusal.message} {refusal.bottleneck}":
            reason["message"] = f"{reason['message']} (it ends at {end})"
    return reason


def without_end_text(end: str) -> str:
    """Return the text for a job that would be admitted without the end of the timespan."""
    return f"without the end of the timespan at {end} it would be admitted"


def append_end_text(reason: Mapping[str, Any], text: str, end: str) -> dict[str, Any]:
    """Append a text about the end of the timespan to a reason."""
    return {**reason, "message": f"{reason.get('message', '')}; {text}", "timespan_ends": end}

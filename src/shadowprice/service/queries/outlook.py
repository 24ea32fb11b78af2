"""Outlooks of jobs that don't run: missing resource, start, completion, and helpful changes.

An outlook is computed on a copy of the engine, in a thread of its own, within a second of processor
time. `shadowprice.advice` searches the changes, for simulations too.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from functools import partial
from typing import Any, Final

from shadowprice import rest
from shadowprice.advice.candidate_changes import JobChange, Key, SlotDeadlines, candidate_changes
from shadowprice.advice.changes import (
    AdmissionOutcome,
    ChangeSearch,
    JobVariants,
    describe_result,
)
from shadowprice.core.amounts import format_seconds
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.events import JobCancelled, JobsArrived, SlotBegan, SlotEnded
from shadowprice.core.job import Job
from shadowprice.core.quote import QuoteAnswer
from shadowprice.core.specs import JobSpec
from shadowprice.engine.engine import Engine
from shadowprice.engine.snapshot import clone
from shadowprice.results.advice import (
    Advice,
    IneffectiveChange,
    JobAdvice,
    advice_lines,
    describe_change,
)
from shadowprice.service.clock import SECOND, SlotCalendar, format_rfc3339, to_datetime
from shadowprice.service.resources import build_resource
from shadowprice.service.state.job_views import expected_slot
from shadowprice.service.state.operations import EngineFork, StartPrediction, fork_engine
from shadowprice.service.state.scarcity import find_scarcest, has_free_capacity
from shadowprice.service.state.submission import REVISABLE_KEYS
from shadowprice.service.turns import TenantTurns
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

LIMIT_SECONDS: Final = 0.9  # processor time after which no further quote or slot is started
MAX_REQUESTS: Final = 4  # maximum number of requests of one tenant that wait
START_SHARE: Final = 0.4  # share of the limit for planning the slots until a job starts

_ASSUMPTION: Final = (
    "the rest of the submission and all running and promised jobs don't change; each changed job "
    "is submitted now"
)


class _TimeUpError(Exception):
    """The limit of processor time is exceeded."""


class OutlookQueue:
    """Builds outlooks in a thread, one at a time, because two would share the interpreter lock."""

    def __init__(self) -> None:
        self._turns = TenantTurns(max_waiting=MAX_REQUESTS, what="requests for advice")

    async def build(
        self,
        writer: Writer,
        key: str,
        record: Mapping[str, Any],
        *,
        tenant: str | None,
        **options: bool,
    ) -> rest.JobOutlook:
        """Return the outlook of a job; ``options`` are those of `build_outlook`.

        ``record`` is the job's submission. ``tenant`` is the requesting tenant, None for an
        operator. Raise `ProblemError` if too many of its requests wait. Raise `ShadowpriceError` if
        the policy gives no quotes, or if the cluster lacks a resource of the job.
        """
        async with self._turns.turn(tenant):
            fork = await writer.do(fork_engine(key, JobSpec.model_validate(record)))
            return await asyncio.to_thread(build_outlook, fork, record, **options)


@dataclass(frozen=True, slots=True)
class _ClockDeadlines(SlotDeadlines):
    """Formats later deadlines: the key ``by`` as a moment, a utility's deadline as a duration."""

    calendar: SlotCalendar
    job: Job

    def write(self, key: Key, slots: float) -> str:
        """Return a deadline as a job's record has it; ``slots`` are from arrival to completion."""
        if key == ("by",):
            end = self.calendar.ends(self.job.arrival + math.ceil(slots))
            return format_rfc3339(-(-end // SECOND) * SECOND)  # rounded up to a full second
        before_arrival = Fraction(self.job.before_arrival)
        # Durations last from the submission to the end of the completion slot, hence the 1.
        seconds = (Fraction(slots) + before_arrival + 1) * self.calendar.slot / SECOND
        # In units of at most 1 % of the duration, because it is rounded up.
        unit, unit_seconds = next(
            (pair for pair in (("h", 3600), ("min", 60)) if seconds >= 100 * pair[1]), ("s", 1)
        )
        return f"{math.ceil(seconds / unit_seconds)}{unit}"

    def describe_delay(self, slots: float) -> str:
        """Return a delay of a deadline, such as ``20min later``."""
        return f"{format_seconds(slots * self.calendar.slot_seconds)} later"


def build_outlook(
    fork: EngineFork,
    record: Mapping[str, Any],
    *,
    waits: bool,
    promised: bool = False,
    quoted: bool = False,
) -> rest.JobOutlook:
    """Return the outlook of a job that waits or was refused; ``record`` is its submission.

    For a job that ``waits``, helpful changes get it a promise or let it start at once. A
    ``promised`` job needs no changes, and only waits for its start. A ``quoted`` job, like any job
    that the engine doesn't know, arrives now, beside an open job of its name if there is one.
    """
    started = time.thread_time()
    engine, calendar = fork.engine, fork.calendar
    times: dict[str, datetime | None] = {}
    if waits:
        future, name = clone(engine), fork.job.name
        if name in engine.open_jobs and not quoted:
            engine.handle(JobCancelled(engine.slot, name))
        else:
            arriving = _rename(fork.job, engine)
            name = arriving.name
            future.handle(JobsArrived(future.slot, (arriving,)))
        times = _plan_wait(future, calendar, name, started + LIMIT_SECONDS * START_SHARE)
    if promised:
        outlook = _outlook(started, **times)
        return outlook.model_copy(update={"lines": _start_lines(outlook)})
    fits = waits and fork.job.bag is None and has_free_capacity(engine, fork.job)
    scarce = None if fits else find_scarcest(engine, fork.job)
    job_advice, admitted_now, untried = _search(
        fork, record, started + LIMIT_SECONDS, promised=waits
    )
    start = fork.start if waits else None
    outlook = _outlook(
        started,
        **times,
        predicted_start=None if start is None else _predicted_start(start),
        resource=None if scarce is None else scarce.resource,
        servers=None if scarce is None else scarce.servers,
        admitted_now=admitted_now,
        changes=[_suggested_change(advice, calendar) for advice in job_advice.advice],
        ineffective=[change.key for change in job_advice.ineffective],
        untried=[change.label for change in untried],
    )
    is_open = waits and not quoted
    change_text = partial(_describe_revision, str(record["name"])) if is_open else describe_change
    lines = _lines(outlook, job_advice, calendar, change_text, waits=waits)
    return outlook.model_copy(update={"lines": lines})


def _outlook(started: float, **fields: Any) -> rest.JobOutlook:
    """Return an outlook of the given fields; ``started`` is the thread's processor time before."""
    times = ("starts", "completes", "predicted_start", "abandoned", "waits_beyond")
    absent: dict[str, Any] = dict.fromkeys(("resource", "servers", *times))
    absent["admitted_now"] = False
    absent |= {"changes": [], "ineffective": [], "untried": [], "lines": []}
    seconds = round(time.thread_time() - started, 4)
    return rest.JobOutlook(**(absent | fields), seconds=seconds)


def _predicted_start(start: StartPrediction) -> rest.PredictedStart:
    return build_resource(rest.PredictedStart, start, by=to_datetime(start.by))


def _suggested_change(advice: Advice, calendar: SlotCalendar) -> rest.SuggestedChange:
    slot = advice.completion
    completion = None if slot is None else to_datetime(calendar.ends(slot))
    return build_resource(rest.SuggestedChange, advice, completion=completion)


def _start_lines(outlook: rest.JobOutlook) -> list[str]:
    """Return a line that says when a promised job starts and completes."""
    if outlook.starts is None:
        if outlook.waits_beyond is None:
            return []
        end = _rfc3339(outlook.waits_beyond)
        return [f"starts later than {end}, the last time that was planned"]
    text = f"starts by {_rfc3339(outlook.starts)}"
    return [f"{text}{_completes(outlook)} if plans hold and no job arrives"]


def _completes(outlook: rest.JobOutlook) -> str:
    """Return a clause that says when a job completes; empty if that is unknown."""
    if outlook.completes is None:
        return ""
    return f", and is expected to complete by {_rfc3339(outlook.completes)}"


def _lines(
    outlook: rest.JobOutlook,
    job_advice: JobAdvice,
    calendar: SlotCalendar,
    change_text: Callable[[Advice], str],
    *,
    waits: bool,
) -> list[str]:
    lines = []
    if waits:
        place = f"{outlook.resource} of {outlook.servers} servers"
        subject = "waits" if outlook.resource is None else f"waits for {place}"
        if outlook.starts is not None:
            text = f"{subject}, until {_rfc3339(outlook.starts)} at the latest"
            lines.append(f"{text}{_completes(outlook)} if plans hold and no job arrives")
        elif outlook.abandoned is not None:
            end = _rfc3339(outlook.abandoned)
            lines.append(f"{subject}; if plans hold, it is abandoned at {end} without having run")
        elif outlook.waits_beyond is not None:
            end = _rfc3339(outlook.waits_beyond)
            lines.append(f"{subject}, for longer than until {end}, the last time that was planned")
    if (start := outlook.predicted_start) is not None:
        jobs = f"{start.jobs} similar jobs that waited longer"
        chance = f"with a probability of {start.probability:.0%}, judging by {jobs}"
        lines.append(f"starts by {_rfc3339(start.by)} {chance}")
    if outlook.admitted_now:
        answer = "promised" if waits else "admitted"
        return [*lines, f"would be {answer} if it were submitted again now"]
    texts = advice_lines(
        job_advice,
        lambda slot: f"by {format_rfc3339(calendar.ends(slot))}",
        "a second of processor time was not enough",
        change_text,
    )
    return lines + [f"{label:<10}  {text}" for label, text in texts]


def _describe_revision(name: str, advice: Advice) -> str:
    """Describe a change of an open job as a command, if the key can be revised."""
    if advice.key.partition(".")[0] in REVISABLE_KEYS:
        # `time` is of all steps, as people state it; the advice's key is the time of one step.
        is_run_time = advice.option == "--time"
        change = f"time={advice.option_after}" if is_run_time else f"{advice.key}={advice.after}"
        return f"shadowprice revise {shlex.quote(name)} --set {shlex.quote(change)}"
    return f"cancel it and submit it again with {describe_change(advice)}"


def _rfc3339(moment: datetime) -> str:
    return format_rfc3339(round(moment.timestamp() * 1_000_000) * 1000)


def _plan_wait(
    engine: Engine, calendar: SlotCalendar, name: str, deadline: float
) -> dict[str, datetime | None]:
    """Simulate slots at the stated speeds until a job starts; return the times of its outlook.

    The slots end at the planning horizon, or when the thread's processor time is ``deadline``.
    """
    slot = engine.slot
    try:
        if engine.slot_running is not None:
            _end_slot(engine, engine.slot_running)
        for slot in range(engine.slot, engine.slot + engine.cluster.horizon):
            if time.thread_time() > deadline:
                break
            engine.handle(SlotBegan(slot))
            if name in engine.running:
                completes = expected_slot(engine, engine.open_jobs[name], None)
                end = None if completes is None else to_datetime(calendar.ends(completes))
                return {"starts": to_datetime(calendar.begins(slot)), "completes": end}
            if name not in engine.open_jobs:
                return {"abandoned": to_datetime(calendar.begins(slot))}
            _end_slot(engine, slot)
    except ShadowpriceError as error:
        log.info("failed to plan the wait of job %s: %s", name, error)
    return {"waits_beyond": to_datetime(calendar.begins(slot))}


def _end_slot(engine: Engine, slot: int) -> None:
    """End a slot in which all running jobs progressed at their stated speeds."""
    progress = {}
    for name, placement in engine.running.items():
        record = engine.open_jobs[name]
        moved = record.generation_slot == slot and record.generation > 1
        gain = record.job.gain(placement.total_workers, colocated=placement.colocated, moved=moved)
        progress[name] = min(gain, record.remaining)
    engine.handle(SlotEnded(slot, progress))


def _search(
    fork: EngineFork, record: Mapping[str, Any], deadline: float, *, promised: bool
) -> tuple[JobAdvice, bool, Sequence[JobChange]]:
    """Return the smallest helpful changes, whether the job needs none, and the untried changes.

    If ``promised``, only changes that get the job a promise are helpful.
    """
    engine = fork.engine
    job = _rename(fork.job, engine)
    changes = [
        *candidate_changes(
            record, job, engine.cluster, engine.view.end, _ClockDeadlines(fork.calendar, job)
        )
    ]

    def quote_variant(variant: Job) -> AdmissionOutcome | None:
        if time.thread_time() > deadline:
            raise _TimeUpError
        try:
            quote = engine.quote(_rename(variant, engine))
        except ShadowpriceError:
            return None
        is_enough = quote.answer is QuoteAnswer.ADMITTED if promised else quote.admitted
        balance = fork.job.points
        is_payable = balance is None or quote.price is None or quote.price <= balance
        if not (is_enough and is_payable):
            return None
        completion = quote.completion if quote.expected is None else quote.expected
        return AdmissionOutcome(completion, quote.utility, quote.price)

    advice: list[Advice] = []
    ineffective: list[IneffectiveChange] = []
    tried = 0
    admitted_now = False
    try:
        admitted_now = quote_variant(job) is not None
        if not admitted_now:
            variants = JobVariants(record, job, engine.cluster, fork.resolve)
            search = ChangeSearch(variants, changes, quote_variant)
            for change in changes:
                described = describe_result(change, search.find(change))
                tried += 1
                if isinstance(described, Advice):
                    advice.append(described)
                elif described is not None:
                    ineffective.append(described)
    except _TimeUpError:
        pass
    untried = [] if admitted_now else changes[tried:]
    names = [change.label if change.option is None else change.option.name for change in untried]
    job_advice = JobAdvice(fork.job.name, job.arrival, _ASSUMPTION, advice, ineffective, names)
    return job_advice, admitted_now, untried


def _rename(job: Job, engine: Engine) -> Job:
    """Return a job under a name that the engine doesn't know."""
    name = job.name
    while name in engine.jobs:
        name += " (variant)"
    return replace(job, name=name)

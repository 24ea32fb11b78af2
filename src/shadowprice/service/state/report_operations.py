"""Operations that apply reports of executors and jobs to the durable state."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, bindparam, select

from shadowprice.core import events
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.job import MICRO, Job
from shadowprice.core.specs import JobSpec
from shadowprice.core.utility import utility_value
from shadowprice.engine.job_record import JobRecord
from shadowprice.executors.contract import (
    Ended,
    Ending,
    GenerationStatus,
    InvalidProgress,
    Obstacle,
    PartlyEnded,
    Progressed,
    Started,
    StartRefused,
)
from shadowprice.executors.generations.logs import TAIL_LINES
from shadowprice.executors.generations.outcome import ALL_WORKERS_SUCCEEDED, SIGNAL_FROM_OUTSIDE
from shadowprice.executors.progress import same_kind
from shadowprice.service.clock import SECOND, format_rfc3339
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.state.command_failures import explain_command_failure
from shadowprice.service.state.engine_events import apply_event, emit_finished
from shadowprice.service.state.job_views import PARTLY_ENDED, JobView, State, view_changes
from shadowprice.service.state.lengths import measured_length
from shadowprice.service.state.restart_costs import is_restart
from shadowprice.service.state.start_ups import CODE as SLOT_TOO_SHORT
from shadowprice.service.state.start_ups import KEY as START_UPS_KEY
from shadowprice.service.state.start_ups import StartUp, stated_seconds
from shadowprice.service.state.stated_work import uncount_repeated
from shadowprice.service.state.store_queries import command_times
from shadowprice.service.state.submission import resolve_job
from shadowprice.service.store import tables

log = logging.getLogger("shadowprice.service")

FIRST_REPORT_MAX_SLOT_SHARE: Final = 0.1
"""Maximum work of a first report, in slots, with which the report measures the start."""

MAX_WORK_EXCESS: Final = 1.25
"""Maximum time of the first work over its estimate; a longer time counts as start-up."""

_WENT_BACK: Final = (
    "its progress went back, which is not counted; report mini-batches since the job's beginning, "
    "not since the last checkpoint"
)

_OWN_STEPS: Final = (
    "the job states no number of steps, so its expected time is counted; submit it with --steps, "
    "or report fractions of 1"
)

COMPLETE_SHARE: Final = 0.99
"""Minimum reported share of a job's work at which an exit 0 on a stop command completes it.

The last reports of a job can be a little behind its work.
"""

MAX_LASTING_REFUSALS: Final = 6
"""Refused starts, all for a cause of the job itself, after which the job fails.

With the reconciler's backoff they take at least 155 seconds, in which an operator may bring back
files that a restored service lacks.
"""

MAX_REPORTED_ERRORS: Final = 5  # maximum number of different `misreported` events of a generation
MAX_LISTED_WORKERS: Final = 8  # maximum names of workers in a message


DurableReport = Started | StartRefused | Ended | InvalidProgress | PartlyEnded
"""A report that is applied by itself; progress reports are applied together."""


def _time_limit(batch: Batch, job: Job, name: str) -> str:
    """Return a clause for messages: which limit ends the job if it hangs."""
    if job.walltime is not None:
        return f"otherwise its walltime of {batch.state.specs[name]['walltime']} ends it"
    if job.max_overrun is not None:
        return f"otherwise it ends after {job.max_overrun:g} times its stated time"
    return "it has no walltime that ends it"


def _list_names(names: Sequence[str]) -> str:
    """Return a list of names for people, shortened."""
    rest = len(names) - MAX_LISTED_WORKERS
    return ", ".join(names[:MAX_LISTED_WORKERS]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, slots=True)
class RecordReports:
    """Apply reports in the executor's order, each of them atomically."""

    reports: Sequence[DurableReport]

    def perform(self, batch: Batch) -> tuple[DurableReport, ...]:
        """Apply the reports; return reports to retry: failed ones, and later ones on their jobs."""
        remaining: list[DurableReport] = []
        waiting: set[str] = set()
        for report in self.reports:
            if report.job not in waiting:
                try:
                    with batch.savepoint():
                        _apply(batch, report)
                    continue
                except ShadowpriceError as error:
                    if error.code == "storage":
                        raise
                    log.error("failed to process a report on job %r: %s", report.job, error)
                waiting.add(report.job)
            remaining.append(report)
        return tuple(remaining)


def _apply(batch: Batch, report: DurableReport) -> None:
    match report:
        case Started():
            _apply_start(batch, report)
        case InvalidProgress():
            _emit_misreport(batch, report)
        case PartlyEnded():
            _apply_partial_end(batch, report)
        case _:
            judged = _judge_exit(batch, report)
            if _record_end(batch, judged):
                _apply_end(batch, judged, exited_early=judged is not report)


def _apply_end(batch: Batch, report: StartRefused | Ended, *, exited_early: bool = False) -> None:
    """Complete, fail or continue the job of a generation that ended or was refused.

    ``exited_early`` marks an exit 0 that `_judge_exit` doesn't count as the job's completion.
    """
    engine, name, generation = batch.engine, report.job, report.generation
    record = engine.open_jobs.get(name)
    is_newest = record is not None and record.generation == generation and name in engine.running
    if isinstance(report, StartRefused):
        if record is not None and is_newest:
            _refuse_start(batch, record, report)
        return
    if report.ending is Ending.STOPPED and (record is None or report.forced or exited_early):
        _emit_end(batch, report)
    if record is None:
        if report.ending is Ending.LOST:
            owner = _event_owner(batch, name)
            batch.emit("lost", name, **owner, generation=generation, reason=report.reason)
        elif report.ending is Ending.DONE:
            _complete_abandoned(batch, report)
        return
    if report.ending is Ending.DONE:
        # Any other reason means that processes died or were left behind.
        if report.reason not in {"", ALL_WORKERS_SUCCEEDED}:
            reason = _with_tail(report)
            batch.emit("ended", name, generation=generation, code=0, reason=reason)
        if name in engine.running:
            view, placement = batch.state.views[name], engine.running[name]
            at = int(report.at * SECOND)
            length = measured_length(view, record, placement, engine.cluster, at)
            batch.update_view(name, length=length)
        ended = events.JobEnded(batch.state.next_slot, name, record.generation)
        apply_event(batch, ended, billed=_ran_in_slot(batch, report))
    elif is_newest:
        _apply_failure(batch, record, report)
    elif report.ending is Ending.FAILED:
        # The job continues in another generation, without what this one failed to save.
        _emit_end(batch, report)
    _date_end(batch, report)


def _record_end(batch: Batch, report: StartRefused | Ended) -> bool:
    """Record the end of a generation; return whether it was commanded and not recorded yet."""
    name, generation = report.job, report.generation
    was_recorded = batch.is_end_recorded(name, generation)
    if was_recorded is None:
        log.warning("ignored the end of generation %d of %r: not commanded", generation, name)
        return False
    if not was_recorded:
        code, reason = None, report.reason
        if isinstance(report, Ended):
            code, reason = report.code, f"{report.ending}: {report.reason}"
        batch.record_generation_end(name, generation, int(report.at * SECOND), code, reason)
    return not was_recorded


def _apply_start(batch: Batch, report: Started) -> None:
    """Record that a generation runs, unless a newer one was observed."""
    name, started_at = report.job, int(report.at * SECOND)
    table = tables.generations
    is_own = (table.c.job == name) & (table.c.generation == report.generation)
    batch.execute_on_flush(
        table.update().where(is_own, table.c.started.is_(None)).values(started=started_at)
    )
    view = batch.state.views.get(name)
    record = batch.engine.open_jobs.get(name)
    if view is None or record is None:
        return
    if report.generation == record.generation and record.running_since < 0:
        next_slot = batch.state.next_slot
        # Another machine's clock may be ahead.
        since = max(0, min(batch.calendar.slot_at(started_at), next_slot - 1))
        apply_event(batch, events.JobStarted(next_slot, name, report.generation, since))
    if report.generation <= view.started:
        return
    _note_process(batch, report)
    first = started_at if view.first_start is None else view.first_start
    view = batch.update_view(
        name, started=report.generation, running_since=started_at, setback=None, first_start=first
    )
    batch.update_view(name, **view_changes(batch.engine, record, view, batch.calendar, batch.now))
    batch.emit("running", name, generation=report.generation)


def _emit_misreport(batch: Batch, report: InvalidProgress) -> None:
    """Emit an event for an invalid progress report.

    A generation gets at most `MAX_REPORTED_ERRORS` events about whole reports, and as many
    about parts of reports. A restarted executor repeats errors, so stored events count too.
    """
    name, generation = report.job, report.generation
    record = batch.engine.open_jobs.get(name)
    if record is None or record.generation != generation:
        return
    table = tables.events
    stored = batch.connection.execute(
        select(table.c.data).where(table.c.job == name, table.c.kind == "misreported")
    ).scalars()
    fresh = (
        event.data for event in batch.events if (event.kind, event.job) == ("misreported", name)
    )
    reasons = {
        event["reason"]
        for event in (*map(json.loads, stored), *fresh)
        if event["generation"] == generation
    }
    is_limited = len(same_kind(report.reason, reasons)) >= MAX_REPORTED_ERRORS
    if report.reason not in reasons and not is_limited:
        batch.emit("misreported", name, generation=generation, reason=report.reason)


def _apply_partial_end(batch: Batch, report: PartlyEnded) -> None:
    """Record which workers of a running generation exited 0, and which have not ended."""
    name, generation = report.job, report.generation
    record, view = batch.engine.open_jobs.get(name), batch.state.views.get(name)
    if record is None or view is None or record.generation != generation:
        return
    have = "has" if len(report.running) == 1 else "have"
    first = ", the first" if len(report.ended) > 1 else ""
    ended = f"{_list_names(report.ended)} exited 0{first}"
    rest = (
        f"; {_list_names(report.running)} {have} not ended, and the job ends with the last "
        f"worker. Cancel the job if it hangs: {_time_limit(batch, record.job, name)}"
    )
    before = "" if view.reason is None else str(view.reason["message"])
    # A restarted service sees the same exits again, at a later time.
    is_repeated = before.startswith(f"{ended} at ") and before.endswith(rest)
    if name in batch.engine.running and not is_repeated:
        message = f"{ended} at {format_rfc3339(int(report.at * SECOND))}{rest}"
        batch.update_view(name, reason={"code": PARTLY_ENDED, "message": message})
        batch.emit(PARTLY_ENDED, name, generation=generation, reason=message)


def _refuse_start(batch: Batch, record: JobRecord, report: StartRefused) -> None:
    """Record that a generation was not started; fail a job that can never start."""
    name, generation, slot = report.job, report.generation, batch.state.next_slot
    previous = batch.state.views[name].setback or {}
    setback: dict[str, Any] = {"code": "start-failed", "message": report.reason}
    attempts = int(previous.get("attempts", 0)) + 1 if report.lasting else 0
    if attempts:
        setback["attempts"] = attempts
    batch.update_view(name, setback=setback)
    batch.emit("start-failed", name, generation=generation, reason=report.reason)
    if attempts >= MAX_LASTING_REFUSALS:
        reason = f"it could not be started in {attempts} attempts: {report.reason}"
        failed = events.JobFailed(slot, name, generation, reason, record.failures)
        apply_event(batch, failed, billed=False)  # it ran in no slot
        batch.emit("failed", name, generation=generation, code=None, reason=reason)
    else:
        apply_event(batch, events.StartFailed(slot, name, generation, report.reason or "refused"))


def _emit_end(batch: Batch, report: Ended) -> None:
    """Emit the end of a stopped generation, with the last lines of its log."""
    reported = select(tables.progress.c.id).where(tables.progress.c.job == report.job).limit(1)
    if batch.connection.execute(reported).first() is None:
        # It explains why the job has no measured progress: only its run time was counted.
        report = replace(report, reason=f"{report.reason}; it never reported progress")
    owner, generation = _event_owner(batch, report.job), report.generation
    end: dict[str, Any] = {"code": report.code, "reason": _with_tail(report)}
    batch.emit("ended", report.job, **owner, generation=generation, **end)


def _apply_failure(batch: Batch, record: JobRecord, report: Ended) -> None:
    """Record that a generation failed or was lost while it should run."""
    name = report.job
    view = batch.state.views[name]
    slot = batch.state.next_slot
    if report.ending is not Ending.FAILED:
        # Not caused by the job, so it doesn't use up a retry.
        setback = {"code": "lost", "message": report.reason}
        batch.update_view(name, lost=view.lost + 1, setback=setback)
        batch.emit("lost", name, generation=report.generation, reason=report.reason)
        allowed = record.failures + 1
    else:
        batch.update_view(name, blamed=report.generation)
        run = batch.state.specs[name].get("run") or {}
        allowed = int(run.get("retries", 0)) + view.lost
        hint = explain_command_failure(run, report.reason, report.tail)
        if hint:
            report = replace(report, reason=f"{report.reason}; {hint}")
    reason = _with_tail(report)
    failed = events.JobFailed(slot, name, report.generation, reason or "it ended", allowed)
    is_billed = report.ending is Ending.FAILED and _ran_in_slot(batch, report)
    apply_event(batch, failed, billed=is_billed)
    if report.ending is Ending.FAILED:
        kind = "retrying" if name in batch.engine.open_jobs else "failed"
        batch.emit(kind, name, generation=report.generation, code=report.code, reason=reason)


def _date_end(batch: Batch, report: Ended) -> None:
    """Date a job's end by the end of its processes, which may have been reported late."""
    view = batch.state.views.get(report.job)
    if view is None or view.closed is None:
        return
    # The clock of another machine may differ.
    ended = max(view.first_start or view.submitted, int(report.at * SECOND))
    changes = {
        name: min(moment, ended)
        for name in ("closed", "completion_at")
        if (moment := getattr(view, name)) is not None
    }
    batch.update_view(report.job, **changes)


def _complete_abandoned(batch: Batch, report: Ended) -> None:
    """Complete a job that exited 0 before the slot for which it was abandoned.

    The slot began before the exit was reported: the tenant couldn't pay it, or a limit of the job
    was exceeded. The job neither held nor paid the slot. Jobs that failed by themselves aren't
    affected, because the end of their generation is recorded already.
    """
    job = batch.find_jobs([report.job]).get(report.job)
    if job is None or job.view.state is not State.FAILED:
        return
    if (view := job.view).generation != report.generation:
        return
    commands = tables.commands
    query = select(commands.c.record).where(_stops(report.job, report.generation))
    record = batch.connection.scalar(query.order_by(commands.c.id).limit(1))
    at = int(report.at * SECOND)
    if record is None or at > batch.calendar.begins(json.loads(record)["slot"]):
        return
    slot = json.loads(record)["slot"] - 1
    finished = replace(
        view,
        state=State.FINISHED,
        reason=None,
        progress=view.required,
        completion=slot,
        completion_at=min(at, batch.calendar.ends(slot)),
        utility=_utility_at(batch, view, slot),
    )
    batch.correct(finished)
    emit_finished(batch, view, slot, finished.utility)


def _utility_at(batch: Batch, view: JobView, slot: int) -> float | None:
    """Return a closed job's utility of completion in a slot, or the recorded one if unknown."""
    query = select(tables.jobs.c.spec).where(tables.jobs.c.key == view.key)
    spec = JobSpec.model_validate(json.loads(batch.connection.execute(query).scalar_one()))
    length = view.first_length if view.predicted is None else view.predicted.length
    cluster, calendar = batch.engine.cluster, batch.calendar
    try:
        job = resolve_job(spec, cluster, calendar, view.arrived, key=view.key, length=length)
    except InputError:
        return view.utility
    return utility_value(job.utility, slot - job.arrival)


def _judge_exit(batch: Batch, report: StartRefused | Ended) -> StartRefused | Ended:
    """Return the end of a generation; a successful exit on a stop command counts as a stop.

    Many scripts save and exit 0 on SIGTERM. Only the progress shows whether their job is complete:
    reported progress, or else the progress by time. If the signal came from outside, for example
    because the machine shut down, the generation counts as lost.
    """
    if not isinstance(report, Ended) or report.ending is not Ending.DONE:
        return report
    record = batch.engine.open_jobs.get(report.job)
    if record is None:
        return report
    # Besides the engine's progress, these reports include those that came after the stop command.
    generation, reached, _ = batch.state.furthest.get(report.job, (0, 0, 0.0))
    reports_shares = batch.state.views[report.job].reports  # then all its reports count
    counts = reports_shares or not _counts_own_steps(record.job, reached)
    has_reported = generation == report.generation and counts
    if has_reported or reports_shares:
        measured = max(record.measured, reached if has_reported else 0)
        share = measured / (record.job.work * MICRO)
        progress = f"{measured / MICRO:,.6g} of {record.job.work:,} mini-batches"
    else:
        share = record.progress / record.job.required
        progress = f"{share:.0%} of its expected time"
    if share >= COMPLETE_SHARE:
        return report
    if _was_stopped(batch, report):
        reason = f"exited 0 after the order to stop, at {progress}; it continues later"
        return replace(report, ending=Ending.STOPPED, reason=reason)
    if report.from_outside:
        reason = f"{SIGNAL_FROM_OUTSIDE}, and exited 0 at {progress}; it continues later"
        return replace(report, ending=Ending.LOST, reason=reason)
    return report


def _ran_in_slot(batch: Batch, report: Ended) -> bool:
    """Return whether a generation ended after the running slot had begun."""
    running = batch.engine.slot_running
    return running is None or int(report.at * SECOND) > batch.calendar.begins(running)


def _was_stopped(batch: Batch, report: Ended) -> bool:
    """Return whether a generation ended after a command to stop or replace it."""
    commands = tables.commands
    query = select(commands.c.id).where(
        commands.c.id == report.command,
        commands.c.job == report.job,
        commands.c.at <= int(report.at * SECOND),
        (commands.c.generation > report.generation) | _stops(report.job, report.generation),
    )
    return batch.connection.execute(query).first() is not None


def _stops(job: str, generation: int) -> ColumnElement[bool]:
    commands = tables.commands
    is_own = (commands.c.job == job) & (commands.c.generation == generation)
    return is_own & (commands.c.kind == "stop")


def _with_tail(report: Ended) -> str:
    """Return the reason for a generation's end, followed by the last lines of its log."""
    return "\n".join((report.reason, *report.tail[-TAIL_LINES:]))


@operation
def emit_orphans(batch: Batch, orphans: Sequence[GenerationStatus]) -> None:
    """Report orphaned generations: they run without a command in this store, and are stopped."""
    for orphan in orphans:
        servers = [share.server for share in orphan.placement]
        reason = f"it runs on {', '.join(servers)}, but this service never started it: stopping it"
        number = orphan.generation
        batch.emit("foreign", orphan.job, generation=number, servers=servers, reason=reason)


@operation
def record_obstacles(batch: Batch, obstacles: Sequence[Obstacle]) -> None:
    """Report generations that the executor can't start or end now, also of closed jobs."""
    for obstacle in obstacles:
        owner, servers = _event_owner(batch, obstacle.job), list(obstacle.servers)
        data: dict[str, Any] = {"generation": obstacle.generation, "servers": servers}
        batch.emit("obstructed", obstacle.job, **owner, **data, reason=obstacle.reason)


def _event_owner(batch: Batch, job: str) -> dict[str, Any]:
    """Return the tenant and id of an event's job, open or closed; empty if it is unknown."""
    table = tables.jobs
    query = select(table.c.tenant, table.c.id.label("job_id")).where(table.c.key == job)
    row = batch.connection.execute(query).first()
    return {} if row is None else row._asdict()


@operation
def acknowledge_commands(batch: Batch, commands: Sequence[int]) -> None:
    """Record that the executor carried out commands; ignore acknowledged ones."""
    waiting = batch.engine.unacknowledged
    numbers = tuple(number for number in commands if number in waiting)
    if not numbers:
        return
    apply_event(batch, events.Acknowledged(batch.state.next_slot, numbers))
    table = tables.commands
    batch.execute_on_flush(
        table.update().where(table.c.id == bindparam("key")).values(acknowledged=batch.now),
        [{"key": number} for number in numbers],
    )


@dataclass(frozen=True, slots=True)
class RecordProgress:
    """Apply progress reports: the newest of each job, and all points of progress curves."""

    newest: Mapping[str, Progressed]
    points: Sequence[Progressed]

    def perform(self, batch: Batch) -> None:
        """Record the progress of running generations, and store the points of all reports."""
        progress: dict[str, tuple[int, int]] = {}
        restarts, speeds = batch.state.restarts, batch.state.speeds
        # For each running generation: newest report, report with the restart cost, and the seconds
        # that a first start took.
        running: list[tuple[Progressed, Progressed, float | None]] = []
        behind: list[str] = []
        repeating: dict[str, Progressed] = {}
        first_reports = self._first_reports()
        for record, report in self._reports_of_running(batch):
            name = report.job
            first_report = first_reports.get((name, report.generation), report)
            restart_report = first_report if is_restart(first_report.metrics) else report
            first_start = _first_start_seconds(batch, record, first_report)
            running.append((report, restart_report, first_start))
            if not batch.state.views[name].reports and _counts_own_steps(
                record.job, report.progress
            ):
                _note_own_steps(batch, report)
                continue
            _note_work(batch, record, first_report)
            # A job completes only when its processes exit 0, so progress stays just below its work.
            maximum = record.job.work * MICRO - 1
            micro = min(report.progress, maximum)
            # A first report of 0 counts: from now on progress is measured, not derived from time.
            is_first = not batch.state.views[name].reports
            if is_first:
                batch.update_view(name, reports=True)
            if micro > record.measured or is_first:
                progress[name] = (report.generation, micro)
            elif micro < record.measured:
                behind.append(name)
            reported_generation, _, _ = batch.state.furthest.get(name, (0, 0, 0.0))
            is_new_generation = reported_generation < report.generation
            if first_report.progress < record.measured and is_new_generation:
                repeating[name] = first_report
        for name, report in repeating.items():
            _record_repetition(batch, name, report)
        if progress:
            apply_event(
                batch,
                events.ProgressMeasured(batch.state.next_slot, progress),
                counted=list(progress),
            )
        # Last, because a rollback of the batch can't undo changes of the measured speeds.
        for name in {*behind, *repeating}:
            speeds.skip_slot(name)
        for report, *_ in running:
            record = batch.engine.jobs[report.job]
            own_steps = _counts_own_steps(record.job, report.progress) and report.progress > 0
            # Until its first progress, a generation may load data, and a stop would lose that time.
            works = record.measured > 0 or own_steps
            if report.checkpoints and record.job.resumable is None and works:
                _set_resumable(batch, record, resumable=True)
        is_new = [
            _record_restart_cost(batch, restart_report, first_start)
            for _, restart_report, first_start in running
        ]
        if any(is_new):
            batch.set_value("restarts", json.dumps(restarts.record()))
        self._store_points(batch)

    def _store_points(self, batch: Batch) -> None:
        for point in self.points:
            _record_furthest(batch, point)
        # Points are only a sample, so the last report of a process is rarely one of them.
        for report in self.newest.values():
            generation, reached, _ = batch.state.furthest.get(report.job, (0, 0, 0.0))
            if (report.generation, report.progress) > (generation, reached):
                _record_furthest(batch, report)
        if self.points:
            batch.execute_on_flush(
                tables.progress.insert(),
                [
                    {
                        "job": point.job,
                        "generation": point.generation,
                        "at": int(point.at * SECOND),
                        "minibatches": point.progress / MICRO,
                        "metrics": json.dumps(dict(point.metrics)),
                    }
                    for point in self.points
                ],
            )

    def _reports_of_running(self, batch: Batch) -> Iterator[tuple[JobRecord, Progressed]]:
        engine = batch.engine
        for name, report in self.newest.items():
            record = engine.open_jobs.get(name)
            if record is None or name not in engine.running:
                continue
            if record.generation == report.generation:
                yield record, report

    def _first_reports(self) -> dict[tuple[str, int], Progressed]:
        """Return the first report with progress, by job and generation."""
        reports: dict[tuple[str, int], Progressed] = {}
        for point in self.points:
            if point.progress > 0:
                reports.setdefault((point.job, point.generation), point)
        return reports


def _note_own_steps(batch: Batch, report: Progressed) -> None:
    """Emit an event once per generation if a job of one step reports more steps."""
    generation, reached, _ = batch.state.furthest.get(report.job, (0, 0, 0.0))
    before = reached if generation == report.generation else 0
    if before <= MICRO < report.progress:
        invalid = InvalidProgress(report.job, report.generation, report.at, _OWN_STEPS)
        _emit_misreport(batch, invalid)


def _record_repetition(batch: Batch, name: str, report: Progressed) -> None:
    """Record that a generation repeats work; the job is non-resumable if nothing was saved."""
    record = batch.engine.jobs[name]
    repeated = (record.measured - report.progress) / MICRO
    saved = record.resumed_before < 0 or report.progress > record.resumed_before
    batch.emit("repeated", name, generation=report.generation, steps=repeated, saved=saved)
    uncount_repeated(batch, record, report.progress)
    measured = {name: (report.generation, report.progress)}
    apply_event(batch, events.ProgressMeasured(batch.state.next_slot, measured))
    if not saved and record.job.resumable is not False:
        _set_resumable(batch, record, resumable=False)


def _record_furthest(batch: Batch, point: Progressed) -> None:
    """Record the maximum progress of a job's newest generation.

    Emit an event if the progress decreases, which isn't counted. An older report that arrives later
    is ignored, because several tasks read a progress file. A new generation may start below the
    previous generation, because it resumes from a checkpoint.
    """
    furthest = batch.state.furthest
    generation, reached, at = furthest.get(point.job, (0, 0, 0.0))
    if point.generation > generation or point.progress >= reached:
        if point.generation >= generation:
            furthest[point.job] = point.generation, point.progress, point.at
    elif point.generation == generation and point.at >= at:
        _emit_misreport(batch, InvalidProgress(point.job, generation, point.at, _WENT_BACK))


def _counts_own_steps(job: Job, progress: int) -> bool:
    """Return whether a report counts other steps than the job states.

    A command without a number of steps is a job of one step that takes its expected time. Its
    script may count its own steps, which say nothing about a share of that time.
    """
    return job.work == 1 and progress % MICRO == 0


def _set_resumable(batch: Batch, record: JobRecord, *, resumable: bool) -> None:
    job = replace(record.job, resumable=resumable)
    try:
        apply_event(batch, events.JobRevised(batch.state.next_slot, job))
    except ShadowpriceError as error:
        if error.code == "storage":
            raise
        log.error("failed to record whether job %r saves its progress: %s", job.name, error)


def _stated_restart_seconds(batch: Batch, name: str) -> float:
    """Return the restart seconds that the job file, or else the cluster file, states; or 0."""
    cluster = batch.engine.cluster
    stated = JobSpec.model_validate(batch.state.specs[name]).restart
    return float(
        cluster.restart_seconds if stated is None else stated.in_seconds(cluster.slot_seconds)
    )


def _record_restart_cost(batch: Batch, report: Progressed, first_start: float | None) -> bool:
    """Record the cost of a restart, or the seconds of a first start; return whether one is new."""
    name, restarts = report.job, batch.state.restarts
    tenant = batch.state.views[name].tenant
    is_new = restarts.note(
        name,
        tenant,
        report.generation,
        report.metrics,
        resized=isinstance(batch.state.desired.get(name), events.Resize),
        observed=partial(_observed_seconds, batch, report),
        stated=partial(_stated_restart_seconds, batch, name),
    )
    if first_start is not None:
        restarts.record_first_start(tenant, first_start, _stated_restart_seconds(batch, name))
    return is_new or first_start is not None


def _observed_seconds(batch: Batch, report: Progressed) -> float:
    """Return the seconds that the service itself observed of a restart, up to a report.

    These are the seconds from the generation's command to the report. A paused job was stopped
    earlier, by another command. For this job, the time from that command to the end of its
    processes is added.
    """
    command = batch.state.desired.get(report.job)
    if command is None:
        return 0.0
    commanded_at = _command_time(batch, report.job, report.generation) or batch.calendar.begins(
        command.slot
    )
    seconds = report.at - commanded_at / SECOND
    if isinstance(command, events.Start):
        seconds += _stop_seconds(batch, report.job, report.generation - 1)
    return seconds


def _stop_seconds(batch: Batch, job: str, generation: int) -> float:
    """Return the seconds from a generation's stop command to its end; 0 if it wasn't stopped."""
    commands, generations = tables.commands, tables.generations
    is_same = generations.c.job == commands.c.job
    is_same &= generations.c.generation == commands.c.generation
    query = select(commands.c.at, generations.c.ended).join(generations, is_same)
    row = batch.connection.execute(query.where(_stops(job, generation))).first()
    if row is None or row.ended is None:
        return 0.0
    return max(0.0, float((row.ended - row.at) / SECOND))


def _note_process(batch: Batch, report: Started) -> None:
    """Record the time from the start of a generation's slot until its process ran."""
    command = batch.state.desired.get(report.job)
    if command is None or command.generation != report.generation:
        return
    start, end = batch.calendar.begins(command.slot), batch.calendar.ends(command.slot)
    if report.at * SECOND > end:  # a service that was down issues the command late
        commanded_at = _command_time(batch, report.job, report.generation)
        start = commanded_at if commanded_at > end else start
    seconds = max(0.0, report.at - start / SECOND)
    _record_start_up(batch, StartUp(report.job, report.generation, seconds, seconds))


def _command_time(batch: Batch, job: str, generation: int) -> int:
    """Return when a generation was commanded, in nanoseconds since 1970; 0 if that isn't stored."""
    return command_times(batch.connection, [(job, generation)]).get((job, generation), 0)


def _note_work(batch: Batch, record: JobRecord, report: Progressed) -> None:
    """Extend the start-up of a generation if a progress report shows that it took longer."""
    start_up = batch.state.start_ups.find(report.job, report.generation)
    if start_up is None or record.job.bag is not None:
        return
    seconds = _seconds_until_work(batch, record, report, start_up)
    if seconds > start_up.seconds:
        _record_start_up(batch, replace(start_up, seconds=seconds))


def _seconds_until_work(
    batch: Batch, record: JobRecord, report: Progressed, start_up: StartUp
) -> float:
    """Return the start-up time of a generation according to a report; 0 if unknown."""
    if report.generation > 1:  # its first report includes the work of earlier generations
        loading = report.metrics.get("change_start", -1.0)
        first_step = report.metrics.get("change_first_step", -1.0)
        return start_up.process + loading + first_step if min(loading, first_step) >= 0.0 else 0.0
    since, worked = _first_work(batch, record, report)
    return since - MAX_WORK_EXCESS * worked if worked <= batch.calendar.slot_seconds else 0.0


def _first_work(batch: Batch, record: JobRecord, report: Progressed) -> tuple[float, float]:
    """Return the seconds since a job's first slot began, and the estimate of those that it worked.

    The estimate is infinite if the report isn't about the first work of a job's first generation.
    """
    command = batch.state.desired.get(report.job)
    is_first = record.generation == 1 and not record.measured and report.progress > 0
    if not is_first or not isinstance(command, events.Start) or record.job.bag is not None:
        return 0.0, math.inf
    slot_seconds = batch.calendar.slot_seconds
    since = report.at - batch.calendar.begins(command.slot) / SECOND
    return since, stated_seconds(record.job, command.placement, report.progress, slot_seconds)


def _record_start_up(batch: Batch, start_up: StartUp) -> None:
    before, slot_seconds = batch.state.start_ups, batch.calendar.slot_seconds
    after = before.with_start_up(start_up, slot_seconds)
    batch.undo.assign(batch.state, "start_ups", after)
    batch.set_value(START_UPS_KEY, after.stored())
    if after.too_long != before.too_long:
        warning = after.warning(slot_seconds)
        message = "starting jobs takes little of a slot again"
        data = {"code": SLOT_TOO_SHORT, "message": message} if warning is None else warning
        batch.emit("warning", **data, active=after.too_long)


def _first_start_seconds(batch: Batch, record: JobRecord, report: Progressed) -> float | None:
    """Return the seconds that a job's first start took of its slot; None if unmeasurable.

    This is the time until its first report, less the time for the reported work at the estimated
    speed. If the work takes more than `FIRST_REPORT_MAX_SLOT_SHARE` of a slot, an error of the
    estimate would count for more than the start.
    """
    since, worked = _first_work(batch, record, report)
    if since < 0 or worked > FIRST_REPORT_MAX_SLOT_SHARE * batch.calendar.slot_seconds:
        return None
    return max(0.0, since - worked)

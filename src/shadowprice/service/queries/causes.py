"""Causes of a broken promise, in seconds, from the records of the job's generations.

A generation is one run of a job at a fixed placement. Its seconds are measured: the start of its
slot, the run time of its process, its reported work, and the event that ended it. The job's stated
speed gives the expected time of the work. A promise may have slack that absorbs some seconds, so
the seconds of all causes can exceed the delay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, func, select

from shadowprice import rest
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO, Job
from shadowprice.core.schedule import Placement
from shadowprice.core.specs import JobSpec
from shadowprice.core.wording import first_line
from shadowprice.service.clock import SECOND, SlotCalendar, to_datetime
from shadowprice.service.state.ending import CODE as TIMESPAN
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.start_ups import stated_seconds
from shadowprice.service.state.submission import resolve_job
from shadowprice.service.store import tables

MIN_CAUSE_SECONDS: Final = 0.001  # causes with fewer seconds are ignored
MAX_GENERATIONS: Final = 1_000  # maximum number of generations to read, newest first
_PLANNED: Final = frozenset({"move", "revision"})
"""If one of these ended a generation, the policy planned the pause after it: it is no delay."""
_ENDS: Final = ("lost", "displaced", "retrying", "start-failed", "revised", "standby")
"""Kinds of events that explain the end of a generation."""


@dataclass(frozen=True, slots=True)
class Run:
    """Measurements of a generation. All moments are seconds since 1970."""

    generation: int
    begins: float  # start of its slot, or time of its command if the service was down then
    started: float  # start of its process
    ended: float  # end of its process; the current time if it still runs
    placement: tuple[tuple[str, int, int], ...]  # server, workers, PS
    low: float | None = None  # minimum of its reported mini-batches; None without a report
    high: float | None = None  # maximum of its reported mini-batches
    first_at: float = 0.0  # time of its first report
    last_at: float = 0.0  # time of its last report
    first_steps: float = 0.0  # mini-batches that it did before its first report

    @property
    def seconds(self) -> float:
        """Run time of the process, in seconds."""
        return max(0.0, self.ended - self.started)

    @property
    def late(self) -> float:
        """Seconds from the start of the slot until the process ran."""
        return max(0.0, self.started - self.begins)

    def loading(self, *, exact: bool) -> float:
        """Return the seconds from the process's start to its first work, extrapolated from reports.

        Reports count whole mini-batches, so up to a mini-batch of work may be unreported. Unless
        ``exact``, a result below the time of a mini-batch therefore becomes 0.
        """
        if self.low is None or self.high is None or self.high <= self.low:
            return 0.0
        reported_seconds = max(self.last_at - self.first_at, MIN_CAUSE_SECONDS)
        step_seconds = reported_seconds / (self.high - self.low)
        # Assume the same speed for the work before the first report.
        seconds = self.first_at - self.started - self.first_steps * step_seconds
        return seconds if seconds > (0.0 if exact else step_seconds) else 0.0


Cause = tuple[str, str]
"""Kind and detail of a cause.

The kind is ``overrun``, ``late-start``, ``lost-server``, ``lost-process``, ``failure``, ``move``,
``drain``, ``timespan``, ``revision`` or ``waiting``. The detail adds names and numbers.
"""


def broken_promise(
    connection: Connection, view: JobView, cluster: Cluster, calendar: SlotCalendar, now: int
) -> rest.BrokenPromise | None:
    """Return why a job's first promise broke, or None if it holds; ``now`` is in nanoseconds."""
    if view.first_promise is None or not _is_broken(view):
        return None
    promised_end = calendar.ends(view.first_promise) / SECOND
    runs, is_running = _runs(connection, view, calendar, now)
    events = _events(connection, view.key)
    job = _job(connection, view, cluster, calendar)
    finished = view.state is State.FINISHED
    waits_until = now / SECOND if view.state.open and not is_running else None
    delays = _delays(runs, events, job, cluster, finished=finished, waits_until=waits_until)
    end = runs[-1].ended if finished and runs else (view.closed or now) / SECOND
    if view.state.open and view.promise_at is not None:
        end = max(end, view.promise_at / SECOND)
    unexplained = end - promised_end - sum(delays.values())
    if finished and unexplained > MIN_CAUSE_SECONDS:
        delays["waiting", "for a place"] = unexplained
    total, late_seconds = sum(delays.values()), round(max(0.0, end - promised_end), 3)
    causes = [
        rest.PromiseCause(
            cause=kind, seconds=round(seconds, 3), share=round(seconds / total, 4), detail=detail
        )
        for (kind, detail), seconds in sorted(delays.items(), key=lambda item: -item[1])
    ]
    return rest.BrokenPromise(
        promised=to_datetime(int(promised_end * SECOND)),
        late_seconds=late_seconds,
        causes=causes,
        line=_line(view, late_seconds, causes),
    )


def _line(view: JobView, late_seconds: float, delays: Sequence[rest.PromiseCause]) -> str:
    parts = [
        f"{delay.cause.replace('-', ' ')} {_seconds(delay.seconds)} s ({delay.share:.0%}"
        + (f"; {delay.detail})" if delay.detail else ")")
        for delay in delays
    ]
    if view.state is State.FINISHED:
        head = f"{_seconds(late_seconds)} s later than promised"
    elif view.state.open:
        head = "the first promise is broken"
    else:
        reason = f" ({first_line(view.reason['message'])})" if view.reason else ""
        head = f"{view.state.value} before its promise was kept{reason}"
        if not late_seconds:
            return head  # it was not late yet, so no delay broke the promise
    return f"{head}: {', '.join(parts)}" if parts else f"{head}; no delay was recorded"


def _is_broken(view: JobView) -> bool:
    assert view.first_promise is not None
    if view.state is State.FINISHED:
        return view.completion is not None and view.completion > view.first_promise
    if view.state is State.CANCELLED:
        return False
    return not view.state.open or view.promise is None or view.promise > view.first_promise


def _delays(
    runs: Sequence[Run],
    events: Sequence[Mapping[str, Any]],
    job: Job | None,
    cluster: Cluster,
    *,
    finished: bool,
    waits_until: float | None,
) -> dict[Cause, float]:
    """Return the seconds of a job's delay by cause.

    ``runs`` are the generations that ran, oldest first, and ``events`` explain their ends
    (`_ENDS`). ``job`` has the stated speed; it is None if the cluster lacks its resources.
    ``finished`` says whether the last generation completed all work. ``waits_until`` is the current
    time if the job has waited since its last generation ended.
    """
    account = _SecondsByCause(runs, job, cluster)
    ended_by: Cause | None = None
    for index, run in enumerate(runs):
        last = index == len(runs) - 1
        account.count(index, ended_by, finished=finished and last)
        ended_by = _find_end_cause(run, None if last else runs[index + 1], events)
        if not last:
            account.count_lost_work(run, runs[index + 1], ended_by)
    if ended_by is not None and waits_until is not None and ended_by[0] not in _PLANNED:
        account.add(ended_by, waits_until - runs[-1].ended)
    account.compare_with_stated_time(finished=finished)
    account.count_revisions(events)
    return account.seconds


class _SecondsByCause:
    """Accumulates seconds by cause and detail, generation by generation."""

    def __init__(self, runs: Sequence[Run], job: Job | None, cluster: Cluster) -> None:
        self.seconds: dict[Cause, float] = {}
        self._runs, self._job, self._cluster = runs, job, cluster
        self._is_silent = all(run.high is None for run in runs)  # no generation reported progress
        self._done = 0.0  # mini-batches done so far
        self._stated = 0.0  # seconds that this work takes at the stated speed
        self._ran = 0.0  # seconds in which it was done
        # Of a silent job: the cause of each generation's end, and its run time in seconds.
        self._unreported: list[tuple[Cause, float]] = []

    def add(self, cause: Cause, seconds: float) -> None:
        """Add seconds to a cause; ignore less than `MIN_CAUSE_SECONDS`."""
        if seconds >= MIN_CAUSE_SECONDS:
            self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds

    def count(self, index: int, ended_by: Cause | None, *, finished: bool) -> None:
        """Count the seconds that a generation lost.

        ``ended_by`` is the cause of the previous generation's end; None for the first one.
        ``finished`` says whether it completed all work.
        """
        run, job, done = self._runs[index], self._job, self._done
        cause = ended_by or ("late-start", "")
        self.add(cause, run.late)
        if ended_by is not None and ended_by[0] not in _PLANNED:
            self.add(cause, run.begins - self._runs[index - 1].ended)
        high = run.high if run.high is not None else done
        if finished and job is not None:
            high = float(job.work)
        repeated_seconds = 0.0
        if ended_by is not None and run.low is not None and job is not None:
            # It resumed at `low - first_steps` mini-batches.
            redone = max(0.0, done - run.low + run.first_steps)
            repeated_seconds = min(self._stated_seconds(run, redone), run.seconds)
            self.add(cause, repeated_seconds)
        # A restart costs its loading time in full; of a first start, small times are noise.
        loading = run.loading(exact=ended_by is not None)
        loading = min(loading, run.seconds - repeated_seconds)
        self.add(cause, loading)
        if job is not None:
            self._stated += self._stated_seconds(run, max(0.0, high - done))
        self._ran += run.seconds - repeated_seconds - loading
        self._done = max(done, high)

    def count_lost_work(self, run: Run, next_run: Run, cause: Cause) -> None:
        """Count the seconds of work that a generation didn't save before its end.

        The work of a silent job is unknown, so `compare_with_stated_time` decides later.
        """
        if self._is_silent:
            self._unreported.append((cause, run.seconds))
        # A next generation that first reports no more than this one had reported resumed there or
        # earlier, so the work since this one's last report is lost too.
        elif run.high is not None and next_run.low is not None and next_run.low <= run.high:
            unsaved = max(0.0, run.ended - max(run.started, run.last_at))
            self.add(cause, unsaved)
            self._ran -= unsaved

    def compare_with_stated_time(self, *, finished: bool) -> None:
        """Count run time above the stated time of the work as an overrun.

        Without reports, the work that earlier generations saved is unknown. Then only the excess of
        the last generation is an overrun. The remaining excess is attributed to the causes that
        ended the earlier generations, in proportion to their run times.
        """
        if self._job is None or not self._runs or (self._is_silent and not finished):
            return
        certain = self._runs[-1].seconds if self._unreported else self._ran
        uncertain = max(0.0, self._ran - max(certain, self._stated))
        total = sum(spent for _, spent in self._unreported)
        for cause, spent in self._unreported:
            self.add(cause, uncertain * spent / max(total, MIN_CAUSE_SECONDS))
        detail = f"{_seconds(self._stated)} s stated, {_seconds(certain)} s measured"
        self.add(("overrun", detail), certain - self._stated)

    def count_revisions(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Count the stated time of work that the owner added by revisions."""
        for event in events:
            before, after = event["data"].get("required") or (0.0, 0.0)
            if event["kind"] == "revised" and self._job is not None and self._runs:
                detail = f"{before:g} to {after:g} mini-batches"
                added = max(0.0, after - before)
                self.add(("revision", detail), self._stated_seconds(self._runs[-1], added))

    def _stated_seconds(self, run: Run, minibatches: float) -> float:
        """Return the stated seconds for mini-batches in the placement of a generation."""
        assert self._job is not None
        workers = tuple(count for _, count, _ in run.placement)
        ps = tuple(count for _, _, count in run.placement)
        placement = Placement(tuple(range(len(workers))), workers, ps)
        slot_seconds = float(self._cluster.slot_seconds)
        return stated_seconds(self._job, placement, minibatches * MICRO, slot_seconds)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}".removesuffix(".0")


def _find_end_cause(run: Run, next_run: Run | None, events: Sequence[Mapping[str, Any]]) -> Cause:
    """Return the cause of a generation's end, from the newest event before the next generation."""
    latest = float("inf") if next_run is None else next_run.started
    for event in reversed(events):
        if not run.started <= event["at"] <= latest:
            continue
        # The texts are those of the engine (`server_events`) and of `state.ending`.
        data, reason = event["data"], str(event["data"].get("reason", ""))
        match event["kind"]:
            case "lost" if data["generation"] == run.generation:
                return "lost-process", f"on {', '.join(server for server, _, _ in run.placement)}"
            case "displaced" if reason.endswith(" was lost"):
                return "lost-server", reason.removesuffix(" was lost")
            case "displaced" if reason.endswith((" is drained", " is cordoned")):
                return "drain", reason.rsplit(" is ", 1)[0]
            case "displaced" if "timespan" in reason:
                return TIMESPAN, ""
            case "standby" if "the timespan ends at" in str(data.get("message", "")):
                return TIMESPAN, ""
            case "retrying" if data["generation"] == run.generation:
                return "failure", ""
            case "start-failed":
                return "failure", "it failed to start"
            case "revised":
                return "revision", ""
            case _:
                pass
    return "move", ""


def _runs(
    connection: Connection, view: JobView, calendar: SlotCalendar, now: int
) -> tuple[list[Run], bool]:
    """Return the generations that ran, oldest first, and whether the last still runs."""
    generations, points = tables.generations, tables.progress
    rows = connection.execute(
        select(generations)
        .where(generations.c.job == view.key, generations.c.started.is_not(None))
        .order_by(generations.c.generation.desc())
        .limit(MAX_GENERATIONS)
    ).all()[::-1]
    reported = {
        row.generation: row
        for row in connection.execute(
            select(
                points.c.generation,
                func.min(points.c.minibatches).label("low"),
                func.max(points.c.minibatches).label("high"),
                func.min(points.c.at).label("first_at"),
                func.max(points.c.at).label("last_at"),
            )
            .where(points.c.job == view.key, points.c.minibatches > 0)
            .group_by(points.c.generation)
        )
    }
    runs: list[Run] = []
    high = 0.0
    for row in rows:
        slot_start, slot_end = calendar.begins(row.slot), calendar.ends(row.slot)
        if not slot_start <= row.ordered <= slot_end:  # the service was down, or the clock changed
            slot_start = row.ordered
        ended = now if row.ended is None else row.ended
        moments = slot_start / SECOND, row.started / SECOND, ended / SECOND
        placement = tuple((name, workers, ps) for name, workers, ps in json.loads(row.placement))
        run = Run(row.generation, *moments, placement)
        report = reported.get(row.generation)
        if report is not None:
            # A first generation starts at 0. A later one starts at the highest progress so far, or
            # at its own first report if that is lower.
            run = replace(
                run,
                low=report.low,
                high=report.high,
                first_at=report.first_at / SECOND,
                last_at=report.last_at / SECOND,
                first_steps=report.low if not runs else max(0.0, report.low - high),
            )
            high = max(high, report.high)
        runs.append(run)
    return runs, bool(rows) and rows[-1].ended is None


def _events(connection: Connection, name: str) -> list[dict[str, Any]]:
    table = tables.events
    rows = connection.execute(
        select(table.c.at, table.c.kind, table.c.data)
        .where(table.c.job == name, table.c.kind.in_(_ENDS))
        .order_by(table.c.id)
    )
    return [{"at": row.at / SECOND, "kind": row.kind, "data": json.loads(row.data)} for row in rows]


def _job(
    connection: Connection, view: JobView, cluster: Cluster, calendar: SlotCalendar
) -> Job | None:
    """Return the job at its stated speed; None if the cluster lacks its resources."""
    table = tables.jobs
    spec = connection.execute(select(table.c.spec).where(table.c.key == view.key)).scalar_one()
    try:
        return resolve_job(
            JobSpec.model_validate(json.loads(spec)),
            cluster,
            calendar,
            view.submitted,
            length=view.first_length,
        )
    except InputError:
        return None

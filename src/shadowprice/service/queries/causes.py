"""Why a promise was not kept: seconds by cause, from what was recorded of the job's generations.

Every second counted here was measured: when a slot began and its process ran, when the process
ended, how much work it reported, and which event ended it. The stated speed gives how long that
work should have taken. A share is a cause's seconds over those of all causes: slack in the promise
may have absorbed some of them, so together they can exceed the delay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, func, select

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO, Job
from shadowprice.core.schedule import Placement
from shadowprice.core.specs import JobSpec
from shadowprice.rest.jobs import BrokenPromise, PromiseCause
from shadowprice.service.clock import SECOND, Calendar, to_datetime
from shadowprice.service.store import tables
from shadowprice.service.truth.ending import CODE as TIMESPAN
from shadowprice.service.truth.start_ups import stated_seconds
from shadowprice.service.truth.submission import resolved
from shadowprice.service.truth.views import JobView, State

LEAST: Final = 0.001
"""Seconds below which a cause is not worth a word."""

MAX_GENERATIONS: Final = 1_000
"""Newest generations that are looked at."""

_PLANNED: Final = frozenset({"move", "revision"})
"""Causes after which a pause is the policy's choice, and part of the plan."""

_ENDS: Final = ("lost", "displaced", "retrying", "start-failed", "revised", "standby", "resized")
"""Events that say why a generation ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """A generation, as it was recorded; moments in seconds since 1970.

    Parameters
    ----------
    generation : int
        Its number.
    begins : float
        When its slot began, or its command was issued where the service was away then.
    started, ended : float
        When its process ran and ended.
    placement : tuple of (server, workers, ps)
        Where it ran.
    low, high : float or None
        Fewest and most mini-batches that it reported; None if it reported none.
    first_at, last_at : float
        When it reported first and last.
    first_steps : float
        Mini-batches that it did by its first report.
    """

    generation: int
    begins: float
    started: float
    ended: float
    placement: tuple[tuple[str, int, int], ...]
    low: float | None = None
    high: float | None = None
    first_at: float = 0.0
    last_at: float = 0.0
    first_steps: float = 0.0

    @property
    def seconds(self) -> float:
        """How long its process ran."""
        return max(0.0, self.ended - self.started)

    @property
    def late(self) -> float:
        """Seconds from the beginning of its slot until its process ran."""
        return max(0.0, self.started - self.begins)

    def loading(self, *, exact: bool) -> float:
        """Seconds until it worked, by the speed between its first and last report.

        Reports count whole mini-batches. Unless ``exact``, less than one is taken for work that was
        not reported yet.
        """
        if self.low is None or self.high is None or self.high <= self.low:
            return 0.0
        step = max(self.last_at - self.first_at, LEAST) / (self.high - self.low)
        # What it had done by its first report, it did at that speed since it worked.
        seconds = self.first_at - self.started - self.first_steps * step
        return seconds if seconds > (0.0 if exact else step) else 0.0


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a promise was not kept.

    Parameters
    ----------
    kind : str
        ``overrun``, ``late-start``, ``lost-server``, ``lost-process``, ``failure``, ``move``,
        ``drain``, ``timespan``, ``revision`` or ``waiting``.
    seconds : float
        Seconds that it cost.
    detail : str
        Names and numbers.
    """

    kind: str
    seconds: float
    detail: str = ""


def broken_promise(
    connection: Connection, view: JobView, cluster: Cluster, calendar: Calendar, now: int
) -> BrokenPromise | None:
    """Return why a job's first promise was not kept; None if it was, or still may be.

    Parameters
    ----------
    connection : Connection
        Reads the store.
    view : JobView
        The job.
    cluster : Cluster
        The servers.
    calendar : Calendar
        When slots are.
    now : int
        Nanoseconds since 1970.
    """
    if view.first_promise is None or not _is_broken(view):
        return None
    due = calendar.ends(view.first_promise) / SECOND
    runs, is_running = _runs(connection, view, calendar, now)
    events = _events(connection, view.name)
    job = _job(connection, view, cluster, calendar)
    finished = view.state is State.FINISHED
    waits_until = now / SECOND if view.state.open and not is_running else None
    found = [*causes(runs, events, job, cluster, finished=finished, waits_until=waits_until)]
    end = runs[-1].ended if finished and runs else (view.closed or now) / SECOND
    if view.state.open and view.promise_at is not None:
        end = max(end, view.promise_at / SECOND)
    rest = end - due - sum(cause.seconds for cause in found)
    if finished and rest > LEAST:
        found.append(Cause("waiting", rest, "for a place"))
    return record(view, due, end - due, found)


def record(view: JobView, due: float, late: float, found: Sequence[Cause]) -> BrokenPromise:
    """Return a broken promise as clients get it."""
    total = sum(cause.seconds for cause in found)
    late_seconds = round(max(0.0, late), 3)
    delays = [
        PromiseCause(
            cause=cause.kind,
            seconds=round(cause.seconds, 3),
            share=round(cause.seconds / total, 4),
            detail=cause.detail,
        )
        for cause in sorted(found, key=lambda cause: -cause.seconds)
    ]
    return BrokenPromise(
        promised=to_datetime(int(due * SECOND)),
        late_seconds=late_seconds,
        causes=delays,
        line=_line(view, late_seconds, delays),
    )


def _line(view: JobView, late_seconds: float, delays: Sequence[PromiseCause]) -> str:
    parts = [
        f"{delay.cause.replace('-', ' ')} {_seconds(delay.seconds)} s ({delay.share:.0%}"
        + (f"; {delay.detail})" if delay.detail else ")")
        for delay in delays
    ]
    if view.state is State.FINISHED:
        head = f"{_seconds(late_seconds)} s later than promised"
    elif view.state.open:
        head = "the first promise does not hold"
    else:
        why = f" ({view.reason['message']})" if view.reason else ""
        head = f"{view.state.value} before its promise was kept{why}"
    return f"{head}: {', '.join(parts)}" if parts else f"{head}; no delay was recorded"


def _is_broken(view: JobView) -> bool:
    assert view.first_promise is not None
    if view.state is State.FINISHED:
        return view.completion is not None and view.completion > view.first_promise
    if view.state is State.CANCELLED:
        return False
    return not view.state.open or view.promise is None or view.promise > view.first_promise


# ---------------------------------------------------------------- seconds by cause


def causes(
    runs: Sequence[Run],
    events: Sequence[Mapping[str, Any]],
    job: Job | None,
    cluster: Cluster,
    *,
    finished: bool,
    waits_until: float | None = None,
) -> Iterable[Cause]:
    """Yield what cost a job time, each cause once.

    Parameters
    ----------
    runs : sequence of Run
        Its generations that ran, the oldest first.
    events : sequence of mapping
        Entries of its history that tell why generations ended.
    job : Job or None
        The job as it is stated; None where that is not known any more.
    cluster : Cluster
        The servers.
    finished : bool
        Whether the last generation completed all work.
    waits_until : float or None
        The current time if it waits since its last generation ended.
    """
    account = _Account(runs, job, cluster)
    ended_by: tuple[str, str] | None = None
    for at, run in enumerate(runs):
        last = at == len(runs) - 1
        account.count(at, ended_by, finished=finished and last)
        ended_by = _ended_by(run, None if last else runs[at + 1], events)
        if not last:
            account.stopped(run, runs[at + 1], ended_by)
    if ended_by is not None and waits_until is not None and ended_by[0] not in _PLANNED:
        account.add(ended_by, waits_until - runs[-1].ended)
    account.compare_with_statement(finished=finished)
    account.count_revisions(events)
    for (kind, detail), cost in account.seconds.items():
        yield Cause(kind, cost, detail)


class _Account:
    """Seconds by cause and detail, as generations are gone through."""

    def __init__(self, runs: Sequence[Run], job: Job | None, cluster: Cluster) -> None:
        self.seconds: dict[tuple[str, str], float] = {}
        self._runs, self._job, self._cluster = runs, job, cluster
        self._is_silent = all(run.high is None for run in runs)
        self._done = self._stated = self._ran = 0.0
        self._unreported: list[tuple[tuple[str, str], float]] = []

    def add(self, cause: tuple[str, str], seconds: float) -> None:
        """Count seconds of a cause."""
        if seconds >= LEAST:
            self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds

    def count(self, at: int, ended_by: tuple[str, str] | None, *, finished: bool) -> None:
        """Count a generation, whose start is due to what ended the one before."""
        run, job, done = self._runs[at], self._job, self._done
        cause = ended_by or ("late-start", "")
        self.add(cause, run.late)
        if ended_by is not None and ended_by[0] not in _PLANNED:
            self.add(cause, run.begins - self._runs[at - 1].ended)
        high = run.high if run.high is not None else done
        if finished and job is not None:
            high = float(job.work)
        repeated = 0.0
        if ended_by is not None and run.low is not None and job is not None:
            again = max(0.0, done - run.low + run.first_steps)
            repeated = min(self._seconds_of(run, again), run.seconds)
            self.add(cause, repeated)
        loading = run.loading(exact=ended_by is not None)
        loading = min(loading, run.seconds - repeated)
        self.add(cause, loading)
        if job is not None:
            self._stated += self._seconds_of(run, max(0.0, high - done))
        self._ran += run.seconds - repeated - loading
        self._done = max(done, high)

    def stopped(self, run: Run, following: Run, cause: tuple[str, str]) -> None:
        """Count what a generation did after its last report, or may have done in vain."""
        if self._is_silent:
            self._unreported.append((cause, run.seconds))
        elif run.high is not None and following.low is not None and following.low <= run.high:
            unsaved = max(0.0, run.ended - max(run.started, run.last_at))
            self.add(cause, unsaved)
            self._ran -= unsaved

    def compare_with_statement(self, *, finished: bool) -> None:
        """Count what the work took beyond the statement.

        Without reports nobody knows what an earlier generation saved. What the last one took beyond
        the statement is an overrun for sure; the rest is due to what ended the others.
        """
        if self._job is None or not self._runs or (self._is_silent and not finished):
            return
        sure = self._runs[-1].seconds if self._unreported else self._ran
        rest = max(0.0, self._ran - max(sure, self._stated))
        total = sum(spent for _, spent in self._unreported)
        for cause, spent in self._unreported:
            self.add(cause, rest * spent / max(total, LEAST))
        detail = f"{_seconds(self._stated)} s stated, {_seconds(sure)} s measured"
        self.add(("overrun", detail), sure - self._stated)

    def count_revisions(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Count work that the owner added."""
        for event in events:
            before, after = event["data"].get("required") or (0.0, 0.0)
            if event["kind"] == "revised" and self._job is not None and self._runs:
                detail = f"{before:g} to {after:g} mini-batches"
                more = max(0.0, after - before)
                self.add(("revision", detail), self._seconds_of(self._runs[-1], more))

    def _seconds_of(self, run: Run, minibatches: float) -> float:
        """Return how long mini-batches take where a generation ran, as stated."""
        assert self._job is not None
        workers = tuple(count for _, count, _ in run.placement)
        ps = tuple(count for _, _, count in run.placement)
        placement = Placement(tuple(range(len(workers))), workers, ps)
        slot_seconds = float(self._cluster.slot_seconds)
        return stated_seconds(self._job, placement, minibatches * MICRO, slot_seconds)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}".removesuffix(".0")


def _ended_by(
    run: Run, following: Run | None, events: Sequence[Mapping[str, Any]]
) -> tuple[str, str]:
    """Return what ended a generation, by the newest event before the next one began."""
    until = float("inf") if following is None else following.started
    for event in reversed(events):
        if not run.started <= event["at"] <= until:
            continue
        data, reason = event["data"], str(event["data"].get("reason", ""))
        match event["kind"]:
            case "lost" if data["generation"] == run.generation:
                return "lost-process", f"on {', '.join(server for server, _, _ in run.placement)}"
            case "displaced" if reason.endswith(" was lost"):
                return "lost-server", reason.removesuffix(" was lost")
            case "displaced" if reason.endswith(" is drained"):
                return "drain", reason.removesuffix(" is drained")
            case "displaced" if "timespan" in reason:
                return TIMESPAN, ""
            case "standby" if "the timespan ends at" in str(data.get("message", "")):
                return TIMESPAN, ""
            case "retrying" if data["generation"] == run.generation:
                return "failure", ""
            case "start-failed":
                return "failure", "it could not be started"
            case "revised":
                return "revision", ""
            case _:
                pass
    return "move", ""


# ---------------------------------------------------------------- reading


def _runs(
    connection: Connection, view: JobView, calendar: Calendar, now: int
) -> tuple[list[Run], bool]:
    """Return the generations that ran, the oldest first, and whether the last one still does."""
    generations, points = tables.generations, tables.progress
    rows = connection.execute(
        select(generations)
        .where(generations.c.job == view.name, generations.c.started.is_not(None))
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
            .where(points.c.job == view.name, points.c.minibatches > 0)
            .group_by(points.c.generation)
        )
    }
    found: list[Run] = []
    high = 0.0
    for row in rows:
        begins, ends = calendar.begins(row.slot), calendar.ends(row.slot)
        if not begins <= row.ordered <= ends:  # the service was away, or the clock was set
            begins = row.ordered
        ended = now if row.ended is None else row.ended
        moments = begins / SECOND, row.started / SECOND, ended / SECOND
        placement = tuple((name, workers, ps) for name, workers, ps in json.loads(row.placement))
        run = Run(row.generation, *moments, placement)
        told = reported.get(row.generation)
        if told is not None:
            # The first began at nothing; a later one is taken to begin with its first report.
            run = replace(
                run,
                low=told.low,
                high=told.high,
                first_at=told.first_at / SECOND,
                last_at=told.last_at / SECOND,
                first_steps=told.low if not found else max(0.0, told.low - high),
            )
            high = max(high, told.high)
        found.append(run)
    return found, bool(rows) and rows[-1].ended is None


def _events(connection: Connection, name: str) -> list[dict[str, Any]]:
    table = tables.events
    rows = connection.execute(
        select(table.c.at, table.c.kind, table.c.data)
        .where(table.c.job == name, table.c.kind.in_(_ENDS))
        .order_by(table.c.id)
    )
    return [{"at": row.at / SECOND, "kind": row.kind, "data": json.loads(row.data)} for row in rows]


def _job(connection: Connection, view: JobView, cluster: Cluster, calendar: Calendar) -> Job | None:
    """Return the job as it is stated, None where the servers are others than it asks for."""
    table = tables.jobs
    spec = connection.execute(select(table.c.spec).where(table.c.name == view.name)).scalar_one()
    try:
        return resolved(JobSpec.model_validate(json.loads(spec)), cluster, calendar, view.submitted)
    except InputError:
        return None

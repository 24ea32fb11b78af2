"""What would have been decided beside what really happened, where a service only observes.

Of a job that was submitted, both sides are known: what the policy did with it on paper, and what
was seen of it. Of one that is only seen, nobody said what it is worth: it is told apart, and
counted in no total.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, and_, func, or_, select

from shadowprice.core.cluster import Cluster
from shadowprice.rest.comparison import (
    ComparedJob,
    ComparedPromises,
    ComparedUtilization,
    Comparison,
    ComparisonTotals,
    CompletedInBoth,
    ObservedJob,
    ObservedState,
    ObservedTotals,
    SimulatedJob,
    SimulatedTotals,
    UnmanagedJob,
    UnmanagedJobs,
)
from shadowprice.rest.jobs import JobReason
from shadowprice.service.clock import Calendar, to_datetime, to_datetime_or_none
from shadowprice.service.published import Published
from shadowprice.service.queries.timeline import RAN, ROWS, Bar, Known, Planned, know, levels, ran
from shadowprice.service.running.observing import last_look
from shadowprice.service.store import tables
from shadowprice.service.truth.views import JobView, State

MOST: Final = 5_000
"""Jobs of one comparison, at most; the newest."""

SLOTS: Final = 1_000
"""Slots whose use is told, at most; the last."""

STRANGERS: Final = 100
"""Jobs that were only seen and are told by name, at most; the newest."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A job on paper, and as it really was.

    Parameters
    ----------
    view : JobView
        What would have become of it, as far as time went.
    started, ended : int or None
        When it really began, and was last seen if it runs no more; None for not (yet).
    runs : int
        How many times or places it was seen to run at.
    done : bool or None
        Whether it really ended with success; None where nobody could tell.
    utility : float or None
        What its real end was worth; None where it has not ended, or that is not known.
    """

    view: JobView
    started: int | None = None
    ended: int | None = None
    runs: int = 0
    done: bool | None = None
    utility: float | None = None

    @property
    def real_state(self) -> ObservedState:
        """``not seen``, ``running``, ``failed``, or ``ended``."""
        if self.started is None:
            return "not seen"
        if self.ended is None:
            return "running"
        return "failed" if self.done is False else "ended"

    @property
    def earned(self) -> float | None:
        """What it would have earned by now; None while it has not come to an end."""
        if self.view.state is State.FINISHED:
            return self.view.utility
        return None if self.view.state.open else 0.0

    @property
    def gain(self) -> float | None:
        """By how much it would have earned more than it did; None before both are known."""
        if self.earned is None or self.utility is None:
            return None
        return self.earned - self.utility

    def to_resource(self) -> ComparedJob:
        """Return the job as clients get it."""
        view = self.view
        reason = view.reason
        return ComparedJob(
            name=view.name,
            tenant=view.tenant,
            submitted=to_datetime(view.submitted),
            simulated=SimulatedJob(
                state=view.state.value,
                started=to_datetime_or_none(view.first_start),
                promise=to_datetime_or_none(view.promise_at),
                completion=None if view.state.open else to_datetime_or_none(view.completion_at),
                utility=self.earned,
                reason=None if reason is None else JobReason.model_validate(reason),
            ),
            observed=ObservedJob(
                state=self.real_state,
                started=to_datetime_or_none(self.started),
                completion=to_datetime_or_none(self.ended),
                utility=self.utility,
                runs=self.runs,
            ),
            gain=self.gain,
        )


def pairs(
    connection: Connection,
    published: Published,
    *,
    since: int = 0,
    before: int | None = None,
    tenant: str | None = None,
    limit: int = MOST,
) -> list[Pair]:
    """Return jobs submitted since a moment with both of their histories, the newest first.

    Parameters
    ----------
    connection : Connection
        To read by.
    published : Published
        Where open jobs are now.
    since : int
        The moment.
    before : int, optional
        Number of the job to go on from.
    tenant : str, optional
        Only this tenant's.
    limit : int
        At most so many.
    """
    jobs, outcomes = tables.jobs, tables.outcomes
    query = (
        select(
            jobs.c.name,
            jobs.c.view,
            outcomes.c.started,
            outcomes.c.ended,
            outcomes.c.runs,
            outcomes.c.done,
            outcomes.c.utility,
        )
        .select_from(jobs.outerjoin(outcomes, jobs.c.name == outcomes.c.job))
        .where(jobs.c.submitted >= since)
        .order_by(jobs.c.id.desc())
        .limit(limit)
    )
    if tenant is not None:
        query = query.where(jobs.c.tenant == tenant)
    if before is not None:
        query = query.where(jobs.c.id < before)
    found = []
    for row in connection.execute(query):
        view = published.jobs.get(row.name) or JobView.of_store(row.view)
        found.append(_pair(view, row))
    return found


def _pair(view: JobView, row: Any) -> Pair:
    # What was over before the job was submitted is another one of that name.
    if row.started is None or (row.ended is not None and row.ended < view.submitted):
        return Pair(view)
    done = None if row.done is None else bool(row.done)
    return Pair(view, row.started, row.ended, row.runs, done, row.utility)


# ------------------------------------------------------------------ totals


def totals(found: Sequence[Pair]) -> ComparisonTotals:
    """Return the totals of jobs on both sides; withdrawn jobs count on neither.

    Both sides are as of the same moment: a job that has not ended has no utility yet.
    """
    counted = [one for one in found if one.view.state is not State.CANCELLED]
    over = [one for one in counted if one.ended is not None and one.done is not False]
    both = [one for one in over if one.view.state is State.FINISHED]
    promised = [one for one in over if one.view.first_promise is not None]
    states = Counter(one.view.state for one in counted)
    real_states = Counter(one.real_state for one in counted)
    return ComparisonTotals(
        jobs=len(counted),
        withdrawn=len(found) - len(counted),
        simulated=SimulatedTotals(
            utility=sum(one.earned or 0.0 for one in counted),
            finished=states[State.FINISHED],
            running=states[State.RUNNING] + states[State.RESIZING],
            waiting=states[State.PENDING] + states[State.ADMITTED] + states[State.STANDBY],
            refused=states[State.REFUSED],
            failed=states[State.FAILED],
        ),
        observed=ObservedTotals(
            utility=sum(one.utility or 0.0 for one in counted),
            finished=len(over),
            running=real_states["running"],
            waiting=real_states["not seen"],
            failed=real_states["failed"],
            assumed_completed=sum(one.done is None for one in over),
            unknown_utility=sum(one.utility is None for one in over),
        ),
        both=CompletedInBoth(
            jobs=len(both),
            simulated_seconds=_mean([_took(one.view, one.view.completion_at) for one in both]),
            observed_seconds=_mean([_took(one.view, one.ended) for one in both]),
        ),
        promises=ComparedPromises(
            jobs=len(promised),
            observed_in_time=sum(
                one.view.promise_at is not None
                and one.ended is not None
                and one.ended <= one.view.promise_at
                for one in promised
            ),
        ),
    )


def _took(view: JobView, ended: int | None) -> float | None:
    return None if ended is None else (ended - view.submitted) / 1e9


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def strangers(connection: Connection, since: int, tenant: str | None = None) -> UnmanagedJobs:
    """Return jobs that ran since a moment and were never submitted; their utility is unknown."""
    jobs, outcomes = tables.jobs, tables.outcomes
    mine = and_(or_(outcomes.c.ended.is_(None), outcomes.c.ended >= since), jobs.c.name.is_(None))
    if tenant is not None:
        mine = and_(mine, outcomes.c.tenant == tenant)
    both = outcomes.outerjoin(jobs, jobs.c.name == outcomes.c.job)
    count = connection.execute(select(func.count()).select_from(both).where(mine)).scalar_one()
    query = select(outcomes).select_from(both).where(mine)
    rows = connection.execute(query.order_by(outcomes.c.started.desc()).limit(STRANGERS))
    newest = [
        UnmanagedJob(
            name=row.job,
            tenant=row.tenant,
            started=to_datetime(row.started),
            completion=to_datetime_or_none(row.ended),
            state="running" if row.ended is None else "failed" if row.done == 0 else "ended",
            utility=None,
        )
        for row in rows
    ]
    return UnmanagedJobs(count=int(count), newest=newest)


# ------------------------------------------------------------------ where and when


def seen(
    connection: Connection, calendar: Calendar, first: int, now: int, job: str | None = None
) -> tuple[list[Bar], bool]:
    """Return what really ran from a slot on, and whether some of it was left out.

    Parameters
    ----------
    connection : Connection
        To read by.
    calendar : Calendar
        When slots are.
    first : int
        The slot.
    now : int
        The moment up to which what was not seen to end has run; no later than the last look.
    job : str, optional
        Only of this job.
    """
    table = tables.observed
    since = calendar.begins(first)
    looked = last_look(connection)
    until = now if looked is None else min(now, looked)
    query = select(table).where(or_(table.c.ended.is_(None), table.c.ended > since))
    if job is not None:
        query = query.where(table.c.job == job)
    rows = connection.execute(query.order_by(table.c.id.desc()).limit(ROWS + 1)).all()
    bars = []
    for row in rows[:ROWS]:
        ended = until if row.ended is None else min(row.ended, until)
        begins = max(float(calendar.in_slots(row.since)), float(first))
        ends = float(calendar.in_slots(ended))
        if ends > begins:
            bars += [
                Bar(row.job, server, begins, ends, workers, ps, RAN)
                for server, workers, ps in json.loads(row.placement)
            ]
    return bars, len(rows) > ROWS


def use(
    connection: Connection, published: Published, plans: Planned, first: int, now: int
) -> ComparedUtilization:
    """Return the used share of the cluster, slot by slot, on paper and as it really was.

    The share of a server is that of its scarcest resource; servers count alike. A job that was only
    seen counts for nothing, since what it takes is not known; how many there are is told.
    """
    servers = published.servers
    cluster, calendar = servers.cluster, servers.calendar
    last = calendar.slot_at(now)
    paper, cut = ran(connection, calendar, first, now)
    real, left_out = seen(connection, calendar, first, now)
    known = know(
        connection, {bar.job for bar in (*paper, *real)}, cluster, published, plans.demands
    )
    unknown = {bar.job for bar in real if bar.job not in known.demands}
    away = {bar.server for bar in real if bar.server not in cluster.index}
    return ComparedUtilization(
        first=first,
        simulated=_shares(paper, known, cluster, first, last),
        observed=_shares(real, known, cluster, first, last),
        unknown_jobs=len(unknown),
        unknown_servers=sorted(away)[:20],
        incomplete=cut or left_out,
    )


def _shares(bars: list[Bar], known: Known, cluster: Cluster, first: int, last: int) -> list[float]:
    if last <= first or not cluster.names:
        return []
    found = levels(bars, known, cluster, first, last).mean(axis=0) / 255
    return [round(share, 4) for share in found.tolist()]


def comparison(
    connection: Connection,
    published: Published,
    plans: Planned,
    *,
    now: int,
    days: float,
    scope: str | None,
) -> Comparison:
    """Return the last days on both sides as clients get them.

    Parameters
    ----------
    connection : Connection
        To read by.
    published : Published
        What is so now.
    plans : Planned
        What is known of open jobs.
    now : int
        The moment.
    days : float
        How far to look back.
    scope : str or None
        The tenant who asks: it is told of its own jobs.
    """
    calendar = published.servers.calendar
    since = now - int(days * 86_400 * 10**9)
    found = pairs(connection, published, since=since, tenant=scope, limit=MOST + 1)
    current = calendar.slot_at(now)
    first = max(0, current - SLOTS, calendar.slot_at(since))
    return Comparison(
        **dict(totals(found[:MOST])),
        days=days,
        last_observation=to_datetime_or_none(last_look(connection)),
        incomplete=len(found) > MOST,
        unmanaged_jobs=strangers(connection, since, scope),
        utilization=use(connection, published, plans, first, now),
    )

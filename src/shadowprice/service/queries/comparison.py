"""Comparison of simulated decisions with observed executions, for an observing service.

A submitted job has two results: the simulated one under the policy, and the observed execution. An
unmanaged job was only observed, and its utility is unknown. So it is listed separately, and not
included in totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, and_, func, or_, select

from shadowprice import rest
from shadowprice.core.cluster import Cluster
from shadowprice.core.job_keys import name_of_key
from shadowprice.service.clock import SECOND, to_datetime_or_none
from shadowprice.service.execution.observer import last_observation_time
from shadowprice.service.queries import timeline
from shadowprice.service.read_model import ReadModel
from shadowprice.service.resources import build_resource
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.store import tables

MAX_JOBS: Final = 5_000  # maximum number of jobs of one comparison, newest first
MAX_UTILIZATION_SLOTS: Final = 1_000  # maximum number of slots with utilization, newest first
MAX_UNMANAGED_JOBS: Final = 100  # maximum number of unmanaged jobs listed by name, newest first
MAX_UNKNOWN_SERVERS: Final = 20  # maximum number of unknown servers listed by name


@dataclass(frozen=True, slots=True)
class JobComparison:
    """The simulated and the observed result of a job. Times are nanoseconds since 1970."""

    view: JobView  # as simulated until now
    started: int | None = None  # observed start; None if it wasn't observed
    ended: int | None = None  # observed end; None if it wasn't observed
    runs: int = 0  # observed executions; a restart or a move counts as another one
    done: bool | None = None  # whether the job was observed to succeed; None if unknown
    utility: float | None = None  # at the observed end; None before it or if unknown

    @property
    def observed_state(self) -> rest.ObservedState:
        """Observed state: ``not seen``, ``running``, ``failed``, or ``ended``."""
        if self.started is None:
            return "not seen"
        if self.ended is None:
            return "running"
        return "failed" if self.done is False else "ended"

    @property
    def earned(self) -> float | None:
        """Simulated utility: 0 if the job ended without success, None while it is open."""
        if self.view.state is State.FINISHED:
            return self.view.utility
        return None if self.view.state.open else 0.0

    @property
    def gain(self) -> float | None:
        """Simulated minus observed utility; None unless both are known."""
        if self.earned is None or self.utility is None:
            return None
        return self.earned - self.utility

    def to_resource(self) -> rest.ComparedJob:
        """Return the job as a REST resource."""
        view = self.view
        reason = view.reason
        return build_resource(
            rest.ComparedJob,
            view,
            simulated=rest.SimulatedJob(
                state=view.state.value,
                started=to_datetime_or_none(view.first_start),
                promise=to_datetime_or_none(view.promise_at),
                completion=None if view.state.open else to_datetime_or_none(view.completion_at),
                utility=self.earned,
                reason=None if reason is None else rest.JobReason.model_validate(reason),
            ),
            observed=build_resource(
                rest.ObservedJob,
                self,
                state=self.observed_state,
                completion=to_datetime_or_none(self.ended),
            ),
            gain=self.gain,
        )


def compare_jobs(
    connection: Connection,
    published: ReadModel,
    *,
    since: int = 0,
    before: int | None = None,
    tenant: str | None = None,
    limit: int = MAX_JOBS,
) -> list[JobComparison]:
    """Return the jobs submitted since a moment, newest first, with both results.

    ``since`` is in nanoseconds since 1970. ``before`` is the cursor of a page: only jobs with lower
    ids are returned. Open jobs come from ``published``.
    """
    jobs, outcomes = tables.jobs, tables.outcomes
    query = (
        select(
            jobs.c.key,
            jobs.c.view,
            outcomes.c.started,
            outcomes.c.ended,
            outcomes.c.runs,
            outcomes.c.done,
            outcomes.c.utility,
        )
        .select_from(jobs.outerjoin(outcomes, jobs.c.key == outcomes.c.job))
        .where(jobs.c.submitted >= since)
        .order_by(jobs.c.id.desc())
        .limit(limit)
    )
    if tenant is not None:
        query = query.where(jobs.c.tenant == tenant)
    if before is not None:
        query = query.where(jobs.c.id < before)
    result = []
    for row in connection.execute(query):
        view = published.jobs.get(row.key) or JobView.from_json(row.view)
        # An execution that ended before the submission belongs to an earlier job of the same name.
        if row.started is None or (row.ended is not None and row.ended < view.submitted):
            result.append(JobComparison(view))
        else:
            done = None if row.done is None else bool(row.done)
            pair = JobComparison(view, row.started, row.ended, row.runs, done, row.utility)
            result.append(pair)
    return result


def totals(jobs: Sequence[JobComparison]) -> rest.ComparisonTotals:
    """Return the simulated and observed totals; withdrawn (cancelled) jobs are only counted."""
    counted = [pair for pair in jobs if pair.view.state is not State.CANCELLED]
    # Jobs whose success is unknown count as successful; `assumed_completed` counts them.
    succeeded = [pair for pair in counted if pair.ended is not None and pair.done is not False]
    both = [pair for pair in succeeded if pair.view.state is State.FINISHED]
    promised = [pair for pair in succeeded if pair.view.first_promise is not None]
    states = Counter(pair.view.state for pair in counted)
    observed_states = Counter(pair.observed_state for pair in counted)
    return rest.ComparisonTotals(
        jobs=len(counted),
        withdrawn=len(jobs) - len(counted),
        simulated=rest.SimulatedTotals(
            utility=sum(pair.earned or 0.0 for pair in counted),
            finished=states[State.FINISHED],
            running=states[State.RUNNING] + states[State.RESIZING],
            waiting=states[State.PENDING] + states[State.ADMITTED] + states[State.STANDBY],
            refused=states[State.REFUSED],
            failed=states[State.FAILED],
        ),
        observed=rest.ObservedTotals(
            utility=sum(pair.utility or 0.0 for pair in counted),
            finished=len(succeeded),
            running=observed_states["running"],
            waiting=observed_states["not seen"],
            failed=observed_states["failed"],
            assumed_completed=sum(pair.done is None for pair in succeeded),
            unknown_utility=sum(pair.utility is None for pair in succeeded),
        ),
        both=rest.CompletedInBoth(
            jobs=len(both),
            simulated_seconds=_mean(
                [_seconds_since_submission(pair.view, pair.view.completion_at) for pair in both]
            ),
            observed_seconds=_mean(
                [_seconds_since_submission(pair.view, pair.ended) for pair in both]
            ),
        ),
        promises=rest.ComparedPromises(
            jobs=len(promised),
            observed_in_time=sum(
                pair.view.promise_at is not None
                and pair.ended is not None
                and pair.ended <= pair.view.promise_at
                for pair in promised
            ),
        ),
    )


def _seconds_since_submission(view: JobView, ended: int | None) -> float | None:
    return None if ended is None else (ended - view.submitted) / SECOND


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def unsubmitted_jobs(
    connection: Connection, since: int, tenant: str | None = None
) -> rest.UnmanagedJobs:
    """Return the unmanaged jobs that ran since a moment, in nanoseconds since 1970."""
    jobs, outcomes = tables.jobs, tables.outcomes
    condition = and_(
        or_(outcomes.c.ended.is_(None), outcomes.c.ended >= since), jobs.c.key.is_(None)
    )
    if tenant is not None:
        condition = and_(condition, outcomes.c.tenant == tenant)
    joined = outcomes.outerjoin(jobs, jobs.c.key == outcomes.c.job)
    count = connection.execute(
        select(func.count()).select_from(joined).where(condition)
    ).scalar_one()
    query = select(outcomes).select_from(joined).where(condition)
    rows = connection.execute(query.order_by(outcomes.c.started.desc()).limit(MAX_UNMANAGED_JOBS))
    newest = [
        build_resource(
            rest.UnmanagedJob,
            row,
            name=name_of_key(row.job),
            completion=to_datetime_or_none(row.ended),
            state="running" if row.ended is None else "failed" if row.done == 0 else "ended",
            utility=None,
        )
        for row in rows
    ]
    return rest.UnmanagedJobs(count=int(count), newest=newest)


def utilization(
    connection: Connection, published: ReadModel, plans: timeline.PlannedBars, first: int, now: int
) -> rest.ComparedUtilization:
    """Return the used share of the cluster from slot ``first`` on, as simulated and as observed.

    The used share of a server is that of its scarcest resource, and all servers have equal weight.
    Unmanaged jobs have an unknown demand, so they are only counted. ``now`` is in nanoseconds.
    """
    servers = published.servers
    cluster, calendar = servers.cluster, servers.calendar
    last = calendar.slot_at(now)
    simulated, simulated_cut = timeline.past_bars(connection, calendar, first, now)
    observed, observed_cut = timeline.past_bars(connection, calendar, first, now, observed=True)
    job_info = timeline.load_job_info(
        connection, {bar.job for bar in (*simulated, *observed)}, cluster, published, plans.demands
    )
    unknown = {bar.job for bar in observed if bar.job not in job_info.demands}
    unknown_servers = {bar.server for bar in observed if bar.server not in cluster.index}
    return rest.ComparedUtilization(
        first=first,
        simulated=_shares(simulated, job_info, cluster, first, last),
        observed=_shares(observed, job_info, cluster, first, last),
        unknown_jobs=len(unknown),
        unknown_servers=sorted(unknown_servers)[:MAX_UNKNOWN_SERVERS],
        incomplete=simulated_cut or observed_cut,
    )


def _shares(
    bars: list[timeline.TimelineBar],
    job_info: timeline.JobInfo,
    cluster: Cluster,
    first: int,
    last: int,
) -> list[float]:
    if last <= first or not cluster.names:
        return []
    levels = timeline.utilization_levels(bars, job_info, cluster, first, last)
    shares = levels.mean(axis=0) / timeline.FULL_LEVEL
    return [round(share, 4) for share in shares.tolist()]


def comparison(
    connection: Connection,
    published: ReadModel,
    plans: timeline.PlannedBars,
    *,
    now: int,
    days: float,
    scope: str | None,
) -> rest.Comparison:
    """Return the comparison of the last days as a REST resource.

    ``plans`` has the demands of open jobs, and ``now`` is in nanoseconds since 1970. If ``scope``
    names a tenant, only its jobs are included. The utilization always covers all jobs.
    """
    calendar = published.servers.calendar
    since = now - int(days * 86_400 * SECOND)
    jobs = compare_jobs(connection, published, since=since, tenant=scope, limit=MAX_JOBS + 1)
    current = calendar.slot_at(now)
    first = max(0, current - MAX_UTILIZATION_SLOTS, calendar.slot_at(since))
    return rest.Comparison(
        **dict(totals(jobs[:MAX_JOBS])),
        days=days,
        last_observation=to_datetime_or_none(last_observation_time(connection)),
        incomplete=len(jobs) > MAX_JOBS,
        unmanaged_jobs=unsubmitted_jobs(connection, since, scope),
        utilization=utilization(connection, published, plans, first, now),
    )

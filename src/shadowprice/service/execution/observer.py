"""Observation of jobs that another scheduler runs, for a service that only observes.

An observing service decides as usual, and simulates its decisions. In addition, it polls an
executor, and records when and where each job really ran. Nothing here sends commands.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.job_keys import name_of_key, qualified_name, shown_key
from shadowprice.core.specs import JobSpec
from shadowprice.core.utility import utility_value
from shadowprice.executors.background import BackgroundTasks, run_all
from shadowprice.executors.contract import Executor, ExecutorError, ObservedJob, ServerAllocation
from shadowprice.service.clock import SECOND
from shadowprice.service.execution.server_discovery import to_server_infos
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.submission import resolve_job
from shadowprice.service.store import tables
from shadowprice.service.store.lookups import in_chunks, rows_among, stored_value
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

MAX_POLL_SECONDS: Final = 5.0  # maximum seconds between two polls; half a slot if that is less
MIN_POLL_SECONDS: Final = 1.0  # minimum seconds between two polls
MAX_JOBS_PER_OBSERVATION: Final = 10_000  # maximum number of jobs recorded of one poll
START_TIME_TOLERANCE_NS: Final = 2 * SECOND  # start times this close are of the same start
LAST_OBSERVATION_KEY: Final = "observed_at"  # key of the time of the last poll in the store


# ------------------------------------------------------------------ one poll


@dataclass(slots=True)
class _Rows:
    """Changes of one poll to the table of observed runs."""

    began: list[dict[str, Any]] = field(default_factory=list)  # rows to insert
    ended: list[dict[str, Any]] = field(default_factory=list)
    """Row ids (``key``), and end times (``at``) in nanoseconds; None reopens a run."""

    def end(self, row: Row[Any], at: int) -> None:
        self.ended.append({"key": row.id, "at": max(at, row.since)})


@operation
def record_observation(batch: Batch, seen: Sequence[ObservedJob]) -> None:
    """Record a complete poll: running jobs and recently ended ones.

    A job that disappeared counts as ended at the previous poll, so that observed completion times
    are never too late. A job whose placement changed counts as moved now.
    """
    connection, now = batch.connection, batch.now
    previous_poll = last_observation_time(connection)
    last_seen = now if previous_poll is None else min(previous_poll, now)
    open_query = select(tables.observed).where(tables.observed.c.ended.is_(None))
    open_rows = {row.job: row for row in connection.execute(open_query)}
    newest: dict[str, ObservedJob] = {}  # by key; running jobs win over ended jobs of the same key
    for observed in _with_keys(connection, seen, open_rows):
        if observed.job in newest:
            newest[observed.job] = max(
                newest[observed.job], observed, key=lambda run: (run.ended is None, run.since)
            )
        # Only new jobs are limited, because a running job that is left out would count as ended.
        elif observed.job in open_rows or len(newest) < MAX_JOBS_PER_OBSERVATION:
            newest[observed.job] = observed
    rows = _Rows()
    changed: dict[str, ObservedJob | None] = {}
    new_jobs = [observed for observed in newest.values() if observed.job not in open_rows]
    table = tables.observed
    in_order = select(table).order_by(table.c.id)  # so that a job's newest row replaces the others
    names = [observed.job for observed in new_jobs]
    last_rows = {row.job: row for row in rows_among(connection, in_order, table.c.job, names)}
    for observed in new_jobs:
        if _record_new_job(observed, last_rows.get(observed.job), now, rows):
            changed[observed.job] = observed
    for name, row in open_rows.items():
        current = newest.get(name)
        if current is None:
            rows.end(row, last_seen)
        elif current.ended is not None:
            rows.end(row, min(int(current.ended * SECOND), now))
        elif _was_restarted(row, current, previous_poll):
            rows.end(row, last_seen)
            rows.began.append(_row(current, min(int(current.since * SECOND), now)))
        elif row.placement != _placement_json(current.placement):
            rows.end(row, now)
            rows.began.append(_row(current, now))
        else:
            continue
        changed[name] = current
    update = tables.observed.update().where(tables.observed.c.id == bindparam("key"))
    batch.execute_on_flush(update.values(ended=bindparam("at")), rows.ended)
    batch.execute_on_flush(tables.observed.insert(), rows.began)
    _update_outcomes(batch, changed, rows, open_rows)
    batch.set_value(LAST_OBSERVATION_KEY, str(now))


def _record_new_job(observed: ObservedJob, last: Row[Any] | None, now: int, rows: _Rows) -> bool:
    """Record a job without an open row; return whether that is new. ``last`` is its newest row."""
    since = min(int(observed.since * SECOND), now)
    if observed.ended is not None:
        if last is not None and since <= max(last.since + START_TIME_TOLERANCE_NS, last.ended):
            return False  # already recorded
        row = _row(observed, since)
        rows.began.append(row | {"ended": max(since, min(int(observed.ended * SECOND), now))})
    elif last is None:
        rows.began.append(_row(observed, since))
    elif since > last.ended or last.placement != _placement_json(observed.placement):
        rows.began.append(_row(observed, max(since, last.ended)))
    else:  # the previous poll missed the job: reopen the row
        rows.ended.append({"key": last.id, "at": None})
    return True


def _was_restarted(row: Row[Any], observed: ObservedJob, previous_poll: int | None) -> bool:
    """Return whether a job ended and started again between two polls."""
    since = int(observed.since * SECOND)
    tolerated = row.since + START_TIME_TOLERANCE_NS
    return previous_poll is not None and since > max(previous_poll, tolerated)


def _with_keys(
    connection: Connection, seen: Sequence[ObservedJob], open_rows: Mapping[str, Row[Any]]
) -> list[ObservedJob]:
    """Replace the names of observed jobs by keys.

    Jobs that this executor started already have keys. Jobs of other schedulers are omitted if their
    name or tenant is empty or too long. A running job keeps the key that it got first. A new one
    gets the key of the submitted job of its name and tenant. If its tenant is unknown, it gets the
    key of the oldest open job of its name, so that later submissions of other tenants don't matter.
    """
    open_keys: dict[str, list[str]] = {}
    for row_key in open_rows:
        open_keys.setdefault(name_of_key(row_key), []).append(row_key)
    names = {observed.job for observed in seen if not observed.is_own and _is_name(observed.job)}
    submitted = _submitted_jobs(connection, names)
    jobs = []
    for observed in seen:
        if observed.is_own:
            jobs.append(observed)
        elif _is_name(observed.job) and (observed.tenant is None or _is_name(observed.tenant)):
            key = _find_key(
                observed, open_keys.get(observed.job, ()), submitted.get(observed.job, ())
            )
            jobs.append(replace(observed, job=key))
    return jobs


def _find_key(
    observed: ObservedJob, open_keys: Iterable[str], submitted: Iterable[Row[Any]]
) -> str:
    """Return the key of another scheduler's job: of its open row or its submission, or a new key.

    ``open_keys`` are the keys of open rows of its name, and ``submitted`` the jobs of its name.
    """
    if observed.tenant is not None:
        # A job that was submitted without a tenant may be the tenant's.
        own = {qualified_name(tenant, observed.job) for tenant in (None, observed.tenant)}
        open_keys = [key for key in open_keys if shown_key(key) in own]
        submitted = [row for row in submitted if row.qualified_name in own]
    rows = list(submitted)
    open_rows = [row for row in rows if row.open]
    job = open_rows[0] if open_rows else rows[-1] if rows else None
    running = list(open_keys)
    # A job that started before the submission isn't the submitted job.
    if running and (job is None or job.key in running or observed.since * SECOND < job.submitted):
        return running[0]
    return qualified_name(observed.tenant, observed.job) if job is None else str(job.key)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= bounds.NAME.maximum


def _submitted_jobs(connection: Connection, names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the newest open and the newest closed job of each name and tenant, oldest first."""
    table = tables.jobs
    rows: dict[str, list[Any]] = {}
    columns = (table.c.key, table.c.name, table.c.qualified_name, table.c.open, table.c.submitted)
    for chunk in in_chunks(sorted(names)):
        newest = (
            select(func.max(table.c.id))
            .where(table.c.name.in_(chunk))
            .group_by(table.c.name, table.c.open, table.c.qualified_name)
        )
        query = select(*columns).where(table.c.id.in_(newest)).order_by(table.c.id)
        for row in connection.execute(query):
            rows.setdefault(row.name, []).append(row)
    return rows


def _placement_json(placement: Iterable[ServerAllocation]) -> str:
    return json.dumps([[share.server, share.workers, share.ps] for share in placement])


def _row(observed: ObservedJob, since: int) -> dict[str, Any]:
    placement = _placement_json(observed.placement)
    return {"job": observed.job, "since": since, "ended": None, "placement": placement}


def last_observation_time(connection: Connection) -> int | None:
    """Return the time of the last poll in nanoseconds since 1970; None if there was none."""
    value = stored_value(connection, LAST_OBSERVATION_KEY)
    return None if value is None else int(value)


# ------------------------------------------------------------------ outcomes


def _update_outcomes(
    batch: Batch,
    changed: Mapping[str, ObservedJob | None],
    rows: _Rows,
    open_rows: Mapping[str, Row[Any]],
) -> None:
    """Update the outcomes of changed jobs, and emit an event for each.

    ``changed`` has None for jobs that disappeared, and ``open_rows`` the jobs of the previous poll.
    """
    if not changed:
        return
    table, jobs = tables.outcomes, _jobs(batch, list(changed))
    stored_rows = rows_among(batch.connection, select(table), table.c.job, list(changed))
    stored = {row.job: row for row in stored_rows}
    started_rows = {row["job"]: row for row in rows.began}
    ended = {row["key"]: row["at"] for row in rows.ended}
    inserts, updates, now = [], [], batch.now
    for name, current in changed.items():
        view, spec = jobs.get(name, (None, {}))
        tenant = view.tenant if view else current.tenant if current else None
        outcome = stored.get(name)
        first, runs = (None, 0) if outcome is None else (outcome.started, outcome.runs)
        previous_end = now if outcome is None else outcome.ended or now
        if view is not None and name in started_rows and previous_end < view.submitted:
            first, runs = None, 0  # a run before the submission was another job of this name
        record: dict[str, Any] = dict.fromkeys(("ended", "slot", "done", "utility"))
        record["started"] = started_rows[name]["since"] if first is None else first
        record["runs"] = runs + (name in started_rows)
        is_over = current is None or current.ended is not None
        if is_over:
            was_open = name in open_rows
            end = ended[open_rows[name].id] if was_open else started_rows[name]["ended"]
            record |= {"ended": end, "slot": batch.calendar.slot_at(end)}
            record["done"] = None if current is None or current.done is None else int(current.done)
            if view is not None and end >= view.submitted:
                failed = record["done"] == 0
                record["utility"] = 0.0 if failed else _observed_utility(batch, view, spec, end)
        if outcome is None:
            inserts.append(record | {"job": name, "tenant": tenant})
        else:
            updates.append(record | {"key": name})
        kind = "real-ended" if is_over else "real-moved" if name in open_rows else "real-started"
        data: dict[str, Any] = {"utility": record["utility"]} if is_over else {}
        batch.emit(kind, name, tenant=tenant or None, job_id=view.id if view else None, **data)
    batch.execute_on_flush(table.insert(), inserts)
    if updates:
        values: dict[str, Any] = {key: bindparam(key) for key in updates[0] if key != "key"}
        update = table.update().where(table.c.job == bindparam("key")).values(**values)
        batch.execute_on_flush(update, updates)


def _jobs(batch: Batch, names: Sequence[str]) -> dict[str, tuple[JobView, Mapping[str, Any]]]:
    """Return the views and specifications of the observed jobs that were also submitted here."""
    table = tables.jobs
    stored = rows_among(batch.connection, select(table.c.key, table.c.spec), table.c.key, names)
    specs: dict[str, Mapping[str, Any]] = {row.key: json.loads(row.spec) for row in stored}
    specs |= batch.state.specs
    jobs = batch.find_jobs(names)
    return {name: (job.view, specs[name]) for name, job in jobs.items() if name in specs}


def _observed_utility(
    batch: Batch, view: JobView, spec: Mapping[str, Any], ended: int
) -> float | None:
    """Return a submitted job's utility at its end; None if the job no longer fits the servers."""
    calendar, cluster = batch.calendar, batch.engine.cluster
    try:
        resolved = resolve_job(JobSpec.model_validate(spec), cluster, calendar, view.arrived)
    except (InputError, ValueError):  # the servers changed since the submission
        return None
    return utility_value(resolved.utility, max(0, calendar.slot_at(ended) - resolved.arrival))


# ------------------------------------------------------------------ polling


class ObservationLoop:
    """Polls the executor while the service runs, and records the results."""

    def __init__(self, writer: Writer, executor: Executor) -> None:
        self._health_error: str | None = None
        self._executor = executor
        self._writer = writer
        self._cluster: Cluster | None = None
        self._background = BackgroundTasks(log, writer.metrics.count_failure)
        seconds = float(writer.published.servers.cluster.slot_seconds)
        self._pause = max(MIN_POLL_SECONDS, min(MAX_POLL_SECONDS, seconds / 2))

    @property
    def health_error(self) -> str | None:
        """Why polls fail or can't be recorded; None if healthy."""
        return self._health_error or self._background.health_error

    async def open(self) -> None:
        """Open the executor; raise `ExecutorError` if it is unreachable."""
        await self._executor.open()

    def begin(self) -> None:
        """Start polling in the background."""
        self._background.spawn_repeating("observer", self._step, "observing the running jobs")

    async def close(self) -> None:
        """Stop polling, and close the executor."""
        await run_all(self._background.end, self._executor.close)

    async def poll(self) -> None:
        """Poll the executor once, and record the changes."""
        cluster = self._writer.published.servers.cluster
        if cluster is not self._cluster:
            await self._executor.set_servers(to_server_infos(cluster))
            self._cluster = cluster
        seen = await self._executor.observe()
        await self._writer.do(record_observation(seen))

    async def _step(self) -> None:
        try:
            await self.poll()
            self._health_error = None
        except ExecutorError as error:
            self._writer.metrics.executor_errors.inc()
            self._health_error = f"failed to read the running pods: {error}"
            log.warning("%s", self._health_error)
        except ProblemError as error:
            log.info("failed to observe running jobs; retrying: %s", error)
        except ShadowpriceError as error:
            self._health_error = f"failed to record running jobs: {error}"
            log.error("%s", self._health_error)
        await asyncio.sleep(self._pause)

"""Queries of the store: jobs, events, generations and progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, func, select, tuple_

from shadowprice.core.job_keys import name_of_key
from shadowprice.rest import Generation, OmittedEvents, ProgressPoint, ServerShare, StoredEvent
from shadowprice.service.resources import build_resource
from shadowprice.service.state.durable_state import StreamEvent
from shadowprice.service.state.job_views import JobView
from shadowprice.service.store import tables
from shadowprice.service.store.lookups import in_chunks, rows_among

PAGE: Final = 1_000  # maximum number of entries of a page
MAX_SEARCHED_JOBS: Final = 20_000  # maximum number of jobs that one search by name reads
HISTORY_HEAD_ENTRIES: Final = 10  # first events of a long history: submission and decision

_JOB_COLUMNS: Final = (
    tables.jobs.c.key,
    tables.jobs.c.qualified_name,
    tables.jobs.c.view,
    tables.jobs.c.content,
    tables.jobs.c.request,
)

_JOB_BY_KEY: Final = select(*_JOB_COLUMNS).where(tables.jobs.c.key == bindparam("wanted"))
_NEWEST_OF_NAME: Final = select(*_JOB_COLUMNS).where(
    tables.jobs.c.id
    == select(func.max(tables.jobs.c.id))
    .where(tables.jobs.c.qualified_name == bindparam("wanted"))
    .scalar_subquery()
)
_OF_REQUEST: Final = select(*_JOB_COLUMNS).where(tables.jobs.c.request == bindparam("wanted"))
CLOSED_STATES: Final = ("finished", "refused", "failed", "cancelled")


class StoredJob(NamedTuple):
    """A job, with the hashes of its submission's content and of its request (`submission`)."""

    view: JobView
    content_hash: str
    request: str | None


def jobs_by_key(connection: Connection, keys: Sequence[str]) -> dict[str, StoredJob]:
    """Return stored jobs by key."""
    rows = _job_rows(connection, keys, _JOB_BY_KEY, tables.jobs.c.key.in_)
    return {row.key: _stored_job(row) for row in rows}


def newest_jobs(connection: Connection, qualified_names: Sequence[str]) -> dict[str, StoredJob]:
    """Return the newest stored job of each qualified name."""
    table = tables.jobs

    def is_newest(names: Sequence[str]) -> ColumnElement[bool]:
        newest = select(func.max(table.c.id)).where(table.c.qualified_name.in_(names))
        return table.c.id.in_(newest.group_by(table.c.qualified_name))

    rows = _job_rows(connection, qualified_names, _NEWEST_OF_NAME, is_newest)
    return {row.qualified_name: _stored_job(row) for row in rows}


def jobs_of_requests(connection: Connection, requests: Sequence[str]) -> dict[str, StoredJob]:
    """Return the stored job of each request, open or closed."""
    rows = _job_rows(connection, requests, _OF_REQUEST, tables.jobs.c.request.in_)
    return {row.request: _stored_job(row) for row in rows}


def _stored_job(row: Row[Any]) -> StoredJob:
    return StoredJob(JobView.from_json(row.view), row.content, row.request)


def _job_rows(
    connection: Connection,
    values: Sequence[str],
    query_for_one: Select[Any],
    condition_for: Callable[[Sequence[str]], ColumnElement[bool]],
) -> Iterable[Any]:
    if len(values) == 1:  # the usual case, in which building a statement would take most time
        yield from connection.execute(query_for_one, {"wanted": values[0]})
        return
    for chunk in in_chunks(values):
        yield from connection.execute(select(*_JOB_COLUMNS).where(condition_for(chunk)))


def job(connection: Connection, key: str) -> tuple[JobView, dict[str, Any]] | None:
    """Return a job's stored view and specification; None if it is unknown."""
    table = tables.jobs
    row = connection.execute(select(table.c.view, table.c.spec).where(table.c.key == key)).first()
    return None if row is None else (JobView.from_json(row.view), json.loads(row.spec))


def job_by_id(connection: Connection, number: int) -> JobView | None:
    """Return the job with an id; None if it is unknown."""
    table = tables.jobs
    text = connection.execute(select(table.c.view).where(table.c.id == number)).scalar()
    return None if text is None else JobView.from_json(text)


def newest_job(connection: Connection, qualified: str) -> JobView | None:
    """Return the newest job of a qualified name, which is the open one if any is open."""
    row = connection.execute(_NEWEST_OF_NAME, {"wanted": qualified}).first()
    return None if row is None else JobView.from_json(row.view)


def jobs_of_all_tenants(connection: Connection, name: str) -> list[JobView]:
    """Return each tenant's newest job of a name; only open jobs if any of them is open."""
    table = tables.jobs
    for is_open in (1, 0):
        newest = (
            select(func.max(table.c.id))
            .where(table.c.name == name, table.c.open == is_open)
            .group_by(table.c.qualified_name)
        )
        query = select(table.c.view).where(table.c.id.in_(newest)).order_by(table.c.qualified_name)
        views = [JobView.from_json(text) for text in connection.execute(query).scalars()]
        if views:
            return views
    return []


def list_jobs(
    connection: Connection,
    *,
    states: Sequence[str] = (),
    tenant: str | None = None,
    search: str = "",
    before: int | None = None,
    after: int = 0,
    limit: int = 100,
    current: Mapping[str, JobView] = MappingProxyType({}),
) -> list[JobView]:
    """Return jobs between two ids, newest first; views in ``current`` replace stored ones."""
    table = tables.jobs
    query: Select[Any] = select(table.c.id, table.c.key, table.c.view)
    query = query.order_by(table.c.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(table.c.tenant == tenant)
    if before is not None:
        query = query.where(table.c.id < before)
    if after:
        query = query.where(table.c.id > after)
    if search:
        # LIKE takes quadratic time for long names.
        position = func.strpos if connection.dialect.name == "postgresql" else func.instr
        query = query.where(position(func.lower(table.c.name), func.lower(search)) > 0)
    if len(states) <= 1:
        if states:
            query = query.where(table.c.state == states[0])
        rows = connection.execute(query).all()
    else:
        # One index scan for each state; in one query, all their rows would be sorted.
        scans = (connection.execute(query.where(table.c.state == state)).all() for state in states)
        rows = sorted(chain.from_iterable(scans), key=lambda row: -row.id)[:limit]
    return [current.get(row.key) or JobView.from_json(row.view) for row in rows]


def search_start(connection: Connection, before: int | None, tenant: str | None) -> int:
    """Return the id above which one search by name reads jobs; 0 if it reads all.

    No index finds parts of names, so a search reads at most `MAX_SEARCHED_JOBS` jobs. For a tenant,
    only its own jobs count, so that the id reveals nothing about other tenants.
    """
    table = tables.jobs
    if tenant is None:
        end = (connection.scalar(select(func.max(table.c.id))) or 0) + 1
        return max(0, min(end if before is None else before, end) - 1 - MAX_SEARCHED_JOBS)
    query = select(table.c.id).where(table.c.tenant == tenant).order_by(table.c.id.desc())
    if before is not None:
        query = query.where(table.c.id < before)
    return connection.scalar(query.offset(MAX_SEARCHED_JOBS).limit(1)) or 0


def list_events(
    connection: Connection,
    *,
    after: int | None = None,
    before: int | None = None,
    job: str | None = None,
    tenant: str | None = None,
    decisions: bool = False,
    limit: int = 100,
) -> list[StoredEvent]:
    """Return stored events: in order if ``after`` is given, else newest first."""
    table = tables.events
    query = select(table).limit(limit)
    if job is not None:
        query = query.where(table.c.job == job)
    # A job has few events. coalesce() makes the planner use their index, not that of the tenant.
    if tenant is not None:
        owner = table.c.tenant if job is None else func.coalesce(table.c.tenant, "")
        query = query.where(owner == tenant)
    if decisions:
        query = query.where(tables.decided)
    if after is not None:
        query = query.where(table.c.id > after).order_by(table.c.id)
    else:
        query = query.order_by(table.c.id.desc())
        if before is not None:
            query = query.where(table.c.id < before)
    return [event_resource(row, json.loads(row.data)) for row in connection.execute(query)]


def job_history(connection: Connection, key: str) -> tuple[list[StoredEvent], OmittedEvents | None]:
    """Return a job's events in order, and the gap in a long history: at most `PAGE` events."""
    newest = list_events(connection, job=key, limit=PAGE)[::-1]
    if len(newest) < PAGE:
        return newest, None
    first = list_events(connection, after=0, job=key, limit=HISTORY_HEAD_ENTRIES)
    last = first[-1].id
    newest = [event for event in newest if event.id > last][HISTORY_HEAD_ENTRIES - PAGE :]
    table = tables.events
    between = connection.execute(
        select(func.count()).where(table.c.job == key, table.c.id > last, table.c.id < newest[0].id)
    ).scalar_one()
    gap = OmittedEvents(after=last, events=between) if between else None
    return [*first, *newest], gap


def event_resource(event: Row[Any] | StreamEvent, data: dict[str, Any]) -> StoredEvent:
    """Return an event as a REST resource."""
    job = None if event.job is None else name_of_key(event.job)
    return build_resource(StoredEvent, event, job=job, data=data)


def generations(connection: Connection, key: str, limit: int = PAGE) -> list[Generation]:
    """Return a job's generations, newest first."""
    table = tables.generations
    rows = connection.execute(
        select(table).where(table.c.job == key).order_by(table.c.generation.desc()).limit(limit)
    )
    return [
        build_resource(
            Generation,
            row,
            placement=[
                ServerShare(server=server, workers=workers, ps=ps)
                for server, workers, ps in json.loads(row.placement)
            ],
        )
        for row in rows
    ]


def command_times(
    connection: Connection, generations: Sequence[tuple[str, int]]
) -> Mapping[tuple[str, int], int]:
    """Return when generations were commanded, in ns since 1970; leave out unknown generations."""
    columns = tables.generations.c
    key = tuple_(columns.job, columns.generation)
    query = select(columns.job, columns.generation, columns.ordered)
    rows = rows_among(connection, query, key, generations)
    return {(row.job, row.generation): row.ordered for row in rows}


def progress_points(connection: Connection, key: str, limit: int = 5_000) -> list[ProgressPoint]:
    """Return a job's progress reports in order, evenly sampled above the limit."""
    table = tables.progress
    rank = func.row_number().over(order_by=table.c.id.desc()).label("rank")
    ranked = select(table.c.id, rank).where(table.c.job == key).subquery()
    points = connection.execute(select(func.count()).where(table.c.job == key)).scalar_one()
    step = max(1, -(-points // limit))
    rows = connection.execute(
        select(table)
        .join(ranked, ranked.c.id == table.c.id)
        .where((ranked.c.rank - 1) % step == 0)
        .order_by(table.c.id)
    )
    return [build_resource(ProgressPoint, row, metrics=json.loads(row.metrics)) for row in rows]

"""Retention: purges old jobs, events, progress and tokens, some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, Table, func, select, tuple_

from shadowprice.service.store import Store, tables
from shadowprice.service.store.lookups import stored_value

PURGE_BATCH_ROWS: Final = 1_000
"""Maximum number of rows of a table that one call purges for their age.

The rows of purged jobs don't count.
"""

PURGE_BATCH_JOBS: Final = 100  # maximum jobs of one call; each may have thousands of reports
LAST_JOB: Final = "last_job"  # key of the largest id at a purge, because ids aren't used again

_OF_JOBS: Final = (
    tables.progress,
    tables.generations,
    tables.commands,
    tables.events,
    tables.observed,
    tables.outcomes,
)
"""Tables whose rows are purged with their job."""


def last_job(connection: Connection) -> int:
    """Return the largest id that a job has or had, also a purged one; 0 if there was none."""
    purged = stored_value(connection, LAST_JOB)
    stored = connection.execute(select(func.max(tables.jobs.c.id))).scalar()
    return max(int(purged or 0), stored or 0)


def has_purged_jobs(connection: Connection) -> bool:
    """Return whether jobs were ever purged, so that a name without a job may have been used."""
    return stored_value(connection, LAST_JOB) is not None


class ExpiredJob(NamedTuple):
    """A job past its retention; such jobs sort by the time at which they were closed."""

    closed: int
    id: int
    key: str


def expired_jobs(store: Store, before: int, after: ExpiredJob | None = None) -> list[ExpiredJob]:
    """Return the oldest jobs closed before a moment that follow ``after``, in a batch."""
    jobs = tables.jobs
    query = select(jobs.c.closed, jobs.c.id, jobs.c.key).where(jobs.c.closed < before)
    if after is not None:
        query = query.where(tuple_(jobs.c.closed, jobs.c.id) > (after.closed, after.id))
    with store.reading() as connection:
        rows = connection.execute(query.order_by(jobs.c.closed, jobs.c.id).limit(PURGE_BATCH_JOBS))
        return [ExpiredJob(*row) for row in rows]


def purge(store: Store, before: int, keys: Sequence[str] | None = None) -> bool:
    """Purge some data from before a moment; return whether rows other than jobs may remain.

    ``before`` is in nanoseconds since 1970. ``keys`` are the expired jobs to purge, by default a
    batch of `expired_jobs`. The caller deletes their executor files first, because their keys are
    unknown afterwards. Raise `StoreError` if the store can't be written.
    """
    jobs, tokens = tables.jobs, tables.tokens
    keys = [job.key for job in expired_jobs(store, before)] if keys is None else keys
    old: list[tuple[Table, list[int]]] = []
    with store.reading() as connection:
        ended_before = func.coalesce(tokens.c.revoked, tokens.c.expires) < before
        for table, is_old in (
            (tables.events, tables.events.c.at < before),
            (tables.entries, tables.entries.c.at < before),
            (tables.observed, tables.observed.c.ended < before),
            # Keep revoked tokens of operators: the file that the next start reads may list them.
            (tokens, ended_before & (tokens.c.role != "operator")),
        ):
            rows = connection.execute(select(table.c.id).where(is_old).limit(PURGE_BATCH_ROWS))
            old.append((table, list(rows.scalars())))
        outcomes = tables.outcomes
        result = connection.execute(
            select(outcomes.c.job)
            .where(outcomes.c.ended < before, outcomes.c.job.not_in(select(jobs.c.key)))
            .limit(PURGE_BATCH_ROWS)
        )
        unmanaged = list(result.scalars())
    old_rows = [ids for _, ids in old]
    if not keys and not unmanaged and not any(old_rows):
        return False
    with store.transaction() as connection:
        if keys:
            store.put(connection, LAST_JOB, str(last_job(connection)))
        for table in _OF_JOBS:
            store.delete(connection, table.c.job, keys)
        store.delete(connection, jobs.c.key, keys)
        store.delete(connection, outcomes.c.job, unmanaged)
        for table, ids in old:
            store.delete(connection, table.c.id, ids)
    return any(len(ids) == PURGE_BATCH_ROWS for ids in (unmanaged, *old_rows))

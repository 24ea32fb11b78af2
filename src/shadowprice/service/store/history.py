"""Old jobs, events, curves and tokens leave the store, some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Table, delete, func, select

from shadowprice.service.store import Store, tables

SWEPT: Final = 1_000
"""Rows of a kind that leave at once."""

SWEPT_JOBS: Final = 100
"""Jobs that do; each takes the thousands of points of its curve with it."""

_OF_JOBS: Final = (
    tables.progress,
    tables.generations,
    tables.commands,
    tables.events,
    tables.observed,
    tables.outcomes,
)
"""Tables whose rows leave with their job."""


def old_jobs(store: Store, before: int) -> list[str]:
    """Return jobs that were over before a moment, so many as leave at once.

    Raises
    ------
    StoreError
        If the store cannot be read.
    """
    jobs = tables.jobs
    with store.reading() as connection:
        rows = connection.execute(
            select(jobs.c.name).where(jobs.c.closed < before).limit(SWEPT_JOBS)
        )
        return list(rows.scalars())


def sweep(store: Store, before: int, gone: Sequence[str] | None = None) -> bool:
    """Delete some of what was over before a moment, entries of accounts with the rest.

    Parameters
    ----------
    store : Store
        Where it is.
    before : int
        The moment.
    gone : sequence of str, optional
        The jobs that leave, of those that `old_jobs` named: what an executor still keeps of a job
        has to be removed before nobody knows its name any more. All of them by default.

    Returns
    -------
    bool
        Whether there may be more beside jobs.

    Raises
    ------
    StoreError
        If the store cannot be written.
    """
    jobs, tokens = tables.jobs, tables.tokens
    gone = old_jobs(store, before) if gone is None else gone
    old: list[tuple[Table, list[int]]] = []
    with store.reading() as connection:
        over = func.coalesce(tokens.c.revoked, tokens.c.expires) < before
        for table, is_old in (
            (tables.events, tables.events.c.at < before),
            (tables.entries, tables.entries.c.at < before),
            (tables.observed, tables.observed.c.ended < before),
            # An operator's that was revoked stays: it may be in the file that the next start reads.
            (tokens, over & (tokens.c.role != "operator")),
        ):
            rows = connection.execute(select(table.c.id).where(is_old).limit(SWEPT))
            old.append((table, list(rows.scalars())))
        seen = tables.outcomes
        strangers = connection.execute(
            select(seen.c.job)
            .where(seen.c.ended < before, seen.c.job.not_in(select(jobs.c.name)))
            .limit(SWEPT)
        )
        strange = list(strangers.scalars())
    old_rows = [found for _, found in old]
    if not gone and not strange and not any(old_rows):
        return False
    with store.transaction() as connection:
        for at in range(0, len(gone), 500):
            names = gone[at : at + 500]
            for table in _OF_JOBS:
                store.write(connection, delete(table).where(table.c.job.in_(names)))
            store.write(connection, delete(jobs).where(jobs.c.name.in_(names)))
        for at in range(0, len(strange), 500):
            store.write(connection, delete(seen).where(seen.c.job.in_(strange[at : at + 500])))
        for table, found in old:
            for at in range(0, len(found), 500):
                numbers = found[at : at + 500]
                store.write(connection, delete(table).where(table.c.id.in_(numbers)))
    return any(len(found) == SWEPT for found in (strange, *old_rows))

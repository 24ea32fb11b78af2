"""Old jobs, events and curves leave the store, some rows at a time."""

from __future__ import annotations

from sqlalchemy import delete, select

from shadowprice.service.store import Store, tables

SWEPT = 1_000
"""Rows of a kind that leave at once."""


def sweep(store: Store, before: int) -> int:
    """Delete what was over before a moment, entries of accounts with the rest.

    Returns
    -------
    int
        Jobs that left.

    Raises
    ------
    StoreError
        If the store cannot be written.
    """
    jobs = tables.jobs
    with store.reading() as connection:
        gone = list(
            connection.execute(
                select(jobs.c.name).where(jobs.c.closed < before).limit(SWEPT)
            ).scalars()
        )
        events = list(
            connection.execute(
                select(tables.events.c.id).where(tables.events.c.at < before).limit(SWEPT)
            ).scalars()
        )
        entries = list(
            connection.execute(
                select(tables.entries.c.id).where(tables.entries.c.at < before).limit(SWEPT)
            ).scalars()
        )
    if not gone and not events and not entries:
        return 0
    with store.transaction() as connection:
        for at in range(0, len(gone), 500):
            names = gone[at : at + 500]
            for table in (tables.progress, tables.generations, tables.commands, tables.events):
                store.write(connection, delete(table).where(table.c.job.in_(names)))
            store.write(connection, delete(jobs).where(jobs.c.name.in_(names)))
        for table, found in ((tables.events, events), (tables.entries, entries)):
            for at in range(0, len(found), 500):
                numbers = found[at : at + 500]
                store.write(connection, delete(table).where(table.c.id.in_(numbers)))
    return len(gone)

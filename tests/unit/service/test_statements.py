"""Statements: the balances and sums of a time span."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.core.budget import POINT
from shadowprice.service.budgets.account_table import EntryFilter, totals
from shadowprice.service.store import Store, retention, tables

GRANT = {"kind": "grant", "job": None, "other": None, "note": "budget"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    result = Store(str(tmp_path / "data"))
    result.open()
    yield result
    result.close()


def put_account(store: Store, tenant: str, points: list[tuple[int, int]]) -> None:
    """Store an account that got some points at some moments."""
    balance = 0
    with store.transaction() as connection:
        for at, number in points:
            balance += number * POINT
            row = {"at": at, "tenant": tenant, "points": number * POINT, "balance": balance}
            last = len(connection.execute(tables.entries.select()).all())
            store.write(connection, tables.entries.insert(), [{"id": last + 1, **row, **GRANT}])
        account = {"tenant": tenant, "budget": "{}", "balance": balance, "sums": "{}"}
        counts = dict.fromkeys(("reserved", "spent", "period", "room"), 0)
        store.write(connection, tables.budgets.insert(), [{**account, **counts}])


@pytest.mark.parametrize("purged_before", [0, 15, 35, 60])
@pytest.mark.parametrize(
    ("since", "until", "balance"),
    [(20, 30, 100), (20, None, 160), (40, 50, 150), (60, None, 160), (70, 80, 160)],
)
def test_a_span_without_entries_has_the_balance_of_that_time_after_a_purge(
    store: Store, purged_before: int, since: int | None, until: int | None, balance: int
) -> None:
    put_account(store, "vision", [(10, 100), (35, 50), (55, 10)])
    put_account(store, "speech", [(10, 7), (90, 7)])
    retention.purge(store, purged_before)
    entry_filter = EntryFilter("vision", since=since, until=until)
    with store.reading() as connection:
        result = totals(connection, entry_filter)
        assert totals(connection, EntryFilter("unknown", since=since))["closing"] == 0.0
        if purged_before == 0:
            assert totals(connection, EntryFilter("vision", until=5))["closing"] == 0.0
    if purged_before == 60:  # the later entries are gone, too
        balance = 160
    assert result["closing"] == balance

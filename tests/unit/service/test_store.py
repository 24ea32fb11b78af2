"""The store over versions and years: tables of earlier ones, and what is found by an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine

from shadowprice.service.store import Store, tables
from shadowprice.service.store.store import _MIGRATIONS
from shadowprice.service.truth.reading import list_events


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(str(tmp_path / "data"))
    found.open()
    yield found
    found.close()


@pytest.mark.parametrize("version", ["0001", "0002", "0003", "0004"])
def test_tables_of_earlier_versions_become_those_of_this_one(tmp_path: Path, version: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with create_engine(f"sqlite:///{folder / 'shadowprice.db'}").begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    store = Store(str(folder))
    store.open()
    with store.reading() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, tables.metadata) == []
    store.close()


def test_few_decisions_are_found_among_much_else(store: Store) -> None:
    def entries(first: int, several: int, **more: Any) -> list[dict[str, Any]]:
        entry = {"at": 1, "kind": "resized", "decision": 0, "job": "a", "tenant": "v", "data": "{}"}
        return [{"id": first + at, **entry, **more} for at in range(several)]

    rows = [
        *entries(1, 2, decision=1),
        *entries(10, 5_000),
        *entries(6_000, 2_000, decision=1, job="b", tenant="w"),
    ]
    with store.transaction() as connection:
        store.write(connection, tables.events.insert(), rows)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    with store.reading() as connection:
        raw: Any = connection.connection.driver_connection
        raw.set_progress_handler(count, 10)
        for asked in ({"tenant": "v"}, {"job": "a"}, {"job": "a", "tenant": "v"}):
            found = list_events(connection, decisions=True, **asked)
            assert [entry["id"] for entry in found] == [2, 1]
        raw.set_progress_handler(None, 0)
    assert steps < 50

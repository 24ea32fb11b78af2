"""The store: its version, backups and indexes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from shadowprice.service.state.store_queries import list_events
from shadowprice.service.store import Store, StoreError, tables
from shadowprice.service.store.files import backup_file
from shadowprice.service.store.lookups import stored_value
from shadowprice.service.store.store import WAL_SIZE_LIMIT_BYTES
from tests.support.waiting import WAIT_LIMIT_SECONDS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    result = Store(str(tmp_path / "data"))
    result.open()
    yield result
    result.close()


def test_a_new_store_has_the_tables_and_the_newest_version(store: Store) -> None:
    with store.reading() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, tables.metadata) == []
        assert context.get_current_heads() == ("0002",)


def test_backup_completes_while_the_service_writes(store: Store, tmp_path: Path) -> None:
    point = {"job": "a", "generation": 1, "at": 0, "minibatches": 0.0, "metrics": "x" * 60_000}
    with store.transaction() as connection:
        store.write(connection, tables.progress.insert(), [point] * 500)
    over = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        connection = sqlite3.connect(store.file, isolation_level=None)
        connection.execute("PRAGMA synchronous=OFF")
        while not over.is_set():
            connection.execute("REPLACE INTO meta VALUES ('written', ?)", (written,))
            written += 1
        connection.close()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        backup_file(store.file, tmp_path / "copy.db")
        assert writing.is_alive()
    finally:
        over.set()
        writing.join(WAIT_LIMIT_SECONDS)
    copy = sqlite3.connect(tmp_path / "copy.db")
    [[points]] = copy.execute("SELECT count(*) FROM progress")
    copy.close()
    assert (points, written > 0) == (500, True)


def test_large_log_is_truncated(store: Store) -> None:
    point = {"job": "a", "generation": 1, "at": 0, "minibatches": 0.0, "metrics": "x" * 60_000}
    log = Path(f"{store.file}-wal")
    with store.transaction() as connection:
        store.write(connection, tables.progress.insert(), [point] * 700)
    assert log.stat().st_size > WAL_SIZE_LIMIT_BYTES
    for index in range(2):
        with store.transaction() as connection:
            store.put(connection, "written", f"{index}")
    assert log.stat().st_size <= WAL_SIZE_LIMIT_BYTES


def test_rare_decisions_are_found_among_many_events(store: Store) -> None:
    def entries(first: int, several: int, **more: Any) -> list[dict[str, Any]]:
        entry = {"at": 1, "kind": "resized", "decision": 0, "job": "a", "tenant": "v", "data": "{}"}
        return [{"id": first + index, **entry, **more} for index in range(several)]

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
        for filters in ({"tenant": "v"}, {"job": "a"}, {"job": "a", "tenant": "v"}):
            result = list_events(connection, decisions=True, **filters)
            assert [event.id for event in result] == [2, 1]
        raw.set_progress_handler(None, 0)
    assert steps < 50


def test_waiting_too_long_for_a_connection_is_a_store_error(store: Store) -> None:
    pool = store._engine.pool
    pool._timeout = 0.01
    with ExitStack() as readers:
        for _ in range(pool.size() + pool._max_overflow - 1):  # the writer has one, too
            readers.enter_context(store.reading())
        with pytest.raises(StoreError, match="QueuePool limit"):
            readers.enter_context(store.reading())
    assert store.get("readable") is None


def test_a_batch_waits_for_the_lock_of_another_program(store: Store) -> None:
    begun = threading.Event()
    store.fault = lambda point: begun.set() if point == "begin" else None

    def write() -> None:
        with store.transaction() as connection:
            assert stored_value(connection, "note") is None  # operations read first
            store.put(connection, "note", "written")

    with closing(sqlite3.connect(store.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)
            assert begun.wait(WAIT_LIMIT_SECONDS)
            with pytest.raises(TimeoutError):
                writing.result(timeout=0.2)
            other.execute("ROLLBACK")
            writing.result(timeout=WAIT_LIMIT_SECONDS)
    assert store.get("note") == "written"

"""Tenants take turns in the backlog, and in the batches of the writer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from shadowprice.service.driver import (
    MAX_BATCH_OPERATIONS,
    MAX_BATCH_SLOW_OPERATIONS,
    Driver,
)
from shadowprice.service.state.backlog import Backlog
from shadowprice.service.state.operations import CancelJob, ReviseJob
from shadowprice.service.writer import PendingOperation


def test_tenants_take_turns_in_the_backlog() -> None:
    backlog = Backlog([("a", "a1"), ("a", "a2"), ("b", "b1")])
    backlog.extend([("a", "a3"), (None, "c1"), ("b", "b2")])
    assert list(backlog) == ["a1", "a2", "b1", "a3", "c1", "b2"]
    assert [backlog.pop() for _ in range(4)] == ["a1", "b1", "c1", "a2"]
    assert list(backlog) == ["a3", "b2"]
    assert len(backlog) == 2
    backlog.extend([("d", "d1")])
    assert [backlog.pop() for _ in range(3)] == ["b2", "a3", "d1"]
    assert not backlog


def next_batches(pending: list[tuple[str | None, Any]], count: int) -> list[list[Any]]:
    """Return the operations of the next batches, for operations with their tenants."""

    async def build() -> list[list[Any]]:
        loop = asyncio.get_running_loop()
        driver = cast(Any, Driver.__new__(Driver))
        driver._slow_served, driver._slow_count = {}, 0
        driver._queue = deque(
            PendingOperation(operation, loop.create_future(), tenant)
            for tenant, operation in pending
        )
        return [[entry.operation for entry in driver._next_batch()] for _ in range(count)]

    return asyncio.run(build())


def test_a_tenants_many_operations_delay_those_of_another_by_one_batch() -> None:
    many: list[tuple[str | None, Any]] = [
        ("a", CancelJob(f"a{number}")) for number in range(3 * MAX_BATCH_OPERATIONS)
    ]
    [first, *others] = next_batches([*many, ("b", CancelJob("b1")), (None, CancelJob("c1"))], 5)
    assert first[:3] == [CancelJob("a0"), CancelJob("b1"), CancelJob("c1")]
    assert [len(batch) for batch in (first, *others)] == [256, 256, 256, 2, 0]
    kept = [operation.key for batch in (first, *others) for operation in batch]
    assert [key for key in kept if key[0] == "a"] == [operation.key for _, operation in many]


def test_slow_operations_share_a_batch_among_tenants() -> None:
    slow: list[tuple[str | None, Any]] = [
        ("a", ReviseJob(f"a{number}", {}, dry_run=True)) for number in range(40)
    ]
    pending = [*slow, ("b", ReviseJob("b1", {})), ("a", CancelJob("a")), ("b", CancelJob("b"))]
    first, second = next_batches(pending, 2)
    revised = [operation.key for operation in first if isinstance(operation, ReviseJob)]
    assert revised == ["a0", "b1"]
    assert len(revised) == MAX_BATCH_SLOW_OPERATIONS
    # Other operations overtake them.
    assert [operation for operation in first if isinstance(operation, CancelJob)] == [
        CancelJob("b"),
        CancelJob("a"),
    ]
    assert [operation.key for operation in second] == ["a1", "a2"]


def test_a_third_tenants_slow_operation_waits_for_one_of_each_of_the_others() -> None:
    pending: list[tuple[str | None, Any]] = [
        (tenant, ReviseJob(f"{tenant}{number}", {})) for number in range(9) for tenant in "ab"
    ]
    pending.append(("c", ReviseJob("c0", {})))
    first, second = next_batches(pending, 2)
    assert {operation.key for operation in (*first, *second)} >= {"a0", "b0", "c0"}

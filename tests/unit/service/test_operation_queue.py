"""Operations that wait for the writer, and the batches in which it commits them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shadowprice.service.operation_queue import (
    MAX_BATCH_OPERATIONS,
    MAX_BATCH_SLOW_OPERATIONS,
    MAX_PENDING_OPERATIONS,
    BatchEntry,
    OperationQueue,
    PendingOperation,
    fail_batch,
    resolve_batch,
)
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.operations import cancel_job, decide_backlog, revise_job


def next_batches(pending: list[tuple[str | None, Any]], count: int) -> list[list[Any]]:
    """Return the operations of the next batches, for operations with their tenants."""

    async def build() -> list[list[Any]]:
        loop = asyncio.get_running_loop()
        queue = OperationQueue(
            PendingOperation(operation, loop.create_future(), tenant)
            for tenant, operation in pending
        )
        return [[entry.operation for entry in queue.take()] for _ in range(count)]

    return asyncio.run(build())


def test_a_tenants_many_operations_delay_those_of_another_by_one_batch() -> None:
    many: list[tuple[str | None, Any]] = [
        ("a", cancel_job(f"a{number}")) for number in range(3 * MAX_BATCH_OPERATIONS)
    ]
    [first, *others] = next_batches([*many, ("b", cancel_job("b1")), (None, cancel_job("c1"))], 5)
    assert first[:3] == [cancel_job("a0"), cancel_job("b1"), cancel_job("c1")]
    assert [len(batch) for batch in (first, *others)] == [256, 256, 256, 2, 0]
    kept = [operation.arguments[0] for batch in (first, *others) for operation in batch]
    assert [key for key in kept if key[0] == "a"] == [
        operation.arguments[0] for _, operation in many
    ]


def test_slow_operations_share_a_batch_among_tenants() -> None:
    slow: list[tuple[str | None, Any]] = [
        ("a", revise_job(f"a{number}", {}, dry_run=True)) for number in range(40)
    ]
    pending = [*slow, ("b", revise_job("b1", {})), ("a", cancel_job("a")), ("b", cancel_job("b"))]
    first, second = next_batches(pending, 2)
    revised = [operation.arguments[0] for operation in first if operation.kind is revise_job]
    assert revised == ["a0", "b1"]
    assert len(revised) == MAX_BATCH_SLOW_OPERATIONS
    # Other operations overtake them.
    assert [operation for operation in first if operation.kind is cancel_job] == [
        cancel_job("b"),
        cancel_job("a"),
    ]
    assert [operation.arguments[0] for operation in second] == ["a1", "a2"]


def test_a_third_tenants_slow_operation_waits_for_one_of_each_of_the_others() -> None:
    pending: list[tuple[str | None, Any]] = [
        (tenant, revise_job(f"{tenant}{number}", {})) for number in range(9) for tenant in "ab"
    ]
    pending.append(("c", revise_job("c0", {})))
    first, second = next_batches(pending, 2)
    assert {operation.arguments[0] for operation in (*first, *second)} >= {"a0", "b0", "c0"}


def test_requeued_operations_come_first() -> None:
    async def names() -> list[Any]:
        queue = OperationQueue()
        for name in ("a", "b", "c"):
            queue.put(cancel_job(name))
        taken = queue.take()
        queue.put(cancel_job("d"))
        queue.put_back(taken[1:])
        return [entry.operation for entry in queue.take()]

    assert asyncio.run(names()) == [cancel_job("b"), cancel_job("c"), cancel_job("d")]


def test_a_cancelled_operation_leaves_the_queue_and_a_full_queue_refuses() -> None:
    async def check() -> None:
        queue = OperationQueue()
        cancelled = queue.put(cancel_job("a"))
        for number in range(1, MAX_PENDING_OPERATIONS):
            queue.put(cancel_job(f"b{number}"))
        with pytest.raises(ProblemError) as refused:
            queue.put(cancel_job("c"))
        assert refused.value.code == "overloaded"
        cancelled.cancel()
        assert queue.take()[0].operation == cancel_job("b1")

    asyncio.run(check())


def test_a_batch_returns_each_result_to_its_caller_or_one_error_to_all() -> None:
    async def check() -> None:
        queue, handled = OperationQueue(), list[Any]()
        first, second, merged, gone = (queue.put(cancel_job(name)) for name in "abcd")
        gone.cancel()
        pending = queue.take()
        batch = [
            BatchEntry(decide_backlog(4)),
            BatchEntry(decide_backlog(8), handled.append, pending[2:]),
            *(entry.to_entry() for entry in pending[:2]),
        ]
        assert [write.operation for write in batch] == [
            decide_backlog(4),
            decide_backlog(8),
            cancel_job("a"),
            cancel_job("b"),
        ]
        refused = ProblemError("unknown-job", "no such job")
        resolve_batch(batch, ["ignored", "handled", "done", refused])
        assert handled == ["handled"]
        assert first.done()
        assert await first == "done"
        assert second.exception() is refused
        # A caller whose operation another one performs has no result yet, but gets the error.
        assert not merged.done()
        failure = ProblemError("storage", "the disk is full")
        fail_batch(batch, failure)
        assert merged.exception() is failure
        assert await first == "done"

    asyncio.run(check())

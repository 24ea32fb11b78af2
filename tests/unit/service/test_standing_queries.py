"""Answers about future slots are current after commits, and take a limited share of the time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shadowprice.service import standing_queries
from shadowprice.service.standing_queries import StandingQuery


def durable(sequence: int) -> Any:
    return SimpleNamespace(engine=SimpleNamespace(sequence=sequence))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the time of `standing_queries`."""
    now = [1000.0]
    monkeypatch.setattr(standing_queries, "monotonic", lambda: now[0])
    return now


def test_result_serves_readers_of_fewer_slots(clock: list[float]) -> None:
    computed: list[int] = []
    query = StandingQuery[int](lambda state, slots: computed.append(slots) or slots)  # type: ignore[func-returns-value]
    for slots in (24, 100, 3, 99, 1):
        query.note_read(slots)
        if not query.is_current(slots, 1):
            query.compute(durable(1))
    assert computed == [24, 100]
    # The maximum number of slots counts for as long as a client reads them.
    clock[0] += standing_queries.RENEWED_SECONDS + 1
    query.note_read(3)
    query.compute(durable(2))
    assert computed == [24, 100, 3]
    assert not query.is_current(4, 2)
    assert not query.is_current(3, 3)


def test_only_read_results_are_renewed(clock: list[float]) -> None:
    query = StandingQuery[int](lambda state, slots: slots)
    assert not query.is_renewed()
    query.note_read(24)
    query.compute(durable(1))
    clock[0] += standing_queries.RENEWED_SECONDS
    assert query.is_renewed()
    clock[0] += 1
    assert not query.is_renewed()


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.01, 0.08, 0.11), (0.2, 0.0, 0.0)])
def test_renewals_take_a_limited_share_of_the_time(
    clock: list[float], seconds: float, least: float, most: float
) -> None:
    def compute(_: Any, slots: int) -> int:
        clock[0] += seconds
        return slots

    query = StandingQuery[int](compute)
    query.note_read(1000)
    query.compute(durable(1))
    began, spent = clock[0], 0.0
    while clock[0] < began + 20:
        clock[0] += 0.01  # a batch
        query.note_read(1000)
        if query.is_renewed():
            before = clock[0]
            query.compute(durable(2))
            spent += clock[0] - before
    assert least <= spent / (clock[0] - began) <= most


def test_computation_without_readers_is_cancelled() -> None:
    asyncio.run(_cancel_readers())


async def _cancel_readers() -> None:
    query = StandingQuery[int](lambda state, slots: slots)
    task = query.begin(asyncio.get_running_loop().create_future())
    readers = [asyncio.create_task(query.wait(task, None)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    readers[1].cancel()
    await asyncio.sleep(0)
    assert not task.cancelled()
    readers[2].cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert task.cancelled()
    assert query.task is None


def test_readers_get_the_error_of_a_computation() -> None:
    asyncio.run(_fail())


async def _fail() -> None:
    query = StandingQuery[int](lambda state, slots: slots)
    task = query.begin(asyncio.get_running_loop().create_future())
    task.set_exception(RuntimeError("no prices"))
    with pytest.raises(RuntimeError, match="no prices"):
        await query.wait(task, None)
    assert query.task is None

"""Answers about coming slots are current after every commit, without waiting for decisions."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from shadowprice.service import standing_queries
from shadowprice.service.standing_queries import MAX_ANSWERS, StandingQuery


def durable(sequence: int) -> Any:
    return SimpleNamespace(engine=SimpleNamespace(sequence=sequence))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the time of `standing_queries`."""
    now = [0.0]
    monkeypatch.setattr(standing_queries, "monotonic", lambda: now[0])
    return now


def test_an_answer_that_is_read_is_renewed_with_every_commit(clock: list[float]) -> None:
    query = StandingQuery(lambda truth, slots: (truth.engine.sequence, slots))
    assert query.kept(24) is None
    assert query.answer(durable(1), 24) == (1, 24)
    for sequence in range(1, 100):
        clock[0] += 1.0
        kept = query.kept(24)
        assert kept is not None
        assert (kept.sequence, kept.result) == (sequence, (sequence, 24))
        query.renew(durable(sequence + 1))


def test_an_answer_that_is_not_read_any_more_is_dropped(clock: list[float]) -> None:
    computed: list[int] = []
    query = StandingQuery(lambda truth, slots: computed.append(slots) or slots)
    query.answer(durable(1), 24)
    clock[0] = standing_queries.RENEWED_SECONDS + 1
    query.renew(durable(2))
    query.renew(durable(3))
    assert computed == [24]
    assert query.kept(24) is None


def test_renewals_take_a_limited_share_of_the_time(clock: list[float]) -> None:
    def compute(_: Any, slots: int) -> int:
        clock[0] += 0.2
        return slots

    query = StandingQuery(compute)
    for slots in range(1000, 1000 + 2 * MAX_ANSWERS):
        query.answer(durable(1), slots)
    began, spent, sequence = clock[0], 0.0, 1
    while clock[0] < began + 60:
        clock[0] += 0.01  # a batch
        sequence += 1
        before = clock[0]
        for slots in range(1000, 1000 + 2 * MAX_ANSWERS):
            query.kept(slots)
        query.renew(durable(sequence))
        spent += clock[0] - before
    assert 0 < spent / (clock[0] - began) < 1.5 * standing_queries.MAX_RENEWAL_SHARE


def test_a_renewal_that_fails_leaves_the_error_to_the_next_reader() -> None:
    broken = threading.Event()

    def compute(_: Any, slots: int) -> int:
        if broken.is_set():
            raise RuntimeError("no prices")
        return slots

    query = StandingQuery(compute)
    query.answer(durable(1), 24)
    broken.set()
    query.renew(durable(2))
    assert query.kept(24) is None
    with pytest.raises(RuntimeError, match="no prices"):
        query.answer(durable(2), 24)

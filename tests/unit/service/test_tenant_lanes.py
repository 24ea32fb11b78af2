"""Tenants take turns in the backlog."""

from __future__ import annotations

from shadowprice.service.state.durable_state import Backlog


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

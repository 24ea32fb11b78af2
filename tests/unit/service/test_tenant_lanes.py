"""Tenants take turns in the backlog and other queues."""

from __future__ import annotations

from shadowprice.service.state.tenant_lanes import TenantLanes


def test_tenants_take_turns() -> None:
    lanes = TenantLanes[str]()
    for item in ("a1", "a2", "b1", "a3", "c1", "b2"):
        lanes.push(item[0], item)
    assert list(lanes) == ["a1", "a2", "a3", "b1", "b2", "c1"]
    assert [lanes.pop() for _ in range(4)] == ["a1", "b1", "c1", "a2"]
    assert list(lanes) == ["b2", "a3"]
    assert len(lanes) == 2
    lanes.push(None, "d1")
    lanes.push("b", "b3")
    assert lanes.count("b") == 2
    lanes.remove("b", "b3")
    assert [lanes.pop() for _ in range(3)] == ["b2", "a3", "d1"]
    assert not lanes

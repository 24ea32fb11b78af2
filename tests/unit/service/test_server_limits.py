"""Capacity that the executor lacks is withheld from plans, and returned when it exists again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.events import ServerState
from shadowprice.service.state.operations import update_servers
from shadowprice.service.state.server_limits import is_limiting, limit_servers, limited_capacity
from tests.support.engine_bench import EngineBench


@pytest.mark.parametrize(
    ("configured", "available", "limited"),
    [
        ({"gpu": 4000, "cpu": 8000}, {"gpu": 3000}, {"gpu": 3000, "cpu": 8000}),
        ({"gpu": 4000, "cpu": 8000}, {"gpu": 9000, "cpu": 7900}, {"gpu": 4000, "cpu": 7900}),
        ({"gpu/a": 2000, "gpu/b": 2000}, {"gpu": 3000}, {"gpu/a": 2000, "gpu/b": 1000}),
        ({"gpu/a": 2000, "cpu": 1000}, {"gpu": 0}, {"gpu/a": 0, "cpu": 1000}),
        ({"gpu/a": 2000}, {"gpu": 4000, "gpu/product": 4000}, {"gpu/a": 2000}),
        (
            {"gpu/a": 2000, "gpu/b": 2000, "gpu": 4000},
            {"gpu": 3000},
            {"gpu/a": 2000, "gpu/b": 1000, "gpu": 3000},
        ),
        ({"gpu/a": 2000, "gpu": 2000}, {"gpu": 0}, {"gpu/a": 0, "gpu": 0}),
        ({"gpu/a": 0, "gpu": 2000}, {"gpu": 1000}, {"gpu/a": 0, "gpu": 1000}),
        ({"bandwidth": UNLIMITED}, {"bandwidth": 5}, {"bandwidth": UNLIMITED}),
    ],
)
def test_capacity_is_both_configured_and_available(
    configured: Mapping[str, int], available: Mapping[str, int], limited: Mapping[str, int]
) -> None:
    assert limited_capacity(configured, available) == limited


def test_withheld_capacity_survives_a_restart_and_returns(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "fifo")
    cluster = bench.durable.state.engine.cluster
    name = cluster.names[0]
    column = cluster.column["gpu"]
    full = int(cluster.capacity[0, column])

    def amounts() -> tuple[int, int]:
        durable = bench.durable
        withheld = durable.state.withheld.get(name, {}).get("gpu", 0)
        return int(durable.state.engine.cluster.capacity[0, column]), withheld

    def limit(gpus: int) -> bool:
        available = {name: {"gpu": gpus}, "unknown": {"gpu": 0}}
        cluster, withheld = bench.durable.state.engine.cluster, bench.durable.state.withheld
        changes = is_limiting(cluster, withheld, available)
        sequence = bench.durable.state.engine.sequence
        bench.commit(limit_servers(available))
        assert changes == (bench.durable.state.engine.sequence > sequence)
        return changes

    assert not limit(full)
    assert limit(full - 1000)
    assert amounts() == (full - 1000, 1000)
    bench.recover()
    assert amounts() == (full - 1000, 1000)
    assert not limit(full - 1000)
    assert limit(full)
    assert amounts() == (full, 0)
    assert limit(0)
    state = bench.durable.state.engine.cluster
    row = dict(zip(state.resources, state.capacity[0].tolist(), strict=True))
    server = {name: ServerState(state.roles[0], row)}
    bench.commit(update_servers(server, "drained", sets_capacity=False))
    assert amounts() == (0, full)
    bench.commit(update_servers(server, "changed"))
    assert amounts() == (0, 0)
    assert not limit(full)

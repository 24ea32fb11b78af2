"""Servers of one entry are built once, and equal servers that were built one by one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from shadowprice.core.amounts import UNLIMITED, Dimension
from shadowprice.core.cluster import BANDWIDTH, Cluster, Role, build_cluster
from tests.support.examples import sample

DIMENSIONS = {"gpu": Dimension.COUNT, "cpu": Dimension.COUNT, BANDWIDTH: Dimension.RATE}


def built(servers: list[tuple[str, Role, dict[str, int]]]) -> Cluster:
    return build_cluster(
        slot_seconds=Fraction(60), horizon=9, servers=servers, dimensions=DIMENSIONS
    )


@pytest.mark.parametrize("seed", sample(range(20)))
def test_the_layout_and_the_kinds_are_those_of_servers_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    entries = [
        (list(Role)[int(rng.integers(3))], {
            name: int(rng.integers(1, 3)) for name in DIMENSIONS if rng.random() < 0.7
        })
        for _ in range(int(rng.integers(1, 6)))
    ]  # fmt: skip
    entries[0][1]["gpu"] = 1
    chosen = [entry for entry in entries for _ in range(int(rng.integers(1, 4)))]
    chosen += [entries[int(rng.integers(len(entries)))] for _ in range(3)]
    shared = [(f"s{index}", role, amounts) for index, (role, amounts) in enumerate(chosen)]
    cluster = built(shared)
    apart = built([(name, role, dict(amounts)) for name, role, amounts in shared])
    assert cluster.resources == apart.resources
    assert cluster.resources == tuple(dict.fromkeys(name for _, _, a in shared for name in a))
    seen: dict[object, int] = {}
    for row, (_, role, amounts) in enumerate(shared):
        expected = [
            amounts.get(name, UNLIMITED if name == BANDWIDTH else 0) for name in cluster.resources
        ]
        assert cluster.capacity[row].tolist() == expected
        kind = seen.setdefault((role, tuple(expected)), len(seen))
        assert cluster.kinds[row] == apart.kinds[row] == kind

"""One Ray cluster for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rays import RayCluster


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    cluster = RayCluster()
    yield cluster
    cluster.shutdown()

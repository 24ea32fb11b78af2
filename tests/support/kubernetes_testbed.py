"""Fixtures of real Kubernetes clusters, one for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools.testbed import Testbed, missing

NODES = {"one": {"zone": "a"}, "two": {"zone": "b"}}
CAPACITY = {"one": {"nvidia.com/gpu": 2}, "two": {"cpu": 1, "nvidia.com/gpu": 1}}
USERS = {"nobody": (), "shadowprice": (), "executor": (), "reader": ()}


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    """A cluster with two nodes that run pods."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Testbed(NODES, capacity=CAPACITY, users=USERS) as bed:
        yield bed


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Testbed]:
    """A cluster without nodes: pods stay pending."""
    reason = missing(nodes=False)
    if reason:
        pytest.skip(reason)
    with Testbed(users=USERS) as bed:
        yield bed

"""Policies whose prices are learnt follow servers of other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.events import CapacityChanged, JobsArrived, ServerState, SlotBegan
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from tests.support.workloads import make_cluster, make_job

CHANGES: Mapping[str, Mapping[str, tuple[int, int] | None]] = {
    "a larger one": {"new": (8, 16)},
    "a smaller one, and the first is gone": {"new": (3, 8), "any-0": None},
    "one cut, and none as large": {"any-0": (3, 16), "any-1": (2, 4)},
    "no GPU left": {"any-0": (0, 16), "any-1": (0, 16)},
}


def state(cluster: Cluster, size: tuple[int, int]) -> ServerState:
    full = dict(zip(cluster.resources, cluster.capacity[0].tolist(), strict=True))
    return ServerState(Role.ANY, full | {"gpu": size[0] * 1000, "cpu": size[1] * 1000})


def asking(cluster: Cluster, at: int) -> Job:
    """One of many jobs of several shapes, more than there is room for."""
    rng = np.random.default_rng(at)
    amounts = {"gpu": 1000 * int(rng.integers(1, 3)), "cpu": 1000 * int(rng.integers(1, 5))}
    worth = Constant(float(rng.uniform(1, 50)))
    return make_job(cluster, f"job-{at}", worker_amounts=amounts, ps=None, epochs=6, utility=worth)


@pytest.mark.parametrize("lower", ["theory", "clearing", "guaranteed"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["oasis", "pdors"])
def test_prices_equal_those_learnt_on_the_current_servers(
    name: str, change: str, lower: str
) -> None:
    cluster = make_cluster(0, 0, both=2)
    engine = Engine(cluster, make_policy(name, PolicyContext(cluster), {"lower": lower}))
    for index in range(20):
        engine.handle(JobsArrived(0, (asking(cluster, index),)))
    engine.handle(SlotBegan(0))
    states = {
        server: None if size is None else state(cluster, size)
        for server, size in CHANGES[change].items()
    }
    engine.handle(CapacityChanged(1, states))
    assert (engine.ledger.used <= engine.ledger.capacity).all()
    engine.handle(JobsArrived(1, (asking(cluster, 20),)))
    policy: Any = engine.policy
    parameters = policy.parameters_in_force()
    fresh: Any = make_policy(name, PolicyContext(engine.cluster), {"lower": lower})
    for one in (asking(cluster, index) for index in range(21)):
        if engine.jobs[one.name].status not in (Status.REFUSED, Status.DROPPED):
            fresh.learn(engine.view, one)
    expected = fresh.parameters_in_force()
    pools = (
        [(parameters, expected)]
        if name == "pdors"
        else [(parameters["worker"], expected["worker"])]
    )
    for actual, wanted in pools:
        assert actual["ln_U"] == pytest.approx(wanted["ln_U"], rel=1e-12)
        if lower == "guaranteed" and change == "no GPU left":
            continue  # what a job earned alone stays, though nothing can run now
        if wanted["ln_L"] is None:  # no job that teaches could run
            assert actual["ln_L"] is None
        else:
            assert actual["ln_L"] == pytest.approx(wanted["ln_L"], rel=1e-12)

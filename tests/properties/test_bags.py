"""Bags and training jobs together: no server is overbooked, and no job is lost or forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext, Status
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.support.audited_runs import Auditor, check_end, replay
from tests.support.bag_cases import random_bag_world
from tests.support.examples import example_count

SEEDS = st.integers(0, 2**32 - 1)


def policy(name: str, cluster: Cluster, jobs: list[Job]) -> Policy:
    return make_policy(name, PolicyContext(cluster, jobs), {})


@pytest.mark.parametrize("name", ["oasis", "pdors", "rolling"])
@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(seed=SEEDS)
def test_bags_and_training_jobs(name: str, seed: int) -> None:
    cluster, jobs, incidents = random_bag_world(seed)
    auditor = Auditor(cluster, jobs)
    made = policy(name, cluster, jobs)
    simulation = Simulation(cluster, jobs, made, incidents=incidents, seed=seed % 1000)
    engine = simulation.run([auditor])
    check_end(engine, auditor, jobs)
    assert not engine.open_jobs
    for job in jobs:
        record = engine.jobs[job.name]
        if job.bag is not None and record.status is Status.FINISHED:
            assert record.completion is not None
            assert record.completion <= job.arrival + job.bag.slots - 1
            assert not any(record.tasks_left)
    assert replay(auditor.events, cluster, policy(name, cluster, jobs)) == engine.state_digest()

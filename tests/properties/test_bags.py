"""Bags and training jobs together: nothing overbooked, lost or left behind, whatever happens."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext, Status
from shadowprice.core.utility import Constant, Sigmoid
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Incident, Simulation
from tests.bag_cases import bag, exponential, pareto, places
from tests.properties.test_engine import Auditor, check_end, replayed
from tests.workloads import job

SEEDS = st.integers(0, 2**32 - 1)


def world(seed: int) -> tuple[Cluster, list[Job], list[Incident]]:
    rng = np.random.default_rng(seed)
    on = places(int(rng.integers(1, 5)), int(rng.integers(1, 5)), horizon=12)
    room = int(on.capacity.sum()) // 1000
    jobs: list[Job] = []
    for at in range(int(rng.integers(1, 8))):
        arrival = int(rng.integers(0, 8))
        if rng.random() < 0.3:
            jobs.append(
                job(
                    on,
                    f"train-{at}",
                    arrival=arrival,
                    epochs=1,
                    chunks=min(room, 3),
                    minibatches=3,
                    worker_amounts={"gpu": 1000},
                    ps_amounts=None,
                    utility=Constant(50.0),
                )
            )
            continue
        groups = [pareto(int(rng.integers(1, 5)), rng.uniform(1.2, 3), rng.uniform(0.2, 0.9))]
        if rng.random() < 0.5:
            groups.append(exponential(int(rng.integers(1, 4)), rng.uniform(0.3, 1.5)))
        one = bag(
            on,
            *groups,
            name=f"bag-{at}",
            arrival=arrival,
            deadline=float(rng.uniform(1.5, 9)),
            miss_probability=float(rng.choice([0.5, 0.2, 0.05])),
            utility=Sigmoid(100.0, float(rng.uniform(0, 2)), 4.0),
        )
        assert one.bag is not None
        jobs.append(one)
    incidents: list[Incident] = []
    for _ in range(int(rng.integers(0, 3))):
        server, slot = int(rng.integers(on.servers)), int(rng.integers(10))
        incidents.append(ServerLost(slot, on.names[server]))
        incidents.append(ServerBack(slot + int(rng.integers(1, 6)), on.names[server]))
    incidents += [
        JobCancelled(one.arrival + int(rng.integers(0, 4)), one.name)
        for one in jobs
        if rng.random() < 0.1
    ]
    incidents = [
        event
        for event in incidents
        if not isinstance(event, JobCancelled)
        or event.slot > next(one.arrival for one in jobs if one.name == event.job)
    ]
    return on, jobs, incidents


def policy(on: Cluster, jobs: list[Job]) -> Policy:
    return make_policy("oasis", PolicyContext(on, jobs), {})


@settings(deadline=None, derandomize=True, max_examples=60)
@given(SEEDS)
def test_bags_and_training_jobs(seed: int) -> None:
    on, jobs, incidents = world(seed)
    auditor = Auditor(on, jobs)
    simulation = Simulation(on, jobs, policy(on, jobs), incidents=incidents, seed=seed % 1000)
    engine = simulation.run([auditor])
    check_end(engine, auditor, jobs)
    assert not engine.open_jobs
    for one in jobs:
        record = engine.jobs[one.name]
        if one.bag is not None and record.status is Status.FINISHED:
            assert record.completion is not None
            assert record.completion <= one.arrival + one.bag.slots - 1
            assert not any(record.tasks_left)
    assert replayed(auditor.events, on, policy(on, jobs)) == engine.state_digest()

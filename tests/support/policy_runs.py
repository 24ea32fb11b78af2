"""Runs of a policy on a small random world, with a callback in every slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Incident, Simulation
from tests.support.workloads import make_cluster, random_job

SlotCallback = Callable[[Engine, int], None]


def random_world(
    seed: int, *, both: bool = True, incidents: bool = True
) -> tuple[Cluster, list[Job], list[Incident]]:
    """Return a cluster, jobs and incidents. Lost servers return, so that every job can finish."""
    rng = np.random.default_rng(seed)
    machines = int(rng.integers(0, 3)) if both else 0
    cluster = make_cluster(int(rng.integers(1, 4)), int(rng.integers(1, 3)), machines)
    jobs = [
        random_job(cluster, rng, f"job-{index}", latest=8)
        for index in range(int(rng.integers(1, 14)))
    ]
    happened: list[Incident] = []
    if incidents:
        for _ in range(int(rng.integers(0, 4))):
            server, slot = int(rng.integers(cluster.servers)), int(rng.integers(12))
            happened.append(ServerLost(slot, cluster.names[server]))
            happened.append(ServerBack(slot + int(rng.integers(1, 6)), cluster.names[server]))
        happened += [
            JobCancelled(job.arrival + int(rng.integers(1, 6)), job.name)
            for job in jobs
            if rng.random() < 0.12
        ]
    return cluster, jobs, happened


class SlotObserver(Observer):
    """Calls a function in every slot that runs."""

    def __init__(self, watch: SlotCallback | None) -> None:
        self.watch = watch

    def on_slot(self, engine: Engine, slot: int) -> None:
        assert (engine.ledger.used <= engine.ledger.capacity).all()
        if self.watch is not None:
            self.watch(engine, slot)


def run_policy(
    name: str,
    seed: int,
    settings: Mapping[str, Any],
    watch: SlotCallback | None = None,
    *,
    both: bool = True,
    incidents: bool = True,
    until: int | None = None,
) -> Engine:
    """Run a policy on a random world to the end; check that no job is lost."""
    cluster, jobs, happened = random_world(seed, both=both, incidents=incidents)
    policy = make_policy(name, PolicyContext(cluster, jobs, until, seed), settings)
    engine = Simulation(cluster, jobs, policy, until=until, incidents=happened).run(
        [SlotObserver(watch)]
    )
    assert engine.jobs.keys() == {job.name for job in jobs}
    for record in engine.jobs.values():
        finished = record.status is Status.FINISHED
        assert finished == (record.progress >= record.job.required)
    if not engine.open_jobs:
        assert not engine.ledger.used.any()
    return engine

"""Random clusters with jobs and incidents, and an audit of their runs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import (
    Command,
    Completed,
    DriverEvent,
    JobCancelled,
    Resize,
    ServerBack,
    ServerLost,
    Start,
    Stop,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, Status
from shadowprice.core.schedule import Placement
from shadowprice.engine import Engine
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Incident
from tests.support.validation import recompute_usage
from tests.support.workloads import make_cluster, random_job

SEEDS = st.integers(0, 2**32 - 1)


def random_world(seed: int) -> tuple[Cluster, list[Job], list[Incident], np.random.Generator]:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(
        int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(0, 3))
    )
    jobs = [
        random_job(cluster, rng, f"job-{index}", latest=10)
        for index in range(int(rng.integers(1, 12)))
    ]
    incidents: list[Incident] = []
    for _ in range(int(rng.integers(0, 4))):
        server, slot = int(rng.integers(cluster.servers)), int(rng.integers(12))
        incidents.append(ServerLost(slot, cluster.names[server]))
        incidents.append(ServerBack(slot + int(rng.integers(1, 8)), cluster.names[server]))
    incidents += [
        JobCancelled(job.arrival + int(rng.integers(1, 6)), job.name)
        for job in jobs
        if rng.random() < 0.15
    ]
    return cluster, jobs, incidents, rng


class Auditor(Observer):
    """Observer that derives the load from commands, and compares it in every slot."""

    def __init__(self, cluster: Cluster, jobs: list[Job]) -> None:
        self.on = cluster
        self.jobs = {job.name: job for job in jobs}
        self.standing: dict[str, Placement] = {}
        self.lost: set[str] = set()
        self.completed: list[str] = []
        self.events: list[DriverEvent] = []

    def on_event(self, event: DriverEvent, commands: list[Command]) -> None:  # type: ignore[override]
        self.events.append(event)
        if isinstance(event, ServerLost):
            self.lost.add(event.server)
        if isinstance(event, ServerBack):
            self.lost.discard(event.server)
        for command in commands:
            match command:
                case Start(_, name, placement):
                    assert name not in self.standing
                    self.standing[name] = placement
                case Resize(_, name, placement):
                    # A bag may be given other copies in the same places.
                    assert self.standing[name] != placement or command.copies
                    self.standing[name] = placement
                case Stop(_, name, _):
                    del self.standing[name]
                case Completed(_, name, _):
                    self.completed.append(name)
                case _:
                    pass

    def on_slot(self, engine: Engine, slot: int) -> None:
        assert engine.running == self.standing
        load = np.zeros_like(self.on.capacity)
        for name, placement in self.standing.items():
            job = self.jobs[name]
            assert slot >= job.arrival
            for server, workers, ps in zip(
                placement.servers, placement.workers, placement.ps, strict=True
            ):
                assert self.on.names[server] not in self.lost
                load[server] += workers * job.worker
                if job.ps is not None:
                    load[server] += ps * job.ps
        assert (load <= self.on.capacity).all()
        assert (load == engine.ledger.used[0]).all()
        assert (recompute_usage(engine.ledger) == engine.ledger.used).all()
        assert (engine.ledger.used <= engine.ledger.capacity).all()


def check_end(engine: Engine, auditor: Auditor, jobs: list[Job]) -> None:
    assert engine.jobs.keys() == {job.name for job in jobs}
    finished = {name for name, r in engine.jobs.items() if r.status is Status.FINISHED}
    assert finished == set(auditor.completed)
    assert len(auditor.completed) == len(finished)
    for name, record in engine.jobs.items():
        assert (record.progress >= record.job.required) == (name in finished)
        assert (name in engine.open_jobs) == record.status.open
        if not record.status.open:
            assert engine.ledger.reservations.get(name) is None
    if not engine.open_jobs:
        assert not engine.ledger.used.any()


def replay(events: list[DriverEvent], cluster: Cluster, policy: Policy) -> str:
    engine = Engine(cluster, policy)
    for event in events:
        engine.handle(event)
    return engine.state_digest()

"""A small world with incidents for every policy, and the events of a run in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shadowprice.core.cluster import Cluster, Role, Tenant
from shadowprice.core.events import (
    CapacityChanged,
    DriverEvent,
    JobCancelled,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy, policies
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Incident, Simulation
from tests.support import policy_runs
from tests.support.astraea_cases import random_jobs, shared_cluster
from tests.support.validation import recompute_usage

PLACE_COUNTING_POLICIES: Final = tuple(
    name for name, info in policies().items() if info.counts_places
)
"""Policies whose servers hold a number of workers and PS, as Astraea's."""

SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {}
"""Parameters of policies whose defaults would exercise little."""

TENANTS: Final = {
    "a": {"worker": 3, "ps": 2},
    "b": {"worker": 4, "ps": 1},
    "c": {"worker": 1, "ps": 1},
}


def policy_names() -> list[str]:
    """Return the names of all policies."""
    return list(policies())


def build_world(policy: str, seed: int) -> tuple[Cluster, list[Job], list[Incident]]:
    """Return servers, jobs and incidents that a policy supports."""
    if policy in PLACE_COUNTING_POLICIES:
        on = shared_cluster(4, TENANTS)
        jobs = random_jobs(on, 14, seed)
        incidents: list[Incident] = [
            ServerLost(3, on.names[1]),
            ServerBack(9, on.names[1]),
            JobCancelled(7, jobs[3].name),
        ]
        return on, jobs, incidents
    on, jobs, incidents = policy_runs.random_world(seed)
    if policy == "optimum":
        return on, jobs[:5], []
    return on, jobs, incidents


def build_policy(policy: str, cluster: Cluster, jobs: list[Job], seed: int) -> Policy:
    """Build a policy that has decided nothing."""
    context = PolicyContext(cluster, jobs, None, seed)
    return make_policy(policy, context, dict(SETTINGS.get(policy, {})))


class EventRecorder(Observer):
    """Records the events of a driver, and the commands for each."""

    def __init__(self) -> None:
        self.events: list[DriverEvent] = []
        self.commands: list[Any] = []

    def on_event(self, event: DriverEvent, commands: Any) -> None:
        self.events.append(event)
        self.commands.append(list(commands))


def record_run(policy: str, seed: int) -> tuple[Cluster, list[Job], list[DriverEvent], list[Any]]:
    """Run a policy in its world; return the events, and the commands for each."""
    cluster, jobs, incidents = build_world(policy, seed)
    seen = EventRecorder()
    Simulation(
        cluster, jobs, build_policy(policy, cluster, jobs, seed), incidents=incidents, seed=seed
    ).run([seen])
    return cluster, jobs, seen.events, seen.commands


def cluster_changes(policy: str, cluster: Cluster, rng: np.random.Generator) -> list[DriverEvent]:
    """Return successive changes of servers and of shares."""
    if policy in PLACE_COUNTING_POLICIES:
        amounts = {"worker": 2000, "ps": 1000}
        more = {name: dict(share) for name, share in TENANTS.items()}
        more["a"] = {"worker": 5, "ps": 3}
        grown = tuple(
            Tenant(name, {key: 1000 * n for key, n in share.items()})
            for name, share in more.items()
        )
        shares = tuple(Tenant(tenant.name, dict(tenant.share)) for tenant in cluster.tenants)
        return [
            CapacityChanged(2, {cluster.names[0]: ServerState(Role.ANY, amounts, drained=True)}),
            CapacityChanged(5, {"new": ServerState(Role.ANY, amounts)}, grown),
            CapacityChanged(6, {cluster.names[0]: ServerState(Role.ANY, amounts)}),
            CapacityChanged(20, {"new": None}, shares),
        ]
    row = int(rng.integers(cluster.servers))
    state = dict(zip(cluster.resources, cluster.capacity[row].tolist(), strict=True))
    half = {resource: amount // 2 for resource, amount in state.items()}
    name, role = cluster.names[row], cluster.roles[row]
    return [
        CapacityChanged(2, {name: ServerState(role, half)}),
        CapacityChanged(
            3, {"new-0": ServerState(Role.WORKER, state), "new-1": ServerState(Role.ANY, state)}
        ),
        CapacityChanged(
            5, {name: ServerState(Role.ANY, state), "new-0": ServerState(Role.PS, state)}
        ),
        CapacityChanged(6, {"new-1": ServerState(Role.ANY, state, drained=True)}),
        CapacityChanged(8, {"new-1": ServerState(Role.ANY, state), "new-0": None}),
        CapacityChanged(11, {name: ServerState(role, state)}),
    ]


def run_slot(engine: Engine, slot: int) -> None:
    """Start a slot, unless it runs, and end it with the declared progress of every job."""
    if engine.slot_running is None:
        engine.handle(SlotBegan(slot))
    assert (recompute_usage(engine.ledger) == engine.ledger.used).all()
    assert (engine.ledger.used <= engine.ledger.limits).all()
    gained = {}
    for name, placement in engine.running.items():
        record = engine.jobs[name]
        assert record.job.bag is None
        whole = record.job.gain(placement.total_workers, colocated=placement.colocated)
        gained[name] = min(whole, record.job.required - record.progress)
    engine.handle(SlotEnded(slot, gained, {}))

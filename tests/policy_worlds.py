"""A small eventful world for every policy there is, and what a driver did in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import DriverEvent, JobCancelled, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.policies.registry import make_policy, policies
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Incident, Simulation
from tests import replays
from tests.astraea_cases import random_jobs, shared_cluster

SHARED: Final = ("astraea", "batchsche", "gandiva_fair", "hived")
"""Policies that count places."""

SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {}
"""Parameters of policies, where the defaults would show little."""

TENANTS: Final = {
    "a": {"worker": 3, "ps": 2},
    "b": {"worker": 4, "ps": 1},
    "c": {"worker": 1, "ps": 1},
}


def every_policy() -> list[str]:
    """Return the names of all policies."""
    return list(policies())


def world_of(policy: str, seed: int) -> tuple[Cluster, list[Job], list[Incident]]:
    """Return servers, jobs and incidents that a policy can cope with."""
    if policy in SHARED:
        on = shared_cluster(4, TENANTS)
        jobs = random_jobs(on, 14, seed)
        incidents: list[Incident] = [
            ServerLost(3, on.names[1]),
            ServerBack(9, on.names[1]),
            JobCancelled(7, jobs[3].name),
        ]
        return on, jobs, incidents
    on, jobs, incidents = replays.world(seed)
    if policy == "optimum":
        return on, jobs[:5], []
    return on, jobs, incidents


def fresh(policy: str, on: Cluster, jobs: list[Job], seed: int) -> Policy:
    """Return a policy of a world that has decided nothing."""
    context = PolicyContext(on, jobs, None, seed)
    return make_policy(policy, context, dict(SETTINGS.get(policy, {})))


class Events(Observer):
    """Keeps what a driver sent, and the commands it was given."""

    def __init__(self) -> None:
        self.events: list[DriverEvent] = []
        self.commands: list[Any] = []

    def took(self, event: DriverEvent, commands: Any) -> None:
        self.events.append(event)
        self.commands.append(list(commands))


def driven(policy: str, seed: int) -> tuple[Cluster, list[Job], list[DriverEvent], list[Any]]:
    """Run a policy in its world; return what was sent, and the commands on each event."""
    on, jobs, incidents = world_of(policy, seed)
    seen = Events()
    Simulation(on, jobs, fresh(policy, on, jobs, seed), incidents=incidents, seed=seed).run([seen])
    return on, jobs, seen.events, seen.commands

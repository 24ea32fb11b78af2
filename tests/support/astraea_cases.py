"""Astraea's worked example, and small clusters shared by tenants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Charge, Command, Commit, Decided, DriverEvent, Queue
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.engine import Engine
from shadowprice.policies.astraea.optimum import GangBatch, OptimumResult
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Incident, Simulation
from shadowprice.simulator.execution import ExactExecution, ExecutionModel

EXAMPLE: Mapping[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "astraea_example.json").read_text("utf-8")
)
SETTINGS: Mapping[str, Any] = {
    "lambda": "2",
    "theta": {"worker": "16", "ps": "16"},
    "workers": "rigid",
}
"""Settings of the example, in the form of ``--set``."""


class DecisionRecorder(Observer):
    """Records commitments, charges and waits, and the running jobs and prices of each slot."""

    def __init__(self) -> None:
        self.policy: Any = None
        self.commits: dict[str, Commit] = {}
        self.charges: list[Charge] = []
        self.waits: dict[str, list[str]] = {}
        self.prices: dict[int, np.ndarray] = {}
        self.running: dict[int, dict[str, Any]] = {}

    def on_event(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Decided) and isinstance(command.decision, Commit):
                self.commits[command.decision.job] = command.decision
            elif isinstance(command, Decided) and isinstance(command.decision, Charge):
                self.charges.append(command.decision)
            elif isinstance(command, Decided) and isinstance(command.decision, Queue):
                self.waits.setdefault(command.decision.job, []).append(command.decision.message)

    def on_slot(self, engine: Engine, slot: int) -> None:
        if engine.capabilities.prices:
            self.prices[slot] = self.policy.slot_prices(engine.view)
        self.running[slot] = dict(engine.running)


def shared_cluster(
    servers: int = 4,
    tenants: Mapping[str, Mapping[str, int]] | None = None,
    *,
    worker: int = 2,
    ps: int = 1,
    horizon: int = 16,
) -> Cluster:
    """Return servers that hold a number of workers and PS, with tenants."""
    document = {
        "slot": "1h",
        "horizon": horizon,
        "servers": [{"name": "s", "count": servers, "capacity": {"worker": worker, "ps": ps}}],
        "tenants": [
            {"name": name, "share": dict(share)} for name, share in (tenants or {}).items()
        ],
    }
    return ClusterSpec.model_validate(document).resolve()


def example_cluster(horizon: int = 16) -> Cluster:
    """Return the four servers of the example."""
    servers = len(EXAMPLE["cluster"]["servers"])
    return shared_cluster(servers, EXAMPLE["cluster"]["tenants"], horizon=horizon)


def shared_job(
    cluster: Cluster, name: str, tenant: str | None, arrival: int = 0, **changes: Any
) -> Job:
    """Return a job whose mini-batches take one slot co-located, and two slots spread."""
    record = {
        "name": name,
        "tenant": tenant,
        "arrival": f"{arrival} slots",
        "chunks": 2,
        "minibatch_time": "1h",
        # 2 * 225 GB over 1 Gbit/s: an hour.
        "gradient": "225GB",
        "worker": {"worker": 1, "bandwidth": "1Gbps"},
        "ps": {"ps": 1, "bandwidth": "1Gbps"},
        "internal_bandwidth": "unlimited",
        "utility": {"kind": "linear", "value": 100, "slope": -2},
    }
    return JobSpec.model_validate(record | changes).resolve(cluster)


def example_jobs(cluster: Cluster) -> list[Job]:
    """Return the four jobs of the example."""
    names = ("name", "tenant", "arrival")
    return [
        shared_job(
            cluster,
            row["name"],
            row["tenant"],
            row["arrival"],
            **{key: value for key, value in row.items() if key not in names},
        )
        for row in EXAMPLE["jobs"]
    ]


def random_jobs(cluster: Cluster, count: int, seed: int, latest: int = 6) -> list[Job]:
    """Return small jobs of all kinds for a cluster's tenants, most for the first tenants."""
    rng = np.random.default_rng(seed)
    tenants = [tenant.name for tenant in cluster.tenants]
    jobs = []
    for number in range(count):
        changes: dict[str, Any] = {
            "chunks": int(rng.integers(1, 7)),
            "epochs": int(rng.integers(1, 4)),
            "ps": {"ps": 1, "bandwidth": f"{int(rng.integers(1, 4))}Gbps"},
            "utility": {
                "kind": "linear",
                "value": int(rng.integers(5, 100)),
                "slope": -float(rng.uniform(0, 2)),
            },
        }
        if rng.random() < 0.2:
            changes["ps"] = None
        tenant = tenants[int(len(tenants) * rng.random() ** 2)] if tenants else None
        arrival = int(rng.integers(latest + 1))
        jobs.append(shared_job(cluster, f"j{number:03}", tenant, arrival, **changes))
    return jobs


def simulate(
    cluster: Cluster,
    jobs: Sequence[Job],
    policy: str,
    settings: Mapping[str, Any] | None = None,
    *,
    until: int | None = None,
    incidents: Sequence[Incident] = (),
    observers: Sequence[Observer] = (),
    execution: ExecutionModel | None = None,
    known: bool = True,
) -> Engine:
    """Run jobs under a policy."""
    context = PolicyContext(cluster, known_jobs=jobs if known else None, until=until)
    made = make_policy(policy, context, dict(settings or {}))
    for observer in observers:
        if isinstance(observer, DecisionRecorder):
            observer.policy = made
    execution = execution or ExactExecution()
    simulation = Simulation(cluster, jobs, made, until, execution, incidents)
    return simulation.run(observers)


def find_dominating_schedule(batch: GangBatch, earned: Mapping[int, float]) -> OptimumResult | None:
    """Return a schedule that is better for one tenant and worse for none; None if none exists.

    ``earned`` has the current utility of each tenant. The result is exact: the total utility is
    maximised over all schedules in which no tenant loses. The maximum exceeds the current total if
    and only if such a schedule is better for some tenant (Theorem 5's claim).
    """
    optimum = batch.solve(floors={tenant: value - 1e-7 for tenant, value in earned.items()})
    return optimum if optimum.value > sum(earned.values()) + 1e-5 else None

"""Small worlds in which co-location matters: jobs of two rates, one pool, mixed roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import MILLI, Dimension
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.events import Command, Commit, Decided, Decision, JobsArrived
from shadowprice.core.job import MICRO, Job, StepModel, build_job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.schedule import Schedule
from shadowprice.core.utility import Reciprocal, Utility
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy

GBPS = 10**9
SLOT = Fraction(600)
RESOURCES = ("gpu", "cpu", "memory")
PRICES = {"prices": "given", "L": 0.05, "U": {"gpu": 6.0, "cpu": 3.0, "memory": 4.0}}
"""Prices at which most jobs are admitted and some are refused."""

SPEEDS = ((120, 75), (100, 60), (60, 50), (300, 40))
"""Step times, spread and co-located, with a whole number of mini-batches in a slot."""


def build_pool(
    rows: Sequence[tuple[int, ...]], *, roles: Sequence[Role] | None = None, horizon: int = 4
) -> Cluster:
    """Return servers with the given GPUs, cores and units of memory."""
    servers = [
        (
            f"m-{index}",
            roles[index] if roles else Role.ANY,
            {name: amount * MILLI for name, amount in zip(RESOURCES, row, strict=True)},
        )
        for index, row in enumerate(rows)
    ]
    return build_cluster(
        slot_seconds=SLOT,
        horizon=horizon,
        servers=servers,
        dimensions=dict.fromkeys(RESOURCES, Dimension.COUNT),
    )


def build_two_rate_job(
    cluster: Cluster,
    name: str = "job",
    *,
    arrival: int = 0,
    most: int = 4,
    work: int = 30,
    speed: tuple[int, int] = (120, 75),
    bandwidths: tuple[int, int, int] = (1, 40, 3),
    worker: tuple[int, ...] = (1, 1, 1),
    ps: tuple[int, ...] | None = (0, 1, 1),
    utility: Utility | None = None,
    fewest: int = 1,
) -> Job:
    """Return a job whose step takes `speed` seconds spread and co-located.

    `bandwidths` are a worker's between servers and inside one, and a PS's, in Gbps.
    """
    outside, inside, offered = (bandwidth * GBPS for bandwidth in bandwidths)
    # Two step times determine gradient and computation: communication takes 16 gradient / b.
    apart = Fraction(speed[0] - speed[1])
    gradient = apart / (Fraction(16, outside) - Fraction(16, inside)) if inside > outside else 0
    compute = speed[0] - 16 * Fraction(gradient) / outside
    assert compute > 0
    amounts = {name: at * MILLI for name, at in zip(RESOURCES, worker, strict=True)}
    served = None
    if ps is not None:
        served = cluster.demand({name: at * MILLI for name, at in zip(RESOURCES, ps, strict=True)})
    job = build_job(
        name=name,
        arrival=arrival,
        epochs=1,
        chunks=most,
        minibatches=1,
        speed=StepModel(compute, gradient_bytes=gradient),  # type: ignore[arg-type]  # exact
        worker=cluster.demand(amounts),
        ps=served,
        utility=utility or Reciprocal(30.0),
        slot_seconds=cluster.slot_seconds,
        worker_bandwidth=outside,
        ps_bandwidth=offered if served is not None else 0,
        internal_bandwidth=inside,
        worker_range=(fewest, most),
    )
    # `work` mini-batches in all, in the unit that the job counts.
    required = work * MICRO if job.two_rates else -(-work * speed[0] // int(SLOT))
    return replace(job, required=required)


def random_two_rate_job(
    cluster: Cluster, rng: np.random.Generator, name: str, latest: int = 0
) -> Job:
    """Draw a job: all-reduce or with PS, of one rate or two."""
    most = int(rng.integers(1, 5))
    speed = SPEEDS[int(rng.integers(len(SPEEDS)))]
    outside = int(rng.integers(1, 4))
    inside = outside if rng.random() < 0.2 else outside * 40
    if inside == outside:
        speed = (speed[0], speed[0])
    return build_two_rate_job(
        cluster,
        name,
        arrival=int(rng.integers(0, latest + 1)),
        most=most,
        work=int(rng.integers(1, 60)),
        speed=speed,
        bandwidths=(outside, inside, int(rng.integers(outside, 9))),
        worker=(int(rng.integers(0, 3)), int(rng.integers(1, 4)), int(rng.integers(0, 4))),
        ps=None
        if rng.random() < 0.25
        else (int(rng.integers(0, 2)), int(rng.integers(1, 4)), int(rng.integers(0, 4))),
        utility=Reciprocal(float(rng.uniform(0.5, 30))),
    )


def random_pool(rng: np.random.Generator, *, roles: bool = False, horizon: int = 4) -> Cluster:
    """Draw two or three servers."""
    machines = int(rng.integers(2, 4))
    rows = [
        (int(rng.integers(0, 6)), int(rng.integers(2, 9)), int(rng.integers(2, 9)))
        for _ in range(machines)
    ]
    kinds = None
    if roles:
        kinds = [
            Role.ANY,
            *(list(Role)[int(integer)] for integer in rng.integers(0, 3, machines - 1)),
        ]
    return build_pool(rows, roles=kinds, horizon=horizon)


@dataclass
class PdorsEngine:
    """An engine with the policy `pdors` that gets one job at a time."""

    on: Cluster
    engine: Engine

    @classmethod
    def of(cls, cluster: Cluster, *, seed: int = 0, **settings: Any) -> PdorsEngine:
        """Build the engine; `settings` override the given prices."""
        policy = make_policy("pdors", PolicyContext(cluster, None, None, seed), PRICES | settings)
        return cls(cluster, Engine(cluster, policy))

    def arrive(self, job: Job) -> Decision:
        """Submit a job in the present slot; return the decision."""
        commands = self.engine.handle(JobsArrived(self.engine.ledger.start, (job,)))
        return single_decision(commands)

    def reserve_randomly(self, rng: np.random.Generator) -> None:
        """Reserve a random share of every resource of every server in every slot."""
        for column, name in enumerate(self.on.resources):
            held = np.eye(len(self.on.resources), dtype=np.int64)[column] * MILLI
            capacity = self.on.capacity[:, column] // MILLI
            taken = rng.integers(0, capacity + 1, (self.on.horizon, len(capacity))) // 2
            slots, machines = np.nonzero(taken)
            blocked = taken[slots, machines]
            plan = Schedule.from_arrays(slots, machines, blocked, np.zeros_like(blocked))
            self.engine.ledger.reserve(f"crowd of {name}", plan, held, None)

    def prices(self) -> NDArray[np.float64]:
        """Return (3.12) literally: price of one unit, shape (slots, servers, resources)."""
        lower = PRICES["L"]
        capacity = self.on.capacity.astype(float)
        largest = capacity.max(axis=0)
        upper = np.array([PRICES["U"][name] for name in self.on.resources])  # type: ignore[index]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = self.engine.ledger.used / capacity
            price = lower * (upper / lower) ** share
            return np.where(capacity > 0, price / largest, 0.0)


def single_decision(commands: Sequence[Command]) -> Decision:
    """Return the only decision among commands."""
    (found,) = [command.decision for command in commands if isinstance(command, Decided)]
    return found


def plan_rows(decision: Decision) -> list[list[int]]:
    """Return the rows of a committed schedule."""
    assert isinstance(decision, Commit)
    return decision.schedule.rows()

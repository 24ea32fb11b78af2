"""Small bags of tasks, on a cluster whose servers hold a number of copies."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import Dimension
from shadowprice.core.bag import Bag, BagTaskGroup, DurationDistribution
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.events import (
    JobCancelled,
    ServerBack,
    ServerLost,
)
from shadowprice.core.job import Job, build_bag_job
from shadowprice.core.utility import Constant, Deadline, Sigmoid, Utility
from shadowprice.simulator.driver import Incident
from tests.support.workloads import make_job

SLOT = 60.0


def pareto(count: int, shape: float, minimum: float) -> BagTaskGroup:
    """Return tasks with a Pareto distribution; the minimum duration is in slots."""
    shortest = minimum * SLOT
    mean = shortest * shape / (shape - 1.0)
    return BagTaskGroup(
        count, DurationDistribution("pareto", {"shape": shape, "minimum": shortest}, shortest, mean)
    )


def exponential(count: int, mean: float, minimum: float = 0.0) -> BagTaskGroup:
    """Return tasks with an exponential distribution above a minimum, both in slots."""
    parameters = {"shape": 1.0, "expected": mean * SLOT, "minimum": minimum * SLOT}
    return BagTaskGroup(
        count, DurationDistribution("weibull", parameters, minimum * SLOT, mean * SLOT)
    )


def place_cluster(
    servers: int = 4, each: int = 4, horizon: int = 20, role: Role = Role.WORKER
) -> Cluster:
    """Return servers that hold `each` copies, one on each GPU."""
    return build_cluster(
        slot_seconds=Fraction(60),
        horizon=horizon,
        servers=[(f"gpu-{index}", role, {"gpu": each * 1000}) for index in range(servers)],
        dimensions={"gpu": Dimension.COUNT},
    )


def build_bag(
    cluster: Cluster,
    *groups: BagTaskGroup,
    name: str = "bag",
    arrival: int = 0,
    deadline: float = 6.0,
    miss_probability: float = 0.05,
    utility: Utility | None = None,
) -> Job:
    """Return a bag as a job; a copy takes one GPU."""
    return build_bag_job(
        name=name,
        arrival=arrival,
        bag=Bag(groups or (pareto(4, 2.0, 0.5),), deadline, miss_probability, SLOT),
        worker=cluster.demand({"gpu": 1000}),
        utility=utility or Constant(1000.0),
    )


def random_bag_market(
    seed: int, most_tasks: int = 3
) -> tuple[Bag, NDArray[np.float64], NDArray[np.float64]]:
    """Return a small bag, the cost of copies in each slot, and the utility of each end slot."""
    rng: Any = np.random.default_rng(seed)
    groups = []
    for _ in range(int(rng.integers(1, 3))):
        count = int(rng.integers(1, most_tasks + 1))
        if rng.random() < 0.6:
            groups.append(pareto(count, rng.uniform(1.2, 4), rng.uniform(0.2, 1.5)))
        else:
            minimum = float(rng.uniform(0, 1))
            groups.append(exponential(count, minimum + rng.uniform(0.2, 2), minimum))
    slots = int(rng.integers(2, 5))
    deadline = slots - (float(rng.random()) if rng.random() < 0.3 else 0.0)
    made = Bag(tuple(groups), deadline, float(rng.choice([0.3, 0.1, 0.05, 0.02])), SLOT)
    most = int(rng.integers(made.tasks, 12))
    base = 10.0 ** rng.uniform(-2, 1, slots)
    if rng.random() < 0.4:
        base[:] = base[0]
    dearer = np.sort(1 + rng.random((slots, most)) * rng.choice([0, 0, 1, 5]), axis=1)
    cost = np.concatenate([np.zeros((slots, 1)), np.cumsum(base[:, None] * dearer, axis=1)], axis=1)
    for slot in range(slots):
        if rng.random() < 0.3:
            cost[slot, int(rng.integers(0, most + 1)) + 1 :] = np.inf
    after = np.arange(slots)
    worth = [
        np.full(slots, 100.0),
        100.0 / (1 + after),
        100.0 / (1 + np.exp(2 * (after - slots / 2))),
    ][int(rng.integers(3))]
    return made, cost, worth


def random_bag_world(seed: int) -> tuple[Cluster, list[Job], list[Incident]]:
    rng = np.random.default_rng(seed)
    on = place_cluster(int(rng.integers(1, 5)), int(rng.integers(1, 5)), horizon=12)
    room = int(on.capacity.sum()) // 1000
    jobs: list[Job] = []
    for index in range(int(rng.integers(1, 8))):
        arrival = int(rng.integers(0, 8))
        if rng.random() < 0.3:
            jobs.append(
                make_job(
                    on,
                    f"train-{index}",
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
        one = build_bag(
            on,
            *groups,
            name=f"bag-{index}",
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
        JobCancelled(job.arrival + int(rng.integers(0, 4)), job.name)
        for job in jobs
        if rng.random() < 0.1
    ]
    incidents = [
        event
        for event in incidents
        if not isinstance(event, JobCancelled)
        or event.slot > next(job.arrival for job in jobs if job.name == event.job)
    ]
    return on, jobs, incidents


def add_training_jobs(cluster: Cluster, jobs: Sequence[Job], seed: int) -> list[Job]:
    """Return bags among training jobs of several widths, some of which need whole servers."""
    rng = np.random.default_rng(seed)
    room = int(cluster.capacity[:, 0].min()) // 1000
    made = [job for job in jobs if job.bag is not None]
    made += [
        make_job(
            cluster,
            f"wide-{index}",
            arrival=int(rng.integers(0, 8)),
            epochs=1,
            chunks=int(rng.integers(1, 4)),
            minibatches=int(rng.integers(1, 5)),
            worker_amounts={"gpu": 1000 * int(rng.integers(1, room + 1))},
            ps_amounts=None,
            utility=Deadline(float(rng.uniform(1, 200)), float(rng.integers(1, 9))),
        )
        for index in range(int(rng.integers(1, 7)))
    ]
    return sorted(made, key=lambda one: one.arrival)

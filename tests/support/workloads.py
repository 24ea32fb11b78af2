"""Small clusters and jobs for tests, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, Tenant, build_cluster
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.utility import Constant, Deadline, Reciprocal, Sigmoid, Utility

DIMENSIONS = {
    "gpu": Dimension.COUNT,
    "cpu": Dimension.COUNT,
    "memory": Dimension.BYTES,
    "bandwidth": Dimension.RATE,
    "worker": Dimension.COUNT,
    "ps": Dimension.COUNT,
}
GIB = 2**30
GBPS = 10**9


def make_cluster(
    workers: int = 3,
    ps: int = 2,
    both: int = 0,
    *,
    gpus: int = 4,
    horizon: int = 12,
    tenants: tuple[Tenant, ...] = (),
) -> Cluster:
    """Return a cluster of worker servers, parameter-server servers and servers for both."""
    big = {"gpu": gpus * 1000, "cpu": 16_000, "memory": 64 * GIB, "bandwidth": 25 * GBPS}
    small = {"cpu": 16_000, "memory": 64 * GIB, "bandwidth": 50 * GBPS}
    servers = [(f"gpu-{index}", Role.WORKER, big) for index in range(workers)]
    servers += [(f"net-{index}", Role.PS, small) for index in range(ps)]
    servers += [(f"any-{index}", Role.ANY, big) for index in range(both)]
    return build_cluster(
        slot_seconds=Fraction(600),
        horizon=horizon,
        servers=servers,
        dimensions=DIMENSIONS,
        tenants=tenants,
    )


def mixed(cluster: Cluster, rng: np.random.Generator) -> Cluster:
    """Return a cluster of small, equal servers with random roles.

    At least one server takes workers and PS. `cluster` orders servers by role, with a capacity for
    each role. Here all roles have one capacity and any order.
    """
    drawn = [Role.WORKER, Role.ANY, Role.WORKER, Role.ANY, Role.PS]
    roles = [drawn[int(rng.integers(len(drawn)))] for _ in range(cluster.servers)]
    roles[int(rng.integers(cluster.servers))] = Role.ANY
    each = cluster.capacity.max(axis=0) // 2
    return replace(cluster, roles=tuple(roles), capacity=np.tile(each, (cluster.servers, 1)))


def make_job(cluster: Cluster, name: str = "job", **changes: Any) -> Job:
    """Return a job, of 8 worker-slots unless `changes` differ."""
    worker = {"gpu": 1000, "cpu": 2000, "memory": 8 * GIB, "bandwidth": GBPS}
    ps = {"cpu": 2000, "memory": 8 * GIB, "bandwidth": 4 * GBPS}
    values: dict[str, Any] = {
        "name": name,
        "arrival": 0,
        "epochs": 2,
        "chunks": 4,
        "minibatches": 10,
        "speed": StepModel(Fraction(60)),
        "worker": changes.pop("worker_amounts", worker),
        "ps": changes.pop("ps_amounts", ps),
        "utility": Constant(10.0),
        "slot_seconds": cluster.slot_seconds,
    }
    values |= changes
    for part in ("worker", "ps"):
        if isinstance(values[part], dict):
            values.setdefault(f"{part}_bandwidth", values[part].get("bandwidth", 0))
            values[part] = cluster.demand(values[part])
    return build_job(**values)


def random_utility(rng: np.random.Generator) -> Utility:
    """Return a utility of a random family."""
    value = float(rng.uniform(1, 100))
    return [
        Constant(value),
        Sigmoid(value, float(rng.uniform(0, 5)), float(rng.integers(1, 8))),
        Reciprocal(value),
        Deadline(value, float(rng.integers(1, 8))),
    ][int(rng.integers(4))]


def faster_together(jobs: Sequence[Job], rng: np.random.Generator) -> list[Job]:
    """Return the jobs, most of them faster if co-located."""
    times = [int(rng.choice([1, 2, 3, 10])) for _ in jobs]
    return [
        replace(job, internal_gains=job.gains * often)
        for job, often in zip(jobs, times, strict=True)
    ]


def random_job(cluster: Cluster, rng: np.random.Generator, name: str, latest: int = 5) -> Job:
    """Return a small random job: linear or measured speed, with or without PS."""
    chunks = int(rng.integers(1, 6))
    speed: Any = StepModel(Fraction(int(rng.integers(20, 300))))
    if rng.random() < 0.3:
        counts = [n for n in range(1, chunks + 1) if rng.random() < 0.7] or [chunks]
        speed = {n: Fraction(int(rng.integers(1, 40)), 600) for n in counts}
    fewest = int(rng.integers(1, chunks + 1)) if rng.random() < 0.3 else 1
    if isinstance(speed, dict):
        fewest = 1
    worker = {
        "gpu": int(rng.integers(0, 3)) * 1000,
        "cpu": int(rng.integers(1, 5)) * 1000,
        "memory": int(rng.integers(1, 17)) * GIB,
        "bandwidth": int(rng.integers(1, 6)) * GBPS,
    }
    ps = {
        "cpu": int(rng.integers(1, 5)) * 1000,
        "memory": int(rng.integers(1, 17)) * GIB,
        "bandwidth": int(rng.integers(5, 21)) * GBPS,
    }
    return make_job(
        cluster,
        name,
        arrival=int(rng.integers(0, latest + 1)),
        epochs=int(rng.integers(1, 4)),
        chunks=chunks,
        minibatches=int(rng.integers(1, 12)),
        speed=speed,
        worker_range=(fewest, chunks),
        worker_amounts=worker,
        ps_amounts=ps if rng.random() < 0.6 else None,
        utility=random_utility(rng),
    )


def gpu_pool(places: int) -> Cluster:
    """Return a cluster of one server that has only GPUs."""
    servers = [("gpu", Role.ANY, {"gpu": places * 1000})]
    return build_cluster(
        slot_seconds=Fraction(600), horizon=50, servers=servers, dimensions=DIMENSIONS
    )

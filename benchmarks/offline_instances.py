"""Instances of OASiS's problem (1), of the size of its Fig. 5: 10 jobs, T = 10, 6+6 servers.

Resources and demands are drawn from the ranges of the evaluation section. A job's work is drawn
log-uniformly, so that it takes 1 to 8 slots with the maximum workers. With the printed ranges, most
jobs could not complete by T = 10.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shadowprice.core.amounts import MILLI, Dimension
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.utility import Sigmoid

GIB, GB, MB, GBPS = 2**30, 10**9, 10**6, 10**9
SLOTS = 10

GPU_SERVERS = (
    {"gpu": 16 * MILLI, "cpu": 64 * MILLI, "memory": 732 * GIB, "storage": 1000 * GB},
    {"gpu": 8 * MILLI, "cpu": 32 * MILLI, "memory": 488 * GIB, "storage": 1000 * GB},
    {"gpu": 4 * MILLI, "cpu": 64 * MILLI, "memory": 488 * GIB, "storage": 1000 * GB},
    {"gpu": 2 * MILLI, "cpu": 32 * MILLI, "memory": 244 * GIB, "storage": 1000 * GB},
)
PLAIN_SERVERS = (
    {"cpu": 36 * MILLI, "memory": 60 * GIB, "storage": 1000 * GB},
    {"cpu": 16 * MILLI, "memory": 30 * GIB, "storage": 1000 * GB},
    {"cpu": 8 * MILLI, "memory": 15 * GIB, "storage": 1000 * GB},
)
DIMENSIONS = {
    "gpu": Dimension.COUNT,
    "cpu": Dimension.COUNT,
    "memory": Dimension.BYTES,
    "storage": Dimension.BYTES,
    "bandwidth": Dimension.RATE,
}


def instance(
    seed: int, *, jobs: int = 10, servers: int = 6, equal: bool = False
) -> tuple[Cluster, list[Job]]:
    """Return a cluster with a number of servers of each role, and jobs that compete for it."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(servers):
        amounts = GPU_SERVERS[1 if equal else int(rng.integers(len(GPU_SERVERS)))]
        bandwidth = 25 * GBPS if equal else int(rng.integers(20, 51)) * GBPS
        rows.append((f"gpu-{number}", Role.WORKER, {**amounts, "bandwidth": bandwidth}))
    for number in range(servers):
        amounts = PLAIN_SERVERS[0 if equal else int(rng.integers(len(PLAIN_SERVERS)))]
        bandwidth = 50 * GBPS if equal else int(rng.integers(20, 51)) * GBPS
        rows.append((f"net-{number}", Role.PS, {**amounts, "bandwidth": bandwidth}))
    on = build_cluster(
        slot_seconds=Fraction(3600), horizon=SLOTS, servers=rows, dimensions=DIMENSIONS
    )
    return on, [_job(on, rng, f"job-{number}") for number in range(jobs)]


def _job(on: Cluster, rng: np.random.Generator, name: str) -> Job:
    chunks = int(rng.integers(5, 31))
    worker_bandwidth = int(rng.integers(1, 51)) * 100 * 10**6
    ps_bandwidth = int(rng.integers(5, 21)) * GBPS
    slots = float(np.exp(rng.uniform(0, np.log(8))))  # with the maximum workers
    epochs = int(rng.integers(50, 201))
    minibatches = int(rng.integers(10, 101))
    work = epochs * chunks * minibatches
    step = Fraction(int(slots * chunks * 3600 * 10**6 / work), 10**6)
    gradient = int(rng.integers(30, 576)) * MB
    communication = Fraction(16 * gradient, worker_bandwidth)
    speed = StepModel(max(Fraction(1, 10**6), step - communication), gradient_bytes=gradient)
    if step <= communication:  # a step takes longer than drawn, so the job has fewer of them
        minibatches = max(1, int(minibatches * step / communication))
    kind = rng.random()
    decay = 0.0 if kind < 0.1 else rng.uniform(0.01, 1) if kind < 0.65 else rng.uniform(4, 6)
    return build_job(
        name=name,
        arrival=int(rng.integers(0, SLOTS - 2)),
        epochs=epochs,
        chunks=chunks,
        minibatches=minibatches,
        speed=speed,
        worker=on.demand(
            {
                "gpu": int(rng.integers(0, 5)) * MILLI,
                "cpu": int(rng.integers(1, 11)) * MILLI,
                "memory": int(rng.integers(2, 33)) * GIB,
                "storage": int(rng.integers(5, 11)) * GB,
                "bandwidth": worker_bandwidth,
            }
        ),
        ps=on.demand(
            {
                "cpu": int(rng.integers(1, 11)) * MILLI,
                "memory": int(rng.integers(2, 33)) * GIB,
                "storage": int(rng.integers(5, 11)) * GB,
                "bandwidth": ps_bandwidth,
            }
        ),
        utility=Sigmoid(float(rng.uniform(1, 100)), float(decay), float(rng.integers(1, 16))),
        slot_seconds=on.slot_seconds,
        worker_bandwidth=worker_bandwidth,
        ps_bandwidth=ps_bandwidth,
    )

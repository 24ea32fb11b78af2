"""The workload of PD-ORS's evaluation: jobs that train faster on one machine.

Yu's thesis (section 4.1) draws everything uniformly. Jobs have 50 to 150 epochs, 5 to 20 chunks, 20
to 40 mini-batches per chunk, gradients of 50 to 100 and mini-batches of 0.01 to 0.05. Bandwidths
are 100 Mbps to 4 Gbps for workers and 4 to 20 Gbps for parameter servers. A worker and a parameter
server each request 0 to 4 GPUs, 2 to 30 GB of memory and 4 to 8 GB of storage. The utility is 1 /
(1 + duration), and the internal bandwidth is 40 times the external one.

The thesis states no unit of the gradient and of the mini-batch time, no slot length and no machine.
Here the units are megabytes and seconds. At the middle of the ranges, a mini-batch then computes
for 30 ms and communicates for 0.6 s with external traffic. Co-location therefore gains as much as
Fig. 3.12 shows. With 20-minute slots, and mini-batches counted in slots as in OASiS, communication
would only be 5 % of a step. Machines are EC2's P2 and G3, as for OASiS; arrivals follow `arrivals`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import MILLI
from shadowprice.core.cluster import BANDWIDTH
from shadowprice.traces.arrivals import Burstiness, Pattern, arrival_times
from shadowprice.traces.workload import NANO, JobProfile, Workload

EPOCHS: Final = (50, 150)
CHUNKS: Final = (5, 20)
MINIBATCHES: Final = (20, 40)
GRADIENT_MB: Final = (50, 100)
MINIBATCH_MS: Final = (10.0, 50.0)
WORKER_MBPS: Final = (100, 4_000)
PS_MBPS: Final = (4_000, 20_000)
GPUS: Final = (0, 4)
MEMORY_GB: Final = (2, 30)
STORAGE_GB: Final = (4, 8)

# GPUs and GiB of memory of the largest P2 and G3; they have no local disks (EBS).
MACHINES: Final = ((16, 732), (4, 488))
MACHINE_STORAGE: Final = "1TB"


def generate_colocated(
    jobs: int,
    slots: int,
    slot_seconds: Fraction,
    *,
    arrivals: Pattern = "poisson",
    arrival_share: float = 1.0,
    burstiness: Burstiness | None = None,
    internal_ratio: float = 40.0,
    seed: int = 0,
) -> Workload:
    """Draw a workload in order of arrival; its jobs are called ``job-0``, ``job-1``, ...

    Arrivals are in the first ``arrival_share`` of ``slots`` slots (the timespan T). ``arrivals``
    and ``burstiness`` are those of `generator.GeneratorOptions`. ``internal_ratio`` is internal
    over external bandwidth; it changes no draw.
    """
    rng = np.random.default_rng([seed, 31])
    span = float(slots * arrival_share * slot_seconds)
    times = arrival_times(arrivals, jobs, span, rng, burstiness)
    arrival = np.minimum((times / float(slot_seconds)).astype(np.int64), slots - 1)

    def whole(low: int, high: int) -> NDArray[np.int64]:
        return rng.integers(low, high, jobs, endpoint=True)

    epochs, chunks, minibatches = whole(*EPOCHS), whole(*CHUNKS), whole(*MINIBATCHES)
    milliseconds = rng.uniform(*MINIBATCH_MS, jobs)
    gradients, outside, offered = whole(*GRADIENT_MB), whole(*WORKER_MBPS), whole(*PS_MBPS)
    # Row 0 is for workers, row 1 for parameter servers.
    gpus, memory, storage = (
        rng.integers(low, high, (2, jobs), endpoint=True)
        for low, high in (GPUS, MEMORY_GB, STORAGE_GB)
    )

    def demand(side: int, at: int, mbps: int) -> dict[str, int]:
        gpu = int(gpus[side, at]) * MILLI
        return {
            **({"gpu": gpu} if gpu else {}),
            "memory": int(memory[side, at]) * 10**9,
            "storage": int(storage[side, at]) * 10**9,
            BANDWIDTH: mbps * 10**6,
        }

    return Workload(
        names=[f"job-{at}" for at in range(jobs)],
        tenants=[None] * jobs,
        # Rounding down keeps an arrival at the start of a slot in that slot.
        arrival=np.array([int(int(at) * slot_seconds * NANO) for at in arrival], dtype=np.int64),
        epochs=epochs,
        chunks=chunks,
        minibatches=minibatches,
        minibatch_time=np.rint(milliseconds * 1e6).astype(np.int64),
        min_workers=np.ones(jobs, dtype=np.int64),
        max_workers=chunks.copy(),
        profiles=[
            JobProfile(
                worker=demand(0, at, int(outside[at])),
                ps=demand(1, at, int(offered[at])),
                gradient=int(gradients[at]) * 10**6,
                internal=round(int(outside[at]) * internal_ratio) * 10**6,
            )
            for at in range(jobs)
        ],
        kind=["reciprocal"] * jobs,
        value=np.ones(jobs),
        decay=np.zeros(jobs),
        target=np.zeros(jobs),
        labels=[{} for _ in range(jobs)],
        slot_seconds=slot_seconds,
    )


def colocated_cluster(
    *,
    machines: int = 30,
    slot_seconds: Fraction = Fraction(60),
    horizon: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the cluster of PD-ORS's evaluation in the format of a cluster file.

    ``machines`` is H of the thesis: each machine is a random P2 or G3 instance of role `any`.
    ``horizon`` is in slots. Bandwidth is not a resource, because the thesis's machines have only
    GPUs, memory and storage.
    """
    rng = np.random.default_rng([seed, 32])
    servers = []
    for index in range(machines):
        gpu, memory = MACHINES[int(rng.integers(len(MACHINES)))]
        capacity = {"gpu": gpu, "memory": f"{memory}GiB", "storage": MACHINE_STORAGE}
        servers.append({"name": f"machine-{index}", "role": "any", "capacity": capacity})
    seconds = float(slot_seconds)
    return {"slot": f"{seconds:.15g}s", "horizon": horizon, "servers": servers}

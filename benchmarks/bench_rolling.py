"""Times of decisions of `rolling` on large clusters full of promised jobs, by servers and jobs.

All jobs of a row arrive in the first slot. A hundred more arrive in the second slot, when the
cluster is full. Their decisions are timed one by one, in processor time.

Run: ``python -m benchmarks.bench_rolling [--kinds 1 | --differ] [servers jobs]...``. With
``--differ``, no two servers are equal. This is the worst case, because equal servers form groups.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.events import JobsArrived, SlotBegan, SlotEnded
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Deadline, Sigmoid
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy

SLOT = Fraction(600)


def cluster(servers: int, *, kinds: int = 1) -> Cluster:
    """Return servers of eight GPUs; kinds differ in their number of cores."""
    dimensions = {"gpu": Dimension.COUNT, "cpu": Dimension.COUNT}
    rows = [
        (f"gpu-{number}", Role.WORKER, {"gpu": 8_000, "cpu": 64_000 - number % kinds})
        for number in range(servers)
    ]
    return build_cluster(slot_seconds=SLOT, horizon=300, servers=rows, dimensions=dimensions)


def jobs(on: Cluster, count: int, rng: np.random.Generator) -> list[Job]:
    """Return jobs with three demands, which together need about half of a horizon's GPU time."""
    share = 150.0 * 8 * on.servers / count  # worker-slots of each job
    drawn = []
    for number in range(count):
        kind = number % 3
        worker = {"gpu": 1000 * (1 + kind % 2), "cpu": 2000 * (1 + kind)}
        value = float(rng.uniform(50, 100))
        slots = max(1.0, float(rng.uniform(0.5, 1.5)) * share / (1 + kind % 2))
        drawn.append(
            build_job(
                name=f"job-{number}",
                arrival=0,
                epochs=1,
                chunks=max(1, round(slots)),
                minibatches=1,
                speed=StepModel(SLOT),
                worker=on.demand(worker),
                ps=None,
                utility=Deadline(value, 280.0) if number % 2 else Sigmoid(value, 0.05, 200.0),
                slot_seconds=SLOT,
                worker_range=(1, int(rng.integers(4, 65))),
            )
        )
    return drawn


def measure(servers: int, count: int, *, kinds: int = 1) -> None:
    """Print the times of decisions on one cluster."""
    on = cluster(servers, kinds=kinds)
    rng = np.random.default_rng(0)
    early, late = jobs(on, count, rng), jobs(on, count, rng)[:100]
    engine = Engine(on, make_policy("rolling", PolicyContext(on), {"prices": "given"}))
    engine.handle(JobsArrived(0, tuple(early)))
    engine.handle(SlotBegan(0))
    gained = {
        name: engine.jobs[name].job.gain(placement.total_workers)
        for name, placement in engine.running.items()
    }
    engine.handle(SlotEnded(0, gained))
    promised = sum(record.promise is not None for record in engine.open_jobs.values())
    times = []
    for job in late:
        renamed = replace(job, name=f"late-{job.name}", arrival=1)
        began = time.process_time()
        engine.handle(JobsArrived(1, (renamed,)))
        times.append(time.process_time() - began)
    began = time.process_time()
    engine.handle(SlotBegan(1))
    slot = time.process_time() - began
    print(
        f"{servers} servers, {promised} promised: median {np.median(times) * 1e3:.1f} ms, "
        f"first of the slot {times[0] * 1e3:.0f}, maximum {max(times) * 1e3:.0f}, "
        f"begin of a slot {slot * 1e3:.0f}"
    )


def main() -> None:
    """Measure all given clusters."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("sizes", nargs="*", type=int, help="pairs of servers and jobs")
    options.add_argument("--kinds", type=int, default=1, help="kinds of servers")
    options.add_argument("--differ", action="store_true", help="a kind per server")
    given = options.parse_args()
    measure(50, 50)  # compiles
    sizes = given.sizes or [200, 200, 200, 1000, 2000, 200, 2000, 1000]
    for servers, count in zip(sizes[::2], sizes[1::2], strict=True):
        measure(servers, count, kinds=servers if given.differ else given.kinds)


if __name__ == "__main__":
    main()

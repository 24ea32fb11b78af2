"""Time to simulate a generated workload of 52,826 jobs on 60 servers under FIFO.

The workload resembles the open Philly trace (mostly one-worker jobs, heavy tails, bursts) but needs
none of its files: ``python benchmarks/bench_fifo_replay.py``.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from fractions import Fraction

import numpy as np

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Sigmoid
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation


def philly_like(jobs: int, seed: int = 0) -> tuple[Cluster, list[Job]]:
    """Return a cluster of 60 eight-GPU servers, and jobs that resemble the open Philly trace."""
    rng = np.random.default_rng(seed)
    dimensions = {
        "gpu": Dimension.COUNT,
        "cpu": Dimension.COUNT,
        "memory": Dimension.BYTES,
        "bandwidth": Dimension.RATE,
    }
    amounts = {"gpu": 8000, "cpu": 64_000, "memory": 512 * 2**30, "bandwidth": 25 * 10**9}
    on = build_cluster(
        slot_seconds=Fraction(1200),
        horizon=300,
        servers=[(f"gpu-{number}", Role.ANY, amounts) for number in range(60)],
        dimensions=dimensions,
    )
    worker = on.demand({"gpu": 1000, "cpu": 4000, "memory": 32 * 2**30, "bandwidth": 3 * 10**9})
    ps = on.demand({"cpu": 2000, "memory": 16 * 2**30, "bandwidth": 10 * 10**9})
    gaps = rng.pareto(1.3, jobs)
    # Over 7,650 slots of 20 minutes.
    arrivals = np.sort((np.cumsum(gaps) / gaps.sum() * 7650).astype(np.int64))
    seconds = np.exp(rng.normal(7.4, 1.9, jobs)).clip(60, 2_000_000)
    workers = rng.choice([1, 2, 4, 8, 16, 32], jobs, p=[0.966, 0.005, 0.016, 0.011, 0.0015, 0.0005])
    drawn = []
    for index in range(jobs):
        count = int(workers[index])
        drawn.append(
            build_job(
                name=f"job-{index}",
                arrival=int(arrivals[index]),
                epochs=1,
                chunks=2 * count,
                minibatches=max(1, int(seconds[index] * count) // (2 * count)),
                speed=StepModel(Fraction(1)),
                worker=worker,
                ps=ps if index % 2 else None,
                utility=Sigmoid(float(rng.uniform(1, 100)), 0.5, float(rng.uniform(1, 15))),
                slot_seconds=on.slot_seconds,
                worker_bandwidth=3 * 10**9,
                ps_bandwidth=10 * 10**9,
            )
        )
    return on, drawn


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=52_826)
    options.add_argument("--policy", default="fifo")
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    on, jobs = philly_like(given.jobs)
    context = PolicyContext(on)
    Simulation(on, jobs[:200], make_policy(given.policy, context, {})).run()  # compiles
    policy = make_policy(given.policy, context, {})
    profile = cProfile.Profile()
    began, cpu = time.perf_counter(), time.process_time()
    if given.profile:
        profile.enable()
    engine = Simulation(on, jobs, policy).run()
    profile.disable()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    done = sum(record.completion is not None for record in engine.jobs.values())
    slots = engine.ledger.start
    print(
        f"{'policy':<8}{'jobs':>8}{'done':>8}{'slots':>8}{'seconds':>10}{'cpu s':>8}{'us/job':>9}"
    )
    print(
        f"{given.policy:<8}{len(jobs):>8}{done:>8}{slots:>8}{seconds:>10.2f}"
        f"{cpu:>8.2f}{cpu / len(jobs) * 1e6:>9.1f}"
    )
    if given.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()

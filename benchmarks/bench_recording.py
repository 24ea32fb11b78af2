"""Cost of recording a run: simulations without, with the recorder, and with rows per slot.

50,000 jobs arrive over 8,000 slots on 60 servers under FIFO. `alone` is the simulation without a
recorder. `recorder` adds the recorder's flat arrays. `slot by slot` appends a row per running job,
server and slot to a Python list, as an observer without segments would. Further lines are the costs
after the run: tables, run directory, and page.

Run: ``python -m benchmarks.bench_recording``
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.utility import Sigmoid
from shadowprice.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.observer import Observer
from shadowprice.results.recorder import Recorder
from shadowprice.results.report.page import write_report
from shadowprice.results.run_directory import read_run, write_run
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.scenario import Scenario, record_run

JOBS, SLOTS, SERVERS = 50_000, 8_000, 60


class SlotBySlot(Observer):
    """Slow reference: a row for each job, server and slot."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, int, int, int]] = []

    def on_slot(self, engine: Engine, slot: int) -> None:
        """Record every placement."""
        for name, placement in engine.running.items():
            rows = zip(placement.servers, placement.workers, placement.ps, strict=True)
            self.rows += [(slot, name, *row) for row in rows]


def workload() -> tuple[Cluster, list[Job]]:
    """Return a cluster of 480 GPUs and jobs that keep it about four fifths full."""
    rng = np.random.default_rng(0)
    capacity = {"gpu": 8000, "cpu": 64_000, "memory": 2**38}
    cluster = build_cluster(
        slot_seconds=Fraction(1200),
        horizon=100,
        servers=[(f"gpu-{number}", Role.ANY, capacity) for number in range(SERVERS)],
        dimensions={"gpu": Dimension.COUNT, "cpu": Dimension.COUNT, "memory": Dimension.BYTES},
    )
    worker = cluster.demand({"gpu": 1000, "cpu": 4000, "memory": 2**34})
    arrivals = np.sort(rng.integers(0, SLOTS, JOBS))
    chunks = rng.choice([1, 2, 4, 8], JOBS, p=[0.6, 0.2, 0.15, 0.05])
    slots = np.ceil(rng.exponential(32.0, JOBS)).astype(int)
    jobs = [
        build_job(
            name=f"job-{index}",
            arrival=int(arrivals[index]),
            epochs=int(slots[index]),
            chunks=int(chunks[index]),
            minibatches=20,
            speed=StepModel(Fraction(60)),
            worker=worker,
            ps=None,
            utility=Sigmoid(float(rng.uniform(1, 100)), 0.1, 50.0),
            slot_seconds=cluster.slot_seconds,
        )
        for index in range(JOBS)
    ]
    return cluster, jobs


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print the table."""
    cluster, jobs = workload()
    scenario = Scenario(cluster, jobs)

    def replay(observers: Callable[[], list[Observer]]) -> float:
        policy = PolicyChoice("fifo", {"workers": "max"}).build(scenario.context())
        return timed(lambda: Simulation(cluster, jobs, policy).run(observers()))

    replay(list)  # compiles
    policy = PolicyChoice("fifo", {"workers": "max"}).build(scenario.context())
    print(f"{JOBS:,} jobs, {SLOTS:,} slots of arrivals, {SERVERS} servers, FIFO")
    rows: dict[str, list[float]] = {"alone": [], "recorder": [], "slot by slot": []}
    for _ in range(3):
        rows["alone"].append(replay(lambda: [Observer()]))
        rows["recorder"].append(replay(lambda: [Recorder(cluster, jobs, policy)]))
        rows["slot by slot"].append(replay(lambda: [SlotBySlot()]))
    for name, seconds in rows.items():
        print(f"  replay, {name:14} {np.median(seconds):6.2f} s")
    run = record_run(scenario, "fifo", policy)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with_tables = timed(
            lambda: record_run(
                scenario,
                "fifo",
                PolicyChoice("fifo", {"workers": "max"}).build(scenario.context()),
            )
        )
        print(f"  replay and tables      {with_tables:6.2f} s")
        print(f"  writing the directory  {timed(lambda: write_run(run, folder)):6.2f} s")
        page = folder / "report.html"
        print(f"  writing the page       {timed(lambda: write_report(run, page)):6.2f} s")
        print(
            f"  page from the files    {timed(lambda: write_report(read_run(folder), page)):6.2f} s"
        )
        size = sum(entry.stat().st_size for entry in folder.iterdir())
        print(f"  {len(run.allocations):,} allocation rows; {size / 2**20:.1f} MiB in all")
        print(f"  page of {page.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()

"""Time of PD-ORS's decisions through the engine, compared with one linear program per placement.

A decision takes all steps from a job's arrival to its commitment: update by the ledger, states of
all slots, every placement (Algorithm 4), search over slots (Algorithms 2 and 3), chosen placements,
checks of the engine, and reservation. Jobs have up to 20 workers and 5 resources. Internal links
are 40 times as fast as external ones (`40x`), or as fast (`one`); with `one`, many more placements
have to be spread.

`state` is that of the cluster: `empty`; `jobs`, filled by a stream of jobs; `different`, with a
random part of each machine reserved in each slot. Then no two slots and no two machines are equal,
which is worse than in a real cluster. The last column is the time of the same placements by HiGHS,
a new model for each, as in the thesis; it is scaled up from a sample of slots. Times are processor
times, so other programs on the machine don't count.

Run: ``python -m benchmarks.bench_pdors_decision``
"""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import numpy as np
from benchmarks.bench_pdors import highs_sweep

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.events import Commit, Decided, JobsArrived
from shadowprice.core.job import Job, StepModel, build_job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.schedule import Schedule
from shadowprice.core.utility import Sigmoid
from shadowprice.engine import Engine
from shadowprice.policies.pdors.policy import Pdors, PdorsPricedJob
from shadowprice.policies.registry import make_policy

MAX_WORKERS = 20
DECISIONS = 25
GIB, GBPS = 2**30, 10**9
CAPACITY = {
    "gpu": 8_000,
    "cpu": 32_000,
    "memory": 244 * GIB,
    "storage": 10**12,
    "bandwidth": 25 * GBPS,
}
WORKER = {"gpu": 1_000, "cpu": 4_000, "memory": 16 * GIB, "storage": 6 * GIB, "bandwidth": GBPS}
SERVER = {"cpu": 4_000, "memory": 16 * GIB, "storage": 6 * GIB, "bandwidth": 5 * GBPS}
PRICES = {"prices": "given", "L": 1e-3, "U": dict.fromkeys(CAPACITY, 1.0)}


def cluster(machines: int, slots: int) -> Cluster:
    dimensions = {
        "gpu": Dimension.COUNT,
        "cpu": Dimension.COUNT,
        "memory": Dimension.BYTES,
        "storage": Dimension.BYTES,
        "bandwidth": Dimension.RATE,
    }
    return build_cluster(
        slot_seconds=Fraction(600),
        horizon=slots,
        servers=[(f"m-{number}", Role.ANY, CAPACITY) for number in range(machines)],
        dimensions=dimensions,
    )


def draw(on: Cluster, rng: np.random.Generator, name: str, ratio: int) -> Job:
    """Draw a job that takes a twentieth to a third of the horizon at its best rate."""
    # A step takes 1 s of computing, and 4 s of communication between machines.
    step = StepModel(Fraction(1), gradient_bytes=250_000_000)
    internal_seconds = step.step_seconds(ratio * GBPS)
    slots = on.horizon * float(rng.uniform(0.05, 0.33))
    # Mini-batches, with half of the workers in slots of 600 s.
    work = max(1, int(slots * (MAX_WORKERS / 2) * 600 / float(internal_seconds)))
    return build_job(
        name=name,
        arrival=0,
        epochs=max(1, work // MAX_WORKERS),
        chunks=MAX_WORKERS,
        minibatches=1,
        speed=step,
        worker=on.demand(WORKER),
        ps=on.demand(SERVER),
        utility=Sigmoid(slots * float(rng.uniform(2, 40)), 8 / on.horizon, on.horizon / 3),
        slot_seconds=on.slot_seconds,
        worker_bandwidth=GBPS,
        ps_bandwidth=5 * GBPS,
        internal_bandwidth=ratio * GBPS,
    )


def fill(engine: Engine, rng: np.random.Generator, state: str, ratio: int) -> None:
    on = engine.cluster
    if state == "jobs":
        for number in range(3 * on.servers):
            engine.handle(JobsArrived(0, (draw(on, rng, f"before-{number}", ratio),)))
    if state == "different":
        share = rng.random((on.horizon, on.servers, 1))
        share = share * rng.random((on.horizon, on.servers, len(CAPACITY)))
        reserved = (share * on.capacity).astype(np.int64)
        slots, machines = (indices.ravel() for indices in np.indices(reserved.shape[:2]))
        # A job per resource, whose "workers" each take one unit of the resource.
        for column in range(len(CAPACITY)):
            unit = np.eye(len(CAPACITY), dtype=np.int64)[column]
            amounts = reserved[:, :, column].ravel()
            some = amounts > 0
            plan = Schedule.from_arrays(
                slots[some], machines[some], amounts[some], np.zeros(int(some.sum()), np.int64)
            )
            engine.ledger.reserve(f"reserved-{column}", plan, unit, None)


def measure(machines: int, slots: int, state: str, ratio: int, placement: str) -> None:
    on = cluster(machines, slots)
    settings: dict[str, Any] = PRICES | {"placement": placement}
    policy = make_policy("pdors", PolicyContext(on, None, None, 0), settings)
    assert isinstance(policy, Pdors)
    engine = Engine(on, policy)
    rng = np.random.default_rng([machines, slots])
    fill(engine, rng, state, ratio)
    spent: list[float] = []
    admitted = 0
    for number in range(-2, DECISIONS):  # the first two compile
        job = draw(on, rng, f"job-{number}", ratio)
        begin = time.process_time()
        commands = engine.handle(JobsArrived(0, (job,)))
        if number >= 0:
            spent.append(1e3 * (time.process_time() - begin))
            admitted += any(
                isinstance(c, Decided) and isinstance(c.decision, Commit) for c in commands
            )
    line = (
        f"{machines:8} {slots:6} {state:10} {'40x' if ratio > 1 else 'one':>5} {placement:11} "
        f"{np.median(spent):9.2f} {max(spent):9.2f} {admitted:4}/{DECISIONS}"
    )
    if placement == "randomised":
        planner = policy._planner
        planner.follow(engine.view.ledger)
        quote = planner.quote(engine.view, job, job.required)
        assert isinstance(quote, PdorsPricedJob)
        choices, states = quote.choices, quote.choices.slots
        sample = np.unique(np.linspace(0, slots - 1, 3 if machines < 1000 else 1).astype(int))
        seconds = 0.0
        for t in sample:
            k = choices.state_of[t]
            state_of_slot = (states.price_worker[k], states.price_ps[k], states.free[k])
            seconds += highs_sweep(state_of_slot, job.worker_counts, job.ps_counts, warm=False)[0]
        line += f" {1e3 * seconds * slots / len(sample):12,.0f} ms (scaled)"
    print(line, flush=True)


def main() -> None:
    print(
        f"{'machines':>8} {'slots':>6} {'state':10} {'links':>5} {'placement':11} {'median ms':>9} "
        f"{'worst ms':>9} admitted   one LP each, cold HiGHS"
    )
    for machines, slots in ((50, 100), (50, 300), (200, 100), (50, 1000), (1000, 100)):
        for state in ("empty", "jobs", "different"):
            measure(machines, slots, state, 40, "randomised")
        measure(machines, slots, "jobs", 1, "randomised")
        measure(machines, slots, "jobs", 1, "exact")
    for state in ("empty", "jobs", "different"):
        measure(1000, 1000, state, 40, "randomised")


if __name__ == "__main__":
    main()

"""Time of PD-ORS's decisions through the engine, beside one linear program a (slot, workload).

A decision is everything from a job's arrival to its commitment: catching up with the ledger, the
states of all slots, every placement (Algorithm 4), the search over slots (Algorithms 2 and 3), the
placements chosen, the engine's checks and the reservation. Jobs have up to 20 workers, 5 resources
and internal links 40 times as fast (`40x`) or no faster (`one`: then many more placements must be
spread).

`state` says what the cluster looks like: `empty`; `jobs`, filled by a stream of jobs; `different`,
a random part of every machine taken in every slot, so that no two slots and no two machines are
alike, as no real cluster is. The last column places the same choices by HiGHS, one cold model each
(a sample of slots, scaled), as the thesis's algorithm does. Times are of the processor, so that
other programs on the machine do not count.

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

MOST = 20
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
        servers=[(f"m-{at}", Role.ANY, CAPACITY) for at in range(machines)],
        dimensions=dimensions,
    )


def draw(on: Cluster, rng: np.random.Generator, name: str, ratio: int) -> Job:
    """Draw a job that takes a twentieth to a third of the horizon at its best rate."""
    step = StepModel(Fraction(1), gradient_bytes=250_000_000)  # 1 s and 4 s outside
    inside = step.step_seconds(ratio * GBPS)
    slots = on.horizon * float(rng.uniform(0.05, 0.33))
    # At half of its width, in mini-batches.
    work = max(1, int(slots * (MOST / 2) * 600 / float(inside)))
    return build_job(
        name=name,
        arrival=0,
        epochs=max(1, work // MOST),
        chunks=MOST,
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
        for at in range(3 * on.servers):
            engine.handle(JobsArrived(0, (draw(on, rng, f"before-{at}", ratio),)))
    if state == "different":
        share = rng.random((on.horizon, on.servers, 1))
        share = share * rng.random((on.horizon, on.servers, len(CAPACITY)))
        taken = (share * on.capacity).astype(np.int64)
        slots, machines = (at.ravel() for at in np.indices(taken.shape[:2]))
        for column in range(len(CAPACITY)):
            unit = np.eye(len(CAPACITY), dtype=np.int64)[column]
            amounts = taken[:, :, column].ravel()
            some = amounts > 0
            plan = Schedule.from_arrays(
                slots[some], machines[some], amounts[some], np.zeros(int(some.sum()), np.int64)
            )
            engine.ledger.reserve(f"taken-{column}", plan, unit, None)


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
    for at in range(-2, DECISIONS):
        job = draw(on, rng, f"job-{at}", ratio)
        begin = time.process_time()
        commands = engine.handle(JobsArrived(0, (job,)))
        if at >= 0:
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
        choices, slots_of = quote.choices, quote.choices.slots
        sample = np.unique(np.linspace(0, slots - 1, 3 if machines < 1000 else 1).astype(int))
        seconds = 0.0
        for t in sample:
            k = choices.state_of[t]
            place = (slots_of.price_worker[k], slots_of.price_ps[k], slots_of.free[k])
            seconds += highs_sweep(place, job.worker_counts, job.ps_counts, warm=False)[0]
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

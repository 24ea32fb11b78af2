"""ElasticFlow against its slow twin, and its guarantees."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.events import JobCancelled
from shadowprice.core.job import MICRO, Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.utility import Constant, Deadline
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.oracles.elasticflow import Elastic, run
from tests.support.examples import example_count, sample
from tests.support.policy_runs import SlotObserver, run_policy
from tests.support.workloads import gpu_pool, make_job

SEEDS = st.integers(0, 2**32 - 1)


def workload(seed: int, places: int) -> tuple[list[Job], list[Elastic], dict[str, int]]:
    """Return jobs with measured curves, some without a deadline, for both implementations."""
    rng = np.random.default_rng(seed)
    on = gpu_pool(places)
    jobs, requested = [], []
    for number in range(int(rng.integers(1, 12))):
        counts = sorted({int(n) for n in rng.integers(1, places + 1, 4)})
        # Mini-batches a slot, most often concave, sometimes not.
        speeds = np.sort(rng.choice(np.arange(1, 40), len(counts), replace=False)).tolist()
        work = int(rng.integers(1, 90))
        by = None if rng.random() < 0.25 else int(rng.integers(0, 14))
        arrival = int(rng.integers(0, 10))
        one = make_job(
            on,
            f"job-{number}",
            arrival=arrival,
            epochs=1,
            chunks=places,
            minibatches=1,
            speed={n: Fraction(s, 600) for n, s in zip(counts, speeds, strict=True)},
            worker_amounts={"gpu": 1000},
            ps_amounts=None,
            utility=Constant(3.0) if by is None else Deadline(5.0, float(by)),
        )
        # The work is any number of mini-batches, not a multiple of the chunks.
        one = Job(**{**_fields(one), "required": work * MICRO})
        jobs.append(one)
        curve = list(zip(one.worker_counts.tolist(), one.gains.tolist(), strict=True))
        requested.append(
            Elastic(one.name, arrival, curve, one.required, None if by is None else arrival + by)
        )
    cancels = {
        job.name: job.arrival + int(rng.integers(1, 8)) for job in jobs if rng.random() < 0.15
    }
    return jobs, requested, cancels


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


@settings(deadline=None, derandomize=True, max_examples=example_count(150))
@given(seed=SEEDS, places=st.integers(1, 9))
def test_elasticflow_matches_its_reference(seed: int, places: int) -> None:
    jobs, requests, cancels = workload(seed, places)
    ran: dict[int, dict[str, int]] = {}

    def watch(engine: Engine, slot: int) -> None:
        if engine.running:
            ran[slot] = {name: p.total_workers for name, p in engine.running.items()}

    on = gpu_pool(places)
    policy = make_policy("elasticflow", PolicyContext(on), {})
    incidents = [JobCancelled(slot, name) for name, slot in cancels.items()]
    engine = Simulation(on, jobs, policy, incidents=incidents).run([SlotObserver(watch)])
    wanted, refused = run(requests, places, cancels)
    assert ran == wanted
    assert {n for n, r in engine.jobs.items() if r.status is Status.REFUSED} == refused
    # Jobs that are admitted with a deadline keep it in all of these (in general nearly always).
    for job in jobs:
        record = engine.jobs[job.name]
        if isinstance(job.utility, Deadline) and record.status is Status.FINISHED:
            assert record.completion is not None
            assert record.completion - job.arrival <= job.utility.by
        if record.status is Status.REFUSED:
            assert record.refusal is not None
            alone = job.arrival + job.shortest_slots - 1
            late = isinstance(job.utility, Deadline) and alone > job.arrival + job.utility.by
            assert record.refusal.reason is (
                RefusalReason.TOO_LATE if late else RefusalReason.NO_ROOM
            )


def test_every_job_ends_despite_incidents() -> None:
    for seed in sample(range(40)):
        engine = run_policy("elasticflow", seed, {})
        assert not engine.open_jobs
        assert run_policy("elasticflow", seed, {}).state_digest() == engine.state_digest()

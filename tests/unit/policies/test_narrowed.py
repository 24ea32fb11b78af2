"""Jobs whose maximum worker count falls below the count that they run with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shadowprice.core.events import JobRevised, JobsArrived, SlotBegan, SlotEnded
from shadowprice.core.job import Job
from shadowprice.engine import Engine
from tests.support.policy_cases import build_policy, build_world, policy_names

SEEDS = range(4)
SLOTS = 14


def narrowed(job: Job, below: int) -> Job | None:
    """Return a job with a maximum worker count, None for no worker at all."""
    kept = job.worker_counts < below
    if job.bag is not None or not kept.any():
        return None
    counts = {
        key: getattr(job, key)[kept]
        for key in ("worker_counts", "gains", "internal_gains", "ps_counts")
    }
    return replace(job, **counts)


@pytest.mark.parametrize("policy", policy_names())
def test_job_above_its_worker_limit_is_scaled_down(policy: str) -> None:
    """It ends its slot unchanged, and the policy continues; this used to stop the service."""
    narrower = wider = 0
    for seed in SEEDS:
        cluster, jobs, _ = build_world(policy, seed)
        engine = Engine(cluster, build_policy(policy, cluster, jobs, seed))
        for slot in range(SLOTS):
            engine.handle(JobsArrived(slot, tuple(job for job in jobs if job.arrival == slot)))
            engine.handle(SlotBegan(slot))
            for name, placement in engine.running.items():
                job = engine.jobs[name].job
                assert job.worker_count_index(placement.total_workers) is not None
                wider += placement.total_workers > job.worker_counts[0]
            for name in list(engine.running) if slot % 2 else ():
                job = engine.jobs[name].job
                fewer = narrowed(job, engine.running[name].total_workers)
                if fewer is not None:
                    narrower += 1
                    engine.handle(JobRevised(slot + 1, fewer))
            progress = {}
            for name, placement in engine.running.items():
                record = engine.jobs[name]
                gain = record.job.gain(placement.total_workers)
                assert gain > 0
                progress[name] = min(gain, record.remaining)
            engine.handle(SlotEnded(slot, progress))
    assert narrower > 3 or not wider, "nothing was tried"


def test_throughput_at_a_disallowed_count_is_that_of_the_next_lower() -> None:
    _, jobs, _ = build_world("drf", 0)
    job = next(job for job in jobs if job.bag is None and len(job.worker_counts) > 2)
    counts, gains = job.worker_counts.tolist(), job.gains.tolist()
    without = replace(
        job,
        **{
            key: getattr(job, key)[[0, 2]]
            for key in ("worker_counts", "gains", "internal_gains", "ps_counts")
        },
    )
    assert without.gain(counts[1]) == gains[0]
    assert without.gain(counts[2] + 1) == gains[2]
    assert narrowed(job, counts[1]).gain(counts[-1]) == gains[0]  # type: ignore[union-attr]

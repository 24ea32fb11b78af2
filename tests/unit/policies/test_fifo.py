"""FIFO: order of arrival, head-of-line blocking, fixed numbers of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.engine import Engine
from shadowprice.policies.baselines import FifoParameters
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.support.examples import example_count
from tests.support.policy_runs import run_policy
from tests.support.workloads import make_cluster, make_job

SEEDS = st.integers(0, 2**32 - 1)
CHOICES = st.sampled_from(["drawn", "max", "min", 1, 2, 3])


def places(engine: Engine, demand: np.ndarray, hosts: np.ndarray) -> int:
    free = engine.ledger.capacity - engine.ledger.used[0]
    demanded = demand > 0
    up = hosts & np.array([index not in engine.lost for index in range(engine.cluster.servers)])
    return int((free[up][:, demanded] // demand[demanded]).min(axis=1, initial=10**6).sum())


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS, CHOICES)
def test_jobs_start_in_order_and_the_head_waits_only_for_capacity(
    seed: int, workers: str | int
) -> None:
    widths: dict[str, int] = {}
    ran: set[str] = set()
    lost: set[int] = set()

    def watch(engine: Engine, slot: int) -> None:
        waiting = [r for name, r in engine.open_jobs.items() if name not in engine.running]
        begun = [engine.jobs[name] for name in engine.running.keys() - ran]
        lost_now = engine.lost - lost
        ran.clear()
        ran.update(engine.running)
        lost.clear()
        lost.update(engine.lost)
        if waiting:
            head = waiting[0]
            # A loss stops jobs after later jobs began in the same slot.
            assert lost_now or all(record.order < head.order for record in begun)
            shapes = [int(n) for n in head.job.worker_counts]
            if workers == "min" and not engine.lost:
                job, cluster_ = head.job, engine.cluster
                servers = job.ps_needed(shapes[0])
                room = places(engine, job.worker, cluster_.hosts_workers) >= shapes[0]
                if job.ps is not None:
                    room &= places(engine, job.ps, cluster_.hosts_ps) >= servers
                assert not room
        for name, placement in engine.running.items():
            assert widths.setdefault(name, placement.total_workers) == placement.total_workers

    engine = run_policy("fifo", seed, {"workers": workers}, watch, both=False)
    assert not engine.open_jobs
    assert all(r.status is not Status.DROPPED for r in engine.jobs.values())


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS, st.integers(0, 3))
def test_every_job_ends_on_machines_that_carry_both(seed: int, backfill: int) -> None:
    engine = run_policy("fifo", seed, {"backfill": backfill})
    assert not engine.open_jobs
    assert all(
        r.status in {Status.FINISHED, Status.CANCELLED, Status.REFUSED}
        for r in engine.jobs.values()
    )


def started(settings_: dict[str, Any]) -> list[int | None]:
    cluster = make_cluster(1, 1, gpus=4)
    # Three GPUs for two slots, then four for one, then one: the last fits beside the first.
    jobs = [
        make_job(cluster, "wide", chunks=3, minibatches=10, epochs=2, ps_amounts=None),
        make_job(cluster, "whole", chunks=4, minibatches=10, epochs=1, ps_amounts=None),
        make_job(cluster, "slim", chunks=1, minibatches=10, epochs=1, ps_amounts=None),
    ]
    policy = make_policy("fifo", PolicyContext(cluster), {"workers": "max", **settings_})
    engine = Simulation(cluster, jobs, policy).run()
    return [record.started for record in engine.jobs.values()]


def test_head_of_line_blocks_without_backfill() -> None:
    assert started({}) == [0, 2, 3]
    assert started({"backfill": 1}) == [0, 2, 0]


def test_random_worker_counts_are_uniform_within_the_limits() -> None:
    cluster = make_cluster(1, 1)
    shapes = [make_job(cluster, f"j{index}", chunks=60) for index in range(3000)]
    drawn = FifoParameters(workers="drawn")
    counts = [drawn.worker_count(shape, 7) for shape in shapes]
    numbers = np.bincount(counts, minlength=31)
    assert numbers[0] == 0
    assert len(numbers) == 31
    assert 60 < numbers[1:].min() <= numbers.max() < 145
    assert counts != [drawn.worker_count(shape, 8) for shape in shapes]
    narrow = make_job(cluster, "narrow", chunks=3, worker_range=(2, 3))
    assert {drawn.worker_count(narrow, seed) for seed in range(20)} == {2, 3}
    assert FifoParameters(workers=9).worker_count(narrow, 0) == 3
    assert FifoParameters(workers=1).worker_count(narrow, 0) == 2


def test_invalid_parameters_are_refused() -> None:
    cluster = make_cluster()
    for wrong in ({"workers": 0}, {"workers": "many"}, {"backfill": -1}, {"worker": 3}):
        with pytest.raises(InputError):
            make_policy("fifo", PolicyContext(cluster), wrong)
    make_policy("fifo", PolicyContext(cluster), {"workers": "4", "backfill": "2"})

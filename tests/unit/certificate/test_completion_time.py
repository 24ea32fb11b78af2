"""The lower bound of mean completion time: below every schedule, and below every policy's runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.certificate.certify import completion_bound, shortest_remaining_first
from shadowprice.certificate.relaxation import Relaxation
from shadowprice.cli.commands.simulate import _certificate
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.utility import Constant, Linear
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.offline.problem import full_problem
from shadowprice.policies.offline.solver import solve
from shadowprice.results.metrics import mean_completion
from shadowprice.simulator.interrupt import StopRequestObserver
from shadowprice.simulator.scenario import Scenario, record_run
from tests.support.astraea_cases import shared_cluster, shared_job
from tests.support.examples import example_count, sample
from tests.support.workloads import make_cluster, make_job, random_job

SEEDS = st.integers(0, 2**32 - 1)


def plain_jobs(cluster: Cluster, rng: np.random.Generator, count: int) -> list[Job]:
    """Jobs that state no utility and fit on the cluster."""
    jobs = [random_job(cluster, rng, f"job-{index}", latest=3) for index in range(count)]
    plain = [replace(job, utility=Constant(1.0), has_default_utility=True) for job in jobs]
    relaxation = Relaxation(cluster, plain, None)
    return [one for index, one in enumerate(plain) if len(relaxation.choices(index)[0])]


@pytest.mark.extended
@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_no_schedule_completes_sooner_on_average(seed: int) -> None:
    """The exact optimum: a utility that falls by 1 a slot pays for completing soon."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, int(rng.integers(0, 2)), gpus=int(rng.integers(1, 5)), horizon=6)
    jobs = plain_jobs(cluster, rng, 4)
    result = completion_bound(Relaxation(cluster, jobs, None))
    if result is None:
        assert not jobs
        return
    value = 1000.0  # more than all slots until everything is done: completing always pays
    best = solve(
        full_problem(cluster, [replace(job, utility=Linear(value, -1.0)) for job in jobs], None)
    )
    assert best.optimal
    if all(schedule is not None for schedule in best.schedules):
        waits = value - best.utility / len(jobs) + 1
        early = sum(job.before_arrival for job in jobs) / len(jobs)
        assert result.mean_slots <= waits + early + 1e-6


@pytest.mark.parametrize("policy", ["rolling", "fifo", "srtf", "las", "drf", "backfill"])
def test_no_policy_completes_sooner_on_average(policy: str) -> None:
    finished = 0
    for seed in sample(range(30)):
        rng = np.random.default_rng(seed)
        cluster = make_cluster(2, 2, gpus=int(rng.integers(1, 4)), horizon=20)
        jobs = plain_jobs(cluster, rng, int(rng.integers(1, 9)))
        result = completion_bound(Relaxation(cluster, jobs, None))
        if result is None:
            continue
        scenario = Scenario(cluster, tuple(jobs), None)
        run = record_run(scenario, policy, PolicyChoice(policy).build(scenario.context()))
        mean = mean_completion(run.jobs, result.jobs)
        if mean is not None:
            finished += 1
            assert result.mean_slots <= mean + 1e-6, seed
    assert finished


@pytest.mark.parametrize("policy", ["gandiva_fair", "hived"])
def test_policies_that_place_workers_beside_few_parameter_servers(policy: str) -> None:
    """One server has four workers and one parameter server, fewer than the job states."""
    on = shared_cluster(1, None, worker=4, ps=1)
    jobs = (replace(shared_job(on, "a", None, chunks=8), has_default_utility=True),)
    scenario, choice = Scenario(on, jobs, None), PolicyChoice(policy)
    run = record_run(scenario, policy, choice.build(scenario.context()))
    mean = mean_completion(run.jobs, ("a",))
    assert mean is not None
    result = _certificate(scenario, [choice], 60.0, StopRequestObserver(), quiet=True)
    assert result.completion is not None
    assert result.completion.mean_slots <= mean
    assert result.bound >= run.jobs["utility"].sum()
    strict = _certificate(
        scenario, [PolicyChoice("rolling")], 60.0, StopRequestObserver(), quiet=True
    )
    assert strict.bound < result.bound


def test_contention_and_speed_both_count() -> None:
    """One GPU: two jobs of one slot and a job of three. Two GPUs: the long job counts alone."""

    def of(gpus: int) -> float:
        cluster = make_cluster(1, 0, gpus=gpus, horizon=10)
        sizes = (3, 1, 1)
        jobs = [
            replace(
                make_job(
                    cluster, f"job-{index}", chunks=1, epochs=size, minibatches=10, ps_amounts=None,
                    worker_amounts={"gpu": 1000},
                ),
                has_default_utility=True,
            )
            for index, size in enumerate(sizes)
        ]  # fmt: skip
        result = completion_bound(Relaxation(cluster, jobs, None))
        assert result is not None
        return result.mean_slots

    assert of(1) == pytest.approx((1 + 2 + 5) / 3)
    assert of(2) == pytest.approx((1 + 1 + 3) / 3)


def test_jobs_that_state_a_utility_are_left_out() -> None:
    cluster = make_cluster(1, 0, gpus=1, horizon=10)
    single_job = make_job(cluster, chunks=1, epochs=2, minibatches=10, ps_amounts=None)
    assert completion_bound(Relaxation(cluster, [single_job], None)) is None
    both = [single_job, replace(single_job, name="plain", has_default_utility=True)]
    result = completion_bound(Relaxation(cluster, both, None))
    assert result is not None
    assert result.jobs == ("plain",)


@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=7))
def test_the_fluid_machine_runs_the_least_remaining_volume(jobs: list[tuple[int, int]]) -> None:
    """Against a loop over units of time."""
    remaining = dict(enumerate(volume for _, volume in jobs))
    ends = [0.0] * len(jobs)
    clock = 0
    while remaining:
        here = [at for at in remaining if jobs[at][0] <= clock]
        clock += 1
        if here:
            at = min(here, key=lambda one: (remaining[one], one))
            remaining[at] -= 1
            if not remaining[at]:
                ends[at] = clock
                del remaining[at]
    arrivals, volumes = [arrival for arrival, _ in jobs], [float(volume) for _, volume in jobs]
    assert sorted(shortest_remaining_first(arrivals, volumes)) == sorted(ends)

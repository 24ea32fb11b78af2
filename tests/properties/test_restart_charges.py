"""Planners and restarts: counted, promises hold; ignored, plans fall short and are replaced."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext, Status
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation
from tests.support.examples import sample
from tests.support.policy_cases import build_world, policy_names
from tests.support.validation import recompute_usage

CHOOSE = ("oasis", "pdors")
"""Policies of papers that count restarts by default."""


class Books(Observer):
    """Checks reservations in every slot, and counts jobs that were planned more than once."""

    def __init__(self) -> None:
        self.again: set[str] = set()

    def on_slot(self, engine: Engine, slot: int) -> None:
        del slot
        assert (recompute_usage(engine.ledger) == engine.ledger.used).all()
        assert (engine.ledger.used <= engine.ledger.capacity).all()
        self.again |= {name for name, job in engine.open_jobs.items() if job.plans > 1}


def ignoring(policy: str, cluster: Cluster, jobs: list[Job], seed: int) -> Policy:
    """Return a policy as its paper has it."""
    parameters = {"restarts": "ignored"} if policy in CHOOSE else {}
    return make_policy(policy, PolicyContext(cluster, jobs, None, seed), parameters)


def planners() -> list[str]:
    """Return the policies that plan ahead without charging restarts."""
    results = []
    for name in policy_names():
        cluster, jobs, _ = build_world(name, 1)
        does = ignoring(name, cluster, jobs, 1).capabilities
        if does.plans_ahead and not does.charges_restarts:
            results.append(name)
    return results


PLANNERS = planners()


def test_those_are_the_planners_of_the_papers() -> None:
    assert set(PLANNERS) >= {"astraea", "batchsche", "oasis", "optimum", "pdors"}


@pytest.mark.parametrize("policy", PLANNERS)
def test_plans_that_fall_short_by_restarts_are_replaced(policy: str) -> None:
    again, ended = 0, 0
    for seed in sample(range(1, 9)):
        cluster, jobs, incidents = build_world(policy, seed)
        rng = np.random.default_rng(seed)
        lossy: list[Any] = [
            replace(job, restart=Fraction(int(rng.integers(1, 4)), 4)) for job in jobs
        ]
        watch = Books()
        made = ignoring(policy, cluster, lossy, seed)
        engine = Simulation(cluster, lossy, made, until=400, incidents=incidents, seed=seed).run(
            [watch]
        )
        assert engine.jobs.keys() == {entry.name for entry in lossy}
        for record in engine.jobs.values():
            assert (record.status is Status.FINISHED) == (record.progress >= record.job.required)
            # Nothing waits for ever: a job that can't complete is dropped with a reason.
            assert record.status is not Status.ADMITTED
            if record.status in {Status.REFUSED, Status.DROPPED}:
                assert record.refusal is not None
            ended += record.status is Status.FINISHED
        again += len(watch.again)
        if not engine.open_jobs:
            assert not engine.ledger.used.any()
    # Gangs of Astraea's rounds stay where they start, so they never restart.
    assert again or policy in {"astraea", "batchsche"}
    assert ended


class Ends(Observer):
    """Ends a run after a number of slots."""

    def on_slot(self, engine: Engine, slot: int) -> None:
        assert slot < 2000, {name: job.remaining for name, job in engine.open_jobs.items()}


@pytest.mark.extended
@pytest.mark.parametrize("restart_first", [False, True])
@pytest.mark.parametrize("policy", CHOOSE)
def test_where_restarts_are_counted_every_plan_holds(policy: str, *, restart_first: bool) -> None:
    """Nothing is planned twice if no server is lost, and all is done by its promised slot."""
    admitted = refused = again = 0
    for seed in sample(range(1, 25)):
        cluster, jobs, _ = build_world(policy, seed)
        cluster = replace(cluster, restart_first=restart_first)
        rng = np.random.default_rng(seed)
        lossy: list[Any] = [
            replace(job, restart=Fraction(int(rng.integers(1, 5)), 4))
            for job in jobs
            if job.bag is None
        ]
        for parameters in ({}, {"restarts": "ignored"}):
            watch = Books()
            made = make_policy(policy, PolicyContext(cluster, lossy, None, seed), parameters)
            assert made.capabilities.charges_restarts is not bool(parameters)
            engine = Simulation(cluster, lossy, made, seed=seed).run([watch])
            if parameters:
                again += len(watch.again)
                continue
            assert not watch.again
            for record in engine.jobs.values():
                assert record.status in {Status.FINISHED, Status.REFUSED}
                admitted += record.status is Status.FINISHED
                refused += record.status is Status.REFUSED
    assert admitted > refused
    assert again  # plans that ignore them fall short


@pytest.mark.parametrize("policy", ["astraea", "batchsche"])
def test_gangs_are_planned_with_a_first_start_that_costs(policy: str) -> None:
    planned = 0
    for seed in range(1, 13):
        cluster, jobs, _ = build_world(policy, seed)
        cluster = replace(cluster, restart_first=True)
        rng = np.random.default_rng(seed)
        lossy: list[Any] = [
            replace(job, restart=Fraction(int(rng.integers(1, 4)), 4)) for job in jobs
        ]
        watch = Books()
        made = ignoring(policy, cluster, lossy, seed)
        engine = Simulation(cluster, lossy, made, seed=seed).run([watch])
        assert not watch.again
        planned += sum(record.status is Status.FINISHED for record in engine.jobs.values())
    assert planned >= 50


@pytest.mark.extended
@pytest.mark.parametrize("restart_first", [False, True])
@pytest.mark.parametrize("policy", PLANNERS)
def test_jobs_that_lose_a_whole_slot_by_every_move_end_all_the_same(
    policy: str, *, restart_first: bool
) -> None:
    """A plan that is just long enough, and moves in every slot, could be replaced for ever."""
    for seed in sample(range(1, 13)):
        cluster, jobs, incidents = build_world(policy, seed)
        cluster = replace(cluster, restart_first=restart_first)
        lossy: list[Any] = [replace(job, restart=Fraction(1)) for job in jobs]
        made = [ignoring(policy, cluster, lossy, seed)]
        if policy in CHOOSE:
            made.append(make_policy(policy, PolicyContext(cluster, lossy, None, seed), {}))
        for who in made:
            engine = Simulation(cluster, lossy, who, incidents=incidents, seed=seed).run([Ends()])
            assert not engine.open_jobs
            for record in engine.jobs.values():
                assert (record.status is Status.FINISHED) == (
                    record.progress >= record.job.required
                )

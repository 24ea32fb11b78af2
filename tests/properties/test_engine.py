"""No sequence of events overbooks a server, loses a job, or leaves a reservation behind."""

from __future__ import annotations

from hypothesis import given, settings

from shadowprice.core.events import (
    SlotBegan,
    SlotEnded,
)
from shadowprice.engine import Engine
from shadowprice.simulator.driver import Simulation
from tests.support.audited_runs import SEEDS, Auditor, check_end, random_world, replay
from tests.support.examples import example_count
from tests.support.policies import EarliestPlanner, RandomPolicy
from tests.support.straggling_execution import StragglerExecution


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_planner_runs_are_consistent_and_replay(seed: int) -> None:
    cluster, jobs, incidents, _ = random_world(seed)
    auditor = Auditor(cluster, jobs)
    engine = Simulation(cluster, jobs, EarliestPlanner(), incidents=incidents).run([auditor])
    check_end(engine, auditor, jobs)
    assert not engine.open_jobs
    assert replay(auditor.events, cluster, EarliestPlanner()) == engine.state_digest()


@settings(deadline=None, derandomize=True, max_examples=example_count(30))
@given(SEEDS)
def test_planner_runs_with_stragglers_are_consistent(seed: int) -> None:
    cluster, jobs, incidents, _ = random_world(seed)
    auditor = Auditor(cluster, jobs)
    slow = StragglerExecution(0.2, seed)
    simulation = Simulation(cluster, jobs, EarliestPlanner(), incidents=incidents, execution=slow)
    engine = simulation.run([auditor])
    check_end(engine, auditor, jobs)


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_random_policy_runs_are_consistent_and_replay(seed: int) -> None:
    cluster, jobs, incidents, _ = random_world(seed)
    auditor = Auditor(cluster, jobs)
    simulation = Simulation(cluster, jobs, RandomPolicy(seed), until=60, incidents=incidents)
    engine = simulation.run([auditor])
    check_end(engine, auditor, jobs)
    again = Engine(cluster, RandomPolicy(seed), until=60)
    for event in auditor.events:
        again.handle(event)
    assert again.state_digest() == engine.state_digest()


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_nothing_runs_at_the_end_of_the_timespan(seed: int) -> None:
    cluster, jobs, _, _ = random_world(seed)
    auditor = Auditor(cluster, jobs)
    engine = Simulation(cluster, jobs, EarliestPlanner(), until=8).run([auditor])
    began = [event.slot for event in auditor.events if isinstance(event, SlotBegan)]
    ended = [event.slot for event in auditor.events if isinstance(event, SlotEnded)]
    assert began == ended
    assert max(began, default=0) < 8
    assert all(r.completion is None or r.completion < 8 for r in engine.jobs.values())

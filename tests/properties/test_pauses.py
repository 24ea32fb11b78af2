"""A run that continues from a pause equals the same run from its beginning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy
from shadowprice.core.specs import JobSpec
from shadowprice.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.simulator.advice.moments import Rerun
from shadowprice.simulator.driver import Incident, Simulation, SimulationCheckpoints, SimulationRun
from shadowprice.simulator.scenario import Scenario
from tests.support.engine_events import describe_commands
from tests.support.examples import sample
from tests.support.policy_cases import EventRecorder, build_policy, build_world, policy_names


def bag(cluster: Cluster, name: str, arrival: int) -> Job:
    """Return a bag of tasks whose copies run when others arrive."""
    spec = {
        "name": name,
        "arrival": f"{arrival} slots",
        "worker": {cluster.resources[0]: 1},
        "utility": {"kind": "constant", "value": 50.0},
        "deadline": "9 slots",
        "miss_probability": 0.2,
        "tasks": [
            {"count": 6, "duration": {"kind": "pareto", "shape": 2.5, "mean": "2 slots"}},
        ],
    }
    return JobSpec.model_validate(spec).resolve(cluster)


def rushes(policy: str, seed: int) -> tuple[Cluster, list[Job], list[Incident]]:
    """Return a world of two rushes; in between is more than a horizon with few arrivals."""
    cluster, jobs, incidents = build_world(policy, seed)
    gap = 3 * cluster.horizon
    late = [replace(job, name=f"{job.name}-late", arrival=job.arrival + gap) for job in jobs[::2]]
    made = [*jobs, *late]
    if build_policy(policy, cluster, jobs, seed).capabilities.runs_bags:
        made += [bag(cluster, f"bag-{arrival}", arrival) for arrival in (0, 3, gap + 1)]
    return cluster, made, incidents


class Drawn:
    """A world of two rushes, whose runs start with changed jobs."""

    def __init__(self, policy: str, seed: int) -> None:
        self.policy, self.seed = policy, seed
        self.on, self.jobs, self.incidents = rushes(policy, seed)

    def simulation(self, jobs: list[Job]) -> Simulation:
        policy = build_policy(self.policy, self.on, jobs, self.seed)
        return Simulation(self.on, jobs, policy, incidents=self.incidents, seed=self.seed)

    def changed(self, job: Job, at: int) -> list[Job]:
        return [*self.jobs[:at], job, *self.jobs[at + 1 :]]


def unforeseeing() -> list[str]:
    """Return the policies that know a job only from its arrival on."""
    results = []
    for policy in policy_names():
        cluster, jobs, _ = build_world(policy, 1)
        if not build_policy(policy, cluster, jobs, 1).capabilities.foresees:
            results.append(policy)
    assert "rolling" in results
    assert "optimum" not in results
    return results


def from_beginning(simulation: Simulation) -> tuple[Engine, EventRecorder]:
    seen = EventRecorder()
    return simulation.run([seen]), seen


@pytest.mark.extended
@pytest.mark.parametrize("policy", unforeseeing())
@pytest.mark.parametrize("seed", [1, 4])
def test_a_run_from_a_pause_equals_a_whole_run(policy: str, seed: int) -> None:
    drawn = Drawn(policy, seed)
    rng = np.random.default_rng(seed)
    cancelled = {event.job for event in drawn.incidents if isinstance(event, JobCancelled)}
    free = [index for index, job in enumerate(drawn.jobs) if job.name not in cancelled]
    at = int(rng.choice(free[: len(free) // 2]))
    job = drawn.jobs[at]
    others = SimulationCheckpoints(
        drawn.simulation([entry for entry in drawn.jobs if entry is not job])
    )
    last = max(job.arrival for job in drawn.jobs) + 2 * drawn.on.horizon
    # Pauses within rushes, between them, and after all; in any order, some twice.
    slots = [job.arrival, last, *rng.integers(job.arrival, last, 5).tolist(), job.arrival]
    for slot in rng.permutation(slots).tolist():
        simulation = drawn.simulation(drawn.changed(replace(job, arrival=slot), at))
        engine, whole = from_beginning(simulation)
        seen = EventRecorder()
        course = others.before(slot).fork(simulation, [seen])
        course.run()
        assert course.engine.state_digest() == engine.state_digest(), slot
        first = next(k for k, event in enumerate(whole.events) if event.slot >= slot)
        assert seen.events == whole.events[first:], slot
        assert [describe_commands(command) for command in seen.commands] == [
            describe_commands(command) for command in whole.commands[first:]
        ], slot


def test_pauses_that_are_forgotten_are_come_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowprice.simulator.driver._MAX_CHECKPOINTS", 3)
    drawn = Drawn("rolling", 1)
    kept = SimulationCheckpoints(drawn.simulation(drawn.jobs))
    digests: dict[int, str] = {}
    for slot in [*range(12), *range(11, -1, -1)]:
        digest = kept.before(slot).engine.state_digest()
        assert digests.setdefault(slot, digest) == digest
    assert len(set(digests.values())) > 6


@pytest.mark.extended
@pytest.mark.parametrize("seed", sample(range(6)))
def test_a_job_fares_as_if_all_was_run_with_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with cancellations and lost servers: at any arrival, with larger or smaller jobs."""
    drawn = Drawn("rolling", seed)
    at = seed % len(drawn.jobs)
    job = drawn.jobs[at]
    own = JobCancelled(job.arrival + 4, job.name)
    happened = [
        e for e in drawn.incidents if not (isinstance(e, JobCancelled) and e.job == job.name)
    ]
    if seed % 2:
        happened.append(own)
    scenario = Scenario(drawn.on, drawn.jobs, seed=seed, incidents=happened)
    shared, alone = (Rerun(scenario, PolicyChoice("rolling"), at) for _ in range(2))

    def anew(slot: int, policy: Policy) -> SimulationRun:
        del slot
        return SimulationRun(Simulation(drawn.on, (), policy, seed=seed))

    monkeypatch.setattr(alone, "_before", anew)
    fates = set()
    for delay in (0, 2, 0, 7, 3, 4, 5, 3 * drawn.on.horizon):
        for demand in (job.worker, job.worker * 3, job.worker // 2):
            requested = replace(job, arrival=job.arrival + delay, worker=demand)
            fate = shared.quote(requested)
            assert fate == alone.quote(requested), (delay, demand)
            assert seed % 2 == 0 or fate is None or delay < 4
            fates.add(fate)
    assert len(fates) > 1
    # Everything before the job was simulated once.
    assert shared.arrivals < alone.arrivals

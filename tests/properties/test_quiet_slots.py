"""A run that passes quiet slots at once equals one that sends the events of every slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import (
    Command,
    DriverEvent,
    JobCancelled,
    ServerBack,
    ServerLost,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.schedule import Placement
from shadowprice.core.utility import Constant, Deadline, Sigmoid, Utility
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.results.recorder import Recorder
from shadowprice.simulator.driver import Incident, Simulation, SimulationRun
from shadowprice.simulator.execution import ExactExecution
from tests.support.examples import sample
from tests.support.workloads import faster_together, make_cluster, random_job

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "rolling": ("rolling", {}),
    "rolling steady": ("rolling", {"steady": True}),
    "rolling given": ("rolling", {"prices": "given", "price": 0.5}),
    "fifo": ("fifo", {}),
    "oasis": ("oasis", {}),
    "srtf": ("srtf", {}),
    "las": ("las", {}),
    "elasticflow": ("elasticflow", {}),
}
RESTARTS = (Fraction(0), Fraction(1, 4), Fraction(9, 10))

WITHOUT_QUIET_SLOTS = {"oasis"}
"""Policies that plan ahead and hold no decisions."""


class SlowExecution(ExactExecution):
    """Some jobs run slower than they state, so that they overrun and break promises."""

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        gain = super().progress(job, placement, slot, moved=moved)
        return max(1, gain * 7 // 10) if len(job.name) % 2 else gain


class CommandRecorder(Observer):
    """Records commands, when other events than slots came, and how many slots passed at once."""

    def __init__(self, *, takes_quiet_slots: bool) -> None:
        self.takes_quiet_slots = takes_quiet_slots
        self.commands: list[Command] = []
        self.events: list[tuple[int, int | None]] = []
        self.passed = 0

    def before_event(self, engine: Engine, event: DriverEvent) -> None:
        if not isinstance(event, SlotBegan | SlotEnded):
            self.events.append((engine.sequence, engine.slot_running))

    def on_event(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        self.commands += commands

    def on_quiet_slots(self, engine: Engine, slots: range) -> None:
        self.passed += len(slots)


@dataclass
class Result:
    """All results of a run."""

    seen: CommandRecorder
    recorder: Recorder
    engine: Engine
    states: list[tuple[int, str, bytes]] = field(default_factory=list)
    reports: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class World:
    """A workload whose jobs last for many slots."""

    cluster: Cluster
    jobs: list[Job]
    incidents: list[Incident]
    options: dict[str, Any]

    HORIZON: ClassVar = 150

    @classmethod
    def draw(cls, seed: int) -> World:
        rng = np.random.default_rng([seed, 47])
        cluster = make_cluster(2, 1, int(rng.integers(0, 2)), horizon=cls.HORIZON)
        # Short slots make long jobs.
        cluster = replace(cluster, slot_seconds=Fraction(20), restart_first=bool(rng.integers(2)))
        jobs = [
            replace(
                random_job(cluster, rng, "j" * (index + 1), 400),
                utility=_utility(rng),
                before_arrival=float(rng.choice([0.0, 0.5])),
            )
            for index in range(int(rng.integers(3, 12)))
        ]
        if rng.random() < 0.5:
            jobs = faster_together(jobs, rng)
        if rng.random() < 0.7:
            jobs = [replace(job, restart=RESTARTS[int(rng.integers(3))]) for job in jobs]
        incidents: list[Incident] = []
        for slot in rng.integers(0, 500, int(rng.integers(0, 4))).tolist():
            name = cluster.names[int(rng.integers(cluster.servers))]
            incidents += [ServerLost(slot, name), ServerBack(slot + int(rng.integers(1, 60)), name)]
        incidents += [
            JobCancelled(job.arrival + int(rng.integers(1, 90)), job.name)
            for job in jobs
            if rng.random() < 0.15
        ]
        options = {
            "execution": SlowExecution() if rng.random() < 0.4 else ExactExecution(),
            "until": int(rng.integers(150, 600)) if rng.random() < 0.3 else None,
            "at_once": bool(rng.random() < 0.4),
            "relative_values": bool(rng.random() < 0.2),
        }
        return cls(cluster, jobs, incidents, options)

    def simulation(self, policy: str) -> Simulation:
        """Return a simulation of the world under a new policy."""
        name, settings = POLICIES[policy]
        known = None if self.options["relative_values"] else self.jobs
        context = PolicyContext(self.cluster, known, self.options["until"])
        built = make_policy(name, context, settings)
        return Simulation(self.cluster, self.jobs, built, incidents=self.incidents, **self.options)

    def run(self, policy: str, *, takes_quiet_slots: bool) -> Result:
        """Run the world under a policy; record the state in every hundredth slot."""
        simulation = self.simulation(policy)
        recorder = Recorder(self.cluster, self.jobs, simulation.policy)
        seen = CommandRecorder(takes_quiet_slots=takes_quiet_slots)
        reports: list[tuple[int, ...]] = []
        run = SimulationRun(simulation, [recorder, seen], lambda *report: reports.append(report))
        result = Result(seen, recorder, run.engine, reports=reports)
        for slot in range(100, 600, 100):
            run.run(slot)
            engine = run.engine
            state = engine.session.dump_state()
            result.states.append((engine.sequence, engine.state_digest(), state))
        run.run()
        return result


def _utility(rng: np.random.Generator) -> Utility:
    value = float(rng.uniform(1, 100))
    slots = float(rng.integers(20, 400))
    return [Constant(value), Sigmoid(value, 0.1, slots), Deadline(value, slots)][
        int(rng.integers(3))
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_passing_quiet_slots_at_once_changes_nothing(policy: str) -> None:
    passed = simulated = 0
    for seed in sample(range(24)):
        world = World.draw(seed)
        fast = world.run(policy, takes_quiet_slots=True)
        slow = world.run(policy, takes_quiet_slots=False)
        # Schedules have no equality of their own.
        assert list(map(repr, fast.seen.commands)) == list(map(repr, slow.seen.commands)), seed
        assert fast.seen.events == slow.seen.events, seed
        assert fast.states == slow.states, seed
        assert fast.reports == slow.reports, seed
        assert fast.engine.last == slow.engine.last, seed
        assert _recorded(fast.recorder) == _recorded(slow.recorder), seed
        assert slow.seen.passed == 0
        passed += fast.seen.passed
        simulated += len(slow.recorder.slots)
    if policy in WITHOUT_QUIET_SLOTS:
        assert passed == 0
    else:
        assert passed > simulated / 3


@pytest.mark.parametrize("policy", ["rolling", "oasis"])
def test_a_fork_ends_as_the_run_that_it_continues(policy: str) -> None:
    """Also before a slot whose jobs arrived while the slot before ran."""
    for seed in (4, *sample(range(5, 11))):  # in the first world a job arrives like this
        world = World.draw(seed)
        whole = world.simulation(policy).run()
        simulation = world.simulation(policy)
        base = SimulationRun(simulation)
        for slot in sorted({job.arrival for job in world.jobs} - {0}):
            base.run(slot)
            digest = base.engine.state_digest()
            fork = base.fork(simulation)
            fork.run()
            assert fork.engine.state_digest() == whole.state_digest(), (seed, slot)
            assert base.engine.state_digest() == digest


def _recorded(recorder: Recorder) -> list[object]:
    """Return the inputs of results, as values that are equal bit for bit."""
    segments = recorder.segments()
    return [
        recorder.next_slot,
        list(map(repr, recorder.decisions)),
        len(recorder.latencies),
        recorder.completions,
        recorder.earned,
        [column.tolist() for column in (recorder.slots, recorder.running, recorder.waiting)],
        {slot: prices.tobytes() for slot, prices in recorder.prices.items()},
        recorder.heat.means().tobytes(),
        [getattr(segments, name).tolist() for name in ("jobs", "servers", "starts", "ends")],
    ]

"""`rolling` in a live service beside commands without checkpoints, which it can't stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import (
    Acknowledged,
    Command,
    Decided,
    JobCancelled,
    JobEnded,
    JobsArrived,
    JobStarted,
    Promise,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Constant, Deadline
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from tests.support.rolling_cases import gpus, training


def command(cluster: Cluster, name: str, *, slots: int, gpu: int = 1, **changes: Any) -> Job:
    """Return a command without checkpoints, of one worker."""
    job = checkpointing(
        cluster, name, slots=slots, gpu=gpu, **{"utility": Constant(1e-6), **changes}
    )
    return replace(job, resumable=None)


def checkpointing(cluster: Cluster, name: str, *, slots: int, gpu: int, **changes: Any) -> Job:
    """Return a job of one worker that continues from checkpoints."""
    one = training(cluster, name, epochs=slots, chunks=1, **changes)
    return replace(one, worker=cluster.demand({"gpu": gpu * 1000}))


class LiveCluster:
    """An engine whose driver acknowledges commands, and jobs that take as long as stated.

    ``broken`` has the promises that were moved, withdrawn or missed.
    """

    def __init__(self, cluster: Cluster, **settings: object) -> None:
        policy = make_policy("rolling", PolicyContext(cluster), settings)
        self.engine = Engine(cluster, policy, acknowledges=True)
        self.promises: dict[str, int] = {}
        self.broken: list[str] = []

    def submit(self, jobs: Iterable[Job]) -> None:
        """Submit jobs in the slot that can be decided."""
        slot = self.engine.slot
        arriving = tuple(replace(job, arrival=slot) for job in jobs)
        self._record(self.engine.handle(JobsArrived(slot, arriving)))

    def begin(self) -> list[Command]:
        """Begin a slot, and execute its commands."""
        engine = self.engine
        slot = engine.slot
        commands = engine.handle(SlotBegan(slot))
        self._record(commands)
        engine.handle(Acknowledged(slot + 1, tuple(engine.unacknowledged)))
        for name in engine.running:
            engine.handle(JobStarted(slot + 1, name, engine.jobs[name].generation, slot))
        return commands

    def end(self) -> None:
        """End the running slot: jobs with all their work done exit first."""
        engine = self.engine
        slot, progress = engine.slot - 1, {}
        for name, placement in list(engine.running.items()):
            record = engine.jobs[name]
            gain = record.job.gain(placement.total_workers)
            if gain >= record.remaining:
                self._record(engine.handle(JobEnded(slot + 1, name, record.generation)))
                if name in self.promises and slot > self.promises[name]:
                    self.broken.append(f"{name} completed in {slot}")
            else:
                progress[name] = gain
        self._record(engine.handle(SlotEnded(slot, progress)))

    def run(self) -> None:
        """Run a slot."""
        self.begin()
        self.end()

    def _record(self, commands: Iterable[Command]) -> None:
        for event in commands:
            if isinstance(event, Decided) and isinstance(event.decision, Promise):
                name, end = event.decision.job, event.decision.completion
                if self.promises.get(name, end) != end or end is None:
                    self.broken.append(f"{name} is moved to {end}: {event.decision.message}")
                if end is not None:
                    self.promises[name] = end


def draw_jobs(cluster: Cluster, rng: np.random.Generator, slot: int) -> list[Job]:
    """Draw the arrivals of a slot: commands, most of them poor, and jobs with checkpoints."""
    jobs = []
    for number in range(int(rng.choice([0, 1, 2], p=[0.5, 0.35, 0.15]))):
        name, slots = f"{slot}-{number}", int(rng.integers(1, 12))
        value = float(rng.choice([1e-6, 10.0]))
        utility = Deadline(value, float(slots + rng.integers(0, 20)))
        if rng.random() < 0.6:
            chosen = Constant(1e-6) if rng.random() < 0.6 else utility
            gpu = int(rng.integers(1, cluster.capacity.max() // 1000 + 1))
            jobs.append(command(cluster, name, slots=slots, gpu=gpu, utility=chosen))
        else:
            workers = int(rng.integers(1, 5))
            jobs.append(training(cluster, name, epochs=slots, chunks=workers, utility=utility))
    return jobs


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize(("deadline", "promise"), [(5.0, None), (12.0, 12)])
def test_promises_do_not_use_servers_of_commands_that_run_without_a_promise(
    deadline: float, promise: int | None, *, steady: bool
) -> None:
    on = gpus(1, 2)
    live = LiveCluster(on, steady=steady, prices="given", price=1.0)
    live.submit([command(on, "command", slots=10, gpu=2)])
    live.run()
    assert "command" in live.engine.running
    assert not live.promises
    urgent = checkpointing(on, "urgent", slots=2, gpu=2, utility=Deadline(1000.0, deadline - 1.0))
    quote = live.engine.quote(replace(urgent, arrival=1))
    live.submit([urgent])
    assert (quote.completion, live.promises.get("urgent")) == (promise, promise)
    for _ in range(12):
        live.run()
    assert not live.broken
    assert live.engine.jobs["command"].completion == 9
    assert live.engine.jobs["urgent"].completion == (None if promise is None else 11)


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("value", [1e-6, 1000.0])
@pytest.mark.parametrize(("slots", "first"), [(2, 0), (5, 3)])
def test_a_command_starts_only_if_no_promise_needs_its_servers_until_it_ends(
    slots: int, first: int, value: float, *, steady: bool
) -> None:
    on = gpus(1, 4)
    live = LiveCluster(on, steady=steady, prices="given", price=1.0)
    three = checkpointing(on, "three", slots=2, gpu=3, utility=Deadline(1000.0, 1.0))
    four = checkpointing(on, "four", slots=1, gpu=4, utility=Deadline(1000.0, 2.0))
    live.submit([three, four])
    assert live.promises == {"three": 1, "four": 2}
    live.submit([command(on, "command", slots=slots, utility=Deadline(value, 30.0))])
    for _ in range(first + slots):
        live.run()
    assert not live.broken
    record = live.engine.jobs["command"]
    assert (record.started, record.completion) == (first, first + slots - 1)


def test_a_running_command_is_promised_once_its_remaining_work_is_worth_the_price() -> None:
    on = gpus(1, 2)
    live = LiveCluster(on, steady=True, prices="given", price=1.0)
    live.submit([command(on, "command", slots=6, gpu=2, utility=Deadline(5.5, 7.0))])
    live.run()  # it would cost 6
    assert not live.promises
    live.run()
    assert live.promises == {"command": 7}
    for _ in range(4):
        live.run()
    assert not live.broken
    assert live.engine.jobs["command"].completion == 5


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_promises_are_kept_beside_commands_that_nothing_stops(seed: int, *, steady: bool) -> None:
    rng = np.random.default_rng(seed)
    on = gpus(int(rng.integers(1, 4)), int(rng.integers(2, 5)))
    live = LiveCluster(on, steady=steady)
    for slot in range(60):
        live.submit(draw_jobs(on, rng, slot))
        live.begin()
        if rng.random() < 0.3:
            live.submit([replace(job, name=f"{job.name}b") for job in draw_jobs(on, rng, slot)])
        live.end()
    assert live.promises
    assert not live.broken


@pytest.mark.parametrize("steady", [False, True])
def test_a_promised_start_that_cannot_be_stopped_keeps_to_its_plan(steady: bool) -> None:
    """It takes no spare workers, because it couldn't return to its plan, and waits for no other
    job.
    """
    cluster = gpus(1, 4)
    live = LiveCluster(cluster, steady=steady, prices="given", price=0.0)

    def wide(name: str, epochs: int, due: float) -> Job:
        utility = Deadline(10.0, due)
        job = training(cluster, name, epochs=epochs, chunks=3, worker_range=(3, 3), utility=utility)
        return replace(job, resumable=True)

    narrow = training(
        cluster, "a", epochs=6, chunks=2, worker_range=(1, 2), utility=Deadline(10.0, 11.0)
    )
    live.submit([wide("b", 2, 1.0)])
    live.submit([wide("c", 9, 11.0)])
    live.submit([replace(narrow, restart=Fraction(19, 20), resumable=None)])
    assert live.promises == {"a": 11, "b": 1, "c": 11}
    live.engine.handle(JobCancelled(live.engine.slot, "b"))  # its GPUs are spare
    for _ in range(13):
        live.run()
    assert not live.broken
    assert not live.engine.open_jobs

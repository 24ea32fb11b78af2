"""An engine that is restored, cloned and rolled back at random continues as one that isn't.

Events of all kinds come at random moments, within slots too. A third engine replays the journal.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.events import (
    Acknowledged,
    CapacityChanged,
    DriverEvent,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    JobStarted,
    ProgressMeasured,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
    StartFailed,
    TimespanChanged,
)
from shadowprice.core.job import MICRO, Job
from shadowprice.core.policy import Policy
from shadowprice.core.utility import Deadline
from shadowprice.engine import Engine
from shadowprice.engine.journal import Header, entry_line, parse_entry
from shadowprice.engine.snapshot import clone, restore, snapshot
from tests.support.engine_events import describe_commands
from tests.support.examples import sample
from tests.support.policies import EarliestPlanner
from tests.support.policy_cases import build_policy, build_world
from tests.support.validation import recompute_usage

POLICIES = ("earliest", "fifo", "las", "oasis", "rolling")
SLOTS = 25


class _RollbackError(Exception):
    pass


class InterruptedWorld:
    """Two engines with the same events, of which one is interrupted, and a replay of the first."""

    def __init__(self, policy: str, seed: int) -> None:
        self.policy, self.seed = policy, seed
        self.rng = np.random.default_rng([seed, 99])
        self.cluster, jobs, _ = build_world("fifo", seed)
        resumable = self.rng.choice(np.array([True, None, False]), len(jobs), p=(0.6, 0.2, 0.2))
        self.jobs = [
            replace(job, resumable=value)
            for job, value in zip(jobs, resumable.tolist(), strict=True)
        ]
        self.coming = sorted(self.jobs, key=lambda job: job.arrival)
        acknowledges = bool(self.rng.integers(2))
        self.engine, self.interrupted = (
            Engine(self.cluster, self.build_policy(), acknowledges=acknowledges) for _ in range(2)
        )
        header = Header.read(Header.of(self.engine, policy).line(), "journal")
        self.replayed = header.engine()
        self.added = 0

    def build_policy(self) -> Policy:
        if self.policy == "earliest":
            return EarliestPlanner()
        return build_policy(self.policy, self.cluster, self.jobs, self.seed)

    def run(self) -> None:
        for _ in range(SLOTS):
            self.send_random_events()
            if not self.send(SlotBegan(self.engine.slot)):
                return  # the policy can't decide, which is no fault of the engine
            self.send_random_events()
            if not self.send(self.slot_end()):
                return

    def send_random_events(self) -> None:
        for _ in range(int(self.rng.integers(0, 4))):
            event = self.random_event()
            if event is not None:
                self.send(event)

    def send(self, event: DriverEvent) -> bool:
        """Send an event to all engines and compare them; return whether it took effect."""
        engine, before, digest = self.engine, self.engine.cluster, self.engine.state_digest()
        try:
            commands = describe_commands(engine.handle(event))
        except ShadowpriceError:
            assert engine.state_digest() == digest
            with suppress(ShadowpriceError):
                self.interrupted.handle(event)
            self.compare()
            return False
        assert engine.last is not None
        line = entry_line(engine.last, engine.cluster.names)
        self.replayed.apply(parse_entry(line, before))
        self.interrupt(event)
        assert describe_commands(self.interrupted.handle(event)) == commands
        self.compare()
        return True

    def compare(self) -> None:
        for other in (self.interrupted, self.replayed):
            assert other.state_digest() == self.engine.state_digest()
            assert list(other.running.items()) == list(self.engine.running.items())
            assert (other.ledger.used == self.engine.ledger.used).all()

    def interrupt(self, event: DriverEvent) -> None:
        """Sometimes restore, clone or roll back the interrupted engine before an event."""
        kind = self.rng.random()
        engine = self.interrupted
        if kind < 0.12:
            record = json.loads(json.dumps(snapshot(engine)))
            self.interrupted = restore(record, self.build_policy())
        elif kind < 0.17:
            self.interrupted = clone(engine)
        elif kind < 0.25:
            before = snapshot(engine) | {"policy_state": None}
            with suppress(_RollbackError), engine.atomic():
                self.send_to_interrupted(event)
                if engine.slot_running is None:
                    self.send_to_interrupted(SlotBegan(engine.slot))
                with suppress(ShadowpriceError):  # not all policies give quotes
                    engine.quote(replace(self.jobs[0], name="quoted", arrival=engine.slot))
                raise _RollbackError
            assert snapshot(engine) | {"policy_state": None} == before
            assert (engine.ledger.used == recompute_usage(engine.ledger)).all()

    def send_to_interrupted(self, event: DriverEvent) -> None:
        with suppress(ShadowpriceError):
            self.interrupted.handle(event)

    # ------------------------------------------------------------ events

    def slot_end(self) -> SlotEnded:
        """Return the end of the running slot; some jobs are slow or report their own progress."""
        engine, progress = self.engine, {}
        for name, placement in engine.running.items():
            if engine.state.acknowledges and self.rng.random() < 0.15:
                continue
            job = engine.jobs[name].job
            whole = job.gain(placement.total_workers, colocated=placement.colocated)
            progress[name] = int(whole * self.rng.choice([0.0, 0.5, 1.0], p=(0.1, 0.2, 0.7)))
        assert engine.slot_running is not None
        return SlotEnded(engine.slot_running, progress)

    def random_event(self) -> DriverEvent | None:
        engine, slot = self.engine, self.engine.slot
        kinds = [self.arrivals, self.job_event, self.job_event, self.server_event]
        event = self.rng.choice(np.array(kinds))()
        if event is None and self.rng.random() < 0.2:
            until = (
                None if self.rng.random() < 0.5 else max(0, slot + int(self.rng.integers(-2, 20)))
            )
            return TimespanChanged(slot, until)
        if event is None and engine.unacknowledged:
            return Acknowledged(slot, tuple(engine.unacknowledged)[::2])
        return event

    def arrivals(self) -> DriverEvent | None:
        slot, count = self.engine.slot, int(self.rng.integers(1, 4))
        arriving, self.coming = self.coming[:count], self.coming[count:]
        jobs = tuple(replace(job, arrival=slot) for job in arriving)
        return JobsArrived(slot, jobs) if jobs else None

    def job_event(self) -> DriverEvent | None:
        engine, slot = self.engine, self.engine.slot
        names = list(engine.running or engine.jobs)
        if not names:
            return None
        name = str(self.rng.choice(names))
        record = engine.jobs[name]
        generation = max(0, record.generation - int(self.rng.random() < 0.2))
        work = record.job.work * MICRO - 1
        events: list[DriverEvent | None] = [
            JobCancelled(slot, name),
            JobFailed(slot, name, generation, "crashed", retries=int(self.rng.integers(4))),
            StartFailed(slot, name, generation, "no image"),
            JobStarted(slot, name, generation, int(self.rng.integers(slot + 1))),
            JobEnded(slot, name, generation),
            ProgressMeasured(slot, {name: (generation, int(self.rng.integers(work)))}),
        ]
        if record.status.open:
            admission = bool(self.rng.random() < 0.4)
            events += [JobRevised(slot, self.revised(record.job), admission)] * 6
        return events[int(self.rng.integers(len(events)))]

    def revised(self, job: Job) -> Job:
        """Return a job with other work, speed, worker counts, demand, utility or checkpoints."""
        count = len(job.worker_counts)
        kept = slice(0, count // 2 or None)
        names = ("worker_counts", "gains", "internal_gains", "ps_counts")
        works = job.required // 10 or 1, max(1, job.work // 10)
        choices: list[dict[str, Any]] = [
            {"required": 3 * job.required, "epochs": 3 * job.epochs},
            {"required": works[0], "epochs": 1, "chunks": 1, "minibatches": works[1]},
            {"gains": 2 * job.gains, "internal_gains": 2 * job.internal_gains},
            {name: getattr(job, name)[kept] for name in names},
            {"worker": 2 * job.worker},
            {"utility": Deadline(float(self.rng.uniform(1, 90)), float(self.rng.integers(3, 40)))},
            {"resumable": not job.resumable},
        ]
        return replace(job, **choices[int(self.rng.integers(len(choices)))])

    def server_event(self) -> DriverEvent | None:
        engine, slot, cluster = self.engine, self.engine.slot, self.engine.cluster
        busy = sorted({row for placement in engine.running.values() for row in placement.servers})
        row = int(self.rng.choice(busy or range(cluster.servers)))
        name = cluster.names[max(row, 0)]
        state = _server_state(cluster, max(row, 0))
        self.added += 1
        half = {resource: amount // 2 for resource, amount in state.capacity.items()}
        changes: list[dict[str, ServerState | None]] = [
            {name: replace(state, drained=True)},
            {name: replace(state, cordoned=True)},
            {name: state},
            {name: replace(state, capacity=half)},
            {name: replace(state, role=Role.PS)},
            {f"new-{self.added}": state},
            {name: None, f"new-{self.added}": state},
        ]
        if self.rng.random() < 0.6:
            return CapacityChanged(slot, changes[int(self.rng.integers(len(changes)))])
        if engine.lost and self.rng.random() < 0.7:
            return ServerBack(slot, cluster.names[min(engine.lost)])
        return ServerLost(slot, name)


def _server_state(cluster: Cluster, row: int) -> ServerState:
    amounts = dict(zip(cluster.resources, cluster.capacity[row].tolist(), strict=True))
    return ServerState(cluster.roles[row], amounts)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_interrupted_engine_continues_as_one_that_is_not(policy: str) -> None:
    for seed in sample(range(12)):
        InterruptedWorld(policy, seed).run()

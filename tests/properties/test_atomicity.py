"""A failed event changes nothing in the engine or in any policy; and clusters may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, Role, Tenant
from shadowprice.core.errors import EventError, InputError
from shadowprice.core.events import (
    Acknowledged,
    CapacityChanged,
    Decision,
    DriverEvent,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    JobStarted,
    PolicyEvent,
    ProgressMeasured,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
    StartFailed,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, View
from shadowprice.core.utility import Deadline
from shadowprice.engine import Engine
from shadowprice.engine.snapshot import clone, restore, snapshot
from shadowprice.engine.state import JOB_SETS
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation
from tests.support.engine_events import describe_commands, external_events
from tests.support.policy_cases import (
    build_policy,
    build_world,
    cluster_changes,
    policy_names,
    record_run,
    run_slot,
)
from tests.support.validation import recompute_usage


class Fused:
    """A policy that raises after a number of decisions on an event."""

    def __init__(self, policy: Policy) -> None:
        self.wrapped_policy = policy
        self.capabilities = policy.capabilities
        self.fuse: int | None = None

    def parameters_in_force(self) -> Mapping[str, object]:
        return self.wrapped_policy.parameters_in_force()

    def resume(self, view: View) -> None:
        self.wrapped_policy.resume(view)

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        decisions: Iterable[Decision] = self.wrapped_policy.decide(view, event)
        for decision in decisions:
            if self.fuse is not None:
                if not self.fuse:
                    raise RuntimeError("the fuse has blown")
                self.fuse -= 1
            yield decision
        if self.fuse is not None:
            raise RuntimeError("the fuse has blown at the end")


def describe_engine(engine: Engine) -> tuple[Any, ...]:
    """Return all visible state of an engine, including the order of entries.

    The policy's state is left out, because pickling a restored policy gives other bytes (strings
    are shared differently). Its later decisions are compared instead.
    """
    record = snapshot(engine)
    del record["policy_state"]
    return (
        record,
        engine.ledger.used.tolist(),
        engine.ledger.capacity.tolist(),
        list(engine.open_jobs),
        list(engine.running.items()),
        {slot: list(planned) for slot, planned in engine.state.agenda.items()},
        {name: list(getattr(engine.state, name)) for name in JOB_SETS},
        engine.cluster.names,
    )


@pytest.mark.parametrize("policy", policy_names())
def test_a_policy_that_raises_fails_the_event_and_nothing_else(policy: str) -> None:
    """Every event fails once, at a random decision; then all continues as if it hadn't."""
    seed = 4
    on, jobs, events, commands = record_run(policy, seed)
    rng = np.random.default_rng(seed)
    fused = Fused(build_policy(policy, on, jobs, seed))
    engine = Engine(on, fused)
    blown = 0
    for event, expected in zip(events, commands, strict=True):
        before = describe_engine(engine)
        fused.fuse = int(rng.integers(3))
        try:
            untouched = clone(engine)
            engine.handle(event)
            # The policy wasn't called: the event is rolled back to be sent again.
            engine = untouched
            fused = Fused(engine.policy)
            engine.session.policy = fused
        except RuntimeError:
            blown += 1
            assert describe_engine(engine) == before
        fused.fuse = None
        assert describe_commands(engine.handle(event)) == describe_commands(expected)
    assert blown


class _RollbackError(Exception):
    pass


@contextmanager
def rolled_back(engine: Engine) -> Iterator[None]:
    """Roll back every event of the block."""
    with suppress(_RollbackError), engine.atomic():
        yield
        raise _RollbackError


@pytest.mark.parametrize("policy", policy_names())
def test_events_that_belong_together_leave_no_trace_together(policy: str) -> None:
    """Groups of events are rolled back, with a nested rollback; a replay gives equal commands."""
    seed = 4
    on, jobs, events, commands = record_run(policy, seed)
    rng = np.random.default_rng(seed)
    engine = Engine(on, build_policy(policy, on, jobs, seed))
    at = 0
    while at < len(events):
        some = events[at : at + int(rng.integers(1, 6))]
        before, last, digest = describe_engine(engine), engine.last, engine.state_digest()
        with rolled_back(engine):
            engine.handle(some[0])
            inside, requested = describe_engine(engine), engine.state_digest()
            with rolled_back(engine):
                for event in some[1:]:
                    engine.handle(event)
            assert describe_engine(engine) == inside
            assert engine.state_digest() == requested
            with engine.atomic():
                for event in some[1:]:
                    engine.handle(event)
        assert describe_engine(engine) == before
        assert engine.state_digest() == digest
        assert engine.last is last
        with engine.atomic():
            for event, expected in zip(some, commands[at:], strict=False):
                assert describe_commands(engine.handle(event)) == describe_commands(expected)
        at += len(some)


def test_a_policy_that_fails_to_resync_does_so_before_the_next_event() -> None:
    on, jobs, events, _ = record_run("rolling", 4)
    policy: Any = build_policy("rolling", on, jobs, 4)
    engine = Engine(on, policy, saves_policy_state=False)
    for event in events[:3]:
        engine.handle(event)

    def stumbling(_view: View) -> None:
        raise RuntimeError("the fuse has blown")

    before = describe_engine(engine)
    policy.resume = stumbling
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the fuse has blown"):
            engine.session.resync()
    del policy.resume
    assert describe_engine(engine) == before
    engine.handle(events[3])


@pytest.mark.parametrize("policy", policy_names())
def test_a_policy_whose_state_is_not_kept_resyncs_after_it_raised(policy: str) -> None:
    """The engine's state is restored; the policy resumes from the current view."""
    blown = 0
    for seed in (4, 5):
        on, jobs, events, _ = record_run(policy, seed)
        rng = np.random.default_rng(seed)
        fused = Fused(build_policy(policy, on, jobs, seed))
        engine = Engine(on, fused, saves_policy_state=False)
        coming = external_events(events)
        for slot in range(400):
            if rng.random() < 0.3:
                engine.session.dump_state()
            due: list[DriverEvent] = []
            while coming and coming[0].slot <= slot:
                due.append(coming.pop(0))
            for event in (*due, SlotBegan(slot)):
                before = describe_engine(engine)
                fused.fuse = None if rng.random() < 0.5 else int(rng.integers(3))
                try:
                    engine.handle(event)
                except RuntimeError:
                    blown += 1
                    fused.fuse = None
                    if rng.random() < 0.5:
                        assert describe_engine(engine) == before
                    engine.handle(event)
            fused.fuse = None
            run_slot(engine, slot)
            if not coming and not engine.open_jobs:
                break
        assert not coming
        assert not engine.open_jobs
    assert blown


def bad_events(engine: Engine) -> list[DriverEvent]:
    """Return events that must all be refused now."""
    slot = engine.slot
    name = next(iter(engine.jobs), "nobody")
    job = engine.jobs[name].job if engine.jobs else None
    server = engine.cluster.names[0]
    bad: list[Any] = [
        ServerLost(slot, "nowhere"),
        ServerLost(slot, -1),  # type: ignore[arg-type]  # servers go by name
        ServerLost(slot - 1, server),
        ServerBack(slot, ""),
        JobCancelled(slot, "nobody"),
        JobCancelled(slot, 3),  # type: ignore[arg-type]
        SlotEnded(slot, {}),
        SlotEnded(slot + 5, {}),
        JobFailed(slot, "nobody", 1, "?"),
        JobFailed(slot, name, 10**6, "?"),
        StartFailed(slot, name, -1, "?"),
        JobStarted(slot, "nobody", 1, 0),
        JobStarted(slot, name, 1, slot + 1),
        JobStarted(slot, name, 10**6, slot),
        JobEnded(slot, "nobody", 1),
        ProgressMeasured(slot, {"nobody": (1, 1)}),
        ProgressMeasured(slot, {name: (1, -50)}),
        ProgressMeasured(slot, {name: 7}),  # type: ignore[dict-item]
        Acknowledged(slot, (10**9,)),
        CapacityChanged(slot, {"nowhere": None}),
        CapacityChanged(slot, dict.fromkeys(engine.cluster.names)),
        CapacityChanged(slot, {server: ServerState(Role.ANY, {"unobtainium": 1})}),
        CapacityChanged(slot, {server: ServerState(Role.ANY, {"gpu": -1})}),
        CapacityChanged(slot, tenants=(Tenant("a"), Tenant("a"))),
        SlotBegan("0"),  # type: ignore[arg-type]
        SlotBegan(True),
        "SlotBegan",
    ]
    if engine.slot_running is not None:
        running = engine.slot_running
        bad += [SlotBegan(slot), SlotBegan(running), JobsArrived(slot + 1, ())]
        bad += [SlotEnded(running, {"nobody": 1}), SlotEnded(running, {}, {"nobody": (1,)})]
        bad += [SlotEnded(running, {each: -50}) for each in engine.running]
        bad += [SlotEnded(running, {each: 0.5}) for each in engine.running]  # type: ignore[dict-item]
    elif engine.running:
        bad += [SlotBegan(slot + 1), JobsArrived(slot + 3, ())]
    if job is not None:
        bad += [JobsArrived(slot, (job,)), JobsArrived(slot, (job, job))]
        bad += [JobsArrived(slot, (object(),))]  # type: ignore[arg-type]
        if name not in engine.open_jobs:
            bad.append(JobRevised(slot, job))
    return bad


@pytest.mark.parametrize("policy", ["oasis", "fifo", "hived", "rrh"])
def test_events_that_are_wrong_are_refused_and_leave_no_trace(policy: str) -> None:
    seed = 1
    on, jobs, events, commands = record_run(policy, seed)
    engine = Engine(on, build_policy(policy, on, jobs, seed))
    for index, (event, expected) in enumerate(zip(events, commands, strict=True)):
        if index % 3 == 0:
            before = describe_engine(engine)
            for bad in bad_events(engine):
                with pytest.raises(EventError):
                    engine.handle(bad)
            assert describe_engine(engine) == before
        assert describe_commands(engine.handle(event)) == describe_commands(expected)


# ---------------------------------------------------------------- changing clusters


class Invariants(Observer):
    """Checks the ledger in every slot, and sometimes restores it from a snapshot."""

    def __init__(self, policy: str, cluster: Cluster, jobs: list[Any]) -> None:
        self.policy, self.on, self.jobs = policy, cluster, jobs
        self.widths: set[int] = set()

    def on_slot(self, engine: Engine, slot: int) -> None:
        ledger, cluster = engine.ledger, engine.cluster
        assert (recompute_usage(ledger) == ledger.used).all()
        assert (ledger.used <= ledger.capacity).all()
        assert (ledger.used >= 0).all()
        assert ledger.capacity.shape == cluster.capacity.shape
        load = np.zeros_like(cluster.capacity)
        for name, placement in engine.running.items():
            job = engine.jobs[name].job
            for server, workers, ps in zip(
                placement.servers, placement.workers, placement.ps, strict=True
            ):
                assert server not in engine.lost
                assert not workers or cluster.roles[server] is not Role.PS
                assert not ps or cluster.roles[server] is not Role.WORKER
                load[server] += workers * job.worker
                load[server] += 0 if job.ps is None else ps * job.ps
        assert (load == ledger.used[0]).all()
        self.widths.add(cluster.servers)
        if slot % 7 == 3:
            policy = build_policy(self.policy, self.on, self.jobs, 1)
            assert restore(snapshot(engine), policy).state_digest() == engine.state_digest()


@pytest.mark.parametrize("policy", policy_names())
def test_policies_follow_servers_that_change(policy: str) -> None:
    for seed in (2, 5):
        rng = np.random.default_rng(seed)
        cluster, jobs, incidents = build_world(policy, seed)
        made = build_policy(policy, cluster, jobs, seed)
        happened: list[Any] = cluster_changes(policy, cluster, rng)
        happened += [incident for incident in incidents if isinstance(incident, JobCancelled)]
        simulation = Simulation(cluster, jobs, made, until=200, incidents=happened, seed=seed)
        watch = Invariants(policy, cluster, jobs)
        engine = simulation.run([watch])
        assert len(watch.widths) > 1
        assert engine.jobs.keys() == {job.name for job in jobs}
        for record in engine.jobs.values():
            finished = record.status.value == "finished"
            assert finished == (record.progress >= record.job.required)


def revised(job: Job, rng: np.random.Generator) -> Job:
    """Return a job with more or less work, another speed, or another value."""
    kind = int(rng.integers(4))
    if kind == 0:
        return replace(job, epochs=3 * job.epochs, required=3 * job.required)
    if kind == 1 and job.required % 2 == 0 and job.epochs % 2 == 0:
        return replace(job, epochs=job.epochs // 2, required=job.required // 2)
    if kind == 2:
        return replace(job, gains=2 * job.gains, internal_gains=2 * job.internal_gains)
    return replace(job, utility=Deadline(float(rng.uniform(1, 90)), float(rng.integers(3, 40))))


@pytest.mark.extended
@pytest.mark.parametrize("policy", policy_names())
def test_policies_follow_jobs_that_are_revised(policy: str) -> None:
    changed = 0
    for seed in (2, 5, 6):
        rng = np.random.default_rng(seed)
        cluster, jobs, _ = build_world(policy, seed)
        engine = Engine(cluster, build_policy(policy, cluster, jobs, seed))
        for slot in range(150):
            arriving = tuple(job for job in jobs if job.arrival == slot)
            if arriving:
                engine.handle(JobsArrived(slot, arriving))
            for name in list(engine.open_jobs):
                record = engine.open_jobs.get(name)
                # Later on they would grow faster than they are worked off.
                if slot > 15 or record is None or rng.random() < 0.6:
                    continue
                engine.handle(JobRevised(slot, revised(record.job, rng)))
                changed += 1
            if slot > 15 and slot > jobs[-1].arrival and not engine.open_jobs:
                break
            run_slot(engine, slot)
        assert engine.jobs.keys() == {job.name for job in jobs}
        for record in engine.jobs.values():
            finished = record.status.value == "finished"
            assert finished == (record.progress >= record.job.required)
    assert changed


class Stubborn:
    """A policy that can't resume from decisions of others."""

    def __init__(self, policy: Policy) -> None:
        self._decide = policy.decide
        self.capabilities = policy.capabilities
        self.parameters_in_force = policy.parameters_in_force

    def resume(self, view: View) -> None:
        raise EventError("it follows no change")

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        return self._decide(view, event)


def test_changes_that_a_policy_cannot_follow_are_refused_without_a_trace() -> None:
    cluster, jobs, _ = build_world("fifo", 2)
    engine = Engine(cluster, Stubborn(build_policy("fifo", cluster, jobs, 2)))
    first = replace(jobs[0], arrival=0)
    engine.handle(JobsArrived(0, (first,)))
    before = engine.state_digest()
    state = ServerState(
        Role.ANY, dict(zip(cluster.resources, cluster.capacity[0].tolist(), strict=True))
    )
    with pytest.raises(EventError, match="it follows no change"):
        engine.handle(CapacityChanged(0, {"new": state}))
    with pytest.raises(EventError, match="it follows no change"):
        engine.handle(JobRevised(0, replace(first, utility=Deadline(1.0, 9.0))))
    assert engine.state_digest() == before


def test_shares_that_do_not_add_up_are_refused_as_a_whole() -> None:
    on, jobs, events, commands = record_run("astraea", 4)
    engine = Engine(on, build_policy("astraea", on, jobs, 4))
    for event, expected in zip(events, commands, strict=True):
        if engine.slot_running is None:
            before = describe_engine(engine)
            state = ServerState(Role.ANY, {"worker": 2000, "ps": 1000})
            with pytest.raises(InputError, match="add up to"):
                engine.handle(CapacityChanged(engine.slot, {"new": state}))
            assert describe_engine(engine) == before
        assert describe_commands(engine.handle(event)) == describe_commands(expected)

"""Bags of tasks under `rolling`: promises beside them, their own promises, and restarts."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, Tenant, build_cluster
from shadowprice.core.events import (
    CapacityChanged,
    DriverEvent,
    JobCancelled,
    JobsArrived,
    Promise,
    ServerState,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext, Status
from shadowprice.core.schedule import Placement
from shadowprice.core.utility import Deadline, Sigmoid
from shadowprice.engine import Engine
from shadowprice.engine.snapshot import StateCapture, clone, restore, snapshot
from shadowprice.policies.registry import make_policy
from shadowprice.results.recorder import Recorder
from shadowprice.simulator.driver import Incident, Simulation
from tests.support.audited_runs import Auditor
from tests.support.bag_cases import (
    SLOT,
    add_training_jobs,
    build_bag,
    pareto,
    place_cluster,
    random_bag_world,
)
from tests.support.engine_events import describe_commands
from tests.support.examples import example_count, sample
from tests.support.policy_cases import EventRecorder
from tests.support.policy_runs import SlotObserver
from tests.support.validation import recompute_usage
from tests.support.workloads import make_job

SEEDS = st.integers(0, 2**32 - 1)


def rolling(cluster: Cluster, **parameters: object) -> Policy:
    return make_policy("rolling", PolicyContext(cluster), parameters)


def eventful(seed: int) -> tuple[Cluster, list[Job], list[Incident]]:
    """Return the same with servers that are lost and bags that are cancelled."""
    cluster, jobs, incidents = random_bag_world(seed)
    jobs = add_training_jobs(cluster, jobs, seed)
    names = {job.name for job in jobs}
    happened = [
        event for event in incidents if not isinstance(event, JobCancelled) or event.job in names
    ]
    return cluster, jobs, happened


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS, st.booleans())
def test_promises_to_training_jobs_are_kept_beside_bags(seed: int, revision: bool) -> None:
    """However long tasks last, a bag uses at most the units of its plan."""
    cluster, jobs, _ = random_bag_world(seed)
    jobs = add_training_jobs(cluster, jobs, seed)
    policy = rolling(cluster, revision=revision)
    recorder = Recorder(cluster, jobs, policy)
    Simulation(cluster, jobs, policy, seed=seed % 997).run([recorder, Auditor(cluster, jobs)])
    done = recorder.completions
    names = {job.name for job in jobs if job.bag is None}
    first: set[str] = set()
    for _, made in recorder.decisions:
        if isinstance(made, Promise) and made.job in names:
            assert made.completion is not None
            assert made.job not in first
            assert done[made.job] <= made.completion
            first.add(made.job)


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_copies_start_once_stay_where_they_are_and_only_end(seed: int) -> None:
    on, jobs, incidents = eventful(seed)
    before: dict[str, tuple[int, Placement]] = {}

    def watch(engine: Engine, slot: int) -> None:
        for name, record in engine.open_jobs.items():
            if record.job.bag is None or name not in engine.running:
                continue
            now, plan = engine.running[name], record.plans
            assert slot <= record.job.arrival + record.job.bag.slots - 1
            assert record.promise is not None
            assert slot <= record.promise
            assert now.total_workers <= record.copies_running
            if name in before and before[name][0] == plan:
                held = dict(zip(before[name][1].servers, before[name][1].workers, strict=True))
                for server, count in zip(now.servers, now.workers, strict=True):
                    assert count <= held.get(server, 0)
            else:
                assert now.total_workers == sum(copy.tasks * copy.copies for copy in record.copies)
            before[name] = plan, now

    Simulation(on, jobs, rolling(on), incidents=incidents, seed=seed % 997).run(
        [SlotObserver(watch)]
    )


def test_a_bags_promise_is_broken_no_more_often_than_it_may() -> None:
    """Of 240 bags that may break their promises one time in five, at most 72 do.

    With a probability of 0.2 each, as many or more do once in 10,000 times.
    """
    kept = broken = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        on = place_cluster(6, 4, horizon=12)
        jobs = [
            build_bag(
                on,
                pareto(int(rng.integers(2, 5)), float(rng.uniform(1.3, 2.5)), 0.3),
                name=f"bag-{index}",
                arrival=3 * (index // 2),
                deadline=3.0,
                miss_probability=0.2,
            )
            for index in range(30)
        ]
        recorder = Recorder(on, jobs, rolling(on))
        Simulation(on, jobs, rolling(on), seed=seed).run([recorder])
        first: dict[str, int] = {}
        for _, made in recorder.decisions:
            if isinstance(made, Promise) and made.completion is not None:
                first.setdefault(made.job, made.completion)
        for name, promise in first.items():
            done = recorder.completions.get(name)
            late = done is None or done > promise
            broken, kept = broken + late, kept + (not late)
    assert kept + broken > 220
    assert 0 < broken < 73


def drawn(seed: int) -> tuple[Cluster, list[Job], list[DriverEvent], list[list[object]]]:
    """Return a world of bags and training jobs, with its events and commands."""
    on, jobs, incidents = eventful(seed)
    seen = EventRecorder()
    Simulation(on, jobs, rolling(on), incidents=incidents, seed=seed).run([seen])
    return on, jobs, seen.events, seen.commands


EVENTFUL = (4, 23, 61)


@pytest.mark.parametrize("seed", EVENTFUL)
def test_restarts_at_every_event_change_nothing(seed: int) -> None:
    on, _, events, commands = drawn(seed)
    engine = Engine(on, rolling(on), saves_policy_state=False)
    twin = engine
    for event, expected in zip(events, commands, strict=True):
        engine = restore(json.loads(json.dumps(snapshot(engine))), rolling(on))
        twin = clone(twin)
        assert describe_commands(engine.handle(event)) == describe_commands(expected)
        assert describe_commands(twin.handle(event)) == describe_commands(expected)
        assert engine.state_digest() == twin.state_digest()


@pytest.mark.parametrize("seed", EVENTFUL)
def test_bags_are_written_out_as_they_were_while_tasks_finish(seed: int) -> None:
    on, _, events, _ = drawn(seed)
    engine = Engine(on, rolling(on), saves_policy_state=False)
    taken = []
    for event in events:
        engine.handle(event)
        taken.append((StateCapture(engine), snapshot(engine)))
    assert any(job.get("unfinished") for _, item in taken for job in item["jobs"])
    for captured, expected in taken:
        assert captured.record() == expected


@pytest.mark.parametrize("seed", EVENTFUL)
def test_an_event_that_is_taken_back_leaves_no_trace(seed: int) -> None:
    on, _, events, commands = drawn(seed)
    engine = Engine(on, rolling(on), saves_policy_state=False)
    for event, expected in zip(events, commands, strict=True):
        before = snapshot(engine)
        with pytest.raises(RuntimeError), engine.staged(event):
            raise RuntimeError
        after = snapshot(engine)
        assert before.pop("policy_state")
        assert after.pop("policy_state")
        assert after == before
        assert describe_commands(engine.handle(event)) == describe_commands(expected)


@pytest.mark.parametrize("seed", EVENTFUL)
def test_journals_give_the_same_state_without_the_policy(seed: int) -> None:
    from shadowprice.engine.records import decision_from_record, decision_record

    on, _, events, _ = drawn(seed)
    engine, again = (
        Engine(on, rolling(on), saves_policy_state=False),
        Engine(on, rolling(on), saves_policy_state=False),
    )
    for event in events:
        engine.handle(event)
        assert engine.last is not None
        consultations = tuple(
            tuple(
                decision_from_record(
                    json.loads(json.dumps(decision_record(decision, on.names))), on.index
                )
                for decision in decisions
            )
            for decisions in engine.last.consultations
        )
        again.apply(replace(engine.last, consultations=consultations))
        assert again.state_digest() == engine.state_digest()


def drive(engine: Engine, slots: int, rng: np.random.Generator) -> None:
    """Drive an engine on: training jobs yield what they declare, tasks end as drawn."""
    running = engine.slot_running
    for slot in range(engine.slot if running is None else running, engine.slot + slots):
        if engine.slot_running is None:
            engine.handle(SlotBegan(slot))
        assert (recompute_usage(engine.ledger) == engine.ledger.used).all()
        assert (engine.ledger.used <= engine.ledger.capacity).all()
        gained, finished = {}, {}
        for name, placement in engine.running.items():
            record = engine.jobs[name]
            if record.job.bag is None:
                whole = record.job.gain(placement.total_workers, colocated=placement.colocated)
                gained[name] = min(whole, record.remaining)
            else:
                finished[name] = tuple(int(rng.binomial(left, 0.5)) for left in record.unfinished)
                gained[name] = sum(finished[name])
        engine.handle(SlotEnded(slot, gained, finished))


@pytest.mark.parametrize("seed", EVENTFUL)
def test_a_policy_without_its_state_continues(seed: int) -> None:
    """It restarts at any moment; running copies keep their servers."""
    on, _, events, _ = drawn(seed)
    for cut in range(1, len(events), 4):
        engine = Engine(on, rolling(on), saves_policy_state=False)
        for event in events[:cut]:
            engine.handle(event)
        running = dict(engine.running)
        again = restore(
            json.loads(json.dumps(snapshot(engine))), rolling(on), with_policy_state=False
        )
        for event in events[cut:]:
            if isinstance(event, SlotBegan | SlotEnded):
                break
            again.handle(event)
        if again.slot_running is None:
            again.handle(SlotBegan(again.slot))
            for name in running.keys() & again.running.keys():
                record = again.jobs[name]
                if record.job.bag is not None and record.plans == engine.jobs[name].plans:
                    kept = min(running[name].total_workers, record.copies_running)
                    assert again.running[name].total_workers == kept
        drive(again, 30, np.random.default_rng(cut))
        assert not any(
            record.status is Status.ADMITTED and record.job.bag is not None
            for record in again.open_jobs.values()
        )


@pytest.mark.parametrize("seed", sample(range(12)))
def test_bags_survive_servers_that_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster, jobs, _ = random_bag_world(seed)
    jobs = add_training_jobs(cluster, jobs, seed)
    engine = Engine(cluster, rolling(cluster), saves_policy_state=False)
    each = int(cluster.capacity[0, 0])
    name = cluster.names[int(rng.integers(cluster.servers))]
    changes = {
        2: {name: ServerState(Role.ANY, {"gpu": each // 2})},
        3: {"new": ServerState(Role.WORKER, {"gpu": 2 * each})},
        5: {name: ServerState(Role.ANY, {"gpu": each}, drained=True)},
        7: {name: ServerState(Role.WORKER, {"gpu": each}), "new": None},
    }
    for slot in range(30):
        if slot in changes:
            engine.handle(CapacityChanged(slot, changes[slot]))
        arriving = tuple(job for job in jobs if job.arrival == slot)
        if arriving:
            engine.handle(JobsArrived(slot, arriving))
        drive(engine, 1, rng)
    assert not any(record.job.bag is not None for record in engine.open_jobs.values())


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_bags_stay_within_the_shares_of_their_tenants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = {"a": int(rng.integers(1, 6)), "b": int(rng.integers(1, 6))}
    cluster = build_cluster(
        slot_seconds=place_cluster().slot_seconds,
        horizon=12,
        servers=[(f"s-{index}", Role.ANY, {"gpu": 4000}) for index in range(3)],
        dimensions={"gpu": Dimension.COUNT},
        tenants=[Tenant(name, {"gpu": 1000 * many}) for name, many in shares.items()],
    )
    jobs = [
        replace(one, tenant=("a", "b", None)[int(rng.integers(3))], name=f"{one.name}-{index}")
        for index, one in enumerate(random_bag_world(seed)[1])
        if one.bag is None or one.bag.slot_seconds == SLOT
    ]

    def watch(engine: Engine, slot: int) -> None:
        del slot
        over = 0
        for tenant in ("a", "b", None):
            held = sum(
                placement.total_workers
                for name, placement in engine.running.items()
                if engine.jobs[name].job.bag is not None and engine.jobs[name].job.tenant == tenant
            )
            over += max(0, held - shares.get(tenant or "", 0))
        assert over <= 12 - sum(shares.values())

    engine = Simulation(cluster, jobs, rolling(cluster), seed=seed % 997).run([SlotObserver(watch)])
    assert not any(record.job.bag is not None for record in engine.open_jobs.values())


def crowded_world(seed: int) -> tuple[Cluster, list[Job]]:
    """Return few servers, and bags among jobs that lose much of a slot by a move."""
    rng = np.random.default_rng(seed)
    cluster = place_cluster(int(rng.integers(1, 4)), int(rng.integers(2, 5)), horizon=20)
    cluster = replace(cluster, restart_first=bool(rng.random() < 0.25))
    jobs = []
    for number in range(int(rng.integers(3, 14))):
        arrival = int(rng.integers(0, 10))
        if rng.random() < 0.4:
            tasks = pareto(int(rng.integers(1, 5)), rng.uniform(1.2, 3.0), rng.uniform(0.2, 0.9))
            jobs.append(
                build_bag(
                    cluster,
                    tasks,
                    name=f"bag-{number}",
                    arrival=arrival,
                    deadline=float(rng.uniform(1.5, 9.0)),
                    miss_probability=float(rng.choice([0.5, 0.2, 0.05])),
                    utility=Sigmoid(1000.0, float(rng.uniform(0.0, 2.0)), 8.0),
                )
            )
            continue
        workers = int(rng.integers(1, 5))
        new_job = make_job(
            cluster,
            f"job-{number}",
            worker_amounts={"gpu": 1000 * int(rng.integers(1, 3))},
            ps_amounts=None,
            arrival=arrival,
            epochs=int(rng.integers(1, 12)),
            chunks=workers,
            minibatches=1,
            worker_range=(1 if rng.random() < 0.7 else workers, workers),
            utility=Deadline(float(rng.uniform(1.0, 100.0)), float(rng.integers(1, 25))),
        )
        jobs.append(replace(new_job, restart=Fraction(int(rng.choice([1, 10, 20, 38])), 40)))
    return cluster, sorted(jobs, key=lambda job: job.arrival)


@settings(deadline=None, derandomize=True, max_examples=example_count(400))
@given(SEEDS, st.booleans(), st.booleans())
def test_plans_that_never_move_share_servers_with_bags(
    seed: int, steady: bool, free_promises: bool
) -> None:
    cluster, jobs = crowded_world(seed)
    prices = {"prices": "given", "price": 0.0} if free_promises else {}
    policy = rolling(cluster, steady=steady, **prices)
    recorder = Recorder(cluster, jobs, policy)
    Simulation(cluster, jobs, policy).run([recorder, Auditor(cluster, jobs)])
    training = {job.name for job in jobs if job.bag is None}
    promised = [
        decision
        for _, decision in recorder.decisions
        if isinstance(decision, Promise) and decision.job in training
    ]
    assert len({promise.job for promise in promised}) == len(promised)  # none ever changes
    for promise in promised:
        assert promise.completion is not None
        assert recorder.completions[promise.job] <= promise.completion

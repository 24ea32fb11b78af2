"""Invariants of `rolling` if restarts cost and jobs are planned to keep their servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Cluster, Role, Tenant, build_cluster
from shadowprice.core.events import (
    Completed,
    JobCancelled,
    JobsArrived,
    Promise,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.utility import Deadline, Sigmoid, Utility
from shadowprice.engine import Engine
from shadowprice.engine.snapshot import clone, restore, snapshot
from shadowprice.policies.registry import make_policy
from shadowprice.policies.rolling import open_jobs, planner
from shadowprice.policies.rolling.planner import Planner
from shadowprice.policies.rolling.policy import RollingPolicy
from shadowprice.policies.rolling.state import JointPlan
from shadowprice.results.recorder import Recorder
from shadowprice.simulator.driver import Incident, Simulation
from tests.oracles.promises import completions
from tests.support.audited_runs import Auditor
from tests.support.bag_cases import add_training_jobs
from tests.support.bag_cases import random_bag_world as world_of_bags
from tests.support.engine_events import describe_commands
from tests.support.examples import example_count, sample
from tests.support.policy_cases import EventRecorder
from tests.support.policy_runs import SlotObserver, random_world
from tests.support.workloads import faster_together, make_job

SEEDS = st.integers(0, 2**32 - 1)
SHARES = (
    Fraction(1, 40),
    Fraction(1, 10),
    Fraction(1, 4),
    Fraction(1, 2),
    Fraction(2, 3),
    Fraction(19, 20),
)


def lasting(seed: int, *, incidents: bool = False) -> tuple[Cluster, list[Job], list[Incident]]:
    """Return a world whose jobs last several slots, most of which lose a part of one by a move."""
    rng = np.random.default_rng(seed)
    cluster, jobs, happened = random_world(seed, incidents=incidents)

    def utility(job: Job) -> Utility:
        value, slots = float(rng.uniform(1, 100)), float(rng.integers(2, 25))
        if rng.random() < 0.5:
            return Deadline(value, slots)
        return Sigmoid(value, float(rng.uniform(0.05, 1)), slots)

    jobs = [
        replace(
            job,
            epochs=job.epochs * int(rng.integers(1, 12)),
            utility=utility(job),
            restart=SHARES[int(rng.integers(len(SHARES)))] if rng.random() < 0.9 else Fraction(0),
        )
        for job in jobs
    ]
    if rng.random() < 0.4:
        jobs = faster_together(jobs, rng)
    return replace(cluster, restart_first=bool(rng.random() < 0.3)), jobs, happened


def rolling(cluster: Cluster, **parameters: object) -> RollingPolicy:
    policy = make_policy("rolling", PolicyContext(cluster), parameters)
    assert isinstance(policy, RollingPolicy)
    return policy


def kept(expected: Sequence[tuple[int, object]], done: dict[str, int]) -> int:
    """Check that every promise was given once and is kept; return how many there were."""
    made = [one for _, one in expected if isinstance(one, Promise)]
    for promise in made:
        assert promise.completion is not None
        assert done[promise.job] <= promise.completion
    assert len({promise.job for promise in made}) == len(made)
    return len(made)


def stays(policy: RollingPolicy) -> int:
    """Return how many jobs are planned to stay now."""
    return len(policy._state.plan.pinned)


@settings(deadline=None, derandomize=True, max_examples=example_count(120))
@given(SEEDS, st.booleans(), st.sampled_from([0.3, 0.7, 1.0]))
def test_without_faults_every_promise_is_kept(
    seed: int, steady: bool, restart_limit: float
) -> None:
    on, jobs, _ = lasting(seed)
    policy = rolling(on, steady=steady)
    recorder = Recorder(on, jobs, policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_jobs, "_MAX_COUNTED_RESTART", restart_limit)
        Simulation(on, jobs, policy).run([recorder, Auditor(on, jobs)])
    done = completions(jobs, recorder.segments(), first=on.restart_first)
    assert done == recorder.completions
    kept(recorder.decisions, done)


@pytest.mark.extended
@pytest.mark.parametrize("steady", [False, True])
def test_jobs_are_planned_to_stay_and_others_run_beside_them(
    steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worlds of these tests have what they test:

    plans that keep servers, promises beside them.
    """
    staying = beside = promised = offered = 0
    plan_pinned = Planner.plan_pinned

    def count_offers(*arguments: Any) -> JointPlan:
        nonlocal offered
        plan = plan_pinned(*arguments)
        offered += not plan.unplanned
        return plan

    monkeypatch.setattr(Planner, "plan_pinned", count_offers)

    for seed in range(60):
        on, jobs, _ = lasting(seed)
        policy = rolling(on, steady=steady)

        def watch(engine: Engine, slot: int, policy: RollingPolicy = policy) -> None:
            nonlocal staying, beside
            plans, jobs = policy._state.plan.pinned, policy._state.jobs
            staying += len(plans)
            beside += bool(plans) and len(engine.running) > len(plans)
            for row, plan in plans.items():
                held = engine.running[jobs.name(row)]
                here = dict(zip(held.servers, zip(held.workers, held.ps, strict=True), strict=True))
                entries = zip(
                    plan.servers.tolist(), plan.workers.tolist(), plan.ps.tolist(), strict=True
                )
                for server, workers, ps in entries:  # it has the planned workers, or more
                    assert here[server][0] >= workers
                    assert here[server][1] >= ps
                assert plan.end <= jobs.promise[row], slot

        recorder = Recorder(on, jobs, policy)
        Simulation(on, jobs, policy).run([recorder, SlotObserver(watch)])
        promised += kept(recorder.decisions, recorder.completions)
    assert min(staying, beside, promised) > 100
    assert offered > 30  # promises of plans that never move


def test_promises_are_kept_where_a_timeline_has_too_few_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "_MAX_GROUPS", 3)  # one for each kind of server
    narrow = 0

    def seen(*expected: object) -> None:
        nonlocal narrow
        narrow += 1
        made_narrow(*expected)  # type: ignore[arg-type]  # as it was called

    made_narrow = Planner._reset_narrow
    monkeypatch.setattr(Planner, "_reset_narrow", seen)
    for seed in sample(range(40)):
        on, jobs, _ = lasting(seed)
        policy = rolling(on)
        recorder = Recorder(on, jobs, policy)
        Simulation(on, jobs, policy).run([recorder, Auditor(on, jobs)])
        kept(recorder.decisions, recorder.completions)
    assert narrow > 20


@settings(deadline=None, derandomize=True, max_examples=example_count(80))
@given(SEEDS, st.booleans())
def test_with_faults_the_last_promise_is_kept(seed: int, steady: bool) -> None:
    on, jobs, incidents = lasting(seed, incidents=True)
    policy = rolling(on, steady=steady)
    recorder = Recorder(on, jobs, policy)
    Simulation(on, jobs, policy, incidents=incidents).run([recorder, Auditor(on, jobs)])
    cancelled = {event.job for event in recorder.incidents if isinstance(event, JobCancelled)}
    last = {
        made.job: made.completion for _, made in recorder.decisions if isinstance(made, Promise)
    }
    for name, completion in last.items():
        if completion is None or (name in cancelled and name not in recorder.completions):
            continue
        assert recorder.completions[name] <= completion


def slots(engine: Engine, jobs: Sequence[Job]) -> list[object]:
    """Run an engine to the end, with jobs that arrive while slots are under way."""
    made: list[object] = []
    before: dict[str, object] = {}
    for slot in range(400):
        made += engine.handle(SlotBegan(slot))
        arriving = tuple(job for job in jobs if job.arrival == slot)
        if arriving:
            made += engine.handle(JobsArrived(slot + 1, arriving))
        gained = {}
        for name, placement in engine.running.items():
            record = engine.jobs[name]
            started = record.started is not None and record.started < slot
            moved = before.get(name) != placement if started else engine.cluster.restart_first
            whole = record.job.gain(
                placement.total_workers, colocated=placement.colocated, moved=moved
            )
            gained[name] = min(whole, record.remaining)
        before = dict(engine.running)
        made += engine.handle(SlotEnded(slot, gained))
    return made


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS, st.booleans())
def test_jobs_that_come_while_slots_are_under_way_break_no_promise(seed: int, steady: bool) -> None:
    on, jobs, _ = lasting(seed)
    engine = Engine(on, rolling(on, steady=steady), saves_policy_state=False)
    made = slots(engine, jobs)
    promises = [
        (0, entry.decision)
        for entry in made
        if isinstance(getattr(entry, "decision", None), Promise)
    ]
    done = {entry.job: entry.slot for entry in made if isinstance(entry, Completed)}
    kept(promises, done)


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_promises_are_kept_beside_bags(seed: int) -> None:
    cluster, jobs, _ = world_of_bags(seed)
    rng = np.random.default_rng(seed)
    jobs = [
        job
        if job.bag is not None
        else replace(
            job,
            epochs=job.epochs * int(rng.integers(1, 5)),
            utility=Deadline(float(rng.uniform(1, 200)), float(rng.integers(3, 25))),
            restart=SHARES[int(rng.integers(len(SHARES)))],
        )
        for job in add_training_jobs(cluster, jobs, seed)
    ]
    policy = rolling(cluster)
    recorder = Recorder(cluster, jobs, policy)
    Simulation(cluster, jobs, policy, seed=seed % 997).run([recorder, Auditor(cluster, jobs)])
    names = {job.name for job in jobs if job.bag is None}
    told_of = [
        (slot, made)
        for slot, made in recorder.decisions
        if isinstance(made, Promise) and made.job in names
    ]
    kept(told_of, recorder.completions)


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_kept_jobs_are_within_the_shares_of_tenants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = {"a": int(rng.integers(1, 6)), "b": int(rng.integers(1, 6))}
    common = int(rng.integers(0, 3))
    total = sum(shares.values()) + common
    cluster = build_cluster(
        slot_seconds=Fraction(600),
        horizon=20,
        servers=[(f"gpu-{index}", Role.WORKER, {"gpu": 1000}) for index in range(total)],
        dimensions={"gpu": Dimension.COUNT},
        tenants=[Tenant(name, {"gpu": 1000 * many}) for name, many in shares.items()],
    )
    jobs = [
        replace(
            make_job(
                cluster,
                f"job-{index}",
                worker_amounts={"gpu": 1000},
                ps_amounts=None,
                arrival=int(rng.integers(8)),
                epochs=int(rng.integers(1, 10)),
                worker_range=(1, int(rng.integers(1, 6))),
                utility=Deadline(float(rng.uniform(1, 50)), float(rng.integers(3, 20))),
                tenant=("a", "b", None)[int(rng.integers(3))],
            ),
            restart=SHARES[int(rng.integers(len(SHARES)))],
        )
        for index in range(int(rng.integers(2, 14)))
    ]
    policy = rolling(cluster)

    def watch(engine: Engine, slot: int) -> None:
        over = 0
        for tenant in ("a", "b", None):
            held = sum(
                int(plan.workers.sum())
                for row, plan in policy._state.plan.pinned.items()
                if engine.jobs[policy._state.jobs.name(row)].job.tenant == tenant
            )
            over += max(0, held - shares.get(tenant or "", 0))
        assert over <= common, slot

    recorder = Recorder(cluster, jobs, policy)
    Simulation(cluster, jobs, policy).run([recorder, SlotObserver(watch)])
    kept(recorder.decisions, recorder.completions)


@pytest.mark.parametrize("seed", [3, 7, 11])
def test_restarts_at_every_event_change_nothing(seed: int) -> None:
    on, jobs, incidents = lasting(seed, incidents=True)
    seen = EventRecorder()
    Simulation(on, jobs, rolling(on), incidents=incidents).run([seen])
    engine = Engine(on, rolling(on), saves_policy_state=False)
    twin, most = engine, 0
    for event, expected in zip(seen.events, seen.commands, strict=True):
        engine = restore(json.loads(json.dumps(snapshot(engine))), rolling(on))
        twin = clone(twin)
        assert describe_commands(engine.handle(event)) == describe_commands(expected)
        assert describe_commands(twin.handle(event)) == describe_commands(expected)
        assert engine.state_digest() == twin.state_digest()
        assert isinstance(engine.policy, RollingPolicy)
        most = max(most, stays(engine.policy))
    assert most > 0


@pytest.mark.extended
@pytest.mark.parametrize("seed", [3, 7, 11])
def test_a_policy_without_its_state_resumes_the_remaining_jobs(seed: int) -> None:
    """Between slots the policy knows from placements and promises that jobs stay."""
    on, jobs, _ = lasting(seed)
    taken_up = 0
    seen = EventRecorder()
    Simulation(on, jobs, rolling(on)).run([seen])
    for cut in range(1, len(seen.events)):
        if not isinstance(seen.events[cut], SlotBegan):
            continue
        engine = Engine(on, rolling(on), saves_policy_state=False)
        for event in seen.events[:cut]:
            engine.handle(event)
        again = restore(
            json.loads(json.dumps(snapshot(engine))), rolling(on), with_policy_state=False
        )
        engine.handle(seen.events[cut])
        again.handle(seen.events[cut])
        assert isinstance(engine.policy, RollingPolicy)
        assert isinstance(again.policy, RollingPolicy)
        for name, record in engine.open_jobs.items():
            if record.status is not Status.ADMITTED or record.promise is None:
                continue
            row = engine.policy._state.jobs.rows[name]
            other = again.policy._state.jobs.rows[name]
            if row in engine.policy._state.plan.pinned:
                taken_up += other in again.policy._state.plan.pinned
    assert taken_up > 2

"""`rolling` if restarts cost: promised jobs that run are planned to keep their servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.events import (
    CapacityChanged,
    Command,
    Decided,
    JobCancelled,
    JobsArrived,
    Reject,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import Deadline
from shadowprice.engine import Engine
from shadowprice.policies.bags.planner import CopyPlan
from shadowprice.policies.registry import make_policy
from shadowprice.policies.rolling.policy import RollingPolicy
from shadowprice.policies.rolling.state import PinnedPlan
from tests.support.bag_cases import build_bag, exponential, place_cluster
from tests.support.rolling_cases import gpus, promises, rolling, training


def restarting(cluster: Cluster, name: str, restart: Fraction, **changes: Any) -> Job:
    """Return a job of 8 worker-slots on at most 4 GPUs that loses a part of a slot by a move."""
    return replace(training(cluster, name, **changes), restart=restart)


def ran(engine: Engine, slot: int, moved: frozenset[str] = frozenset()) -> None:
    """End a slot in which jobs yield what they declare, a restart included where they moved."""
    gained = {
        name: min(
            engine.jobs[name].job.gain(placement.total_workers, moved=name in moved),
            engine.jobs[name].remaining,
        )
        for name, placement in engine.running.items()
    }
    engine.handle(SlotEnded(slot, gained))


@pytest.mark.parametrize(("restart", "now"), [(Fraction(1, 4), True), (Fraction(1, 2), False)])
def test_promise_with_a_free_start_is_not_started_early(restart: Fraction, *, now: bool) -> None:
    """A start on one GPU would waste what the plan counts on: that of the slot with four."""
    on = gpus(1, 4)
    engine = rolling(on, steady=True)  # the plan stays in force
    others = [
        training(on, name, epochs=1, chunks=workers, utility=Deadline(50.0, 0.0))
        for name, workers in (("b", 3), ("c", 1))
    ]
    job = restarting(on, "a", restart, utility=Deadline(10.0, 3.0))
    promised = promises(engine.handle(JobsArrived(0, (*others, job))))
    assert sorted(promised) == [("a", 3), ("b", 0), ("c", 0)]
    engine.handle(JobCancelled(0, "c"))
    repromised = []
    for slot in range(4):
        repromised += promises(engine.handle(SlotBegan(slot)))
        if slot == 0:
            assert ("a" in engine.running) is now
        # The worst case: it moves in every slot but the one in which it starts.
        begun = {name for name in engine.running if engine.jobs[name].started != slot}
        ran(engine, slot, frozenset(begun))
    assert not repromised
    assert engine.jobs["a"].completion is not None


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("restart", [Fraction(1, 2), Fraction(3, 4)])
def test_the_plan_of_a_job_that_stays_counts_no_restarts(restart: Fraction, steady: bool) -> None:
    # With a restart in every slot, "a" would use all GPUs until it is due.
    on = gpus(1, 4)
    engine = rolling(on, steady=steady)
    first = restarting(on, "a", restart, utility=Deadline(10.0, 3.0))
    promised = promises(engine.handle(JobsArrived(0, (first,))))
    assert promised == [("a", 3)]
    engine.handle(SlotBegan(0))
    assert engine.running["a"].total_workers == 4
    ran(engine, 0)
    second = training(on, "b", arrival=1, utility=Deadline(10.0, 2.0))
    assert promises(engine.handle(JobsArrived(1, (second,)))) == [("b", 3)]
    for slot in range(1, 4):
        engine.handle(SlotBegan(slot))
        ran(engine, slot)
    assert engine.jobs["b"].completion in (2, 3)
    assert engine.jobs["a"].completion == 1


@pytest.mark.parametrize("change", ["none", "resumed", "lost", "shrunk", "no worker"])
def test_a_promise_of_a_plan_that_never_moves_survives_changes_before_it_starts(
    change: str,
) -> None:
    # With a restart in every slot eight slots of work on one GPU take sixteen.
    on = gpus(2, 1)
    engine = rolling(on)
    job = restarting(on, "a", Fraction(1, 2), epochs=8, chunks=1, utility=Deadline(10.0, 7.0))
    assert promises(engine.handle(JobsArrived(0, (job,)))) == [("a", 7)]
    assert isinstance(engine.policy, RollingPolicy)
    (plan,) = engine.policy._state.plan.pinned.values()
    server = on.names[int(plan.servers[0])]
    match change:
        case "resumed":
            engine.policy.resume(engine.view)
        case "lost":
            engine.handle(ServerLost(0, server))
        case "shrunk":
            engine.handle(CapacityChanged(0, {server: ServerState(Role.WORKER, {"gpu": 500})}))
        case "no worker":
            engine.handle(CapacityChanged(0, {server: ServerState(Role.PS, {"gpu": 1000})}))
    for slot in range(8):
        assert not promises(engine.handle(SlotBegan(slot)))
        ran(engine, slot)
    assert engine.jobs["a"].completion == 7


def test_a_job_that_only_a_plan_that_never_moves_completes_is_refused_for_the_right_reason() -> (
    None
):
    on = gpus(1, 1)
    first, second = (
        restarting(on, name, Fraction(1, 2), epochs=8, chunks=1, utility=Deadline(10.0, 7.0))
        for name in ("a", "b")
    )
    engine = rolling(on, prices="given", price=0.0, standby=False)
    engine.handle(JobsArrived(0, (first,)))
    (late,) = refusals(engine.handle(JobsArrived(0, (second,))))
    assert late.reason is RefusalReason.NO_ROOM
    engine = rolling(on, prices="given", price=100.0, standby=False)
    (poor,) = refusals(engine.handle(JobsArrived(0, (first,))))
    assert poor.reason is RefusalReason.PRICE
    assert poor.cost == 800.0  # eight slots of the only GPU


def refusals(commands: Iterable[Command]) -> list[Refusal]:
    """Return the refusals among commands."""
    decisions = [event.decision for event in commands if isinstance(event, Decided)]
    return [decision.refusal for decision in decisions if isinstance(decision, Reject)]


@pytest.mark.parametrize("most", [2, 3, 4])
def test_the_narrowest_plan_that_never_moves_is_tried_too(most: int) -> None:
    # Beside a promise on three GPUs only one worker fits; the payoffs of more are as large.
    on = gpus(1, 4)
    engine = rolling(on, prices="given", price=0.0)
    wide = training(on, "c", epochs=12, chunks=3, worker_range=(3, 3), utility=Deadline(10.0, 11.0))
    narrow = restarting(
        on, "a", Fraction(19, 20), epochs=12 // most, chunks=most, worker_range=(1, most),
        utility=Deadline(10.0, 11.0),
    )  # fmt: skip
    assert promises(engine.handle(JobsArrived(0, (wide,)))) == [("c", 11)]
    assert promises(engine.handle(JobsArrived(0, (narrow,)))) == [("a", 11)]


def test_without_pinned_plans_the_job_is_infeasible() -> None:
    on = gpus(1, 4)
    engine = rolling(on)
    first = restarting(on, "a", Fraction(1, 2), utility=Deadline(10.0, 3.0))
    second = training(on, "b", arrival=0, utility=Deadline(10.0, 3.0))
    assert promises(engine.handle(JobsArrived(0, (first,)))) == [("a", 3)]
    assert promises(engine.handle(JobsArrived(0, (second,)))) == []  # it has not begun to stay


def test_pinned_job_scales_up_into_free_capacity_and_keeps_it() -> None:
    on = gpus(1, 4)
    engine = rolling(on)
    wide = training(on, "x", epochs=2, chunks=3, utility=Deadline(100.0, 1.0))
    long = restarting(on, "a", Fraction(1, 10), epochs=5, utility=Deadline(50.0, 40.0))
    engine.handle(JobsArrived(0, (wide, long)))
    assert engine.jobs["a"].promise == 40
    held = []
    for slot in range(8):
        if "a" not in engine.open_jobs:
            break
        before = engine.running.get("a")
        engine.handle(SlotBegan(slot))
        held.append(engine.running["a"].total_workers)
        moved = before is not None and before != engine.running["a"]
        ran(engine, slot, frozenset({"a"} if moved else ()))
    assert held == [1, 1, 4, 4, 4, 4, 4]
    assert engine.jobs["a"].completion is not None


def test_pinned_job_does_not_scale_up_if_it_would_return_too_late() -> None:
    # Four workers gain 1.24 times as much as one after a restart. But the next slot may have a
    # restart too: then the job would complete a slot after its plan.
    on = gpus(1, 4)
    engine = rolling(on)
    wide = training(on, "x", epochs=2, chunks=3, utility=Deadline(100.0, 1.0))
    other = restarting(
        on, "a", Fraction(69, 100), minibatches=15, epochs=1, chunks=4, utility=Deadline(50.0, 40.0)
    )
    engine.handle(JobsArrived(0, (wide, other)))
    assert engine.jobs["a"].promise == 40
    held = []
    for slot in range(6):
        engine.handle(SlotBegan(slot))
        held.append(engine.running["a"].total_workers)
        ran(engine, slot)
    assert held == [1, 1, 1, 1, 1, 1]
    assert engine.jobs["a"].completion == 5


def test_pinned_job_is_moved_for_an_otherwise_infeasible_promise() -> None:
    on = gpus(1, 4)
    engine = rolling(on)
    long = restarting(on, "a", Fraction(1, 10), epochs=8, utility=Deadline(10.0, 60.0))
    assert promises(engine.handle(JobsArrived(0, (long,)))) == [("a", 60)]
    for slot in range(2):
        engine.handle(SlotBegan(slot))
        assert engine.running["a"].total_workers == 4
        ran(engine, slot)
    urgent = training(on, "b", arrival=2, utility=Deadline(10.0, 1.0))
    assert promises(engine.handle(JobsArrived(2, (urgent,)))) == [("b", 3)]
    moved: frozenset[str] = frozenset()
    for slot in range(2, 20):
        before = engine.running.get("a")
        engine.handle(SlotBegan(slot))
        if slot == 2:
            assert engine.running["b"].total_workers == 4
        moved = frozenset({"a"} if engine.running.get("a") != before else ())
        ran(engine, slot, moved)
    assert engine.jobs["b"].completion == 3
    assert engine.jobs["a"].completion is not None


@pytest.mark.parametrize(("steady", "workers"), [(False, 1), (True, 4)])
def test_live_pinned_job_keeps_its_margin_against_new_requests(steady: bool, workers: int) -> None:
    # Capacity that it could spare is offered to arrivals, but not live, because it may run slower
    # than stated.
    on = gpus(1, 4)
    engine = rolling(on, steady=steady)
    long = restarting(on, "a", Fraction(1, 10), epochs=8, utility=Deadline(10.0, 60.0))
    engine.handle(JobsArrived(0, (long,)))
    for slot in range(2):
        engine.handle(SlotBegan(slot))
        ran(engine, slot)
    policy = engine.policy
    assert isinstance(policy, RollingPolicy)
    engine.handle(JobsArrived(2, (training(on, "b", arrival=2, utility=Deadline(1.0, 30.0)),)))
    [plan] = policy._state.plan.pinned.values()
    assert plan.workers.sum() == workers


def test_lost_server_ends_a_pinned_plan() -> None:
    on = gpus(2, 2)
    engine = rolling(on)
    long = restarting(on, "a", Fraction(1, 4), epochs=4, utility=Deadline(10.0, 20.0))
    engine.handle(JobsArrived(0, (long,)))
    for slot in range(2):
        engine.handle(SlotBegan(slot))
        ran(engine, slot)
    assert engine.running["a"].servers == (0, 1)
    engine.handle(ServerLost(2, on.names[1]))
    for slot in range(2, 15):
        if "a" not in engine.open_jobs:
            break
        engine.handle(SlotBegan(slot))
        assert engine.running["a"].servers == (0,)
        ran(engine, slot, frozenset({"a"} if slot == 2 else ()))
    completion, promise = engine.jobs["a"].completion, engine.jobs["a"].promise
    assert completion is not None
    assert promise == 20 >= completion


@pytest.mark.parametrize("server", [0, 1])
def test_bag_copies_are_planned_beside_pinned_jobs(server: int) -> None:
    on = place_cluster(2, 1)
    policy = make_policy("rolling", PolicyContext(on), {})
    assert isinstance(policy, RollingPolicy)
    jobs, count = policy._state.jobs, np.ones(1, np.int64)
    row = jobs.add(training(on, "a"))
    placement = np.array([server]), count, np.zeros(1, np.int64)
    policy._state.plan.pinned = {row: PinnedPlan.of(jobs.arrays, row, 0, 9, *placement)}
    wanted = CopyPlan(3, 4, (), np.ones(2, np.int64), 0.0)
    later = build_bag(on, exponential(1, 0.3, 0.2), deadline=10.0)
    result = policy._bag_scheduler._assign_servers(policy._state, 0, later, wanted)
    assert result is not None
    assert result.servers.tolist() == [1 - server]
    both = CopyPlan(3, 4, (), np.full(2, 2), 0.0)
    assert policy._bag_scheduler._assign_servers(policy._state, 0, later, both) is None
    after = CopyPlan(10, 11, (), np.full(2, 2), 0.0)
    assert policy._bag_scheduler._assign_servers(policy._state, 0, later, after) is not None

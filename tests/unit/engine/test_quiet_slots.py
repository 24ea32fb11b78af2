"""Quiet slots that an engine passes at once, and those that it doesn't pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shadowprice.core.errors import PolicyError
from shadowprice.core.events import (
    Command,
    Decision,
    JobsArrived,
    Pause,
    Place,
    PolicyEvent,
    ServerLost,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.policy import Capabilities, View
from shadowprice.core.schedule import Placement
from shadowprice.engine import Engine
from tests.support.scripted_policy import Scripted, commit
from tests.support.workloads import make_cluster, make_job

PLACEMENT = Placement((0, 3), (4, 0), (0, 1))


class Holding(Scripted):
    """Places the job when it arrives, and holds decisions for a number of slots."""

    def __init__(self, held: int) -> None:
        super().__init__(_place_on_arrival, plans=False, wakes=True)
        self.capabilities = Capabilities(wakes_every_slot=True, holds=True)
        self.held = held

    def hold(self, view: View, progress: Mapping[str, int], slots: int) -> int:
        if self.held < 0:
            raise ValueError("holds nothing")
        self.offered = view.slot, dict(progress), slots
        return min(slots, self.held)

    def held_prices(self, slots: range) -> NDArray[np.float64]:
        raise NotImplementedError  # it posts no prices


def _place_on_arrival(_: View, event: PolicyEvent) -> Iterable[Decision]:
    return (Place("job", PLACEMENT),) if isinstance(event, JobsArrived) else ()


def running_engine(policy: Scripted | None = None, until: int | None = None) -> Engine:
    """Return an engine with a job that has run in slot 0 and takes 20 slots."""
    cluster = make_cluster()
    policy = policy or Scripted(_place_on_arrival, plans=False)
    engine = Engine(cluster, policy, until=until, saves_policy_state=False)
    engine.handle(JobsArrived(0, (make_job(cluster, epochs=20),)))
    run_slot(engine)
    return engine


def run_slot(engine: Engine) -> list[Command]:
    slot = engine.slot
    return [*engine.handle(SlotBegan(slot)), *engine.handle(SlotEnded(slot, {"job": 4}))]


def test_quiet_slots_end_before_the_job_completes() -> None:
    fast, slow = running_engine(), running_engine()
    assert fast.jobs["job"].job.required == 80
    assert fast.pass_quiet_slots({"job": 4}, 1000) == 18
    for _ in range(18):
        assert run_slot(slow) == []
    assert fast.slot == slow.slot == 19
    assert fast.state_digest() == slow.state_digest()
    assert fast.last == slow.last
    assert fast.pass_quiet_slots({"job": 4}, 1000) == 0
    assert run_slot(fast) == run_slot(slow) != []
    assert fast.state_digest() == slow.state_digest()


def test_quiet_slots_end_with_the_timespan() -> None:
    engine = running_engine(until=7)
    assert engine.pass_quiet_slots({"job": 4}, 1000) == 6
    assert engine.slot == 7


@pytest.mark.parametrize("progress", [{}, {"other": 4}, {"job": 4, "other": 4}])
def test_progress_must_be_that_of_the_running_jobs(progress: dict[str, int]) -> None:
    assert running_engine().pass_quiet_slots(progress, 10) == 0


@pytest.mark.parametrize("gained", [-1, 1.5, 10**30])
def test_invalid_progress_is_left_to_the_event_that_refuses_it(gained: int) -> None:
    engine = running_engine()
    assert engine.pass_quiet_slots({"job": gained}, 10) == 0
    assert engine.slot == 1


def test_a_slot_whose_placements_change_is_not_quiet() -> None:
    paused = running_engine(
        Scripted(
            lambda view, event: (
                (Pause("job"),) if isinstance(event, ServerLost) else _place_on_arrival(view, event)
            ),
            plans=False,
        )
    )
    paused.handle(ServerLost(1, paused.cluster.names[1]))
    assert paused.pass_quiet_slots({"job": 4}, 10) == 0


def test_a_slot_that_runs_or_has_a_plan_is_not_quiet() -> None:
    engine = running_engine()
    engine.handle(SlotBegan(1))
    assert engine.pass_quiet_slots({"job": 4}, 10) == 0
    planned = Engine(
        make_cluster(),
        Scripted(lambda *_: (commit((1, 0, 4, 0), (1, 3, 0, 1), (2, 0, 4, 0), (2, 3, 0, 1)),)),
        saves_policy_state=False,
    )
    planned.handle(JobsArrived(0, (make_job(planned.cluster),)))
    assert planned.pass_quiet_slots({}, 10) == 0


def test_a_unit_of_work_passes_no_slots() -> None:
    engine = running_engine()
    with engine.atomic():
        assert engine.pass_quiet_slots({"job": 4}, 10) == 0
    assert engine.pass_quiet_slots({"job": 4}, 10) == 10


def test_a_policy_that_wakes_in_every_slot_limits_quiet_slots() -> None:
    wakes = running_engine(Scripted(_place_on_arrival, plans=False, wakes=True))
    assert wakes.pass_quiet_slots({"job": 4}, 10) == 0
    for held, passed in ((0, 0), (3, 3), (50, 10)):
        policy = Holding(held)
        assert running_engine(policy).pass_quiet_slots({"job": 4}, 10) == passed
        assert policy.offered == (1, {"job": 4}, 10)


@pytest.mark.parametrize("held", [-1, 11, 2.0, np.int64(3)])
def test_a_policy_holds_at_most_the_offered_slots(held: Any) -> None:
    policy = Holding(3)
    policy.hold = lambda *_: held  # type: ignore[method-assign]
    engine = running_engine(policy)
    before = engine.state_digest()
    with pytest.raises(PolicyError, match="of 10 slots"):
        engine.pass_quiet_slots({"job": 4}, 10)
    assert engine.state_digest() == before


def test_a_live_run_passes_no_slots() -> None:
    """Its limits are checked when a slot ends."""
    cluster = make_cluster()
    engine = Engine(cluster, Scripted(_place_on_arrival, plans=False), acknowledges=True)
    engine.handle(JobsArrived(0, (make_job(cluster, epochs=20),)))
    run_slot(engine)
    assert engine.pass_quiet_slots({"job": 4}, 10) == 0


def test_a_policy_that_fails_to_hold_leaves_the_engine_unchanged() -> None:
    policy = Holding(-1)
    engine = running_engine(policy)
    before = engine.state_digest()
    with pytest.raises(ValueError, match="holds nothing"):
        engine.pass_quiet_slots({"job": 4}, 10)
    assert engine.state_digest() == before
    policy.held = 2
    assert engine.pass_quiet_slots({"job": 4}, 10) == 2

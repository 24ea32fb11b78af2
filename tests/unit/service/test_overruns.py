"""Jobs that take a little longer than they state, live: each runs to its end without a pause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from shadowprice.executors.contract import Ending
from shadowprice.service.state.job_views import State
from tests.support.virtual_worlds import LIVE, LiveJob, LiveWorld, Played, play


def _jobs(count: int, most: float, deadline: int) -> tuple[LiveJob, ...]:
    """Return jobs stated as four slots that take 5 % to ``most`` longer."""
    utility = {"kind": "deadline", "value": 10, "by": f"{deadline} slots"}
    return tuple(
        LiveJob(
            stated=4,
            utility=utility,
            error=0.05 + (most - 0.05) * (number % 4) / 3,
            tenant=number % 2,
        )
        for number in range(count)
    )


def _check(played: Played, *, seconds: float) -> None:
    assert played.over
    admitted = [name for name, view in played.views.items() if view.state is not State.REFUSED]
    assert admitted
    assert all(played.views[name].state is State.FINISHED for name in admitted)
    assert all(generation.spec.generation == 1 for generation in played.generations)
    assert all(generation.ending is Ending.DONE for generation in played.generations)
    assert played.seconds <= seconds


@pytest.mark.parametrize("policy", LIVE)
@pytest.mark.parametrize(("slot", "most"), [(1, 0.125), (5, 0.2)])
def test_four_jobs_on_two_places_end_in_twelve_slots(policy: str, slot: int, most: float) -> None:
    played = play(LiveWorld(slot, (1, 1), (1.0, 1.0), _jobs(4, most, 80)), policy)
    assert all(view.state is State.FINISHED for view in played.views.values())
    _check(played, seconds=12.0 * slot)


@pytest.mark.extended
@pytest.mark.parametrize("policy", LIVE)
def test_sixty_jobs_on_twelve_places_run_once_each(policy: str) -> None:
    world = LiveWorld(1, (3, 3, 3, 3), (1.0,) * 4, _jobs(60, 0.125, 80))
    # OASiS and PD-ORS admit all. A server that is empty later is cheaper than one in use, and no
    # job loses anything before its deadline.
    _check(play(world, policy), seconds=80.0 if policy in {"oasis", "pdors"} else 30.0)


@pytest.mark.parametrize("policy", LIVE)
def test_a_job_that_hangs_is_abandoned_with_a_reason_once_it_is_worth_nothing(policy: str) -> None:
    utility = {"kind": "deadline", "value": 10, "by": "6 slots"}
    hangs = LiveJob(stated=2, utility=utility, error=1000.0)
    waits = LiveJob(submitted=1.0, stated=2)
    world = LiveWorld(5, (1,), (1.0,), (hangs, waits))
    played = play(world, policy, limit_slots=30.0)
    assert played.over
    assert played.views[world.key(policy, 1)].state is State.FINISHED
    view = played.views[world.key(policy, 0)]
    assert view.state is State.FAILED
    assert view.reason is not None
    assert "without an end" in str(view.reason)


@dataclass(frozen=True)
class BudgetWorld(LiveWorld):
    """A world whose first tenant has a budget of 20 points, and the other one more than enough."""

    def cluster(self, policy: str) -> dict[str, Any]:
        tenants = [
            {"name": name, "budget": {"points": points, "period": "7d"}}
            for name, points in (("a", 20), ("b", 100_000))
        ]
        return {**super().cluster(policy), "tenants": tenants}


@pytest.mark.parametrize("policy", ["oasis", "pdors", "rolling"])
def test_overrunning_job_pays_until_its_budget_ends_then_saves_and_stops(policy: str) -> None:
    runs_on = LiveJob(stated=2, utility={"kind": "constant", "value": 10}, error=1000.0, save=0.1)
    waits = tuple(LiveJob(submitted=1.0 + number, stated=2, tenant=1) for number in range(6))
    world = BudgetWorld(5, (2,), (1.0,), (runs_on, runs_on, *waits))
    played = play(world, policy, limit_slots=60.0)
    assert played.over
    for number in range(2):
        view = played.views[world.key(policy, number)]
        if view.state is State.REFUSED:
            continue
        assert view.state is State.FAILED
        assert view.reason is not None
        assert view.reason["code"] == "budget"
        assert view.overrun_slots >= 1
        [generation] = [
            generation for generation in played.generations if generation.spec.job == view.key
        ]
        assert generation.ending is Ending.STOPPED
        assert generation.saved > generation.base  # on SIGTERM
    assert any(view.state is State.FINISHED for view in played.views.values())

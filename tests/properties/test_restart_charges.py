"""Planners that do not charge restarts: their plans fall short, are made anew, and stay right."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shadowprice.core.policy import Capabilities, Status
from shadowprice.engine import Engine
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation
from tests.policy_worlds import every_policy, fresh, world_of


class Books(Observer):
    """Checks reservations in every slot, and counts jobs that were planned more than once."""

    def __init__(self) -> None:
        self.again: set[str] = set()

    def slot_running(self, engine: Engine, slot: int) -> None:
        del slot
        assert (engine.ledger.recount() == engine.ledger.used).all()
        assert (engine.ledger.used <= engine.ledger.capacity).all()
        self.again |= {name for name, one in engine.open_jobs.items() if one.plans > 1}


def planners() -> list[str]:
    """Return the policies that plan ahead without charging restarts."""
    found = []
    for name in every_policy():
        on, jobs, _ = world_of(name, 1)
        does: Capabilities = fresh(name, on, jobs, 1).capabilities
        if does.plans_ahead and not does.charges_restarts:
            found.append(name)
    return found


PLANNERS = planners()


def test_those_are_the_planners_of_the_papers() -> None:
    assert set(PLANNERS) == {"astraea", "batchsche", "oasis", "optimum", "pdors"}


@pytest.mark.parametrize("policy", PLANNERS)
def test_plans_that_fall_short_by_restarts_are_made_anew(policy: str) -> None:
    again, ended = 0, 0
    for seed in range(1, 9):
        on, jobs, incidents = world_of(policy, seed)
        rng = np.random.default_rng(seed)
        lossy: list[Any] = [
            replace(one, restart=Fraction(int(rng.integers(1, 4)), 4)) for one in jobs
        ]
        watch = Books()
        made = fresh(policy, on, lossy, seed)
        engine = Simulation(on, lossy, made, until=400, incidents=incidents, seed=seed).run([watch])
        assert engine.jobs.keys() == {one.name for one in lossy}
        for one in engine.jobs.values():
            assert (one.status is Status.FINISHED) == (one.progress >= one.job.required)
            # Nothing waits for ever: what cannot be kept is dropped, and says why.
            assert one.status is not Status.ADMITTED
            if one.status in {Status.REFUSED, Status.DROPPED}:
                assert one.refusal is not None
            ended += one.status is Status.FINISHED
        again += len(watch.again)
        if not engine.open_jobs:
            assert not engine.ledger.used.any()
    # Gangs of Astraea's rounds stay where they begin: they have nothing to restart for.
    assert again or policy in {"astraea", "batchsche"}
    assert ended


class Ends(Observer):
    """Holds a run to so many slots."""

    def slot_running(self, engine: Engine, slot: int) -> None:
        assert slot < 2000, {name: one.remaining for name, one in engine.open_jobs.items()}


@pytest.mark.parametrize("restart_first", [False, True])
@pytest.mark.parametrize("policy", PLANNERS)
def test_jobs_that_lose_a_whole_slot_by_every_move_end_all_the_same(
    policy: str, *, restart_first: bool
) -> None:
    """A plan that is just long enough, and moves in every slot, could be made anew for ever."""
    for seed in range(1, 13):
        on, jobs, incidents = world_of(policy, seed)
        on = replace(on, restart_first=restart_first)
        lossy: list[Any] = [replace(one, restart=Fraction(1)) for one in jobs]
        made = fresh(policy, on, lossy, seed)
        engine = Simulation(on, lossy, made, incidents=incidents, seed=seed).run([Ends()])
        assert not engine.open_jobs
        for one in engine.jobs.values():
            assert (one.status is Status.FINISHED) == (one.progress >= one.job.required)

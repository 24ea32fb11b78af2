"""Reading posted prices changes neither the policy nor any later decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from shadowprice.core.events import DriverEvent
from shadowprice.core.policy import Policy, PolicyContext, as_priced_policy
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.service.clock import SECOND, SlotCalendar
from shadowprice.service.state.prices import prices
from shadowprice.simulator.driver import Simulation
from tests.support.examples import sample
from tests.support.policy_cases import build_policy, build_world, policy_names
from tests.support.recorded_decisions import CommandHasher

CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("astraea", {}),
    ("batchsche", {}),
    ("oasis", {"prices": "online"}),
    ("oasis", {"prices": "online", "lower": "clearing"}),
    ("oasis", {"prices": "offline"}),
    ("pdors", {"prices": "online"}),
    ("rolling", {}),
    ("rolling", {"standby": "false"}),
)
CALENDAR = SlotCalendar(0, 60 * SECOND)


class PriceReader(Observer):
    """Reads the prices of several slots before every event, and in every slot that runs."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.read = 0

    def before_event(self, engine: Engine, event: DriverEvent) -> None:
        self._read(engine)

    def on_slot(self, engine: Engine, slot: int) -> None:
        self._read(engine)

    def _read(self, engine: Engine) -> None:
        before = engine.session.dump_state(), engine.state_digest()
        for slots in self.rng.integers(1, 6, 2).tolist():
            result = prices(engine, CALENDAR, "policy", slots)
            self.read += len(result.slots)
            if not engine.open_jobs:  # the engine may skip slots
                later = engine.slot + int(self.rng.integers(0, 2 * engine.cluster.horizon))
                result = prices(engine, CALENDAR, "policy", slots, later)
                assert [row.slot for row in result.slots] == [
                    *range(later, later + len(result.slots))
                ]
            assert (engine.session.dump_state(), engine.state_digest()) == before


def test_every_policy_that_posts_prices_is_tested() -> None:
    posting = set()
    for name in policy_names():
        cluster, jobs, _ = build_world(name, 0)
        if as_priced_policy(build_policy(name, cluster, jobs, 0)) is not None:
            posting.add(name)
    assert posting == {name for name, _ in CASES}


@pytest.mark.parametrize("seed", sample(range(3)))
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_reading_prices_changes_nothing(name: str, settings: Mapping[str, Any], seed: int) -> None:
    cluster, jobs, incidents = build_world(name, seed)

    def decisions(*observers: Observer) -> str:
        hasher = CommandHasher()
        policy: Policy = make_policy(name, PolicyContext(cluster, jobs, None, seed), settings)
        Simulation(cluster, jobs, policy, incidents=incidents, seed=seed).run([hasher, *observers])
        return hasher.hash.hexdigest()

    reader = PriceReader(seed)
    assert decisions(reader) == decisions()
    assert reader.read

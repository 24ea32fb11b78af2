"""Every policy under random events: it raises no error, and breaks no rule of the engine.

Revisions, cordons, lost servers, resyncs and changes of the timespan come at random moments.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shadowprice.core.errors import EventError, InputError
from shadowprice.core.events import (
    CapacityChanged,
    DriverEvent,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    TimespanChanged,
)
from shadowprice.core.policy import PolicyContext
from shadowprice.core.refusal import RevisionRefusedError
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy, policies
from tests.properties.test_interruptions import InterruptedWorld
from tests.support.astraea_cases import random_jobs, shared_cluster
from tests.support.examples import sample
from tests.support.policy_cases import PLACE_COUNTING_POLICIES, build_world
from tests.support.validation import validate_state
from tests.support.workloads import make_cluster, random_job

SLOTS = 25


class EventfulWorld(InterruptedWorld):
    """One engine whose policy must decide on every valid event."""

    def __init__(self, policy: str, seed: int) -> None:
        self.policy, self.seed = policy, seed
        self.rng = np.random.default_rng([seed, 1234])
        self.cluster, self.jobs, _ = build_world(policy, seed)
        if policy in PLACE_COUNTING_POLICIES:
            if self.rng.random() < 0.4:
                self.cluster = shared_cluster(1, {"a": {"worker": 2, "ps": 1}})
                self.jobs = random_jobs(self.cluster, 10, seed)
        elif self.rng.random() < 0.3:
            self.cluster = make_cluster(0, 0, int(self.rng.integers(1, 3)), horizon=20)
            names = [f"job-{index}" for index in range(12)]
            self.jobs = [random_job(self.cluster, self.rng, name, latest=15) for name in names]
        self.coming = sorted(self.jobs, key=lambda job: job.arrival)
        until = int(self.rng.integers(5, 30)) if self.rng.random() < 0.3 else None
        self.engine = Engine(
            self.cluster,
            make_policy(policy, PolicyContext(self.cluster, self.jobs, until, seed), {}),
            until=until,
            saves_policy_state=bool(self.rng.integers(2)),
            acknowledges=bool(self.rng.integers(2)),
        )
        self.added = 0

    def run(self) -> None:
        for _ in range(SLOTS):
            self.send_random_events()
            while not self.send(SlotBegan(self.engine.slot)):
                self.send_random_events()
            self.send_random_events()
            assert self.send(self.slot_end())

    def send(self, event: DriverEvent) -> bool:
        """Send an event; return whether it was valid, and admitted if it is a revision."""
        engine = self.engine
        if self.rng.random() < 0.06:
            engine.session.resync()
        digest = engine.state_digest()
        try:
            engine.handle(event)
        except (EventError, InputError, RevisionRefusedError) as error:
            # Shares of tenants must add up to the places of the changed servers.
            if isinstance(error, InputError) and not isinstance(event, CapacityChanged):
                raise
            assert engine.state_digest() == digest
            return False
        validate_state(engine.state)
        return True

    def random_event(self) -> DriverEvent | None:
        engine, slot, kind = self.engine, self.engine.slot, self.rng.random()
        if kind < 0.06:
            end = slot + int(self.rng.integers(-2, 12))
            return TimespanChanged(slot, max(0, end) if self.rng.random() < 0.5 else None)
        busy = sorted({row for placement in engine.running.values() for row in placement.servers})
        if kind < 0.14 and busy:
            return self.server_change(int(self.rng.choice(busy)), cordoned=True)
        return super().random_event()

    def server_event(self) -> DriverEvent | None:
        if self.policy not in PLACE_COUNTING_POLICIES or self.rng.random() < 0.3:
            return super().server_event()
        engine, names = self.engine, self.engine.cluster.names
        row, kind = int(self.rng.integers(len(names))), int(self.rng.integers(5))
        if kind < 3:
            return self.server_change(row, drained=kind == 0, cordoned=kind == 1)
        if engine.lost and kind == 3:
            return ServerBack(engine.slot, names[min(engine.lost)])
        return ServerLost(engine.slot, names[row])

    def server_change(
        self, row: int, *, drained: bool = False, cordoned: bool = False
    ) -> CapacityChanged:
        cluster = self.engine.cluster
        amounts = dict(zip(cluster.resources, cluster.capacity[row].tolist(), strict=True))
        state = ServerState(cluster.roles[row], amounts)
        changed = {cluster.names[row]: replace(state, drained=drained, cordoned=cordoned)}
        return CapacityChanged(self.engine.slot, changed)


# An optimum knows all jobs and the timespan beforehand, so they can't change.
@pytest.mark.parametrize(
    "policy", [name for name, info in policies().items() if not info.knows_all_jobs]
)
def test_a_policy_decides_on_every_event(policy: str) -> None:
    for seed in sample(range(20)):
        EventfulWorld(policy, seed).run()

"""Commands executed in any order that `after` allows never overbook a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import (
    Acknowledged,
    Command,
    JobsArrived,
    Resize,
    SlotBegan,
    SlotEnded,
    Start,
    Stop,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from tests.support.examples import example_count
from tests.support.policies import RandomPolicy
from tests.support.workloads import make_cluster, make_job

SEEDS = st.integers(0, 2**32 - 1)


class Obedient:
    """Executes commands, each at any time that is allowed.

    A generation starts once the ends of all commands in its `after` were reported, and earlier
    generations of its job are over. Everything else may happen at any time.
    """

    def __init__(self, cluster: Cluster, jobs: Mapping[str, Job], rng: np.random.Generator) -> None:
        self._on, self._jobs, self._rng = cluster, jobs, rng
        self._runs: dict[str, tuple[int, Start | Resize]] = {}
        self._ends: dict[int, Start | Resize | Stop] = {}
        self._starts: dict[int, Start | Resize] = {}
        self._newest: dict[str, int] = {}
        self._seen: set[int] = set()

    def receive(self, commands: Iterable[Command]) -> None:
        """Receive commands; none is executed yet."""
        for order in commands:
            if isinstance(order, Stop | Resize):
                self._ends[order.id] = order
            if isinstance(order, Start | Resize):
                self._starts[order.id] = order

    def work(self, steps: int) -> tuple[int, ...]:
        """Execute some commands; return those whose end was reported."""
        before = set(self._seen)
        for _ in range(steps):
            ready = [
                number
                for number, order in self._starts.items()
                if self._seen.issuperset(order.after) and self._over(order)
            ]
            choices = [*((number, False) for number in self._ends), *((n, True) for n in ready)]
            if not choices:
                break
            number, begins = choices[int(self._rng.integers(len(choices)))]
            if begins:
                self._begin(self._starts.pop(number))
            else:
                self._end(self._ends.pop(number))
            self.check()
        return tuple(sorted(self._seen - before))

    def _over(self, order: Start | Resize) -> bool:
        running = self._runs.get(order.job)
        return order.id not in self._ends and (running is None or running[0] >= order.generation)

    def _begin(self, order: Start | Resize) -> None:
        if order.generation > self._newest.get(order.job, 0):  # none that was superseded
            self._newest[order.job] = order.generation
            self._runs[order.job] = order.generation, order
        self._seen.add(order.id)

    def _end(self, order: Start | Resize | Stop) -> None:
        last = order.generation if isinstance(order, Stop) else order.generation - 1
        self._newest[order.job] = max(last, self._newest.get(order.job, 0))
        running = self._runs.get(order.job)
        if running is not None and running[0] <= last:
            del self._runs[order.job]
        self._seen.add(order.id)  # of a resize as well: the generation that it replaces is over

    def running(self, name: str, generation: int) -> bool:
        """Whether this generation of a job runs."""
        return name in self._runs and self._runs[name][0] == generation

    def check(self) -> None:
        """Compare what runs on each server with its capacity."""
        used = np.zeros_like(self._on.capacity)
        for name, (_, order) in self._runs.items():
            one = self._jobs[name]
            for server, workers, ps in zip(
                order.servers, order.placement.workers, order.placement.ps, strict=True
            ):
                row = self._on.index[server]
                used[row] += workers * one.worker + (0 if one.ps is None else ps * one.ps)
        assert (used <= self._on.capacity).all()


@pytest.mark.parametrize("policy", ["wanderer", "rolling", "drf", "las", "oasis"])
@settings(deadline=None, derandomize=True, max_examples=example_count(30))
@given(seed=SEEDS)
def test_no_server_ever_carries_more_than_it_has(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(workers=1, ps=1, both=2, gpus=3)
    made = (
        RandomPolicy(seed)
        if policy == "wanderer"
        else make_policy(policy, PolicyContext(cluster, None), {})
    )
    engine = Engine(cluster, made, acknowledges=True, saves_policy_state=False)
    jobs = {
        name: make_job(cluster, name, arrival=int(rng.integers(12)), epochs=int(rng.integers(1, 6)))
        for name in (f"job-{index}" for index in range(12))
    }
    executor = Obedient(cluster, jobs, rng)
    for slot in range(40):
        arriving = tuple(record for record in jobs.values() if record.arrival == slot)
        if arriving:
            executor.receive(engine.handle(JobsArrived(slot, arriving)))
        executor.receive(engine.handle(SlotBegan(slot)))
        seen = executor.work(int(rng.integers(12)))
        if seen:
            engine.handle(Acknowledged(engine.slot, seen))
        progress = {}
        for name, placement in engine.running.items():
            record = engine.jobs[name]
            gain = record.job.gain(placement.total_workers, colocated=placement.colocated)
            ran = executor.running(name, record.generation)
            progress[name] = min(gain, record.remaining) if ran else 0
        executor.receive(engine.handle(SlotEnded(slot, progress)))
    seen = executor.work(10_000)
    engine.handle(Acknowledged(engine.slot, seen))
    assert not executor._starts  # nothing waits for ever
    assert not executor._ends
    assert not engine.unacknowledged

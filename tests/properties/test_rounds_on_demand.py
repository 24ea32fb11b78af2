"""Rounds on demand against plain loops with a state of their own, on random instances."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from shadowprice.core.events import (
    Command,
    Commit,
    Decided,
    JobCancelled,
    JobEnded,
    JobsArrived,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from tests.oracles.rounds_on_demand import MICRO, Asked, Planned, Rounds
from tests.support.astraea_cases import shared_cluster, shared_job

THETA: Final = 9.0
HORIZON: Final = 32
SLOTS: Final = 40


class Case:
    """One random instance: the engine with the policy, and the loops beside it."""

    def __init__(self, policy: str, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        servers, units = (int(self.draw.integers(1, 4)) for _ in range(2))
        tenants = int(self.draw.integers(1, 4)) if policy == "astraea" else 1
        shares = self.draw.multinomial(servers * units, np.full(tenants, 1 / tenants)).tolist()
        self.tenants = [f"t{number}" for number in range(tenants)]
        self.on = shared_cluster(
            servers,
            {name: {"worker": share} for name, share in zip(self.tenants, shares, strict=True)},
            worker=units,
            ps=0,
            horizon=HORIZON,
        )
        made = make_policy(
            policy,
            PolicyContext(self.on, None, None, 0),
            {
                "theta": {"worker": THETA, "ps": THETA},
                "workers": "rigid" if self.draw.random() < 0.4 else "elastic",
            },
        )
        self.rigid = made.parameters_in_force()["workers"] == "rigid"
        self.engine = Engine(self.on, made, acknowledges=True)
        self.loops = Rounds([units] * servers, shares, THETA, HORIZON, lends=policy == "astraea")
        self.order: list[str] = []
        self.ends: dict[str, int] = {}  # slots that each job really runs
        self.ran: dict[str, int] = {}
        self.seen = {"scheduled": 0, "joined": 0, "passed over": 0, "displaced": 0}

    def job(self, slot: int) -> Job:
        draw, name = self.draw, f"j{len(self.order):02}"
        chunks = int(draw.integers(1, min(4, sum(self.loops.units)) + 1))
        made = shared_job(
            self.on, name, str(draw.choice(self.tenants)), ps=None, gradient=None,
            internal_bandwidth=None, chunks=chunks, epochs=int(draw.integers(1, 7)), minibatches=1,
        )  # fmt: skip
        value = float(draw.choice([0.5, 5.0, 60.0, 1000.0]))
        # It has no checkpoints, so it keeps its servers when it overruns.
        return replace(made, arrival=slot, utility=Constant(value), resumable=None)

    def arrive(self, slot: int) -> None:
        job = self.job(slot)
        commands = self.engine.handle(JobsArrived(slot, (job,)))
        assert not commits(commands)
        self.order.append(job.name)
        counts = [job.max_workers] if self.rigid else job.worker_counts.tolist()
        self.loops.jobs[job.name] = Asked(
            job.name, self.tenants.index(str(job.tenant)), slot, job.required, counts,
            round(job.utility.values(np.array([1]))[0] * MICRO),
        )  # fmt: skip
        self.ends[job.name] = int(self.draw.choice([-1, 0, 0, 0, 1, 3]))
        self.ran[job.name] = 0

    def play(self) -> None:
        for slot in range(SLOTS):
            for _ in range(int(self.draw.choice([0, 0, 1, 2])) if slot < SLOTS // 2 else 0):
                self.arrive(slot)
            if self.draw.random() < 0.05 and self.loops.jobs:
                name = str(self.draw.choice(sorted(self.loops.jobs)))
                self.engine.handle(JobCancelled(slot, name))
                self.loops.leave(name)
            in_progress = self.loops.in_progress(slot)
            chosen = self.begin(slot)
            self.seen["scheduled"] += len(chosen)
            self.seen["joined"] += len(chosen) * (in_progress is not None)
            self.end(slot)
        self.seen["passed over"] = sum(job.passed_over for job in self.loops.jobs.values())

    def begin(self, slot: int) -> dict[str, Commit]:
        result = commits(self.engine.handle(SlotBegan(slot)))
        chosen = {}
        for name, commit in result.items():
            plan = commit.schedule
            on = [0] * len(self.loops.units)
            for at, server, workers, _ in plan.rows():
                if at == plan.start:
                    on[server] = workers
            chosen[name] = Planned(plan.start, plan.completion + 1, on, -1)
            assert len(plan) == (plan.completion + 1 - plan.start) * sum(n > 0 for n in on)
        payoffs = self.loops.begin_slot(slot, chosen)
        assert payoffs.keys() == result.keys()
        for name, commit in result.items():
            assert round(commit.payoff * MICRO) == payoffs[name]
        assert sorted(self.engine.running) == sorted(self.loops.running(slot))
        return result

    def end(self, slot: int) -> None:
        progress = {}
        for name, placement in list(self.engine.running.items()):
            self.ran[name] += 1
            record = self.engine.jobs[name]
            stated = -(-record.job.required // placement.total_workers)
            if self.ran[name] >= max(1, stated + self.ends[name]):
                self.engine.handle(JobEnded(slot + 1, name, record.generation))
                self.loops.leave(name)
            else:
                progress[name] = min(placement.total_workers, record.remaining - 1)
        planned = set(self.loops.plans)
        self.engine.handle(SlotEnded(slot, progress))
        self.loops.end_slot(slot, self.order)
        self.seen["displaced"] += len(planned - set(self.loops.plans))


def commits(commands: list[Command]) -> dict[str, Commit]:
    decisions = (command.decision for command in commands if isinstance(command, Decided))
    return {decision.job: decision for decision in decisions if isinstance(decision, Commit)}


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["astraea", "batchsche"])
def test_rounds_on_demand_are_those_of_plain_loops(policy: str) -> None:
    seen: dict[str, int] = {}
    for seed in range(40):
        case = Case(policy, seed)
        case.play()
        for kind, count in case.seen.items():
            seen[kind] = seen.get(kind, 0) + count
    assert all(seen.values()), seen

"""Cordoned servers under every policy: running jobs stay, and none starts there."""

from __future__ import annotations

import numpy as np
import pytest

from shadowprice.core.events import (
    CapacityChanged,
    JobFailed,
    JobsArrived,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
    Stop,
    TimespanChanged,
)
from shadowprice.core.schedule import Placement
from shadowprice.engine import Engine
from tests.support.examples import sample
from tests.support.policy_cases import build_policy, build_world, policy_names
from tests.support.validation import validate_state

SLOTS = 30


class CordonedWorld:
    """An engine whose servers are cordoned, drained, lost and opened at random.

    Its timespan ends and continues at random too.
    """

    def __init__(self, policy: str, seed: int, *, acknowledges: bool) -> None:
        self.cluster, jobs, _ = build_world(policy, seed)
        self.jobs = jobs
        self.rng = np.random.default_rng(seed)
        made = build_policy(policy, self.cluster, jobs, seed)
        self.engine = Engine(self.cluster, made, acknowledges=acknowledges)
        self.staying: dict[str, dict[str, Placement]] = {}  # by cordoned server
        self.stays = 0  # slots of jobs on cordoned servers

    def run(self) -> None:
        for slot in range(SLOTS):
            arriving = tuple(job for job in self.jobs if job.arrival == slot)
            if arriving:
                self.handle(JobsArrived(slot, arriving))
            self.change_servers(slot)
            self.change_timespan(slot)
            self.handle(SlotBegan(slot))
            self.check_placements()
            self.change_servers(slot + 1)
            self.fail_jobs(slot + 1)
            self.end_slot(slot)

    def handle(self, event: object) -> None:
        """Handle an event; check the state, and that jobs leave cordoned servers only by ending."""
        before = {name for jobs in self.staying.values() for name in jobs}
        commands = self.engine.handle(event)  # type: ignore[arg-type]
        validate_state(self.engine.state)
        if isinstance(event, ServerLost | CapacityChanged | JobFailed):
            return
        for command in commands:
            if isinstance(command, Stop):
                assert command.job not in before or command.finished, command

    def change_servers(self, slot: int) -> None:
        if self.rng.random() < 0.6:
            return
        busy = sorted({row for each in self.engine.running.values() for row in each.servers})
        rows = busy if busy and self.rng.random() < 0.5 else range(self.cluster.servers)
        row = int(self.rng.choice(rows))
        name, role = self.cluster.names[row], self.cluster.roles[row]
        amounts = dict(
            zip(self.cluster.resources, self.cluster.capacity[row].tolist(), strict=True)
        )
        kind = self.rng.choice(["cordon", "cordon", "cordon", "open", "drain", "lose"])
        running, state = dict(self.engine.running), self.engine.state
        if kind in {"drain", "lose"}:
            for job, placement in running.items():
                if row in placement.servers:
                    self.leave(job)
        if kind == "cordon":
            was_open = row not in state.lost
            holders = state.ledger.holders(row)
            self.handle(CapacityChanged(slot, {name: ServerState(role, amounts, cordoned=True)}))
            if was_open:
                self.staying[name] = {
                    job: placement
                    for job, placement in running.items()
                    if row in placement.servers and job in holders
                }
            return
        if kind == "open":
            self.handle(CapacityChanged(slot, {name: ServerState(role, amounts)}))
            if row in state.lost:
                self.handle(ServerBack(slot, name))
        elif kind == "drain":
            self.handle(CapacityChanged(slot, {name: ServerState(role, amounts, drained=True)}))
        else:
            self.handle(ServerLost(slot, name))
        self.staying.pop(name, None)

    def change_timespan(self, slot: int) -> None:
        """End the timespan, so that all jobs stop, or extend it by a few slots."""
        if self.rng.random() < (0.95 if self.engine.until is None else 0.5):
            return
        until = slot if self.engine.until is None else None
        if until is not None:
            for job in self.engine.running:
                self.leave(job)
        self.handle(TimespanChanged(slot, until))

    def fail_jobs(self, slot: int) -> None:
        names = [name for jobs in self.staying.values() for name in jobs]
        names = [name for name in names if name in self.engine.running]
        if names and self.rng.random() < 0.2:
            name = str(self.rng.choice(names))
            generation = self.engine.jobs[name].generation
            self.handle(JobFailed(slot, name, generation, reason="crashed", retries=5))
            self.leave(name)

    def leave(self, job: str) -> None:
        """Stop expecting a job on cordoned servers."""
        for jobs in self.staying.values():
            jobs.pop(job, None)

    def check_placements(self) -> None:
        index = self.cluster.index
        for server, staying in self.staying.items():
            for job, placement in self.engine.running.items():
                if index[server] in placement.servers:
                    assert staying.get(job) == placement, (server, job)
                    self.stays += 1
            for job in staying:
                assert job not in self.engine.open_jobs or job in self.engine.running, job

    def end_slot(self, slot: int) -> None:
        gained = {}
        for name, placement in self.engine.running.items():
            job = self.engine.jobs[name].job
            whole = job.gain(placement.total_workers, colocated=placement.colocated)
            left = job.required - self.engine.jobs[name].progress
            # Some jobs are slower than stated.
            gained[name] = min(left, whole // 2 if self.rng.random() < 0.3 else whole)
        self.handle(SlotEnded(slot, gained, {}))


@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "optimum"])
def test_jobs_stay_on_cordoned_servers_and_none_start_there(policy: str) -> None:
    stays = 0
    for seed in sample(range(16)):
        for acknowledges in (False, True):
            world = CordonedWorld(policy, seed, acknowledges=acknowledges)
            world.run()
            stays += world.stays
    assert stays, "no job ran on a cordoned server"

"""A simulated hour of the service, killed at every crash point.

Crash points lie between any two writes of the store and around every call of the executor. The hour
runs once without a crash. At each point the data that SIGKILL would leave is copied and recovered,
and must equal the state after the last commit. If the data or the world differ from all points
before, a forked process crashes there, continues to the end of the hour, and is checked as every
hour is. Equal data and an equal world have equal futures, so this covers every point.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shadowprice.engine.records import placement_record
from shadowprice.engine.snapshot import snapshot
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import MonotonicWallClock
from shadowprice.service.state.batch import Operation
from shadowprice.service.state.durable_state import CommitResult, DurableState
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.recovery import recover
from shadowprice.service.store import Store
from tests.support.simulated_hours import CLUSTER, Crash, SimulatedHour, run_hour

SAME, OTHER = 0, 3
"""Exit statuses of a killed hour: the result of the uninterrupted hour, or another valid one."""


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def durable_digest(durable: DurableState) -> str:
    """Return the digest of the durable state: plans, promises, commands and accounts.

    Leave out policy state, which a crash may lose, and the free numbers.
    """
    engine = durable.engine
    state = snapshot(engine)
    del state["policy_state"]
    orders = {
        name: [
            type(order).__name__,
            (order.id, order.slot, order.generation, order.plan),
            (sorted(order.after), sorted(order.frees)),
            placement_record(order.placement, engine.cluster.names),
        ]
        for name, order in durable.desired.items()
    }
    accounts = {name: str(account) for name, account in durable.accounts.items()}
    views = {name: view.stored() for name, view in durable.views.items()}
    return _digest(
        state,
        views,
        dict(durable.specs),
        orders,
        sorted(durable.backlog),
        accounts,
        durable.calendar.origin,
    )


@dataclass
class CrashPoints:
    """The fault function of an hour that is killed at each of its crash points.

    Parameters
    ----------
    hour : Hour
        The hour, in one thread: it forks.
    uninterrupted : mapping of str to JobView
        The final jobs of the same hour without a crash.
    every : int
        Check only each `every`-th point.

    Attributes
    ----------
    points, looked, kills, same : int
        Points passed; points at which the data was recovered; points at which a forked hour was
        killed; killed hours that ended with every job as in the uninterrupted hour.
    wrong : list of str
        Violations, each with its point.
    """

    hour: SimulatedHour
    uninterrupted: Mapping[str, JobView]
    every: int = 1
    points: int = 0
    looked: int = 0
    kills: int = 0
    same: int = 0
    wrong: list[str] = field(default_factory=list)
    child: bool = False

    def __post_init__(self) -> None:
        self._expected = ""
        self._early: list[tuple[str, str]] | None = None
        self._met: set[str] = set()
        self._abandoned: list[Any] = []
        self.hour.fault = self
        self.hour.opened = self._follow
        self.hour.closes = self._closes

    def _follow(self, hour: SimulatedHour) -> None:
        """Record the digest of the durable state after each commit."""
        if self.child:
            return
        durable, commit = hour.durable, hour.durable.commit

        def followed(operations: Sequence[Operation[Any]]) -> CommitResult:
            self._early = []
            outcome = commit(operations)
            self._expected = durable_digest(durable.state)
            # Points between the commit and its return already see the new state.
            for where, found in self._early:
                self._compare(where, found)
            self._early = None
            return outcome

        durable.commit = followed  # type: ignore[method-assign]
        self._expected = durable_digest(durable.state)

    def _compare(self, where: str, found: str) -> None:
        if found != self._expected:
            self.wrong.append(f"{where}: the recovered state differs from the committed state")

    def __call__(self, name: str) -> None:
        """Recover the data that a crash at this point would leave; crash in a forked process."""
        if self.child:
            return
        self.points += 1
        if self.points % self.every:
            return
        where = f"{self.points} ({name})"
        result = self._read_back()
        self.looked += 1
        if self._early is not None and (name == "committed" or self._early):
            self._early.append((where, result))
        else:
            self._compare(where, result)
        met = _digest(result, self._outside())
        if met not in self._met:
            self._met.add(met)
            self._go_on_killed(where)

    def _outside(self) -> list[Any]:
        """Return the state outside the store that survives a crash: the world and the clients."""
        world, hour = self.hour.world, self.hour
        processes = [
            (process.key, process.phase.value, process.stop_at, process.command, process.ended)
            for process in world.processes.values()
        ]
        kept = sorted(map(str, world.forgotten)), sorted(world.kept), world.fences, world.done
        fields = {
            name: (answer.view.stored(), answer.cancelled) for name, answer in hour.answers.items()
        }
        return [hour.clock.at, processes, kept, fields, hour.completed_actions]

    def _copied(self) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self.hour.folder.parent))
        shutil.copytree(self.hour.folder, folder, dirs_exist_ok=True)
        return folder

    def _read_back(self) -> str:
        folder = self._copied()
        store = Store(str(folder / "data"))  # only read: killed hours open it too
        try:
            choice = PolicyChoice(self.hour.policy, {})
            return durable_digest(
                recover(store, CLUSTER, choice, MonotonicWallClock(self.hour.clock))
            )
        finally:
            store.close()
            shutil.rmtree(folder)

    def _go_on_killed(self, where: str) -> None:
        folder, loop = self._copied(), asyncio.get_running_loop()
        process = os.fork()
        if not process:
            asyncio._set_running_loop(loop)  # asyncio ties a running loop to the process number
            self.child = True
            hour = self.hour
            # The parent process still uses these: keep them from being closed.
            self._abandoned = [hour.driver, hour.writer, hour.durable, hour.store, hour.execution]
            hour.folder = folder
            raise Crash
        self.kills += 1
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        shutil.rmtree(folder)
        if status not in {SAME, OTHER}:
            self.wrong.append(f"{where}: the killed hour broke a rule")
        self.same += status == SAME

    def _closes(self) -> bool:
        """Whether this process owns the components that a crash left behind."""
        return not self.child or self.hour.crashes > 1


def _ending(views: Mapping[str, JobView]) -> dict[str, Any]:
    return {name: (view.state, view.first_promise, view.promise) for name, view in views.items()}


def kill_at_every_point(
    policy: str, *, seed: int = 0, jobs: int = 40, every: int = 1, budgets: bool = True
) -> CrashPoints:
    """Kill an hour at each of its crash points; return the counts and the violations."""
    with tempfile.TemporaryDirectory() as name:

        def hour_in(folder: str) -> SimulatedHour:
            (Path(name) / folder).mkdir()
            return SimulatedHour(
                Path(name) / folder, policy, seed=seed, jobs=jobs, budgets=budgets, threads=False
            )

        uninterrupted = dict(run_hour(hour_in("uninterrupted")))
        hour = hour_in("hour")
        kills = CrashPoints(hour, uninterrupted, every)
        asyncio.run(_played(hour, kills))
        views = hour.check()
        hour.store.close()
        if _ending(views) != _ending(uninterrupted):
            kills.wrong.append("checking changed the result of the hour")
    return kills


async def _played(hour: SimulatedHour, kills: CrashPoints) -> None:
    """Play an hour. A forked process exits here, before it closes what it shares."""
    try:
        await hour.run()
        if kills.child:
            assert hour.crashes == 1
            same = _ending(hour.check()) == _ending(kills.uninterrupted)
            os._exit(SAME if same else OTHER)
    except BaseException:
        if kills.child:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        raise


def main() -> None:
    """Kill hours at every crash point; print the counts."""
    import argparse
    import logging
    import time

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--policy", nargs="*", default=["oasis", "rolling"])
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="check only each EVERY-th point")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    broken = False
    for policy in options.policy:
        began, cpu = time.monotonic(), sum(os.times()[:4])
        kills = kill_at_every_point(
            policy, seed=options.seed, jobs=options.jobs, every=options.every
        )
        print(
            f"{policy}: {kills.points} positions, read back at {kills.looked}, gone on from "
            f"{kills.kills} that differ, {kills.same} of them to the very end of the uninterrupted "
            f"hour; {time.monotonic() - began:.0f} s, {sum(os.times()[:4]) - cpu:.0f} s of CPU",
            flush=True,
        )
        print(f"  broken: {kills.wrong[:20] or 'nothing'}", flush=True)
        broken |= bool(kills.wrong)
    sys.exit(broken)


if __name__ == "__main__":
    main()

"""An hour of the service in a simulated world, with injected faults.

The components of `serve` (durable engine, driver, execution controller, store) are stepped on
manual clocks, so that an hour takes a second. `Hour.run` plays a script of clients. At each point
between two writes of the store or two calls of the executor, `Hour.fault` may raise. A `Crash`
acts like SIGKILL: memory is lost, and committed data is kept.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from shadowprice.core.budget import POINT, Budget
from shadowprice.core.errors import PolicyError
from shadowprice.core.events import ServerState
from shadowprice.core.job_keys import qualified_name
from shadowprice.executors.contract import ExecutorError
from shadowprice.inputs.files import resolve_cluster
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.operations import put_tenant
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.driver import Driver
from shadowprice.service.execution.controller import ExecutionController
from shadowprice.service.metrics import Metrics
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Operation
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.operations import SubmitJobs, cancel_job, revise_job, update_servers
from shadowprice.service.state.store_queries import job, list_events, list_jobs
from shadowprice.service.state.submission import read_submissions, request_hash
from shadowprice.service.store import Store
from shadowprice.service.writer import Writer
from tests.support.ledger_checks import check_ledger
from tests.support.simulated_world import FakeExecutor, ManualClock, World

SLOT = 60
HOUR = 3600

CLUSTER = resolve_cluster(
    {
        "slot": f"{SLOT}s",
        "horizon": 40,
        "servers": [{"name": "g", "count": 3, "capacity": {"gpu": 4, "cpu": 16}}],
    }
)


class Crash(BaseException):
    """The simulated end of the process by SIGKILL."""


class InlineExecutor(Executor):
    """Runs each task at once, in the calling thread."""

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except BaseException as error:  # a thread's future holds these too
            done.set_exception(error)
        return done


class SteppedWriter(Writer):
    """A writer whose driver performs each operation at once."""

    driver: SteppedDriver

    async def do(self, operation: Operation[Any]) -> Any:
        if self.health_error is not None:
            await self.recover()
        task = asyncio.ensure_future(super().do(operation))
        try:
            await asyncio.sleep(0)
            while self.queue:
                await self.driver._step()
            return await task
        finally:
            task.cancel()


class SteppedDriver(Driver):
    """A driver that performs what is due when told, and writes a snapshot over several turns."""

    snapshot_seconds = 0.0
    report_wait_seconds = 0.0  # reports of a simulated executor don't arrive meanwhile

    async def turn(self) -> None:
        """Perform what is due."""
        if self._writer.health_error is not None:
            await self._writer.recover()
            return
        self._last_tick = self._boundary_failed_at = 0.0  # a turn is later by a second and more
        await self._tick()
        await self._step()
        await self._snapshot()
        while self._published.servers.backlog and self._writer.health_error is None:
            await self._step()


@dataclass
class ClientRecord:
    """The last response to a client, which a crash must not invalidate."""

    view: JobView
    cancelled: bool = False


@dataclass
class SimulatedHour:
    """One simulated hour and its results."""

    folder: Path
    policy: str = "oasis"
    seed: int = 0
    jobs: int = 40
    budgets: bool = False
    fault: Callable[[str], None] = lambda _: None
    crashes: int = 0
    refusals: int = 0
    answers: dict[str, ClientRecord] = field(default_factory=dict)
    before_slot: Callable[[SimulatedHour, int], None] = lambda _hour, _slot: None
    opened: Callable[[SimulatedHour], None] = lambda _hour: None
    closes: Callable[[], bool] = lambda: True
    """Whether this process closes the components that a crash leaves behind."""
    completed_actions: int = 0
    """Number of the script's actions that got a response."""
    threads: bool = True
    """Whether synchronous work runs in a thread, as in a real service."""

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.world = World(self.clock)
        self.world.fault = self._outside
        self._random = random.Random(self.seed)
        self.script = self._script()

    def _outside(self, point: str) -> None:
        """Inject a fault into the executor, as the error that an executor raises."""
        try:
            self.fault(point)
        except OperationalError as error:
            raise ExecutorError("the executor is unreachable") from error

    # ---------------------------------------------------------------- the clients

    def _script(self) -> list[tuple[float, str, Any]]:
        draw = self._random
        script: list[tuple[float, str, Any]] = []
        for index in range(self.jobs):
            name, when = f"job-{index}", draw.uniform(0, 0.6 * HOUR)
            record = self._job(name)
            script.append((when, "submit", [record]))
            kind = draw.random()
            if kind < 0.12:
                script.append((when + draw.uniform(1, 900), "cancel", self._key(name)))
            elif kind < 0.22:
                change = self._key(name), {"minibatches": 90}
                script.append((when + draw.uniform(1, 600), "revise", change))
        for tenant, points in (("vision", 0.02), ("speech", 50.0)) if self.budgets else ():
            budget = Budget(round(points * POINT), HOUR // 4, carry=POINT // 100)
            script.append((0.0, "budget", (tenant, budget)))
        many = [self._job(f"many-{index}") for index in range(8)]
        script.append((0.2 * HOUR, "submit many", many))
        script.append((0.3 * HOUR, "drain", "g-1"))
        script.append((0.5 * HOUR, "restore", "g-1"))
        return sorted(script, key=lambda one: one[0])

    def _tenant(self, name: str) -> str | None:
        return ("vision", "speech")[int(name.rpartition("-")[2]) % 2] if self.budgets else None

    def _key(self, name: str) -> str:
        return qualified_name(self._tenant(name), name)

    def _job(self, name: str) -> dict[str, Any]:
        draw = self._random
        chunks, minibatches = draw.choice([1, 2, 4]), draw.choice([30, 60, 120])
        self.world.work[self._key(name)] = chunks * minibatches * 6.0
        for generation in (1, 2):
            if draw.random() < 0.05:
                self.world.fails[self._key(name), generation] = draw.choice(["failed", "lost"])
        return {
            "name": name,
            "tenant": self._tenant(name),
            "chunks": chunks,
            "minibatches": minibatches,
            "minibatch_time": "6s",
            "worker": {"gpu": 1, "cpu": draw.choice([1, 4])},
            "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "20 slots"},
            "run": {"command": ["train"], "retries": 1},
        }

    # ---------------------------------------------------------------- the service

    async def _open(self) -> None:
        self.store = Store(str(self.folder / "data"))
        assert self.store.open()
        self.steady = MonotonicWallClock(self.clock)
        choice = PolicyChoice(self.policy, {})
        self.durable = DurableEngine(self.store, CLUSTER, choice, self.steady)
        self.store.fault = self.fault
        self.writer = SteppedWriter(self.durable, Metrics())
        if not self.threads:
            self.writer._thread = InlineExecutor()  # type: ignore[assignment]  # asked to work, and to end
        self.executor = FakeExecutor(self.world)
        self.execution = ExecutionController(self.writer, self.executor, b"key")
        self.driver = SteppedDriver(
            self.durable, self.writer, self.execution, virtual=False, keep=10**18
        )
        self.writer.driver = self.driver
        self.opened(self)
        await self.execution.open()

    def _abandon(self) -> None:
        self.crashes += 1
        if not self.closes():
            return
        self.writer._thread.shutdown(wait=True)
        self.store.close()

    async def run(self) -> None:
        """Play the hour, and continue until all jobs are closed."""
        await self._surviving(self._open)
        waiting, end = list(self.script), 3 * HOUR
        began = self.clock.at
        ticks = 0
        while (self.clock.at - began) / SECOND < end:
            elapsed = (self.clock.at - began) / SECOND
            while waiting and waiting[0][0] <= elapsed:
                await self._until_answered(waiting.pop(0))
            self.before_slot(self, ticks)
            await self._surviving(self._turn)
            if not waiting and not self.writer.published.jobs and elapsed > HOUR:
                break
            self.world.advance(10.0)
            self.world.check()
            ticks += 1
        await self._surviving(self._turn)

    async def _turn(self) -> None:
        await self.driver.turn()
        self.execution.pending.received += self.executor.reports()
        for kept in self.execution.pending.unrecorded.values():
            kept.due = 0.0  # a turn is longer than the first backoff
        try:
            await self.execution.sync_reports()
            await self.execution.send_commands()
        except (ProblemError, PolicyError):
            self.refusals += 1
        except ExecutorError as error:
            self.refusals += 1
            self.execution._unreachable(error)

    async def _surviving(self, work: Callable[[], Any]) -> Any:
        """Run `work`; after each crash, recover and run it again."""
        while True:
            try:
                return await work()
            except Crash:
                pass
            while True:
                self._abandon()
                try:
                    await self._open()
                    break
                except Crash:
                    continue

    async def _until_answered(self, action: tuple[float, str, Any]) -> None:
        """Retry a client's action until it gets a response."""
        for _ in range(50):
            try:
                await self._surviving(lambda: self._ask(action))
                self.completed_actions += 1
                return
            except PolicyError:
                self.refusals += 1
            except ProblemError as error:
                if error.code != "storage":
                    self.completed_actions += 1  # it is over already, say
                    return
                self.refusals += 1
        raise AssertionError("no response in 50 attempts")

    async def _ask(self, action: tuple[float, str, Any]) -> None:
        _, kind, what = action
        if kind.startswith("submit"):
            # A retry gets the same jobs, because names are random.
            results = [
                replace(submission, request=request_hash(submission.tenant, submission.name))
                for submission in read_submissions(what, CLUSTER, tenant=None, runs=True)
            ]
            submission = SubmitJobs(results, at_once=kind == "submit")
            for key, problem in await self.writer.do(submission):
                assert problem is None, problem
                self.answers.setdefault(key, ClientRecord(self._look(key)))
        elif kind == "cancel":
            view = await self.writer.do(cancel_job(what))
            self.answers[what].cancelled = view.state == "cancelled"
        elif kind == "revise":
            await self.writer.do(revise_job(*what))
        elif kind == "budget":
            await self.writer.do(put_tenant(what[0], None, what[1], budgeted=True))
        else:
            cluster = self.writer.published.servers.cluster
            row = cluster.index[what]
            amounts = dict(zip(cluster.resources, cluster.capacity[row].tolist(), strict=True))
            state = ServerState(cluster.roles[row], amounts, drained=kind == "drain")
            await self.writer.do(update_servers({what: state}, kind))

    def _look(self, name: str) -> JobView:
        published = self.writer.published
        found = published.jobs.get(name) or published.recent.get(name)
        if found is None:  # the job closed before the crash lost its response
            with self.store.reading() as connection:
                known = job(connection, name)
            assert known is not None, name
            found = known[0]
        return found

    # ---------------------------------------------------------------- afterwards

    def check(self) -> Mapping[str, JobView]:
        """Check the responses to clients and that no work ran twice; return all jobs."""
        assert not self.world.faults, self.world.faults[:5]
        check_ledger(self.store)
        newest: dict[str, int] = {}
        for name, generation, at in self.world.starts:
            assert generation > newest.get(name, 0), f"{name} {generation} again at {at}"
            newest[name] = generation
        with self.store.reading() as connection:
            views = {view.key: view for view in list_jobs(connection, limit=1_000)}
            events = [event.record for event in list_events(connection, after=0, limit=100_000)]
        assert [event["id"] for event in events] == sorted({event["id"] for event in events})
        for name, answered in self.answers.items():
            view = views[name]  # no acknowledged job is lost
            assert view.id == answered.view.id
            if answered.cancelled:
                assert view.state == "cancelled", name
            assert not view.state.open, (name, view)
            assert view.state != "finished" or view.reason is None, (name, view.reason)
            if view.state == "finished" and not any(e["kind"] == "revised" for e in events):
                assert self.world.done[name] == self.world.work[name], name
            self._check_promises(name, view, [e for e in events if e["job_id"] == view.id])
        return views

    def _check_promises(self, name: str, view: JobView, history: list[dict[str, Any]]) -> None:
        """Check that an event announced every promise and every change of it."""
        promise: int | None = None
        counts: dict[str, int] = {}
        seen = {None: True}
        for event in history:
            counts[event["kind"]] = counts.get(event["kind"], 0) + 1
            if event["kind"] in {"admitted", "moved", "broken"}:
                promise = event["data"]["promise"]
                seen[promise] = True
        for once in ("submitted", "admitted", "finished", "refused"):
            assert counts.get(once, 0) <= 1, (name, once, counts)
        assert self.answers[name].view.promise in seen, (name, history)
        assert view.promise == promise or view.state == "refused", (name, view.promise, promise)


def disk_full_error() -> BaseException:
    """Return the error of SQLite on a full disk."""
    return OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))


def random_faults(rng: random.Random, apart: int, error: Callable[[], BaseException]) -> Any:
    """Return a fault function that raises about every `apart` points."""
    left = [rng.randint(1, 2 * apart)]

    def fault(name: str) -> None:
        del name
        left[0] -= 1
        if left[0] <= 0:
            left[0] = rng.randint(1, 2 * apart)
            raise error()

    return fault


def run_hour(hour: SimulatedHour) -> Mapping[str, JobView]:
    """Run an hour and check it; return its jobs."""
    asyncio.run(hour.run())
    try:
        return hour.check()
    finally:
        hour.writer._thread.shutdown()
        hour.store.close()


def main() -> None:
    """Inject thousands of crashes and full disks; print the totals."""
    import argparse
    import logging
    import tempfile
    import time

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--faults", type=int, default=5_000)
    parser.add_argument("--apart", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    totals = {"crashes": 0, "refusals": 0, "hours": 0, "jobs": 0, "starts": 0}
    began, cpu = time.monotonic(), time.process_time()
    while totals["crashes"] + totals["refusals"] < options.faults:
        seed = options.seed + totals["hours"]
        policy = ("oasis", "rolling", "fifo")[seed % 3]
        error = disk_full_error if seed % 5 == 4 else Crash
        with tempfile.TemporaryDirectory() as folder:
            hour = SimulatedHour(Path(folder), policy, seed=seed, budgets=True)
            hour.fault = random_faults(random.Random(seed), options.apart, error)
            views = run_hour(hour)
        totals["hours"] += 1
        totals["crashes"] += hour.crashes
        totals["refusals"] += hour.refusals
        totals["jobs"] += len(views)
        totals["starts"] += len(hour.world.starts)
        print(policy, error.__name__, totals, flush=True)
    print(f"{time.monotonic() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU")


if __name__ == "__main__":
    main()

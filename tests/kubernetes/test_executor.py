"""Faults that only this executor has: its API server, late requests, reasons and rights."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.testbed import Testbed
from tools.testbed.audit import Audit

from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorError,
    ExecutorOptions,
    GenerationPhase,
    GenerationStatus,
    Receipt,
    ServerAllocation,
    Started,
    StartRefused,
)
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from shadowprice.executors.kubernetes.names import pod_name
from shadowprice.executors.registry import create_executor
from shadowprice.kubernetes.errors import ApiUnreachableError
from tests.contract.harness import PATIENCE as HARNESS_PATIENCE
from tests.contract.harness import POLITE, KubernetesHarness, ReportLog, eventually, ready, spec

RIGHTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "executor-rights.yaml"
PATIENCE = 60.0


@pytest.fixture
def harness(tmp_path: Path, testbed: Testbed) -> Iterator[KubernetesHarness]:
    chosen = KubernetesHarness(tmp_path / "executor", testbed)
    yield chosen
    chosen.end()


def test_an_api_server_that_is_away_for_a_while_costs_nothing(harness: KubernetesHarness) -> None:
    async def scenario(own: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        command = "echo ready; until [ -e $SHADOWPRICE_CHECKPOINT_DIR/go ]; do sleep 0.1; done"
        await executor.start(spec("runs", 1, command))
        await executor.start(spec("stays", 1, POLITE))
        await ready(executor, "runs")
        await ready(executor, "stays")
        await reports.first(Started, "runs")
        await reports.first(Started, "stays")
        own.bed.kill("kube-apiserver")
        try:
            with pytest.raises(ExecutorError):
                await executor.start(spec("late", 1, "true"))
            with pytest.raises(ExecutorError):
                await executor.stop(5, "stays", 1)
            assert {held.phase for held in await executor.list()} == {GenerationPhase.RUNNING}
            for folder in own.path.glob("files/*/checkpoints"):
                (folder / "go").touch()
            await asyncio.sleep(20.0)  # the lease expires meanwhile
            assert not reports.matching(Ended, "runs")
        finally:
            own.bed.restart("kube-apiserver")
        assert (await reports.first(Ended, "runs")).ending is Ending.DONE
        assert not reports.matching(Ended, "stays")

        async def ordered(order: Any) -> Receipt:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    return Receipt(await order())
                except ExecutorError:
                    assert time.monotonic() < until
                    await asyncio.sleep(0.2)

        assert await ordered(lambda: executor.start(spec("late", 1, "true"))) == Receipt.ACCEPTED
        assert (await reports.first(Ended, "late")).ending is Ending.DONE
        assert await ordered(lambda: executor.stop(5, "stays", 1)) == Receipt.ACCEPTED
        assert (await reports.first(Ended, "stays")).ending is Ending.STOPPED

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


class Killed:
    """Disconnects a service from its API server before or after one of its write requests.

    Parameters
    ----------
    executor : KubernetesExecutor
        The service's executor.
    count : int
        Number of the request, from 1 on.
    after : bool
        Whether the server executed the request.
    """

    def __init__(self, executor: KubernetesExecutor, count: int, *, after: bool) -> None:
        self._left = count
        self._after = after
        self.dead = False
        self._request = executor.session.connection.request
        executor.session.connection.request = self.request  # type: ignore[method-assign]

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if "/leases" in path:  # it would have to expire
            return await self._request(method, path, **more)
        if method != "GET" and not self.dead:
            self._left -= 1
            if self._left == 0:
                self.dead = True
                if self._after:
                    await self._request(method, path, **more)
        if self.dead:
            raise ApiUnreachableError("killed")
        return await self._request(method, path, **more)


async def _until_taken(give: Callable[[], Awaitable[Receipt]]) -> Receipt:
    """Repeat a command until it is acknowledged, as the service does."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            receipt = await give()
            if receipt is not Receipt.BUSY:
                return receipt
        except ExecutorError:
            pass
        assert time.monotonic() < until, "never taken"
        await asyncio.sleep(0.2)


class Change:
    """A job from its first generation over its second to its end, driven as the service drives it.

    Every command may be repeated, to any successor of the executor. The second generation is only
    requested after the first one's end or refusal was reported.

    Parameters
    ----------
    job : str
        Its name.
    ran : Path
        File in which every process writes a line when it starts.
    """

    def __init__(self, job: str, ran: Path) -> None:
        self.job = job
        both = (ServerAllocation("one", 1), ServerAllocation("two", 1))
        line = f"echo 1-$RANK >> {ran}; {POLITE}"
        self.first = spec(job, 1, line, *both, grace=5.0)
        self.second = spec(job, 2, f"echo 2-$RANK >> {ran}", *both)
        self.number = 1
        """The state of the service: the generation that it requests."""
        self.endings: list[Ending | None] = []

    async def drive(self, executor: Executor, stopped: Callable[[], bool]) -> None:
        """Continue until the end, or until the executor is disconnected."""
        while self.number <= 2 and not stopped():
            order = self.first if self.number == 1 else self.second
            await _until_taken(functools.partial(executor.start, order))
            held = await self._held(executor, stopped, {GenerationPhase.STARTING})
            if held is not None and self.number == 1 and held.phase is GenerationPhase.RUNNING:
                await _until_taken(lambda: executor.stop(11, self.job, 1))
            held = await self._held(
                executor,
                stopped,
                {GenerationPhase.STARTING, GenerationPhase.RUNNING, GenerationPhase.STOPPING},
            )
            if held is None:
                return
            self.endings.append(held.end.ending if isinstance(held.end, Ended) else None)
            self.number += 1
            await executor.acknowledge_end(self.job, self.number - 1)

    async def _held(
        self, executor: Executor, stopped: Callable[[], bool], phases: set[GenerationPhase]
    ) -> GenerationStatus | None:
        """Wait until the generation leaves some phases; None if the executor is disconnected."""
        until = time.monotonic() + HARNESS_PATIENCE
        while not stopped():
            [held] = [one for one in await executor.list() if one.generation == self.number]
            if held.phase not in phases:
                return held
            assert time.monotonic() < until, held
            await asyncio.sleep(0.02)
        return None


WRITES = 25
"""Minimum number of writes of a `Change`:

records, secrets, services and pods of two generations are created, updated and deleted.
"""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "first",
    [1, *(pytest.param(first, marks=pytest.mark.extended) for first in (12, 23))],
)
def test_a_service_killed_at_any_write_of_a_generation_change_doubles_nothing(
    testbed: Testbed, tmp_path: Path, first: int, *, after: bool
) -> None:
    """Eleven steps in parallel: kubelet 1.20 takes a minute to remove a pod that never started."""
    died: dict[int, bool] = {}

    async def one(count: int) -> None:
        ran = tmp_path / f"{tmp_path.name}-{count}" / "ran"
        ran.parent.mkdir()
        own = KubernetesHarness(ran.parent / "executor", testbed)
        job = f"job-{count}"  # objects of generations are named after their jobs
        change = Change(job, ran)
        executor = await own.open()
        assert isinstance(executor, KubernetesExecutor)
        reports = ReportLog(executor)
        killed = Killed(executor, count, after=after)
        driving = asyncio.create_task(change.drive(executor, lambda: killed.dead))
        until = time.monotonic() + 3 * HARNESS_PATIENCE  # two generations, each awaited
        while not (driving.done() or killed.dead):
            assert time.monotonic() < until, change.number
            await asyncio.sleep(0.02)
        driving.cancel()  # it may wait for a response that never comes
        [failed] = await asyncio.gather(driving, return_exceptions=True)
        assert killed.dead or failed is None, failed
        died[count] = killed.dead
        await executor.close()
        await reports.end()
        again = await own.open()
        later_reports = ReportLog(again)
        await change.drive(again, lambda: False)
        ends = {Ending.DONE, Ending.STOPPED, Ending.LOST, None}  # None: refused
        assert change.number == 3
        assert set(change.endings) <= ends, change.endings
        lines = ran.read_text().split() if ran.exists() else []
        assert len(lines) == len(set(lines)), lines  # no process started twice
        # The next one starts in any case: nothing is stuck.
        taken = await _until_taken(functools.partial(again.start, spec(job, 3, "true")))
        assert taken in {Receipt.ACCEPTED, Receipt.DUPLICATE}
        assert (await later_reports.first(Ended, job, 3)).ending is Ending.DONE
        await again.close()
        await later_reports.end()
        own._opened.clear()
        await asyncio.to_thread(own.end)
        assert Audit.read(testbed.audit).of_service(own._service).faults() == []

    async def all_of_them() -> None:
        await asyncio.gather(*(one(count) for count in range(first, first + 11)))

    asyncio.run(all_of_them())
    # Every write of the change was a step here, and further steps don't exist.
    assert all(was for count, was in died.items() if count <= WRITES), died
    assert not died.get(33, False), "a change has more writes than are tried here"


def test_how_a_job_ended_is_known_whichever_write_of_its_end_a_service_was_killed_at(
    testbed: Testbed, tmp_path: Path
) -> None:
    """Only its pod had this state, and is removed: a failed job must not become a lost one."""

    async def one(count: int) -> None:
        folder = tmp_path / f"{tmp_path.name}-{count}"
        folder.mkdir()
        own = KubernetesHarness(folder / "executor", testbed)
        executor = await own.open()
        assert isinstance(executor, KubernetesExecutor)
        reports, job = ReportLog(executor), f"fails-{count}"
        wait = f"while [ ! -e {folder}/go ]; do sleep 0.1; done"
        await executor.start(spec(job, 1, f"{wait}; echo bye; exit 4"))
        await reports.first(Started, job)
        killed = Killed(executor, count, after=False)
        (folder / "go").touch()
        await eventually(lambda: killed.dead or bool(reports.matching(Ended, job)))
        await executor.close()
        await reports.end()
        # Pods go with their secret: if this one went by itself, there was one write less.
        assert killed.dead or count == 4
        assert killed.dead != bool(reports.matching(Ended, job))
        again = await own.open()
        later_reports = ReportLog(again)
        ended = await later_reports.first(Ended, job)
        assert (ended.ending, ended.code, ended.tail) == (Ending.FAILED, 4, ("bye",)), count
        await again.close()
        await later_reports.end()
        own._opened.clear()
        await asyncio.to_thread(own.end)
        assert Audit.read(testbed.audit).of_service(own._service).faults() == []

    async def all_of_them() -> None:
        # Record, secret, pod, record.
        await asyncio.gather(*(one(count) for count in range(1, 5)))

    asyncio.run(all_of_them())


def test_a_stop_keeps_its_grace_period_whatever_the_clock_of_the_successor(
    testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is recorded, and its service disconnected before the pod gets it; the next is
    ahead.
    """
    saved, wall = tmp_path / "saved", time.time
    line = f"trap 'sleep 4; echo saved > {saved}; exit 143' TERM; echo ready; "
    own = KubernetesHarness(tmp_path / "executor", testbed)

    async def scenario() -> None:
        executor = await own.open()
        assert isinstance(executor, KubernetesExecutor)
        reports = ReportLog(executor)
        order = spec("skewed", 1, f"{line} while :; do sleep 0.05; done", grace=30.0)
        await executor.start(order)
        await reports.first(Started, "skewed")
        await ready(executor, "skewed")
        killed = Killed(executor, 2, after=False)  # the record comes first
        assert await executor.stop(7, "skewed", 1) == Receipt.ACCEPTED
        await eventually(lambda: killed.dead)
        await executor.close()
        await reports.end()
        monkeypatch.setattr(time, "time", lambda: wall() + 600.0)
        again = await own.open()
        later_reports = ReportLog(again)
        assert (await later_reports.first(Ended, "skewed")).ending is Ending.STOPPED
        await again.close()
        await later_reports.end()

    asyncio.run(scenario())
    monkeypatch.undo()
    own._opened.clear()
    own.end()
    assert saved.read_text() == "saved\n"
    deletions = [pod.told for pod in Audit.read(testbed.audit).of_service(own._service).of_jobs()]
    assert "grace 30" in deletions[0][0], deletions


@pytest.mark.parametrize("ahead", [-600.0, 600.0], ids=["behind", "ahead"])
def test_a_shorter_grace_after_a_new_start_counts_from_its_own_order(
    testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """An API server counts from the first command; a successor knows when that was.

    The server's own times are the judge, because kubelets before 1.22 shorten no grace period.
    """
    wall = time.time
    own = KubernetesHarness(tmp_path / "executor", testbed)

    def pod() -> dict[str, Any]:
        name = pod_name("shorter", 1, "worker-0")
        result: dict[str, Any] = testbed.ask("GET", f"/api/v1/namespaces/default/pods/{name}")
        return result["metadata"]

    def until(meta: dict[str, Any]) -> float:
        return datetime.fromisoformat(meta["deletionTimestamp"]).timestamp()

    async def scenario() -> None:
        executor = await own.open()
        reports = ReportLog(executor)
        line = f"trap : TERM; echo ready; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 143"
        await executor.start(spec("shorter", 1, line, grace=60.0))
        await ready(executor, "shorter")
        await executor.stop(7, "shorter", 1)
        await eventually(lambda: "deletionTimestamp" in pod())
        first = until(pod())
        await executor.close()
        await reports.end()
        await asyncio.sleep(10.0)
        monkeypatch.setattr(time, "time", lambda: wall() + ahead)
        again = await own.open()
        later_reports = ReportLog(again)
        await asyncio.sleep(2.0)  # it repeats the first command, which changes nothing
        assert until(pod()) == first
        ordered = wall()
        await again.stop(8, "shorter", 1, 15.0)
        await eventually(lambda: until(pod()) < first)
        assert -1.0 <= until(pod()) - ordered - 15.0 <= 4.0  # it counts in whole seconds
        (tmp_path / "go").touch()
        assert (await later_reports.first(Ended, "shorter")).ending is Ending.STOPPED
        await again.close()
        await later_reports.end()

    asyncio.run(scenario())
    monkeypatch.undo()
    own._opened.clear()
    own.end()
    assert Audit.read(testbed.audit).of_service(own._service).faults() == []


def test_a_pod_that_is_requested_late_never_runs_and_is_removed(
    harness: KubernetesHarness, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"

    async def scenario(own: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        assert isinstance(executor, KubernetesExecutor)
        requests: list[dict[str, Any]] = []
        post = executor.session.connection.post

        async def noted(path: str, body: Any, **query: object) -> dict[str, Any]:
            if path.endswith("/pods"):
                requests.append(json.loads(json.dumps(body)))
            return await post(path, body, **query)

        executor.session.connection.post = noted  # type: ignore[method-assign]
        await executor.start(spec("job", 1, f"echo x >> {ran}"))
        await reports.first(Ended, "job")
        (body,) = requests
        own.bed.ask("POST", "/api/v1/namespaces/default/pods", body)
        name = pod_name("job", 1, "worker-0")

        def there() -> bool:
            result = own.bed.ask("GET", "/api/v1/namespaces/default/pods")
            return name in {item["metadata"]["name"] for item in result["items"]}

        assert there()
        await eventually(lambda: not there())
        assert ran.read_text() == "x\n"

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"image": "nowhere.test/none:1"}, ["ErrImageNeverPull", "nowhere.test/none:1"]),
        ({"pod": {"volumes": [{"path": "/x", "secret": "s"}]}}, ["allow=secrets"]),
        ({"pod": {"priority_class": "none"}}, ["the API server refused it", "none"]),
    ],
)
def test_a_generation_that_cannot_start_is_refused_with_the_clusters_reason(
    harness: KubernetesHarness, more: dict[str, Any], words: list[str]
) -> None:
    async def scenario(_: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        order = spec("job", 1, "true")
        program = type(order.program)(order.program.command, **more)
        fields = {name: getattr(order, name) for name in order.__dataclass_fields__}
        await executor.start(type(order)(**{**fields, "program": program}))
        reason = (await reports.first(StartRefused, "job")).reason
        assert all(word in reason for word in words), reason
        assert await executor.start(spec("job", 2, "true")) == Receipt.ACCEPTED
        assert (await reports.first(Ended, "job", 2)).ending is Ending.DONE

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


def test_a_pod_that_needs_more_memory_than_its_job_asks_for_failed(
    harness: KubernetesHarness,
) -> None:
    async def scenario(_: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        words = ("/bin/sh", "-c", "exec tail /dev/zero")
        await executor.start(spec("job", 1, words, worker={"memory": 32 << 20}))
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code) == (Ending.FAILED, 137)

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


def test_it_asks_for_what_its_role_says_and_for_nothing_else(
    harness: KubernetesHarness, testbed: Testbed
) -> None:
    rules = list(yaml.safe_load_all(RIGHTS.read_text()))
    for rule in rules:
        rule["metadata"]["namespace"] = "default"
        testbed.kubectl("apply", "-f", "-", given=json.dumps(rule))
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": f"{rule['kind']}Binding",
            "metadata": {"name": "executor", "namespace": "default"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": rule["kind"]}
            | {"name": rule["metadata"]["name"]},
            "subjects": [{"kind": "User", "name": "shadowprice"}],
        }
        testbed.kubectl("apply", "-f", "-", given=json.dumps(binding))
    own = {name: value for name, value in harness.settings.items() if name != "cgroup"}
    config = str(testbed.kubeconfig_of("shadowprice"))

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Executor, ReportLog]]:
        executor = create_executor(
            "kubernetes", ExecutorOptions(str(harness.path), "of-a-role", config, own)
        )
        await executor.open()
        reports = ReportLog(executor)
        try:
            yield executor, reports
        finally:
            await executor.close()
            await reports.end()

    async def life() -> None:
        async with opened() as (executor, reports):
            await executor.start(
                spec("job", 1, POLITE, ServerAllocation("one", 1), ServerAllocation("two", 1))
            )
            await reports.first(Started, "job")
            await ready(executor, "job")
            await executor.stop(7, "job", 1)
            assert (await reports.first(Ended, "job")).ending is Ending.STOPPED
            await executor.acknowledge_end("job", 1)
            await executor.delete_job_data("job")
            await executor.start(spec("two", 1, POLITE))
            await reports.first(Started, "two")
        async with opened() as (executor, reports):
            await executor.stop(7, "two", 1)
            await reports.first(Ended, "two")

    asyncio.run(life())
    allowed = {
        (resource, verb)
        for rule in rules
        for one in rule["rules"]
        for resource in one["resources"]
        for verb in one["verbs"]
    }
    used = set()
    for line in testbed.audit.read_text().splitlines():
        entry = json.loads(line)
        about = entry.get("objectRef")
        if entry["user"]["username"] != "shadowprice" or not about or about.get("name") == "x":
            continue
        if entry.get("responseStatus", {}).get("code") == 403:
            raise AssertionError(entry["requestURI"])
        part = f"/{about['subresource']}" if "subresource" in about else ""
        used.add((about["resource"] + part, entry["verb"]))
    assert used <= allowed
    # This server lacks gates, and no service object had to be recognized.
    assert allowed - used <= {("pods", "patch"), ("services", "get")}, allowed - used

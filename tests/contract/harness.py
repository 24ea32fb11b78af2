"""Harnesses of executors: faults and inspection beyond the contract, for one suite of tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from tools.testbed import ApiError, Testbed, host_python

from shadowprice.core.job_keys import key_digest
from shadowprice.core.program import Program
from shadowprice.executors.contract import (
    Ended,
    Executor,
    ExecutorOptions,
    GenerationSpec,
    InvalidProgress,
    Progressed,
    Report,
    ServerAllocation,
    ServerInfo,
    ServerSeen,
    Started,
    StartRefused,
)
from shadowprice.executors.generations.generation import TERMINAL_PHASES, GenerationDirectory
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from shadowprice.executors.kubernetes.names import SERVICE, pod_name
from shadowprice.executors.local import executor as local
from shadowprice.executors.ray.executor import RayExecutor
from shadowprice.executors.registry import create_executor
from tests.support.ray_cluster import RayCluster

Value = TypeVar("Value")
BASE = "shadowprice.test/base:1"
"""Image of the testbed: a shell and little more."""

PATIENCE = 180.0
"""Timeout of every wait on a busy machine, in seconds."""

SCENARIO = 3 * PATIENCE
"""Timeout of a scenario in seconds; below the test's own, so that the error shows where it waited.
"""

RIGHTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "executor-rights.yaml"
EXECUTOR_USER = "executor"
"""User of the testbed that has these rights only."""

SERVERS = (
    ServerInfo("one", {"cpu": 2000, "gpu": 2000, "memory": 1 << 30}),
    ServerInfo("two", {"cpu": 1000, "gpu": 1000}),
)


def spec(
    job: str,
    generation: int,
    command: str | tuple[str, ...],
    *placement: ServerAllocation,
    number: int = 0,
    grace: float = 20.0,
    env: Mapping[str, str] | None = None,
    directory: str = "",
    tolerates_workers: bool = False,
    **more: Any,
) -> GenerationSpec:
    """Return a generation that runs a shell line, or the given arguments."""
    words = ("/bin/sh", "-c", command) if isinstance(command, str) else command
    return GenerationSpec(
        command=number or generation * 10,
        job=job,
        generation=generation,
        placement=placement or (ServerAllocation("one", 1),),
        program=Program(
            words,
            dict(env or {}),
            directory,
            grace=grace,
            tolerates_workers=tolerates_workers,
        ),
        **more,
    )


def python(script: str) -> tuple[str, ...]:
    """Return the arguments that run a script with this interpreter and a fast start."""
    return (sys.executable, "-I", "-S", "-c", script)


# Waits for SIGTERM and exits as the contract requires.
POLITE = "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
STUBBORN = "trap 'echo no' TERM; echo ready; while :; do sleep 0.05; done"


async def ready(
    executor: Executor,
    job: str,
    generation: int = 1,
    word: str = "ready",
    process: str = "worker-0",
) -> None:
    """Wait until a job's process is ready."""
    until = time.monotonic() + PATIENCE
    text = ""
    while time.monotonic() < until:
        with contextlib.suppress(KeyError):
            text = (await executor.logs(job, generation, process, start=0)).text
            if word in text:
                return
        await asyncio.sleep(0.02)
    details = [await executor.list(), text[-500:], *await _pods_of(executor, job)]
    raise AssertionError(f"{job} never said {word}: " + "\n".join(map(str, details)))


async def _pods_of(executor: Executor, job: str) -> list[str]:
    """Return the state of a job's pods, such as why they wait; empty without a cluster."""
    if not isinstance(executor, KubernetesExecutor):
        return []
    cluster, key = executor.session.cluster, key_digest(job)
    views = [item for item in cluster.pods.items.values() if item.job == key]
    result = await executor.session.connection.get("/api/v1/events")
    named = {view.name for view in views}
    events = [
        f"{entry['involvedObject']['name']} {entry.get('lastTimestamp')}: {entry.get('message')}"
        for entry in result.get("items") or ()
        if entry["involvedObject"]["name"] in named
    ]
    return [*map(str, views), *map(str, cluster.nodes.items.values()), *events]


class ReportLog:
    """The reports of one executor, in order."""

    def __init__(self, executor: Executor) -> None:
        self.received: list[Report] = []
        self._task = asyncio.create_task(self._follow(executor))

    async def _follow(self, executor: Executor) -> None:
        async for report in executor.watch():
            self.received.append(report)

    async def end(self) -> None:
        """Wait until the executor is closed."""
        async with asyncio.timeout(PATIENCE):
            await self._task

    def matching(self, kind: type[Value], job: str, generation: int | None = None) -> list[Value]:
        """Return a job's reports of one kind."""
        return [
            report
            for report in self.received
            if isinstance(report, kind)
            and isinstance(report, Started | StartRefused | Ended | Progressed | InvalidProgress)
            and report.job == job
            and generation in {None, report.generation}
        ]

    async def first(self, kind: type[Value], job: str, generation: int = 1) -> Value:
        """Wait for a generation's first report of a kind, and return it."""
        await eventually(lambda: bool(self.matching(kind, job, generation)), lambda: self.received)
        return self.matching(kind, job, generation)[0]


async def eventually(
    condition: Callable[[], bool], shown: Callable[[], object] = lambda: ""
) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, shown()
        await asyncio.sleep(0.02)


async def over(process: asyncio.subprocess.Process, what: str) -> int:
    """Wait until a process of a test ends, and return its exit status."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await process.wait()
    except TimeoutError:
        raise AssertionError(f"{what}, process {process.pid}, did not end") from None


def serve_until_killed() -> None:
    """Act as a service that reads one command from its input and follows the reports."""
    kind, options, order = pickle.load(sys.stdin.buffer)

    async def serve() -> None:
        executor = create_executor(kind, options)
        await executor.open()
        await executor.set_servers(SERVERS)
        missing = {server.name for server in SERVERS}
        if not executor.capabilities.discovers_servers:
            missing.clear()
            await executor.start(order)
        async for report in executor.watch():
            if isinstance(report, ServerSeen) and missing:
                missing.discard(report.server.name)
                if not missing:
                    await executor.start(order)

    asyncio.run(serve())


class LocalHarness:
    """The local executor, with or without control groups.

    Parameters
    ----------
    path : Path
        Directory of its state.
    settings : mapping of str to str
        Its settings.
    """

    kind = "local"
    """Name of the executor in the settings."""

    killed = "supervisor was killed"
    """Reason in the report on a generation whose agent was killed."""

    sees_exits = True
    """Whether the exit status of a stopped process is always known."""

    shortens = True
    """Whether a grace period can be shortened after it began."""

    containers = False
    """Whether processes run in containers:

    with own process numbers, directories and devices, and with logs that end in whole lines.
    """

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        self.path = path
        self.settings = dict(settings)
        self._opened: list[Executor] = []

    def options(self) -> ExecutorOptions:
        """Return the constructor's arguments."""
        return ExecutorOptions(str(self.path), settings=self.settings)

    def make(self) -> Executor:
        """Return an executor that isn't open."""
        return create_executor(self.kind, self.options())

    @contextlib.contextmanager
    def served(self, order: GenerationSpec) -> Iterator[subprocess.Popen[bytes]]:
        """Send a command from a service in another process, which is killed at the end."""
        line = "from tests.contract.harness import serve_until_killed as serve; serve()"
        root = Path(__file__).parents[2]
        with subprocess.Popen(
            [sys.executable, "-c", line], cwd=root, stdin=subprocess.PIPE
        ) as process:
            try:
                assert process.stdin is not None
                pickle.dump((self.kind, self.options(), order), process.stdin)
                process.stdin.close()
                yield process
            finally:
                process.kill()
                process.wait(PATIENCE)

    async def open(self) -> Executor:
        """Open the executor, as a service does when it starts or restarts."""
        executor = self.make()
        self._opened.append(executor)
        await executor.open()
        await executor.set_servers(SERVERS)
        return executor

    def _supervisor(self, job: str, generation: int) -> int:
        number = GenerationStore(self.path).generation(job, generation).state()["supervisor"]
        assert isinstance(number, int)
        return number

    def kill_agent(self, job: str, generation: int) -> None:
        """Kill the agent of a generation, unless it ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._supervisor(job, generation), signal.SIGKILL)

    def lose_server(self, name: str) -> None:
        """Stop a server; all its processes are gone at once."""
        store = GenerationStore(self.path)
        for job, number, generation in store.live():
            state = generation.state()
            if state["phase"] == "running" and any(
                entry[0] == name for entry in state["placement"]
            ):
                self.kill_agent(job, number)

    def blind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Poll progress files only on request."""
        monkeypatch.setattr(local, "RESYNC_SECONDS", 3600.0)

    def files(self) -> bytes:
        """Return the files for operators: logs and the messages of supervisors."""
        return b"".join(path.read_bytes() for path in self.path.rglob("*.log"))

    def leftovers(self) -> list[str]:
        """Return the live processes of everything that this harness started."""
        results = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            needle = os.fsencode(self.path)
            if state not in {b"Z", b"X"} and needle in command + environment:
                results.append(f"{entry.name}: {command.decode(errors='replace')}")
        return results

    def run(self, scenario: Callable[[LocalHarness, Executor, ReportLog], Awaitable[None]]) -> None:
        """Run a scenario on a new executor, and check that no process is left."""
        asyncio.run(self._run(scenario))
        self.end()

    async def _run(
        self, scenario: Callable[[LocalHarness, Executor, ReportLog], Awaitable[None]]
    ) -> None:
        executor = await self.open()
        reports = ReportLog(executor)
        try:
            async with asyncio.timeout(SCENARIO):  # such as a command without a response
                await scenario(self, executor, reports)
        finally:
            async with asyncio.timeout(PATIENCE):
                # if a scenario ends early, so do the executors that it opened
                for one in self._opened:
                    await one.close()
            self._opened.clear()
            await reports.end()

    def end(self) -> None:
        """Stop everything that runs, and check that it is gone."""

        async def stop_all() -> None:
            executor = await self.open()
            reports = ReportLog(executor)
            try:
                for held in await executor.list():
                    if held.end is None:
                        await executor.stop(10**6, held.job, held.generation, 0.0)
                until = time.monotonic() + PATIENCE
                while live := [held for held in await executor.list() if held.end is None]:
                    assert time.monotonic() < until, live
                    await asyncio.sleep(0.02)
            finally:
                async with asyncio.timeout(PATIENCE):
                    await executor.close()
                self._opened.clear()
                await reports.end()

        asyncio.run(stop_all())
        until = time.monotonic() + PATIENCE  # a supervisor records the end before it exits
        while self.leftovers() and time.monotonic() < until:
            time.sleep(0.02)
        assert self.leftovers() == []


class RayHarness(LocalHarness):
    """The Ray executor on a cluster of several raylets.

    Parameters
    ----------
    path : Path
        Directory of its state; the nodes keep their files below it.
    cluster : RayCluster
        The cluster.
    """

    kind = "ray"
    killed = "the supervisor of worker-0 was killed"

    def __init__(self, path: Path, cluster: RayCluster) -> None:
        super().__init__(path, {"log_bytes": "100000", "lost_after": "2", "cgroup": "off"})
        self.cluster = cluster
        self.lost = False

    def options(self) -> ExecutorOptions:
        """Return the constructor's arguments."""
        own = {name: value for name, value in self.settings.items() if name != "cgroup"}
        own["node_dir"] = str(self.path / "nodes")
        return ExecutorOptions(str(self.path), "test", self.cluster.address, own)

    async def open(self) -> Executor:
        """Open the executor, as a service does when it starts or restarts."""
        executor = await super().open()
        assert isinstance(executor, RayExecutor)
        until = time.monotonic() + PATIENCE
        while missing := {server.name for server in SERVERS} - executor.session.nodes.keys():
            assert time.monotonic() < until, f"{missing} never joined"
            await asyncio.sleep(0.1)
        return executor

    def part(self, job: str, generation: int) -> Mapping[str, Any]:
        """Return the node of a generation's worker 0."""
        plan = GenerationStore(self.path).generation(job, generation).plan()
        directory = self.path / "nodes" / "parts" / plan["parts"][0]["actor"]
        return GenerationDirectory(directory).state()

    def kill_agent(self, job: str, generation: int) -> None:
        """Kill the actor of worker 0, unless it ended by itself."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(self.part(job, generation)["agent"], signal.SIGKILL)

    def lose_server(self, name: str) -> None:
        """Kill a raylet."""
        self.cluster.kill(name)
        self.lost = True

    def blind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Poll progress files only on request."""
        happened = RayExecutor._on_actor_event

        def without_progress(self: RayExecutor, event: dict[str, Any]) -> None:
            if event["event"] == "news":
                event["news"]["progress"] = None
            happened(self, event)

        monkeypatch.setattr(RayExecutor, "_on_actor_event", without_progress)

    def leftovers(self) -> list[str]:
        """Return the live processes of jobs; Ray's own processes stay."""
        return [leftover for leftover in super().leftovers() if "ray::" not in leftover]

    def end(self) -> None:
        """Restart killed raylets, stop everything that runs, and check that it is gone."""
        self.cluster.restore()
        live = GenerationStore(self.path).live() if self.path.exists() else ()
        if any(
            one.state()["phase"] not in TERMINAL_PHASES for _, _, one in live
        ):  # connecting takes seconds
            super().end()
        until = time.monotonic() + PATIENCE  # a supervisor records the end before it exits
        while self.leftovers() and time.monotonic() < until:
            time.sleep(0.02)
        assert self.leftovers() == []
        # Files on a lost node are removed when it is back, by a service that runs then.
        assert self.lost or list((self.path / "nodes" / "parts").glob("*")) == []


def executor_account(bed: Testbed) -> Path:
    """Create a user with the rights of `executor-rights.yaml`; return its kubeconfig."""
    config = bed.kubeconfig_of(EXECUTOR_USER)
    for role in yaml.safe_load_all(RIGHTS.read_text()):
        role["metadata"]["namespace"] = "default"
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": role["apiVersion"],
            "kind": f"{role['kind']}Binding",
            "metadata": {"name": "suite", "namespace": "default"},
            "roleRef": {"apiGroup": group, "kind": role["kind"], "name": role["metadata"]["name"]},
            "subjects": [{"kind": "User", "name": EXECUTOR_USER}],
        }
        bed.kubectl("apply", "-f", "-", given=json.dumps(role))
        bed.kubectl("apply", "-f", "-", given=json.dumps(binding))
    return config


class KubernetesHarness(LocalHarness):
    """The Kubernetes executor on a cluster of real nodes.

    Parameters
    ----------
    path : Path
        Directory of logs. Pods see its parent and the interpreter, and nothing else of this
        machine.
    bed : Testbed
        The cluster.
    """

    kind = "kubernetes"
    killed = "deleted by someone other than the scheduler"
    containers = True
    shortens = False  # kubelets before 1.22 can't
    sees_exits = False  # and they don't always report it for a deleted pod

    def __init__(self, path: Path, bed: Testbed) -> None:
        folder = bed.folder / "suite"
        folder.mkdir(exist_ok=True)
        volumes, mounts = host_python()
        sources = [volume["hostPath"]["path"] for volume in volumes]
        seen = [
            {"path": mount["mountPath"], "host_path": source, "read_only": True}
            for mount, source in zip(mounts, sources, strict=True)
        ]
        seen.append({"path": str(path.parent), "host_path": str(path.parent)})
        pod = folder / f"{path.parent.name}.json"
        pod.write_text(json.dumps({"pull": "Never", "volumes": seen}))
        settings = {"image": BASE, "pod": str(pod), "shared": str(path)}
        settings |= {"lost_after": "20", "log_bytes": "100000", "cgroup": "auto"}
        settings["patience"] = f"{PATIENCE:g}"  # pods start slowly on a busy machine
        super().__init__(path, settings)
        self.bed = bed
        self.lost: list[str] = []
        self._service = f"t-{key_digest(str(path))[:16]}"

    def options(self) -> ExecutorOptions:
        """Return the constructor's arguments."""
        own = {name: value for name, value in self.settings.items() if name != "cgroup"}
        config = str(executor_account(self.bed))
        return ExecutorOptions(str(self.path), self._service, config, own)

    async def open(self) -> Executor:
        """Open the executor, as a service does when it starts or restarts."""
        executor = await super().open()
        assert isinstance(executor, KubernetesExecutor)
        until = time.monotonic() + PATIENCE
        cluster = executor.session.cluster
        while missing := {server.name for server in SERVERS} - cluster.servers.keys():
            assert time.monotonic() < until, f"{missing} never joined"
            await asyncio.sleep(0.1)
        return executor

    def kill_agent(self, job: str, generation: int) -> None:
        """Delete the pod of worker 0."""
        path = f"/api/v1/namespaces/default/pods/{pod_name(job, generation, 'worker-0')}"
        try:
            self.bed.ask("DELETE", path, {"kind": "DeleteOptions", "gracePeriodSeconds": 1})
        except ApiError as error:
            if error.status != 404:  # it ended just now
                raise

    def lose_server(self, name: str) -> None:
        """Stop a node and everything that runs on it."""
        self.bed.lose(name)
        self.lost.append(name)

    def end(self) -> None:
        """Restart lost nodes, stop everything that runs, and check that nothing is left."""
        while self.lost:
            self.bed.restore(self.lost.pop())
        if self.path.exists():
            super().end()
        result = self.bed.ask("GET", f"/api/v1/pods?labelSelector={SERVICE}={self._service}")
        assert [item["metadata"]["name"] for item in result["items"]] == []
        result = self.bed.ask("GET", f"/api/v1/services?labelSelector={SERVICE}={self._service}")
        assert [item["metadata"]["name"] for item in result["items"]] == []
        result = self.bed.ask("GET", f"/api/v1/secrets?labelSelector={SERVICE}={self._service}")
        assert [item["metadata"]["name"] for item in result["items"]] == []

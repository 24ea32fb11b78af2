"""The executor's guarantees while a real cluster fails; the server's log is the judge."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.testbed import BASE, Testbed
from tools.testbed.audit import Audit

from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorError,
    Receipt,
    ServerAllocation,
    ServerGone,
    Started,
    StartRefused,
)
from shadowprice.executors.kubernetes.executor import RESYNC_SECONDS
from shadowprice.executors.kubernetes.names import SERVICE, pod_name
from shadowprice.kubernetes.connection import ApiClient
from tests.contract.harness import POLITE, KubernetesHarness, ReportLog, eventually, ready, spec
from tests.kubernetes.operators import joined

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def harness(testbed: Testbed, tmp_path: Path) -> Iterator[KubernetesHarness]:
    chosen = KubernetesHarness(tmp_path / "executor", testbed)
    yield chosen
    chosen.end()
    assert Audit.read(testbed.audit).of_service(chosen._service).faults() == []


def gated(tmp_path: Path, name: str = "go") -> str:
    """A program that ends once a file exists."""
    return f"echo ready; until [ -e {tmp_path}/{name} ]; do sleep 0.1; done; echo went"


@pytest.mark.parametrize("name", ["kube-apiserver", "etcd"])
def test_jobs_run_on_and_end_while_the_cluster_is_unreachable(
    harness: KubernetesHarness, tmp_path: Path, name: str
) -> None:
    async def scenario(own: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("ends", 1, gated(tmp_path)))
        await executor.start(spec("stays", 1, POLITE, ServerAllocation("two", 1)))
        await ready(executor, "ends")
        await ready(executor, "stays")
        await asyncio.to_thread(own.bed.kill, name)
        try:
            (tmp_path / "go").touch()
            with pytest.raises(ExecutorError):
                async with asyncio.timeout(120):
                    await executor.start(spec("later", 1, "true"))
            assert not reports.matching(Ended, "ends")
        finally:
            await asyncio.to_thread(own.bed.restart, name)
            await asyncio.to_thread(own.bed.component("kube-apiserver").wait)
        assert (await reports.first(Ended, "ends")).ending is Ending.DONE
        assert not reports.matching(Ended, "stays")
        await _accepted(executor, spec("later", 1, "true"))
        assert (await reports.first(Ended, "later")).ending is Ending.DONE
        assert await executor.stop(11, "stays", 1, 20.0) == Receipt.ACCEPTED
        assert (await reports.first(Ended, "stays")).ending is Ending.STOPPED

    harness.run(scenario)


async def _accepted(executor: Executor, order: Any) -> None:
    """Repeat a command until it is acknowledged, as the service does."""
    for _ in range(100):
        try:
            assert await executor.start(order) in {Receipt.ACCEPTED, Receipt.DUPLICATE}
        except ExecutorError:
            await asyncio.sleep(0.5)
        else:
            return
    raise AssertionError("never taken")


def test_watches_that_expire_lose_nothing(harness: KubernetesHarness, tmp_path: Path) -> None:
    async def scenario(own: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, gated(tmp_path)))
        await ready(executor, "job")
        (tmp_path / "go").touch()  # the end falls into the time in which no service watches
        await asyncio.to_thread(own.bed.expire_watches)
        assert (await reports.first(Ended, "job")).ending is Ending.DONE
        await _accepted(executor, spec("job", 2, "true"))
        assert (await reports.first(Ended, "job", 2)).ending is Ending.DONE

    harness.run(scenario)


def test_a_node_without_heartbeats_for_a_while_loses_nothing(
    harness: KubernetesHarness, tmp_path: Path
) -> None:
    harness.settings["lost_after"] = "600"

    async def scenario(own: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, gated(tmp_path), ServerAllocation("two", 1)))
        await ready(executor, "job")
        await asyncio.to_thread(own.bed.cut, "two")
        try:
            node = own.bed.nodes["two"]
            await _until(lambda: not node.is_ready())
            await asyncio.sleep(3 * RESYNC_SECONDS)
            (tmp_path / "go").touch()
        finally:
            await asyncio.to_thread(own.bed.join, "two")
        assert (await reports.first(Ended, "job")).ending is Ending.DONE
        await _until(node.is_ready)
        assert not [report for report in reports.received if isinstance(report, ServerGone)]

    harness.run(scenario)


async def _until(condition: Callable[[], bool], patience: float = 120.0) -> None:
    async with asyncio.timeout(patience):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.1)


def test_jobs_of_a_lost_node_resume_elsewhere_and_not_before(
    harness: KubernetesHarness, tmp_path: Path
) -> None:
    async def scenario(own: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        both = (ServerAllocation("one", 1), ServerAllocation("two", 1))
        line = f"echo $SHADOWPRICE_GENERATION >> {tmp_path}/began; echo ready; exec sleep 600"
        await executor.start(spec("job", 1, line, *both))
        # both: a generation that didn't start is refused, not lost
        await reports.first(Started, "job")
        await ready(executor, "job")
        own.lose_server("two")
        assert await executor.start(spec("job", 2, "true")) == Receipt.BUSY
        assert (await reports.first(Ended, "job")).ending is Ending.LOST
        await _accepted(executor, spec("job", 2, "true"))
        assert (await reports.first(Ended, "job", 2)).ending is Ending.DONE
        assert (tmp_path / "began").read_text().split() == ["1", "1"]
        pods = Audit.read(own.bed.audit).of_service(own._service).of_jobs()
        assert [pod.generation for pod in pods] == [1, 1, 2]

    harness.run(scenario)


def test_an_evicted_pod_is_no_fault_of_its_job(harness: KubernetesHarness) -> None:
    async def scenario(own: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        name = pod_name("job", 1, "worker-0")
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction"}
        eviction["metadata"] = {"name": name, "namespace": "default"}
        own.bed.ask("POST", f"{PODS}/{name}/eviction", eviction)
        assert (await reports.first(Ended, "job")).ending is Ending.LOST
        await executor.start(spec("job", 2, "true"))
        assert (await reports.first(Ended, "job", 2)).ending is Ending.DONE

    harness.run(scenario)


def test_memory_beyond_what_a_worker_asks_for_fails_and_says_so(
    harness: KubernetesHarness,
) -> None:
    async def scenario(_: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, "tail /dev/zero", worker={"memory": 64 << 20}))
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code) == (Ending.FAILED, 137)
        assert "OOMKilled" in ended.reason

    harness.run(scenario)


def test_an_image_that_is_not_there_is_refused_with_the_reason(harness: KubernetesHarness) -> None:
    harness.settings["image"] = "shadowprice.test/none:1"

    async def scenario(_: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, "true"))
        # Kubelet 1.20 takes a minute to remove a pod that never started.
        await _until(lambda: bool(reports.matching(StartRefused, "job")), 180.0)
        (refused,) = reports.matching(StartRefused, "job")
        assert "ErrImageNeverPull" in refused.reason
        assert not reports.matching(Started, "job")

    harness.run(scenario)


def test_a_node_where_nothing_may_begin_is_refused_with_the_reason(
    harness: KubernetesHarness,
) -> None:
    harness.settings["patience"] = "10"

    def closed(*, now: bool) -> None:
        change = {"spec": {"unschedulable": now}}
        kind = "application/merge-patch+json"
        harness.bed.ask("PATCH", "/api/v1/nodes/two", change, kind=kind)

    async def scenario(_: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        closed(now=True)
        await executor.start(
            spec("job", 1, "true", ServerAllocation("one", 1), ServerAllocation("two", 1))
        )
        refused = await reports.first(StartRefused, "job")
        assert "no place on two within 10 s" in refused.reason
        assert not reports.matching(Started, "job")

    try:
        harness.run(scenario)
    finally:
        closed(now=False)


def test_a_node_that_anothers_pod_took_is_refused_with_the_reason(
    harness: KubernetesHarness,
) -> None:
    container = {"name": "main", "image": BASE, "command": ["sleep", "600"]}
    container |= {"imagePullPolicy": "Never", "resources": {"requests": {"cpu": "900m"}}}
    other = {"metadata": {"name": "other"}, "spec": {"containers": [container], "nodeName": "two"}}
    other["spec"]["terminationGracePeriodSeconds"] = 0
    harness.bed.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **other})

    async def scenario(_: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(
            spec("job", 1, "true", ServerAllocation("two", 1), worker={"cpu": 1000})
        )
        refused = await reports.first(StartRefused, "job")
        assert refused.reason == "two has 0.1 of cpu free, and 1 is requested"

    try:
        harness.run(scenario)
    finally:
        harness.bed.ask("DELETE", f"{PODS}/other?gracePeriodSeconds=0")


def test_nothing_is_held_open_to_a_server_that_fell_silent(testbed: Testbed) -> None:
    """A connection that waits for the server's close would outlive its loop."""
    apiserver = testbed.component("kube-apiserver")

    def connections() -> set[str]:
        """Return this process's sockets that are connected to the server, by kernel numbers."""
        own = set()
        for one in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                own.add(str(one.readlink()))
        rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
        there = [row for row in rows if int(row[2].partition(":")[2], 16) == testbed.plane.port]
        return {row[9] for row in there if f"socket:[{row[9]}]" in own}

    async def scenario() -> None:
        others = connections()  # of earlier tests, whose loops are closed, until they are collected
        connection = await ApiClient.open(str(testbed.kubeconfig))
        lines = connection.lines("/api/v1/namespaces", silence=60.0, watch=True)
        assert b"ADDED" in await anext(lines)
        await connection.get("/version")  # by another one, which is kept for the next request
        own = connections() - others
        assert len(own) == 2
        apiserver.signal(signal.SIGSTOP)
        assert isinstance(lines, AsyncGenerator)
        try:
            await lines.aclose()
            await connection.close()
            assert not connections() & own
        finally:
            apiserver.signal(signal.SIGCONT)

    asyncio.run(scenario())


def test_records_that_others_write_too_are_written_in_turn(harness: KubernetesHarness) -> None:
    """Any user may change labels of a record; the executor's writes meet them."""
    bed, over = harness.bed, threading.Event()
    records = "/api/v1/namespaces/default/configmaps"
    written = []

    def meddle() -> None:
        while not over.is_set():
            selector = f"?labelSelector={SERVICE}={harness._service}"
            time.sleep(0.05)
            for item in bed.ask("GET", records + selector)["items"]:
                change = {"metadata": {"annotations": {"someone": str(len(written))}}}
                path = f"{records}/{item['metadata']['name']}"
                bed.ask("PATCH", path, change, kind="application/merge-patch+json")
                written.append(path)

    async def scenario(_: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        jobs = [f"job-{number}" for number in range(4)]
        for generation in (1, 2):
            for job in jobs:
                await _accepted(executor, spec(job, generation, "true", number=generation))
            for job in jobs:
                assert (await reports.first(Ended, job, generation)).ending is Ending.DONE
        await eventually(lambda: len(written) > 20)

    meddler = threading.Thread(target=meddle)
    meddler.start()
    try:
        harness.run(scenario)
    finally:
        over.set()
        joined(meddler)

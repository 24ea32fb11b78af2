"""Unforeseen errors, and deleted records, while generations on Kubernetes are followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until_async

pytest.importorskip("kubernetes_asyncio")

from shadowprice.executors import background
from shadowprice.executors.contract import (
    Ended,
    Ending,
    ExecutorOptions,
    Receipt,
    Report,
    ServerAllocation,
    Started,
)
from shadowprice.executors.generations.disk import FileLock
from shadowprice.executors.kubernetes import executor as module
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.controller import KubernetesGenerationController
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from shadowprice.executors.kubernetes.names import generation_name, pod_name
from tests.support.kubernetes_executors import generation_spec, open_executor, run_scenario
from tests.unit.executors.kubernetes.newer import Newer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESYNC_SECONDS", 0.02)
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.02)


@pytest.mark.parametrize("step", ["_apply_pod_states", "_delete_pods_if_ending"])
def test_a_generation_is_carried_on_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    met = 0

    async def failing(self: KubernetesGenerationController) -> None:
        nonlocal met
        met += 1
        raise KeyError("a bug")

    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            with monkeypatch.context() as patch:
                patch.setattr(KubernetesGenerationController, step, failing)
                assert (
                    await executor.start(generation_spec(ServerAllocation("two", 1)))
                    == Receipt.ACCEPTED
                )
                await wait_until_async(lambda: met > 2)
                said = "running generation 1 of 'job' failed: KeyError: 'a bug'"
                assert executor.health_error == said
            await wait_until_async(lambda: executor.health_error is None)
            await wait_until_async(lambda: any(isinstance(report, Started) for report in reports))

    run_scenario(tmp_path, scenario)


def test_the_cluster_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def failing(self: KubernetesExecutor) -> None:
        raise KeyError("a bug")

    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, _):
            executor._background._failed = counted.append
            with monkeypatch.context() as patch:
                patch.setattr(KubernetesExecutor, "_poll_nodes", failing)
                await wait_until_async(lambda: len(counted) > 2)
                assert (
                    executor.health_error == "resyncing with the cluster failed: KeyError: 'a bug'"
                )
            await wait_until_async(lambda: executor.health_error is None)

    run_scenario(tmp_path, scenario)
    assert set(counted) == {"resync"}


RECORDS = "configmaps in default"
ONE = generation_spec(ServerAllocation("one", 1))


@asynccontextmanager
async def unwatched_executor(kubeconfig: Path, folder: Path) -> AsyncIterator[KubernetesExecutor]:
    options = ExecutorOptions(str(folder / "executor"), "s", str(kubeconfig), {})
    executor = KubernetesExecutor(options)
    await executor.open()
    try:
        yield executor
    finally:
        await executor.close()


async def watched(executor: KubernetesExecutor, kind: type[Report], *jobs: str) -> list[Report]:
    """Subscribe again, and return the reports until those of a kind came for all jobs."""
    reports: list[Report] = []
    async for report in executor.watch():
        reports.append(report)
        if {*jobs} <= {one.job for one in reports if isinstance(one, kind)}:  # type: ignore[attr-defined]  # not of servers
            return reports
    raise AssertionError(reports)


async def start(executor: KubernetesExecutor, *jobs: str) -> None:
    for job in jobs:
        assert await executor.start(replace(ONE, job=job)) == Receipt.ACCEPTED
    await watched(executor, Started, *jobs)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_generation_whose_record_is_deleted_is_lost_and_no_other(
    tmp_path: Path, is_stopped: bool
) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            await start(executor, "job")
            server.delete_all(RECORDS)
            await start(executor, "other")
            if is_stopped:
                assert await executor.stop(11, "job", 1) == Receipt.ACCEPTED
            else:
                server.complete(pod_name("job", 1, "worker-0"))
            for _ in range(2):  # a service that subscribes again gets the same reports
                reports = await watched(executor, Ended, "job")
                ended = ended_of(reports)
                assert (ended.ending, ended.reason) == (Ending.LOST, "its record was deleted")
            await watched(executor, Started, "other")
            # Its objects are deleted, and only its own.
            await wait_until_async(lambda: server.pods() == [pod_name("other", 1, "worker-0")])
            await wait_until_async(lambda: server.names("secrets") == [generation_name("other", 1)])

    run_scenario(tmp_path, scenario)


def ended_of(reports: list[Report]) -> Ended:
    [ended] = [report for report in reports if isinstance(report, Ended)]
    return ended


def test_others_are_stopped_while_the_log_of_a_failed_process_is_fetched(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            spec = generation_spec(ServerAllocation("one", 1), ServerAllocation("two", 1))
            assert await executor.start(spec) == Receipt.ACCEPTED
            await watched(executor, Started, "job")
            server.logs_readable.clear()
            server.complete(pod_name("job", 1, "worker-0"), 1)
            await wait_until_async(lambda: server.pods() == [pod_name("job", 1, "worker-0")])
            server.logs_readable.set()
            ended = ended_of(await watched(executor, Ended, "job"))
            assert (ended.ending, ended.code, ended.tail) == (Ending.FAILED, 1, ("a line",))

    run_scenario(tmp_path, scenario)


def test_logs_are_not_fetched_from_a_node_that_is_lost(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path, lost_after="1") as (executor, reports):
            assert await executor.start(ONE) == Receipt.ACCEPTED
            await wait_until_async(lambda: any(isinstance(report, Started) for report in reports))
            server.logs_readable.clear()  # a request would wait for a minute
            server.remove("one")
            await wait_until_async(lambda: any(isinstance(report, Ended) for report in reports))
            assert ended_of(reports).ending is Ending.LOST
            assert server.requests["GET pods log"] == 0

    run_scenario(tmp_path, scenario)


def test_a_restarted_service_collects_the_log_of_the_process_that_decided(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            spec = generation_spec(ServerAllocation("one", 1), ServerAllocation("two", 1))
            assert await executor.start(spec) == Receipt.ACCEPTED
            await watched(executor, Started, "job")
            server.fail = lambda method, kind: (method, kind) == ("DELETE", "pods")
            server.complete(pod_name("job", 1, "worker-0"), 1)
            await wait_until_async(lambda: server.requests["DELETE pods"] > 0)
        server.fail = lambda _method, _kind: False
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            ended = ended_of(await watched(executor, Ended, "job"))
            assert (ended.ending, ended.code, ended.tail) == (Ending.FAILED, 1, ("a line",))

    run_scenario(tmp_path, scenario)


def test_during_a_resize_logs_are_those_of_the_newest_generation_that_started(
    tmp_path: Path,
) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            await start(executor, "job")
            assert (await executor.logs("job")).generation == 1
            assert await executor.stop(11, "job", 1) == Receipt.ACCEPTED
            await watched(executor, Ended, "job")
            await executor.acknowledge_end("job", 1)
            server.fail = lambda method, kind: (method, kind) == ("POST", "pods")
            assert await executor.start(replace(ONE, generation=2)) == Receipt.ACCEPTED
            await wait_until_async(lambda: server.requests["POST pods"] > 1)
            chunk = await executor.logs("job")
            assert (chunk.generation, chunk.text) == (1, "a line\n")
            server.fail = lambda _method, _kind: False
            await watched(executor, Started, "job")
            assert (await executor.logs("job")).generation == 2

    run_scenario(tmp_path, scenario)


def test_a_generation_whose_record_is_deleted_while_it_is_launched_starts_nothing(
    tmp_path: Path,
) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            server.fail = lambda method, kind: (method, kind) == ("POST", "secrets")
            assert await executor.start(ONE) == Receipt.ACCEPTED
            await wait_until_async(lambda: server.requests["POST secrets"] > 0)
            server.delete_all(RECORDS)
            server.fail = lambda _method, _kind: False
            ended = ended_of(await watched(executor, Ended, "job"))
            assert (ended.ending, ended.reason) == (Ending.LOST, "its record was deleted")
            await wait_until_async(lambda: server.names("secrets") == [])
            assert server.requests["POST pods"] == 0

    run_scenario(tmp_path, scenario)


def test_a_sidecar_that_runs_on_is_ended_with_its_job(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            await start(executor, "job")
            server.inject_sidecar(pod_name("job", 1, "worker-0"))
            server.complete(pod_name("job", 1, "worker-0"))
            ended = ended_of(await watched(executor, Ended, "job"))
            assert (ended.ending, ended.code) == (Ending.DONE, 0)
            assert server.pods() == []

    run_scenario(tmp_path, scenario)


def test_a_generation_that_cannot_be_reported_hides_no_other(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            await start(executor, "job", "other")
            del executor._registry.entries["job", 1].state["command"]
            await watched(executor, Started, "other")

    run_scenario(tmp_path, scenario)


def test_records_are_loaded_though_a_first_attempt_after_the_lease_failed(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with unwatched_executor(kubeconfig, tmp_path) as executor:
            records = "GET configmaps labelSelector"
            server.fail = lambda method, kind: (method, kind) == ("GET", "configmaps")
            before = server.requests[records]
            assert executor._lease._lease is not None
            assert executor._lease._lease._renewing is not None
            executor._lease._lease._renewing.cancel()
            await wait_until_async(lambda: server.requests[records] > before)
            assert executor._lease.holds()
            server.fail = lambda _method, _kind: False
            await wait_until_async(lambda: executor._records_loaded)
            assert server.requests[records] > before + 1

    run_scenario(tmp_path, scenario)


def test_whatever_fails_when_it_ends_its_lock_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = ClusterCache.close

    async def failing(self: ClusterCache) -> Any:
        await close(self)
        raise KeyError("a bug")

    async def scenario(server: Newer, kubeconfig: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ClusterCache, "close", failing)
            with pytest.raises(KeyError):
                async with open_executor(kubeconfig, tmp_path):
                    pass
        lock = FileLock.try_acquire(tmp_path / "executor")
        assert lock is not None
        lock.release()

    run_scenario(tmp_path, scenario)

"""An unforeseen error while a generation on Kubernetes, or its cluster, is followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until_async

pytest.importorskip("kubernetes_asyncio")

from shadowprice.executors import background
from shadowprice.executors.contract import Receipt, ServerAllocation, Started
from shadowprice.executors.generations.disk import FileLock
from shadowprice.executors.kubernetes import executor as module
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.controller import KubernetesGenerationController
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from tests.support.kubernetes_executors import generation_spec, open_executor, run_scenario
from tests.unit.executors.kubernetes.newer import Newer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESYNC_SECONDS", 0.02)
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.02)


@pytest.mark.parametrize("step", ["_apply_pod_states", "_order"])
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
                said = "carrying generation 1 of 'job' on failed: KeyError: 'a bug'"
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
            executor.background._failed = counted.append
            with monkeypatch.context() as patch:
                patch.setattr(KubernetesExecutor, "_poll_nodes", failing)
                await wait_until_async(lambda: len(counted) > 2)
                assert (
                    executor.health_error == "resyncing with the cluster failed: KeyError: 'a bug'"
                )
            await wait_until_async(lambda: executor.health_error is None)

    run_scenario(tmp_path, scenario)
    assert set(counted) == {"resync"}


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

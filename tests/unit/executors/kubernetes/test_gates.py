"""A whole generation on API servers of recorded versions, with scheduling gates if they exist."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_LIMIT_SECONDS

pytest.importorskip("kubernetes_asyncio")

from shadowprice.executors.contract import (
    Ended,
    ExecutorOptions,
    Receipt,
    Report,
    ServerAllocation,
    Started,
    StartRefused,
)
from shadowprice.executors.kubernetes import controller
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from tests.support.kubernetes_executors import generation_spec
from tests.support.kubernetes_versions import OLDEST_WITH_GATES, VERSIONS
from tests.unit.executors.kubernetes.newer import Newer, served

PODS = ("worker-0", "worker-1", "worker-2", "ps-0")
OLDER = VERSIONS[: VERSIONS.index(OLDEST_WITH_GATES)]
NEWER = VERSIONS[VERSIONS.index(OLDEST_WITH_GATES) :]
Scenario = Callable[[KubernetesExecutor, Callable[[type], Awaitable[Report]]], Awaitable[None]]


def run(server: Newer, folder: Path, scenario: Scenario) -> None:
    async def run_scenario() -> None:
        async with served(server, folder) as kubeconfig:
            options = ExecutorOptions(str(folder / "executor"), "s", str(kubeconfig), {})
            executor = KubernetesExecutor(options)
            await executor.open()
            reports = executor.watch()

            async def comes(kind: type) -> Report:
                async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                    async for report in reports:
                        if isinstance(report, kind):
                            return report
                raise AssertionError(f"no {kind.__name__}")

            try:
                await scenario(executor, comes)
            finally:
                await executor.close()

    asyncio.run(run_scenario())


@pytest.fixture(autouse=True)
def report_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suppress periodic polls, which would hide a due one."""
    monkeypatch.setattr(controller, "STEADY_POLL_SECONDS", 3600.0)


async def _life(executor: KubernetesExecutor, comes: Callable[[type], Awaitable[Report]]) -> None:
    assert await executor.start(generation_spec()) == Receipt.ACCEPTED
    await comes(Started)
    assert await executor.stop(11, "job", 1) == Receipt.ACCEPTED
    await comes(Ended)


@pytest.mark.parametrize("version", NEWER)
def test_no_pod_is_placed_before_all_are_there(version: str, tmp_path: Path) -> None:
    server = Newer(version)
    run(server, tmp_path, _life)
    requests = [what for what, _ in server.said]
    count = len(PODS)
    assert requests[:count] == ["made"] * count
    assert requests[count:].count("ungated") == requests.count("runs") == count
    assert "made" not in requests[count:]
    assert server.unknown == []
    assert server.pods() == []


@pytest.mark.parametrize("version", OLDER)
def test_where_there_are_no_gates_they_are_not_requested(version: str, tmp_path: Path) -> None:
    server = Newer(version)
    run(server, tmp_path, _life)
    requests = [what for what, _ in server.said]
    assert "ungated" not in requests
    assert requests.count("runs") == len(PODS)
    assert server.unknown == []
    assert server.pods() == []


@pytest.mark.parametrize("version", [OLDER[-1], NEWER[0], NEWER[-1]])
def test_of_a_generation_of_which_a_pod_is_refused_none_begins_behind_gates(
    version: str, tmp_path: Path
) -> None:
    """The purpose of gates: without them some pods run for a moment, and are removed."""
    server = Newer(version)
    server.refuse = lambda name: name.endswith("ps-0")

    async def scenario(
        executor: KubernetesExecutor, comes: Callable[[type], Awaitable[Report]]
    ) -> None:
        assert await executor.start(generation_spec()) == Receipt.ACCEPTED
        refused = await comes(StartRefused)
        assert isinstance(refused, StartRefused)
        assert "forbidden" in refused.reason

    run(server, tmp_path, scenario)
    requests = [what for what, _ in server.said]
    assert requests.count("runs") == (len(PODS) - 1 if version in OLDER else 0)
    assert server.pods() == []


@pytest.mark.parametrize(("workers", "lists"), [(2, 2), (8, 8), (9, 1)])
def test_cost_of_gates(workers: int, lists: int, tmp_path: Path) -> None:
    """One patch a pod, and one poll of them all: by name if they are few, else by one list."""

    async def life(
        executor: KubernetesExecutor, comes: Callable[[type], Awaitable[Report]]
    ) -> None:
        shares = (
            ServerAllocation("one", workers // 2),
            ServerAllocation("two", workers - workers // 2),
        )
        assert await executor.start(generation_spec(*shares)) == Receipt.ACCEPTED
        await comes(Started)

    requested = {}
    for version in (OLDER[-1], NEWER[-1]):
        server = Newer(version)
        folder = tmp_path / version
        folder.mkdir()
        run(server, folder, life)
        requested[version] = server.requests
    more = requested[NEWER[-1]] - requested[OLDER[-1]]
    del more["PUT leases"]  # renewals depend on the time that the machine takes
    by_name = "GET pods labelSelector fieldSelector"
    looks = {by_name: lists} if lists > 1 else {"GET pods labelSelector": 1}
    assert more == {"PATCH pods": workers, **looks}
    assert requested[OLDER[-1]] - requested[NEWER[-1]] == {}

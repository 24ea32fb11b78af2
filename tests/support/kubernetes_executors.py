"""Kubernetes executors on a simulated API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from shadowprice.core.program import Program
from shadowprice.executors.contract import (
    ExecutorOptions,
    GenerationSpec,
    Report,
    ServerAllocation,
    ServerInfo,
)
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from tests.support.waiting import WAIT_LIMIT_SECONDS
from tests.unit.executors.kubernetes.newer import Newer, served


def generation_spec(*placement: ServerAllocation) -> GenerationSpec:
    return GenerationSpec(
        command=10,
        job="job",
        generation=1,
        placement=placement or (ServerAllocation("one", 2), ServerAllocation("two", 1, 1)),
        program=Program(("train",), {}, image="i", grace=1.0),
        worker={"cpu": 500},
        ps={"cpu": 500},
    )


VERSION = "1.34"
BOTH = [ServerInfo(name, {"cpu": 4000}) for name in ("one", "two")]


@asynccontextmanager
async def open_executor(
    kubeconfig: Path, folder: Path, **settings: str
) -> AsyncIterator[tuple[KubernetesExecutor, list[Report]]]:
    """Open an executor on both nodes; yield it and the list of its reports."""
    options = ExecutorOptions(str(folder / "executor"), "s", str(kubeconfig), settings)
    executor = KubernetesExecutor(options)
    await executor.open()
    await executor.set_servers(BOTH)
    reports: list[Report] = []

    async def follow() -> None:
        async for report in executor.watch():
            reports.append(report)  # noqa: PERF401  # it is looked at meanwhile

    following = asyncio.create_task(follow())
    try:
        yield executor, reports
    finally:
        await executor.close()
        await following


def run_scenario(folder: Path, scenario: Callable[[Newer, Path], Awaitable[None]]) -> None:
    async def connect_and_run() -> None:
        server = Newer(VERSION)
        async with served(server, folder) as kubeconfig, asyncio.timeout(WAIT_LIMIT_SECONDS):
            await scenario(server, kubeconfig)

    asyncio.run(connect_and_run())

"""The head is killed and restarted, or replaced, with its state in Redis: jobs run on."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shadowprice.executors.contract import Ended, Ending, Executor, GenerationPhase, StartRefused
from tests.contract.harness import (
    POLITE,
    LocalHarness,
    RayHarness,
    ReportLog,
    eventually,
    ready,
    spec,
)
from tests.on_ray.started import StartedCluster
from tests.support.ray_cluster import ADDRESS, RayCluster
from tests.support.ray_serving import job, jobs, serving, until

pytestmark = pytest.mark.ray


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """The address of a Redis."""
    pytest.importorskip("ray")
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("there is no redis-server")
    with socket.create_server((ADDRESS, 0)) as free:
        port = free.getsockname()[1]
    words = [server, "--port", str(port), "--bind", ADDRESS, "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen([*words, "--protected-mode", "no"], stdout=subprocess.DEVNULL) as begun:
        try:
            yield f"{ADDRESS}:{port}"
        finally:
            begun.kill()


@pytest.fixture
def kept_head(redis: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    """A cluster whose head keeps its state in Redis."""
    monkeypatch.setenv("RAY_REDIS_ADDRESS", redis)
    cluster = RayCluster()
    yield cluster
    cluster.shutdown()


@pytest.fixture
def kept_apart(redis: str) -> Iterator[StartedCluster]:
    """The same, with a head that is isolated as on a machine of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("the head is kept apart by unshare, as root")
    cluster = StartedCluster(apart=True, RAY_REDIS_ADDRESS=redis)
    yield cluster
    cluster.end()


async def done(executor: Executor, reports: ReportLog, job: str) -> Ended:
    """Start a job as a service does, which retries a refused one in the next slot.

    Sometimes a driver doesn't find the new head, and Ray ends it after 60 s. Another driver
    replaces
    it, and commands to start are refused meanwhile.
    """

    def over(generation: int) -> bool:
        return any(reports.matching(kind, job, generation) for kind in (Ended, StartRefused))

    for generation in range(1, 4):
        await executor.start(spec(job, generation, "echo hi"))
        await eventually(partial(over, generation), lambda: reports.received)
        if ended := reports.matching(Ended, job, generation):
            return ended[0]
    raise AssertionError(reports.received)


def test_jobs_run_on_while_the_head_is_away(kept_head: RayCluster, tmp_path: Path) -> None:
    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        head = kept_head.cluster.head_node
        head.kill_gcs_server()
        await asyncio.sleep(3)
        head.start_gcs_server()
        assert (await done(executor, reports, "after")).ending is Ending.DONE
        held = {one.job: one.phase for one in await executor.list()}
        assert held["job"] is GenerationPhase.RUNNING
        assert not reports.matching(Ended, "job")
        await executor.stop(7, "job", 1)
        assert (await reports.first(Ended, "job")).code == 143

    RayHarness(tmp_path / "executor", kept_head).run(scenario)


@pytest.mark.extended
def test_a_job_runs_on_where_the_whole_head_is_replaced(
    kept_apart: StartedCluster, tmp_path: Path
) -> None:
    with serving(tmp_path, kept_apart) as (client, _):
        assert client.post("/v1/jobs", json=job("only", 1, 1)).is_success
        until(lambda: jobs(client)["only"]["progress"] > 10, lambda: jobs(client))
        assert kept_apart.kill("unshare") == 1  # and everything that it started
        until(lambda: client.get("/readyz").status_code == 503)
        assert not kept_apart.count("gcs_server")
        assert kept_apart.count("raylet/raylet") == 1
        kept_apart.begin_head(kept_apart.address.rpartition(":")[2])
        until(lambda: client.get("/readyz").is_success)
        until(lambda: jobs(client)["only"]["state"] == "finished", lambda: jobs(client))
        assert jobs(client)["only"]["generation"] == 1
        assert client.post("/v1/jobs", json=job("after", 1, 1)).is_success
        until(lambda: jobs(client)["after"]["progress"] > 0, lambda: jobs(client))

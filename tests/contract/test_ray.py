"""What only the Ray executor has to get right."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    Progressed,
    ServerAllocation,
    Started,
)
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.executors.ray.controller import RayGenerationController
from shadowprice.executors.ray.executor import RayExecutor
from shadowprice.service.driver import PROGRESS_POLL_TIMEOUT_SECONDS
from tests.contract.harness import (
    PATIENCE,
    LocalHarness,
    RayHarness,
    ReportLog,
    eventually,
    python,
    ready,
    spec,
)
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray


def test_an_end_is_known_before_the_actors_go_that_alone_could_tell_it(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is cut off once the actors of what failed have gone, and another goes on."""
    harness = RayHarness(tmp_path / "executor", ray_cluster)
    requests: list[str] = []
    ask = RayGenerationController._request

    async def cut_off(self: RayGenerationController, what: str, **more: Any) -> Any:
        answer = await ask(self, what, **more)
        requests.append(what)
        if requests.count("kill") == 2:
            await asyncio.sleep(PATIENCE)  # the service is closed before
        return answer

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(RayGenerationController, "_request", cut_off)
            command = "[ $RANK = 1 ] && { echo broken; exit 9; }; exec sleep 600"
            await executor.start(
                spec("job", 1, command, ServerAllocation("one", 1), ServerAllocation("two", 1))
            )
            await eventually(lambda: requests.count("kill") == 2)
            await executor.close()
            await reports.end()
        assert not reports.matching(Ended, "job")
        executor = await own.open()
        reports = ReportLog(executor)
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code, ended.tail) == (Ending.FAILED, 9, ("broken",)), ended
        assert ended.reason == "worker-1 exited 9"
        assert (await executor.logs("job", 1, "worker-1")).text == "broken\n"
        await executor.close()
        await reports.end()

    harness.run(scenario)


def test_damaged_records_on_a_node_count_as_a_loss(tmp_path: Path, ray_cluster: RayCluster) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("damaged", 1, "(setsid sleep 600 &); echo ready; sleep 600"))
        await ready(executor, "damaged")
        plan = GenerationStore(own.path).generation("damaged", 1).plan()
        part = own.path / "nodes" / "parts" / plan["parts"][0]["actor"]
        supervisor = harness.part("damaged", 1)["supervisor"]
        (part / "state").write_bytes(b"\0" * 16_384)
        os.kill(supervisor, signal.SIGKILL)
        ended = await reports.first(Ended, "damaged")
        assert ended.ending is Ending.LOST
        await executor.start(spec("damaged", 2, "true"))
        assert (await reports.first(Ended, "damaged", 2)).ending is Ending.DONE

    harness.run(scenario)


REPORTS = python(
    """import json, os, time
path = os.environ["SHADOWPRICE_PROGRESS_FILE"]
with open(path + ".new", "w") as file:
    json.dump({"generation": 1, "minibatches": 7}, file)
os.rename(path + ".new", path)
print("ready", flush=True)
time.sleep(600)"""
)


async def _begun(executor: Executor, reports: ReportLog, *jobs: str) -> RayExecutor:
    for job in jobs:
        await executor.start(spec(job, 1, REPORTS))
        await reports.first(Started, job)
        await ready(executor, job)
    assert isinstance(executor, RayExecutor)
    return executor


async def _wait_for_progress(executor: RayExecutor, reports: ReportLog, job: str) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if job in {entry.job for entry in await executor.progress()} or reports.matching(
            Progressed, job
        ):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{job} was never told of")


def test_stuck_actor_does_not_block_polls_of_others(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)
    harness.blind(monkeypatch)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        ray = await _begun(executor, reports, "stuck", "well")
        agent = harness.part("stuck", 1)["agent"]
        os.kill(agent, signal.SIGSTOP)
        try:
            for found in (["well"], []):
                assert [entry.job for entry in await ray.progress()] == found
        finally:
            os.kill(agent, signal.SIGCONT)
        await _wait_for_progress(ray, reports, "stuck")

    harness.run(scenario)


def test_stuck_connection_delays_no_slot(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)
    harness.blind(monkeypatch)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        ray = await _begun(executor, reports, "job")
        assert ray.session.link is not None
        assert ray.session.link._process is not None
        bridge = ray.session.link._process.pid
        os.kill(bridge, signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PROGRESS_POLL_TIMEOUT_SECONDS):
                    await ray.progress()
            # As long as that is not answered, nothing more is asked, nor waited for.
            assert list(await ray.progress()) == []
        finally:
            os.kill(bridge, signal.SIGCONT)
        await _wait_for_progress(ray, reports, "job")

    harness.run(scenario)


@pytest.mark.parametrize("step", ["_order", "_prepare", "_attach"])
def test_a_generation_that_could_not_be_carried_on_is_carried_on_again(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """An unforeseen error before an actor is there, as it is found, or as it is told to end."""
    harness = RayHarness(tmp_path / "executor", ray_cluster)
    made: Any = getattr(RayGenerationController, step)
    met = 0

    async def failing(self: RayGenerationController, *arguments: Any) -> Any:
        nonlocal met
        met += 1
        if met < 3:
            if step == "_attach":
                arguments[0].is_requesting = False
            raise KeyError("a bug")
        return await made(self, *arguments)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        assert isinstance(executor, RayExecutor)
        monkeypatch.setattr(RayGenerationController, step, failing)
        await executor.start(spec("job", 1, "true"))
        said = "carrying generation 1 of 'job' on failed: KeyError: 'a bug'"
        await eventually(lambda: executor.health_error == said)
        ended = await reports.first(Ended, "job")
        # What was asked for and never told to go is not begun anew.
        assert ended.ending is (Ending.LOST if step == "_prepare" else Ending.DONE), ended
        await eventually(lambda: executor.health_error is None)

    harness.run(scenario)


def test_nodes_are_polled_again(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)

    async def failing(self: RayExecutor) -> None:
        raise KeyError("a bug")

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        assert isinstance(executor, RayExecutor)
        with monkeypatch.context() as patch:
            patch.setattr(RayExecutor, "_clean_up_returned_nodes", failing)
            said = "polling the nodes of Ray failed: KeyError: 'a bug'"
            await eventually(lambda: executor.health_error == said)
        await eventually(lambda: executor.health_error is None)

    harness.run(scenario)

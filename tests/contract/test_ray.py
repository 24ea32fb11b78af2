"""Faults that only the Ray executor can have."""

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
from shadowprice.executors.generations.generation import Phase
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.executors.ray.bridge_client import BridgeError
from shadowprice.executors.ray.controller import RayGenerationController
from shadowprice.executors.ray.executor import RayExecutor
from shadowprice.service.driver import PROGRESS_POLL_TIMEOUT_SECONDS
from tests.contract.harness import (
    PATIENCE,
    STUBBORN,
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


def test_an_end_is_recorded_before_the_only_actors_that_report_it_go(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is killed once the actors of a failed generation are gone; another continues."""
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


def test_damaged_records_of_the_service_count_as_a_loss(
    tmp_path: Path, ray_cluster: RayCluster
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("damaged", 1, "echo ready; exec sleep 600"))
        await ready(executor, "damaged")
        await executor.close()
        await reports.end()
        path = GenerationStore(own.path).generation("damaged", 1).path / "state"
        path.write_bytes(b"\0" * path.stat().st_size)
        executor = await own.open()
        reports = ReportLog(executor)
        ended = await reports.first(Ended, "damaged")
        assert ended.ending is Ending.LOST
        assert ended.reason == "its records were damaged; its processes were killed"
        await executor.start(spec("damaged", 2, "true"))
        assert (await reports.first(Ended, "damaged", 2)).ending is Ending.DONE
        await executor.close()
        await reports.end()

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
        assert ray.session.link._process is not None
        bridge = ray.session.link._process.pid
        os.kill(bridge, signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PROGRESS_POLL_TIMEOUT_SECONDS):
                    await ray.progress()
            # Without a response, nothing more is requested or awaited.
            assert list(await ray.progress()) == []
        finally:
            os.kill(bridge, signal.SIGCONT)
        await _wait_for_progress(ray, reports, "job")

    harness.run(scenario)


@pytest.mark.parametrize("step", ["_deliver_stop_command", "_prepare", "_attach"])
def test_a_generation_that_could_not_be_carried_on_is_carried_on_again(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """An unforeseen error before an actor exists, when it is found, or when it is stopped."""
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
        said = "running generation 1 of 'job' failed: KeyError: 'a bug'"
        await eventually(lambda: executor.health_error == said)
        ended = await reports.first(Ended, "job")
        # A generation that was requested, and never stopped, isn't started again.
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


@pytest.mark.parametrize("step", ["collect", "retire", "kill"])
def test_bridge_lost_at_the_end_leaks_no_actor_and_no_log(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)
    ask = RayGenerationController._request
    killed = 0

    async def cut_off(self: RayGenerationController, what: str, **more: Any) -> Any:
        nonlocal killed
        if step in {what, more.get("method")} and not killed:
            killed += 1
            link = self._session.link
            assert link is not None
            assert link._process is not None
            link._process.kill()
        return await ask(self, what, **more)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        assert isinstance(executor, RayExecutor)
        monkeypatch.setattr(RayGenerationController, "_request", cut_off)
        await executor.start(spec("job", 1, "echo kept"))
        assert (await reports.first(Ended, "job")).ending is Ending.DONE
        assert killed == 1
        assert (await executor.logs("job", 1)).text == "kept\n"
        [part] = GenerationStore(own.path).generation("job", 1).plan()["parts"]
        assert not await executor.session.link.call("find", name=part["actor"])

    harness.run(scenario)


def test_log_of_a_process_whose_actor_dies_after_its_end_is_kept(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)
    ask = RayGenerationController._request

    async def kill_first(self: RayGenerationController, what: str, **more: Any) -> Any:
        if what == "collect":
            await ask(self, "kill", name=more["name"])
        return await ask(self, what, **more)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        monkeypatch.setattr(RayGenerationController, "_request", kill_first)
        await executor.start(spec("job", 1, "echo kept"))
        assert (await reports.first(Ended, "job")).ending is Ending.DONE
        assert (await executor.logs("job", 1)).text == "kept\n"

    harness.run(scenario)


def test_process_that_a_node_cannot_store_is_lost_with_a_reason(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)
    ask = RayGenerationController._request
    obstacles: list[Path] = []

    async def obstruct(self: RayGenerationController, what: str, **more: Any) -> Any:
        if more.get("method") == "go":  # a file has the name of the process's directory
            obstacles.append(tmp_path / "executor" / "nodes" / "parts" / more["name"])
            obstacles[-1].touch()
        return await ask(self, what, **more)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        monkeypatch.setattr(RayGenerationController, "_request", obstruct)
        await executor.start(spec("job", 1, "true"))
        ended = await reports.first(Ended, "job")
        [path] = obstacles
        reason = f"one could not start worker-0: {path}: File exists"
        assert (ended.ending, ended.reason) == (Ending.LOST, reason)
        path.unlink()

    harness.run(scenario)


@pytest.mark.parametrize("fault", ["timeout", "late"])
def test_process_is_found_again_after_a_failed_look(
    tmp_path: Path, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A poll times out while its process runs, or its response arrives after the actor's end."""
    harness = RayHarness(tmp_path / "executor", ray_cluster)
    ask, write = RayGenerationController._request, RayGenerationController._write
    happened = RayExecutor._on_actor_event
    looks: list[str] = []
    gone: list[str] = []

    async def failing(self: RayGenerationController, what: str, **more: Any) -> Any:
        answer = await ask(self, what, **more)
        if more.get("method") == "look":
            looks.append(more["name"])
            if len(looks) == 1 and fault == "timeout":
                raise BridgeError("no answer", "Timeout")
            if len(looks) == 1:
                harness.kill_agent("job", 1)
                await eventually(lambda: bool(gone))
        return answer

    def note(self: RayExecutor, event: dict[str, Any]) -> None:
        happened(self, event)
        if event["event"] == "gone":
            gone.append(event["name"])

    def launching(self: RayGenerationController, **change: Any) -> None:
        if change.get("phase") != Phase.RUNNING:  # as if the service was killed before
            write(self, **change)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        monkeypatch.setattr(RayGenerationController, "_request", failing)
        monkeypatch.setattr(RayGenerationController, "_write", launching)
        end = tmp_path / "end"
        await executor.start(spec("job", 1, f"while [ ! -e {end} ]; do sleep 0.1; done"))
        if fault == "timeout":
            await eventually(lambda: len(looks) == 2)
            end.touch()
        ended = await reports.first(Ended, "job")
        assert ended.ending is (Ending.DONE if fault == "timeout" else Ending.LOST), ended

    monkeypatch.setattr(RayExecutor, "_on_actor_event", note)  # before it connects
    harness.run(scenario)


def test_log_of_a_process_without_an_actor_can_be_read_while_others_run(
    tmp_path: Path, ray_cluster: RayCluster
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        assert isinstance(executor, RayExecutor)
        places = ServerAllocation("one", 1), ServerAllocation("two", 1)
        await executor.start(spec("job", 1, STUBBORN, *places, grace=10 * PATIENCE))
        for process in ("worker-0", "worker-1"):
            await ready(executor, "job", process=process)
        harness.kill_agent("job", 1)
        [entry] = executor._registry.unended
        first = next(part for part in entry.parts.values() if part.process == "worker-0")
        await eventually(lambda: not first.on_node)
        assert (await executor.logs("job", 1)).text.startswith("ready\n")
        assert not reports.matching(Ended, "job")  # worker 1 ignores SIGTERM
        await executor.stop(99, "job", 1, 0.0)
        assert (await reports.first(Ended, "job")).ending is Ending.LOST

    harness.run(scenario)

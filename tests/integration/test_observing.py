"""A service that only observes sends no commands and follows the running jobs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shadowprice.cli.main import main
from shadowprice.client import AsyncClient, Client, Endpoint
from shadowprice.core.errors import InputError
from shadowprice.executors.contract import (
    Executor,
    ExecutorOptions,
    ObservedJob,
    ServerAllocation,
)
from shadowprice.executors.registry import create_executor
from tests.support.recording_executor import CLUSTER, RecordingExecutor, short
from tests.support.services import RunningService, job, run_service
from tests.support.simulated_world import FakeExecutor, ManualClock, World
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.processes


def _live_through(live: RunningService, witness: RecordingExecutor) -> None:
    """Do everything that would make a service send commands."""
    for name in ("a", "b", "c"):
        assert live.client.post("/v1/jobs", json=short(name)).status_code == 200
    wait_until(lambda: "started" in _kinds(live), lambda: _kinds(live))
    assert live.client.patch("/v1/servers/g-0", json={"drain": True}).status_code == 200
    assert live.client.delete("/v1/jobs/b").status_code == 200
    assert live.client.patch("/v1/jobs/c", json={"minibatches": 3}).status_code in {200, 409}
    looks = witness.looks
    if live.service.settings.observe:
        wait_until(lambda: witness.looks > looks + 1)
        wait_until(lambda: _state(live, "a") == "finished")
    else:
        wait_until(lambda: bool(witness.orders))


def _kinds(live: RunningService) -> set[str]:
    history = [live.client.get(f"/v1/jobs/{name}/explain").json() for name in ("a", "b", "c")]
    return {event["kind"] for entry in history for event in entry["events"]}


def _state(live: RunningService, name: str) -> str:
    return str(live.client.get(f"/v1/jobs/{name}").json()["state"])


@pytest.mark.parametrize("observe", [True, False])
def test_observing_service_sends_no_commands(tmp_path: Path, observe: bool) -> None:
    witness = RecordingExecutor()
    with run_service(tmp_path, cluster=CLUSTER, executor=witness, observe=observe) as live:
        _live_through(live, witness)
    # The same events make a service that runs jobs send commands.
    assert bool(witness.orders) != observe
    if observe:
        with run_service(tmp_path, cluster=CLUSTER, executor=witness, observe=True):
            looks = witness.looks
            wait_until(lambda: witness.looks > looks + 1)
        assert witness.orders == []


def test_recording_executor_covers_every_command() -> None:
    """A method that is renamed in the contract would not be recorded."""
    queries = {"capabilities", "list", "watch", "logs", "observe"}
    members = {name for name in vars(Executor) if not name.startswith("_")}
    commands = members - queries - {"open", "close", "set_servers"}
    assert commands == {"start", "stop", "acknowledge_end", "delete_job_data"}
    assert commands <= set(vars(RecordingExecutor))


def test_executor_without_observation_is_refused(tmp_path: Path) -> None:
    blind = FakeExecutor(World(ManualClock()))
    with (
        pytest.raises(InputError, match="can't observe jobs of other schedulers"),
        run_service(tmp_path, cluster=CLUSTER, executor=blind, observe=True),
    ):
        pass


def test_observed_jobs_are_not_commanded_after_a_restart(tmp_path: Path) -> None:
    witness = RecordingExecutor()
    cluster = {**CLUSTER, "slot": "1h"}
    with run_service(tmp_path, cluster=cluster, executor=witness, observe=True) as live:
        live.client.post("/v1/jobs", json=job("open", run={"command": ["train"]}))
    with (
        pytest.raises(InputError, match="1 open jobs that were only observed; add --observe"),
        run_service(tmp_path, cluster=cluster, executor=witness, observe=False),
    ):
        pass
    with run_service(tmp_path, cluster=cluster, executor=witness, observe=True) as live:
        live.client.delete("/v1/jobs/open")
    with run_service(tmp_path, cluster=cluster, executor=witness, observe=False) as live:
        assert live.client.get("/v1/comparison").json()["code"] == "unsupported"
    assert witness.orders == []


# ------------------------------------------------------------------ real processes


@contextmanager
def elsewhere(name: str, tenant: str) -> Iterator[subprocess.Popen[bytes]]:
    """A job that another program than the service started."""
    environment = {**os.environ, "SHADOWPRICE_JOB": name, "SHADOWPRICE_TENANT": tenant}
    words = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(words, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_LIMIT_SECONDS)


@contextmanager
def watching(folder: Path) -> Iterator[RunningService]:
    executor = create_executor("local", ExecutorOptions(str(folder / "executor")))
    with run_service(folder, cluster=CLUSTER, executor=executor, observe=True) as live:
        yield live


def _compared(live: RunningService, token: str | None = None) -> dict[str, Any]:
    if token is None:
        answer = live.client.get("/v1/comparison/jobs")
    else:
        with live.as_(token) as other:
            answer = other.get("/v1/comparison/jobs")
    assert answer.status_code == 200, answer.text
    return {job["name"]: job for job in answer.json()["jobs"]}


def test_observed_processes_are_followed_over_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, gone, stranger = (f"{name} {tmp_path}" for name in ("mine", "gone", "stranger"))

    def real(live: RunningService, name: str) -> dict[str, Any]:
        return dict(_compared(live)[name]["observed"])

    with (
        elsewhere(mine, "red") as process,
        elsewhere(gone, "blue") as leaving,
        elsewhere(stranger, "red"),
    ):
        with watching(tmp_path) as live:
            live.client.post("/v1/jobs", json=short(mine, tenant="red"))
            live.client.post("/v1/jobs", json=short(gone, tenant="blue"))
            wait_until(lambda: real(live, mine)["state"] == real(live, gone)["state"] == "running")
            wait_until(lambda: _compared(live)[mine]["simulated"]["state"] == "finished")
        leaving.kill()
        leaving.wait(WAIT_LIMIT_SECONDS)  # while the service is away
        with watching(tmp_path) as live:
            wait_until(lambda: real(live, gone)["state"] == "ended")
            assert real(live, mine)["state"] == "running"
            assert real(live, mine)["runs"] == 1
            process.kill()
            process.wait(WAIT_LIMIT_SECONDS)
            wait_until(lambda: real(live, mine)["state"] == "ended")
            observed = real(live, mine)
            assert 0 < observed["utility"] < 50
            assert _compared(live)[mine]["gain"] == pytest.approx(
                _compared(live)[mine]["simulated"]["utility"] - observed["utility"]
            )
            assert set(_compared(live, live.token("red"))) == {mine}
            wait_until(lambda: _compared(live)[gone]["simulated"]["state"] == "finished")
            _look_at_it(live, capsys, monkeypatch, mine, stranger)


def _look_at_it(
    live: RunningService,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mine: str,
    stranger: str,
) -> None:
    """The sums, the past as bars, the command, and Python."""
    body = live.client.get("/v1/comparison?days=1").json()
    assert body["jobs"] == body["simulated"]["finished"] == body["observed"]["finished"] == 2
    assert body["observed"]["assumed_completed"] == 2
    assert stranger in {entry["name"] for entry in body["unmanaged_jobs"]["newest"]}
    assert body["simulated"]["utility"] > 50
    assert body["observed"]["utility"] > 50
    bars = live.client.get("/v1/timeline?observed=true&past_slots=1000").json()
    assert {mine, stranger} <= {job["job"] for job in bars["jobs"]}
    assert set(bars["bars"]["kind"]) == {0}
    assert live.client.get("/v1/comparison?days=nan").status_code == 422
    assert live.client.get("/v1/timeline?observed=maybe").status_code == 422
    assert live.client.get("/v1/comparison/jobs?limit=1").json()["next"] is not None
    monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
    token = live.service.token_file.read_text().strip()
    monkeypatch.setenv("SHADOWPRICE_TOKEN", token)
    assert main(["observed", "--days", "1"]) == 0
    shown = capsys.readouterr()
    assert "utility earned" in shown.out
    assert "without being submitted to this service" in shown.err
    assert main(["observed", "-o", "json"]) == 0
    assert {entry["name"] for entry in json.loads(capsys.readouterr().out)["compared"]} >= {mine}
    address = Endpoint(live.address, token)
    with Client(address) as client:
        assert [job.name for job in client.compared_jobs()][-1] == mine

    async def ask() -> tuple[int, int]:
        async with AsyncClient(address) as client:
            first = await client.comparison(1)
            return first.jobs, len([job async for job in client.compared_jobs()])

    assert asyncio.run(ask()) == (2, 2)


def test_failed_observation_is_reported_and_retried(tmp_path: Path) -> None:
    class Stumbling(RecordingExecutor):
        fails = True

        async def observe(self) -> tuple[ObservedJob, ...]:
            if self.fails:
                raise RuntimeError("not now")
            return await super().observe()

    witness = Stumbling()
    witness.sees = (ObservedJob("a", (ServerAllocation("g-0", 1),), time.time()),)
    with run_service(tmp_path, cluster=CLUSTER, executor=witness, observe=True) as live:
        live.client.post("/v1/jobs", json=short("a"))
        assert _compared(live)["a"]["observed"]["state"] == "not seen"
        witness.fails = False
        wait_until(lambda: _compared(live)["a"]["observed"]["state"] == "running")

"""Progress and ends during a downtime or suspension of the service count at their time."""

from __future__ import annotations

import signal
import socket
import sqlite3
import sys
import time
from contextlib import closing
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadowprice.executors.generations.generation import Phase
from shadowprice.executors.generations.store import GenerationStore as ExecutorStore
from tests.support.service_process import ServiceProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long]

SLACK_SECONDS = 40
"""Seconds between a job's stated length and its deadline.

The jobs start within them. A downtime that ends later leaves no time for the stated work, so the
promises are only kept if the work and the ends during the downtime count at their time.
"""

STEP_SECONDS = 0.5  # stated
STEPS = 1_000
SOURCE = str(Path(__file__).parents[2] / "src")
TRAIN = f"""
import os, time
from shadowprice import jobs
jobs.report(1)
while not os.path.exists("away"): time.sleep(0.05)
jobs.report({STEPS - 1})
open(os.environ["SHADOWPRICE_JOB"] + "-trained", "w").close()
while not os.path.exists("back"):
    time.sleep(0.2)
    if "SHADOWPRICE_PROGRESS_FILE" not in os.environ:
        jobs.report({STEPS - 1})  # a posted report is lost while the service is away
jobs.report({STEPS})
"""
CLUSTER = {"slot": "2s", "horizon": 400, "servers": [{"name": "box", "capacity": {"cpu": 40}}]}


POST = "import os\ndel os.environ['SHADOWPRICE_PROGRESS_FILE']\n"
UNTIL_AWAY = "until [ -e away ]; do sleep 0.05; done"


def record(name: str, steps: int, command: list[str], folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "chunks": 1,
        "minibatches": steps,
        "minibatch_time": f"{STEP_SECONDS}s",
        "worker": {"cpu": 1},
        "utility": {
            "kind": "deadline",
            "value": 50,
            "by": f"{int(steps * STEP_SECONDS) + SLACK_SECONDS}s",
        },
        "run": {
            "command": command,
            "workdir": str(folder),
            "grace": "2s",
            "env": {"PYTHONPATH": SOURCE},
        },
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    "way",
    [
        "killed",
        *(pytest.param(way, marks=pytest.mark.extended) for way in ("suspended", "ended")),
    ],
)
def test_restarted_service_counts_progress_and_ends_of_its_downtime(
    tmp_path: Path, way: str
) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump(CLUSTER))
    port = free_port()

    def begin() -> ServiceProcess:
        more = ("--listen", f"127.0.0.1:{port}", "-p", "rolling")
        return ServiceProcess(tmp_path / "data", cluster, *more)

    jobs = [
        record("files", STEPS, [sys.executable, "-c", TRAIN], tmp_path),
        record("posts", STEPS, [sys.executable, "-c", POST + TRAIN], tmp_path),
        record("ends", 16, ["sh", "-c", UNTIL_AWAY], tmp_path),
    ]
    service = begin()
    try:
        submitted = time.monotonic()
        assert service.client.post("/v1/jobs", json={"jobs": jobs}).is_success
        for job in jobs:
            assert service.wait_for_state(job["name"], {"running"})["promise"], job["name"]
        wait_until(lambda: reported(service, "files", 1) and reported(service, "posts", 1))
        if way == "suspended":
            service.signal(signal.SIGSTOP)
        else:
            service.kill(signal.SIGKILL if way == "killed" else signal.SIGTERM)
        (tmp_path / "away").touch()
        wait_until(lambda: len(list(tmp_path.glob("*-trained"))) == 2)
        wait_until(lambda: has_ended(tmp_path / "data", "ends"))
        no_time_left = submitted + SLACK_SECONDS + 16 * STEP_SECONDS
        time.sleep(max(0.0, no_time_left - time.monotonic()))
        returned = time.time()
        if way == "suspended":
            service.signal(signal.SIGCONT)
        else:
            service = begin()
        ended = service.wait_for_state("ends", {"finished", "failed"})
        assert ended["state"] == "finished", ended
        assert ended["utility"] == 50.0
        events = service.client.get("/v1/jobs/ends/explain").json()["events"]
        [finished] = [event for event in events if event["kind"] == "finished"]
        assert finished["data"]["kept"] is True
        wait_until(
            lambda: reported(service, "files", STEPS - 1) and reported(service, "posts", STEPS - 1)
        )
        [reported_at] = [
            datetime.fromisoformat(point["at"]).timestamp()
            for point in points(service, "files")
            if point["minibatches"] == STEPS - 1
        ]
        assert reported_at < returned
        (tmp_path / "back").touch()
        for name in ("files", "posts"):
            result = service.wait_for_state(name, {"finished", "failed"})
            assert result["state"] == "finished", result
            assert result["generation"] == 1, "it was stopped though it was on time"
            assert result["utility"] == 50.0
    finally:
        for name in ("away", "back"):  # the jobs end although the test failed
            (tmp_path / name).touch()
        service.kill(signal.SIGTERM)


def points(service: ServiceProcess, name: str) -> list[dict[str, Any]]:
    return list(service.client.get(f"/v1/jobs/{name}/progress").json()["points"])


def reported(service: ServiceProcess, name: str, steps: int) -> bool:
    return any(point["minibatches"] >= steps for point in points(service, name))


def has_ended(data: Path, name: str) -> bool:
    """Return whether the supervisor has recorded the end of a job's first generation."""
    generation = ExecutorStore(data / "executor").generation(name, 1)
    return bool(generation.state()["phase"] == Phase.ENDED)


def _is_start_recorded(data: Path, name: str) -> bool:
    """Return whether a service has recorded that a job's process runs."""
    with closing(sqlite3.connect(data / "shadowprice.db")) as connection:
        query = "SELECT 1 FROM generations WHERE job = ? AND started IS NOT NULL"
        return connection.execute(query, [name]).fetchone() is not None


def test_job_that_ended_in_time_finishes_although_its_start_was_not_recorded(
    tmp_path: Path,
) -> None:
    cluster, data = tmp_path / "cluster.yaml", tmp_path / "data"
    cluster.write_text(yaml.safe_dump({**CLUSTER, "slot": "1s"}))
    service = ServiceProcess(data, cluster, "-p", "rolling")
    try:
        for attempt in count():
            # Without the bell, the service notices a start a second later at most.
            (data / "executor" / "bell").unlink(missing_ok=True)
            name = f"job-{attempt}"
            begun, away = tmp_path / f"{name}-begun", tmp_path / f"{name}-away"
            command = f"touch {begun}; until [ -e {away} ]; do sleep 0.05; done"
            job = record(name, 12, ["sh", "-c", command], tmp_path)
            submitted = time.monotonic()
            assert service.client.post("/v1/jobs", json=job).is_success
            wait_until(begun.exists)
            service.signal(signal.SIGSTOP)
            away.touch()
            if not _is_start_recorded(data, name):
                break
            service.signal(signal.SIGCONT)
            service.client.delete(f"/v1/jobs/{name}")
    finally:
        service.kill(signal.SIGKILL)
    wait_until(lambda: has_ended(data, name))
    # From then on the stated work can't be done by the deadline.
    time.sleep(max(0.0, submitted + SLACK_SECONDS - time.monotonic()))
    service = ServiceProcess(data, cluster, "-p", "rolling")
    try:
        result = service.wait_for_state(name, {"finished", "failed"})
        assert result["state"] == "finished", result["reason"]
    finally:
        service.kill(signal.SIGTERM)

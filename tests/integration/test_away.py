"""Progress and ends during a downtime or suspension of the service count at their time."""

from __future__ import annotations

import signal
import socket
import sqlite3
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadowprice.executors.generations.generation import ENDED
from shadowprice.executors.generations.store import GenerationStore as ExecutorStore
from tests.support.service_process import ServiceProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long]

AWAY = 20.0
STEPS = 50
SOURCE = str(Path(__file__).parents[2] / "src")
TRAIN = (
    "import time\nfrom shadowprice import jobs\n"
    # Each step ends at a fixed time, so that a busy machine delays no later step.
    "start = time.monotonic()\n"
    f"for step in range(1, {STEPS + 1}):\n"
    " time.sleep(max(0.0, start + 0.5 * step - time.monotonic()))\n jobs.report(step)\n"
)
CLUSTER = {"slot": "2s", "horizon": 200, "servers": [{"name": "box", "capacity": {"cpu": 4}}]}


POST = "import os\ndel os.environ['SHADOWPRICE_PROGRESS_FILE']\n"


def record(name: str, steps: int, by: str, command: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "chunks": 1,
        "minibatches": steps,
        "minibatch_time": "0.5s",
        "worker": {"cpu": 1},
        "utility": {"kind": "deadline", "value": 50, "by": by},
        "run": {"command": command, "grace": "2s", "env": {"PYTHONPATH": SOURCE}},
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    "way", ["killed", "suspended", pytest.param("ended", marks=pytest.mark.extended)]
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

    # A report that nobody answers holds its job up for five seconds.
    later = "56s" if way == "suspended" else "44s"
    jobs = [
        # Both have some slots to spare, and would have none had they done nothing meanwhile.
        record("files", STEPS, "44s", [sys.executable, "-c", TRAIN]),
        record("posts", STEPS, later, [sys.executable, "-c", POST + TRAIN]),
        record("ends", 16, "16s", ["sleep", "8"]),
    ]
    service = begin()
    try:
        assert service.client.post("/v1/jobs", json={"jobs": jobs}).is_success
        for job in jobs:
            assert service.wait_for_state(job["name"], {"running"})["promise"], job["name"]
        wait_until(lambda: reported(service, "files") and reported(service, "posts"))
        if way == "suspended":
            service.signal(signal.SIGSTOP)
            time.sleep(AWAY)
            service.signal(signal.SIGCONT)
        else:
            service.kill(signal.SIGKILL if way == "killed" else signal.SIGTERM)
            time.sleep(AWAY)
            service = begin()
        ended = service.wait_for_state("ends", {"finished", "failed"})
        assert ended["state"] == "finished", ended
        assert ended["utility"] == 50.0
        events = service.client.get("/v1/jobs/ends/explain").json()["events"]
        [finished] = [event for event in events if event["kind"] == "finished"]
        assert finished["data"]["kept"] is True
        for name in ("files", "posts"):
            result = service.wait_for_state(name, {"finished", "failed"})
            assert result["state"] == "finished", result
            assert result["generation"] == 1, "it was stopped though it was on time"
            assert result["utility"] == 50.0
    finally:
        service.kill(signal.SIGTERM)


def reported(service: ServiceProcess, name: str) -> bool:
    return bool(service.client.get(f"/v1/jobs/{name}/progress").json()["points"])


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
            name, begun = f"job-{attempt}", tmp_path / "begun"
            begun.unlink(missing_ok=True)
            job = record(name, 12, "10s", ["sh", "-c", f"touch {begun}; sleep 6"])
            assert service.client.post("/v1/jobs", json=job).is_success
            wait_until(begun.exists)
            service.signal(signal.SIGSTOP)
            if not _is_start_recorded(data, name):
                break
            service.signal(signal.SIGCONT)
            service.client.delete(f"/v1/jobs/{name}")
    finally:
        service.kill(signal.SIGKILL)
    generation = ExecutorStore(data / "executor").generation(name, 1)
    wait_until(lambda: generation.state()["phase"] == ENDED)
    service = ServiceProcess(data, cluster, "-p", "rolling")
    try:
        result = service.wait_for_state(name, {"finished", "failed"})
        assert result["state"] == "finished", result["reason"]
    finally:
        service.kill(signal.SIGTERM)

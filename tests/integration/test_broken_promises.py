"""A broken promise of real processes names its causes: a slow start, too much work, a failure."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.service_process import ServiceProcess
from tests.support.waiting import wait_until

CLUSTER = {"slot": "1s", "horizon": 200, "servers": [{"name": "box", "capacity": {"cpu": 4}}]}
TRAIN = """
import json, os, pathlib, sys, time
generation, start = int(os.environ["SHADOWPRICE_GENERATION"]), time.time()
progress = pathlib.Path(os.environ["SHADOWPRICE_PROGRESS_FILE"])
def report(step, due):
    new = progress.with_name(".new")
    new.write_text(json.dumps({"generation": generation, "minibatches": step}))
    os.utime(new, (due, due))  # a report counts at its file's modification time
    new.replace(progress)
for step in range(1, 9):
    due = start + 2.5 + 0.9 * step
    time.sleep(max(0.0, due - time.time()))
    report(step, due)
    # Repeated, because the service records no two reports that it reads within half a second.
    while step in (1, 4) and not os.path.exists(f"seen-{generation}-{step}"):
        time.sleep(0.2)
        report(step, due)
    if step == 4 and generation == 1:
        sys.exit(3)
"""


def reports(service: ServiceProcess) -> set[tuple[int, float]]:
    """Return the generation and mini-batches of each report that the service has recorded."""
    points = service.client.get("/v1/jobs/late/progress").json()["points"]
    return {(point["generation"], point["minibatches"]) for point in points}


@pytest.mark.processes
@pytest.mark.long
def test_broken_promise_lists_each_cause_of_delay_with_its_share(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump(CLUSTER))
    record = {
        "name": "late",
        "chunks": 1,
        "minibatches": 8,
        "minibatch_time": "0.5s",
        "worker": {"cpu": 1},
        "utility": {"kind": "linear", "value": 100, "slope": -1},
        "run": {
            "command": [sys.executable, "-c", TRAIN],
            "workdir": str(tmp_path),
            "retries": 1,
        },
    }
    service = ServiceProcess(tmp_path / "data", cluster, "-p", "rolling")
    try:
        submitted = service.client.post("/v1/jobs", json=record).json()
        assert submitted["promise"]
        view = service.client.get("/v1/jobs/late").json()
        assert view["broken_promise"] is None or view["promise"] != submitted["promise"]
        for generation in (1, 2):
            for step in (1, 4):
                wait_until(lambda report=(generation, step): report in reports(service))
                (tmp_path / f"seen-{generation}-{step}").touch()
        job = service.wait_for_state("late", {"finished"})
        body = service.client.get("/v1/jobs/late/explain").json()["broken_promise"]
        assert body == job["broken_promise"]
        causes = {cause["cause"]: cause for cause in body["causes"]}
        assert {"overrun", "late-start", "failure"} <= causes.keys(), body
        # Steps take at least as long as they sleep, however busy the machine is.
        assert causes["late-start"]["seconds"] >= 2.0
        assert causes["overrun"]["detail"].startswith("4 s stated, ")
        assert causes["overrun"]["seconds"] >= 2.0
        assert causes["failure"]["seconds"] >= 4 * 0.9
        assert sum(cause["share"] for cause in body["causes"]) == pytest.approx(1.0, abs=0.01)
        assert "s later than promised: " in body["line"]
    finally:
        service.client.delete("/v1/jobs/late")
        service.kill(signal.SIGTERM)

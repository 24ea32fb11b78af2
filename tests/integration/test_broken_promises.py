"""A broken promise of real processes names its causes: a slow start, too much work, a failure."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.service_process import ServiceProcess

CLUSTER = {"slot": "1s", "horizon": 200, "servers": [{"name": "box", "capacity": {"cpu": 4}}]}
SOURCE = str(Path(__file__).parents[2] / "src")
TRAIN = """
import os, sys, time
from shadowprice import jobs
time.sleep(2.5)
for step in range(1, 9):
    time.sleep(0.9)
    jobs.report(step)
    if step == 4 and os.environ["SHADOWPRICE_GENERATION"] == "1":
        sys.exit(3)
"""


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
            "env": {"PYTHONPATH": SOURCE},
            "retries": 1,
        },
    }
    service = ServiceProcess(tmp_path / "data", cluster, "-p", "rolling")
    try:
        assert service.client.post("/v1/jobs", json=record).json()["promise"]
        assert service.client.get("/v1/jobs/late").json()["broken_promise"] is None
        job = service.wait_for_state("late", {"finished"})
        body = service.client.get("/v1/jobs/late/explain").json()["broken_promise"]
        assert body == job["broken_promise"]
        causes = {cause["cause"]: cause for cause in body["causes"]}
        assert {"overrun", "late-start", "failure"} <= causes.keys(), body
        # Sleeps take at least as long as they are told, however busy the machine is.
        assert causes["late-start"]["seconds"] >= 2.0
        assert causes["overrun"]["detail"].startswith("4 s stated, ")
        assert causes["overrun"]["seconds"] >= 2.0
        assert causes["failure"]["seconds"] >= 4 * 0.9
        assert sum(cause["share"] for cause in body["causes"]) == pytest.approx(1.0, abs=0.01)
        assert "s later than promised: " in body["line"]
    finally:
        service.kill(signal.SIGTERM)

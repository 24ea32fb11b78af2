"""Uploads of a service that is killed with SIGKILL."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
from pathlib import Path

import pytest

from tests.support.archives import END, member
from tests.support.service_process import ServiceProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

CLUSTER = {"slot": "1s", "horizon": 100, "servers": [{"name": "g", "capacity": {"cpu": 4}}]}
SCRIPT = b"""\
import os, time
runs = int(open("runs").read())
open("runs", "w").write(str(runs + 1))
print("run", runs, flush=True)
while runs == 0 and not os.path.exists("go"): time.sleep(0.05)
os._exit(3 if runs == 0 else 0)
"""
CONTENT = member("train.py", content=SCRIPT, mode=0o644) + member("runs", content=b"0") + END
DIGEST = hashlib.sha256(CONTENT).hexdigest()
URL = f"/v1/uploads/{DIGEST}"
TAR = {"Content-Type": "application/x-tar"}


def test_an_acknowledged_upload_survives_and_a_partial_one_does_not(tmp_path: Path) -> None:
    cluster, data = tmp_path / "cluster.yaml", tmp_path / "data"
    cluster.write_text(json.dumps(CLUSTER))
    service = ServiceProcess(data, cluster, "--executor-set", "cgroup=off")
    uploads = data / "uploads"

    address = (service.client.base_url.host, service.client.base_url.port)
    with socket.create_connection(address) as client:
        token = service.client.headers["authorization"]
        head = f"PUT {URL} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n"
        head += f"Content-Type: application/x-tar\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
        client.sendall(head.encode() + CONTENT[:1000])
        wait_until(lambda: any(uploads.glob("*/*.part")))
        service.kill(signal.SIGKILL)
    assert [path.suffix for path in uploads.glob("*/*")] == [".part"]

    service = ServiceProcess(data, cluster, "--executor-set", "cgroup=off")
    assert list(uploads.glob("*/*")) == []
    assert service.client.get(URL).status_code == 404
    assert service.client.put(URL, content=CONTENT, headers=TAR).status_code == 201
    service.kill(signal.SIGKILL)

    service = ServiceProcess(data, cluster, "--executor-set", "cgroup=off")
    assert service.client.get(URL).json()["bytes"] == len(CONTENT)
    run = {"command": ["python3", "train.py"], "upload": DIGEST, "retries": 1}
    job = {"name": "j", "steps": 1, "minibatch_time": "1s", "worker": {"cpu": 1}, "run": run}
    assert service.client.post("/v1/jobs", json=job).status_code == 200
    service.wait_for_state("j", {"running"})
    wait_until(lambda: any(data.glob("executor/jobs/*/work/runs")))
    [work] = data.glob("executor/jobs/*/work")
    wait_until(lambda: (work / "runs").read_text() == "1")
    service.kill(signal.SIGKILL)

    # The job runs on, and its next generation continues with the files that it changed.
    service = ServiceProcess(data, cluster, "--executor-set", "cgroup=off")
    (work / "go").touch()
    record = service.wait_for_state("j", {"finished", "failed"})
    assert record["state"] == "finished", record
    assert (work / "runs").read_text() == "2"
    assert len([*(work.parent / "generations").iterdir()]) == 2
    # What it didn't change is deleted, and only that.
    wait_until(lambda: not list(data.glob("executor/unpacked/*")))
    assert {path.name for path in work.iterdir()} == {"runs", "go"}
    repeated = service.client.post("/v1/jobs/j/resubmit", json={"name": "k"})
    assert repeated.status_code == 200
    wait_until(lambda: len([*data.glob("executor/jobs/*/work/runs")]) == 2)
    assert service.client.delete("/v1/jobs/k").status_code == 200
    assert service.kill(signal.SIGTERM) == 143

"""Shares of GPUs on a live service: no device is over-allocated, and no job starves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.amounts import MILLI
from shadowprice.core.devices import whole_parts
from tests.support.device_executors import local_executor
from tests.support.services import RunningService, run_service
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

CLUSTER = {
    "slot": "1s",
    "horizon": 600,
    "servers": [{"name": "box", "capacity": {"cpu": 16, "gpu": 2}}],
}

POLICIES = (
    "backfill", "dorm", "drf", "elasticflow", "fifo", "las", "oasis", "pdors", "rolling", "rrh",
    "srtf",
)  # fmt: skip
"""Policies that a service accepts on servers with GPUs."""

SHARES = {"a": 500, "b": 600, "c": 500, "d": 1000, "e": 500, "f": 600, "g": 500, "h": 600}


def submit(live: RunningService, name: str, share: int, workers: int, log: Path) -> dict[str, Any]:
    line = f"{name} {share} $SHADOWPRICE_GENERATION.$SHADOWPRICE_RANK $CUDA_VISIBLE_DEVICES"
    command = (
        f"echo begin {line} >> {log}; trap 'echo end {line} >> {log}' EXIT; trap 'exit 1' TERM; "
        "sleep 0.7 & wait"
    )
    response = live.client.post(
        "/v1/jobs",
        json={
            "name": name,
            "steps": workers,
            "minibatch_time": "1s",
            "workers": {"min": workers, "max": workers},
            "worker": {"gpu": share / MILLI, "cpu": 1},
            "utility": {"kind": "constant", "value": 50},
            "run": {"command": ["sh", "-c", command], "grace": "5s"},
        },
    )
    assert response.is_success, response.text
    job: dict[str, Any] = response.json()
    return job


@pytest.mark.parametrize(
    "policy",
    [
        name if name in {"fifo", "rolling"} else pytest.param(name, marks=pytest.mark.extended)
        for name in POLICIES
    ],
)
def test_every_policy_shares_two_devices_without_starvation(tmp_path: Path, policy: str) -> None:
    log = tmp_path / "log"
    executor = local_executor(tmp_path, "0,1")
    with run_service(tmp_path, cluster=CLUSTER, policy=policy, executor=executor) as live:
        # Three workers of 0.6 need three devices: such a job must not hold up the others.
        never = submit(live, "never", 600, 3, log)
        assert never["state"] == "refused"
        assert "the empty cluster has room for 2" in str(never["reason"])
        submit(live, "four", 500, 4, log)
        for name, share in SHARES.items():
            submit(live, name, share, 1, log)
        names = ("four", *SHARES)

        def states() -> set[str]:
            jobs = live.client.get("/v1/jobs", params={"limit": 100}).json()["jobs"]
            return {job["state"] for job in jobs if job["name"] in names}

        wait_until(lambda: states() == {"finished"}, states)
    held: dict[str, dict[str, int]] = {"0": {}, "1": {}}  # parts by device and process
    together = 0
    for line in log.read_text().splitlines():
        kind, name, share, process, device = line.split()
        assert name != "never"
        parts = held[device]
        if kind == "end":
            del parts[f"{name} {process}"]
        else:
            parts[f"{name} {process}"] = whole_parts(int(share))
        assert sum(parts.values()) <= MILLI, line
        together = max(together, len(held["0"]) + len(held["1"]))
    assert together == 4  # the four workers of one job, two on each device

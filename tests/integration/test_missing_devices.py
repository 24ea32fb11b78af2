"""Servers whose devices the executor doesn't have, or not any more."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.device_executors import local_executor, state_of
from tests.support.services import RunningService, run_service
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

CLUSTER = {
    "slot": "1s",
    "horizon": 600,
    "servers": [{"name": "box", "capacity": {"cpu": 8, "gpu": 4}}],
}


def submit(live: RunningService, name: str, gpus: float, command: list[str]) -> dict[str, Any]:
    job = {
        "name": name,
        "chunks": 1,
        "minibatches": 2,
        "minibatch_time": "1s",
        "worker": {"gpu": gpus},
        "utility": {"kind": "constant", "value": 20},
        "run": {"command": command, "grace": "1s"},
    }
    response = live.client.post("/v1/jobs", json=job)
    assert response.is_success, response.text
    view: dict[str, Any] = response.json()
    return view


def gpus_of(live: RunningService) -> float:
    [server] = live.client.get("/v1/servers").json()["servers"]
    return float(server["capacity"].get("gpu", 0))


@pytest.mark.parametrize("policy", ["fifo", "rolling"])
def test_capacity_is_what_the_executor_has(tmp_path: Path, policy: str) -> None:
    def started(devices: str) -> AbstractContextManager[RunningService]:
        executor = local_executor(tmp_path, devices)
        return run_service(tmp_path, cluster=CLUSTER, policy=policy, executor=executor)

    with started("0,1") as live:
        assert gpus_of(live) == 2
        assert submit(live, "large", 3, ["true"])["state"] == "refused"
        submit(live, "small", 2, ["true"])
        wait_until(lambda: state_of(live, "small") == "finished")
        submit(live, "both", 2, ["sleep", "600"])
        wait_until(lambda: state_of(live, "both") == "running")
    # Another device is lost while the job uses both.
    with started("0") as live:
        assert gpus_of(live) == 1
        submit(live, "one", 1, ["true"])
        wait_until(lambda: state_of(live, "one") == "finished")
    # The devices are back.
    with started("0,1,2,3") as live:
        assert gpus_of(live) == 4
        wait_until(lambda: state_of(live, "both") == "running")
        assert live.client.delete("/v1/jobs/both").is_success
        submit(live, "all", 3, ["true"])
        wait_until(lambda: state_of(live, "all") == "finished")


def test_capacity_that_an_operator_set_is_no_more_than_that(tmp_path: Path) -> None:
    with run_service(tmp_path, cluster=CLUSTER, executor=local_executor(tmp_path, "0,1")) as live:
        change = {"capacity": {"cpu": 8, "gpu": 1}}
        assert live.client.patch("/v1/servers/box", json=change).is_success
        assert gpus_of(live) == 1
        assert live.client.patch("/v1/servers/box", json={"drain": True}).is_success
        assert live.client.patch("/v1/servers/box", json={"drain": False}).is_success
    with run_service(tmp_path, cluster=CLUSTER, executor=local_executor(tmp_path, "0,1,2")) as live:
        assert gpus_of(live) == 1
        change = {"capacity": {"cpu": 8, "gpu": 8}}
        assert live.client.patch("/v1/servers/box", json=change).is_success
        wait_until(lambda: gpus_of(live) == 3)
        assert live.client.patch("/v1/servers/box", json={"drain": True}).is_success
        assert live.client.patch("/v1/servers/box", json={"drain": False}).is_success
    with run_service(
        tmp_path, cluster=CLUSTER, executor=local_executor(tmp_path, "0,1,2,3")
    ) as live:
        assert gpus_of(live) == 4

"""Local executors with given devices."""

from __future__ import annotations

from pathlib import Path

from shadowprice.executors.contract import ExecutorOptions
from shadowprice.executors.local.executor import LocalExecutor
from tests.support.services import RunningService


def local_executor(folder: Path, devices: str) -> LocalExecutor:
    (folder / "data").mkdir(exist_ok=True)
    options = ExecutorOptions(
        str(folder / "data" / "executor"), settings={"cgroup": "off", "devices": devices}
    )
    return LocalExecutor(options)


def state_of(live: RunningService, name: str) -> str:
    return str(live.client.get(f"/v1/jobs/{name}").json()["state"])

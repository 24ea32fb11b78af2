"""Progress until the end of a slot counts in that slot, however rarely files are polled."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from shadowprice.executors.contract import ExecutorOptions, PollsProgress, Progressed
from shadowprice.executors.local import executor as module
from shadowprice.executors.local.executor import LocalExecutor
from tests.support.services import job, run_service
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

CLUSTER = {"slot": "2s", "horizon": 600, "servers": [{"name": "machine", "capacity": {"cpu": 4}}]}
TRAIN = (
    "import time\nfrom shadowprice import jobs\n"
    "for step in range(1, 600):\n time.sleep(0.1)\n jobs.report(step)\n"
)


def test_progress_is_polled_at_the_slot_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESYNC_SECONDS", 3600.0)  # no other process reads files
    (tmp_path / "local").mkdir()
    settings = ExecutorOptions(directory=str(tmp_path / "local"), settings={"cgroup": "off"})
    executor = LocalExecutor(settings)
    assert isinstance(executor, PollsProgress)
    source = str(Path(__file__).parents[2] / "src")
    run = {"command": [sys.executable, "-c", TRAIN], "grace": "1s", "env": {"PYTHONPATH": source}}
    with run_service(tmp_path, cluster=CLUSTER, executor=executor) as live:
        record = job("trains", worker={"cpu": 1}, workers={"max": 1}, minibatches=500, run=run)
        assert live.client.post("/v1/jobs", json=record).is_success
        seen: list[float] = []

        def has_four_points() -> bool:
            points = live.client.get("/v1/jobs/trains/progress").json()["points"]
            seen[:] = sorted({point["minibatches"] for point in points})
            return len(seen) >= 4

        wait_until(has_four_points, lambda: seen)
        # One poll a slot, and each report has the progress since the one before.
        steps = [after - before for before, after in itertools.pairwise(seen)]
        assert all(0 < step <= 60 for step in steps), seen
        assert live.client.delete("/v1/jobs/trains").is_success


class Stuck(LocalExecutor):
    """Executor whose progress poll never returns."""

    async def progress(self) -> Sequence[Progressed]:
        await asyncio.sleep(3600.0)
        return ()


def test_unresponsive_executor_delays_no_slot(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    settings = ExecutorOptions(directory=str(tmp_path / "local"), settings={"cgroup": "off"})
    source = str(Path(__file__).parents[2] / "src")
    run = {"command": [sys.executable, "-c", TRAIN], "grace": "1s", "env": {"PYTHONPATH": source}}
    with run_service(tmp_path, cluster=CLUSTER, executor=Stuck(settings)) as live:
        record = job("trains", worker={"cpu": 1}, workers={"max": 1}, minibatches=500, run=run)
        assert live.client.post("/v1/jobs", json=record).is_success

        def points() -> list[object]:
            return list(live.client.get("/v1/jobs/trains/progress").json()["points"])

        wait_until(lambda: len(points()) >= 2, points)  # from the polls of every second
        assert live.client.delete("/v1/jobs/trains").is_success

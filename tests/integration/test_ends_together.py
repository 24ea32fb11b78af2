"""Many jobs that end at the same time: what ended is recorded, and forgotten, several at once.

Nor does it wait for orders that are under way.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from shadowprice.executors.contract import ExecutorOptions, Receipt
from shadowprice.executors.local.executor import LocalExecutor
from tests.support.services import job, running

JOBS = 12
CLUSTER = {"slot": "1s", "horizon": 600, "servers": [{"name": "machine", "capacity": {"cpu": 64}}]}


class Slow(LocalExecutor):
    """Answers late that it forgot: first once the others have ended, then once two ask it."""

    inside = 0
    peak = 0
    forgotten = 0

    async def forget(self, job: str, generation: int) -> None:
        if not self.forgotten:
            await asyncio.sleep(4.0)  # meanwhile the others end
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        until = time.monotonic() + 10.0
        while self.forgotten and self.peak < 2 and time.monotonic() < until:
            await asyncio.sleep(0.01)
        await super().forget(job, generation)
        self.inside -= 1
        self.forgotten += 1


@pytest.mark.processes
def test_ends_that_come_together_are_forgotten_together(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    executor = Slow(ExecutorOptions(directory=str(tmp_path / "local")))
    names = [f"job-{number}" for number in range(JOBS)]
    with running(tmp_path, cluster=CLUSTER, executor=executor) as service:
        for name in names:
            run = {"command": ["sleep", "600"], "grace": "1s"}
            record = job(name, worker={"cpu": 1}, workers={"max": 1}, run=run)
            assert service.client.post("/v1/jobs", json=record).is_success

        def states() -> list[str]:
            return [service.client.get(f"/v1/jobs/{name}").json()["state"] for name in names]

        def eventually(state: str) -> None:
            until = time.monotonic() + 60.0
            while set(states()) != {state}:
                assert time.monotonic() < until, states()
                time.sleep(0.1)

        eventually("running")
        for name in names:
            assert service.client.delete(f"/v1/jobs/{name}").is_success
        until = time.monotonic() + 60.0
        while executor.forgotten < JOBS:
            assert time.monotonic() < until, executor.forgotten
            time.sleep(0.1)
        eventually("cancelled")
    assert 2 <= executor.peak <= 16


class Held(LocalExecutor):
    """Answers an order to stop one job only once the end of another is forgotten."""

    forgotten: tuple[str, ...] = ()
    in_time = False

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        if job == "told":
            until = time.monotonic() + 60.0
            while "ends" not in self.forgotten and time.monotonic() < until:
                await asyncio.sleep(0.01)
            self.in_time = "ends" in self.forgotten
        return await super().stop(command, job, generation, grace)

    async def forget(self, job: str, generation: int) -> None:
        await super().forget(job, generation)
        self.forgotten += (job,)


@pytest.mark.processes
def test_an_end_is_recorded_while_an_order_waits_for_its_answer(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    executor = Held(ExecutorOptions(directory=str(tmp_path / "local")))
    go = tmp_path / "go"
    commands = {"told": "exec sleep 600", "ends": f"until [ -e {go} ]; do sleep 0.05; done"}
    with running(tmp_path, cluster=CLUSTER, executor=executor) as service:
        for name, command in commands.items():
            run = {"command": command, "grace": "1s"}
            record = job(name, worker={"cpu": 1}, workers={"max": 1}, run=run)
            assert service.client.post("/v1/jobs", json=record).is_success

        def eventually(name: str, state: str) -> None:
            until = time.monotonic() + 90.0
            while (told := service.client.get(f"/v1/jobs/{name}").json()["state"]) != state:
                assert time.monotonic() < until, (name, told)
                time.sleep(0.1)

        for name in commands:
            eventually(name, "running")
        assert service.client.delete("/v1/jobs/told").is_success
        go.touch()
        eventually("ends", "finished")
        eventually("told", "cancelled")
        until = time.monotonic() + 60.0
        while "told" not in executor.forgotten:
            assert time.monotonic() < until, executor.forgotten
            time.sleep(0.1)
    assert executor.in_time

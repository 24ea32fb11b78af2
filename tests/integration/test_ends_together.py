"""Jobs that end at the same time are recorded and forgotten concurrently.

Their ends don't wait for commands that are under way.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from shadowprice.executors.contract import ExecutorOptions, GenerationPhase, Receipt
from shadowprice.executors.local.executor import LocalExecutor
from tests.support.services import job, run_service
from tests.support.waiting import wait_until, wait_until_async

JOBS = 12
CLUSTER = {"slot": "1s", "horizon": 600, "servers": [{"name": "machine", "capacity": {"cpu": 64}}]}


class SlowExecutor(LocalExecutor):
    """Delays `acknowledge_end` until the ends of all jobs have to be recorded together.

    The first call waits until all jobs are cancelled, so that the next commands stop all others.
    A later call waits until these have ended, unless another call runs beside it.
    """

    def __init__(self, options: ExecutorOptions) -> None:
        super().__init__(options)
        self.cancelled = threading.Event()
        self.running = self.peak = self.forgotten = 0

    async def acknowledge_end(self, job: str, generation: int) -> None:
        self.running += 1
        self.peak = max(self.peak, self.running)
        if self.forgotten:
            await wait_until_async(self._is_together)
        else:
            await wait_until_async(self.cancelled.is_set)
        await super().acknowledge_end(job, generation)
        self.running -= 1
        self.forgotten += 1

    async def _is_together(self) -> bool:
        return self.peak > 1 or all(
            entry.phase is GenerationPhase.ENDED for entry in await self.list()
        )


@pytest.mark.processes
def test_simultaneous_ends_are_acknowledged_together(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    executor = SlowExecutor(ExecutorOptions(directory=str(tmp_path / "local")))
    names = [f"job-{number}" for number in range(JOBS)]
    with run_service(tmp_path, cluster=CLUSTER, executor=executor) as service:
        for name in names:
            run = {"command": ["sleep", "600"], "grace": "1s"}
            record = job(name, worker={"cpu": 1}, workers={"max": 1}, run=run)
            assert service.client.post("/v1/jobs", json=record).is_success

        def states() -> list[str]:
            return [service.client.get(f"/v1/jobs/{name}").json()["state"] for name in names]

        wait_until(lambda: set(states()) == {"running"}, states)
        for name in names:
            assert service.client.delete(f"/v1/jobs/{name}").is_success
        executor.cancelled.set()
        wait_until(lambda: executor.forgotten == JOBS, lambda: executor.forgotten)
        wait_until(lambda: set(states()) == {"cancelled"}, states)
    assert 2 <= executor.peak <= 16


class HeldExecutor(LocalExecutor):
    """Executor that answers the stop of one job only after it deleted another, ended job."""

    forgotten: tuple[str, ...] = ()

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        if job == "stopped":
            await wait_until_async(lambda: "ends" in self.forgotten)
        return await super().stop(command, job, generation, grace)

    async def acknowledge_end(self, job: str, generation: int) -> None:
        await super().acknowledge_end(job, generation)
        self.forgotten += (job,)


@pytest.mark.processes
def test_end_is_recorded_while_a_command_is_pending(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    executor = HeldExecutor(ExecutorOptions(directory=str(tmp_path / "local")))
    go = tmp_path / "go"
    commands = {"stopped": "exec sleep 600", "ends": f"until [ -e {go} ]; do sleep 0.05; done"}
    with run_service(tmp_path, cluster=CLUSTER, executor=executor) as service:
        for name, command in commands.items():
            run = {"command": command, "grace": "1s"}
            record = job(name, worker={"cpu": 1}, workers={"max": 1}, run=run)
            assert service.client.post("/v1/jobs", json=record).is_success

        def wait_for_state(name: str, expected: str) -> None:
            def state() -> str:
                return str(service.client.get(f"/v1/jobs/{name}").json()["state"])

            wait_until(lambda: state() == expected, lambda: (name, state()))

        for name in commands:
            wait_for_state(name, "running")
        assert service.client.delete("/v1/jobs/stopped").is_success
        go.touch()
        wait_for_state("ends", "finished")
        wait_for_state("stopped", "cancelled")
        wait_until(lambda: "stopped" in executor.forgotten, lambda: executor.forgotten)

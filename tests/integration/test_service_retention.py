"""Retention deletes old data in the store and the executor only, wherever it is interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.job_keys import key_digest
from shadowprice.executors.contract import (
    ExecutorError,
    ExecutorOptions,
    GenerationPhase,
    GenerationStatus,
    ServerAllocation,
)
from shadowprice.executors.generations.disk import StateFile
from shadowprice.executors.registry import create_executor
from shadowprice.service.clock import SECOND
from shadowprice.service.driver import (
    FIRST_PURGE_DELAY_SECONDS,
    PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS,
)
from shadowprice.service.state.store_queries import list_jobs
from tests.support.services import run_service
from tests.support.simulated_hours import Crash, SimulatedHour, disk_full_error
from tests.support.waiting import wait_until


class Aging(SimulatedHour):
    """An hour after which all jobs but one are old."""

    async def live(self) -> None:
        await self.run()
        self.world.advance(3_600)
        self.world.work["young"] = 60.0
        young = {
            "name": "young",
            "minibatches": 10,
            "minibatch_time": "6s",
            "worker": {"gpu": 1},
            "utility": {"kind": "constant", "value": 1},
            "run": {"command": ["train"]},
        }
        await self._until_answered((0.0, "submit", [young]))
        for _ in range(30):
            self.world.advance(10)
            await self._turn()
        self.since = self.clock.wall() - 1_000 * SECOND

    async def open(self) -> None:
        await self._open()
        self.driver._retention_ns = self.clock.wall() - self.since

    @property
    def rows(self) -> set[str]:
        with self.store.reading() as connection:
            return {view.name for view in list_jobs(connection, limit=1_000)}

    def end(self) -> None:
        self.writer._thread.shutdown(wait=True)
        self.store.close()


def _points() -> tuple[Any, list[int]]:
    """Fault that strikes at a given point."""
    left = [-1]

    def fault(_: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise FAULTS[left[1]]()

    left.append(0)
    return fault, left


FAULTS = (Crash, disk_full_error)


@pytest.mark.extended
@pytest.mark.parametrize("kind", range(len(FAULTS)))
def test_purge_removes_old_data_only(tmp_path: Path, kind: int) -> None:
    async def scenario() -> int:
        hour = Aging(tmp_path, "fifo", seed=5, jobs=10)
        await hour.live()
        world, everything = hour.world, hour.rows
        assert "young" in world.kept
        assert len(world.kept) > 4
        hour.end()
        struck = 0
        for point in range(10_000):
            fault, left = _points()
            left[1] = kind
            await hour.open()
            hour.fault = hour.store.fault = fault
            left[0] = point
            try:
                await hour.driver.purge_expired()
            except Crash:
                struck += 1
            done = left[0] >= 0
            struck += (
                hour.writer.health_error is not None or hour.execution.health_error is not None
            )
            hour.fault = hour.store.fault = lambda _: None
            hour.end()
            await hour.open()
            # Kept names are known here: a name that is gone keeps nothing.
            assert world.kept <= hour.rows
            assert "young" in hour.rows & world.kept
            hour.end()
            if done:
                assert world.kept == hour_rows(hour) == {"young"}
                assert everything - {"young"}
                return struck
        raise AssertionError("it never came to an end")

    assert asyncio.run(scenario()) > 5


def test_frequently_restarted_service_purges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        hour = Aging(tmp_path, "fifo", seed=5, jobs=10)
        await hour.live()
        hour.end()
        now = 1_000.0
        monkeypatch.setattr("shadowprice.service.driver.monotonic", lambda: now)
        await hour.open()
        for seconds, purges in ((FIRST_PURGE_DELAY_SECONDS, False), (1.0, True)):
            now += seconds
            await hour.driver._tick()
            assert (hour.driver._purge_task is not None) == purges
        assert hour.driver._purge_task is not None
        await hour.driver._purge_task
        assert hour.rows == {"young"}
        hour.end()

    asyncio.run(scenario())


def test_the_first_purge_waits_if_the_clock_may_have_been_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        hour = Aging(tmp_path, "fifo", seed=5, jobs=10)
        await hour.live()
        hour.end()
        rows = hour_rows(hour)
        now = 1_000.0
        monkeypatch.setattr("shadowprice.service.driver.monotonic", lambda: now)
        hour.clock.set_by += 30 * 86_400 * SECOND
        await hour.open()
        for seconds, purges in (
            (FIRST_PURGE_DELAY_SECONDS + 1.0, False),
            (PURGE_DELAY_AFTER_CLOCK_STEP_SECONDS - 12.0, False),
            (2.0, True),
        ):
            assert hour.rows == rows
            now += seconds
            await hour.driver._tick()
            assert (hour.driver._purge_task is not None) == purges
        assert hour.driver._purge_task is not None
        await hour.driver._purge_task
        hour.end()

    asyncio.run(scenario())


def hour_rows(hour: Aging) -> set[str]:
    asyncio.get_running_loop()
    hour.store.open()
    try:
        return hour.rows
    finally:
        hour.store.close()


def test_job_whose_data_cannot_be_deleted_blocks_no_other_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        hour = Aging(tmp_path, "fifo", seed=5, jobs=10)
        await hour.live()
        hour.driver._retention_ns = hour.clock.wall() - hour.since
        bad = min(hour.world.kept - {"young"})
        delete = hour.executor.delete_job_data

        async def fail_for_one(job: str) -> None:
            if job == bad:
                raise ExecutorError("Permission denied")
            await delete(job)

        hour.executor.delete_job_data = fail_for_one  # type: ignore[method-assign]
        await hour.driver.purge_expired()
        assert hour.world.kept == hour.rows == {bad, "young"}
        assert hour.execution.health_error is None
        assert f"failed to delete the data of job {bad}: Permission denied" in caplog.messages
        hour.executor.delete_job_data = delete  # type: ignore[method-assign]
        await hour.driver.purge_expired()
        assert hour.world.kept == hour.rows == {"young"}
        hour.end()

    asyncio.run(scenario())


def test_jobs_still_known_to_the_executor_are_not_purged(tmp_path: Path) -> None:
    async def scenario() -> None:
        hour = Aging(tmp_path, "fifo", seed=5, jobs=10)
        await hour.live()
        hour.driver._retention_ns = hour.clock.wall() - hour.since
        old = sorted(hour.world.kept - {"young"})
        held = GenerationStatus(
            old[0], 9, GenerationPhase.STOPPING, (ServerAllocation("gpu-0", 1),), ()
        )
        listed = hour.executor.list

        async def listing() -> tuple[GenerationStatus, ...]:
            return (*await listed(), held)

        hour.executor.list = listing  # type: ignore[method-assign]
        await hour.driver.purge_expired()
        assert hour.world.kept == {old[0], "young"} <= hour.rows
        hour.executor.list = listed  # type: ignore[method-assign]
        await hour.driver.purge_expired()
        assert hour.world.kept == hour.rows == {"young"}
        hour.end()

    asyncio.run(scenario())


def test_purge_deletes_files_and_frees_the_name(tmp_path: Path) -> None:
    cluster = {"slot": "1s", "horizon": 50, "servers": [{"name": "g", "capacity": {"cpu": 2}}]}
    executor = create_executor(
        "local", ExecutorOptions(str(tmp_path / "executor"), settings={"cgroup": "off"})
    )
    job = {
        "name": "a",
        "minibatches": 2,
        "minibatch_time": "1s",
        "worker": {"cpu": 1},
        "utility": {"kind": "constant", "value": 1},
        "run": {"command": ["echo", "a line of the log"]},
    }
    with run_service(tmp_path, cluster=cluster, executor=executor) as live:

        def state() -> str:
            return str(live.client.get("/v1/jobs/a").json().get("state"))

        def finish() -> None:
            wait_until(lambda: state() == "finished", state)

        def logs() -> list[Path]:
            return [*(tmp_path / "executor").rglob("worker-0*")]

        live.client.post("/v1/jobs", json=job).raise_for_status()
        finish()
        assert logs()
        driver = live.service.driver
        assert driver is not None
        driver._retention_ns = 0

        def is_purged() -> bool:
            driver._last_purge = -1e9
            return state() != "finished"

        wait_until(is_purged)
        assert not logs()
        driver._retention_ns = 10**18
        live.client.post("/v1/jobs", json=job).raise_for_status()
        finish()
        ran = live.client.get("/v1/jobs/a/generations").json()["generations"]
        assert [entry["generation"] for entry in ran] == [1]
        fence = tmp_path / "executor" / "jobs" / key_digest("a") / "fence"
        assert StateFile(fence).read() == {"generation": 1}

"""The live service in virtual time: whole lives of jobs, with restarts and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadowprice.executors.contract import Ending
from shadowprice.executors.virtual import (
    VirtualClock,
    VirtualExecutor,
    VirtualJob,
    VirtualLoop,
    run_virtual,
)
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND
from shadowprice.service.state.job_views import State
from shadowprice.service.state.store_queries import job_history
from shadowprice.service.virtual import TICKS, VirtualService

CLUSTER = {
    "slot": "1min",
    "horizon": 60,
    "servers": [{"name": "g", "count": 2, "capacity": {"cpu": 1}}],
}


def _record(name: str, minutes: int = 10) -> dict[str, Any]:
    return {
        "name": name,
        "epochs": 1,
        "chunks": 1,
        "minibatches": minutes * 10,
        "minibatch_time": "6s",
        "worker": {"cpu": 1},
        "utility": {"kind": "sigmoid", "value": 10, "decay": 0.01, "target": "50 slots"},
        "run": {"command": ["train"]},
    }


def _play(
    folder: Path, script: Callable[[VirtualService, VirtualExecutor], Awaitable[None]]
) -> VirtualExecutor:
    async def main(clock: VirtualClock) -> VirtualExecutor:
        executor = VirtualExecutor(clock, {})
        service = VirtualService(folder, CLUSTER, PolicyChoice("fifo"), clock, executor)
        await service.start()
        await script(service, executor)
        service.check()
        await service.stop()
        return executor

    return run_virtual(main)


def _job(minutes: float = 10.0, **more: Any) -> VirtualJob:
    return VirtualJob(100.0, lambda _: 100.0 / (60.0 * minutes), **more)


def test_jobs_end_at_their_actual_time(tmp_path: Path) -> None:
    async def script(service: VirtualService, executor: VirtualExecutor) -> None:
        executor.jobs |= {"longer": _job(13.4), "shorter": _job(6.6, report_every=5.0)}
        await service.submit(_record("longer"), _record("shorter"), at_once=False)
        assert await service.run_until_over(3_600.0)
        # Submitted in slot 0, they start with slot 1.
        for name, slot in (("longer", 14), ("shorter", 7)):
            view = await service.view(name)
            assert view.state is State.FINISHED
            assert view.completion == slot

    executor = _play(tmp_path, script)
    assert [generation.ending for generation in executor.generations] == [Ending.DONE] * 2


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_jobs_continue_during_a_downtime(tmp_path: Path, *, crash: bool) -> None:
    async def script(service: VirtualService, executor: VirtualExecutor) -> None:
        executor.jobs |= {"short": _job(5.0), "long": _job(12.0)}
        await service.submit(_record("short"))
        await service.submit(_record("long"))
        await asyncio.sleep(90.0)
        await (service.kill() if crash else service.stop())
        await asyncio.sleep(400.0)
        await service.start()
        assert await service.run_until_over(3_600.0)
        assert (await service.view("short")).state is State.FINISHED
        assert (await service.view("long")).state is State.FINISHED

    executor = _play(tmp_path, script)
    assert [generation.key for generation in executor.generations] == [("short", 1), ("long", 1)]


def test_job_continues_on_another_server_after_a_loss(tmp_path: Path) -> None:
    async def script(service: VirtualService, executor: VirtualExecutor) -> None:
        executor.jobs["job"] = _job(save_every=60.0)
        await service.submit(_record("job"))
        await asyncio.sleep(200.0)
        [running] = executor.generations
        lost = running.spec.placement[0].server
        executor.lose_server(lost)
        await asyncio.sleep(1.0)
        assert service.writer.published.servers.unavailable == {lost}
        await asyncio.sleep(60.0)
        executor.return_server(lost)
        await asyncio.sleep(1.0)
        assert not service.writer.published.servers.unavailable
        assert await service.run_until_over(3_600.0)
        assert (await service.view("job")).state is State.FINISHED
        events, _ = await service.read(partial(job_history, key="job"))
        assert "displaced" in {event.kind for event in events}

    first, second = _play(tmp_path, script).generations
    assert (first.ending, second.ending) == (Ending.LOST, Ending.DONE)
    assert second.base == first.saved > 0.0


def test_a_clock_that_is_set_back_delays_no_retry(tmp_path: Path) -> None:
    class SetClock(VirtualClock):
        step = 0

        def wall(self) -> int:
            return super().wall() + self.step

    async def main(_: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock = SetClock(loop)
        executor = VirtualExecutor(clock, {"job": _job(fails_after={1: 100.0})})
        service = VirtualService(tmp_path, CLUSTER, PolicyChoice("fifo"), clock, executor)
        await service.start()
        await service.submit({**_record("job"), "run": {"command": ["train"], "retries": 1}})
        while not (await service.view("job")).failures:
            await asyncio.sleep(0.1)
        clock.step = -3_600 * SECOND
        await asyncio.sleep(180.0)  # the backoff is 5 s, and slots last a minute
        assert [generation.key for generation in executor.generations] == [("job", 1), ("job", 2)]
        await service.stop()

    run_virtual(main)


def test_equal_worlds_run_identically(tmp_path: Path) -> None:
    def course(folder: Path) -> list[Any]:
        async def script(service: VirtualService, executor: VirtualExecutor) -> None:
            for number in range(5):
                executor.jobs[f"job-{number}"] = _job(7.0 + number, report_every=20.0)
                await service.submit(_record(f"job-{number}"))
                await asyncio.sleep(30.0)
            assert await service.run_until_over(7_200.0)

        folder.mkdir()
        executor = _play(folder, script)
        return [
            (*generation.key, generation.spec.placement, generation.started_at, generation.ended_at)
            for generation in executor.generations
        ]

    assert course(tmp_path / "one") == course(tmp_path / "another")


def test_idle_hours_need_few_steps(tmp_path: Path) -> None:
    async def script(service: VirtualService, executor: VirtualExecutor) -> None:
        executor.jobs["job"] = _job(600.0)
        await service.submit(_record("job", 600))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        before = loop.advances
        await asyncio.sleep(3_600.0)
        # A minute has a boundary and `TICKS` polls of the clock, by the driver and by the
        # controller.
        assert loop.advances - before < 60 * 3 * TICKS

    _play(tmp_path, script)

"""The virtual executor and its loop: simulated time, obedient jobs, vanishing servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shadowprice.core.job import MICRO
from shadowprice.core.program import Program
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    GenerationSpec,
    PollsProgress,
    Receipt,
    Report,
    ServerAllocation,
    ServerGone,
    ServerInfo,
    ServerSeen,
    Started,
    StartRefused,
)
from shadowprice.executors.virtual import (
    ORIGIN,
    SECOND,
    StalledError,
    VirtualClock,
    VirtualExecutor,
    VirtualJob,
    run_virtual,
)

SERVERS = [ServerInfo("g-0", {"gpu": 2}), ServerInfo("g-1", {"gpu": 2})]


def _spec(job: str = "a", generation: int = 1, server: str = "g-0", **more: Any) -> GenerationSpec:
    program = Program(("train",), grace=5.0)
    shares = (ServerAllocation(server, 1),)
    return GenerationSpec(generation, job, generation, shares, program, {"gpu": 1}, **more)


def _job(**more: Any) -> VirtualJob:
    return VirtualJob(100.0, lambda shares: float(sum(share.workers for share in shares)), **more)


class _World:
    """An executor, with every report and the second in which it came."""

    def __init__(self, clock: VirtualClock, jobs: dict[str, VirtualJob]) -> None:
        self.executor = VirtualExecutor(clock, jobs)
        self.reports: list[tuple[float, Report]] = []
        self._since = asyncio.get_running_loop().time()
        self._watching = asyncio.create_task(self._watch())

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time() - self._since

    async def _watch(self) -> None:
        await self.executor.set_servers(SERVERS)
        async for report in self.executor.watch():
            self.reports.append((self.now, report))

    def received(self, *kinds: type) -> list[tuple[float, Any]]:
        return [(round(at, 6), one) for at, one in self.reports if isinstance(one, kinds)]

    async def close(self) -> None:
        await self.executor.close()
        await self._watching


def _play(jobs: dict[str, VirtualJob], script: Any) -> _World:
    async def main(clock: VirtualClock) -> _World:
        world = _World(clock, jobs)
        await asyncio.sleep(0)
        await script(world)
        await world.close()
        return world

    return run_virtual(main)


def test_time_jumps_to_the_next_timer() -> None:
    async def main(clock: VirtualClock) -> tuple[int, int]:
        before = clock.physical()
        await asyncio.sleep(3_600.0)
        return clock.physical() - before, clock.wall()

    assert run_virtual(main) == (3_600 * SECOND, ORIGIN + 3_600 * SECOND)


def test_threaded_work_runs_inline_and_raises_where_it_is_awaited() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main(_clock: VirtualClock) -> int:
        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(fail)
        return await asyncio.to_thread(lambda: 7)

    assert run_virtual(main) == 7


def test_a_program_that_waits_for_nothing_stalls() -> None:
    async def waits(_clock: VirtualClock) -> None:
        await asyncio.get_running_loop().create_future()

    async def spins(_clock: VirtualClock) -> None:
        while True:
            await asyncio.sleep(0)

    for main in (waits, spins):
        with pytest.raises(StalledError):
            run_virtual(main)


def test_it_is_an_executor() -> None:
    async def main(clock: VirtualClock) -> None:
        executor = VirtualExecutor(clock, {})
        assert isinstance(executor, Executor)
        assert isinstance(executor, PollsProgress)

    run_virtual(main)


def test_a_job_ends_when_its_true_work_is_done() -> None:
    async def script(world: _World) -> None:
        world.executor.speeds["g-0"] = 0.5
        assert await world.executor.start(_spec()) is Receipt.ACCEPTED
        await asyncio.sleep(300.0)

    world = _play({"a": _job(launch_seconds=2.0, start_seconds=(7.0,))}, script)
    [(started, _)], [(ended, end)] = world.received(Started), world.received(Ended)
    assert (started, ended) == (2.0, 209.0)
    assert (end.ending, end.code) == (Ending.DONE, 0)


@pytest.mark.parametrize(
    ("job", "ended", "kept", "forced"),
    [
        (_job(), 30.0, 0.0, False),
        (_job(save_every=8.0), 30.0, 24.0, False),
        (_job(save_seconds=3.0), 33.0, 30.0, False),
        (_job(save_seconds=9.0, save_every=20.0), 35.0, 20.0, True),
    ],
    ids=["no checkpoints", "every 8 s", "on SIGTERM", "too slow for the grace"],
)
def test_a_stop_leaves_what_was_saved(
    job: VirtualJob, ended: float, kept: float, forced: bool
) -> None:
    async def script(world: _World) -> None:
        await world.executor.start(_spec())
        await asyncio.sleep(30.0)
        assert await world.executor.stop(9, "a", 1) is Receipt.ACCEPTED
        assert await world.executor.start(_spec(generation=2)) is Receipt.BUSY
        await asyncio.sleep(10.0)
        assert await world.executor.start(_spec(generation=2)) is Receipt.ACCEPTED
        await asyncio.sleep(200.0)

    world = _play({"a": job}, script)
    (at, stopped), (done_at, done) = world.received(Ended)
    assert (at, stopped.ending, stopped.forced) == (ended, Ending.STOPPED, forced)
    assert (done_at, done.ending) == (40.0 + 100.0 - kept, Ending.DONE)
    first, second = world.executor.generations
    assert (first.lost_progress, second.base) == (30.0 - kept, kept)


def test_commands_are_fenced() -> None:
    async def script(world: _World) -> None:
        executor = world.executor
        assert await executor.start(_spec(generation=3)) is Receipt.ACCEPTED
        assert await executor.start(_spec(generation=3)) is Receipt.DUPLICATE
        assert await executor.start(_spec(generation=3, identity="another")) is Receipt.STALE
        assert await executor.start(_spec(generation=2)) is Receipt.STALE
        await executor.stop(9, "b", 4)
        assert await executor.start(_spec("b", 4)) is Receipt.STALE
        await asyncio.sleep(101.0)
        await executor.acknowledge_end("a", 3)
        assert await executor.list() == ()
        assert await executor.start(_spec(generation=3)) is Receipt.STALE

    world = _play({"a": _job(), "b": _job()}, script)
    assert [generation.key for generation in world.executor.generations] == [("a", 3)]
    [(_, refused)] = world.received(StartRefused)
    assert refused.job == "b"


def test_a_placement_that_is_not_free_is_refused() -> None:
    async def script(world: _World) -> None:
        for job in "abc":
            await world.executor.start(_spec(job))
        await asyncio.sleep(1.0)

    world = _play(dict.fromkeys("abc", _job()), script)
    [(_, refused)] = world.received(StartRefused)
    assert (refused.job, refused.reason) == ("c", "gpu of g-0: 2 of 2 are in use")


def test_a_lost_server_ends_its_processes() -> None:
    async def script(world: _World) -> None:
        await world.executor.start(_spec("a"))
        await world.executor.start(_spec("b", server="g-1"))
        await asyncio.sleep(30.0)
        world.executor.lose_server("g-0")
        await world.executor.start(_spec("c"))
        await asyncio.sleep(1.0)
        world.executor.return_server("g-0")
        await asyncio.sleep(100.0)
        await world.executor.start(_spec("a", 2))
        await asyncio.sleep(100.0)

    world = _play({"a": _job(save_every=20.0), "b": _job(), "c": _job()}, script)
    ends = [(at, end.job, end.ending) for at, end in world.received(Ended)]
    assert ends == [(30.0, "a", Ending.LOST), (100.0, "b", Ending.DONE), (211.0, "a", Ending.DONE)]
    assert [end.job for _, end in world.received(StartRefused)] == ["c"]
    assert [at for at, _ in world.received(ServerGone)] == [30.0]
    assert [(at, one.server.name) for at, one in world.received(ServerSeen)][-1] == (31.0, "g-0")


def test_reports_are_cumulative_and_have_the_cost_of_a_change() -> None:
    async def script(world: _World) -> None:
        executor = world.executor
        await executor.start(_spec())
        await asyncio.sleep(4.5)
        assert await executor.progress() == []  # its first step isn't done
        await asyncio.sleep(26.0)
        [report] = await executor.progress()
        assert report.progress == 26 * MICRO
        await executor.stop(9, "a", 1)
        await asyncio.sleep(10.0)
        await executor.start(_spec(generation=2))
        await asyncio.sleep(6.0)
        [report] = await executor.progress()
        assert report.progress == 28 * MICRO

    job = _job(start_seconds=(4.0,), save_seconds=2.0, report_every=10.0)
    world = _play({"a": job}, script)
    reports = [
        (at, one.generation, dict(one.metrics))
        for at, one in world.received(object)
        if hasattr(one, "metrics")
    ]
    assert [(at, generation) for at, generation, _ in reports] == [
        (5.0, 1), (15.0, 1), (25.0, 1), (45.5, 2),
    ]  # fmt: skip
    assert reports[-1][2] == {
        "change_checkpoint": 2.0,
        "change_away": 8.0,
        "change_start": 4.0,
        "change_first_step": 0.0,
    }
    assert not any(metrics for _, _, metrics in reports[:-1])


def test_a_new_watch_gets_all_remembered_reports() -> None:
    async def main(clock: VirtualClock) -> list[Report]:
        first = _World(clock, {"a": _job()})
        await asyncio.sleep(0)
        await first.executor.start(_spec())
        await first.close()
        await asyncio.sleep(200.0)
        reports: list[Report] = []
        async for report in first.executor.watch():
            reports.append(report)
            if isinstance(report, Ended):
                break
        return reports

    reports = run_virtual(main)
    assert [type(one) for one in reports] == [ServerSeen, ServerSeen, Started, Ended]
    assert reports[-1].at == ORIGIN / SECOND + 100.0

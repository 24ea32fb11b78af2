"""Contract of executors: repeated, late and early commands; services that stop and restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shadowprice.executors.contract import (
    UNCOMMANDED_STOP,
    Ended,
    Ending,
    Executor,
    ExecutorError,
    GenerationPhase,
    Receipt,
    ServerAllocation,
    Started,
    StartRefused,
)
from tests.contract.harness import POLITE, ReportLog, eventually, ready, spec
from tests.contract.harness import LocalHarness as Harness

pytestmark = pytest.mark.processes

# ------------------------------------------------------------------ fencing


def test_repeated_start_is_idempotent(harness: Harness, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        order = spec("job", 1, f"echo x >> {ran}; sleep 0.3")
        receipts = await asyncio.gather(*(executor.start(order) for _ in range(5)))
        assert sorted(receipts) == ["accepted", *["duplicate"] * 4]
        await reports.first(Ended, "job")
        assert await executor.start(order) == Receipt.DUPLICATE
        await executor.acknowledge_end("job", 1)
        assert await executor.start(order) == Receipt.DUPLICATE
        await executor.delete_job_data("job")
        assert await executor.start(order) == Receipt.DUPLICATE
        await executor.close()
        again = await own.open()
        assert await again.start(order) == Receipt.DUPLICATE
        assert await again.list() == ()
        await again.close()

    harness.run(scenario)
    assert ran.read_text() == "x\n"


def test_older_generations_are_stale_and_newer_ones_wait(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 2, POLITE))
        assert await executor.start(spec("job", 1, POLITE)) == Receipt.STALE
        assert await executor.start(spec("job", 3, POLITE)) == Receipt.BUSY
        assert await executor.stop(5, "job", 1) == Receipt.STALE
        assert await executor.start(spec("other", 1, "true")) == Receipt.ACCEPTED
        await ready(executor, "job", 2)
        await executor.stop(25, "job", 2)
        await reports.first(Ended, "job", 2)
        assert await executor.start(spec("job", 3, "true")) == Receipt.ACCEPTED
        await reports.first(Ended, "job", 3)
        assert await executor.start(spec("job", 2, "true")) == Receipt.STALE
        kinds = [
            (type(report), report.generation)
            for report in reports.received
            if isinstance(report, Started | Ended) and report.job == "job"
        ]
        assert kinds == [(Started, 2), (Ended, 2), (Started, 3), (Ended, 3)]

    harness.run(scenario)


def test_stop_before_its_start_prevents_the_start(harness: Harness, tmp_path: Path) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        assert await executor.stop(30, "job", 2) == Receipt.ACCEPTED
        assert (await reports.first(StartRefused, "job", 2)).command == 30
        assert await executor.start(spec("job", 2, f"touch {tmp_path}/no")) == Receipt.DUPLICATE
        assert await executor.start(spec("job", 3, "true")) == Receipt.BUSY  # 1 still runs
        assert await executor.stop(11, "job", 1) == Receipt.ACCEPTED
        assert (await reports.first(Ended, "job", 1)).ending is Ending.STOPPED
        assert await executor.start(spec("job", 3, "true")) == Receipt.ACCEPTED
        await reports.first(Ended, "job", 3)

    harness.run(scenario)
    assert not (tmp_path / "no").exists()


def test_different_command_with_a_used_number_is_stale(harness: Harness, tmp_path: Path) -> None:
    """A restored store assigns numbers again."""

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        first = spec("job", 1, POLITE, identity="first")
        other = spec("job", 1, f"touch {tmp_path}/no", identity="other")
        assert await executor.start(first) == Receipt.ACCEPTED
        await ready(executor, "job")
        await executor.close()
        await reports.end()
        executor = await own.open()
        reports = ReportLog(executor)
        assert [entry.identity for entry in await executor.list()] == ["first"]
        assert await executor.start(other) == Receipt.STALE
        assert await executor.start(first) == Receipt.DUPLICATE
        assert await executor.stop(UNCOMMANDED_STOP, "job", 1) == Receipt.ACCEPTED
        assert (await reports.first(Ended, "job", 1)).ending is Ending.STOPPED
        assert await executor.start(other) == Receipt.STALE
        await executor.acknowledge_end("job", 1)
        assert await executor.start(other) in {Receipt.STALE, Receipt.DUPLICATE}
        await executor.delete_job_data("job")
        assert await executor.start(other) in {Receipt.STALE, Receipt.DUPLICATE}
        await executor.close()
        await reports.end()

    harness.run(scenario)
    assert not (tmp_path / "no").exists()


def test_a_stop_right_after_a_start_never_loses_the_job(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        for number in range(8):
            job = f"job {number}"
            await executor.start(spec(job, 1, "sleep 600"))
            await asyncio.sleep(number * 0.02)
            await executor.stop(5, job, 1)
        ends = [f"job {number}" for number in range(8)]
        await eventually(
            lambda: all(
                reports.matching(Ended, job) or reports.matching(StartRefused, job) for job in ends
            ),
            lambda: reports.received,
        )
        for job in ends:
            assert all(entry.ending is Ending.STOPPED for entry in reports.matching(Ended, job))

    harness.run(scenario)


# ------------------------------------------------------------------ the service comes and goes


def test_running_jobs_are_adopted_after_a_restart(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        started = await reports.first(Started, "job")
        await executor.close()
        await reports.end()
        for _ in range(2):
            executor = await own.open()
            (held,) = await executor.list()
            assert (held.job, held.phase, held.started) == (
                "job",
                GenerationPhase.RUNNING,
                started.at,
            )
            assert held.placement == (ServerAllocation("one", 1),)
            again = ReportLog(executor)
            assert await again.first(Started, "job") == started
            if not again.matching(Ended, "job") and _ == 1:
                await executor.stop(77, "job", 1)
                code = (await again.first(Ended, "job")).code
                assert code == 143 or (code is None and not own.sees_exits)
            await executor.close()
            await again.end()

    harness.run(scenario)


def test_stop_that_completes_during_a_downtime_is_reported(
    harness: Harness,
) -> None:
    command = (
        'cd "$SHADOWPRICE_CHECKPOINT_DIR"; trap "touch told; until [ -e go ]; do sleep 0.05; done;'
        ' exit 143" TERM; echo ready; while :; do sleep 0.05; done'
    )

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(
            spec(
                "job",
                1,
                command,
                ServerAllocation("one", 1),
                ServerAllocation("two", 1),
                grace=120.0,
            )
        )
        for process in ("worker-0", "worker-1"):
            await ready(executor, "job", process=process)
        await reports.first(Started, "job")
        await executor.stop(77, "job", 1)
        await eventually(lambda: next(own.path.rglob("told"), None) is not None)
        await executor.close()
        await reports.end()
        next(own.path.rglob("told")).with_name("go").touch()
        await asyncio.sleep(3.0)  # over, but the cluster hasn't removed it
        executor = await own.open()
        reports = ReportLog(executor)
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.command) == (Ending.STOPPED, 77), ended
        await executor.close()
        await reports.end()

    harness.run(scenario)


def test_unacknowledged_end_is_reported_until_acknowledged(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, "sleep 0.5; echo bye; exit 4"))
        await reports.first(Started, "job")
        await executor.close()
        await reports.end()
        await asyncio.sleep(1.0)
        for _ in range(2):
            executor = await own.open()
            reports = ReportLog(executor)
            ended = await reports.first(Ended, "job")
            assert (ended.code, ended.tail) == (4, ("bye",)), ended
            await executor.close()
            await reports.end()
        executor = await own.open()
        await executor.acknowledge_end("job", 1)
        await executor.close()
        executor = await own.open()
        assert await executor.list() == ()
        await executor.close()

    harness.run(scenario)


def test_executor_directory_is_exclusive(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, _: ReportLog) -> None:
        with pytest.raises(ExecutorError, match="in use by another service"):
            await own.open()
        await executor.close()
        again = await own.open()
        await again.close()

    harness.run(scenario)

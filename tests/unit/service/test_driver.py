"""The driver alone: operations that form a batch, and who waits for whom."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from shadowprice.core.budget import POINT, Budget
from shadowprice.core.errors import PolicyError
from shadowprice.core.job import MICRO
from shadowprice.core.policy import unwrap_policy
from shadowprice.executors.contract import Progressed, Started
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.operations import put_tenant
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.driver import Driver
from shadowprice.service.metrics import Metrics
from shadowprice.service.operation_queue import MAX_BATCH_SLOW_OPERATIONS, BatchEntry
from shadowprice.service.problems import ProblemError
from shadowprice.service.state import slot_operations
from shadowprice.service.state.batch import Batch, Operation
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.durable_state import CommitResult, DurableState
from shadowprice.service.state.operations import SubmitJobs, decide_backlog, quote_job
from shadowprice.service.state.report_operations import RecordReports
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.store_queries import progress_points
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store, tables
from shadowprice.service.writer import Writer
from tests.support.simulated_hours import CLUSTER, SLOT
from tests.support.simulated_world import ManualClock
from tests.support.waiting import WAIT_LIMIT_SECONDS


class Held(DurableEngine):
    """A durable engine whose commits wait for `go`; ``batches`` has their operations."""

    def prepare(self) -> None:
        self.batches: list[int] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def commit(self, operations: Sequence[Operation[Any]]) -> CommitResult:
        self.batches.append(sum(isinstance(operation, SubmitJobs) for operation in operations))
        self.begun.release()
        assert self.go.acquire(timeout=WAIT_LIMIT_SECONDS)
        return super().commit(operations)


class _Execution:
    """An executor without data or known generations."""

    async def fetch_progress(self) -> None:
        pass

    def stale_jobs(self) -> frozenset[str]:
        return frozenset()

    async def delete_job_data(self, jobs: Sequence[str]) -> list[str]:
        return list(jobs)


def _submit(name: str) -> SubmitJobs:
    record: dict[str, Any] = {
        "name": name,
        "chunks": 1,
        "minibatches": 60,
        "minibatch_time": "6s",
        "worker": {"gpu": 1},
        "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "20 slots"},
    }
    return SubmitJobs(read_submissions([record], CLUSTER, tenant=None, runs=False), at_once=True)


def test_a_lone_request_never_waits_and_concurrent_ones_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(ManualClock())
    durable = Held(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    durable.prepare()
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noting(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    async def committing() -> None:
        assert await asyncio.to_thread(durable.begun.acquire, timeout=WAIT_LIMIT_SECONDS)

    async def play() -> None:
        running = asyncio.create_task(driver.run())
        for turn in range(5):  # a client that sends one request after the other
            request = asyncio.create_task(writer.do(_submit(f"alone-{turn}")))
            await committing()
            durable.go.release()
            await request
        first = asyncio.create_task(writer.do(_submit("first")))
        await committing()
        others = [asyncio.create_task(writer.do(_submit(f"other-{index}"))) for index in range(7)]
        await sleep(0)
        durable.go.release(100)
        for outcome in await asyncio.gather(first, *others):
            assert outcome[0][1] is None
        writer.stop()
        await running
        await writer.finish()

    with monkeypatch.context() as patch:
        patch.setattr("shadowprice.service.driver.asyncio.sleep", noting)
        # However fast a machine is: for the driver no time passes at all.
        patch.setattr("shadowprice.service.driver.monotonic", lambda: 100.0)
        asyncio.run(play())
    store.close()
    assert [size for size in durable.batches if size] == [1, 1, 1, 1, 1, 1, 7]
    assert not any(slept)


def test_readers_of_a_standing_query_do_not_wait_for_a_decision(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(ManualClock())
    durable = Held(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    durable.prepare()
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)

    async def committing() -> None:
        assert await asyncio.to_thread(durable.begun.acquire, timeout=WAIT_LIMIT_SECONDS)

    async def play() -> None:
        running = asyncio.create_task(driver.run())
        assert await writer.query_standing(_count_jobs, 3) == (0, 3)
        for number in range(3):
            submitted = asyncio.create_task(writer.do(_submit(f"job-{number}")))
            await committing()
            # The commit waits in the writer's thread.
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                assert await writer.query_standing(_count_jobs, 3) == (number, 3)
            durable.go.release()
            await submitted
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                while await writer.query_standing(_count_jobs, 3) != (number + 1, 3):
                    await asyncio.sleep(0)
        durable.go.release(100)
        writer.stop()
        await running
        await writer.finish()

    asyncio.run(play())
    store.close()


def test_a_reader_that_waited_for_long_still_gets_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile another one read fewer slots, and the longer response is no longer updated."""
    now = [1000.0]
    monkeypatch.setattr("shadowprice.service.standing_queries.monotonic", lambda: now[0])
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(ManualClock())
    durable = Held(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    durable.prepare()
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)

    async def play() -> None:
        running = asyncio.create_task(driver.run())
        submitted = asyncio.create_task(writer.do(_submit("job")))
        assert await asyncio.to_thread(durable.begun.acquire, timeout=WAIT_LIMIT_SECONDS)
        readers = [asyncio.create_task(writer.query_standing(_count_jobs, 9))]
        await asyncio.sleep(0)
        now[0] += 100.0
        readers.append(asyncio.create_task(writer.query_standing(_count_jobs, 3)))
        await asyncio.sleep(0)
        durable.go.release(100)
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            longer, shorter = await asyncio.gather(*readers)
        assert longer == (1, 9)
        assert shorter[1] in {3, 9}
        await submitted
        writer.stop()
        await running
        await writer.finish()

    asyncio.run(play())
    store.close()


def _count_jobs(state: DurableState, slots: int) -> tuple[int, int]:
    return len(state.engine.open_jobs), slots


def test_no_operation_waits_for_a_whole_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowprice.service.state.durable_engine.SNAPSHOT_EVENTS", 30)
    monkeypatch.setattr("shadowprice.service.state.durable_engine.SNAPSHOT_JOBS_PER_STEP", 2)
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(ManualClock())
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)
    driver.snapshot_seconds = 0.0  # each part is a step
    meanwhile: list[int] = []

    async def play() -> None:
        running = asyncio.create_task(driver.run())
        at = 0
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            while not meanwhile or durable.snapshotting:
                under_way = durable.snapshotting
                if under_way:  # one is enough
                    monkeypatch.setattr(
                        "shadowprice.service.state.durable_engine.SNAPSHOT_EVENTS", 10**9
                    )
                driver._last_tick = 0.0  # a second has passed
                await writer.do(_submit(f"job-{at}"))
                at += 1
                if under_way:
                    meanwhile.append(durable.state.engine.sequence)
        writer.stop()
        await running

    asyncio.run(play())
    with store.reading() as connection:
        newest = connection.execute(select(func.max(tables.snapshots.c.sequence))).scalar_one()
    writer._thread.shutdown()
    store.close()
    # It is from a moment near its start, and many requests got responses until it was complete.
    assert 30 <= newest <= meanwhile[len(meanwhile) // 2]
    assert len(meanwhile) > 20


def test_a_failed_driver_leaves_no_caller_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(ManualClock())
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)

    async def broken() -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    async def play() -> None:
        requests = [asyncio.create_task(writer.do(_submit(f"asked-{index}"))) for index in range(3)]
        await asyncio.sleep(0)
        monkeypatch.setattr(driver, "_step", broken)
        with pytest.raises(RuntimeError, match="cannot schedule"):
            await driver.run()
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            for answer in await asyncio.gather(*requests, return_exceptions=True):
                assert isinstance(answer, ProblemError)
                assert "ending" in str(answer)
            with pytest.raises(ProblemError, match="stopping"):
                await writer.do(_submit("late"))
        await writer.finish()

    asyncio.run(play())
    store.close()


def test_an_operation_that_fails_alone_refuses_no_other_write(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(ManualClock())
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)

    class Broken:
        def perform(self, batch: Batch) -> None:
            raise ZeroDivisionError("a bug")

    async def play() -> None:
        running = asyncio.create_task(driver.run())
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await writer.do(Broken())
            assert writer.health_error is None
            [[name, error]] = await writer.do(_submit("next"))
        assert (name, error) == ("next", None)
        writer.stop()
        await running
        await writer.finish()

    asyncio.run(play())
    store.close()


def test_a_backlog_whose_decision_fails_is_retried_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("shadowprice.service.driver.monotonic", lambda: now)
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(ManualClock())
    durable = Counted(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)

    def fail(batch: Batch, most: int) -> int:
        raise ZeroDivisionError("a bug")

    async def play() -> None:
        nonlocal now
        submit = replace(_submit("waits"), at_once=False)
        assert await writer.commit([BatchEntry(submit)])
        with monkeypatch.context() as patch:
            patch.setattr(decide_backlog, "__wrapped__", fail)
            for _ in range(3):
                await driver._step()
        assert durable.batches == [[SubmitJobs], [decide_backlog]]
        now += 1.0
        await driver._step()
        assert durable.batches[2:] == [[decide_backlog]]
        assert writer.published.servers.backlog == 0

    asyncio.run(play())
    writer._thread.shutdown()
    store.close()


class Exhausted(DurableEngine):
    """Runs out of memory in the first commit, and records the threads that read its state."""

    exhausted = True

    def prepare(self) -> None:
        self.threads: list[threading.Thread] = []

    def commit(self, operations: Sequence[Operation[Any]]) -> CommitResult:
        if self.exhausted:
            self.exhausted = False
            raise MemoryError
        return super().commit(operations)

    def present_state(self) -> CommitResult:
        self.threads.append(threading.current_thread())
        return super().present_state()


def test_a_driver_recovers_from_a_failed_allocation_in_the_writers_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(ManualClock())
    durable = Exhausted(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    durable.prepare()
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)
    durable.threads.clear()

    async def play() -> None:
        running = asyncio.create_task(driver.run())
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            with pytest.raises(ProblemError, match="not have been committed"):
                await writer.do(_submit("first"))
            while writer.health_error is not None:
                await asyncio.sleep(0.01)
            await writer.do(_submit("second"))
        writer.stop()
        await running
        await writer.finish()

    asyncio.run(play())
    store.close()
    assert "the store cannot be written: out of memory" in caplog.messages
    assert len(durable.threads) == 1
    assert durable.threads[0] is not threading.main_thread()


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        (ValueError("damaged"), "fetch_progress"),
        (TimeoutError("in its depths"), "fetch_progress"),
        (ValueError("damaged"), "stale_jobs"),
    ],
)
def test_a_slot_is_counted_though_looking_at_progress_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Exception, step: str
) -> None:
    hand = ManualClock()
    clock = MonotonicWallClock(hand)
    store = Store(str(tmp_path / "data"))
    store.open()
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    requests: list[int | None] = []

    class Unreachable(_Execution):
        def fail(self, at: str) -> None:
            if at == step:
                requests.append(writer.published.servers.slot_running)
                raise fault

        async def fetch_progress(self) -> None:
            self.fail("fetch_progress")

        def stale_jobs(self) -> frozenset[str]:
            self.fail("stale_jobs")
            return frozenset()

    driver = Driver(durable, writer, Unreachable(), virtual=True, keep=10**18)

    async def play() -> None:
        running = asyncio.create_task(driver.run())
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            await writer.do(_submit("job"))
            for _ in range(3):
                before = writer.published.servers.slot_running
                hand.advance(SLOT)
                while writer.published.servers.slot_running == before:
                    writer._wake.set()  # the clock here is set by hand
                    assert not running.done(), running
                    await asyncio.sleep(0.01)
            await writer.do(_submit("another"))
        writer.stop()
        await running
        await writer.finish()

    asyncio.run(play())
    store.close()
    assert len(requests) >= 3
    records = [
        record
        for record in caplog.records
        if "failed to" in record.message and "progress" in record.message
    ]
    quiet = isinstance(fault, TimeoutError)
    assert len(records) == (0 if quiet else len(requests))
    assert all(record.exc_info and record.exc_info[1] is fault for record in records)
    (failures,) = writer.metrics.failures.collect()
    counted = [sample.value for sample in failures.samples if sample.name.endswith("_total")]
    assert sum(counted) == len(records)


def test_a_policy_whose_prices_fail_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hand = ManualClock()
    store = Store(str(tmp_path / "data"))
    store.open()
    clock = MonotonicWallClock(hand)
    durable = DurableEngine(store, CLUSTER, PolicyChoice("rolling", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)
    driver.tick_seconds = 0.01

    def fail(*_: object) -> None:
        raise ValueError("no price")

    async def play() -> None:
        running = asyncio.create_task(driver.run())
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            await writer.do(_submit("job"))
            policy = unwrap_policy(durable.state.engine.policy)
            monkeypatch.setattr(type(policy), "slot_prices", fail)
            hand.advance(SLOT)
            while "failed to sample the prices of slot" not in caplog.text:
                writer._wake.set()  # the clock here is set by hand
                assert not running.done(), running
                await asyncio.sleep(0.01)
            await writer.do(_submit("another"))
        writer.stop()
        await running
        await writer.finish()

    asyncio.run(play())
    with store.reading() as connection:
        assert connection.execute(select(func.count()).select_from(tables.prices)).scalar() == 0
    store.close()


def test_a_long_jobs_curve_is_kept_in_a_bounded_number_of_points_and_shown_whole(
    tmp_path: Path,
) -> None:
    hand = ManualClock()
    clock = MonotonicWallClock(hand)
    store = Store(str(tmp_path / "data"))
    store.open()
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock)
    durable.commit([_submit("job")])
    hand.advance(SLOT)
    durable.commit([AdvanceSlots(False)])
    durable.commit([RecordReports([Started(1, "job", 1, clock.now() / SECOND)])])
    writer = Writer(durable, Metrics())
    reports = 0
    for apart, several in ((0.25, 4_000), (1.0, 4_000)):
        for _ in range(several):
            hand.advance(apart)
            reports += 1
            report = Progressed(
                "job", 1, reports * MICRO, {"loss": 1 / reports}, clock.now() / SECOND
            )
            writer.progress.add(report)
            if len(writer.progress._points) >= 1_000:
                durable.commit([writer.progress.take()])
    durable.commit([writer.progress.take()])
    with store.reading() as connection:
        kept = progress_points(connection, "job", 100_000)
        shown = progress_points(connection, "job", 100)
    writer._thread.shutdown()
    store.close()
    young = [point for point in kept if point.minibatches <= 4_000]
    assert len(young) == 2_000  # two a second of the first thousand
    assert len(kept) < 2_000 * (1 + math.log(5)) + 50  # of five thousand
    gaps = [b.minibatches - a.minibatches for a, b in pairwise(kept[-50:])]
    assert max(gaps) == 3  # seconds, a 2,000th of the time
    assert 50 < len(shown) <= 100
    assert shown[-1] == kept[-1]
    assert shown == kept[::-1][:: -(-len(kept) // 100)][::-1]


def test_old_data_is_deleted_however_much_there_is(tmp_path: Path) -> None:
    clock = MonotonicWallClock(ManualClock())
    store = Store(str(tmp_path / "data"))
    store.open()
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    event = {"at": 1, "kind": "slot", "decision": 0, "job": None, "tenant": None, "data": "{}"}
    view = {"state": "finished", "open": 0, "submitted": 0, "spec": "{}", "content": "", "view": ""}
    named = [dict.fromkeys(("key", "qualified_name", "name"), f"{index}") for index in range(300)]
    jobs = [{"id": index, "closed": 1, **named[index], **view} for index in range(1, 300)]
    with store.transaction() as connection:
        store.write(
            connection, tables.events.insert(), [{"id": 10 + n, **event} for n in range(2_500)]
        )
        store.write(connection, tables.jobs.insert(), jobs)
    writer = Writer(durable, Metrics())

    class Partial(_Execution):
        async def delete_job_data(self, jobs: Sequence[str]) -> list[str]:
            return [job for job in jobs if int(job) > 160]  # the executor still has the others

    driver = Driver(durable, writer, Partial(), virtual=True, keep=1)
    driver.purge_pause_seconds = 0.0
    asyncio.run(driver.purge_expired())
    writer._thread.shutdown()
    with store.reading() as connection:
        for table, left in ((tables.events, 0), (tables.jobs, 160)):
            assert connection.execute(select(func.count()).select_from(table)).scalar() == left
    store.close()


class Counted(DurableEngine):
    """A durable engine that records the kinds of operations of each batch."""

    def commit(self, operations: Sequence[Operation[Any]]) -> CommitResult:
        self.batches = [
            *getattr(self, "batches", []),
            [getattr(operation, "kind", type(operation)) for operation in operations],
        ]
        return super().commit(operations)


def test_many_quotes_delay_no_other_tenant(tmp_path: Path) -> None:
    clock = MonotonicWallClock(ManualClock())
    store = Store(str(tmp_path / "data"))
    store.open()
    durable = Counted(store, CLUSTER, PolicyChoice("oasis", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)
    quote = quote_job(_submit("quoted").submissions[0])

    async def play() -> None:
        quotes = [asyncio.ensure_future(writer.do(quote)) for _ in range(40)]
        jobs = [asyncio.ensure_future(writer.do(_submit(f"job-{index}"))) for index in range(3)]
        await asyncio.sleep(0)
        running = asyncio.create_task(driver.run())
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            assert all(one.quote.admitted for one in await asyncio.gather(*quotes))
            await asyncio.gather(*jobs)
        writer.stop()
        await running
        await writer.finish()

    asyncio.run(play())
    store.close()
    quoted = [batch.count(quote_job) for batch in durable.batches]
    assert (sum(quoted), max(quoted)) == (40, MAX_BATCH_SLOW_OPERATIONS)
    assert durable.batches[0].count(SubmitJobs) == 3


def test_many_requests_delay_no_other_tenant(tmp_path: Path) -> None:
    clock = MonotonicWallClock(ManualClock())
    store = Store(str(tmp_path / "data"))
    store.open()
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)
    answered: list[int] = []

    def question(_: DurableState) -> None:
        time.sleep(0.002)
        answered.append(1)

    async def play() -> int:
        running = asyncio.create_task(driver.run())
        requests = [asyncio.ensure_future(writer.query(question)) for _ in range(100)]
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            await writer.do(_submit("job"))
            before = len(answered)
            await asyncio.gather(*requests)
        writer.stop()
        await running
        await writer.finish()
        return before

    assert asyncio.run(play()) < 50
    assert len(answered) == 100
    store.close()


def test_a_clock_that_was_set_wrongly_takes_nothing_away(tmp_path: Path) -> None:
    hand = ManualClock()
    clock = MonotonicWallClock(hand)
    month = 30 * 86_400 * SECOND
    store = Store(str(tmp_path / "data"))
    store.open()
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=month)
    view = {"state": "finished", "open": 0, "submitted": 0, "spec": "{}", "content": "", "view": ""}
    with store.transaction() as connection:
        named = dict.fromkeys(("key", "qualified_name", "name"), "old")
        row = {"id": 1, "closed": clock.now(), **named, **view}
        store.write(connection, tables.jobs.insert(), [row])

    async def tick() -> None:
        driver._last_tick = 0.0
        await driver._tick()
        if driver._purge_task is not None:
            await driver._purge_task

    async def play() -> None:
        driver._last_purge = -1e9
        for wrong in (3 * month, 0):
            hand.set_by = wrong
            await tick()
            writer.progress.add(Progressed("job", 1, MICRO, {}, clock.now() / SECOND))
        assert driver._purge_task is None
        driver._last_purge = -1e9
        await tick()
        assert driver._purge_task is not None

    asyncio.run(play())
    writer._thread.shutdown()
    with store.reading() as connection:
        left = connection.execute(select(tables.jobs.c.name)).scalars().all()
    store.close()
    assert left == ["old"]
    assert len(writer.progress._points) == 2


def test_the_clock_is_followed_only_after_the_slots_were_shifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = ManualClock()
    clock = MonotonicWallClock(hand)
    store = Store(str(tmp_path / "data"))
    store.open()
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)
    origin, before, step = durable.state.calendar.origin, clock.now(), 3_600 * SECOND

    def fail(batch: Batch) -> None:
        raise PolicyError("replanning failed")

    def count(name: str, **labels: str) -> float | None:
        return writer.metrics.registry.get_sample_value(f"shadowprice_{name}", labels)

    async def tick() -> None:
        driver._last_tick = 0.0
        await driver._tick()

    async def play() -> None:
        hand.set_by = step
        with monkeypatch.context() as patch:
            patch.setattr(slot_operations, "follow_clock", fail)
            await tick()
        assert durable.state.calendar.origin == origin
        assert clock.now() == before
        assert count("clock_steps_total") == 0
        assert count("failures_total", component="clock") == 1
        await tick()
        assert durable.state.calendar.origin == origin + step
        assert clock.now() == before + step
        assert count("clock_steps_total") == 1

    asyncio.run(play())
    writer._thread.shutdown()
    store.close()


@pytest.mark.parametrize("carry", [0, 500 * POINT, None])
def test_a_clock_that_is_behind_for_a_moment_grants_no_period_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carry: int | None
) -> None:
    hand, now = ManualClock(), 100.0
    week, behind = 7 * 86_400, -29 * 7 * 86_400 * SECOND
    monkeypatch.setattr("shadowprice.service.driver.monotonic", lambda: now)
    store = Store(str(tmp_path / "data"))
    store.open()
    durable = DurableEngine(
        store, CLUSTER, PolicyChoice("fifo", {}), MonotonicWallClock(hand), virtual=True
    )
    durable.commit(
        [put_tenant("vision", {}, Budget(100 * POINT, week, carry=carry), budgeted=True)]
    )
    period = durable.state.accounts["vision"].period
    with store.transaction() as connection:
        store.write(connection, tables.budgets.update().values(balance=0))  # everything is spent

    hand.set_by = behind
    clock = MonotonicWallClock(hand)
    durable = DurableEngine(store, CLUSTER, PolicyChoice("fifo", {}), clock, virtual=True)
    writer = Writer(durable, Metrics())
    driver = Driver(durable, writer, virtual=True, keep=10**18)
    driver.purge_interval_seconds = math.inf

    def state() -> tuple[int, int]:
        account = durable.state.accounts["vision"]
        return account.balance, account.period

    async def play() -> None:
        nonlocal now
        for set_by in (behind, 0, behind, 0):
            hand.set_by = set_by
            driver._last_tick = 0.0
            await driver._tick()
            assert state() == (0, period)
        hand.set_by = behind
        for seconds, current in ((0.0, period), (3_599.0, period), (1.0, period - 29)):
            now += seconds
            driver._last_tick = 0.0
            await driver._tick()
            assert state() == (0, current)

    asyncio.run(play())
    writer._thread.shutdown()
    store.close()

"""Simulated hours of a service with kills, full disks and clock steps.

`python -m tests.support.simulated_hours` plays thousands of faults; these are a sample.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.policy import unwrap_policy
from shadowprice.executors.contract import ExecutorError
from shadowprice.service.clock import SECOND, MonotonicWallClock, SlotCalendar, format_rfc3339
from shadowprice.service.driver import Driver
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.slot_operations import (
    MAX_CATCH_UP_SLOTS,
    MAX_SLOTS_PER_BATCH,
    AdvanceSlots,
)
from shadowprice.service.state.store_queries import list_events
from tests.support.simulated_hours import (
    CLUSTER,
    SLOT,
    Crash,
    SimulatedHour,
    disk_full_error,
    random_faults,
    run_hour,
)
from tests.support.simulated_world import ManualClock
from tests.support.waiting import WAIT_LIMIT_SECONDS

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("policy", ["oasis", "rolling", "fifo"])
def test_repeatedly_killed_service_loses_nothing(tmp_path: Path, policy: str) -> None:
    hour = SimulatedHour(tmp_path, policy, seed=5, jobs=10, budgets=True)
    hour.fault = random_faults(random.Random(7), 220, Crash)
    views = run_hour(hour)
    assert hour.crashes > 4
    assert len(views) == 18
    assert any(view.state == "finished" for view in views.values())


@pytest.mark.extended
def test_service_killed_at_any_position_of_an_hour_loses_nothing() -> None:
    # In a process of its own, because it forks at each crash point.
    words = ["-m", "tests.support.crash_points", "--policy=oasis", "--jobs=1", "--every=260"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = re.search(r"read back at (\d+), gone on from (\d+)", done.stdout)
    assert result is not None, done.stdout
    assert int(result[1]) >= int(result[2]) > 5


def test_full_disk_refuses_requests_and_loses_nothing(tmp_path: Path) -> None:
    hour = SimulatedHour(tmp_path, "oasis", seed=6, jobs=10, budgets=True)
    hour.fault = random_faults(random.Random(8), 150, disk_full_error)
    run_hour(hour)
    assert hour.refusals > 5


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["oasis", "rolling", "fifo"])
def test_occasional_policy_errors_lose_no_job(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients and executors repeat messages; nothing runs for ever, and nothing runs twice."""
    hour = SimulatedHour(tmp_path, policy, seed=5, jobs=20, budgets=True)
    raised: list[str] = []

    def bug() -> BaseException:
        raised.append("once more")
        return ZeroDivisionError("a passing bug")

    fault = random_faults(random.Random(7), 4, bug)

    def opened(hour: SimulatedHour) -> None:
        kind: Any = type(unwrap_policy(hour.durable.state.engine.policy))
        decide = kind.decide

        def stumbling(self: Any, view: Any, event: Any) -> Iterator[Any]:
            yield from decide(self, view, event)
            fault("decided")

        monkeypatch.setattr(kind, "decide", stumbling)

    hour.opened = opened
    views = run_hour(hour)
    assert len(raised) > 9
    assert len(views) == 28
    assert sum(view.state == "finished" for view in views.values()) > 8


def test_unreachable_executor_is_retried(tmp_path: Path) -> None:
    hour = SimulatedHour(tmp_path, "oasis", seed=6, jobs=10)

    def away() -> BaseException:
        return ExecutorError("away")

    hour._outside = random_faults(random.Random(9), 9, away)  # type: ignore[method-assign]
    hour.world.fault = hour._outside
    run_hour(hour)
    assert hour.refusals > 5


@pytest.mark.parametrize("jump", [-1800, -5, 7, 1800])
def test_setting_the_wall_clock_moves_no_slot(tmp_path: Path, jump: int) -> None:
    hour = SimulatedHour(tmp_path, "oasis", seed=9, jobs=10)

    seen: list[int] = []
    origins: list[int] = []

    def watch(hour: SimulatedHour, tick: int) -> None:
        if tick == 90:
            hour.clock.set_by += jump * SECOND
        origins.append(hour.durable.state.calendar.origin)
        if hour.durable.state.engine.slot_running is not None:
            seen.append(hour.durable.state.engine.slot_running)

    hour.before_slot = watch
    events = _played(hour)
    assert seen == sorted(seen)
    assert max(later - slot for slot, later in itertools.pairwise(seen)) <= 1
    assert origins[-1] - origins[0] == jump * SECOND
    clock = [event for event in events if event["kind"] == "clock"]
    assert [event["data"]["seconds"] for event in clock] == [jump]
    moved = {event["job"] for event in events if event["kind"] == "rescheduled"}
    assert len(moved) == clock[0]["data"]["promises"]


def _played(hour: SimulatedHour) -> list[dict]:
    asyncio.run(hour.run())
    hour.check()
    with hour.store.reading() as connection:
        results = [event.record for event in list_events(connection, after=0, limit=100_000)]
    hour.writer._thread.shutdown()
    hour.store.close()
    return results


def test_suspended_service_catches_up_on_every_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = SimulatedHour(tmp_path, "oasis", seed=10, jobs=10)
    began: list[int] = []
    begin = AdvanceSlots._begin_slot

    def noting(self: AdvanceSlots, batch: Batch, slot: int, *more: Any) -> None:
        began.append(slot)
        begin(self, batch, slot, *more)

    monkeypatch.setattr(AdvanceSlots, "_begin_slot", noting)

    def suspend(hour: SimulatedHour, tick: int) -> None:
        if tick in {60, 130}:
            hour.world.advance(7.5 * SLOT)

    hour.before_slot = suspend
    run_hour(hour)
    assert began == sorted(set(began))
    # While anything runs or is planned, no slot is skipped.
    assert {10, 11, 12, 13, 14, 15, 16, 17} <= set(began)


def test_suspended_service_polls_once_for_all_missed_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are caught up batch by batch; reports from before the first count in all of them."""
    hour = SimulatedHour(tmp_path, "fifo", seed=10, jobs=10)
    listened: list[int] = []
    begin = Driver._start_collecting

    def noting(driver: Driver) -> None:
        listened.append(driver._published.sequence)
        begin(driver)

    monkeypatch.setattr(Driver, "_start_collecting", noting)

    def suspend(hour: SimulatedHour, tick: int) -> None:
        if tick == 60:
            assert hour.writer.published.desired
            hour.world.advance(3.5 * MAX_SLOTS_PER_BATCH * SLOT)

    hour.before_slot = suspend
    run_hour(hour)
    assert len(listened) == 2  # at the start, and then


def test_long_downtime_is_mostly_skipped(tmp_path: Path) -> None:
    hour = SimulatedHour(tmp_path, "fifo", seed=11, jobs=6)

    def away(hour: SimulatedHour, tick: int) -> None:
        if tick == 80:
            hour.world.advance(5_000 * SLOT)

    hour.before_slot = away
    events = _played(hour)
    [clock] = [event for event in events if event["kind"] == "clock"]
    assert clock["data"]["seconds"] == pytest.approx(
        (5_000 - MAX_CATCH_UP_SLOTS) * SLOT, abs=3 * SLOT
    )


def test_clock_is_monotonic_and_detects_steps() -> None:
    clock = ManualClock()
    steady = MonotonicWallClock(clock)
    first = steady.now()
    clock.set_by -= 100 * SECOND
    assert steady.detected_step_ns() == -100 * SECOND
    assert steady.now() == first
    steady.follow(-100 * SECOND)
    assert steady.detected_step_ns() == 0
    assert steady.now() == first - 100 * SECOND
    clock.set_by += SECOND // 2  # within tolerance
    assert steady.detected_step_ns() == 0


def test_slots_begin_at_multiples_of_their_length() -> None:
    calendar = SlotCalendar.starting(1_800_000_123 * SECOND, CLUSTER.slot_seconds)
    for slot in (0, 1, 59, 10**6):
        begins = calendar.begins(slot)
        assert calendar.slot_at(begins) == slot
        assert calendar.slot_at(begins - 1) == slot - 1
        assert calendar.ends(slot) == calendar.begins(slot + 1)
    assert calendar.origin % (SLOT * SECOND) == 0
    assert format_rfc3339(0) == "1970-01-01T00:00:00Z"

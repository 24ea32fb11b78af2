"""A warning that start-ups are long compared with a slot is emitted once, and withdrawn once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shadowprice.core.job import MICRO
from shadowprice.executors.contract import Progressed, Started
from shadowprice.service.clock import SECOND
from shadowprice.service.metrics import Metrics
from shadowprice.service.state.operations import cancel_job
from shadowprice.service.state.report_operations import RecordProgress, RecordReports
from shadowprice.service.state.start_ups import NEWEST, StartUp, StartUps
from shadowprice.service.state.store_queries import list_events
from tests.support.engine_bench import EngineBench
from tests.support.simulated_hours import SLOT


def starts(bench: EngineBench, number: int, seconds: float, *, ends: bool = True) -> None:
    """Let a job start some seconds after its slot began, and end."""
    name = f"job-{number}"
    bench.submit(name, minibatches=10)
    bench.advance()
    order = bench.durable.state.desired[name]
    at = bench.durable.state.calendar.begins(order.slot) / SECOND + seconds
    bench.commit(RecordReports([Started(order.id, name, order.generation, at)]))
    if ends:
        bench.commit(cancel_job(name))


def warning_events(bench: EngineBench) -> list[dict[str, Any]]:
    with bench.store.reading() as connection:
        events = list_events(connection, after=0, limit=1_000)
    return [event.data for event in events if event.kind == "warning"]


def warnings(bench: EngineBench) -> list[dict[str, Any]]:
    servers = bench.durable.present_state().servers
    return servers.warnings


def test_long_start_ups_are_reported_once_and_cleared(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "fifo")
    starts(bench, 0, 12.0)
    starts(bench, 1, 12.0)
    assert not warnings(bench)  # two say little
    starts(bench, 2, 12.0)
    [warning] = warnings(bench)
    assert warning["start_up_seconds"] == 12.0
    assert warning["slot_seconds"] == SLOT
    assert warning["needed_seconds"] == 120
    assert "20% of a slot of 60 s" in warning["message"]
    assert "slots of 120 s or more" in warning["message"]
    starts(bench, 3, 12.0)
    assert [event["active"] for event in warning_events(bench)] == [True]
    bench.store.close()
    bench.store.open()
    bench.recover()
    assert warnings(bench) == [{**warning, "message": warnings(bench)[0]["message"]}]
    for number in range(4, 4 + NEWEST):
        starts(bench, number, 5.0)  # 8.3 % of a slot: between both limits
    assert [event["active"] for event in warning_events(bench)] == [True]
    for number in range(4 + NEWEST, 4 + 2 * NEWEST):
        starts(bench, number, 1.0)
    assert [event["active"] for event in warning_events(bench)] == [True, False]
    assert not warnings(bench)
    bench.store.close()


def test_a_start_up_ends_when_work_is_reported(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "fifo")
    starts(bench, 0, 1.0, ends=False)
    order = bench.durable.state.desired["job-0"]
    at = bench.durable.state.calendar.begins(order.slot) / SECOND + 27.5
    # One mini-batch takes 6 s; work may be a quarter slower before that counts as a start-up.
    report = Progressed("job-0", 1, MICRO, {}, at)
    bench.commit(RecordProgress({"job-0": report}, []))
    [start_up] = bench.durable.state.start_ups.newest
    assert start_up.process == 1.0
    assert start_up.seconds == 27.5 - 1.25 * 6.0
    later = Progressed("job-0", 1, 2 * MICRO, {}, at + 30.0)
    bench.commit(RecordProgress({"job-0": later}, []))
    assert bench.durable.state.start_ups.newest == (start_up,)
    bench.store.close()


def test_late_command_is_no_long_start_up(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "fifo")
    bench.submit("late", minibatches=5)
    bench.clock.advance(20 * SLOT)  # the service was away; the slot's beginning comes first
    bench.advance()
    order = bench.durable.state.desired["late"]
    ordered = bench.clock.wall()
    begins = bench.durable.state.calendar.begins(order.slot)
    at = ordered / SECOND + 2.0
    bench.commit(RecordReports([Started(order.id, "late", order.generation, at)]))
    [start_up] = bench.durable.state.start_ups.newest
    assert start_up.seconds <= at - begins / SECOND
    assert start_up.seconds < SLOT
    bench.store.close()


def test_long_start_ups_are_persisted() -> None:
    start_ups = StartUps(tuple(StartUp(f"job-{n}", 1, 181.0, 181.0) for n in range(3)), True)
    warning = start_ups.warning(2.0)
    assert warning is not None
    assert warning["message"].startswith("starting a job takes 3.02min (median of the newest 3), ")


def test_metric_of_a_warning_is_exported_from_the_start() -> None:
    metrics = Metrics()
    metrics.warnings.labels("slot-too-short").set(False)
    assert 'shadowprice_warning{code="slot-too-short"} 0.0' in metrics.scrape((), {}).decode()

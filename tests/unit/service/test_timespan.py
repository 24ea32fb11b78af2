"""The end of the timespan in the durable state: options, clocks, and messages to jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.errors import InputError
from shadowprice.service.clock import SECOND, format_rfc3339
from shadowprice.service.state.job_views import State
from shadowprice.service.state.slot_operations import shift_slot_origin
from shadowprice.service.state.store_queries import jobs_by_key
from shadowprice.service.state.timespan import follow_option, set_timespan_end
from tests.support.engine_bench import EngineBench
from tests.support.simulated_hours import SLOT


def until(bench: EngineBench) -> int | None:
    servers = bench.durable.present_state().servers
    assert servers.until == bench.durable.state.engine.until
    return servers.until


def restart(bench: EngineBench) -> None:
    bench.store.close()
    bench.store.open()
    bench.recover()


def slots_ahead(bench: EngineBench, slots: float) -> int:
    return int(bench.clock.wall() + slots * SLOT * SECOND)


def test_an_option_counts_once_and_an_operator_comes_after(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data")
    bench.commit(follow_option(None))
    assert until(bench) is None
    bench.commit(follow_option("5 slots"))
    assert until(bench) == 5
    bench.advance(3)
    restart(bench)
    bench.commit(follow_option("5 slots"))
    assert until(bench) == 5
    bench.commit(set_timespan_end(slots_ahead(bench, 20)))
    restart(bench)
    bench.commit(follow_option("5 slots"))
    assert until(bench) == 23
    bench.commit(follow_option(None))
    assert until(bench) == 23
    bench.commit(follow_option("2 slots"))
    assert until(bench) == 5
    restart(bench)
    bench.commit(follow_option("none"))
    assert until(bench) is None
    with pytest.raises(InputError, match="has passed"):
        bench.commit(follow_option("2020-01-01"))
    assert until(bench) is None
    bench.store.close()


def test_an_end_stays_at_its_clock_time_when_the_clock_is_set(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data")
    bench.commit(set_timespan_end(slots_ahead(bench, 10)))
    assert until(bench) == 10
    bench.commit(shift_slot_origin(3 * SLOT * SECOND, "the clock was set forward"))
    assert until(bench) == 7
    restart(bench)
    assert until(bench) == 7
    bench.store.close()


@pytest.mark.parametrize("policy", ["oasis", "pdors", "rolling"])
def test_job_refused_because_of_the_end_gets_that_reason(tmp_path: Path, policy: str) -> None:
    bench = EngineBench(tmp_path / "data", policy)
    bench.commit(set_timespan_end(slots_ahead(bench, 3)))
    bench.submit("long")  # six slots
    bench.submit("short", minibatches=10)
    assert "long" not in bench.durable.state.views
    assert bench.durable.state.views["short"].promise is not None
    end = format_rfc3339(bench.durable.state.calendar.begins(3))
    reason = reason_of(bench, "long")
    assert f"without the end of the timespan at {end} it would be admitted" in reason["message"]
    assert reason["timespan_ends"] == end
    bench.commit(set_timespan_end(None))
    bench.submit("again")
    assert bench.durable.state.views["again"].promise is not None
    bench.store.close()


def reason_of(bench: EngineBench, name: str) -> dict[str, Any]:
    with bench.store.reading() as connection:
        [row] = jobs_by_key(connection, [name]).values()
    reason = row.view.reason
    assert reason is not None
    return dict(reason)


@pytest.mark.parametrize("policy", ["oasis", "pdors", "rolling", "fifo", "drf"])
def test_open_job_at_the_end_waits_and_continues(tmp_path: Path, policy: str) -> None:
    bench = EngineBench(tmp_path / "data", policy)
    bench.commit(set_timespan_end(slots_ahead(bench, 3.5)))
    assert until(bench) == 3
    bench.submit("one", minibatches=18)  # three slots, if all goes well
    bench.advance()
    bench.report_start("one")
    assert bench.durable.state.views["one"].state is State.RUNNING
    bench.report_progress("one", 1)
    bench.advance(3)
    view = bench.durable.state.views["one"]
    assert view.state.open
    assert view.workers == 0
    assert view.promise is None
    assert view.reason is not None
    assert view.reason["code"] == "timespan"
    assert not bench.durable.state.engine.running
    assert "stopped" in bench.event_kinds("one")
    assert bench.event_kinds("one").count("standby") >= 1
    waiting = bench.event_kinds("one").count("standby")
    bench.advance(2)
    assert bench.event_kinds("one").count("standby") == waiting
    bench.commit(set_timespan_end(None))
    bench.advance(2)
    view = bench.durable.state.views["one"]
    assert view.workers == 1
    assert view.reason is None
    bench.store.close()

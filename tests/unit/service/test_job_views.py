"""Expected completion of jobs, beside their promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.state.job_views import JobView
from tests.support.engine_bench import EngineBench

CONSTANT = {"kind": "constant", "value": 1}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[EngineBench]:
    result = EngineBench(tmp_path / "data", PolicyChoice("rolling", {"steady": True}))
    yield result
    result.store.close()


def view_of(bench: EngineBench, name: str) -> JobView:
    return bench.durable.state.views[bench.job_key(name)]


def times_of(bench: EngineBench, name: str) -> tuple[Any, Any]:
    """Return the expected completion slot of a job, and its promise, as clients see them."""
    resource = view_of(bench, name).to_resource()
    ends = bench.durable.state.calendar.ends
    for slot, moment in (
        (resource.completion_slot, resource.completion),
        (resource.promise_slot, resource.promise),
    ):
        assert (moment is None) == (slot is None)
        assert slot is None or (moment is not None and moment.timestamp() * 1e9 == ends(slot))
    return resource.completion_slot, resource.promise_slot


def test_a_promise_is_late_and_the_expected_completion_is_not(bench: EngineBench) -> None:
    """Ten slots of work that are worth as much later: promised for eight times as long."""
    bench.submit("plain", minibatches=100, utility=CONSTANT)
    expected, promise = times_of(bench, "plain")
    assert (expected, promise) == (10, 81)  # it starts in slot 1
    bench.advance()
    assert times_of(bench, "plain") == (expected, promise)
    bench.report_start("plain")
    bench.advance()
    assert times_of(bench, "plain")[1] == promise
    # The job reports half of the speed that it stated, and has nothing to do in the first slot.
    bench.report_progress("plain", 5)
    bench.advance()
    later, _ = times_of(bench, "plain")
    assert expected < later < promise


def test_a_job_that_runs_without_a_promise_has_an_expected_completion(bench: EngineBench) -> None:
    """Its utility is below the price, and servers are free."""
    for name in ("first", "second", "third"):
        bench.submit(name, minibatches=100, utility={"kind": "constant", "value": 20})
    bench.submit("cheap", minibatches=50, utility={"kind": "constant", "value": 0.01})
    assert view_of(bench, "cheap").state == "standby"
    assert times_of(bench, "cheap") == (None, None)
    bench.advance()
    bench.report_start("cheap")
    running = bench.durable.state.engine.slot_running
    assert running is not None
    assert times_of(bench, "cheap") == (running + 4, None)


def test_overrunning_job_has_no_expected_completion(bench: EngineBench) -> None:
    bench.submit("longer", minibatches=20, utility=CONSTANT)
    bench.advance()
    bench.report_start("longer")
    assert times_of(bench, "longer")[0] is not None
    bench.advance(4)
    assert view_of(bench, "longer").state == "running"
    assert times_of(bench, "longer")[0] is None


def test_promised_job_that_missed_its_start_has_no_expected_completion(bench: EngineBench) -> None:
    """The jobs before it take longer than stated, and keep their servers."""
    worker, utility = {"gpu": 4, "cpu": 1}, {"kind": "constant", "value": 20}
    for name in ("a", "b", "c"):
        smaller = {"gpu": 3, "cpu": 1}
        bench.submit(name, minibatches=30, worker=smaller, utility={**utility, "value": 9})
    bench.advance()
    for name in ("a", "b", "c"):
        bench.report_start(name)
    bench.submit("next", minibatches=30, worker=worker, utility=utility)
    # They can't be stopped before slot 4, and report nothing.
    assert times_of(bench, "a") == (3, 41)
    assert times_of(bench, "next") == (6, 42)
    bench.submit("x", minibatches=30, utility={"kind": "constant", "value": 1e-6})
    for _ in range(3):
        bench.advance()
        assert times_of(bench, "next") == (6, 42)
    bench.advance()
    assert times_of(bench, "next") == (None, 42)
    assert times_of(bench, "a") == (None, 41)

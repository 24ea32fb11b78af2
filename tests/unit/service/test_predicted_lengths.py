"""Jobs that state no length: what is predicted, promised, learnt and paid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shadowprice.cli.commands.submit import describe_job
from shadowprice.core.amounts import parse_duration
from shadowprice.core.budget import POINT
from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO
from shadowprice.core.schedule import Placement
from shadowprice.core.specs import JobSpec
from shadowprice.engine.snapshot import snapshot
from shadowprice.results.advice import Advice
from shadowprice.service.queries.outlook import _describe_revision, build_outlook
from shadowprice.service.queries.whatif import workload
from shadowprice.service.state.operations import ForkEngine, QuoteJob, ReviseJob
from shadowprice.service.state.start_ups import stated_seconds
from shadowprice.service.state.submission import read_submissions
from tests.support.simulated_hours import CLUSTER, SLOT
from tests.unit.service.test_overrun_prices import Shop

DEFAULT = (40.0 * SLOT, 0, None)
"""Without history: an hour, but at most the planning horizon of 40 slots."""


def plain(name: str, tenant: str = "vision", **changes: Any) -> dict[str, Any]:
    """Return a command without a time."""
    run = {"command": ["python", "train.py"]}
    return {"name": name, "tenant": tenant, "worker": {"gpu": 1}, "run": run, **changes}


class Lab(Shop):
    """A store whose commands run for a given number of slots."""

    def run(self, name: str, slots: int, **changes: Any) -> None:
        """Submit a command, and let it end at the end of its last slot."""
        self.ask(plain(name, **changes))
        assert self.view(name).state.open
        self.wait_until_running(name)
        self.slot(slots - 1)
        self.clock.advance(SLOT * 0.999)
        self.ended(name)
        self.slot()
        assert self.view(name).state == "finished"

    def wait_until_running(self, *names: str) -> None:
        for _ in range(20):
            if {self.view(name).state for name in names} == {"running"}:
                return
            self.slot()
        raise AssertionError([self.view(name).reason for name in names])

    def teach(self, lengths: tuple[int, ...] = (2, 3, 5), **changes: Any) -> None:
        for index, slots in enumerate(lengths):
            self.run(f"train-a{index}", slots, **changes)


@pytest.fixture(params=["rolling", "oasis", "fifo"])
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    result = Lab(tmp_path / "data", request.param)
    yield result
    result.check()
    result.store.close()


@pytest.fixture
def rolling(tmp_path: Path) -> Iterator[Lab]:
    result = Lab(tmp_path / "data", "rolling")
    yield result
    result.check()
    result.store.close()


def test_a_prediction_is_the_upper_quartile_of_the_tenants_similar_jobs(lab: Lab) -> None:
    lab.ask(plain("train-x1"))
    assert lab.view("train-x1").predicted == DEFAULT
    lab.teach()
    lab.ask(plain("train-x2"), plain("train-x3", tenant="speech"))
    length, jobs, probability = lab.view("train-x2").predicted or (0, 0, 0)
    assert length == pytest.approx(5 * SLOT, rel=0.01)
    assert (jobs, probability) == (3, 3 / 4)
    assert lab.view("train-x3").predicted == DEFAULT


def test_a_predicted_completion_is_expected_but_not_promised(rolling: Lab) -> None:
    rolling.teach()
    rolling.ask(plain("train-x2"))
    view, slot = rolling.view("train-x2"), rolling.truth.state.next_slot
    assert (view.promise, view.first_promise, view.expected) == (None, None, slot + 4)
    assert rolling.kinds("train-x2")[:2] == ["submitted", "admitted"]
    assert "promised" not in rolling.lines("train-x2")[1]
    resource = view.to_resource()
    assert resource.promise is None
    assert resource.predicted is not None
    assert resource.predicted.jobs == 3
    [asked] = read_submissions([plain("train-x4")], CLUSTER, tenant=None, runs=True)
    [quote] = rolling.do(QuoteJob(asked)).answers
    shown = quote.to_resource("train-x4", rolling.truth.state.calendar, names=True)
    assert (shown.promise, shown.completion) == (None, None)
    assert shown.expected is not None
    assert shown.predicted is not None
    assert shown.predicted.probability == 3 / 4


def test_a_job_that_outlasts_its_prediction_runs_on_and_is_planned_longer(lab: Lab) -> None:
    lab.teach((2, 2, 2, 9))
    lab.ask(plain("train-x"))
    lab.wait_until_running("train-x")
    lengths = []
    for _ in range(20):
        assert lab.view("train-x").state == "running"
        lab.slot()
        predicted = lab.view("train-x").predicted
        assert predicted is not None
        lengths.append(round(predicted.length / SLOT))
    # Three quarters of 2, 2, 2, 9; then of the longer one; then twice what it had run.
    assert sorted(set(lengths)) == [2, 9, 18, 36]
    lines = [line for line in lab.lines("train-x") if "longer than predicted" in line]
    assert len(lines) == 3
    assert lines[0].endswith("by 1 similar job that ran longer")
    assert lines[1].endswith("no similar job ran longer")
    lab.ended("train-x")
    lab.slot()
    assert lab.view("train-x").state == "finished"
    length = lab.view("train-x").length
    assert length is not None
    assert length[0] == pytest.approx(20 * SLOT, rel=0.1)


def _state(lab: Lab) -> dict[str, Any]:
    """Return the engine's state, without the policy's, whose serialization differs."""
    state = dict(snapshot(lab.truth.state.engine))
    del state["memory"]
    return state


def test_a_restart_forgets_no_length(lab: Lab) -> None:
    lab.teach()
    lab.ask(plain("train-x"))
    lab.wait_until_running("train-x")
    lab.slot(6)
    before, state = lab.view("train-x"), _state(lab)
    assert before.predicted is not None
    assert before.predicted.length > 9 * SLOT
    lab.read()
    assert lab.view("train-x") == before
    assert _state(lab) == state
    lab.ask(plain("train-y"))
    predicted = lab.view("train-y").predicted
    assert predicted is not None
    assert predicted.length == pytest.approx(5 * SLOT, rel=0.01)


def test_measured_progress_replaces_the_prediction_by_a_promise(rolling: Lab) -> None:
    rolling.ask(plain("train-x", steps=1000))
    rolling.wait_until_running("train-x")
    for done in range(10, 70, 10):
        rolling.reported("train-x", done, saves=True)
        rolling.slot()
    view = rolling.view("train-x")
    assert view.measured == (1,)
    assert view.to_resource().predicted is None
    assert view.promise is not None
    # 10 steps a slot, where 1,000 in 40 slots were assumed.
    assert view.expected is not None
    assert view.expected - rolling.truth.state.next_slot == pytest.approx(94, abs=3)
    assert "moved" in rolling.kinds("train-x") or "admitted" in rolling.kinds("train-x")
    rolling.do(ReviseJob(view.key, {"priority": "high"}))
    assert rolling.truth.state.engine.jobs[view.key].job.predicted is False


def test_progress_that_agrees_with_the_prediction_confirms_it(rolling: Lab) -> None:
    rolling.ask(plain("train-x", steps=400))
    rolling.wait_until_running("train-x")
    for done in range(10, 60, 10):
        rolling.reported("train-x", done, saves=True)
        rolling.slot()
    view = rolling.view("train-x")
    assert view.promise is not None
    assert "remeasured" not in rolling.kinds("train-x")


def test_a_time_limit_is_the_length_of_a_job_without_history(lab: Lab) -> None:
    lab.ask(plain("train-x", walltime="7min"))
    assert lab.view("train-x").predicted == (420.0, 0, 1.0)
    lab.teach()
    lab.ask(plain("train-y", walltime="7min"), plain("train-z", walltime="4min"))
    assert (lab.view("train-y").predicted or (0,))[0] == pytest.approx(5 * SLOT, rel=0.01)
    assert lab.view("train-z").predicted == (240.0, 3, 1.0)


def test_slots_beyond_the_first_prediction_are_paid(tmp_path: Path) -> None:
    """Otherwise a job of unknown length would run for the price of the first hour."""
    lab = Lab(tmp_path / "data", "rolling")
    lab.teach()
    lab.give("vision", 10_000)
    lab.give("speech", 100_000)
    lab.crowd(6)
    lab.ask(plain("train-x", utility={"kind": "constant", "value": 100}))
    while lab.view("train-x").covered < MICRO:
        lab.crowd(1)
    assert lab.view("train-x").overrun_slots == 0
    lab.crowd(8)
    view = lab.view("train-x")
    assert view.overrun_slots >= 7
    assert view.overrun > 0
    assert "beyond its predicted time" in (view.reason or {})["message"]
    resource = view.to_resource()
    assert "beyond its predicted time" in str(dict(describe_job(resource))["overrun"])
    notes = [row.note for row in lab.entries("vision") if row.job == view.key]
    assert notes[-1].startswith("beyond its predicted time, slot ")
    assert view.price is not None
    assert view.price < 10_000 * POINT
    lab.check()
    lab.store.close()


def test_only_a_service_predicts_lengths() -> None:
    [asked] = read_submissions([plain("a", tenant=None)], CLUSTER, tenant=None, runs=True)
    assert asked.spec.has_unknown_length
    with pytest.raises(InputError, match="only a live service predicts"):
        asked.spec.resolve(CLUSTER)
    for key, value in (("minibatches", 7), ("gradient", "1MB")):
        with pytest.raises(InputError, match="how fast it trains is missing"):
            read_submissions(
                [plain("a", tenant=None, **{key: value})], CLUSTER, tenant=None, runs=True
            )


def test_a_default_utility_follows_the_length(rolling: Lab) -> None:
    rolling.teach()
    rolling.ask(plain("train-x"), plain("train-y", priority="high"))
    jobs = [
        rolling.truth.state.engine.jobs[rolling.key(name)].job for name in ("train-x", "train-y")
    ]
    values = [job.utility.value for job in jobs]  # type: ignore[attr-defined]
    assert values == pytest.approx([5 / 60, 20 / 60], rel=0.01)


def test_a_report_of_a_job_without_a_time_measures_its_start_by_the_prediction(
    rolling: Lab,
) -> None:
    rolling.teach()  # 5 slots
    rolling.ask(plain("train-x", steps=100))
    job = rolling.truth.state.engine.jobs[rolling.key("train-x")].job
    placement = Placement((0,), (1,), (0,))
    half = stated_seconds(job, placement, 50 * MICRO, SLOT)
    assert half == pytest.approx(2.5 * SLOT, rel=0.01)


def test_without_history_a_prediction_doubles(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data", "fifo")
    lab.ask(plain("train-x"))
    lab.slot(50)
    predicted = lab.view("train-x").predicted
    assert predicted is not None
    assert predicted.length == pytest.approx(80 * SLOT, rel=0.05)  # 40 slots first, the horizon
    lab.store.close()


def test_a_revision_keeps_the_progress_that_is_counted_by_time(lab: Lab) -> None:
    lab.teach((8, 8, 8))
    lab.ask(plain("train-x"), plain("timed", steps=1, minibatch_time="8min"))
    lab.wait_until_running("train-x", "timed")
    lab.slot(4)
    for name in ("train-x", "timed"):
        before = lab.view(name)
        assert before.progress > 0.3
        lab.do(ReviseJob(before.key, {"priority": "high"}))
        after = lab.view(name)
        assert after.progress == before.progress
        if lab.choice.name == "rolling":
            assert after.expected == before.expected


def test_a_stated_time_ends_the_prediction(rolling: Lab) -> None:
    rolling.teach()
    rolling.ask(plain("train-x"))
    rolling.wait_until_running("train-x")
    assert rolling.view("train-x").to_resource().predicted is not None
    rolling.do(ReviseJob(rolling.key("train-x"), {"minibatch_time": "10min"}))
    view = rolling.view("train-x")
    assert view.to_resource().predicted is None
    assert view.promise is not None


def test_advice_tries_shorter_times_of_a_job_that_states_none(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data", "oasis")
    lab.teach()
    record = plain("train-x", by="4min", run={"command": ["train"], "from_options": True})
    lab.ask(record)
    assert lab.view("train-x").state == "refused"  # 5 minutes are predicted
    [fork] = lab.do(ForkEngine("vision/train-x", JobSpec.model_validate(record))).answers
    outlook = build_outlook(fork, record, waits=False, quoted=True)
    [change] = [change for change in outlook.changes if change.option == "--time"]
    assert change.option_before == "5min (predicted)"
    assert change.option_after is not None
    seconds = parse_duration(change.option_after).seconds
    assert 2 * SLOT < seconds <= 3 * SLOT  # the largest number of whole slots before the deadline
    advice = Advice(
        "time", change.key, change.before, change.after, change.change, "", None, None, None
    )
    advice = replace(advice, option="--time", option_after=change.option_after)
    command = f"shadowprice revise train-x --set time={change.option_after}"
    assert _describe_revision("train-x", advice) == command
    lab.ask(plain("train-y", by="4min", minibatch_time=change.option_after, steps=1))
    assert lab.view("train-y").promise is not None
    lab.store.close()


def test_a_job_of_unknown_length_is_abandoned_long_after_it_lost_its_worth(lab: Lab) -> None:
    lab.ask(plain("train-x", by="9 slots"))
    lab.wait_until_running("train-x")
    slots = 0
    while lab.view("train-x").state == "running":
        lab.slot()
        slots += 1
        assert slots < 60
    assert slots >= 18  # three times as long as it was worth something
    assert lab.view("train-x").state == "failed"


def test_what_if_runs_simulate_measured_and_predicted_lengths(rolling: Lab) -> None:
    rolling.teach()
    rolling.ask(plain("train-x"), plain("train-y", steps=10))
    with rolling.store.reading() as connection:
        records = {record["name"]: record for record in workload(connection, 0, 2**62)}
    seconds = {
        name: parse_duration(record["minibatch_time"]).seconds for name, record in records.items()
    }
    assert seconds["vision/train-a0"] == pytest.approx(2 * SLOT, rel=0.01)
    assert seconds["vision/train-x"] == pytest.approx(5 * SLOT, rel=0.01)
    assert seconds["vision/train-y"] == pytest.approx(5 * SLOT / 10, rel=0.01)

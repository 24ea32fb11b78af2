"""Jobs that state no length: predictions, promises, learning and payments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shadowprice.cli import live
from shadowprice.cli.commands.submit import describe_job
from shadowprice.core.amounts import parse_duration
from shadowprice.core.budget import POINT
from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO
from shadowprice.core.schedule import Placement
from shadowprice.core.specs import JobSpec
from shadowprice.engine.snapshot import snapshot
from shadowprice.rest import Job, JobDetail
from shadowprice.results.advice import Advice
from shadowprice.service.clock import SECOND, format_rfc3339
from shadowprice.service.queries.outlook import _describe_revision, build_outlook
from shadowprice.service.queries.whatif import workload
from shadowprice.service.state.operations import fork_engine, quote_job, revise_job
from shadowprice.service.state.start_ups import stated_seconds
from shadowprice.service.state.submission import read_submissions
from tests.support.budget_bench import OverrunBench
from tests.support.simulated_hours import CLUSTER, SLOT

DEFAULT = (40.0 * SLOT, 0, None)
"""Without history: an hour, but at most the planning horizon of 40 slots."""


def plain(name: str, tenant: str = "vision", **changes: Any) -> dict[str, Any]:
    """Return a command without a time."""
    run = {"command": ["python", "train.py"]}
    return {"name": name, "tenant": tenant, "worker": {"gpu": 1}, "run": run, **changes}


class PredictionBench(OverrunBench):
    """A store whose commands run for a given number of slots."""

    def run(self, name: str, slots: int, **changes: Any) -> None:
        """Submit a command, and let it end at the end of its last slot."""
        self.submit_records(plain(name, **changes))
        assert self.view(name).state.open
        self.wait_until_running(name)
        self.advance(slots - 1)
        self.clock.advance(SLOT * 0.999)
        self.report_end(name)
        self.advance()
        assert self.view(name).state == "finished"

    def wait_until_running(self, *names: str) -> None:
        for _ in range(20):
            if {self.view(name).state for name in names} == {"running"}:
                return
            self.advance()
        raise AssertionError([self.view(name).reason for name in names])

    def run_examples(self, lengths: tuple[int, ...] = (2, 3, 5), **changes: Any) -> None:
        for index, slots in enumerate(lengths):
            self.run(f"train-a{index}", slots, **changes)


@pytest.fixture(params=["rolling", "oasis", "fifo"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PredictionBench]:
    result = PredictionBench(tmp_path / "data", request.param)
    yield result
    result.check_accounts()
    result.store.close()


@pytest.fixture
def rolling(tmp_path: Path) -> Iterator[PredictionBench]:
    result = PredictionBench(tmp_path / "data", "rolling")
    yield result
    result.check_accounts()
    result.store.close()


def test_a_prediction_is_the_upper_quartile_of_the_tenants_similar_jobs(
    bench: PredictionBench,
) -> None:
    bench.submit_records(plain("train-x1"))
    assert bench.view("train-x1").predicted == DEFAULT
    bench.run_examples()
    bench.submit_records(plain("train-x2"), plain("train-x3", tenant="speech"))
    length, jobs, probability = bench.view("train-x2").predicted or (0, 0, 0)
    assert length == pytest.approx(5 * SLOT, rel=0.01)
    assert (jobs, probability) == (3, 3 / 4)
    assert bench.view("train-x3").predicted == DEFAULT


def test_a_predicted_completion_is_expected_but_not_promised(rolling: PredictionBench) -> None:
    rolling.run_examples()
    rolling.submit_records(plain("train-x2"))
    view, slot = rolling.view("train-x2"), rolling.durable.state.next_slot
    assert (view.promise, view.first_promise, view.expected) == (None, None, slot + 4)
    assert rolling.event_kinds("train-x2")[:2] == ["submitted", "admitted"]
    assert "promised" not in rolling.history_lines("train-x2")[1]
    resource = view.to_resource()
    assert resource.promise is None
    assert resource.predicted is not None
    assert resource.predicted.jobs == 3
    [submission] = read_submissions([plain("train-x4")], CLUSTER, tenant=None, runs=True)
    [quote] = rolling.commit(quote_job(submission)).answers
    shown = quote.to_resource("train-x4", rolling.durable.state.calendar, names=True)
    assert (shown.promise, shown.completion) == (None, None)
    assert shown.expected is not None
    assert shown.predicted is not None
    assert shown.predicted.probability == 3 / 4


def test_a_job_that_outlasts_its_prediction_runs_on_and_is_planned_longer(
    bench: PredictionBench,
) -> None:
    bench.run_examples((2, 2, 2, 9))
    bench.submit_records(plain("train-x"))
    bench.wait_until_running("train-x")
    lengths = []
    for _ in range(20):
        assert bench.view("train-x").state == "running"
        bench.advance()
        predicted = bench.view("train-x").predicted
        assert predicted is not None
        lengths.append(round(predicted.length / SLOT))
    # Three quarters of 2, 2, 2, 9; then of the longer one; then twice what it had run.
    assert sorted(set(lengths)) == [2, 9, 18, 36]
    lines = [line for line in bench.history_lines("train-x") if "longer than predicted" in line]
    assert len(lines) == 3
    assert lines[0].endswith("by 1 similar job that ran longer")
    assert lines[1].endswith("no similar job ran longer")
    bench.report_end("train-x")
    bench.advance()
    assert bench.view("train-x").state == "finished"
    length = bench.view("train-x").length
    assert length is not None
    assert length[0] == pytest.approx(20 * SLOT, rel=0.1)


def _state(bench: PredictionBench) -> dict[str, Any]:
    """Return the engine's state, without the policy's, whose serialization differs."""
    state = dict(snapshot(bench.durable.state.engine))
    del state["policy_state"]
    return state


def test_a_restart_forgets_no_length(bench: PredictionBench) -> None:
    bench.run_examples()
    bench.submit_records(plain("train-x"))
    bench.wait_until_running("train-x")
    bench.advance(6)
    before, state = bench.view("train-x"), _state(bench)
    assert before.predicted is not None
    assert before.predicted.length > 9 * SLOT
    bench.recover()
    assert bench.view("train-x") == before
    assert _state(bench) == state
    bench.submit_records(plain("train-y"))
    predicted = bench.view("train-y").predicted
    assert predicted is not None
    assert predicted.length == pytest.approx(5 * SLOT, rel=0.01)


def test_measured_progress_replaces_the_prediction_by_a_promise(rolling: PredictionBench) -> None:
    rolling.submit_records(plain("train-x", steps=1000))
    rolling.wait_until_running("train-x")
    for done in range(10, 70, 10):
        rolling.report_saved_progress("train-x", done, saves=True)
        rolling.advance()
    view = rolling.view("train-x")
    assert view.measured == (1,)
    assert view.to_resource().predicted is None
    assert view.promise is not None
    # 10 steps a slot, where 1,000 in 40 slots were assumed.
    assert view.expected is not None
    assert view.expected - rolling.durable.state.next_slot == pytest.approx(94, abs=3)
    assert "moved" in rolling.event_kinds("train-x") or "admitted" in rolling.event_kinds("train-x")
    rolling.commit(revise_job(view.key, {"priority": "high"}))
    assert rolling.durable.state.engine.jobs[view.key].job.predicted is False


def test_progress_that_agrees_with_the_prediction_confirms_it(rolling: PredictionBench) -> None:
    rolling.submit_records(plain("train-x", steps=400))
    rolling.wait_until_running("train-x")
    for done in range(10, 60, 10):
        rolling.report_saved_progress("train-x", done, saves=True)
        rolling.advance()
    view = rolling.view("train-x")
    assert view.promise is not None
    assert "remeasured" not in rolling.event_kinds("train-x")


def test_a_time_limit_is_the_length_of_a_job_without_history(bench: PredictionBench) -> None:
    bench.submit_records(plain("train-x", walltime="7min"))
    assert bench.view("train-x").predicted == (420.0, 0, 1.0)
    bench.run_examples()
    bench.submit_records(plain("train-y", walltime="7min"), plain("train-z", walltime="4min"))
    assert (bench.view("train-y").predicted or (0,))[0] == pytest.approx(5 * SLOT, rel=0.01)
    assert bench.view("train-z").predicted == (240.0, 3, 1.0)


def test_slots_beyond_the_first_prediction_are_paid(tmp_path: Path) -> None:
    """Otherwise a job of unknown length would run for the price of the first hour."""
    bench = PredictionBench(tmp_path / "data", "rolling")
    bench.run_examples()
    bench.set_budget("vision", 10_000)
    bench.set_budget("speech", 100_000)
    bench.run_busy_slots(6)
    bench.submit_records(plain("train-x", utility={"kind": "constant", "value": 100}))
    while bench.view("train-x").covered < MICRO:
        bench.run_busy_slots(1)
    assert bench.view("train-x").overrun_slots == 0
    bench.run_busy_slots(8)
    view = bench.view("train-x")
    assert view.overrun_slots >= 7
    assert view.overrun > 0
    assert "beyond its predicted time" in (view.reason or {})["message"]
    resource = view.to_resource()
    assert "beyond its predicted time" in str(dict(describe_job(resource))["overrun"])
    notes = [row.note for row in bench.entries("vision") if row.job == view.key]
    assert notes[-1].startswith("beyond its predicted time, slot ")
    assert view.price is not None
    assert view.price < 10_000 * POINT
    bench.check_accounts()
    bench.store.close()


def test_only_a_service_predicts_lengths() -> None:
    [submission] = read_submissions([plain("a", tenant=None)], CLUSTER, tenant=None, runs=True)
    assert submission.spec.has_unknown_length
    with pytest.raises(InputError, match="only a live service predicts"):
        submission.spec.resolve(CLUSTER)
    for key, value in (("minibatches", 7), ("gradient", "1MB")):
        with pytest.raises(InputError, match="how fast it trains is missing"):
            read_submissions(
                [plain("a", tenant=None, **{key: value})], CLUSTER, tenant=None, runs=True
            )


def test_a_default_utility_follows_the_length(rolling: PredictionBench) -> None:
    rolling.run_examples()
    rolling.submit_records(plain("train-x"), plain("train-y", priority="high"))
    jobs = [
        rolling.durable.state.engine.jobs[rolling.job_key(name)].job
        for name in ("train-x", "train-y")
    ]
    values = [job.utility.value for job in jobs]  # type: ignore[attr-defined]
    assert values == pytest.approx([5 / 60, 20 / 60], rel=0.01)


def test_a_report_of_a_job_without_a_time_measures_its_start_by_the_prediction(
    rolling: PredictionBench,
) -> None:
    rolling.run_examples()  # 5 slots
    rolling.submit_records(plain("train-x", steps=100))
    job = rolling.durable.state.engine.jobs[rolling.job_key("train-x")].job
    placement = Placement((0,), (1,), (0,))
    half = stated_seconds(job, placement, 50 * MICRO, SLOT)
    assert half == pytest.approx(2.5 * SLOT, rel=0.01)


def test_without_history_a_prediction_doubles(tmp_path: Path) -> None:
    bench = PredictionBench(tmp_path / "data", "fifo")
    bench.submit_records(plain("train-x"))
    bench.advance(50)
    predicted = bench.view("train-x").predicted
    assert predicted is not None
    assert predicted.length == pytest.approx(80 * SLOT, rel=0.05)  # 40 slots first, the horizon
    bench.store.close()


def test_a_revision_keeps_the_progress_that_is_counted_by_time(bench: PredictionBench) -> None:
    bench.run_examples((8, 8, 8))
    bench.submit_records(plain("train-x"), plain("timed", steps=1, minibatch_time="8min"))
    bench.wait_until_running("train-x", "timed")
    bench.advance(4)
    for name in ("train-x", "timed"):
        before = bench.view(name)
        assert before.progress > 0.3
        bench.commit(revise_job(before.key, {"priority": "high"}))
        after = bench.view(name)
        assert after.progress == before.progress
        if bench.choice.name == "rolling":
            assert after.expected == before.expected


def test_a_stated_time_ends_the_prediction(rolling: PredictionBench) -> None:
    rolling.run_examples()
    rolling.submit_records(plain("train-x"))
    rolling.wait_until_running("train-x")
    assert rolling.view("train-x").to_resource().predicted is not None
    rolling.commit(revise_job(rolling.job_key("train-x"), {"minibatch_time": "10min"}))
    view = rolling.view("train-x")
    assert view.to_resource().predicted is None
    assert view.promise is not None


def test_advice_tries_shorter_times_of_a_job_that_states_none(tmp_path: Path) -> None:
    bench = PredictionBench(tmp_path / "data", "oasis")
    bench.run_examples()
    record = plain("train-x", by="4min", run={"command": ["train"], "from_options": True})
    bench.submit_records(record)
    assert bench.view("train-x").state == "refused"  # 5 minutes are predicted
    [fork] = bench.commit(fork_engine("vision/train-x", JobSpec.model_validate(record))).answers
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
    bench.submit_records(plain("train-y", by="4min", minibatch_time=change.option_after, steps=1))
    assert bench.view("train-y").promise is not None
    bench.store.close()


@pytest.mark.parametrize(
    ("by", "deadline"),
    [
        ("4min", "4min after its submission"),
        ("30 slots", "30 slots after its submission"),
        ("18:00", "18:00"),
        ("2199-02-03T14:00:00Z", live.with_local_times("2199-02-03T14:00:00Z")),
    ],
)
def test_the_status_of_a_job_has_its_deadline(
    rolling: PredictionBench, by: str, deadline: str
) -> None:
    rolling.submit_records(plain("train-x", by="20min", minibatch_time="1min", steps=1))
    rolling.commit(revise_job("vision/train-x", {"by": by}))
    view = rolling.view("train-x").to_resource()
    spec = rolling.durable.state.specs["vision/train-x"]
    extra = dict.fromkeys(JobDetail.model_fields.keys() - Job.model_fields.keys())
    detail = JobDetail.model_construct(**view.__dict__ | extra | {"spec": spec})
    assert dict(describe_job(detail))["deadline"] == deadline


def test_a_job_of_unknown_length_is_abandoned_long_after_it_lost_its_worth(
    bench: PredictionBench,
) -> None:
    bench.submit_records(plain("train-x", by="9 slots"))
    bench.wait_until_running("train-x")
    slots = 0
    while bench.view("train-x").state == "running":
        bench.advance()
        slots += 1
        assert slots < 60
    assert slots >= 18  # three times as long as it was worth something
    assert bench.view("train-x").state == "failed"


def test_what_if_runs_simulate_measured_and_predicted_lengths(rolling: PredictionBench) -> None:
    rolling.run_examples()
    rolling.submit_records(plain("train-x"), plain("train-y", steps=10))
    with rolling.store.reading() as connection:
        records = {record["name"]: record for record in workload(connection, 0, 2**62)}
    seconds = {
        name: parse_duration(record["minibatch_time"]).seconds for name, record in records.items()
    }
    assert seconds["vision/train-a0"] == pytest.approx(2 * SLOT, rel=0.01)
    assert seconds["vision/train-x"] == pytest.approx(5 * SLOT, rel=0.01)
    assert seconds["vision/train-y"] == pytest.approx(5 * SLOT / 10, rel=0.01)


def test_the_start_of_a_waiting_job_is_predicted_from_the_waits_of_similar_jobs(
    rolling: PredictionBench,
) -> None:
    def fill_cluster(name: str) -> list[str]:
        names = [f"{name}-{server}" for server in range(3)]
        records = [plain(each, tenant="speech", worker={"gpu": 4}) for each in names]
        rolling.submit_records(*records)
        rolling.wait_until_running(*names)
        return names

    for index, slots in enumerate((1, 2, 4)):
        full = fill_cluster(f"full{index}")
        submitted = rolling.clock.wall()
        rolling.submit_records(plain(f"train-a{index}"))
        rolling.advance(slots - 1)
        for name in full:
            rolling.report_end(name)
        rolling.wait_until_running(f"train-a{index}")
        assert rolling.clock.wall() - submitted == pytest.approx(slots * SLOT * SECOND)
        rolling.report_end(f"train-a{index}")
        rolling.advance()
    fill_cluster("last")
    submitted = rolling.clock.wall()
    record = plain("train-x")
    rolling.submit_records(record)
    rolling.recover()
    starts: list[tuple[float, float, int] | None] = []
    for _ in range(6):
        fork = fork_engine("vision/train-x", JobSpec.model_validate(record))
        outlook = build_outlook(rolling.commit(fork).answers[0], record, waits=True)
        start = outlook.predicted_start
        [text] = [line for line in outlook.lines if "probability" in line] or [""]
        if start is None:
            assert not text
            starts.append(None)
        else:
            by = int(start.by.timestamp()) * SECOND
            assert text == (
                f"starts by {format_rfc3339(by)} with a probability of {start.probability:.0%}, "
                f"judging by {start.jobs} similar jobs that waited longer"
            )
            wait = (by - submitted) / SECOND / SLOT
            starts.append((round(wait, 1), round(start.probability, 2), start.jobs))
        rolling.advance()
    # The upper quartile of 1, 2 and 4 slots; then that of the waits which are longer.
    assert starts == [(4, 0.75, 3), (4, 0.67, 2), (4, 0.5, 1), (4, 0.5, 1), None, None]

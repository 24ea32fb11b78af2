"""Predicted lengths worked out by hand, and the option `--lengths` of commands and functions."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists

import shadowprice
from shadowprice.cli.main import main
from shadowprice.core.cluster import Cluster, Role, build_cluster
from shadowprice.core.errors import EventError, InputError
from shadowprice.core.events import JobsArrived, SlotBegan, SlotEnded
from shadowprice.core.job import Job, StepModel
from shadowprice.core.length_history import LengthHistory, LengthPrediction, kind_of_job, name_stem
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.lengths import HiddenLengths, parse_lengths
from shadowprice.simulator.source import ScenarioSource
from tests.support.workloads import DIMENSIONS, make_job

CLUSTER: dict[str, Any] = {
    "slot": "10min",
    "horizon": 40,
    "servers": [{"name": "gpu", "capacity": {"gpu": 1}}],
}


def record(name: str, arrival: int, slots: int, **more: Any) -> dict[str, Any]:
    """Return a job that runs for a number of slots on the whole cluster."""
    return {
        "name": name,
        "tenant": "vision",
        "arrival": f"{arrival} slots",
        "chunks": 1,
        "minibatches": slots,
        "minibatch_time": "10min",
        "worker": {"gpu": 1},
        **more,
    }


def pool() -> Cluster:
    return build_cluster(
        slot_seconds=Fraction(600),
        horizon=100,
        servers=[("gpu", Role.ANY, {"gpu": 4000})],
        dimensions=DIMENSIONS,
    )


def gang(
    cluster: Cluster, slots: int, name: str = "train-1", tenant: str = "a", width: int = 1
) -> Job:
    """Return a job that runs for some slots with its only worker count."""
    return make_job(
        cluster,
        name,
        tenant=tenant,
        epochs=slots,
        chunks=width,
        minibatches=10,
        speed=StepModel(Fraction(60)),
        worker_range=(width, width),
        worker_amounts={"gpu": 1000},
        ps_amounts=None,
    )


def test_a_prediction_is_the_upper_quartile_of_the_closest_similar_jobs() -> None:
    on = pool()
    history = LengthHistory(6.0)

    def add(job: Job, slots: int) -> None:
        history.add(kind_of_job(job, on), slots)

    def predict(job: Job) -> LengthPrediction:
        return history.predict(kind_of_job(job, on))

    new = gang(on, 50)
    assert predict(new) == (6.0, 0, None)  # the default
    for slots in (10, 2):
        add(gang(on, slots), slots)
    assert predict(new).length == 6.0  # two jobs are too few
    add(gang(on, 30, width=2), 30)
    assert predict(new) == (30.0, 3, 3 / 4)  # of the tenant: 2, 10, 30
    add(gang(on, 4, "eval-7"), 4)
    assert predict(new).length == 10.0  # of the same GPUs: 2, 4, 10
    for slots in (3, 20):
        add(gang(on, slots), slots)
    assert predict(new) == (10.0, 4, 3 / 5)  # of the same name: 2, 3, 10, 20
    assert predict(gang(on, 1, "eval-8")).length == 10.0  # of the same GPUs: 2, 3, 4, 10, 20
    assert predict(gang(on, 1, tenant="b")).length == 6.0


def test_a_prediction_grows_with_what_was_attained() -> None:
    on = pool()
    history = LengthHistory(6.0)
    for slots in (2, 3, 10, 20):
        history.add(kind_of_job(gang(on, slots), on), slots)
    kind, other = kind_of_job(gang(on, 50), on), kind_of_job(gang(on, 1, tenant="b"), on)
    assert history.predict(kind, 3.0) == (20.0, 2, 2 / 3)  # of the longer ones: 10, 20
    assert history.predict(kind, 20.0) == (40.0, 0, None)  # none is longer: twice as long
    assert history.predict(other, 1.0).length == 6.0
    assert history.predict(other, 6.0).length == 12.0


@given(lengths=lists(floats(0.1, 100.0), min_size=4, max_size=40, unique=True))
def test_the_stated_probability_is_that_of_a_job_like_the_others(lengths: list[float]) -> None:
    """Any of the jobs may be the new one: those that end by the prediction are at least as many."""
    on, within = pool(), 0.0
    kind = kind_of_job(gang(on, 50), on)
    for index, length in enumerate(lengths):
        history = LengthHistory(6.0)
        for other in lengths[:index] + lengths[index + 1 :]:
            history.add(kind, other)
        prediction = history.predict(kind)
        assert prediction.probability is not None
        within += (length <= prediction.length) - prediction.probability
    assert within == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("train-x7k2mf", "train"),
        ("application_1506638472019_10258", "application"),
        ("resnet50", "resnet50"),
        ("bert-large", "bert-large"),
        ("job-3", "job"),
        ("-3", "-3"),
    ],
)
def test_names_without_their_generated_parts(name: str, stem: str) -> None:
    assert name_stem(name) == stem


def test_predicted_length_grows_until_the_job_ends() -> None:
    """The default is 6 slots; the job of 20 slots grows to 12, to 24, and ends after 20."""
    on = pool()
    hidden = HiddenLengths(on, {}, shows_limits=False)
    true = replace(gang(on, 20), value_per_unit=0.5, utility=Constant(10.0))
    (stated,) = hidden.describe(JobsArrived(0, (true,))).jobs
    assert (stated.required, stated.work, stated.utility) == (6, 60, Constant(3.0))
    revised = {}
    for slot in range(20):
        for job_ in hidden.revise(SlotEnded(slot, {true.name: 1})).lengths.values():
            revised[slot] = job_
    assert {slot: job_.required for slot, job_ in revised.items()} == {5: 12, 11: 24, 19: 20}
    assert revised[11].utility == Constant(12.0)
    assert revised[19] is true


def test_policy_input_is_independent_of_true_work() -> None:
    cluster = {**CLUSTER, "tenants": [{"name": "vision"}]}
    seen = []
    for slots in (1, 7, 100):
        for curve in (False, True):
            entry = record("train-1", 0, slots, walltime="9h", priority="high")
            if curve:
                del entry["minibatch_time"]
                entry |= {"throughput": {1: 0.01}, "minibatches": slots * 6}
            scenario, _ = ScenarioSource(cluster=cluster, jobs=[entry]).scenario()
            hidden = HiddenLengths(scenario.cluster, {}, shows_limits=False)
            seen.append(hidden.describe(JobsArrived(0, tuple(scenario.jobs))).jobs[0].record())
    assert seen[0] == seen[2] == seen[4]
    assert seen[1] == seen[3] == seen[5]
    assert seen[0]["walltime"] is None


def test_srtf_uses_the_time_limit_as_length() -> None:
    """The job with the longer limit waits, although it is shorter."""
    jobs = [
        record("now", 0, 2, walltime="20min"),
        record("long", 1, 4, walltime="50min"),
        record("short", 1, 1, walltime="100min"),
    ]
    expected = {"known": [1, 6, 2], "limits": [1, 5, 6]}
    for lengths, completions in expected.items():
        run = shadowprice.simulate(CLUSTER, jobs, "srtf", lengths=lengths)
        assert run.jobs["completion"].to_list() == completions
        assert run.info["options"].get("lengths", "known") == lengths


def test_srtf_learns_lengths_from_jobs_that_finished() -> None:
    """Three evaluations of one slot make a fourth precede a job of a tenant without history."""
    jobs = [record(f"eval-{index}", index, 1) for index in range(3)]
    jobs += [record("block", 3, 2), record("train-0", 4, 3), record("eval-3", 4, 1)]
    late = {"arrival": "4 slots", "tenant": "speech"}
    run = shadowprice.simulate(CLUSTER, jobs, "srtf", lengths="unknown")
    done = dict(zip(run.jobs["job"], run.jobs["completion"], strict=True))
    # Without a tenant's longer jobs, train-0 looks like an evaluation. After a slot it looks like
    # block, which took two, and after two slots like a job of four. Then eval-3 precedes it.
    assert (done["block"], done["train-0"], done["eval-3"]) == (4, 8, 7)
    strange = [*jobs[:4], jobs[4] | late, jobs[5]]
    run = shadowprice.simulate(CLUSTER, strange, "srtf", lengths="unknown")
    done = dict(zip(run.jobs["job"], run.jobs["completion"], strict=True))
    assert (done["block"], done["eval-3"], done["train-0"]) == (4, 5, 8)


def test_jobs_earn_the_utility_of_their_true_work() -> None:
    """Without a utility a job is worth its GPU-hours, of which the policy sees a prediction."""
    jobs = [record("train-1", 0, 12)]
    known = shadowprice.simulate(CLUSTER, jobs, "rolling")
    unknown = shadowprice.simulate(CLUSTER, jobs, "rolling", lengths="unknown")
    assert known.jobs["utility"].to_list() == unknown.jobs["utility"].to_list() == [2.0]
    assert unknown.jobs["required"].to_list() == [12]


@pytest.mark.parametrize("restart", ["0s", "2min", "10min"])
def test_rolling_keeps_a_job_whose_prediction_is_too_long(restart: str) -> None:
    # All are predicted to take an hour. The first two could not end in time if that were true; the
    # second ends in time, because it is shorter. The third is abandoned when its deadline is over.
    jobs = [
        record("late", 0, 3, utility={"kind": "deadline", "value": 5, "by": "20min"}),
        record("short", 0, 1, utility={"kind": "deadline", "value": 50, "by": "20min"}),
        record("last", 0, 1, utility={"kind": "constant", "value": 0.1}),
    ]
    cluster = {**CLUSTER, "restart": restart}
    result = shadowprice.simulate(cluster, jobs, policy="rolling", lengths="unknown")
    outcomes = {row["job"]: (row["outcome"], row["utility"]) for row in result.jobs.to_dicts()}
    assert outcomes["short"] == ("finished", 50.0)
    assert outcomes["last"] == ("finished", 0.1)
    assert outcomes["late"][0] == "dropped"


def test_compare_shows_several_length_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [record("a", 0, 2, walltime="1h"), record("b", 0, 9, walltime="2h")]
    compared = shadowprice.compare(CLUSTER, jobs, ("fifo", "srtf"), lengths="known,limits,unknown")
    labels = ["fifo", "srtf"]
    labels += [f"{name} lengths={mode}" for mode in ("limits", "unknown") for name in labels]
    assert list(compared.runs) == labels
    (tmp_path / "c.json").write_text(json.dumps(CLUSTER))
    (tmp_path / "j.yaml").write_text(json.dumps({"jobs": jobs}))
    files = ["-c", str(tmp_path / "c.json"), "-j", str(tmp_path / "j.yaml"), "-q"]
    out = str(tmp_path / "out")
    options = ["-p", "fifo,srtf", "--lengths", "known,unknown", "--seeds", "2", "--out", out]
    assert main(["compare", *files, *options]) == 0
    capsys.readouterr()
    run = json.loads((tmp_path / "out" / "srtf-lengths=unknown" / "run.json").read_text())
    assert (run["policy"], run["options"]["lengths"]) == ("srtf lengths=unknown", "unknown")
    document = json.loads((tmp_path / "out" / "srtf" / "run.json").read_text())
    assert "lengths" not in document["options"]
    assert main(["simulate", *files, "-p", "fifo", "--lengths", "unknown"]) == 0
    assert "fifo lengths=unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ("guessed", "--lengths: unknown value 'guessed'; write one or several of known, limits"),
        (",", "--lengths: is empty"),
        ("known,known", "--lengths: 'known' is repeated"),
    ],
)
def test_invalid_length_sources_are_refused(lengths: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_lengths(lengths)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": "known,unknown"}, "lengths: expected one value; use compare"),
        (
            {"lengths": "limits"},
            "lengths: 'limits' needs jobs with a time limit, but none has one; write 'unk",
        ),
        ({"lengths": "unknown", "advice_seconds": 1.0}, "advice_seconds: needs known lengths"),
        ({"lengths": 3}, "lengths: 3 is not text"),
        ({"lengths": "unknown", "policy": "optimum"}, "policy optimum: needs to know all jobs"),
    ],
)
def test_policies_that_need_other_lengths_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        shadowprice.simulate(CLUSTER, [record("a", 0, 2)], **{"policy": "fifo", **arguments})
    assert message in str(error.value)


def test_trace_time_limits_are_work_at_the_requested_workers(tmp_path: Path) -> None:
    rows = ["submit,start,end,gpus,time limit,user"]
    limits = {0: "01:00:00", 1: "04:00:00", 2: "00:30:00"}
    rows += [
        f"2024-01-01 0{index}:00:00,2024-01-01 0{index}:00:00,"
        f"2024-01-01 0{index + 1}:00:00,{index + 1},"
        f"{limits.get(index, '')},ada"
        for index in range(4)
    ]
    (tmp_path / "log.csv").write_text("\n".join([*rows, ""]))
    scenario, _ = ScenarioSource(trace=f"csv:{tmp_path}/log.csv").scenario()
    # Worker-slots of 20 minutes, rounded up: 3 x 1, 12 x 2 and 1.5 x 3.
    assert list(scenario.work_limits.values()) == [3, 24, 5]
    assert [job.name for job in scenario.jobs[:3]] == list(scenario.work_limits)
    # Every job ran for an hour. Its mini-batches are rounded to whole ones.
    assert all(0 <= job.required - 3 * (index + 1) <= 1 for index, job in enumerate(scenario.jobs))
    assert len(scenario.with_lengths("limits").jobs) == 4


def test_a_new_length_changes_nothing_else() -> None:
    on = pool()
    engine = Engine(on, make_policy("fifo", PolicyContext(on), {}))
    job = gang(on, 4)
    engine.handle(JobsArrived(0, (job,)))
    engine.handle(SlotBegan(0))
    wrong = [
        (replace(job, required=9, tenant="b"), "other fields differ too: tenant"),
        (replace(job, required=9, name="other"), "has a new length in slot 0 without running"),
    ]
    for changed, message in wrong:
        with pytest.raises(EventError, match=message):
            engine.handle(SlotEnded(0, {job.name: 1}, lengths={job.name: changed}))
    engine.handle(SlotEnded(0, {job.name: 1}, lengths={job.name: replace(job, required=9)}))
    assert engine.open_jobs[job.name].remaining == 8


def test_huge_time_limit_is_accepted(tmp_path: Path) -> None:
    """Progress units of a million hours at a high rate exceed what kernels count."""
    servers = {"slot": "1h", "servers": [{"name": "g", "capacity": {"gpu": 1}}]}
    huge = {
        "name": "a-1",
        "steps": 4_000_000,
        "throughput": {1: 100_000},
        "worker": {"gpu": 1},
        "walltime": "1000000h",
    }
    for policy in ("srtf", "rolling"):
        result = shadowprice.simulate(servers, [huge], policy, lengths="limits")
        assert result.summary["finished"] == 1


def test_no_guarantee_is_claimed_with_hidden_lengths() -> None:
    jobs = [record("a-1", 0, 30), record("b-1", 1, 1)]
    known = shadowprice.simulate(CLUSTER, jobs, "oasis", until="40 slots")
    hidden = shadowprice.simulate(CLUSTER, jobs, "oasis", until="40 slots", lengths="unknown")
    assert "guarantee" in known.info
    assert "guarantee" not in hidden.info


def test_a_policy_that_must_know_all_jobs_fails_before_the_first_run() -> None:
    with pytest.raises(InputError, match="known lengths"):
        shadowprice.compare(
            CLUSTER, [record("a", 0, 2)], ["fifo", "optimum"], lengths="known,unknown"
        )

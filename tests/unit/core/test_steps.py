"""``steps``, all mini-batches of a job, against the papers' three keys; rates with a unit."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.advice.candidate_changes import JobChange, candidate_changes
from shadowprice.advice.changes import JobVariants
from shadowprice.core.amounts import parse_rate
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO, Job
from shadowprice.core.specs import ClusterSpec, JobSpec, validate
from shadowprice.core.utility import utility_value
from shadowprice.inputs.families import with_family
from shadowprice.inputs.files import read_jobs
from shadowprice.service.state.submission import merge_changes
from tests.support.examples import example_count


def cluster(slot: str = "20min") -> Cluster:
    record = {"slot": slot, "horizon": 50, "servers": [{"name": "g", "capacity": {"gpu": 64}}]}
    spec, faults = validate(ClusterSpec, record, "c")
    assert spec is not None, faults
    return spec.resolve("c")


CLUSTER = cluster()
BASE: dict[str, Any] = {"name": "j", "worker": {"gpu": 1}}
LINEAR = {"minibatch_time": "1s"}
CURVE = {"throughput": {"1": 2.0, "4": 6.5}}


def resolve(record: dict[str, Any], cluster: Cluster = CLUSTER) -> Job:
    spec, faults = validate(JobSpec, {**BASE, **record}, "job")
    assert spec is not None, faults
    return spec.resolve(cluster)


def fault(record: dict[str, Any]) -> str:
    spec, faults = validate(JobSpec, {**BASE, **record}, "job")
    assert spec is None
    return "\n".join(map(str, faults))


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(
    epochs=st.integers(1, 50),
    chunks=st.integers(4, 20),
    minibatches=st.integers(1, 500),
    speed=st.sampled_from([LINEAR, CURVE, {**LINEAR, "restart": "20s"}]),
)
def test_steps_are_the_product_of_the_papers_keys(
    epochs: int, chunks: int, minibatches: int, speed: dict[str, Any]
) -> None:
    papers = resolve({"epochs": epochs, "chunks": chunks, "minibatches": minibatches, **speed})
    total = epochs * chunks * minibatches
    steps = resolve({"steps": total, "workers": {"max": chunks}, **speed})
    assert steps.work == total
    factors = ("epochs", "chunks", "minibatches")
    same = {key: value for key, value in steps.record().items() if key not in factors}
    assert same == {key: value for key, value in papers.record().items() if key not in factors}


@settings(deadline=None, derandomize=True)
@given(steps=st.integers(1, 10**9))
def test_no_number_of_steps_is_rounded(steps: int) -> None:
    curve = resolve({"steps": steps, "throughput": {"1": 1e6}})
    assert (curve.work, curve.required) == (steps, steps * MICRO)
    # A worker computes 1,200 mini-batches of 1 s in a slot of 20 minutes.
    linear = resolve({"steps": steps, "minibatch_time": "1s"})
    assert linear.required == -(-steps // 1200)


@pytest.mark.parametrize(
    ("record", "counts"),
    [
        (LINEAR, [1]),
        ({**LINEAR, "workers": {"max": 3}}, [1, 2, 3]),
        ({**LINEAR, "workers": {"min": 2, "max": 3}}, [2, 3]),
        (CURVE, [1, 4]),
        ({**CURVE, "workers": {"min": 2}}, [4]),
        ({**CURVE, "workers": {"max": 3}}, [1]),
        ({**CURVE, "workers": {"max": 9}}, [1, 4]),
    ],
)
def test_the_maximum_of_workers_is_stated_or_measured_or_one(
    record: dict[str, Any], counts: list[int]
) -> None:
    assert resolve({"steps": 2, **record}).worker_counts.tolist() == counts


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"steps": 9, "chunks": 2, "minibatches": 3, **LINEAR},
            "`steps` takes the place of `chunks`, `minibatches`, and counts all mini-batches",
        ),
        ({"steps": 9, "epochs": 1, **LINEAR}, "remove `epochs`"),
        ({"steps": 0, **LINEAR}, "job: steps: must be greater than 0, got 0"),
        ({"steps": 2.5, **LINEAR}, "job: steps: expected an integer, got 2.5"),
        ({"steps": True, **LINEAR}, "`steps` is given a boolean"),
        ({"steps": 9, "workers": {"min": 2}, **LINEAR}, "maximum of 1; give workers.max"),
        ({"chunks": 2, "workers": {"min": 3}, **LINEAR}, "chunks 2; state the work as `steps`"),
        ({"chunks": 2, **CURVE}, "minibatches, which are those of one chunk"),
        ({"step": 9, **LINEAR}, "job: step: unknown key; did you mean 'steps'?"),
        (
            {"steps": 9, "tasks": [{"duration": {"kind": "exponential", "mean": "9s"}}]},
            "a bag of `tasks` does not train; leave out steps",
        ),
    ],
)
def test_errors_name_the_keys_and_what_to_remove(record: dict[str, Any], message: str) -> None:
    assert message in fault(record)


def test_job_files_write_steps_with_separators(tmp_path: Path) -> None:
    record = {**BASE, "steps": 80_000, **LINEAR}
    (tmp_path / "a.yaml").write_text(
        "jobs:\n  - {name: j, steps: 80_000, minibatch_time: 1s, worker: {gpu: 1}}\n"
    )
    (tmp_path / "b.jsonl").write_text(json.dumps(record) + "\n")
    for name in ("a.yaml", "b.jsonl"):
        (job,) = read_jobs(tmp_path / name, CLUSTER)
        assert job.work == 80_000
        assert job.record() == resolve(record).record()


def test_a_job_with_steps_takes_the_whole_curve_of_its_family() -> None:
    families = {"resnet": {"throughput": {1: 2.0, 4: 6.5}}}
    record = with_family({**BASE, "steps": 9, "family": "resnet"}, families, "job")
    assert resolve(record).worker_counts.tolist() == [1, 4]


def test_steps_can_be_revised_and_replace_the_papers_keys() -> None:
    assert resolve(merge_changes({"steps": 9, **LINEAR}, {"steps": 12})).work == 12
    papers = {"chunks": 3, "minibatches": 3, **LINEAR}
    assert "remove `chunks`, `minibatches`" in fault(merge_changes(papers, {"steps": 12}))
    changes = {"steps": 12, "chunks": None, "minibatches": None}
    with pytest.raises(InputError, match=r"from chunks = 3 to 1; give workers: {max: 3} too"):
        merge_changes(papers, changes)
    job = resolve(merge_changes(papers, changes | {"workers": {"max": 2}}))
    assert (job.work, job.max_workers) == (12, 2)


OPTIONS: dict[str, Any] = {"steps": 9, "run": {"command": "train", "from_options": True}}


@pytest.mark.parametrize("speed", [CURVE, {"minibatch_time": "2 slots"}])
def test_options_advise_no_run_time_if_the_record_states_none(speed: dict[str, Any]) -> None:
    record = {**BASE, **OPTIONS, **speed, "worker": {"gpu": 4}}
    changes = [*candidate_changes(record, resolve(record), CLUSTER, 90)]
    names = {change.option.name for change in changes if change.option is not None}
    assert names == {"--priority", "--gpus"}
    timed = {**BASE, **OPTIONS, **LINEAR}
    changes = [*candidate_changes(timed, resolve(timed), CLUSTER, 90)]
    options = {change.option.name: change for change in changes if change.option is not None}
    assert options["--time"].decreases
    assert not options["--priority"].decreases
    assert options["--priority"].option is not None
    assert options["--priority"].option.before == "normal"


@pytest.mark.parametrize(
    ("changes", "keeps"),
    [
        ({"by": "4h", "steps": 7, "minibatch_time": "2s", "priority": "high"}, True),
        ({"deadline": "4h", "labels": {"a": "b"}, "workers": None}, True),
        (CURVE, False),
        ({"steps": 7, "workers": {"max": 2}}, False),
        ({"utility": {"kind": "constant", "value": 3}}, False),
    ],
)
def test_a_revised_key_without_an_option_makes_the_record_that_of_a_file(
    changes: dict[str, Any], keeps: bool
) -> None:
    record = {**BASE, **OPTIONS, **LINEAR}
    run = merge_changes(record, changes)["run"]
    assert run == (OPTIONS["run"] if keeps else {"command": "train"})
    assert record["run"] == OPTIONS["run"]


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(
    slot=st.integers(1, 7200),
    rate=st.fractions(0, 100, max_denominator=1000),
    completion=st.integers(0, 40),
)
def test_a_decay_on_the_clock_falls_by_the_hours_after_the_target(
    slot: int, rate: Fraction, completion: int
) -> None:
    sigmoid = {"kind": "sigmoid", "value": 60, "target": "3h", "decay": f"{float(rate)!r}/h"}
    job = resolve({"steps": 1, **LINEAR, "utility": sigmoid}, cluster(f"{slot}s"))
    late = (completion + 1) * slot / 3600 - 3  # hours from the target to the slot's end
    exponent = float(rate) * late
    expected = 0.0 if exponent > 700 else 60 / (1 + math.exp(exponent))
    assert utility_value(job.utility, completion) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("written", "per_slot"),
    [
        (0.5, 0.5),
        ("0.5", 0.5),
        ("0.5/slot", 0.5),
        ("0.5/slots", 0.5),
        ("1e12", 1e12),
        ("1e-999", 0.0),
        ("1.5/h", 0.5),
        ("36 / d", 0.5),
        ("0.025/min", 0.5),
        ("-3/h", -1.0),
        (0, 0.0),
    ],
)
def test_rates_are_per_slot_or_per_unit_of_time(written: object, per_slot: float) -> None:
    assert parse_rate(written).per_slot(Fraction(1200)) == per_slot


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("0.5h", "'0.5h' is not a rate; write 0.5 for a change per slot, or 0.5/h"),
        ("0.5/hour", "unknown unit of time 'hour'"),
        ("fast", "'fast' is not a rate"),
        (float("nan"), "is not a rate"),
        (float("inf"), "is not a rate"),
        ("0.5/hour", "write 0.5/h; units: slot, us, ms, s, sec, m, min, h, d, w"),
        (1e13, "exceeds the limit"),
        ("-2e12/h", "exceeds the limit"),
        ("1e999", "a number of hundreds of digits exceeds the limit"),
        ("1e999/h", "a number of hundreds of digits exceeds the limit"),
        (10**400, "a number of hundreds of digits exceeds the limit"),
        ([1], "is not a rate"),
    ],
)
def test_other_rates_are_refused(written: object, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        parse_rate(written)


def test_a_utility_never_increases() -> None:
    rising = {"kind": "linear", "value": 9, "slope": "1/h"}
    assert "job: utility.slope: is above 0" in fault({"steps": 1, **LINEAR, "utility": rising})
    rising = {"kind": "sigmoid", "value": 9, "decay": "-1/h", "target": "2h"}
    assert "job: utility.decay: is below 0" in fault({"steps": 1, **LINEAR, "utility": rising})


def test_advice_changes_steps_workers_and_rates_in_their_own_units() -> None:
    entry = {
        **BASE,
        **LINEAR,
        "steps": 5000,
        "workers": {"max": 2},
        "utility": {"kind": "linear", "value": 9, "slope": "-3/h"},
    }
    job = resolve(entry)
    changes = [*candidate_changes(entry, job, CLUSTER, 50)]
    last = {(change.label, change.before): change.values[-1] for change in changes}
    assert last["steps", "5000"] == 1
    assert {change.values[-1] for change in changes if change.label == "workers.max"} == {1, 64}
    assert last["utility.slope", "-3/h"] == "0/h"
    assert not {"epochs", "minibatches"} & {change.label for change in changes}
    variants = JobVariants(entry, job, CLUSTER)
    for change in changes:
        for value in (change.values[0], change.values[-1]):
            assert variants.with_value(change.key, value) is not None, change.label
    first = next(change for change in changes if change.label == "utility.slope")
    assert first.values[0] == "-2.97/h"
    assert first.describe(first.values[0]) == "1 % less steep"


def advised(entry: dict[str, Any]) -> list[JobChange]:
    return [*candidate_changes({**BASE, **entry}, resolve(entry), CLUSTER, 90)]


@pytest.mark.parametrize(
    ("entry", "label", "last"),
    [
        ({"chunks": 301, "workers": {"max": 200}}, "workers.max", 301),
        ({"utility": {"kind": "constant", "value": 5e9}}, "utility.value", 1e12),
        ({"utility": {"kind": "constant", "value": 3}}, "utility.value", 3000),
        ({"utility": {"kind": "power", "scale": 2000, "exponent": 3}}, "utility.scale", 9990),
        ({"utility": {"kind": "deadline", "value": 3, "by": "60 slots"}}, "utility.by", "91 slots"),
    ],
)
def test_advice_ends_at_the_limit_of_a_value(entry: dict[str, Any], label: str, last: Any) -> None:
    record = {**BASE, **LINEAR, **entry}
    change = next(change for change in advised(record) if change.label == label)
    assert change.values[-1] == last
    variants = JobVariants(record, resolve(record), CLUSTER)
    assert variants.with_value(change.key, last) is not None


@pytest.mark.parametrize(
    ("priority", "before"),
    [({}, "normal (default)"), ({"priority": 3}, "3"), ({"priority": "high"}, "high")],
)
def test_advice_shows_the_stated_priority(priority: dict[str, Any], before: str) -> None:
    change = next(each for each in advised(LINEAR | priority) if each.label == "priority")
    assert (change.before, change.values[-1]) == (before, "urgent")


def test_advice_writes_numbers_without_exponents() -> None:
    changes = {change.label: change for change in advised({"steps": 1, "minibatch_time": "20d"})}
    assert changes["minibatch_time"].values[0] == "1710720s"
    priced = advised({**LINEAR, "utility": {"kind": "constant", "value": 10}})
    value = next(change for change in priced if change.label == "utility.value")
    assert value.describe(9997.0) == "1,000 times as much"


def test_advice_describes_other_limits_of_workers() -> None:
    changes = advised({**LINEAR, "steps": 100, "workers": {"min": 3, "max": 6}})
    texts = {
        (change.label, change.values[0]): change.describe(change.values[0])
        for change in changes
        if change.kind == "workers"
    }
    assert texts == {
        ("workers.min", 2): "minimum lowered by 1 worker",
        ("workers.max", 7): "maximum raised by 1 worker",
        ("workers.max", 5): "maximum lowered by 1 worker",
    }

"""Names and resources of plain commands."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from shadowprice.cli.commands.queue import _changes
from shadowprice.cli.commands.submit import _is_predicted_late, payoff_text
from shadowprice.cli.live import format_expected, format_number, format_time
from shadowprice.cli.plain_job import (
    PlainJob,
    command_title,
    generate_name,
    generate_repeated_name,
    parse_slurm_seconds,
)
from shadowprice.core import bounds
from shadowprice.core.amounts import parse_positive_duration
from shadowprice.core.budget import points_text
from shadowprice.core.errors import InputError
from shadowprice.core.length_history import name_stem
from shadowprice.rest import PredictedLength


@pytest.mark.parametrize(
    ("name", "stem"),
    [("train-x7k2mf", "train"), ("train-resnet", "train-resnet"), ("nightly", "nightly")],
)
def test_a_repeated_name_replaces_only_generated_characters(name: str, stem: str) -> None:
    repeated = generate_repeated_name(name)
    assert repeated.rpartition("-")[0] == stem
    assert repeated != name


def test_a_repeated_name_is_not_longer_than_names_may_be() -> None:
    assert len(generate_repeated_name("a" * int(bounds.NAME.maximum))) <= bounds.NAME.maximum


@pytest.mark.parametrize(
    ("options", "worker"),
    [
        ({}, {"cpu": 1}),
        ({"memory": "16GiB"}, {"cpu": 1, "memory": "16GiB"}),
        ({"gpus": "a100:2"}, {"gpu/a100": 2.0}),
        ({"gpus": "0"}, {"cpu": 1}),
        ({"gpus": "1", "cpus": 4.0}, {"gpu": 1.0, "cpu": 4.0}),
    ],
)
def test_a_command_without_gpus_takes_a_core(
    options: dict[str, Any], worker: dict[str, Any]
) -> None:
    assert PlainJob(["train"], **options)._worker() == worker


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("1:30:00", "5400s"),
        ("1-02:03:04", "93784s"),
        ("0:10:00", "600s"),
        ("90min", "90min"),
    ],
)
def test_times_may_be_written_as_slurm_writes_them(time: str, expected: str) -> None:
    assert PlainJob(["train"], time=time)._work() == {"steps": 1, "minibatch_time": expected}


def test_without_a_time_the_length_is_left_to_the_service() -> None:
    assert PlainJob(["train"])._work() == {}
    assert PlainJob(["train"], steps=7)._work() == {"steps": 7}


def test_generated_names_of_one_command_have_one_stem() -> None:
    """A suffix without a digit would look like a word, so jobs of a command wouldn't be similar."""
    assert {name_stem(generate_name("train")) for _ in range(200)} == {"train"}


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["python", "src/train.py", "--lr", "0.1"], "train"),
        (["bash", "-x", "a/run.v2.sh"], "run.v2"),
        (["/opt/bin/python3.11", "-m", "train"], "python3.11"),
        ([], ""),
    ],
)
def test_a_command_is_called_after_its_script_or_program(words: list[str], title: str) -> None:
    assert command_title(words) == title


@pytest.mark.parametrize("time", ["1:30", "90", "1:75:00", "0:00:00", "-1:00:00"])
def test_times_that_are_ambiguous_are_refused(time: str) -> None:
    with pytest.raises(InputError, match="--time"):
        PlainJob(["train"], time=time)._work()


@pytest.mark.parametrize(
    ("time", "unit"), [("2:00", "2min"), ("90", "90min"), ("1:30", "90s"), ("1-12", "36h")]
)
def test_the_hint_for_an_ambiguous_time_has_the_one_that_slurm_reads(time: str, unit: str) -> None:
    with pytest.raises(InputError) as raised:
        PlainJob(["train"], walltime=time)._time_limit()
    [fault] = raised.value.faults
    assert (fault.location, fault.message) == (
        "--walltime",
        f"{time!r} is a duration without a unit",
    )
    assert fault.hint == f"write {unit}, as Slurm reads it, or a unit such as 3h"
    assert parse_positive_duration(unit, "", "") == parse_slurm_seconds(time)


@pytest.mark.parametrize(
    ("words", "spec", "changes"),
    [
        (["time=3h"], {}, {"minibatch_time": "3h"}),
        (["time=2:00:00"], {"steps": 1}, {"minibatch_time": "7200s"}),
        (["time=1h"], {"steps": 10}, {"minibatch_time": "360s"}),
        (["time=1h", "steps=100"], {"steps": 10}, {"steps": 100, "minibatch_time": "36s"}),
        (["time=1h"], {"chunks": 4, "minibatches": 9}, {"minibatch_time": "100s"}),
        (["walltime=8:00:00"], {}, {"walltime": "28800s"}),
        (["walltime=30 slots"], {}, {"walltime": "30 slots"}),
        (["walltime=null"], {}, {"walltime": None}),
    ],
)
def test_revisions_take_times_as_submissions_do(
    words: list[str], spec: dict[str, object], changes: dict[str, object]
) -> None:
    assert _changes(words, spec) == changes


def test_a_revision_may_name_one_key_of_a_mapping() -> None:
    words = ["workers.max=8"]
    assert _changes(words, {}) == {"workers": {"max": 8}}
    assert _changes(words, {"workers": None}) == {"workers": {"max": 8}}
    assert _changes(words, {"workers": {"min": 2}}) == {"workers": {"min": 2, "max": 8}}
    with pytest.raises(InputError, match=r"--set steps\.a: steps of the job"):
        _changes(["steps.a=1"], {"steps": 3})


@pytest.mark.parametrize(
    "words", [["time=2:00"], ["walltime=90"], ["time=1h", "minibatch_time=1s"]]
)
def test_ambiguous_times_of_a_revision_are_refused(words: list[str]) -> None:
    with pytest.raises(InputError, match=f"--set {words[0].partition('=')[0]}"):
        _changes(words, {})


def test_a_job_whose_prediction_ends_after_its_deadline_is_late() -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    status = SimpleNamespace(slot_seconds=60.0)
    predicted = PredictedLength(seconds=3600.0, jobs=3, probability=0.75)

    def is_late(**record: object) -> bool:
        return _is_predicted_late(record, predicted, now, status)  # type: ignore[arg-type]

    assert is_late(by="59min")
    assert is_late(by="2026-11-30T12:59:00+00:00")
    assert is_late(utility={"kind": "deadline", "value": 1, "by": "59min"})
    assert is_late(by="59 slots")
    assert not is_late(by="1h")
    assert not is_late(by="2026-11-30T13:00:00+00:00")
    assert not is_late()
    assert not _is_predicted_late({"by": "1min"}, None, now, status)  # type: ignore[arg-type]


def test_a_predicted_completion_is_marked() -> None:
    moment = datetime(2026, 11, 30, 12, tzinfo=UTC)
    predicted = PredictedLength(seconds=3600.0, jobs=3, probability=0.75)
    assert format_expected(moment, predicted, moment) == f"~{format_time(moment, moment)}"
    assert format_expected(moment, None, moment) == format_time(moment, moment)
    assert format_expected(None, predicted, moment) == "-"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00004, "0.00004"),
        (-0.0000012345, "-0.000001234"),
        (0.0, "0"),
        (12.0, "12"),
        (1.5, "1.5"),
        (12345.6, "12,346"),
        (1234567.0, "1,234,567"),
        (9999.6, "10,000"),
        (0.99996, "1"),
        (None, "-"),
    ],
)
def test_numbers_have_no_exponent(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("points", "text"),
    [(0.00004, "+0.00004"), (1234567.25, "+1,234,567.25"), (-0.000001, "-0.000001"), (0.0, "+0")],
)
def test_points_are_exact(points: float, text: str) -> None:
    assert points_text(points, sign=True) == text


def test_a_rounding_error_is_no_payoff() -> None:
    assert payoff_text(6.939e-18, 0.03333, 0.03333) == "0"
    assert payoff_text(2e-9, 2e-9, 0.0) == "2e-09"
    assert payoff_text(-0.5, 1.0, 1.5) == "-0.5"
    assert payoff_text(None, None, None) == "-"

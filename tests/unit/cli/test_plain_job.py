"""Names and resources of plain commands."""

from __future__ import annotations

from typing import Any

import pytest

from shadowprice.cli.commands.submit import payoff_text
from shadowprice.cli.plain_job import PlainJob, generate_name, generate_repeated_name
from shadowprice.core import bounds
from shadowprice.core.errors import InputError
from shadowprice.core.length_history import name_stem


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
    assert {name_stem(generate_name("train.py")) for _ in range(200)} == {"train"}


@pytest.mark.parametrize("time", ["1:30", "90", "1:75:00", "0:00:00", "-1:00:00"])
def test_times_that_are_ambiguous_are_refused(time: str) -> None:
    with pytest.raises(InputError, match="--time"):
        PlainJob(["train"], time=time)._work()


def test_a_rounding_error_is_no_payoff() -> None:
    assert payoff_text(6.939e-18, 0.03333, 0.03333) == "0"
    assert payoff_text(2e-9, 2e-9, 0.0) == "2e-09"
    assert payoff_text(-0.5, 1.0, 1.5) == "-0.5"
    assert payoff_text(None, None, None) == "-"

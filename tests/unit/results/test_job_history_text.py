"""Texts of a job's history."""

from __future__ import annotations

import pytest

from shadowprice.core.wording import pluralize
from shadowprice.results.advice import Advice, IneffectiveChange, JobAdvice, advice_lines


@pytest.mark.parametrize(
    ("number", "noun", "message"),
    [
        (0, "job", "0 jobs"),
        (1, "job", "1 job"),
        (1200, "job", "1,200 jobs"),
        (1, "mini-batch", "1 mini-batch"),
        (2, "mini-batch", "2 mini-batches"),
        (40, "epoch", "40 epochs"),
        (2, "entry", "2 entries"),
    ],
)
def test_one_thing_is_no_several(number: int, noun: str, message: str) -> None:
    assert pluralize(number, noun) == message


def test_advice_shows_no_more_digits_of_a_drawn_number_than_anybody_reads() -> None:
    value = Advice(
        "value", "utility.value", "67.19283589326331", "97.89", "1.46 times as much", "97"
    )
    size = Advice("size", "worker.memory", "6GB", "0.25GB", "95.8 % less", "0.26GB")
    lines = [text for _, text in advice_lines(JobAdvice("a", 1, "the rest", [value, size]))]
    assert lines[0] == "utility.value: 97.89 instead of 67.1928 (1.46 times as much)"
    assert lines[1] == "worker.memory: 0.25GB instead of 6GB (95.8 % less)"


def test_advice_quotes_options_for_a_shell_and_names_the_direction_of_failed_changes() -> None:
    words = {"option": "--by", "option_before": "9 slots", "option_after": "17 slots"}
    by = Advice("deadline", "by", "9 slots", "17 slots", "8 slots later", "16 slots", **words)
    failed = [
        IneffectiveChange("time", "minibatch_time", "36s", 9, "--time", "36s", decreases=True),
        IneffectiveChange("value", "utility.value", "1000", 9),
    ]
    lines = [text for _, text in advice_lines(JobAdvice("a", 1, "the rest", [by], failed))]
    assert lines[0] == "--by '17 slots' instead of 9 slots (8 slots later)"
    assert lines[1] == "--time down to 36s, utility.value up to 1000"

"""What is told of a job in words."""

from __future__ import annotations

import pytest

from shadowprice.results.advice import Advice, JobAdvice, advice_lines
from shadowprice.results.job_history_text import pluralize


@pytest.mark.parametrize(
    ("number", "noun", "told"),
    [
        (0, "job", "0 jobs"),
        (1, "job", "1 job"),
        (1200, "job", "1,200 jobs"),
        (1, "mini-batch", "1 mini-batch"),
        (2, "mini-batch", "2 mini-batches"),
        (40, "epoch", "40 epochs"),
    ],
)
def test_one_thing_is_no_several(number: int, noun: str, told: str) -> None:
    assert pluralize(number, noun) == told


def test_advice_shows_no_more_digits_of_a_drawn_number_than_anybody_reads() -> None:
    value = Advice(
        "value", "utility.value", "67.19283589326331", "97.89", "1.46 times as much", "97"
    )
    size = Advice("size", "worker.memory", "6GB", "0.25GB", "95.8 % less", "0.26GB")
    told = [text for _, text in advice_lines(JobAdvice("a", 1, "the rest", [value, size]))]
    assert told[0] == "utility.value: 97.89 instead of 67.1928 (1.46 times as much)"
    assert told[1] == "worker.memory: 0.25GB instead of 6GB (95.8 % less)"

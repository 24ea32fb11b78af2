"""What is told of a job in words."""

from __future__ import annotations

import pytest

from shadowprice.results.telling import counted


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
    assert counted(number, noun) == told

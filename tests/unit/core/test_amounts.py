from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.amounts import (
    MAX_AMOUNT,
    UNLIMITED,
    Amount,
    Dimension,
    Duration,
    format_amount,
    format_seconds,
    parse_amount,
    parse_duration,
)
from shadowprice.core.errors import InputError
from tests.support.examples import example_count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", Fraction(90)),
        ("20min", Fraction(1200)),
        ("6h", Fraction(21_600)),
        ("2d", Fraction(172_800)),
        ("250ms", Fraction(1, 4)),
        ("1.5 h", Fraction(5400)),
        ("0s", Fraction(0)),
        ("1e-3s", Fraction(1, 1000)),
    ],
)
def test_durations_in_time(text: str, seconds: Fraction) -> None:
    assert parse_duration(text) == Duration(seconds=seconds)


def test_durations_in_slots_wait_for_the_length_of_a_slot() -> None:
    duration = parse_duration("0.05 slots")
    assert duration == Duration(slots=Fraction(1, 20))
    assert duration.in_seconds(Fraction(1200)) == 60
    assert parse_duration("90s").in_slots(Fraction(60)) == Fraction(3, 2)


@pytest.mark.parametrize(
    "bad", [20, 1.5, None, True, "20", "-3s", "3 parsecs", "", "1:30", "s", []]
)
def test_invalid_durations_are_refused_with_a_hint(bad: object) -> None:
    with pytest.raises(InputError, match=r"250ms|start at 0"):
        parse_duration(bad)


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (8, Amount(8000, Dimension.COUNT)),
        (0.5, Amount(500, Dimension.COUNT)),
        ("0.001", Amount(1, Dimension.COUNT)),
        ("244GiB", Amount(244 * 2**30, Dimension.BYTES)),
        ("241MB", Amount(241_000_000, Dimension.BYTES)),
        ("25Gbps", Amount(25 * 10**9, Dimension.RATE)),
        ("2.5 Gbps", Amount(2_500_000_000, Dimension.RATE)),
    ],
)
def test_amounts(value: object, amount: Amount) -> None:
    assert parse_amount(value) == amount


@pytest.mark.parametrize(
    ("most", "above", "bound"),
    [
        ("4503599627370", "4503599627371", "4,503,599,627,370"),
        ("4096TiB", "4097TiB", "4,096TiB"),
        ("4503Tbps", "4504Tbps", "4,503Tbps"),
    ],
)
def test_an_amount_has_a_bound_that_is_reported(most: str, above: str, bound: str) -> None:
    assert parse_amount(most).value <= MAX_AMOUNT
    with pytest.raises(InputError, match=f"'{above}' exceeds the limit of {bound} for a server"):
        parse_amount(above)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (-1, "negative"),
        (0.0001, "finer"),
        ("0.5B", "finer"),
        ("3 GIB", "unknown unit"),
        ("many", "not a quantity"),
        (True, "not an amount"),
        (float("nan"), "not a quantity"),
        (float("inf"), "not a quantity"),
        ("1e300", "exceeds the limit"),
        (None, "not an amount"),
    ],
)
def test_invalid_amounts_are_refused(bad: object, word: str) -> None:
    with pytest.raises(InputError, match=word):
        parse_amount(bad)


@settings(deadline=None, derandomize=True, max_examples=example_count(200))
@given(st.integers(0, 2**50), st.sampled_from(list(Dimension)))
def test_a_formatted_amount_of_few_digits_reads_back(value: int, dimension: Dimension) -> None:
    text = format_amount(value, dimension)
    back = parse_amount(float(text) if dimension is Dimension.COUNT and "e" not in text else text)
    assert back.dimension is dimension
    assert back.value == pytest.approx(value, rel=1e-5)


def test_formats_for_people() -> None:
    assert format_amount(UNLIMITED, Dimension.RATE) == "unlimited"
    assert format_amount(244 * 2**30, Dimension.BYTES) == "244GiB"
    assert format_amount(1500, Dimension.COUNT) == "1.5"
    assert [format_seconds(s) for s in (0.25, 90, 7200, 200_000)] == [
        "250ms",
        "1.5min",
        "2h",
        "2.31d",
    ]
    assert [format_seconds(s) for s in (86_399, 3_599.9, 59.99)] == ["1d", "1h", "1min"]

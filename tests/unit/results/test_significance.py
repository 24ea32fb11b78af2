"""Intervals and paired tests, against scipy's own and against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shadowprice.results.significance import (
    compare_to_reference,
    holm_adjust,
    interval,
    paired_permutation_test,
)
from tests.support.examples import example_count

SAMPLES = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=9)


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SAMPLES)
def test_an_interval_is_students(sample: list[float]) -> None:
    got = interval(sample)
    assert got.mean == pytest.approx(np.mean(sample))
    error = stats.sem(sample)
    if error == 0:
        assert got.low == got.high == pytest.approx(got.mean)
        return
    low, high = stats.t.interval(0.95, len(sample) - 1, loc=np.mean(sample), scale=error)
    assert (got.low, got.high) == (pytest.approx(low), pytest.approx(high))


def test_rounding_errors_are_no_difference() -> None:
    total = 0.1 + 0.2 + 0.3
    again = 0.3 + 0.2 + 0.1
    assert total != again
    alike = interval([760.3 * total, 760.3 * again, 760.3 * total])
    assert alike.half == 0
    assert interval([1.0, 1.0 + 1e-9]).half > 0


def test_a_single_value_has_no_interval() -> None:
    alone = interval([3.0])
    assert math.isinf(alone.half)
    assert alone.record() == {"mean": 3.0, "low": None, "high": None, "count": 1}
    with pytest.raises(ValueError, match="needs a value"):
        interval([])


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SAMPLES)
def test_flipped_signs_are_scipys_exact_permutations(sample: list[float]) -> None:
    wanted = stats.permutation_test(
        (np.array(sample), np.zeros(len(sample))),
        lambda x, y, axis: np.abs(np.mean(x - y, axis=axis)),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
        alternative="greater",
    ).pvalue
    assert paired_permutation_test(sample) == pytest.approx(wanted)


def test_many_pairs_are_drawn_and_agree_with_the_normal_approximation() -> None:
    rng = np.random.default_rng(1)
    sample = rng.normal(0.35, 1.0, 60)
    z = abs(sample.sum()) / math.sqrt((sample**2).sum())
    assert paired_permutation_test(sample.tolist()) == pytest.approx(2 * stats.norm.sf(z), abs=0.01)
    assert paired_permutation_test([0.0] * 5) == 1.0
    assert paired_permutation_test(list(range(1, 41))) == pytest.approx(1 / 100_001)


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_steps_down(values: list[float]) -> None:
    got = holm_adjust(values)
    ordered = sorted(zip(values, got, strict=True))
    for rank, (value, adjusted) in enumerate(ordered):
        steps = [min(1.0, (len(values) - k) * ordered[k][0]) for k in range(rank + 1)]
        assert adjusted >= value
        # Equal values share the maximum of their steps.
        assert adjusted == pytest.approx(max(steps)) or values.count(value) > 1


def test_a_difference_is_of_pairs() -> None:
    # A constant lead over a noisy reference is certain, however noisy the reference.
    reference = [1.0, 100.0, 3.0, 50.0, 7.0, 80.0]
    lead, none = compare_to_reference(
        reference, [[value + 2 for value in reference], [*reference[:5], 81.0]]
    )
    assert lead.difference.low == lead.difference.high == pytest.approx(2.0)
    assert lead.p == 2 / 64
    assert lead.adjusted == 4 / 64
    assert none.p == none.adjusted == 1.0

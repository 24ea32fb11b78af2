"""Utilities of families without a kernel, tabulated at knots as closely as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.utility import Linear, Sigmoid, Utility, utility_value
from shadowprice.kernels.reactive.worth import TABULATED, worth
from shadowprice.policies.reactive.worths import LAST_KNOT, MAX_KNOTS, UtilityTable, knots
from tests.support.examples import example_count


@dataclass(frozen=True, slots=True)
class Stairs(Utility):
    """Falls by steps: ``values[k]`` up to ``ends[k]``, 0 after the last."""

    ends: tuple[int, ...]
    steps: tuple[float, ...]
    kind: ClassVar[str] = "stairs"

    def values(self, durations: np.ndarray) -> np.ndarray:
        at = np.searchsorted(np.array(self.ends), np.asarray(durations), side="left")
        return np.array([*self.steps, 0.0])[at]


@dataclass(frozen=True, slots=True)
class Wrapped(Utility):
    """Any other utility under an unregistered name."""

    inner: Utility
    kind: ClassVar[str] = "wrapped"

    def values(self, durations: np.ndarray) -> np.ndarray:
        return self.inner.values(durations)


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(
    st.lists(st.integers(0, 40_000), min_size=1, max_size=6, unique=True),
    st.lists(st.floats(0.01, 1000.0), min_size=6, max_size=6),
)
def test_steps_are_exact_to_the_slot(ends: list[int], values: list[float]) -> None:
    ends.sort()
    stairs = Stairs(tuple(ends), tuple(sorted(values, reverse=True)[: len(ends)]))
    table = UtilityTable()
    table.enter(3, Linear(5.0, -1.0))
    table.enter(1, stairs)
    assert table.columns.family[1] == TABULATED
    for end in ends:
        for duration in (end - 1, end, end + 1):
            if duration >= 0:
                assert worth(table.columns, 1, float(duration)) == pytest.approx(
                    utility_value(stairs, duration), rel=1e-9
                )
    assert worth(table.columns, 3, 2.0) == 3.0


@pytest.mark.parametrize(
    ("utility", "miss"),
    [
        (Linear(40.0, -0.37), 1e-9),
        (Linear(40.0, -1e-5), 1e-9),
        (Sigmoid(10.0, 0.01, 900.0), 1e-3),
        (Sigmoid(10.0, 3.0, 12.0), 1e-9),
    ],
)
def test_lines_are_exact_and_curves_approximate(utility: Utility, miss: float) -> None:
    durations = np.unique(np.geomspace(1, 5e6, 4000).astype(np.int64))
    at, values = knots(Wrapped(utility))
    assert at[0] == 0
    assert at[-1] == LAST_KNOT
    assert len(at) <= MAX_KNOTS
    assert (np.diff(at) > 0).all()
    assert (np.diff(values) <= 0).all()
    interpolated = np.interp(durations, at, values)
    best = utility_value(utility, 0)
    assert np.abs(interpolated - utility.values(durations)).max() <= miss * best
    table = UtilityTable()
    table.enter(0, Wrapped(utility))
    for duration in (0.0, 3.0, 17.5, 999.0, 1e9, float(LAST_KNOT), 2.0 * LAST_KNOT):
        expected = np.interp(duration, at, values)
        assert math.isclose(worth(table.columns, 0, duration), expected, rel_tol=1e-9, abs_tol=1e-9)

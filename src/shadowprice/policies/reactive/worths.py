"""Utility functions of open jobs as rows of arrays, which kernels evaluate.

Common families have their own code in the kernels. Other functions are tabulated at knots, between
which the kernels interpolate.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.utility import Constant, Deadline, Linear, Power, Reciprocal, Sigmoid, Utility
from shadowprice.kernels.reactive import worth as kernel
from shadowprice.policies.reactive.table import enlarged

LAST_KNOT: Final = 1 << 40  # last tabulated duration in slots; longer ones have the same utility

MAX_KNOTS: Final = 256
"""Maximum number of knots of a utility. If it needs more, intervals of large error get them."""

_TOLERANCE: Final = 1e-9  # maximum error of an interpolation, as a share of the largest value


_PROBES: Final = np.arange(1, 16) * 0.6180339887498949 % 1.0
"""Relative positions of test points in an interval, irregular so that they don't miss steps."""


class UtilityTable:
    """Utility functions by row."""

    def __init__(self) -> None:
        # The kernels' input. It is a new object whenever the table has grown.
        self.columns = kernel.Worths(
            np.zeros(0, np.int64), np.zeros((0, 3)), np.zeros((0, 0), np.int64), np.zeros((0, 0))
        )

    def enter(self, row: int, utility: Utility) -> None:
        """Set the utility of a row; the table grows if needed."""
        family, names = _FAMILIES.get(type(utility), (kernel.TABULATED, ()))
        parameters = [float(getattr(utility, name)) for name in names]
        table: tuple[Integers, Floats] | None = None
        if family == kernel.TABULATED:
            table = knots(utility)
            parameters = [float(len(table[0]))]
        self._reserve(row + 1, 0 if table is None else len(table[0]))
        columns = self.columns
        columns.family[row] = family
        columns.parameters[row] = 0.0
        columns.parameters[row, : len(parameters)] = parameters
        if table is not None:
            columns.knots[row, : len(table[0])], columns.values[row, : len(table[0])] = table

    def _reserve(self, rows: int, width: int) -> None:
        old_rows, old_width = self.columns.knots.shape
        if rows <= old_rows and width <= old_width:
            return
        rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows)
        # The width is 0 until the first tabulated utility.
        width = old_width if width <= old_width else max(width, 2 * old_width)
        family, parameters, knots, values = self.columns
        self.columns = kernel.Worths(
            enlarged(family, rows),
            enlarged(parameters, rows),
            enlarged(knots, rows, width),
            enlarged(values, rows, width),
        )


# By exact type, because subclasses may compute other values.
_FAMILIES: Final[dict[type[Utility], tuple[int, tuple[str, ...]]]] = {
    Constant: (kernel.CONSTANT, ("value",)),
    Sigmoid: (kernel.SIGMOID, ("value", "decay", "target")),
    Reciprocal: (kernel.RECIPROCAL, ("value",)),
    Linear: (kernel.LINEAR, ("value", "slope")),
    Power: (kernel.POWER, ("scale", "exponent")),
    Deadline: (kernel.DEADLINE, ("value", "by")),
}
"""Number of each family in the kernels, and the fields that are its parameters."""


def knots(utility: Utility) -> tuple[Integers, Floats]:
    """Return durations (knots) and utilities for linear interpolation.

    Intervals are halved until a line fits. Utilities never rise, so an interval with equal ends is
    flat. There are at most `MAX_KNOTS`, the first at 0, the last at `LAST_KNOT`.
    """

    def values(durations: Integers) -> Floats:
        return np.asarray(utility.values(durations.astype(np.float64)), np.float64)

    durations = np.array([0, LAST_KNOT], dtype=np.int64)
    utilities = values(durations)
    tolerance = _TOLERANCE * max(float(utilities[0]), 1e-300)
    settled = np.zeros(1, dtype=np.bool_)  # by interval
    while len(durations) < MAX_KNOTS:
        left, right = durations[:-1], durations[1:]
        middle = left + (right - left) // 2
        probes = left + (_PROBES[:, None] * (right - left)).astype(np.int64)
        share = (probes - left) / (right - left)
        line = utilities[:-1] + share * (utilities[1:] - utilities[:-1])
        error = np.abs(values(probes.ravel()).reshape(probes.shape) - line).max(axis=0)
        falls = utilities[:-1] - utilities[1:] > tolerance
        settled |= ~falls | (right - left <= 1) | (error <= tolerance)
        to_split = np.flatnonzero(~settled)
        if not len(to_split):
            break
        room = MAX_KNOTS - len(durations)
        if len(to_split) > room:
            worst = np.argsort(-error[to_split], kind="stable")[:room]
            to_split = np.sort(to_split[worst])
        new = middle[to_split]
        durations = np.insert(durations, to_split + 1, new)
        utilities = np.insert(utilities, to_split + 1, values(new))
        settled = np.insert(settled, to_split + 1, False)
    return durations, utilities

"""Utilities of open jobs as the rows that kernels read, of whatever family."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.utility import (
    Constant,
    Deadline,
    Linear,
    Power,
    Reciprocal,
    Sigmoid,
    Utility,
)
from shadowprice.kernels.reactive.worth import (
    CONSTANT,
    DEADLINE,
    LINEAR,
    POWER,
    RECIPROCAL,
    SIGMOID,
    TOLD,
    Worths,
)

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

LAST_KNOT: Final = 1 << 40
"""Duration, in slots, up to which values are told; the value there holds for ever."""

MOST_KNOTS: Final = 256
"""Knots of a utility at most; where it needs more, those are chosen that miss it least."""

_AS_GOOD: Final = 1e-9
"""Difference, as a share of the largest value, from which on a line counts as the utility."""


_PROBES: Final = np.arange(1, 16) * 0.6180339887498949 % 1.0
"""Where a line is held against a utility: at no regular distances, in which steps may come."""


class WorthTable:
    """Utilities by row.

    Attributes
    ----------
    columns : Worths
        What the kernels read; another one after the table grew.
    """

    def __init__(self) -> None:
        self.columns = Worths(
            np.zeros(0, np.int64), np.zeros((0, 3)), np.zeros((0, 0), np.int64), np.zeros((0, 0))
        )

    def enter(self, row: int, utility: Utility) -> None:
        """Set the utility of a row, of which there may be no others yet."""
        family, parameters = _known(utility)
        told: tuple[Integers, Floats] | None = None
        if family == TOLD:
            told = knots(utility)
            parameters = (float(len(told[0])),)
        self._reserve(row + 1, 0 if told is None else len(told[0]))
        columns = self.columns
        columns.family[row] = family
        columns.parameters[row] = 0.0
        columns.parameters[row, : len(parameters)] = parameters
        if told is not None:
            columns.knots[row, : len(told[0])], columns.values[row, : len(told[0])] = told

    def _reserve(self, rows: int, width: int) -> None:
        old = self.columns
        there, wide = old.knots.shape
        if rows <= there and width <= wide:
            return
        rows = there if rows <= there else max(rows, 2 * there)
        # Only jobs of told families have knots: no others take room.
        width = wide if width <= wide else max(width, 2 * wide)
        self.columns = Worths(
            np.zeros(rows, np.int64),
            np.zeros((rows, 3)),
            np.zeros((rows, width), np.int64),
            np.zeros((rows, width)),
        )
        for new, kept in zip(self.columns, old, strict=True):
            new[tuple(slice(size) for size in kept.shape)] = kept


def _known(utility: Utility) -> tuple[int, tuple[float, ...]]:
    """Return the family of a utility for kernels, and its parameters."""
    # By type: a family built on one of these has values of its own.
    match utility:
        case Constant(value) if type(utility) is Constant:
            return CONSTANT, (value,)
        case Sigmoid(value, decay, target) if type(utility) is Sigmoid:
            return SIGMOID, (value, decay, target)
        case Reciprocal(value) if type(utility) is Reciprocal:
            return RECIPROCAL, (value,)
        case Linear(value, slope) if type(utility) is Linear:
            return LINEAR, (value, slope)
        case Power(scale, exponent) if type(utility) is Power:
            return POWER, (scale, exponent)
        case Deadline(value, by) if type(utility) is Deadline:
            return DEADLINE, (value, by)
    return TOLD, ()


def knots(utility: Utility) -> tuple[Integers, Floats]:
    """Return durations, and values there, between which straight lines are the utility.

    Stretches are halved until a line fits them: a step is found in as many halvings as the
    duration has binary digits, a line needs two knots. A utility never rises, so a stretch that
    ends with the value with which it begins is flat.

    Returns
    -------
    (ndarray of int64, ndarray of float64)
        At most `MOST_KNOTS`, the first at 0, the last at `LAST_KNOT`.
    """

    def values(durations: Integers) -> Floats:
        return np.asarray(utility.values(durations.astype(np.float64)), np.float64)

    at = np.array([0, LAST_KNOT], dtype=np.int64)
    worth = values(at)
    tolerance = _AS_GOOD * max(float(worth[0]), 1e-300)
    settled = np.zeros(1, dtype=np.bool_)
    while len(at) < MOST_KNOTS:
        left, right = at[:-1], at[1:]
        middle = left + (right - left) // 2
        probes = left + (_PROBES[:, None] * (right - left)).astype(np.int64)
        share = (probes - left) / (right - left)
        line = worth[:-1] + share * (worth[1:] - worth[:-1])
        missed = np.abs(values(probes.ravel()).reshape(probes.shape) - line).max(axis=0)
        falls = worth[:-1] - worth[1:] > tolerance
        settled |= ~falls | (right - left <= 1) | (missed <= tolerance)
        wanted = np.flatnonzero(~settled)
        if not len(wanted):
            break
        room = MOST_KNOTS - len(at)
        if len(wanted) > room:
            worst = np.argsort(-missed[wanted], kind="stable")[:room]
            wanted = np.sort(wanted[worst])
        new = middle[wanted]
        at = np.insert(at, wanted + 1, new)
        worth = np.insert(worth, wanted + 1, values(new))
        settled = np.insert(settled, wanted + 1, False)
    return at, worth

"""Utilities of completion times, for kernels: six families by formula, others by a table.

A table has knots, which are durations with their utilities; between them it is interpolated
linearly. `shadowprice.policies.reactive.worths` chooses the knots.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import allocation_free, inlined

CONSTANT, SIGMOID, RECIPROCAL, LINEAR, POWER, DEADLINE, TABULATED = 0, 1, 2, 3, 4, 5, 6
"""Families of utilities, as in `Worths.family`."""


class Worths(NamedTuple):
    """Utilities of jobs as rows."""

    family: Integers
    # Up to three parameters of the family, or the number of knots; shape (rows, 3).
    parameters: Floats
    knots: Integers  # durations in slots, ascending from 0, shape (rows, width)
    values: Floats  # utility at each knot; the last holds for all later durations


@allocation_free
def worth(worths: Worths, row: int, duration: float) -> float:
    """Return the utility of completing ``duration`` slots after arrival."""
    family = worths.family[row]
    first, second = float(worths.parameters[row, 0]), float(worths.parameters[row, 1])
    if family == CONSTANT:
        return first
    if family == SIGMOID:
        late = duration - worths.parameters[row, 2]
        return float(first / (1.0 + math.exp(min(second * late, 700.0))))
    if family == RECIPROCAL:
        return first / (1.0 + duration)
    if family == LINEAR:
        return max(0.0, first + second * duration)
    if family == POWER:
        return float((first / max(1.0, duration)) ** second)
    if family == TABULATED:
        return _interpolate(worths.knots[row], worths.values[row], int(first), duration)
    return first if duration <= second else 0.0


@inlined
def _interpolate(knots: Integers, values: Floats, count: int, duration: float) -> float:
    low, high = 0, count - 1
    if duration >= knots[high]:
        return float(values[high])
    while high - low > 1:
        middle = (low + high) // 2
        if knots[middle] <= duration:
            low = middle
        else:
            high = middle
    part = (duration - knots[low]) / (knots[high] - knots[low])
    return float(values[low] + part * (values[high] - values[low]))

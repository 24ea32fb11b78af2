"""A stable sort for all kernels, because compiling numpy's sort in a kernel takes a second."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import inlined, kernel


@inlined
def before(value: float, other: float) -> bool:
    """Return whether a value sorts before another; NaN comes last, as in numpy."""
    return value < other or (other != other and value == value)  # noqa: PLR0124 - tells a NaN


@kernel
def stable_order(values: NDArray[np.generic]) -> Integers:
    """Return the positions that sort values ascending, NaN last: a stable ``np.argsort``."""
    count = len(values)
    order, merged = np.empty(count, np.int64), np.empty(count, np.int64)
    for position in range(count):
        order[position] = position
    width = 1  # merge sort: runs of this length are sorted
    while width < count:
        for first in range(0, count, 2 * width):
            middle, last = min(first + width, count), min(first + 2 * width, count)
            left, right = first, middle
            for position in range(first, last):
                if left < middle and (
                    right >= last or not before(values[order[right]], values[order[left]])
                ):
                    merged[position] = order[left]
                    left += 1
                else:
                    merged[position] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    return order

"""A stable sort for all kernels, because compiling numpy's sort in a kernel takes a second."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined, kernel


@inlined
def before(one: float, other: float) -> bool:
    """Return whether a value sorts before another; NaN comes last, as in numpy."""
    return one < other or (other != other and one == one)  # noqa: PLR0124 - tells a NaN


@kernel
def stable_order(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the positions that sort values ascending, NaN last: a stable ``np.argsort``."""
    count = len(values)
    order, spare = np.empty(count, np.int64), np.empty(count, np.int64)
    for at in range(count):
        order[at] = at
    width = 1
    while width < count:
        for first in range(0, count, 2 * width):
            middle, last = min(first + width, count), min(first + 2 * width, count)
            left, right = first, middle
            for at in range(first, last):
                if left < middle and (
                    right >= last or not before(values[order[right]], values[order[left]])
                ):
                    spare[at] = order[left]
                    left += 1
                else:
                    spare[at] = order[right]
                    right += 1
        order, spare = spare, order
        width *= 2
    return order

"""Kernel for random copies: the minimum over the copies of each task."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@kernel
def least_of_copies(numbers: Floats, copies: Integers, least: Floats) -> None:
    """Write the minimum of every task's numbers to ``least`` (trials, tasks).

    ``numbers`` (trials, sum of copies) has a number per copy; the copies of a task are adjacent.
    """
    for trial in range(numbers.shape[0]):
        place = 0
        for task in range(copies.shape[0]):
            smallest = numbers[trial, place]
            for copy in range(place + 1, place + copies[task]):
                if numbers[trial, copy] < smallest:
                    smallest = numbers[trial, copy]
            least[trial, task] = smallest
            place += copies[task]

"""Kernel for simulated durations: a task ends with the first of its copies."""

from __future__ import annotations

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import kernel


@kernel
def min_over_copies(numbers: Floats, copies: Integers, minimum: Floats) -> None:
    """Write the minimum of every task's numbers to ``minimum`` (trials, tasks).

    ``numbers`` (trials, sum of copies) has a number per copy; the copies of a task are adjacent.
    """
    for trial in range(numbers.shape[0]):
        position = 0
        for task in range(copies.shape[0]):
            smallest = numbers[trial, position]
            for copy in range(position + 1, position + copies[task]):
                smallest = min(smallest, numbers[trial, copy])
            minimum[trial, task] = smallest
            position += copies[task]

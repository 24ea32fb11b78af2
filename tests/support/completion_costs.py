"""The search over slots, solved exactly for every completion slot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.horizon.bounds import (
    equal_slots,
    greatest_common_divisor,
    relaxations,
    slot_options,
)
from shadowprice.kernels.horizon.search import solve_prefix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def cost_bounds(cost: Floats, gain: Ints, required: int) -> tuple[Floats, Floats]:
    """Return relaxation and rounded cost for every completion slot."""
    cost, gain = np.ascontiguousarray(cost, np.float64), np.ascontiguousarray(gain, np.int64)
    divisor = greatest_common_divisor(gain)
    class_of, first = equal_slots(cost)
    options = slot_options(cost, gain // divisor, first)
    lower, upper, _ = relaxations(class_of, (required + divisor - 1) // divisor, options)
    return lower, upper


def every_cost(cost: Floats, gain: Ints, required: int) -> tuple[Floats, Floats, Floats]:
    """Return exact minimum cost, relaxation and rounded cost for every completion slot.

    The policy's search solves few slots, and only as far as the best payoff needs. Here every slot
    is solved, so that no bound hides an error.
    """
    cost, gain = np.ascontiguousarray(cost, np.float64), np.ascontiguousarray(gain, np.int64)
    slots = cost.shape[0]
    exact = np.full(slots, np.inf)
    divisor = greatest_common_divisor(gain)
    if required <= 0 or divisor == 0:
        if required <= 0:
            exact[:] = 0.0
        return exact, exact.copy(), exact.copy()
    required = (required + divisor - 1) // divisor
    gain = gain // divisor
    class_of, first = equal_slots(cost)
    options = slot_options(cost, gain, first)
    lower, upper, multiplier = relaxations(class_of, required, options)
    previous = np.inf
    for t in range(slots):
        if lower[t] == np.inf:
            continue
        found, _, _ = solve_prefix(
            t, required, previous, 0.0, lower[t], lower[t], multiplier[t], class_of, options
        )
        previous = min(previous, found)
        exact[t] = previous
    return exact, lower, upper

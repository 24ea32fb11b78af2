"""Cheapest solution for one completion slot: by rounding, then exactly by `horizon.core`."""

import numpy as np

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.horizon.bounds import SlotOptions
from shadowprice.kernels.horizon.core import best_deviation
from shadowprice.kernels.jit import inlined, kernel

#: Relative difference below which two costs or payoffs count as equal.
TOLERANCE = 1e-12


@kernel
def round_up(
    slot: int,
    required: int,
    multiplier: float,
    class_of: Integers,
    options: SlotOptions,
) -> tuple[Integers, int, Integers]:
    """Round the relaxation; return base options, a break edge's length and the solution.

    Break edges are edges of the hulls whose slope is ``multiplier``. The solution takes whole break
    edges while they fit, then the cheapest single step that covers the rest. Finally `shrink`
    removes the excess. The solution is empty if no single step covers the rest.
    """
    option_gain, option_cost, _, option_count, hull, slope, hull_count = options
    classes = len(option_count)
    base = np.zeros(classes, np.int64)
    edge = np.full(classes, -1, np.int64)
    for k in range(classes):
        low = 0
        high = hull_count[k] - 1
        while low < high:
            middle = (low + high + 1) // 2
            if slope[k, middle] < multiplier:
                low = middle
            else:
                high = middle - 1
        base[k] = hull[k, low]
        if low + 1 < hull_count[k] and slope[k, low + 1] == multiplier:
            edge[k] = hull[k, low + 1]
    modulus = 0
    option = np.empty(slot + 1, np.int64)
    remaining = required
    for s in range(slot + 1):
        k = class_of[s]
        option[s] = base[k]
        remaining -= option_gain[k, base[k]]
    for s in range(slot + 1):
        k = class_of[s]
        if edge[k] >= 0:
            step = option_gain[k, edge[k]] - option_gain[k, base[k]]
            if modulus == 0:
                modulus = step
            if step <= remaining:
                option[s] = edge[k]
                remaining -= step
    if remaining > 0:
        best = np.inf
        best_slot = -1
        best_option = -1
        for s in range(slot + 1):
            k = class_of[s]
            if s > 0 and class_of[s - 1] == k and option[s - 1] == option[s]:
                continue
            target = option_gain[k, option[s]] + remaining
            low = option[s]
            high = option_count[k]
            while low < high:
                middle = (low + high) // 2
                if option_gain[k, middle] < target:
                    low = middle + 1
                else:
                    high = middle
            if low < option_count[k]:
                step_cost = option_cost[k, low] - option_cost[k, option[s]]
                if step_cost < best:
                    best = step_cost
                    best_slot = s
                    best_option = low
        if best_slot < 0:
            return base, modulus, np.empty(0, np.int64)
        k = class_of[best_slot]
        remaining -= option_gain[k, best_option] - option_gain[k, option[best_slot]]
        option[best_slot] = best_option
    shrink(option, -remaining, class_of, options)
    return base, modulus, option


@kernel
def shrink(option: Integers, excess: int, class_of: Integers, options: SlotOptions) -> None:
    """Remove excess units: the largest saving first, later slots first on ties."""
    option_gain, option_cost = options.gain, options.cost
    while excess > 0:
        best = 0.0
        best_slot = -1
        best_option = -1
        for s in range(len(option) - 1, -1, -1):
            k = class_of[s]
            if option[s] == 0:
                continue
            # Equal slots save equally; the later one was considered already.
            if s + 1 < len(option) and class_of[s + 1] == k and option[s + 1] == option[s]:
                continue
            target = option_gain[k, option[s]] - excess
            low = 0
            high = option[s]
            while low < high:
                middle = (low + high) // 2
                if option_gain[k, middle] < target:
                    low = middle + 1
                else:
                    high = middle
            if low < option[s]:
                saving = option_cost[k, option[s]] - option_cost[k, low]
                if saving > best or best_slot < 0:
                    best = saving
                    best_slot = s
                    best_option = low
        if best_slot < 0:
            return
        k = class_of[best_slot]
        excess -= option_gain[k, option[best_slot]] - option_gain[k, best_option]
        option[best_slot] = best_option


@inlined
def total_cost(option: Integers, class_of: Integers, options: SlotOptions) -> float:
    """Return the cost of one option per slot, summed from slot 0 on."""
    total = 0.0
    for s in range(len(option)):
        total += options.cost[class_of[s], option[s]]
    return total


@inlined
def solve_prefix(
    slot: int,
    required: int,
    limit: float,
    accept: float,
    lower: float,
    proven: float,
    multiplier: float,
    class_of: Integers,
    options: SlotOptions,
) -> tuple[float, float, Integers]:
    """Find the cheapest way to gather ``required`` units over slots 0..slot, if at most ``limit``.

    ``lower`` is the cost of the relaxation, ``proven`` the best known lower bound. A solution
    within ``accept`` of the optimum is good enough.

    Returns the cost, ``inf`` if it would exceed ``limit``; a lower bound of all solutions, within
    ``accept`` (and `TOLERANCE`) of the cost or of ``limit``; and the option of each slot (0 is
    nothing), empty if the cost is ``inf``.
    """
    base, modulus, option = round_up(slot, required, multiplier, class_of, options)
    best = np.inf
    if len(option) > 0:
        cost = total_cost(option, class_of, options)
        if cost <= limit:
            best = cost
            limit = cost
            if accept > 0.0:
                limit = cost - accept  # a smaller improvement doesn't count
                if limit <= max(lower, proven):
                    return best, max(lower, proven), option
    gap = limit - lower
    proof = max(proven, limit)
    if limit - proven > TOLERANCE * limit and gap > TOLERANCE * limit:
        copies = np.zeros(len(options.option_count), np.int64)
        need = required
        for s in range(slot + 1):
            copies[class_of[s]] += 1
            need -= options.gain[class_of[s], base[class_of[s]]]
        slack = TOLERANCE / (8.0 * (slot + 1)) * limit
        excess, count = best_deviation(need, modulus, gap, multiplier, slack, copies, base, options)
        if excess < np.inf:
            exact_option = np.empty(slot + 1, np.int64)
            surplus = -required
            for s in range(slot + 1):
                k = class_of[s]
                i = options.option_count[k] - 1
                while count[k, i] == 0:  # the largest options in the earliest slots
                    i -= 1
                count[k, i] -= 1
                exact_option[s] = i
                surplus += options.gain[k, i]
            shrink(exact_option, surplus, class_of, options)
            cost = total_cost(exact_option, class_of, options)
            proof = min(proof, cost)
            if cost < best:
                best = cost
                option = exact_option
    if best == np.inf:
        option = np.empty(0, np.int64)
    return best, proof, option

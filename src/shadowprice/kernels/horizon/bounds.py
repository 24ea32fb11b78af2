"""Bounds of the search over slots: equal slots, convex hulls, and the relaxation of every slot.

The search over slots is a multiple-choice knapsack: at most one choice per slot, gather
``required`` units at least cost (OASiS problem (28); PD-ORS (3.16)). Its linear relaxation needs
only the lower convex hull of each slot's choices: it takes hull edges by rising slope (cost per
unit), the last of them, the *break edge*, in part. One more slot can only lower the break slope. So
one pass over the slots, with a heap of the steepest edge that each slot still takes, gives the
relaxation for every completion slot.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.heap import lift, sink
from shadowprice.kernels.jit import inlined
from shadowprice.kernels.order import stable_order

#: Larger costs count as infinite, because their sums could not be compared.
COST_LIMIT = 1e300


class SlotOptions(NamedTuple):
    """Undominated options of each class of slots, by increasing gain, and their lower convex hull.

    Arrays have the shape (classes, choices + 1), counts (classes,). Option 0 is doing nothing.
    """

    gain: Integers
    cost: Floats
    choice: Integers  # -1 for doing nothing
    option_count: Integers
    hull: Integers  # options on the hull
    slope: Floats  # cost per unit on the hull's edge that ends at the option; the first is unused
    hull_count: Integers  # number of options on the hull


@inlined
def greatest_common_divisor(gain: Integers) -> int:
    """Return the greatest common divisor of all gains, 0 without gains."""
    divisor = 0
    for value in gain:
        a = divisor
        b = value
        while b != 0:
            a, b = b, a % b
        divisor = a
    return divisor


@inlined
def equal_slots(cost: Floats) -> tuple[Integers, Integers]:
    """Group slots whose rows of costs (slots, choices) are equal to the bit.

    Returns the class of each slot, in order of first appearance, and the first slot of each class.
    """
    slots, choices = cost.shape
    class_of = np.empty(slots, np.int64)
    first = np.empty(slots, np.int64)
    weight = np.empty(choices)
    for j in range(choices):  # multiples of the golden ratio never repeat
        weight[j] = 0.5 + (0.6180339887498949 * (j + 1)) % 1.0
    fingerprint = np.empty(slots)
    fingerprint_bits = fingerprint.view(np.int64)
    size = 16
    while size < 4 * slots:
        size *= 2
    table = np.full(size, -1, np.int64)  # hash table of classes
    classes = 0
    for t in range(slots):
        total = 0.0
        for j in range(choices):
            value = cost[t, j]
            if value < COST_LIMIT:
                total += value * weight[j]
            else:
                total += weight[j]
        fingerprint[t] = total
        bits = fingerprint_bits[t]
        bucket = (bits ^ (bits >> 21) ^ (bits >> 43)) & (size - 1)
        while True:
            candidate = table[bucket]
            if candidate < 0:
                table[bucket] = classes
                first[classes] = t
                class_of[t] = classes
                classes += 1
                break
            other = first[candidate]
            if fingerprint[other] == total:
                same = True
                for j in range(choices):
                    if cost[other, j] != cost[t, j]:
                        same = False
                        break
                if same:
                    class_of[t] = candidate
                    break
            bucket = (bucket + 1) % size
    return class_of, first[:classes].copy()


@inlined
def slot_options(cost: Floats, gain: Integers, first: Integers) -> SlotOptions:
    """Return the options of each class of slots, of which ``first`` (classes,) is one slot.

    ``cost`` (slots, choices) has every choice in every slot, ``inf`` if infeasible. ``gain``
    (choices,) are the units of each choice. An option is dominated if another gains as much at no
    higher cost. Doing nothing is option 0 even if a free choice dominates it.
    """
    classes = len(first)
    choices = len(gain)
    order = stable_order(gain)
    width = choices + 1
    option_gain = np.empty((classes, width), np.int64)
    option_cost = np.empty((classes, width))
    option_choice = np.empty((classes, width), np.int64)
    option_count = np.empty(classes, np.int64)
    hull = np.empty((classes, width), np.int64)
    slope = np.empty((classes, width))
    hull_count = np.empty(classes, np.int64)
    kept = np.empty(choices, np.int64)
    for k in range(classes):
        t = first[k]
        # From the largest gain down; among equal gains the cheapest, then the lowest choice.
        cheapest = COST_LIMIT
        n = 0
        position = choices - 1
        while position >= 0:
            best = order[position]
            best_cost = cost[t, best]
            position -= 1
            while position >= 0 and gain[order[position]] == gain[best]:
                other = order[position]
                if cost[t, other] <= best_cost:
                    best = other
                    best_cost = cost[t, other]
                position -= 1
            if best_cost < cheapest:
                cheapest = best_cost
                kept[n] = best
                n += 1
        option_gain[k, 0] = 0
        option_cost[k, 0] = 0.0
        option_choice[k, 0] = -1
        for i in range(n):
            j = kept[n - 1 - i]
            option_gain[k, i + 1] = gain[j]
            option_cost[k, i + 1] = cost[t, j]
            option_choice[k, i + 1] = j
        option_count[k] = n + 1
        top = 0
        hull[k, 0] = 0
        slope[k, 0] = 0.0
        for i in range(1, n + 1):
            while True:
                last = hull[k, top]
                rise = (option_cost[k, i] - option_cost[k, last]) / (
                    option_gain[k, i] - option_gain[k, last]
                )
                # The lower convex hull: slopes must increase, so a steeper edge before is removed.
                if top > 0 and slope[k, top] >= rise:
                    top -= 1
                else:
                    break
            top += 1
            hull[k, top] = i
            slope[k, top] = rise
        hull_count[k] = top + 1
    return SlotOptions(
        option_gain, option_cost, option_choice, option_count, hull, slope, hull_count
    )


@inlined
def relaxations(
    class_of: Integers, required: int, options: SlotOptions
) -> tuple[Floats, Floats, Floats]:
    """Return bounds on the cost for every completion slot, and the break slopes, in one pass.

    ``class_of`` (slots,) is the class of each slot. Returns three arrays (slots,): the cost of the
    relaxation over slots 0..t (``inf`` if they can't gather enough); the cost of the feasible
    solution that takes all of the break edge; the slope of that edge, the price of a unit.
    """
    option_gain, option_cost, _, _, hull, slope, hull_count = options
    slots = len(class_of)
    lower = np.full(slots, np.inf)
    upper = np.full(slots, np.inf)
    multiplier = np.zeros(slots)
    taken = np.zeros(slots, np.int64)  # number of hull edges that each slot takes
    steepest = np.zeros(slots)  # slope of the last of them
    spent = np.zeros(slots)  # cost of all of them
    heap = np.empty(slots, np.int64)
    tie = np.arange(slots)
    size = 0
    gathered = 0
    feasible = False
    break_slope = np.inf
    for t in range(slots):
        k = class_of[t]
        low = 0
        high = hull_count[k] - 1
        if feasible:
            while low < high:  # edges less steep than the break edge
                middle = (low + high + 1) // 2
                if slope[k, middle] < break_slope:
                    low = middle
                else:
                    high = middle - 1
        else:
            low = high
        if low > 0:
            taken[t] = low
            steepest[t] = slope[k, low]
            spent[t] = option_cost[k, hull[k, low]]
            gathered += option_gain[k, hull[k, low]]
            heap[size] = t
            lift(heap, size, steepest, tie)
            size += 1
        if gathered < required:
            continue
        feasible = True
        # Drop the steepest edges, the most expensive units, while the rest suffice.
        while True:
            s = heap[0]
            c = class_of[s]
            end = taken[s]
            edge = option_gain[c, hull[c, end]] - option_gain[c, hull[c, end - 1]]
            if gathered - edge < required:
                break_slope = steepest[s]
                break
            gathered -= edge
            taken[s] = end - 1
            spent[s] = option_cost[c, hull[c, end - 1]]
            if end == 1:
                size -= 1
                heap[0] = heap[size]
            else:
                steepest[s] = slope[c, end - 1]
            sink(heap, size, steepest, tie)
        # Sum again: removed edges may exceed the sum by orders of magnitude, and so would their
        # rounding errors.
        total = 0.0
        for s in range(t + 1):
            total += spent[s]
        upper[t] = total
        lower[t] = max(0.0, total - break_slope * (gathered - required))
        multiplier[t] = break_slope
    return lower, upper, multiplier

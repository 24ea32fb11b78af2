"""Lists of undominated partial solutions of the search over slots, and their sums."""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import inlined, kernel

#: Largest table (in units of deviation) that a combination of two lists may use.
TABLE_LIMIT = 1 << 22


class States(NamedTuple):
    """A list of partial solutions, with the entries of two lists that make each of them.

    `horizon.core` defines deviations and reduced costs.
    """

    deviation: Integers  # strictly decreasing
    reduced: Floats
    left: Integers
    right: Integers


class Target(NamedTuple):
    """The deviation that a solution must reach, and the bounds by which states are dropped."""

    need: int
    gap: float  # maximum reduced cost
    multiplier: float  # price of a unit: added to a state's reduced cost for each of deviation
    slack: float  # a state is dominated by one that gathers as much for at most this more
    least: Floats  # result of `residue_costs`; empty for no bound


@inlined
def _combine_table(
    ax: Integers,
    ar: Floats,
    bx: Integers,
    br: Floats,
    low: int,
    high: int,
    target: Target,
) -> States:
    """Combine two lists through a table over deviations ``low..high``."""
    gap, multiplier, slack = target.gap, target.multiplier, target.slack
    best = np.full(high - low + 1, np.inf)
    pair = np.empty(high - low + 1, np.int64)
    above_cost = np.inf
    above = -1
    for j in range(len(bx)):
        room = gap - br[j]
        for i in range(len(ax)):
            if ar[i] > room:
                continue
            d = ax[i] + bx[j]
            r = ar[i] + br[j]
            if d > high:
                c = r + multiplier * d
                if c < above_cost:
                    above_cost = c
                    above = i * len(bx) + j
            elif d >= low and r < best[d - low]:
                best[d - low] = r
                pair[d - low] = i * len(bx) + j
    count = 1
    for d in range(high - low + 1):
        if best[d] < np.inf:
            count += 1
    deviation = np.empty(count, np.int64)
    reduced = np.empty(count)
    left = np.empty(count, np.int64)
    right = np.empty(count, np.int64)
    n = 0
    cheapest = np.inf
    if above >= 0:
        left[0] = above // len(bx)
        right[0] = above % len(bx)
        deviation[0] = ax[left[0]] + bx[right[0]]
        reduced[0] = ar[left[0]] + br[right[0]]
        cheapest = above_cost
        n = 1
    for d in range(high - low, -1, -1):
        if best[d] < np.inf:
            c = best[d] + multiplier * (d + low)
            # From the most units down: a state with fewer units is useful only if it is cheaper.
            if c < cheapest - slack:
                cheapest = c
                deviation[n] = d + low
                reduced[n] = best[d]
                left[n] = pair[d] // len(bx)
                right[n] = pair[d] % len(bx)
                n += 1
    return States(deviation[:n], reduced[:n], left[:n], right[:n])


@kernel
def _combine_merge(
    ax: Integers,
    ar: Floats,
    bx: Integers,
    br: Floats,
    low: int,
    high: int,
    target: Target,
) -> States:
    """Combine two lists by merging a shifted copy of the first for each entry of the second."""
    gap, multiplier, slack = target.gap, target.multiplier, target.slack
    n = 0
    deviation = np.empty(0, np.int64)
    reduced = np.empty(0)
    left = np.empty(0, np.int64)
    right = np.empty(0, np.int64)
    size = len(ax) + 64
    new_deviation = np.empty(size, np.int64)
    new_reduced = np.empty(size)
    new_left = np.empty(size, np.int64)
    new_right = np.empty(size, np.int64)
    for j in range(len(bx)):
        if len(new_deviation) < n + len(ax):
            size = 2 * (n + len(ax))
            new_deviation = np.empty(size, np.int64)
            new_reduced = np.empty(size)
            new_left = np.empty(size, np.int64)
            new_right = np.empty(size, np.int64)
        shift = bx[j]
        extra = br[j]
        room = gap - extra
        i = 0
        p = 0
        m = 0
        cheapest = np.inf
        while True:
            while i < len(ax) and ar[i] > room:
                i += 1
            old = p < n
            fresh = i < len(ax) and ax[i] + shift >= low
            if not old and not fresh:
                break
            if old and (not fresh or deviation[p] >= ax[i] + shift):
                d = deviation[p]
                r = reduced[p]
                a = left[p]
                b = right[p]
                p += 1
            else:
                d = ax[i] + shift
                r = ar[i] + extra
                a = i
                b = j
                i += 1
            c = r + multiplier * d
            if c < cheapest - slack:
                cheapest = c
                # Of the states above the window, or of equal deviation, only the last is useful.
                if m > 0 and (
                    (d > high and new_deviation[m - 1] > high) or new_deviation[m - 1] == d
                ):
                    m -= 1
                new_deviation[m] = d
                new_reduced[m] = r
                new_left[m] = a
                new_right[m] = b
                m += 1
        deviation, new_deviation = new_deviation, deviation
        reduced, new_reduced = new_reduced, reduced
        left, new_left = new_left, left
        right, new_right = new_right, right
        n = m
    return States(deviation[:n], reduced[:n], left[:n], right[:n])


@inlined
def combine(
    ax: Integers,
    ar: Floats,
    bx: Integers,
    br: Floats,
    low: int,
    high: int,
    target: Target,
) -> States:
    """Return the undominated sums of two lists of partial solutions.

    ``ax`` and ``bx`` are the lists' deviations, strictly decreasing, and ``ar`` and ``br`` their
    reduced costs. Of the sums outside of the window from ``low`` to ``high``, only the cheapest
    above it is kept.
    """
    pairs = len(ax) * len(bx)
    if pairs == 0:
        return States(
            np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
        )
    bottom = max(low, ax[-1] + bx[-1])
    top = min(high, ax[0] + bx[0])
    span = top - bottom + 1
    if 0 < span <= min(TABLE_LIMIT, 2 * pairs + 64):
        return _combine_table(ax, ar, bx, br, bottom, top, target)
    if len(ax) >= len(bx):
        return _combine_merge(ax, ar, bx, br, low, high, target)
    swapped = _combine_merge(bx, br, ax, ar, low, high, target)
    return States(swapped.deviation, swapped.reduced, swapped.right, swapped.left)

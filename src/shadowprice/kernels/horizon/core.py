"""Exact multiple-choice knapsack over the slots up to one completion slot.

The method follows Pisinger's core algorithm for the multiple-choice knapsack (European Journal of
Operational Research 83, 1995), with additions for slots that are equal or nearly so:

- *Reduced costs.* At the multiplier of the linear relaxation every option has a reduced cost
  >= 0. A solution costs the relaxation, plus its reduced costs, plus the multiplier times its
  excess units. Only options whose reduced cost fits into the gap survive.
- *Lists.* Partial solutions are lists of undominated (deviation from the relaxation, reduced cost),
  extended slot by slot. Two lists cover separate slots, so that neither covers all of them, and are
  combined at the end.
- *Equal slots.* m equal slots are built by doubling. Any 2h of them split into two halves whose
  deviations differ by at most the spread of one slot, so a window of about two spreads around the
  deviation still needed is enough at every level.
- *Residues.* `horizon.residues` bounds the cost of compensating a deviation. States that the other
  slots can't compensate within the gap are dropped.
- *Windows.* A partial solution must be able to reach the requirement with the remaining slots.
  Beyond the upper end of a window only the cheapest is kept, because it can replace all others.

No list has a limit: the search is exact.
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.horizon.lists import combine
from shadowprice.kernels.horizon.residues import MODULUS_LIMIT, drop_hopeless, residue_costs
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.order import stable_order

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A deviation without limit; far above any sum of gains.
FAR = 1 << 60


@kernel
def _reserve(
    deviation: Ints, reduced: Floats, left: Ints, right: Ints, need: int
) -> tuple[Ints, Floats, Ints, Ints]:
    """Return the arena of states with at least ``need`` entries."""
    held = len(deviation)
    if need <= held:
        return deviation, reduced, left, right
    size = max(need, 2 * held)
    new_deviation = np.empty(size, np.int64)
    new_reduced = np.empty(size)
    new_left = np.empty(size, np.int64)
    new_right = np.empty(size, np.int64)
    for s in range(held):
        new_deviation[s] = deviation[s]
        new_reduced[s] = reduced[s]
        new_left[s] = left[s]
        new_right[s] = right[s]
    return new_deviation, new_reduced, new_left, new_right


@kernel
def _join(
    nodes: Ints,
    node: int,
    x: int,
    y: int,
    low: int,
    high: int,
    gap: float,
    multiplier: float,
    slack: float,
    need: int,
    least: Floats,
    deviation: Ints,
    reduced: Floats,
    left: Ints,
    right: Ints,
) -> tuple[Ints, Floats, Ints, Ints]:
    """Store the combination of nodes ``x`` and ``y`` as ``node`` (rows: start, length, x, y)."""
    xs, xn = nodes[x, 0], nodes[x, 1]
    ys, yn = nodes[y, 0], nodes[y, 1]
    d, r, a, b = combine(
        deviation[xs : xs + xn],
        reduced[xs : xs + xn],
        deviation[ys : ys + yn],
        reduced[ys : ys + yn],
        low,
        high,
        gap,
        multiplier,
        slack,
    )
    start = nodes[node - 1, 0] + nodes[node - 1, 1]
    deviation, reduced, left, right = _reserve(deviation, reduced, left, right, start + len(d))
    for i in range(len(d)):
        deviation[start + i] = d[i]
        reduced[start + i] = r[i]
        left[start + i] = a[i]
        right[start + i] = b[i]
    nodes[node, 0] = start
    nodes[node, 1] = drop_hopeless(deviation, reduced, left, right, start, len(d), need, gap, least)
    nodes[node, 2] = x
    nodes[node, 3] = y
    return deviation, reduced, left, right


@kernel
def _unfold(
    nodes: Ints, node: int, state: int, left: Ints, right: Ints, count: Ints, depth: int
) -> None:
    """Add the options that make up a state to ``count[class, option]``."""
    stack = np.empty((depth, 2), np.int64)
    stack[0, 0] = node
    stack[0, 1] = state
    top = 1
    while top > 0:
        top -= 1
        n = stack[top, 0]
        s = nodes[n, 0] + stack[top, 1]
        if nodes[n, 2] >= 0:
            stack[top, 0] = nodes[n, 2]
            stack[top, 1] = left[s]
            stack[top + 1, 0] = nodes[n, 3]
            stack[top + 1, 1] = right[s]
            top += 2
        elif nodes[n, 3] >= 0:
            count[nodes[n, 3], left[s]] += 1


@inlined
def _deviation_below(
    need: int,
    least: Floats,
    gap: float,
    multiplier: float,
    slack: float,
    copies: Ints,
    base: Ints,
    option_gain: Ints,
    option_cost: Floats,
    option_count: Ints,
) -> tuple[float, Ints]:
    """Solve `best_deviation` for one gap, with the bounds of `residue_costs` (or none)."""
    classes = len(copies)
    width = option_gain.shape[1]
    count = np.zeros((classes, width), np.int64)
    total = 0
    for k in range(classes):
        total += copies[k]
    nodes = np.empty((4 * classes + 64 * 8 + 2 * total, 4), np.int64)
    deviation = np.empty(1024, np.int64)
    reduced = np.empty(1024)
    left = np.empty(1024, np.int64)
    right = np.empty(1024, np.int64)
    # Node 0 is the empty solution.
    nodes[0, 0] = 0
    nodes[0, 1] = 1
    nodes[0, 2] = -1
    nodes[0, 3] = -1
    deviation[0] = 0
    reduced[0] = 0.0
    used = 1
    leaf = np.full(classes, -1, np.int64)
    nearest = np.zeros(classes)  # smallest reduced cost of leaving the base
    reach_up = 0
    reach_down = 0
    open_classes = 0
    for k in range(classes):
        if copies[k] == 0:
            continue
        g0 = option_gain[k, base[k]]
        c0 = option_cost[k, base[k]]
        start = nodes[used - 1, 0] + nodes[used - 1, 1]
        deviation, reduced, left, right = _reserve(deviation, reduced, left, right, start + width)
        n = 0
        smallest = np.inf
        for i in range(option_count[k] - 1, -1, -1):
            d = option_gain[k, i] - g0
            r = max(0.0, (option_cost[k, i] - c0) - multiplier * d)
            if r <= gap and (
                len(least) == 0 or r + least[(need - d) % len(least)] <= gap or i == base[k]
            ):
                deviation[start + n] = d
                reduced[start + n] = r
                left[start + n] = i
                right[start + n] = -1
                n += 1
                if i != base[k] and r < smallest:
                    smallest = r
        if n == 1:
            count[k, base[k]] = copies[k]
            continue
        nodes[used, 0] = start
        nodes[used, 1] = n
        nodes[used, 2] = -1
        nodes[used, 3] = k
        leaf[k] = used
        used += 1
        nearest[k] = smallest
        reach_up += copies[k] * deviation[start]
        reach_down += copies[k] * deviation[start + n - 1]
        open_classes += 1
    ceiling = FAR
    if multiplier * 1e15 > gap:
        ceiling = need + int(gap / multiplier) + 1

    # Single slots first, nearest to the break first; then equal slots, fewest first.
    rank = np.empty(classes)
    for k in range(classes):
        rank[k] = np.inf
        if leaf[k] >= 0:
            rank[k] = nearest[k] / (gap + nearest[k])
            if copies[k] > 1:
                rank[k] += float(copies[k])
    order = stable_order(rank)[:open_classes]
    x = 0
    y = 0
    for k in order:
        p = leaf[k]
        start = nodes[p, 0]
        most = deviation[start]
        fewest = deviation[start + nodes[p, 1] - 1]
        reach_up -= copies[k] * most
        reach_down -= copies[k] * fewest
        if nodes[x, 1] == 0 or nodes[y, 1] == 0:
            return np.inf, count
        x_most = deviation[nodes[x, 0]]
        x_fewest = deviation[nodes[x, 0] + nodes[x, 1] - 1]
        y_most = deviation[nodes[y, 0]]
        y_fewest = deviation[nodes[y, 0] + nodes[y, 1] - 1]
        m = copies[k]
        if m > 1:
            # Windows from all slots of the class down to one; at odd sizes a single slot is added.
            spread = most - fewest
            levels = 0
            size = m
            while size > 1:
                levels += 1
                size //= 2
            lows = np.empty(levels + 1, np.int64)
            highs = np.empty(levels + 1, np.int64)
            sizes = np.empty(levels + 1, np.int64)
            low = need - reach_up - x_most - y_most
            high = FAR
            if ceiling < FAR:
                high = ceiling - reach_down - x_fewest - y_fewest
            size = m
            for level in range(levels):
                lows[level] = low
                highs[level] = high
                sizes[level] = size
                if size % 2 == 1:
                    low -= most
                    if high < FAR:
                        high -= fewest
                half = size // 2
                # Relative to `fewest` per slot, sums are >= 0, and halves differ by one spread.
                low = (low - 2 * half * fewest - spread) // 2 + half * fewest
                if high < FAR:
                    high = (high - 2 * half * fewest + spread + 1) // 2 + half * fewest
                size = half
            node = p
            for level in range(levels - 1, -1, -1):
                low = lows[level]
                high = highs[level]
                if sizes[level] % 2 == 1:
                    low -= most
                    if high < FAR:
                        high -= fewest
                deviation, reduced, left, right = _join(
                    nodes, used, node, node, low, high, gap, multiplier, slack, need, least,
                    deviation, reduced, left, right,
                )  # fmt: skip
                node = used
                used += 1
                if sizes[level] % 2 == 1:
                    deviation, reduced, left, right = _join(
                        nodes, used, node, p, lows[level], highs[level], gap, multiplier, slack,
                        need, least, deviation, reduced, left, right,
                    )  # fmt: skip
                    node = used
                    used += 1
            p = node
        if nodes[x, 1] > nodes[y, 1]:
            x, y = y, x
            x_most, y_most = y_most, x_most
            x_fewest, y_fewest = y_fewest, x_fewest
        high = FAR
        if ceiling < FAR:
            high = ceiling - reach_down - y_fewest
        deviation, reduced, left, right = _join(
            nodes, used, x, p, need - reach_up - y_most, high, gap, multiplier, slack, need, least,
            deviation, reduced, left, right,
        )  # fmt: skip
        x = used
        used += 1

    xs = nodes[x, 0]
    ys = nodes[y, 0]
    best = np.inf
    best_x = -1
    best_y = -1
    j = nodes[y, 1] - 1
    for i in range(nodes[x, 1]):
        while j >= 0 and deviation[xs + i] + deviation[ys + j] < need:
            j -= 1
        if j < 0:
            break
        over = deviation[xs + i] + deviation[ys + j] - need
        excess = reduced[xs + i] + reduced[ys + j] + multiplier * over
        if excess < best:
            best = excess
            best_x = i
            best_y = j
    if best_x < 0 or best >= gap:
        return np.inf, count
    _unfold(nodes, x, best_x, left, right, count, total + 64)
    _unfold(nodes, y, best_y, left, right, count, total + 64)
    return best, count


@inlined
def best_deviation(
    need: int,
    modulus: int,
    gap: float,
    multiplier: float,
    slack: float,
    copies: Ints,
    base: Ints,
    option_gain: Ints,
    option_cost: Floats,
    option_count: Ints,
) -> tuple[float, Ints]:
    """Find the cheapest way to gather ``need`` units beyond the base option of every slot.

    Parameters
    ----------
    need : int
        Units still needed when every slot takes its base option (> 0).
    modulus : int
        Length of the break edge.
    gap : float
        Upper bound of the total reduced cost of a solution, with the price of excess units.
    multiplier : float
        Slope of the break edge of the relaxation.
    slack : float
        Cost difference below which two partial solutions count as equal.
    copies, base : int64[K]
        Slots of each class, and its option with least reduced cost, the smallest on ties.
    option_gain, option_cost, option_count
        As `horizon.bounds.slot_options` returns them.

    Returns
    -------
    excess : float
        Cost above the relaxation, ``inf`` if no solution is below ``gap``.
    count : int64[K, C + 1]
        Slots of each class that take each option.
    """
    least = np.empty(0)
    bound = 0.0
    if 1 < modulus <= MODULUS_LIMIT:
        least = residue_costs(
            modulus, gap, multiplier, copies, base, option_gain, option_cost, option_count
        )
        bound = least[need % modulus]
    # Lists grow steeply with the gap, and the optimum is mostly near the bound: try narrow first.
    for part in (0.04, 0.2, 1.0):
        narrow = bound + part * (gap - bound)
        if bound >= gap or narrow <= 0.0:
            break
        excess, count = _deviation_below(
            need, least, narrow, multiplier, slack, copies, base, option_gain, option_cost,
            option_count,
        )  # fmt: skip
        if excess < np.inf:
            return excess, count
    return np.inf, np.zeros(option_gain.shape[:2], np.int64)

"""Exact multiple-choice knapsack over the slots up to one completion slot.

The method follows Pisinger's core algorithm for the multiple-choice knapsack (European Journal of
Operational Research 83, 1995), with additions for slots that are equal or nearly so:

- *Reduced costs.* At the multiplier of the linear relaxation every option has a reduced cost
  >= 0. A solution costs the relaxation, plus its reduced costs, plus the multiplier times its
  excess units. Only options whose reduced cost fits into the gap survive.
- *Lists.* A partial solution has a deviation (units gathered beyond the base options, which the
  relaxation takes in full) and a reduced cost. Lists of undominated ones are extended slot by slot.
  Two lists cover separate slots, so that neither covers all slots, and are combined at the end.
- *Equal slots.* m equal slots are built by doubling. Any 2h of them split into two halves whose
  deviations differ by at most the spread of one slot. So a window of about two spreads around the
  deviation still needed is enough at every level.
- *Residues* (Gomory's group relaxation). At the break slope, taking or leaving an entire break
  edge costs nothing, so only the deviation modulo the length of that edge is hard to compensate. If
  every deviation may be used any number of times, the cheapest way to each residue is a shortest
  path on a circle. Unlike convex hulls, this bound counts parameter servers as integers. States
  that the other slots can't compensate within the gap are dropped.
- *Windows.* A partial solution must be able to reach the requirement with the remaining slots.
  Above the window of useful deviations only the cheapest state is kept: it can replace the others.

No list has a limit: the search is exact.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.horizon.bounds import SlotOptions
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.order import stable_order

#: A deviation without limit; far above any sum of gains.
FAR = 1 << 60

#: Maximum length of a break edge for which residues are computed, at quadratic cost.
MODULUS_LIMIT = 512

#: Largest table (in units of deviation) that a combination of two lists may use.
TABLE_LIMIT = 1 << 22


class States(NamedTuple):
    """A list of partial solutions, each the sum of an entry of two other lists."""

    deviation: Integers  # strictly decreasing
    reduced: Floats  # reduced costs
    left: Integers  # entry of the first list; for a single slot, the option
    right: Integers  # entry of the second list; -1 for a single slot


class Target(NamedTuple):
    """The deviation that a solution must reach, and the bounds by which states are dropped."""

    need: int  # deviation to reach
    gap: float  # maximum reduced cost
    multiplier: float  # price of a unit of deviation
    slack: float  # a state is dominated by one that gathers as much for at most this more
    least: Floats  # result of `residue_costs`; empty for no bound


@inlined
def _empty_states(size: int) -> States:
    return States(
        np.empty(size, np.int64), np.empty(size), np.empty(size, np.int64), np.empty(size, np.int64)
    )


@inlined
def _combine_table(a: States, b: States, low: int, high: int, target: Target) -> States:
    """Combine two lists through a table over deviations ``low..high``; see `_combine`."""
    ax, ar, bx, br = a.deviation, a.reduced, b.deviation, b.reduced
    gap, multiplier, slack = target.gap, target.multiplier, target.slack
    best = np.full(high - low + 1, np.inf)
    pair = np.empty(high - low + 1, np.int64)
    above_cost = np.inf
    above = -1
    for j in range(len(bx)):
        max_reduced = gap - br[j]
        for i in range(len(ax)):
            if ar[i] > max_reduced:
                continue
            d = ax[i] + bx[j]
            r = ar[i] + br[j]
            if d > high:
                c = r + multiplier * d  # compares states of different deviations
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
    deviation, reduced, left, right = _empty_states(count)
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
def _combine_merge(a: States, b: States, low: int, high: int, target: Target) -> States:
    """Combine two lists by merging a shifted copy of the first for each entry of the second.

    The window is as in `_combine`.
    """
    ax, ar, bx, br = a.deviation, a.reduced, b.deviation, b.reduced
    gap, multiplier, slack = target.gap, target.multiplier, target.slack
    n = 0
    merged, new = _empty_states(0), _empty_states(len(ax) + 64)
    for j in range(len(bx)):
        if len(new.deviation) < n + len(ax):
            new = _empty_states(2 * (n + len(ax)))
        shift = bx[j]
        extra = br[j]
        max_reduced = gap - extra
        i = 0
        p = 0
        m = 0
        cheapest = np.inf
        while True:
            while i < len(ax) and ar[i] > max_reduced:
                i += 1
            has_merged = p < n
            has_shifted = i < len(ax) and ax[i] + shift >= low
            if not has_merged and not has_shifted:
                break
            if has_merged and (not has_shifted or merged.deviation[p] >= ax[i] + shift):
                d, r = merged.deviation[p], merged.reduced[p]
                left, right = merged.left[p], merged.right[p]
                p += 1
            else:
                d, r = ax[i] + shift, ar[i] + extra
                left, right = i, j
                i += 1
            c = r + multiplier * d
            if c < cheapest - slack:
                cheapest = c
                # Of the states above the window, or of equal deviation, only the last is useful.
                if m > 0 and (
                    (d > high and new.deviation[m - 1] > high) or new.deviation[m - 1] == d
                ):
                    m -= 1
                new.deviation[m], new.reduced[m] = d, r
                new.left[m], new.right[m] = left, right
                m += 1
        merged, new = new, merged
        n = m
    return _part(merged, 0, n)


@inlined
def _part(states: States, start: int, length: int) -> States:
    """Return some successive states."""
    end = start + length
    deviation, reduced, left, right = states
    return States(deviation[start:end], reduced[start:end], left[start:end], right[start:end])


@inlined
def _combine(a: States, b: States, low: int, high: int, target: Target) -> States:
    """Return the undominated sums of two lists in ``low..high``, and the cheapest one above."""
    ax, bx = a.deviation, b.deviation
    pairs = len(ax) * len(bx)
    if pairs == 0:
        return _empty_states(0)
    bottom = max(low, ax[-1] + bx[-1])
    top = min(high, ax[0] + bx[0])
    span = top - bottom + 1
    if 0 < span <= min(TABLE_LIMIT, 2 * pairs + 64):  # faster than merging unless mostly empty
        return _combine_table(a, b, bottom, top, target)
    if len(ax) >= len(bx):
        return _combine_merge(a, b, low, high, target)
    swapped = _combine_merge(b, a, low, high, target)
    return States(swapped.deviation, swapped.reduced, swapped.right, swapped.left)


@inlined
def residue_costs(
    modulus: int,
    gap: float,
    multiplier: float,
    copies: Integers,
    base: Integers,
    options: SlotOptions,
) -> Floats:
    """Return the least reduced cost of deviations by residue of their sum, shape (modulus,).

    Any positive modulus gives valid bounds; the length of the break edge gives good bounds. An
    excess unit counts as a deviation of -1 at the price of a unit. The cost is ``inf`` for residues
    that no deviations below ``gap`` reach. The other parameters are those of `best_deviation`.
    """
    option_gain, option_cost, option_count = options.gain, options.cost, options.option_count
    step_cost = np.full(modulus, np.inf)
    step_cost[(modulus - 1) % modulus] = multiplier
    for k in range(len(copies)):
        if copies[k] == 0:
            continue
        g0 = option_gain[k, base[k]]
        c0 = option_cost[k, base[k]]
        for i in range(option_count[k]):
            d = option_gain[k, i] - g0
            r = max(0.0, (option_cost[k, i] - c0) - multiplier * d)
            if r <= gap:
                step = d % modulus
                step_cost[step] = min(step_cost[step], r)
    minimum = np.full(modulus, np.inf)
    minimum[0] = 0.0
    for step in range(1, modulus):
        extra = step_cost[step]
        if extra >= minimum[step]:
            continue
        divisor = modulus
        b = step
        while b != 0:
            divisor, b = b, divisor % b
        # The step leads from each residue around one of ``divisor`` circles. The second time around
        # passes the minimum on to the residues before it.
        for start in range(divisor):
            x = start
            for _ in range(2 * (modulus // divisor)):
                y = x + step
                if y >= modulus:
                    y -= modulus
                minimum[y] = min(minimum[y], minimum[x] + extra)
                x = y
    return minimum


@inlined
def _drop_infeasible(states: States, start: int, length: int, target: Target) -> int:
    """Remove states that others can't complete within the gap; return the new length."""
    deviation, reduced, left, right = states
    need, gap, least = target.need, target.gap, target.least
    modulus = len(least)
    if modulus == 0:
        return length
    n = start
    for i in range(start, start + length):
        if reduced[i] + least[(need - deviation[i]) % modulus] <= gap:
            deviation[n] = deviation[i]
            reduced[n] = reduced[i]
            left[n] = left[i]
            right[n] = right[i]
            n += 1
    return n - start


@kernel
def _reserve(states: States, need: int) -> States:
    """Return the array of all nodes' states, grown to at least ``need`` entries."""
    size = len(states.deviation)
    if need <= size:
        return states
    grown = _empty_states(max(need, 2 * size))
    _write(states, grown, 0)
    return grown


@inlined
def _write(states: States, target: States, start: int) -> None:
    """Copy states into ``target`` from position ``start`` on."""
    for s in range(len(states.deviation)):
        target.deviation[start + s] = states.deviation[s]
        target.reduced[start + s] = states.reduced[s]
        target.left[start + s] = states.left[s]
        target.right[start + s] = states.right[s]


@kernel
def _combine_nodes(
    nodes: Integers, node: int, x: int, y: int, low: int, high: int, target: Target, states: States
) -> States:
    """Store the combination of nodes ``x`` and ``y`` as ``node``; see `_deviation_below`."""
    first, second = _part(states, nodes[x, 0], nodes[x, 1]), _part(states, nodes[y, 0], nodes[y, 1])
    sums = _combine(first, second, low, high, target)
    start, length = nodes[node - 1, 0] + nodes[node - 1, 1], len(sums.deviation)
    states = _reserve(states, start + length)
    _write(sums, states, start)
    nodes[node, 0] = start
    nodes[node, 1] = _drop_infeasible(states, start, length, target)
    nodes[node, 2] = x
    nodes[node, 3] = y
    return states


@kernel
def _unfold(
    nodes: Integers, node: int, state: int, states: States, count: Integers, depth: int
) -> None:
    """Add the options that make up a state to ``count[class, option]``."""
    left, right = states.left, states.right
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
def _add_leaf(
    nodes: Integers,
    used: int,
    k: int,
    base: int,
    options: SlotOptions,
    target: Target,
    states: States,
) -> tuple[float, States]:
    """Store a class's options within the gap as node ``used``, if any differs from the base.

    Returns the smallest reduced cost of another option, ``inf`` without one.
    """
    g0 = options.gain[k, base]
    c0 = options.cost[k, base]
    least = target.least
    start = nodes[used - 1, 0] + nodes[used - 1, 1]
    states = _reserve(states, start + options.gain.shape[1])
    n = 0
    smallest = np.inf
    for i in range(options.option_count[k] - 1, -1, -1):
        d = options.gain[k, i] - g0
        r = max(0.0, (options.cost[k, i] - c0) - target.multiplier * d)
        if r <= target.gap and (
            len(least) == 0 or r + least[(target.need - d) % len(least)] <= target.gap or i == base
        ):
            states.deviation[start + n] = d
            states.reduced[start + n] = r
            states.left[start + n] = i
            states.right[start + n] = -1
            n += 1
            if i != base and r < smallest:
                smallest = r
    if n > 1:
        nodes[used, 0] = start
        nodes[used, 1] = n
        nodes[used, 2] = -1
        nodes[used, 3] = k
    return smallest, states


@inlined
def _add_equal_slots(
    nodes: Integers,
    used: int,
    leaf: int,
    m: int,
    low: int,
    high: int,
    maximum: int,
    minimum: int,
    target: Target,
    states: States,
) -> tuple[int, States]:
    """Store the sums of ``m`` > 1 equal slots as nodes from ``used`` on; return the next node.

    The last node has the sums of all of them, whose deviations must be from ``low`` to ``high``.
    ``maximum`` and ``minimum`` are the deviations of one slot.
    """
    # Windows from all slots of the class down to one; at odd sizes a single slot is added.
    spread = maximum - minimum
    levels = 0
    size = m
    while size > 1:
        levels += 1
        size //= 2
    lows = np.empty(levels + 1, np.int64)
    highs = np.empty(levels + 1, np.int64)
    sizes = np.empty(levels + 1, np.int64)
    size = m
    for level in range(levels):
        lows[level] = low
        highs[level] = high
        sizes[level] = size
        if size % 2 == 1:
            low -= maximum
            if high < FAR:
                high -= minimum
        half = size // 2
        # Relative to `fewest` per slot, sums are >= 0; two halves differ by at most one spread.
        low = (low - 2 * half * minimum - spread) // 2 + half * minimum
        if high < FAR:
            high = (high - 2 * half * minimum + spread + 1) // 2 + half * minimum
        size = half
    node = leaf
    for level in range(levels - 1, -1, -1):
        low = lows[level]
        high = highs[level]
        if sizes[level] % 2 == 1:
            low -= maximum
            if high < FAR:
                high -= minimum
        states = _combine_nodes(nodes, used, node, node, low, high, target, states)
        node = used
        used += 1
        if sizes[level] % 2 == 1:
            states = _combine_nodes(
                nodes, used, node, leaf, lows[level], highs[level], target, states
            )
            node = used
            used += 1
    return used, states


@inlined
def _best_pair(
    nodes: Integers, x: int, y: int, target: Target, states: States
) -> tuple[float, int, int]:
    """Return the least cost of two nodes' states that reach the need, and both states.

    The cost is above the relaxation; ``inf`` if no pair reaches the need.
    """
    deviation, reduced = states.deviation, states.reduced
    xs = nodes[x, 0]
    ys = nodes[y, 0]
    best = np.inf
    best_x = -1
    best_y = -1
    j = nodes[y, 1] - 1
    for i in range(nodes[x, 1]):
        while j >= 0 and deviation[xs + i] + deviation[ys + j] < target.need:
            j -= 1
        if j < 0:
            break
        surplus = deviation[xs + i] + deviation[ys + j] - target.need
        excess = reduced[xs + i] + reduced[ys + j] + target.multiplier * surplus
        if excess < best:
            best = excess
            best_x = i
            best_y = j
    return best, best_x, best_y


@inlined
def _deviation_below(
    target: Target, copies: Integers, base: Integers, options: SlotOptions
) -> tuple[float, Integers]:
    """Solve `best_deviation` for one gap.

    Rows of ``nodes``: start and length of a list in ``states``, and the two nodes that it combines.
    For a single slot these are -1 and the class, for the empty solution -1 and -1.
    """
    classes = len(copies)
    need, gap, multiplier = target.need, target.gap, target.multiplier
    count = np.zeros(options.gain.shape, np.int64)
    total = 0
    for k in range(classes):
        total += copies[k]
    # Ample: a leaf and two combinations for each class, and at most two for each doubling of slots.
    nodes = np.empty((4 * classes + 64 * 8 + 2 * total, 4), np.int64)
    states = _empty_states(1024)
    nodes[0, 0] = 0  # node 0 is the empty solution
    nodes[0, 1] = 1
    nodes[0, 2] = -1
    nodes[0, 3] = -1
    states.deviation[0] = 0
    states.reduced[0] = 0.0
    used = 1
    leaf = np.full(classes, -1, np.int64)
    reach_up = 0
    reach_down = 0
    # Single slots first, nearest to the break first; then equal slots, fewest first.
    rank = np.full(classes, np.inf)
    for k in range(classes):
        if copies[k] == 0:
            continue
        nearest, states = _add_leaf(nodes, used, k, base[k], options, target, states)
        if nearest == np.inf:
            count[k, base[k]] = copies[k]
            continue
        leaf[k] = used
        start = nodes[used, 0]
        reach_up += copies[k] * states.deviation[start]
        reach_down += copies[k] * states.deviation[start + nodes[used, 1] - 1]
        rank[k] = nearest / (gap + nearest)  # below 1
        if copies[k] > 1:
            rank[k] += float(copies[k])
        used += 1
    open_classes = used - 1
    # Each unit above the need costs the multiplier, so deviations above the ceiling exceed the gap.
    ceiling = FAR
    if multiplier * 1e15 > gap:  # the quotient fits into int64
        ceiling = need + int(gap / multiplier) + 1

    x = 0  # nodes of the two lists, both empty at first
    y = 0
    for k in stable_order(rank)[:open_classes]:
        p = leaf[k]
        start = nodes[p, 0]
        maximum = states.deviation[start]
        minimum = states.deviation[start + nodes[p, 1] - 1]
        reach_up -= copies[k] * maximum
        reach_down -= copies[k] * minimum
        if nodes[x, 1] == 0 or nodes[y, 1] == 0:
            return np.inf, count
        x_max = states.deviation[nodes[x, 0]]
        x_min = states.deviation[nodes[x, 0] + nodes[x, 1] - 1]
        y_max = states.deviation[nodes[y, 0]]
        y_min = states.deviation[nodes[y, 0] + nodes[y, 1] - 1]
        if copies[k] > 1:
            high = FAR
            if ceiling < FAR:
                high = ceiling - reach_down - x_min - y_min
            used, states = _add_equal_slots(
                nodes, used, p, copies[k], need - reach_up - x_max - y_max, high, maximum, minimum,
                target, states,
            )  # fmt: skip
            p = used - 1
        # Extend the shorter of the two lists, so that their products stay small.
        if nodes[x, 1] > nodes[y, 1]:
            x, y = y, x
            y_max, y_min = x_max, x_min
        high = FAR
        if ceiling < FAR:
            high = ceiling - reach_down - y_min
        states = _combine_nodes(nodes, used, x, p, need - reach_up - y_max, high, target, states)
        x = used
        used += 1

    best, best_x, best_y = _best_pair(nodes, x, y, target, states)
    if best_x < 0 or best >= gap:
        return np.inf, count
    _unfold(nodes, x, best_x, states, count, total + 64)
    _unfold(nodes, y, best_y, states, count, total + 64)
    return best, count


@inlined
def best_deviation(
    need: int,
    modulus: int,
    gap: float,
    multiplier: float,
    slack: float,
    copies: Integers,
    base: Integers,
    options: SlotOptions,
) -> tuple[float, Integers]:
    """Find the cheapest way to gather ``need`` units beyond the base option of every slot.

    Returns the cost above the relaxation (``inf`` if no solution is below ``gap``), and the slots
    of each class that take each option (classes, choices + 1).

    ``modulus`` and ``multiplier`` are length and slope of the break edge of the relaxation.
    ``gap`` bounds the total reduced cost of a solution, with the price of excess units. Two partial
    solutions whose costs differ by less than ``slack`` count as equal.
    ``copies``, ``base`` (classes,): slots of each class, and its option with least reduced cost,
    the smallest on ties.
    """
    minimum = np.empty(0)
    bound = 0.0
    if 1 < modulus <= MODULUS_LIMIT:
        minimum = residue_costs(modulus, gap, multiplier, copies, base, options)
        bound = minimum[need % modulus]
    # Lists grow steeply with the gap, and the optimum is mostly near the bound: widen it in steps.
    for part in (0.04, 0.2, 1.0):
        narrow = bound + part * (gap - bound)
        if bound >= gap or narrow <= 0.0:
            break
        target = Target(need, narrow, multiplier, slack, minimum)
        excess, count = _deviation_below(target, copies, base, options)
        if excess < np.inf:
            return excess, count
    return np.inf, np.zeros(options.gain.shape, np.int64)

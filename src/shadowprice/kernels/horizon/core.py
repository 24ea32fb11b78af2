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

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.horizon.bounds import SlotOptions
from shadowprice.kernels.horizon.lists import States, Target, combine
from shadowprice.kernels.horizon.residues import MODULUS_LIMIT, drop_infeasible, residue_costs
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.order import stable_order

#: A deviation without limit; far above any sum of gains.
FAR = 1 << 60


@kernel
def _reserve(states: States, need: int) -> States:
    """Return the arena of states with at least ``need`` entries."""
    held = len(states.deviation)
    if need <= held:
        return states
    size = max(need, 2 * held)
    grown = States(
        np.empty(size, np.int64), np.empty(size), np.empty(size, np.int64), np.empty(size, np.int64)
    )
    _write(states, grown, 0)
    return grown


@inlined
def _write(states: States, target: States, start: int) -> None:
    """Copy states into an arena, from a position on."""
    for s in range(len(states.deviation)):
        target.deviation[start + s] = states.deviation[s]
        target.reduced[start + s] = states.reduced[s]
        target.left[start + s] = states.left[s]
        target.right[start + s] = states.right[s]


@kernel
def _combine_nodes(
    nodes: Integers,
    node: int,
    x: int,
    y: int,
    low: int,
    high: int,
    target: Target,
    states: States,
) -> States:
    """Store the combination of nodes ``x`` and ``y`` as ``node`` (rows: start, length, x, y)."""
    xs, xn = nodes[x, 0], nodes[x, 1]
    ys, yn = nodes[y, 0], nodes[y, 1]
    deviation, reduced = states.deviation, states.reduced
    sums = combine(
        deviation[xs : xs + xn],
        reduced[xs : xs + xn],
        deviation[ys : ys + yn],
        reduced[ys : ys + yn],
        low,
        high,
        target,
    )
    start, length = nodes[node - 1, 0] + nodes[node - 1, 1], len(sums.deviation)
    states = _reserve(states, start + length)
    _write(sums, states, start)
    nodes[node, 0] = start
    nodes[node, 1] = drop_infeasible(states, start, length, target)
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
    """Store a class's options within the gap as node ``used``, if there are others than the base.

    Returns the smallest reduced cost of leaving the base, which is infinite without a node.
    """
    g0 = options.gain[k, base]
    c0 = options.cost[k, base]
    minimum = target.least
    start = nodes[used - 1, 0] + nodes[used - 1, 1]
    states = _reserve(states, start + options.gain.shape[1])
    n = 0
    smallest = np.inf
    for i in range(options.option_count[k] - 1, -1, -1):
        d = options.gain[k, i] - g0
        r = max(0.0, (options.cost[k, i] - c0) - target.multiplier * d)
        if r <= target.gap and (
            len(minimum) == 0
            or r + minimum[(target.need - d) % len(minimum)] <= target.gap
            or i == base
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
    fewest: int,
    target: Target,
    states: States,
) -> tuple[int, States]:
    """Store the sums of ``m`` > 1 equal slots as nodes from ``used`` on; return the next node.

    The last node has the sums of all of them, whose deviations must be from ``low`` to ``high``.
    ``maximum`` and ``fewest`` are the deviations of one slot.
    """
    # Windows from all slots of the class down to one; at odd sizes a single slot is added.
    spread = maximum - fewest
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
                high -= fewest
        half = size // 2
        # Relative to `fewest` per slot, sums are >= 0, and halves differ by one spread.
        low = (low - 2 * half * fewest - spread) // 2 + half * fewest
        if high < FAR:
            high = (high - 2 * half * fewest + spread + 1) // 2 + half * fewest
        size = half
    node = leaf
    for level in range(levels - 1, -1, -1):
        low = lows[level]
        high = highs[level]
        if sizes[level] % 2 == 1:
            low -= maximum
            if high < FAR:
                high -= fewest
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
    """Return the least excess of a state of each of two nodes that reach the need, and both."""
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
    """Solve `best_deviation` for one gap."""
    classes = len(copies)
    need, gap, multiplier = target.need, target.gap, target.multiplier
    count = np.zeros(options.gain.shape, np.int64)
    total = 0
    for k in range(classes):
        total += copies[k]
    nodes = np.empty((4 * classes + 64 * 8 + 2 * total, 4), np.int64)
    states = States(
        np.empty(1024, np.int64), np.empty(1024), np.empty(1024, np.int64), np.empty(1024, np.int64)
    )
    # Node 0 is the empty solution.
    nodes[0, 0] = 0
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
        rank[k] = nearest / (gap + nearest)
        if copies[k] > 1:
            rank[k] += float(copies[k])
        used += 1
    open_classes = used - 1
    # Each unit above the need costs the multiplier, so this many exceed the gap.
    ceiling = FAR
    if multiplier * 1e15 > gap:
        ceiling = need + int(gap / multiplier) + 1

    x = 0
    y = 0
    for k in stable_order(rank)[:open_classes]:
        p = leaf[k]
        start = nodes[p, 0]
        maximum = states.deviation[start]
        fewest = states.deviation[start + nodes[p, 1] - 1]
        reach_up -= copies[k] * maximum
        reach_down -= copies[k] * fewest
        if nodes[x, 1] == 0 or nodes[y, 1] == 0:
            return np.inf, count
        x_most = states.deviation[nodes[x, 0]]
        x_fewest = states.deviation[nodes[x, 0] + nodes[x, 1] - 1]
        y_most = states.deviation[nodes[y, 0]]
        y_fewest = states.deviation[nodes[y, 0] + nodes[y, 1] - 1]
        if copies[k] > 1:
            high = FAR
            if ceiling < FAR:
                high = ceiling - reach_down - x_fewest - y_fewest
            used, states = _add_equal_slots(
                nodes, used, p, copies[k], need - reach_up - x_most - y_most, high, maximum, fewest,
                target, states,
            )  # fmt: skip
            p = used - 1
        # Extend the shorter of the two lists, so that their products stay small.
        if nodes[x, 1] > nodes[y, 1]:
            x, y = y, x
            y_most, y_fewest = x_most, x_fewest
        high = FAR
        if ceiling < FAR:
            high = ceiling - reach_down - y_fewest
        states = _combine_nodes(nodes, used, x, p, need - reach_up - y_most, high, target, states)
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
    # Lists grow steeply with the gap, and the optimum is mostly near the bound: try narrow first.
    for part in (0.04, 0.2, 1.0):
        narrow = bound + part * (gap - bound)
        if bound >= gap or narrow <= 0.0:
            break
        target = Target(need, narrow, multiplier, slack, minimum)
        excess, count = _deviation_below(target, copies, base, options)
        if excess < np.inf:
            return excess, count
    return np.inf, np.zeros(options.gain.shape, np.int64)

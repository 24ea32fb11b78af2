"""Kernels for bags of tasks: the cheapest copies at the prices of slots, and slots to reserve.

A copy that runs when a slot starts uses one unit of capacity in that slot. A task that starts in r
copies at the start of slot 0 still runs at the start of slot v with probability S(v)^r. So r copies
cost ``c(r) = r * sum_v p_v S(v)^r`` in expectation: CSD's (5) with the price p_v of each slot.
`cloning.curves` explains CSD's phi.
"""

from __future__ import annotations

import math

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.cloning.curves import miss
from shadowprice.kernels.jit import inlined, kernel

MIN_PROBABILITY = 1e-20
"""Smaller probabilities are dropped from a distribution."""


@kernel
def copy_costs(log_survival: Floats, price: Floats, max_copies: int) -> Floats:
    """Return c(r), the expected cost of r = 1 to ``max_copies`` copies; shape (groups, copies).

    ``log_survival`` (groups, slots) is ln S at the start of each slot, counted from the start of
    the task, so 0 in the first. ``price`` (slots,) is the price of a unit of capacity.
    """
    groups, slots = log_survival.shape
    cost = np.zeros((groups, max_copies))
    for g in range(groups):
        for v in range(slots):
            alive = math.exp(log_survival[g, v])
            power = 1.0
            for r in range(max_copies):
                power *= alive
                cost[g, r] += (r + 1) * price[v] * power
    return cost


@kernel
def _next_vertex(cost: Floats, phi: Floats, position: int, l: float) -> tuple[int, float]:
    """Return the next vertex of the lower hull of (phi, c + l r), or -1, and the step's price.

    The price is in cost per decrease of phi. Positions are copies less 1.
    """
    best, slope = -1, np.inf
    for r in range(position + 1, len(cost)):
        phi_decrease = phi[position] - phi[r]
        if phi_decrease > 0.0:
            step_price = (cost[r] - cost[position] + l * (r - position)) / phi_decrease
            if step_price <= slope:
                best, slope = r, step_price
    return best, slope


@kernel
def _minimize(
    count: Integers,
    cost: Floats,
    phi: Floats,
    budget: float,
    l: float,
    copies: Integers,
    change: Integers,
) -> tuple[bool, float]:
    """Minimise sum c + l r subject to sum phi <= budget by the break step; see `cheapest_copies`.

    Returns whether the budget can be met, and a lower bound of the minimum. ``copies`` and
    ``change`` are written as by `cheapest_copies`.
    """
    groups, max_copies = cost.shape
    total = 0.0
    value = 0.0
    change[0] = -1
    following = np.empty(groups, np.int64)
    slope = np.empty(groups)
    for g in range(groups):
        position = 0
        for r in range(1, max_copies):
            if cost[g, r] + l * r < cost[g, position] + l * position:
                position = r
        copies[g] = position + 1
        total += count[g] * phi[g, position]
        value += count[g] * (cost[g, position] + l * (position + 1))
        following[g], slope[g] = _next_vertex(cost[g], phi[g], position, l)
    while total > budget:
        g = 0
        for j in range(1, groups):
            if slope[j] < slope[g]:
                g = j
        if slope[g] == np.inf:
            return False, value
        position, target_position = copies[g] - 1, following[g]
        phi_decrease = phi[g, position] - phi[g, target_position]
        excess = total - budget
        if excess <= phi_decrease * count[g]:
            tasks = min(math.ceil(excess / phi_decrease), count[g])
            # All of these tasks but one move to the vertex; the last moves as far as necessary.
            target_phi = phi[g, position] - (excess - (tasks - 1) * phi_decrease) + 1e-12 * budget
            last = target_position
            for r in range(max_copies):
                if phi[g, r] <= target_phi and cost[g, r] + l * r < cost[g, last] + l * last:
                    last = r
            change[0], change[1], change[2], change[3] = g, tasks - 1, target_position + 1, last + 1
            return True, value + slope[g] * excess
        total -= phi_decrease * count[g]
        value += slope[g] * phi_decrease * count[g]
        copies[g] = target_position + 1
        following[g], slope[g] = _next_vertex(cost[g], phi[g], target_position, l)
    return True, value


@kernel
def _count_copies(count: Integers, copies: Integers, change: Integers) -> int:
    used = 0
    for g in range(len(count)):
        used += count[g] * copies[g]
    if change[0] >= 0:
        base = copies[change[0]]
        used += change[1] * (change[2] - base) + change[3] - base
    return used


@kernel
def cheapest_copies(
    count: Integers,
    cost: Floats,
    decay: Floats,
    budget: float,
    max_total: int,
    copies: Integers,
    change: Integers,
) -> tuple[bool, float]:
    """Find copies of least expected cost that meet CSD's (6) with a limited number of copies.

    For given multipliers every group takes a vertex of the lower hull of (phi(r), c(r)). No shape
    of c is assumed, because prices that change from slot to slot violate Lemma 1. The cheapest
    steps per decrease of phi along the hulls are taken until (6) holds; only some tasks of a group
    take the last step. If that needs too many copies, the price l of a copy is raised.

    Returns whether the copies meet both constraints, and a lower bound of the expected cost of
    copies that meet (6). ``count`` (groups,) are the numbers of tasks. ``cost`` comes from
    `copy_costs`. ``decay`` is a = -ln S at the deadline, ``budget`` is C, and ``max_total`` is the
    limit of all copies, (1b).

    ``copies`` (groups,) receives the copies of each task. ``change`` (4,) receives exceptions in
    one group, or -1. They are the group; the number of its tasks with other copies; the number of
    these copies; and the copies of one more of its tasks.
    """
    groups, max_copies = cost.shape
    phi = np.empty((groups, max_copies))
    for g in range(groups):
        for r in range(max_copies):
            phi[g, r] = miss(decay[g], r + 1.0, False)
    is_feasible, bound = _minimize(count, cost, phi, budget, 0.0, copies, change)
    if not is_feasible or _count_copies(count, copies, change) <= max_total:
        return is_feasible, bound
    scale = cost[:, 0].max() / max_total
    low, high = 0.0, scale
    for _ in range(60):  # prices up to 4^60 times the scale
        _minimize(count, cost, phi, budget, high, copies, change)
        if _count_copies(count, copies, change) <= max_total:
            break
        low, high = high, 4.0 * high
    else:
        return False, bound
    for _ in range(30):
        middle = 0.5 * (low + high)
        _minimize(count, cost, phi, budget, middle, copies, change)
        if _count_copies(count, copies, change) <= max_total:
            high = middle
        else:
            low = middle
    _minimize(count, cost, phi, budget, high, copies, change)
    return True, bound


@inlined
def _binomial(n: int, p: float, pmf: Floats) -> tuple[int, int]:
    """Write the Binomial(n, p) probabilities that matter; return their first and last index."""
    if p >= 1.0:
        pmf[n] = 1.0
        return n, n
    if p <= 0.0:
        pmf[0] = 1.0
        return 0, 0
    mean = n * p
    reach = 12.0 * math.sqrt(mean * (1.0 - p)) + 40.0  # beyond, all are below `MIN_PROBABILITY`
    low = max(0, int(mean - reach))
    high = min(n, int(mean + reach))
    log_factorial = math.lgamma(n + 1.0)
    ln_p, ln_q = math.log(p), math.log1p(-p)
    for k in range(low, high + 1):
        ways = log_factorial - math.lgamma(k + 1.0) - math.lgamma(n - k + 1.0)
        pmf[k] = math.exp(ways + k * ln_p + (n - k) * ln_q)
    return low, high


@kernel
def reserve(tasks: Integers, copies: Integers, log_survival: Floats, level: float) -> Integers:
    """Return the units to reserve for copies in each slot, by a probability of falling short.

    The number of copies that run at the start of slot v is ``sum_j r_j B_j`` over groups j, with
    independent ``B_j ~ Binomial(n_j, S_j(v)^r_j)``; the distributions are convolved exactly.
    ``tasks`` and ``copies`` (groups,) are n and r, and ``log_survival`` (groups, slots) is ln S_j
    at the start of each slot. ``level`` is the maximum probability that a slot has too few units.

    The result (slots,) has all copies in the first slot. In each other slot it is at least the
    expected number (rounded down), and at most the result of the slot before.
    """
    rows, slots = log_survival.shape
    total = 0
    widest = 0
    for j in range(rows):
        total += tasks[j] * copies[j]
        widest = max(widest, tasks[j])
    reserved = np.empty(slots, np.int64)
    reserved[0] = total
    probability = np.empty(total + 1)
    convolved = np.empty(total + 1)
    pmf = np.empty(widest + 1)
    for v in range(1, slots):
        low, high = 0, 0
        probability[0] = 1.0
        mean = 0.0
        for j in range(rows):
            alive = math.exp(copies[j] * log_survival[j, v])
            mean += copies[j] * tasks[j] * alive
            first, last = _binomial(tasks[j], alive, pmf)
            step = copies[j]
            below, above = low + first * step, high + last * step
            convolved[below : above + 1] = 0.0
            for k in range(first, last + 1):
                weight = pmf[k]
                if weight > MIN_PROBABILITY:
                    for x in range(low, high + 1):
                        convolved[x + k * step] += weight * probability[x]
            probability, convolved = convolved, probability
            low, high = below, above
            while low < high and probability[high] < MIN_PROBABILITY:
                high -= 1
            while low < high and probability[low] < MIN_PROBABILITY:
                low += 1
        tail = 0.0
        needed = low
        for x in range(high, low, -1):
            tail += probability[x]
            if tail > level:
                needed = x
                break
        needed = max(needed, int(mean))
        reserved[v] = min(needed, reserved[v - 1])
    return reserved

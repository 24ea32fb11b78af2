"""Kernels of the Lagrangian bound on integer copies in CSD, the cloning problem with a deadline.

For any prices k, l >= 0 a lower bound of the cost is

    D(k, l) = min over integer copies of  sum g + k (sum phi - C) + l (sum r - M).

C is the budget of sum phi, M the number of machines, and r the copies of a task. These kernels find
the prices that maximise D. `curves` explains g and phi.
"""

from __future__ import annotations

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers, copy_into
from shadowprice.kernels.cloning.continuous import response_of
from shadowprice.kernels.cloning.curves import Program, curve_of, miss
from shadowprice.kernels.jit import kernel
from shadowprice.kernels.order import stable_order


@kernel
def integer_responses(
    program: Program, k: float, l: float, ratios: Floats, copies: Integers
) -> tuple[float, float, int]:
    """Minimise g + k phi + l r over integer r in every group, and write r to ``copies``.

    Returns the sums of the minima, of phi and of r over all tasks. ``ratios`` are the real
    minimisers: starting points on entry, updated.
    """
    columns, max_copies, relaxed = program.columns, program.max_copies, program.relaxed
    count, decay = columns.tasks, columns.decay
    value, sum_phi, used = 0.0, 0.0, 0
    for j in range(count.shape[0]):
        r = response_of(program, j, k, l, ratios[j])
        ratios[j] = r
        below = int(r)
        best = np.inf
        # The integer minimiser is next to the real one, because the cost has a single minimum.
        for c in range(below, min(below + 1, max_copies[j]) + 1):
            cost, _, _ = curve_of(columns, j, float(c))
            phi = miss(decay[j], float(c), relaxed)
            group_cost = cost + k * phi + l * c
            if group_cost < best:
                best = group_cost
                copies[j] = c
        value += count[j] * best
        sum_phi += count[j] * miss(decay[j], float(copies[j]), relaxed)
        used += count[j] * copies[j]
    return value, sum_phi, used


@kernel
def break_step(
    program: Program, k_near: float, l: float, ratios: Floats, copies: Integers
) -> tuple[float, float, float]:
    """Maximise the bound over k at a fixed l; return k, the bound without -l M, and sum r.

    A step is one more copy for each task of a group. The break step is the first that makes sum phi
    fit, like the break item of a knapsack. Two prices around ``k_near`` bracket it. The steps
    between them, sorted by (cost of a copy + l) / (fall of phi), are taken until sum phi is within
    the budget. ``copies`` receives the choice just before the break step; the returned sum r takes
    the break step in part.
    """
    columns, relaxed, budget = program.columns, program.relaxed, program.budget
    count, decay = columns.tasks, columns.decay
    groups = count.shape[0]
    upper = np.empty(groups, dtype=np.int64)
    _, sum_phi, used = integer_responses(program, 0.0, l, ratios, copies)
    if sum_phi <= budget:
        value = 0.0
        for j in range(groups):
            cost, _, _ = curve_of(columns, j, float(copies[j]))
            value += count[j] * (cost + l * copies[j])
        return 0.0, value, float(used)
    factor = 1.02
    low = k_near
    while True:
        low /= factor
        _, sum_phi, used = integer_responses(program, low, l, ratios, copies)
        if sum_phi > budget:
            break
        # Square the factor: the price may differ from the estimate by orders of magnitude.
        factor *= factor
    factor = 1.02
    high = k_near
    while True:
        high *= factor
        _, sum_phi_above, _ = integer_responses(program, high, l, ratios, upper)
        if sum_phi_above <= budget or high > 1e290:  # no finite price may suffice
            break
        factor *= factor
    steps = 0
    for j in range(groups):
        steps += upper[j] - copies[j]
    price = np.empty(steps)
    owner = np.empty(steps, dtype=np.int64)
    fall = np.empty(steps)
    n = 0
    for j in range(groups):
        for c in range(copies[j], upper[j]):
            cost_below, _, _ = curve_of(columns, j, float(c))
            cost_above, _, _ = curve_of(columns, j, c + 1.0)
            drop = miss(decay[j], float(c), relaxed) - miss(decay[j], c + 1.0, relaxed)
            price[n] = (cost_above - cost_below + l) / drop if drop > 0.0 else np.inf
            fall[n] = drop
            owner[n] = j
            n += 1
    order = stable_order(price)
    k = high
    machines = float(used)
    for i in range(steps):
        j = owner[order[i]]
        k = price[order[i]]
        # The break step is taken for a fraction of its group, as in a fractional knapsack.
        wanted = (sum_phi - budget) / fall[order[i]]
        if wanted <= count[j]:
            machines += wanted
            break
        sum_phi -= count[j] * fall[order[i]]
        machines += count[j]
        copies[j] += 1
    value = -k * budget
    for j in range(groups):
        cost, _, _ = curve_of(columns, j, float(copies[j]))
        phi = miss(decay[j], float(copies[j]), relaxed)
        value += count[j] * (cost + k * phi + l * copies[j])
    return k, value, machines


@kernel
def integer_bound(
    program: Program, k_near: float, l_near: float, ratios: Floats, copies: Integers
) -> tuple[float, float, float]:
    """Maximise the bound D(k, l) of this module over both prices; return k, l and D.

    The inner problem over k is exact (`break_step`). Its sum r - M is a subgradient in l, whose
    root is bracketed. ``copies`` receives the minimisers just before the break step.
    """
    machines = program.machines
    trial = np.empty_like(copies)
    k, value, used = break_step(program, k_near, 0.0, ratios, copies)
    if used <= machines * (1.0 + 1e-12):
        return k, 0.0, value
    best_k, best_l, best = k, 0.0, value
    if l_near <= 0.0:
        l_near = max(abs(value) / machines, 1e-300)
    low, high = 0.0, np.inf
    above, below = used - machines, 0.0
    l = l_near
    factor = 1.02
    side = 0
    for _ in range(200):
        k, value, used = break_step(program, k if k > 0.0 else k_near, l, ratios, trial)
        value -= l * machines
        if value > best:
            best_k, best_l, best = k, l, value
            copy_into(copies, trial)
        excess = used - machines
        # Within half a machine, the bound is within half of l's last step from its maximum.
        if abs(excess) <= 0.5 and high - low <= 1e-3 * high:
            break
        if excess > 0.0:
            if side == 1:
                below *= 0.5  # Illinois method: halve the weight of an end that is kept twice
            side = 1
            low, above = l, excess
        else:
            if side == -1:
                above *= 0.5
            side = -1
            high, below = l, excess
        if high == np.inf:
            l *= factor
            factor = min(factor * factor, 1e6)
        elif low == 0.0:
            l /= factor
            factor = min(factor * factor, 1e6)
        else:
            if high - low <= 1e-11 * high:
                break
            l = low + (high - low) * above / (above - below)
            if not low < l < high:
                l = 0.5 * (low + high)
    return best_k, best_l, best

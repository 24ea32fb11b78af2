"""Kernels of CSD's continuous problem: best responses to prices, KKT system, feasibility.

`curves.Columns` describes groups of equal tasks, the cost curve g and phi. The numbers r of copies
are real here, and called ratios. k is the price of the deadline's constraint, sum phi <= C, and l
the price of the machines' constraint, sum r <= M. The equations are CSD's.
"""

from __future__ import annotations

import math

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.cloning.curves import Program, curve, curve_of, miss
from shadowprice.kernels.jit import constant, inlined, kernel

_SHIFT_LIMIT = 3.0  # maximum step of a multiplier's logarithm, because Newton may overshoot
_MAX_ITERATIONS = 200  # brackets shrink at every step, so searches end far earlier

ROOT = constant(0)


@inlined
def _excess(
    kind: int,
    shape: float,
    minimum: float,
    scale: float,
    rows: Floats,
    decay: float,
    relaxed: bool,
    k: float,
    l: float,
    ratio: float,
) -> float:
    """Return the left side of (17): g'(r) + l + k phi'(r)."""
    _, slope, _ = curve(kind, shape, minimum, scale, rows, ratio)
    h = math.exp(-decay * ratio)
    return slope + l - k * (decay * h if relaxed else decay * h / (1.0 - h))


@kernel
def best_response(
    kind: int,
    shape: float,
    minimum: float,
    scale: float,
    rows: Floats,
    decay: float,
    max_copies: float,
    relaxed: bool,
    k: float,
    l: float,
    start: float,
) -> float:
    """Return the r in [1, max_copies] that minimises g(r) + l r + k phi(r), (16).

    Newton on a r + ln(g' + l) [+ ln(1 - h)] = ln(k a), which is nearly linear in r, inside a
    bracket that shrinks at every step.
    """
    low, high = 1.0, max_copies
    ratio = min(max(start, low), high)
    # Evaluate an end only when the search reaches it, which is rare with a warm start.
    low_checked, high_checked = False, False
    if ratio == low:
        if _excess(kind, shape, minimum, scale, rows, decay, relaxed, k, l, low) >= 0.0:
            return low
        low_checked = True
    if ratio == high:
        if _excess(kind, shape, minimum, scale, rows, decay, relaxed, k, l, high) <= 0.0:
            return high
        high_checked = True
    if ratio in (low, high):
        ratio = math.sqrt(low * high)
    target = math.log(k * decay) if k > 0.0 else 0.0
    for _ in range(_MAX_ITERATIONS):
        _, slope, curvature = curve(kind, shape, minimum, scale, rows, ratio)
        marginal = slope + l
        if k > 0.0 and marginal > 0.0:
            h = math.exp(-decay * ratio)
            value = decay * ratio + math.log(marginal) - target
            slope_of_value = decay + curvature / marginal
            if not relaxed:
                value += math.log1p(-h)
                slope_of_value += decay * h / (1.0 - h)
        elif k > 0.0:  # more copies cost no more: go up
            value, slope_of_value = -1.0, 0.0
        else:
            value, slope_of_value = marginal, curvature
        if value < 0.0:
            low = ratio
        else:
            high = ratio
        following = ratio - value / slope_of_value if slope_of_value > 0.0 else -1.0
        # If g' + l is almost 0, its logarithm is steep and steps are tiny far from the root. So a
        # small step ends the search only if the equation holds. Newton squares the error: a step
        # of 1e-6 leaves about 1e-12.
        solved = k == 0.0 or abs(value) <= 1e-5
        if solved and low <= following <= high and abs(following - ratio) <= 1e-6 * ratio:
            return following
        if not low < following < high or (not solved and abs(following - ratio) <= 1e-6 * ratio):
            if not low_checked and following <= low:
                if _excess(kind, shape, minimum, scale, rows, decay, relaxed, k, l, low) >= 0.0:
                    return low
                low_checked = True
            if not high_checked and value < 0.0:
                if _excess(kind, shape, minimum, scale, rows, decay, relaxed, k, l, high) <= 0.0:
                    return high
                high_checked = True
            if high - low <= 1e-12 * high:
                return low
            following = math.sqrt(low * high)
        ratio = following
    return ratio


@inlined
def response_of(program: Program, group: int, k: float, l: float, start: float) -> float:
    """Return `best_response` for a task of a group."""
    columns = program.columns
    return best_response(
        columns.kind[group], columns.shape[group], columns.minimum[group], columns.scale[group],
        columns.tables[columns.table[group]], columns.decay[group],
        float(program.max_copies[group]), program.relaxed, k, l, start,
    )  # fmt: skip


@kernel
def sweep(program: Program, k: float, l: float, ratios: Floats, sums: Floats) -> None:
    """Compute the best response of every group to (k, l), and sums over all tasks.

    ``ratios`` has the previous responses on entry. ``sums`` receives: sum phi, sum r, -d sum phi /
    dk, -d sum phi / dl (equal to -d sum r / dk), and -d sum r / dl.
    """
    columns = program.columns
    count, decay = columns.tasks, columns.decay
    sums[:] = 0.0
    for j in range(count.shape[0]):
        r = response_of(program, j, k, l, ratios[j])
        ratios[j] = r
        _, _, curvature = curve_of(columns, j, r)
        h = math.exp(-decay[j] * r)
        if program.relaxed:
            phi, phi_decrease = h, decay[j] * h
            phi_curvature = decay[j] * phi_decrease
        else:
            phi = -math.log1p(-h)
            phi_decrease = decay[j] * h / (1.0 - h)
            phi_curvature = decay[j] * phi_decrease / (1.0 - h)
        sums[0] += count[j] * phi
        sums[1] += count[j] * r
        if 1.0 < r < program.max_copies[j]:
            total_curvature = curvature + k * phi_curvature
            if total_curvature > 0.0:
                sums[2] += count[j] * phi_decrease * phi_decrease / total_curvature
                sums[3] -= count[j] * phi_decrease / total_curvature
                sums[4] += count[j] / total_curvature


@kernel
def _deadline_price(
    program: Program, k_start: float, l: float, ratios: Floats, sums: Floats
) -> tuple[float, int]:
    """Find k with sum phi = budget at a fixed l; return it and the number of sweeps.

    Newton in (ln k, ln sum phi), inside a bracket.
    """
    low, high = -np.inf, np.inf
    x = math.log(k_start)  # Newton's variable is ln k
    goal = math.log(program.budget)
    sweeps = 0
    for _ in range(_MAX_ITERATIONS):
        k = math.exp(x)
        sweep(program, k, l, ratios, sums)
        sweeps += 1
        excess = math.log(sums[0]) - goal if sums[0] > 0.0 else -700.0  # ln of the least float
        if abs(excess) <= 1e-12:
            break
        if excess > 0.0:
            low = x
        else:
            high = x
        derivative = k * sums[2] / sums[0] if sums[0] > 0.0 else 0.0
        step = (
            excess / derivative
            if derivative > 0.0
            else (_SHIFT_LIMIT if excess > 0.0 else -_SHIFT_LIMIT)
        )
        following = x + min(max(step, -_SHIFT_LIMIT), _SHIFT_LIMIT)
        if not low < following < high:
            if high - low <= 1e-14 * max(1.0, abs(x)):
                break
            following = 0.5 * (low + high)
        if following == x:
            break
        x = following
    return math.exp(x), sweeps


@kernel
def optimum(program: Program, ratios: Floats) -> tuple[float, float, int]:
    """Solve the KKT system (8)-(11) for the continuous numbers of copies.

    Returns the multipliers k and l, and the number of sweeps over the groups. ``ratios`` (groups,)
    receives the copies; its content on entry isn't used.
    """
    columns, budget, machines = program.columns, program.budget, program.machines
    count, decay = columns.tasks, columns.decay
    sums = np.zeros(5)
    total = float(count.sum())
    sweep(program, 0.0, 0.0, ratios, sums)
    sweeps = 1
    needs_price = sums[0] > budget
    if not needs_price and sums[1] <= machines:
        return 0.0, 0.0, sweeps
    # Theorem 1's numbers start the search, for the ratios as for k.
    inverse_decays = (count / decay).sum()
    mean_slope = 0.0
    for j in range(count.shape[0]):
        ratios[j] = min(
            max(math.log(decay[j] * inverse_decays / budget) / decay[j], 1.0),
            float(program.max_copies[j]),
        )
        _, slope, _ = curve_of(columns, j, ratios[j])
        mean_slope += count[j] * max(slope, 1e-9 * abs(slope)) / total
    mean_slope = max(mean_slope, 1e-300)
    k = 0.0
    if needs_price:
        k, inner_sweeps = _deadline_price(
            program, mean_slope * inverse_decays / budget, 0.0, ratios, sums
        )
        sweeps += inner_sweeps
        if sums[1] <= machines * (1.0 + 1e-12):
            return k, 0.0, sweeps
    # (1b) binds. For each l, k(l) keeps the deadline; sum r falls as l grows.
    low, high = -np.inf, np.inf
    l = 0.0
    for j in range(count.shape[0]):
        _, slope, _ = curve_of(columns, j, max(machines / total, 1.0))
        l += count[j] * abs(slope) / total
    y = math.log(max(l, 1e-300))  # Newton's variable is ln l
    rate = 0.0  # d ln k / dl
    last_l = 0.0
    for _ in range(_MAX_ITERATIONS):
        l = math.exp(y)
        priced = needs_price
        if not needs_price:
            # At small l the deadline may hold without a price.
            sweep(program, 0.0, l, ratios, sums)
            sweeps += 1
            priced = sums[0] > budget
        if priced:
            if k == 0.0:
                k = mean_slope * inverse_decays / budget
                rate = 0.0
            # Move ln k along the tangent of the curve sum phi = budget.
            shift = min(max(rate * (l - last_l), -_SHIFT_LIMIT), _SHIFT_LIMIT)
            k, inner_sweeps = _deadline_price(program, k * math.exp(shift), l, ratios, sums)
            sweeps += inner_sweeps
        else:
            k = 0.0
        excess = sums[1] - machines
        if abs(excess) <= 1e-11 * machines:
            break
        if excess > 0.0:
            low = y
        else:
            high = y
        fall = sums[4]
        rate = 0.0
        if priced and sums[2] > 0.0:
            fall -= sums[3] * sums[3] / sums[2]
            rate = -sums[3] / (sums[2] * k)
        last_l = l
        step = excess / (l * fall) if fall > 0.0 else (1.0 if excess > 0.0 else -1.0)
        following = y + min(max(step, -_SHIFT_LIMIT), _SHIFT_LIMIT)
        if not low < following < high:
            if high - low <= 1e-14 * max(1.0, abs(y)):
                break
            following = 0.5 * (low + high)
        if following == y:
            break
        y = following
    return k, l, sweeps


@kernel
def min_copies(
    count: Integers, decay: Floats, machines: int, relaxed: bool, budget: float, copies: Integers
) -> tuple[float, int, int]:
    """Add copies where sum phi decreases most, until it is within budget or all machines are used.

    sum phi is separable and convex, so the greedy order is exact. It falls by many orders of
    magnitude, so it is summed again whenever it has halved. ``copies`` (groups,), all 1 on entry,
    receives the copies of each task. Returns sum phi, the number ``used`` of machines, and a group
    or -1: the first ``used - sum count * copies`` tasks of this group have one more copy.
    """
    groups = count.shape[0]
    gain = np.empty(groups)
    heap = np.empty(groups, dtype=np.int64)
    used = 0
    for j in range(groups):
        phi = miss(decay[j], float(copies[j]), relaxed)
        gain[j] = phi - miss(decay[j], copies[j] + 1.0, relaxed)
        used += count[j] * copies[j]
        heap[j] = j
    total = summed = _sum_phi(count, decay, relaxed, copies, -1, 0)
    for root in range(groups // 2 - 1, -1, -1):
        _sift(heap, gain, root)
    while total > budget and used < machines:
        j = heap[0]
        if gain[j] <= 0.0:
            break
        added = min(count[j], machines - used)
        if total - budget < added * gain[j]:
            added = math.ceil((total - budget) / gain[j])
        if added < count[j]:
            return _sum_phi(count, decay, relaxed, copies, j, added), used + added, j
        used += count[j]
        copies[j] += 1
        total -= count[j] * gain[j]
        if total <= 0.5 * summed:
            total = summed = _sum_phi(count, decay, relaxed, copies, -1, 0)
        gain[j] = miss(decay[j], float(copies[j]), relaxed) - miss(
            decay[j], copies[j] + 1.0, relaxed
        )
        _sift(heap, gain, ROOT)
    return total, used, -1


@kernel
def _sum_phi(
    count: Integers, decay: Floats, relaxed: bool, copies: Integers, group: int, added: int
) -> float:
    """Return sum phi if ``added`` tasks of one group have one more copy."""
    total = 0.0
    for j in range(count.shape[0]):
        tasks = count[j]
        if j == group:
            tasks -= added
            total += added * miss(decay[j], copies[j] + 1.0, relaxed)
        total += tasks * miss(decay[j], float(copies[j]), relaxed)
    return total


@kernel
def _sift(heap: Integers, key: Floats, root: int) -> None:
    """Move a heap's root down; the largest key is on top."""
    size = heap.shape[0]
    item = heap[root]
    while True:
        child = 2 * root + 1
        if child >= size:
            break
        if child + 1 < size and key[heap[child + 1]] > key[heap[child]]:
            child += 1
        if key[heap[child]] <= key[item]:
            break
        heap[root] = heap[child]
        root = child
    heap[root] = item


@kernel
def subgradient(
    program: Program,
    k: float,
    l: float,
    k_scale: float,
    l_scale: float,
    step_decay: float,
    tolerance: float,
    iterations: int,
    ratios: Floats,
) -> tuple[float, float, int, float]:
    """Run Algorithm 1 in scaled multipliers. Both limits, C and M, are above 0.

    Step t moves k by gamma_t ``k_scale`` (sum phi - C) and l by gamma_t ``l_scale`` (sum r - M)
    with gamma_t = 1 / (1 + t / ``step_decay``). The sum of steps diverges, and the sum of their
    squares converges (Theorem 2). Scaling a step by s equals Algorithm 1 with the constraint
    multiplied by sqrt(s).

    Returns k, l, the number of iterations, and the larger relative violation of the two
    constraints. A constraint with a positive price is also violated if it is loose. The loop stops
    once the violation is at most ``tolerance``. ``ratios`` (groups,) are the initial copies of a
    task, and the last responses on return.
    """
    budget, machines = program.budget, program.machines
    sums = np.zeros(5)
    violation = np.inf
    for t in range(iterations):
        sweep(program, k, l, ratios, sums)
        excess_misses = sums[0] - budget
        excess_machines = sums[1] - machines
        miss_gap = abs(excess_misses) if k > 0.0 else max(excess_misses, 0.0)
        machine_gap = abs(excess_machines) if l > 0.0 else max(excess_machines, 0.0)
        violation = max(miss_gap / budget, machine_gap / machines)
        if violation <= tolerance:
            return k, l, t + 1, violation
        gamma = 1.0 / (1.0 + t / step_decay)
        # If phi grows a thousandfold between two prices, a raw step is far too long. Shortening
        # it is a smaller step size, for which Theorem 2 still holds.
        k = max(k + gamma * k_scale * min(excess_misses, budget), 0.0)
        l = max(l + gamma * l_scale * excess_machines, 0.0)
    return k, l, iterations, violation

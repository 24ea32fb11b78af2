"""Kernel of CSD's Algorithm 1: subgradient steps on the two prices."""

from __future__ import annotations

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.cloning.columns import Columns
from shadowprice.kernels.cloning.continuous import sweep
from shadowprice.kernels.jit import kernel


@kernel
def subgradient(
    columns: Columns,
    max_copies: Integers,
    relaxed: bool,
    budget: float,
    machines: float,
    k: float,
    l: float,  # noqa: E741
    k_scale: float,
    l_scale: float,
    step_decay: float,
    tolerance: float,
    iterations: int,
    ratios: Floats,
    history: Floats,
) -> tuple[float, float, int, float]:
    """Run Algorithm 1 in scaled multipliers.

    k is the price of the deadline's constraint, sum phi <= C, and l the price of the machines'
    constraint, sum r <= M. ``budget`` is C, and ``machines`` is M; both are above 0.

    Step t moves k by gamma_t ``k_scale`` (sum phi - C) and l by gamma_t ``l_scale`` (sum r - M)
    with gamma_t = 1 / (1 + t / ``step_decay``): the sum of steps diverges and that of their squares
    converges (Theorem 2). Scaling a step by s equals Algorithm 1 with the constraint multiplied by
    sqrt(s).

    Returns k, l, the number of iterations, and the larger share by which a constraint is violated,
    or loose at a positive price. It stops when both constraints hold, or bind, within the share
    ``tolerance`` of C and of M.

    ``max_copies`` (groups,): maximum copies of a task. ``relaxed``: phi is h = exp(-a r) instead of
    -ln(1 - h). ``ratios`` (groups,): initial copies of a task; the last responses on return.
    ``history`` (n, 3): k, l and the dual value of the first n iterations; written.
    """
    sums = np.zeros(6)
    violation = np.inf
    for t in range(iterations):
        sweep(columns, max_copies, relaxed, k, l, ratios, sums)
        sum_phi, sum_copies, sum_cost = sums[0], sums[1], sums[5]
        excess_misses = sum_phi - budget
        excess_machines = sum_copies - machines
        if t < history.shape[0]:
            history[t, 0] = k
            history[t, 1] = l
            history[t, 2] = sum_cost + k * excess_misses + l * excess_machines
        miss_gap = abs(excess_misses) if k > 0.0 else max(excess_misses, 0.0)
        machine_gap = abs(excess_machines) if l > 0.0 else max(excess_machines, 0.0)
        violation = max(miss_gap / budget, machine_gap / machines)
        if violation <= tolerance:
            return k, l, t + 1, violation
        gamma = 1.0 / (1.0 + t / step_decay)
        # If phi grows a thousandfold between two prices, a raw step is far too long. Shortening
        # it is a smaller step size, for which Theorem 2 still holds.
        k = max(k + gamma * k_scale * min(excess_misses, budget), 0.0)
        l = max(l + gamma * l_scale * excess_machines, 0.0)  # noqa: E741
    return k, l, iterations, violation

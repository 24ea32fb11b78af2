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
    patience: float,
    tolerance: float,
    iterations: int,
    ratios: Floats,
    trail: Floats,
) -> tuple[float, float, int, float]:
    """Run Algorithm 1 in scaled multipliers.

    Step t moves k by gamma_t ``k_scale`` (sum phi - C) and l by gamma_t ``l_scale`` (sum r - M)
    with gamma_t = 1 / (1 + t / ``patience``): the sum of steps diverges and that of their squares
    converges (Theorem 2). A scale is Algorithm 1 on the constraint multiplied by its square root.
    ``budget`` is C, and ``machines`` is M; both are above 0.

    Returns k, l, the number of iterations, and the larger share by which a constraint is violated,
    or loose at a positive price. It stops when both constraints hold, or bind, within the share
    ``tolerance`` of C and of M.

    ``max_copies`` (groups,): maximum copies of a task. ``relaxed``: phi is h = exp(-a r) instead of
    -ln(1 - h). ``ratios`` (groups,): initial copies of a task; the last responses on return.
    ``trail`` (n, 3): k, l and the dual value of the first n iterations; written.
    """
    sums = np.zeros(6)
    violation = np.inf
    for t in range(iterations):
        sweep(columns, max_copies, relaxed, k, l, ratios, sums)
        late = sums[0] - budget
        over = sums[1] - machines
        if t < trail.shape[0]:
            trail[t, 0] = k
            trail[t, 1] = l
            trail[t, 2] = sums[5] + k * late + l * over
        first = abs(late) if k > 0.0 else max(late, 0.0)
        second = abs(over) if l > 0.0 else max(over, 0.0)
        violation = max(first / budget, second / machines)
        if violation <= tolerance:
            return k, l, t + 1, violation
        gamma = 1.0 / (1.0 + t / patience)
        # If phi grows a thousandfold between two prices, a raw step is far too long. Shortening
        # it is a smaller step size, for which Theorem 2 still holds.
        k = max(k + gamma * k_scale * min(late, budget), 0.0)
        l = max(l + gamma * l_scale * over, 0.0)  # noqa: E741
    return k, l, iterations, violation

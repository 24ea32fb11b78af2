"""Lower bounds of the search over slots from residues (Gomory's group relaxation).

At the break slope, taking or leaving an entire break edge costs nothing, so only the deviation
modulo the length of that edge is hard to compensate. If every deviation may be used any number of
times, the cheapest way to each residue is a shortest path on a circle. Unlike convex hulls, the
bound counts parameter servers as integers, so a number of workers that fills none of them costs
extra.
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import inlined

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Maximum length of a break edge for which these bounds are computed, at quadratic cost.
MODULUS_LIMIT = 512


@inlined
def residue_costs(
    modulus: int,
    gap: float,
    multiplier: float,
    copies: Ints,
    base: Ints,
    option_gain: Ints,
    option_cost: Floats,
    option_count: Ints,
) -> Floats:
    """Return the least reduced cost of any deviations whose sum has a given residue, (modulus,).

    Any positive modulus gives valid bounds; the length of the break edge gives good ones. One
    excess unit counts as a deviation of -1 at the price of a unit. The cost is ``inf`` for residues
    that no deviations below ``gap`` reach. The other parameters are those of
    `horizon.core.best_deviation`.
    """
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
                if r < step_cost[step]:
                    step_cost[step] = r
    least = np.full(modulus, np.inf)
    least[0] = 0.0
    for step in range(1, modulus):
        extra = step_cost[step]
        if extra >= least[step]:
            continue
        a = modulus
        b = step
        while b != 0:
            a, b = b, a % b
        for start in range(a):  # the step walks a circles, each twice round
            x = start
            for _ in range(2 * (modulus // a)):
                y = x + step
                if y >= modulus:
                    y -= modulus
                if least[x] + extra < least[y]:
                    least[y] = least[x] + extra
                x = y
    return least


@inlined
def drop_hopeless(
    deviation: Ints,
    reduced: Floats,
    left: Ints,
    right: Ints,
    start: int,
    length: int,
    need: int,
    gap: float,
    least: Floats,
) -> int:
    """Remove states, in place, whose residue the other slots can't fix within the gap.

    The states are ``length`` entries of the arena from ``start`` on. ``need`` is the deviation of a
    complete solution, and ``gap`` its maximum reduced cost. ``least`` is the result of
    `residue_costs`, or empty for no bound. Returns the number of remaining states.
    """
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

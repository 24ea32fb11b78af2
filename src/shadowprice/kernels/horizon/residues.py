"""Lower bounds of the search over slots from residues (Gomory's group relaxation).

At the break slope, taking or leaving an entire break edge costs nothing, so only the deviation
modulo the length of that edge is hard to compensate. If every deviation may be used any number of
times, the cheapest way to each residue is a shortest path on a circle. Unlike convex hulls, the
bound counts parameter servers as integers, so a number of workers that fills none of them costs
extra.
"""

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.horizon.bounds import SlotOptions
from shadowprice.kernels.horizon.lists import States, Target
from shadowprice.kernels.jit import inlined

#: Maximum length of a break edge for which these bounds are computed, at quadratic cost.
MODULUS_LIMIT = 512


@inlined
def residue_costs(
    modulus: int,
    gap: float,
    multiplier: float,
    copies: Integers,
    base: Integers,
    options: SlotOptions,
) -> Floats:
    """Return the least reduced cost of any deviations whose sum has a given residue, (modulus,).

    Any positive modulus gives valid bounds; the length of the break edge gives good ones. One
    excess unit counts as a deviation of -1 at the price of a unit. The cost is ``inf`` for residues
    that no deviations below ``gap`` reach. The other parameters are those of
    `horizon.core.best_deviation`.
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
                minimum[y] = min(minimum[y], minimum[x] + extra)
                x = y
    return minimum


@inlined
def drop_infeasible(states: States, start: int, length: int, target: Target) -> int:
    """Remove states, in place, whose residue the other slots can't fix within the gap.

    The list is ``length`` states from ``start`` on. Returns the number of remaining states.
    """
    deviation, reduced, left, right = states
    need, gap, minimum = target.need, target.gap, target.least
    modulus = len(minimum)
    if modulus == 0:
        return length
    n = start
    for i in range(start, start + length):
        if reduced[i] + minimum[(need - deviation[i]) % modulus] <= gap:
            deviation[n] = deviation[i]
            reduced[n] = reduced[i]
            left[n] = left[i]
            right[n] = right[i]
            n += 1
    return n - start

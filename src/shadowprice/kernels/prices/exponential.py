"""Exponential prices of resources, computed with logarithms.

OASiS (22) and PD-ORS (3.12): P(g) = L (U / L)^(g / c). U / L may be e^1400, so prices are computed
from ln L and ln U. They may underflow to 0 or overflow to ``inf``, but are never NaN.
"""

import math

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import allocation_free, inlined, kernel

#: Capacity of a resource that a server doesn't limit, as in `core.amounts`.
UNLIMITED = 1 << 62
#: Logarithms of the largest finite float and of the smallest positive float.
MAX_EXPONENT = 709.782712893384
MIN_EXPONENT = -745.1332191019411


@allocation_free
def exponential_price(used: int, capacity: int, ln_low: float, ln_high: float) -> float:
    """Return exp(ln L + (g / c) (ln U - ln L)), the price of a resource on a server, OASiS (22).

    ``ln_low`` and ``ln_high`` are the logarithms of the price of an unused and of a full server;
    ``-inf`` for ``ln_low`` means free until full. The price is 0 for a resource that is unlimited
    or that the server lacks.
    """
    if capacity <= 0 or capacity >= UNLIMITED:
        return 0.0
    fraction = used / capacity
    if fraction <= 0.0:
        exponent = ln_low
    elif fraction >= 1.0:
        exponent = ln_high
    elif ln_low == -np.inf or ln_high == -np.inf:
        return 0.0
    else:
        exponent = ln_low + fraction * (ln_high - ln_low)
    if exponent > MAX_EXPONENT:
        return np.inf
    if exponent < MIN_EXPONENT:
        return 0.0
    return math.exp(exponent)


@kernel
def exponential_prices(
    used: Integers, capacity: Integers, ln_low: Floats, ln_high: Floats
) -> Floats:
    """Return the price of every resource on every server, (servers, resources), for one slot.

    The price is for a share of 1: the largest capacity of a server of the pool. ``used`` and
    ``capacity`` have the same shape; for ``ln_low`` and ``ln_high`` (resources,) see
    `exponential_price`.
    """
    servers, resources = capacity.shape
    price = np.empty((servers, resources))
    for s in range(servers):
        for r in range(resources):
            price[s, r] = exponential_price(used[s, r], capacity[s, r], ln_low[r], ln_high[r])
    return price


@inlined
def demand_cost(price: Floats, share: Floats) -> float:
    """Return the cost of a demand in shares, both (resources,)."""
    total = 0.0
    for r in range(len(share)):
        if share[r] > 0.0:  # 0 times an infinite price is NaN
            total += price[r] * share[r]
    return total

"""Slow, obvious twins of prices, of the cost of a slot, and of the placement of workers."""

import math
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Places = list[tuple[float, int, int]]
UNLIMITED = 2**62


def price(used: int, capacity: int, ln_low: float, ln_high: float) -> float:
    """Return L (U / L)^(used / capacity) as written in (22), with 60 digits."""
    if capacity in (0, UNLIMITED):
        return 0.0
    with localcontext() as context:
        context.prec = 60
        low, high = Decimal(ln_low).exp(), Decimal(ln_high).exp()
        exact = low * (high / low) ** (Decimal(used) / Decimal(capacity))
        if exact > Decimal(2) ** 1024:
            return math.inf
        return float(exact)


def places(used: Ints, capacity: Ints, prices: Floats, demand: Ints, share: Floats) -> Places:
    """List every unit of a slot: its cost, the lowest server equal to its own, its server."""
    found: Places = []
    for server in range(len(capacity)):
        wanted = [r for r in range(len(demand)) if demand[r] > 0]
        fits = 10**6
        for r in wanted:
            room = int(capacity[server, r])
            if room != UNLIMITED:
                room -= int(used[server, r])
            fits = min(fits, room // int(demand[r]))
        cost = sum(float(prices[server, r] * share[r]) for r in range(len(demand)) if share[r])
        equal = next(
            s
            for s in range(len(capacity))
            if (capacity[s] == capacity[server]).all() and (used[s] == used[server]).all()
        )
        if cost < math.inf:
            found += [(cost, equal, server)] * fits
    return sorted(found)


def slot_cost(workers: int, servers: int, worker_places: Places, server_places: Places) -> float:
    """Cost of a number of workers and parameter servers on the cheapest units."""
    if workers > len(worker_places) or servers > len(server_places):
        return math.inf
    return sum(p[0] for p in worker_places[:workers]) + sum(p[0] for p in server_places[:servers])


def standing(number: int, places_of_slot: Places, servers: int) -> list[int]:
    """Count the units on each server if ``number`` workers take the cheapest ones."""
    taken = [0] * servers
    for _, _, server in places_of_slot[:number]:
        taken[server] += 1
    return taken

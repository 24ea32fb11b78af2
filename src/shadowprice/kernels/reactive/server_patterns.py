"""The best set of items for one server: an exact bounded knapsack with several resources."""

from __future__ import annotations

import numpy as np

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import constant, kernel
from shadowprice.kernels.order import stable_order

TOP = constant(0)
"""Depth of the search at which no item is decided yet."""


@kernel
def _fractional(
    orders: Integers,
    depth_of: Integers,
    depth: int,
    weight: Integers,
    demand: Integers,
    remaining: Integers,
    limit: Integers,
) -> float:
    """Return an upper bound of the value of items from ``depth`` on.

    It is the least value of the fractional knapsacks of single resources. ``orders`` (resources,
    items) sorts the items by density in each resource, ``depth_of`` is each item's depth.
    """
    resources, items = orders.shape
    best = 0.0
    for i in range(items):
        if depth_of[i] >= depth:
            best += float(weight[i]) * limit[i]
    for r in range(resources):
        total = 0.0
        capacity = float(remaining[r])
        for k in range(items):
            i = orders[r, k]
            if depth_of[i] < depth:
                continue
            needed = float(demand[i, r])
            if needed == 0.0 or needed * limit[i] <= capacity:
                total += float(weight[i]) * limit[i]
                capacity -= needed * limit[i]
            else:
                total += weight[i] * capacity / needed
                break
        best = min(best, total)
    return best


@kernel
def best_pattern(
    weight: Integers,
    demand: Integers,
    capacity: Integers,
    limit: Integers,
    max_nodes: int,
    pattern: Integers,
) -> tuple[int, int]:
    """Maximise ``weight . p`` over integers ``0 <= p <= limit`` with ``p demand <= capacity``.

    Depth-first branch and bound: the densest item first, with its largest count first. A branch
    ends if its bound can't beat the best pattern. Writes the best ``pattern`` (items,); returns its
    value and an upper bound, which are equal unless ``max_nodes`` ended the search.
    """
    items, resources = demand.shape
    orders = np.zeros((resources, items), dtype=np.int64)
    density = np.zeros(items)
    for r in range(resources):
        for i in range(items):
            density[i] = -1e300 if demand[i, r] == 0 else -float(weight[i]) / demand[i, r]
        orders[r] = stable_order(density)
    for i in range(items):
        # Density per share of the scarcest resource, which is comparable over resources.
        share = 1e-12
        for r in range(resources):
            if demand[i, r] > 0:
                share = max(share, demand[i, r] / max(1.0, float(capacity[r])))
        density[i] = -weight[i] / share
    sequence = stable_order(density)
    depth_of = np.zeros(items, dtype=np.int64)
    for k in range(items):
        depth_of[sequence[k]] = k
    remaining = capacity.copy()
    count = np.zeros(items, dtype=np.int64)
    pattern[:] = 0
    best = 0
    value = 0
    nodes = 0
    root = int(
        np.floor(_fractional(orders, depth_of, TOP, weight, demand, remaining, limit) + 1e-6)
    )
    depth = 0
    down = True
    while True:
        if down and depth < items:
            nodes += 1
            # The root's relaxation still bounds every pattern.
            if nodes > max_nodes:
                return best, max(best, root)
            bound = value + _fractional(orders, depth_of, depth, weight, demand, remaining, limit)
            # Values are integers: a bound below best + 1 can't improve it.
            if np.floor(bound + 1e-6) > best:
                i = sequence[depth]
                max_count = limit[i]
                for r in range(resources):
                    if demand[i, r] > 0:
                        max_count = min(max_count, remaining[r] // demand[i, r])
                count[i] = max_count
                value += max_count * weight[i]
                for r in range(resources):
                    remaining[r] -= max_count * demand[i, r]
                depth += 1
                continue
        if down and value > best:
            best = value
            pattern[:] = count
        # Backtrack to the last item with a smaller count to try.
        down = False
        if depth == 0:
            return best, best
        i = sequence[depth - 1]
        if count[i] > 0:
            count[i] -= 1
            value -= weight[i]
            for r in range(resources):
                remaining[r] += demand[i, r]
            down = True
        else:
            depth -= 1

"""Shadow prices of a sample of demand: the dual of the linear program of the scaled sample.

Agrawal, Wang, Ye ("A dynamic near-optimal algorithm for online linear programming", Operations
Research 2014) price future demand by the dual of the program over past demand, scaled to the
capacity: accept all that fits, the highest value first. Here

    min over p >= 0 of  sum_r budget_r p_r + sum_j weight_j max(0, value_j - sum_r use_jr p_r).
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.order import stable_order

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@kernel
def _sift_down(heap: Integers, size: int, index: int, key: Floats) -> None:
    """Restore a heap, the smallest key first and then the smallest number, below an index."""
    item = heap[index]
    while True:
        child = 2 * index + 1
        if child >= size:
            break
        other = child + 1
        if other < size:
            first, second = heap[child], heap[other]
            if key[second] < key[first] or (key[second] == key[first] and second < first):
                child = other
        below = heap[child]
        if key[item] < key[below] or (key[item] == key[below] and item < below):
            break
        heap[index] = below
        index = child
    heap[index] = item


@kernel
def shadow_prices(
    value: Floats, use: Floats, weight: Floats, budget: Floats, sweeps: int
) -> Floats:
    """Minimise the dual by coordinate descent; return the marginal value of each resource.

    ``value`` and ``weight`` (jobs,) are utilities and weights, ``use`` (jobs, resources) the
    demands, and ``budget`` (resources,) the capacity. ``sweeps`` is the maximum number of rounds
    over all resources; one round is exact if one resource is scarce. The price of a resource that
    isn't scarce is 0.
    """
    jobs, resources = use.shape
    price = np.zeros(resources)
    spent = np.zeros(jobs)  # sum_r use_jr p_r
    load = np.zeros(resources)
    heaviest = np.empty(resources)
    steepest = np.empty(jobs)
    heap = np.empty(jobs, np.int64)
    for r in range(resources):
        for j in range(jobs):
            load[r] += weight[j] * use[j, r]
        load[r] = load[r] / budget[r] if budget[r] > 0.0 else 0.0
        heaviest[r] = -load[r]
    order = stable_order(heaviest)
    # A resource's price follows from those of the others, so compute it again if one has changed.
    changes = 0
    computed_at = np.full(resources, -1)
    for _ in range(sweeps):
        moved = False
        for r in order:
            if load[r] <= 1.0 or computed_at[r] == changes:
                continue
            for j in range(jobs):
                ratio = -1.0
                if use[j, r] > 0.0:
                    ratio = (value[j] - spent[j] + use[j, r] * price[r]) / use[j, r]
                steepest[j] = -ratio
            # The capacity is usually full after a small part of the jobs, so a heap needs less time
            # than a sort.
            size = 0
            for j in range(jobs):
                if steepest[j] < 0.0:
                    heap[size] = j
                    size += 1
            for index in range(size // 2 - 1, -1, -1):
                _sift_down(heap, size, index, steepest)
            best = 0.0
            filled = 0.0
            while size:
                j = heap[0]
                filled += weight[j] * use[j, r]
                if filled > budget[r]:
                    best = -steepest[j]
                    break
                size -= 1
                heap[0] = heap[size]
                if size:
                    _sift_down(heap, size, 0, steepest)
            if best != price[r]:
                moved = True
                changes += 1
                for j in range(jobs):
                    spent[j] += use[j, r] * (best - price[r])
                price[r] = best
            computed_at[r] = changes
        if not moved:
            break
    return price

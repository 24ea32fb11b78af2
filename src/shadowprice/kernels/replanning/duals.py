"""Shadow prices of a sample of demand: the dual of the linear program of the scaled sample.

Agrawal, Wang, Ye ("A dynamic near-optimal algorithm for online linear programming", Operations
Research 2014) price future demand by the dual of the program over past demand, scaled to the
capacity: accept all that fits, the highest value first. With jobs j and resources r, the dual is

    min over p >= 0 of  sum_r budget_r p_r + sum_j weight_j max(0, value_j - sum_r use_jr p_r).
"""

import numpy as np

from shadowprice.kernels.arrays import Floats
from shadowprice.kernels.heap import TOP, sink_smallest
from shadowprice.kernels.jit import kernel
from shadowprice.kernels.order import stable_order


@kernel
def shadow_prices(
    value: Floats, use: Floats, weights: Floats, budgets: Floats, sweeps: int
) -> Floats:
    """Minimise the dual by coordinate descent; return the marginal value of each resource.

    Solves one program per row of ``weights`` (programs, jobs) and of the capacities ``budgets``
    (programs, resources); the prices are shaped as ``budgets``. The programs share utilities,
    ``value`` (jobs,), and demands, ``use`` (jobs, resources). ``sweeps`` is the maximum number of
    rounds over all resources; one round is exact if only one resource is scarce. The price of a
    resource that isn't scarce is 0.
    """
    prices = np.zeros(budgets.shape)
    for n in range(len(budgets)):
        _solve(value, use, weights[n], budgets[n], sweeps, prices[n])
    return prices


@kernel
def _solve(
    value: Floats, use: Floats, weight: Floats, budget: Floats, sweeps: int, price: Floats
) -> None:
    """Solve one program of `shadow_prices`; ``price`` is 0 before and has the result after."""
    jobs, resources = use.shape
    load = np.zeros(resources)
    is_scarce = False
    for r in range(resources):
        for j in range(jobs):
            load[r] += weight[j] * use[j, r]
        load[r] = load[r] / budget[r] if budget[r] > 0.0 else 0.0
        is_scarce = is_scarce or load[r] > 1.0
    if not is_scarce:
        return
    order = stable_order(-load)
    spent = np.zeros(jobs)  # sum_r use_jr p_r
    negated_limit = np.empty(jobs)  # minus the price of r at which a job's surplus is 0; 1: none
    heap = np.empty(jobs, np.int64)
    computed_at = np.full(resources, -1)
    # A resource's price follows from those of the others, so compute it again if one has changed.
    changes = 0
    for _ in range(sweeps):
        moved = False
        for r in order:
            if load[r] <= 1.0 or computed_at[r] == changes:
                continue
            for j in range(jobs):
                limit = -1.0
                if use[j, r] > 0.0:
                    limit = (value[j] - spent[j] + use[j, r] * price[r]) / use[j, r]
                negated_limit[j] = -limit
            # The capacity is usually full after a small part of the jobs, so a heap needs less time
            # than a sort.
            size = 0
            for j in range(jobs):
                if negated_limit[j] < 0.0:
                    heap[size] = j
                    size += 1
            for index in range(size // 2 - 1, -1, -1):
                sink_smallest(heap, size, index, negated_limit)
            best = 0.0
            filled = 0.0
            while size:
                j = heap[0]
                filled += weight[j] * use[j, r]
                if filled > budget[r]:  # the first job that doesn't fit sets the price
                    best = -negated_limit[j]
                    break
                size -= 1
                heap[0] = heap[size]
                if size:
                    sink_smallest(heap, size, TOP, negated_limit)
            if best != price[r]:
                moved = True
                changes += 1
                for j in range(jobs):
                    spent[j] += use[j, r] * (best - price[r])
                price[r] = best
            computed_at[r] = changes
        if not moved:
            break

"""Shadow prices of a sample of demand: the dual of the linear program of the scaled sample.

Agrawal, Wang, Ye ("A dynamic near-optimal algorithm for online linear programming", Operations
Research 2014) price future demand by the dual of the program over past demand, scaled to the
capacity: accept what fits, the highest value first. Here

    min over p >= 0 of  sum_r budget_r p_r + sum_j weight_j max(0, value_j - sum_r use_jr p_r).
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.order import stable_order

Floats = NDArray[np.float64]


@kernel
def shadow_prices(
    value: Floats, use: Floats, weight: Floats, budget: Floats, sweeps: int
) -> Floats:
    """Minimise the dual by coordinate descent.

    Parameters
    ----------
    value : float64[jobs]
        Utility of each job.
    use : float64[jobs, resources]
        Demand of each job.
    weight : float64[jobs]
        Weight of each job.
    budget : float64[resources]
        Capacity.
    sweeps : int
        Rounds over all resources; one is exact if one resource is scarce.

    Returns
    -------
    float64[resources]
        Marginal value of each resource; 0 if it isn't scarce.
    """
    jobs, resources = use.shape
    price = np.zeros(resources)
    spent = np.zeros(jobs)  # sum_r use_jr p_r
    load = np.zeros(resources)
    heaviest = np.empty(resources)
    steepest = np.empty(jobs)
    for r in range(resources):
        for j in range(jobs):
            load[r] += weight[j] * use[j, r]
        load[r] = load[r] / budget[r] if budget[r] > 0.0 else 0.0
        heaviest[r] = -load[r]
    order = stable_order(heaviest)
    for _ in range(sweeps):
        moved = False
        for r in order:
            if load[r] <= 1.0:
                continue
            for j in range(jobs):
                ratio = -1.0
                if use[j, r] > 0.0:
                    ratio = (value[j] - spent[j] + use[j, r] * price[r]) / use[j, r]
                steepest[j] = -ratio
            best = 0.0
            filled = 0.0
            for j in stable_order(steepest):
                if steepest[j] >= 0.0:
                    break
                filled += weight[j] * use[j, r]
                if filled > budget[r]:
                    best = -steepest[j]
                    break
            if best != price[r]:
                moved = True
                for j in range(jobs):
                    spent[j] += use[j, r] * (best - price[r])
                price[r] = best
        if not moved:
            break
    return price

"""Plain OASiS decision in numpy: all prices of all servers and slots, and a dense table.

`bench_oasis` and `bench_replay` compare the policy with it. The table is the dynamic program of
Algorithm 2: the minimum cost of each amount of completed work, updated slot by slot.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.job import Job
from shadowprice.core.policy import View
from shadowprice.policies.pricing.board import PriceBoard

Floats = NDArray[np.float64]
UNLIMITED = 2**62


def place_costs(view: View, board: PriceBoard, demand: NDArray[np.int64], maximum: int) -> Floats:
    """Return the cost of the n cheapest places in each slot, shape (slots, maximum + 1)."""
    slots = view.end - view.slot
    capacity = view.ledger.capacity[board.servers].astype(np.float64)
    used = view.ledger.used[:slots, board.servers]
    share = board.pool.shares(demand)
    limited = (capacity > 0) & (capacity < UNLIMITED)
    fraction = np.where(limited, used / np.where(limited, capacity, 1.0), 0.0)
    low, high = board.constants.ln_lower, board.constants.ln_upper
    requested = np.isfinite(high) & (share > 0)
    exponent = low + fraction[:, :, requested] * (high[requested] - low)
    # exp(709) is the largest power that a double can hold.
    price = np.where(limited[:, requested], np.exp(np.minimum(exponent, 709.0)), 0.0)
    unit = price @ share[requested]
    is_used = demand > 0
    places = ((capacity[:, is_used] - used[:, :, is_used]) // demand[is_used]).min(axis=2)
    places = np.clip(places, 0, maximum).astype(np.int64)
    cost = np.full((slots, maximum + 1), math.inf)
    for t in range(slots):
        order = np.argsort(unit[t], kind="stable")
        cheapest = np.repeat(unit[t][order], places[t][order])[:maximum]
        cost[t, 0] = 0.0
        cost[t, 1 : len(cheapest) + 1] = np.cumsum(cheapest)
    return cost


def decide(view: View, workers: PriceBoard, servers: PriceBoard, job: Job) -> float:
    """Return the payoff of the best schedule, ``-inf`` if none completes the job."""
    slots = view.end - view.slot
    if slots <= 0 or job.required > slots * int(job.gains.max()):
        return -math.inf
    cost = place_costs(view, workers, job.worker, job.max_workers)[:, job.worker_counts]
    if job.ps is not None:
        ps_cost = place_costs(view, servers, job.ps, int(job.ps_counts.max()))
        cost = cost + ps_cost[:, job.ps_counts]
    unit = math.gcd(*job.gains.tolist())  # a smaller table suffices
    gains = (job.gains // unit).tolist()
    required = -(-job.required // unit)
    table = np.full(required + 1, math.inf)  # minimum cost by completed work
    table[0] = 0.0
    utility = job.utility.values(np.arange(view.slot - job.arrival, view.end - job.arrival))
    best = -math.inf
    for t in range(slots):
        after = table.copy()
        for choice, gain in enumerate(gains):
            price = cost[t, choice]
            if price == math.inf:
                continue
            step = min(gain, required)
            np.minimum(after[step:], table[: required + 1 - step] + price, out=after[step:])
            # A slot may yield more than the remaining work.
            after[required] = min(after[required], table[required - step :].min() + price)
        table = after
        best = max(best, float(utility[t] - table[required]))
    return best

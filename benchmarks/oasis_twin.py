"""A plain OASiS decision in numpy: every price of every server and slot, and a dense table.

Correct and without tricks: what `bench_oasis` and `bench_replay` measure the policy beside. The
table is Algorithm 2's dynamic program in worker-slots (papers' reading 1): a row a slot, a column
for every amount of work still to do.
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


def place_costs(view: View, board: PriceBoard, demand: NDArray[np.int64], most: int) -> Floats:
    """Return the cost of the n cheapest places in each slot, shape (slots, most + 1)."""
    slots = view.end - view.slot
    capacity = view.ledger.capacity[board.servers].astype(np.float64)
    used = view.ledger.used[:slots, board.servers]
    share = board.pool.shares(demand)
    limited = (capacity > 0) & (capacity < UNLIMITED)
    fraction = np.where(limited, used / np.where(limited, capacity, 1.0), 0.0)
    low, high = board.constants.ln_lower, board.constants.ln_upper
    requested = np.isfinite(high) & (share > 0)
    exponent = low + fraction[:, :, requested] * (high[requested] - low)
    price = np.where(limited[:, requested], np.exp(np.minimum(exponent, 709.0)), 0.0)
    unit = price @ share[requested]
    wanted = demand > 0
    room = ((capacity[:, wanted] - used[:, :, wanted]) // demand[wanted]).min(axis=2)
    room = np.clip(room, 0, most).astype(np.int64)
    cost = np.full((slots, most + 1), math.inf)
    for t in range(slots):
        order = np.argsort(unit[t], kind="stable")
        line = np.repeat(unit[t][order], room[t][order])[:most]
        cost[t, 0] = 0.0
        cost[t, 1 : len(line) + 1] = np.cumsum(line)
    return cost


def decide(view: View, workers: PriceBoard, servers: PriceBoard, job: Job) -> float:
    """Return the payoff of the best schedule, ``-inf`` if none completes the job."""
    slots = view.end - view.slot
    if slots <= 0 or job.required > slots * int(job.gains.max()):
        return -math.inf
    most = job.max_workers
    cost = place_costs(view, workers, job.worker, most)[:, job.worker_counts]
    if job.ps is not None:
        fewest = place_costs(view, servers, job.ps, int(job.ps_counts.max()))
        cost = cost + fewest[:, job.ps_counts]
    unit = math.gcd(*job.gains.tolist())
    gains = (job.gains // unit).tolist()
    need = -(-job.required // unit)
    table = np.full(need + 1, math.inf)
    table[0] = 0.0
    utility = job.utility.values(np.arange(view.slot - job.arrival, view.end - job.arrival))
    best = -math.inf
    for t in range(slots):
        after = table.copy()
        for choice, gain in enumerate(gains):
            price = cost[t, choice]
            if price == math.inf:
                continue
            step = min(gain, need)
            np.minimum(after[step:], table[: need + 1 - step] + price, out=after[step:])
            after[need] = min(after[need], table[need - step :].min() + price)
        table = after
        best = max(best, float(utility[t] - table[need]))
    return best

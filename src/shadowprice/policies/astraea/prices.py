"""Price function (8), its parameter theta, and Lemma 1's number of rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.errors import InputError
from shadowprice.policies.astraea.guarantees import lemma3_sigma
from shadowprice.policies.tenants.gang_jobs import MAX_UTILITY_MICROS, MICRO, GangJob


def price_table(theta: float, capacity: int) -> Integers:
    """Return the price of one unit for a slot, by the number of units taken: Eq. (8).

    ``theta ** (taken / capacity) - 1``, in millionths of a unit of utility. The exponent is missing
    in print; the paper's example confirms it (16^(2/8) - 1 = 1). ``capacity`` counts the units of
    this type in the whole cluster.
    """
    if not (1 < theta < math.inf):
        raise InputError(f"theta is {theta}; give a number above 1")
    if not capacity:
        return np.zeros(1, np.int64)
    taken = np.arange(capacity + 1) / capacity
    prices = np.rint(MICRO * np.expm1(taken * math.log(theta)))
    return np.asarray(prices, np.int64)


def max_theta(capacity: int, slots: int) -> float:
    """Return the largest theta at which all units of a round cost a countable sum."""
    # A thousandth less, so that rounding errors of prices don't matter.
    return 1.0 + 0.999 * MAX_UTILITY_MICROS / (MICRO * max(capacity, 1) * slots)


def min_thetas(
    jobs: Iterable[GangJob],
    max_workers: int,
    max_utility: float = math.inf,
    min_price: float = 1.0,
) -> tuple[float, float]:
    """Return the smallest thetas of workers and of parameter servers that no job outbids.

    Section 4.4: the price of an exhausted resource, ``theta - 1``, is at least the utility of any
    job per worker-slot (parameter-server-slot) of any of its schedules, and at least ``min_price``,
    which is 1 in the paper. The jobs are of one pair of types. ``max_workers`` is the maximum on
    one server, which limits co-located gangs. Utility counts up to ``max_utility``.
    """
    worker = ps = min_price
    for job in jobs:
        allowed = np.flatnonzero(job.reach >= 0)
        if not allowed.size:
            continue
        counts, reach = job.counts, job.reach
        min_ps = np.full(counts.size, allowed[0])
        can_colocate = np.asarray(counts <= max_workers)
        # The minimum of parameter servers on one server with which each gang size can be spread.
        local_workers = counts[:, None] - np.minimum(reach, counts[:, None])
        serves = (reach >= 1) & (local_workers <= max_workers)
        ways = (
            (job.colocated_slots, can_colocate, min_ps),
            (job.spread_slots, np.asarray(serves.any(axis=1)), serves.argmax(axis=1)),
        )
        for slots, possible, servers in ways:
            utility = np.minimum(job.utility(slots[possible]), max_utility)
            worker = max(worker, float((utility / (counts * slots)[possible]).max(initial=0.0)))
            served = servers[possible] > 0
            ps_slots = (servers * slots)[possible][served]
            ps = max(ps, float((utility[served] / ps_slots).max(initial=0.0)))
    return 1 + worker, 1 + ps


def lemma_1_rounds(
    total_utility: float, min_utility: float, theta_worker: float, theta_ps: float
) -> int:
    """Return Lemma 1's lambda: rounds in which a batch earns the ideal optimum of one.

    ``floor((log f(all jobs) - log f_min) / (log sigma - log(sigma - 1))) + 1`` with Lemma 3's
    ``sigma = 2 (log theta_w + log theta_p)``. The total is over all jobs, each at its best; the
    least utility of a job must be positive.
    """
    if not 0 < min_utility <= total_utility:
        raise InputError("the least utility must be positive and at most the total")
    ratio = lemma3_sigma(theta_worker, theta_ps)
    if ratio <= 1:
        # In one round the algorithm is as good as the optimum.
        return 1
    return math.floor(math.log(total_utility / min_utility) / -math.log1p(-1 / ratio)) + 1

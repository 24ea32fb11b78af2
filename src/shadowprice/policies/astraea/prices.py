"""Price function (8), its parameter theta, and the guarantees of Lemmas 1, 3 and Theorem 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.utility import Linear, Power
from shadowprice.policies.tenants.tenancy import MAX_UTILITY_MICROS, MICRO, GangJob


def lemma3_sigma(theta_worker: float, theta_ps: float) -> float:
    """Return Lemma 3's sigma, ``2 (log theta_w + log theta_p)``, at least 1.

    A round's ideal revenue is at least 1 / sigma of that round's optimum.
    """
    return max(1.0, 2.0 * (math.log(theta_worker) + math.log(theta_ps)))


class PerformanceBound(NamedTuple):
    """Theorem 1's bound."""

    batches: int
    """L: number of batches, each twice as long as the one before, until all jobs were completed."""
    loss_at_most: float | None
    """Maximum loss against the offline optimum; None unless all utilities are linear."""
    ratio_at_least: float | None
    """Minimum ratio of revenue to the optimum; None unless all utilities are convex, (e / t)^kappa,
    where t is the completion time on the cluster's clock. The printed bound fails if e exceeds t,
    so it is also None if some job arrives after slot 0 or has e > 1."""


def performance(jobs: Sequence[Job], rounds: int, completed_by: int) -> PerformanceBound:
    """Return Theorem 1's bound over all jobs that arrived, for lambda rounds a batch.

    The theorem assumes Lemma 1's lambda. ``completed_by`` is the end of the last slot of the last
    job: L is the least with tau_L = 2^L at or after it.
    """
    batches = max(completed_by - 1, 0).bit_length()  # ceil(log2)
    slopes = [job.utility.slope for job in jobs if isinstance(job.utility, Linear)]
    if jobs and len(slopes) == len(jobs):
        # (i); slopes are negative, so the first term reduces the second.
        loss_per_job = (2**batches - 1) * max(slopes)
        loss_per_job -= (2 ** (batches + 1) - 1) * (2 * rounds - 1) * min(slopes)
        return PerformanceBound(batches, len(jobs) * loss_per_job, None)
    powers = [job.utility for job in jobs if isinstance(job.utility, Power)]
    on_clock = all(job.arrival == 0 for job in jobs)
    if jobs and len(powers) == len(jobs) and on_clock and max(p.scale for p in powers) <= 1.0:
        low, high = (pick(power.exponent for power in powers) for pick in (min, max))
        min_scale, max_scale = (pick(power.scale for power in powers) for pick in (min, max))
        logarithm = -high * math.log(4 * rounds) - (batches - 2) * (high - low) * math.log(2)
        logarithm += high * math.log(min_scale) - low * math.log(max_scale)
        return PerformanceBound(batches, None, math.exp(min(logarithm, 0.0)))
    return PerformanceBound(batches, None, None)


def price_table(theta: float, capacity: int) -> Integers:
    """Return the price of a unit for a slot in millionths, by the units taken: Eq. (8).

    ``theta ** (taken / capacity) - 1``; the exponent is missing in print, the example confirms it
    (16^(2/8) - 1 = 1). ``capacity`` counts the type's units in the cluster.
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
    sigma. The total is over all jobs, each at its best; the least utility must be positive.
    """
    if not 0 < min_utility <= total_utility:
        raise InputError("the least utility must be positive and at most the total")
    ratio = lemma3_sigma(theta_worker, theta_ps)
    if ratio <= 1:
        # In one round the algorithm is as good as the optimum.
        return 1
    return math.floor(math.log(total_utility / min_utility) / -math.log1p(-1 / ratio)) + 1

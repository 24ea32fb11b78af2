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
    """Return Lemma 3's sigma, ``2 (log theta_w + log theta_p)``, or 1 if that is less.

    The ideal revenue of a round is at least 1 / sigma of its optimum.
    """
    return max(1.0, 2.0 * (math.log(theta_worker) + math.log(theta_ps)))


class PerformanceBound(NamedTuple):
    """Theorem 1's bound of the revenue against the offline optimum."""

    batches: int
    """L: number of batches until all jobs were completed; each is twice as long as the previous."""
    loss_at_most: float | None
    """Maximum loss against the offline optimum; None unless all utilities are linear."""
    ratio_at_least: float | None
    """Minimum ratio of revenue to the optimum. None unless all utilities are convex, (e / t)^kappa,
    where t is the completion slot counted from slot 0. The printed bound fails if e exceeds t, so
    it is also None if a job arrives after slot 0 or has e > 1."""


def performance(jobs: Sequence[Job], rounds: int, completed_by: int) -> PerformanceBound:
    """Return Theorem 1's bound over all jobs that arrived.

    ``rounds`` is lambda, the rounds of a batch; the theorem assumes Lemma 1's value. All jobs are
    completed by the start of slot ``completed_by``, so L is the least with 2^L >= completed_by.
    """
    batches = max(completed_by - 1, 0).bit_length()  # ceil(log2)
    slopes = [job.utility.slope for job in jobs if isinstance(job.utility, Linear)]
    if jobs and len(slopes) == len(jobs):
        # Theorem 1 (i). Slopes are negative, so the first term lowers the bound.
        loss_per_job = (2**batches - 1) * max(slopes)
        loss_per_job -= (2 ** (batches + 1) - 1) * (2 * rounds - 1) * min(slopes)
        return PerformanceBound(batches, len(jobs) * loss_per_job, None)
    powers = [job.utility for job in jobs if isinstance(job.utility, Power)]
    all_arrive_first = all(job.arrival == 0 for job in jobs)
    if (
        jobs
        and len(powers) == len(jobs)
        and all_arrive_first
        and max(power.scale for power in powers) <= 1.0
    ):
        # Theorem 1 (ii), as a logarithm.
        low, high = (pick(power.exponent for power in powers) for pick in (min, max))
        min_scale, max_scale = (pick(power.scale for power in powers) for pick in (min, max))
        logarithm = -high * math.log(4 * rounds) - (batches - 2) * (high - low) * math.log(2)
        logarithm += high * math.log(min_scale) - low * math.log(max_scale)
        return PerformanceBound(batches, None, math.exp(min(logarithm, 0.0)))
    return PerformanceBound(batches, None, None)


def price_table(theta: float, capacity: int) -> Integers:
    """Return the price of a unit for a slot in millionths, by the number of units taken: Eq. (8).

    It is ``theta ** (taken / capacity) - 1``. The exponent is missing in print, but the paper's
    example confirms it: 16^(2/8) - 1 = 1. ``capacity`` is the total of the type's units.
    """
    if not (1 < theta < math.inf):
        raise InputError(f"theta is {theta}; give a number above 1")
    if not capacity:
        return np.zeros(1, np.int64)
    taken = np.arange(capacity + 1) / capacity
    prices = np.rint(MICRO * np.expm1(taken * math.log(theta)))
    return np.asarray(prices, np.int64)


def max_theta(capacity: int, slots: int) -> float:
    """Return the largest theta at which the price of all units of a round fits an integer."""
    # A thousandth less, because prices are rounded.
    return 1.0 + 0.999 * MAX_UTILITY_MICROS / (MICRO * max(capacity, 1) * slots)


def min_thetas(
    jobs: Iterable[GangJob],
    max_workers: int,
    max_utility: float = math.inf,
    min_price: float = 1.0,
) -> tuple[float, float]:
    """Return the smallest thetas of workers and of parameter servers by their definition.

    Section 4.4: ``theta - 1``, the price of an exhausted type, is at least ``min_price`` (1 in the
    paper). It is also at least any job's utility per worker-slot, or per slot of a parameter
    server, in any schedule. All jobs use the same two types of units. ``max_workers`` is the
    maximum number of worker units on one server. Utilities are capped at ``max_utility``.
    """
    worker = ps = min_price
    for job in jobs:
        allowed = np.flatnonzero(job.reach >= 0)
        if not allowed.size:
            continue
        counts, reach = job.counts, job.reach
        min_ps = np.full(counts.size, allowed[0])
        can_colocate = np.asarray(counts <= max_workers)
        # Whether PS on one server serve each gang size if only some workers are on that server.
        local_workers = counts[:, None] - np.minimum(reach, counts[:, None])
        serves = (reach >= 1) & (local_workers <= max_workers)
        ways = (
            (job.colocated_slots, can_colocate, min_ps),
            (job.spread_slots, np.asarray(serves.any(axis=1)), serves.argmax(axis=1)),
        )
        for slots, possible, ps_counts in ways:
            utility = np.minimum(job.utility(slots[possible]), max_utility)
            worker = max(worker, float((utility / (counts * slots)[possible]).max(initial=0.0)))
            served = ps_counts[possible] > 0
            ps_slots = (ps_counts * slots)[possible][served]
            ps = max(ps, float((utility[served] / ps_slots).max(initial=0.0)))
    return 1 + worker, 1 + ps


def lemma_1_rounds(
    total_utility: float, min_utility: float, theta_worker: float, theta_ps: float
) -> int:
    """Return Lemma 1's lambda: the rounds in which a batch earns the optimum of one round.

    It is ``floor((log f(all jobs) - log f_min) / (log sigma - log(sigma - 1))) + 1`` with Lemma 3's
    sigma. ``total_utility`` is f(all jobs), with the maximum utility of each job. Raises
    `InputError` if ``min_utility``, f_min, isn't positive.
    """
    if not 0 < min_utility <= total_utility:
        raise InputError("the least utility must be positive and at most the total")
    ratio = lemma3_sigma(theta_worker, theta_ps)
    if ratio <= 1:
        # With sigma = 1, one round already earns its optimum.
        return 1
    return math.floor(math.log(total_utility / min_utility) / -math.log1p(-1 / ratio)) + 1

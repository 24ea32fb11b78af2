"""The premise and ratio of Theorem 4 of OASiS, and of Theorem 3 of PD-ORS, for a run.

The theorem's ratio is 2 alpha, with alpha = max(1, ln U / L). Its premises: D0 <= OPT / 2, and no
job's utility per share of a resource exceeds U. D0 is the dual value of the prices of empty
servers, T * sum of L * capacity. OPT, the offline optimum, isn't known. The best job alone and the
earnings of all admitted plans bound it from below. The utilities of all jobs at their best, as far
as their minimum use fits, bound it from above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from shadowprice.core.job import Job
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.constants import ConstantsLearner, PriceConstants

Fields = dict[str, object]

_ROUNDING: Final = 1e-9
"""Relative rounding error of D0, a product of exponentials, that is tolerated."""


def guarantee_alpha(constants: Sequence[PriceConstants]) -> float:
    """Return alpha = max(1, ln U^r / L) over pools and resources; infinite if L is 0."""
    alpha = 1.0
    for pool in constants:
        upper = pool.ln_upper[np.isfinite(pool.ln_upper)]
        if len(upper):
            alpha = max(alpha, float(upper.max()) - pool.ln_lower)
    return alpha


def initial_dual(
    learners: Sequence[ConstantsLearner], constants: Sequence[PriceConstants], timespan: int
) -> float:
    """Return D0: the prices of the empty pools over the timespan."""
    total = 0.0
    for learner, pool in zip(learners, constants, strict=True):
        priced = learner.pool.total_shares[np.isfinite(pool.ln_upper)].sum()
        total += timespan * math.exp(pool.ln_lower) * float(priced)
    return total


def optimum_at_most(
    learners: Sequence[ConstantsLearner], jobs: Sequence[Job], timespan: int
) -> float:
    """Return an upper bound of the offline optimum.

    For each pool and resource, a fractional knapsack: jobs at their best utility, each with its
    minimum worker-slots. The minimum over resources counts, without those that some server doesn't
    limit.
    """
    best = np.array([_best(job) for job in jobs])
    bound = float(best.sum())
    for learner in learners:
        if learner.carries == "ps":
            continue
        min_worker_slots = np.array([_least_worker_slots(job) for job in jobs])
        shares = np.array([learner.pool.shares(job.worker) for job in jobs])
        uses = shares * min_worker_slots[:, None]
        for resource, total in enumerate(learner.pool.room):
            if 0 < total < math.inf:
                bound = min(bound, _knapsack(best, uses[:, resource], timespan * float(total)))
    return bound


def guarantee(
    learners: Sequence[ConstantsLearner],
    constants: Sequence[PriceConstants],
    alone: StandaloneValue,
    jobs: Sequence[Job],
    earned: float,
    *,
    factor: float = 2.0,
) -> Fields:
    """Return the theorem's ratio for a run, and whether its premise held.

    ``jobs`` are all that arrived. ``earned`` is the total utility of the plans of all admitted
    jobs, by the model. ``factor`` is the ratio over alpha: 2 in OASiS's Theorem 4, 6 G / delta in
    PD-ORS's Theorem 3.

    ``D0_within_half_of_optimum`` is None if neither bound of the optimum decides. The ratio is
    proved only if that and ``U_covers_all_jobs`` are true. Infinite numbers are None.
    """
    alpha = guarantee_alpha(constants)
    first = min((job.arrival for job in jobs), default=0)
    last = max((job.arrival for job in jobs), default=0)
    until, horizon = learners[0].until, learners[0].horizon
    timespan = (last + horizon if until is None else until) - first
    dual = initial_dual(learners, constants, timespan)
    windows = (horizon if until is None else min(horizon, until - job.arrival) for job in jobs)
    ln_alone = max(map(alone.ln_utility, jobs, windows), default=-math.inf)
    lower_bound = max(math.exp(ln_alone), earned)
    upper_bound = max(optimum_at_most(learners, jobs, timespan), lower_bound) if jobs else 0.0
    premise_held = None
    if 2 * dual <= lower_bound * (1 + _ROUNDING):
        premise_held = True
    elif 2 * dual > upper_bound:
        premise_held = False
    return {
        "alpha": alpha if math.isfinite(alpha) else None,
        "ratio": factor * alpha if math.isfinite(factor * alpha) else None,
        "D0": dual,
        "optimum_at_least": lower_bound,
        "optimum_at_most": upper_bound,
        "D0_within_half_of_optimum": premise_held,
        "U_covers_all_jobs": all(
            learner.covers(job, pool)
            for learner, pool in zip(learners, constants, strict=True)
            for job in jobs
        ),
    }


def _best(job: Job) -> float:
    return math.exp(float(job.utility.log_values(np.array([job.min_slots_colocated - 1]))[0]))


def _least_worker_slots(job: Job) -> float:
    if job.bag is not None:
        return 0.0
    gains = np.maximum(job.gains, job.internal_gains)
    useful = gains > 0
    slots = job.worker_counts[useful] * (job.required / gains[useful])
    return float(slots.min(initial=math.inf))


def _knapsack(values: np.ndarray, uses: np.ndarray, room: float) -> float:
    """Return the maximum value of the fractional knapsack with a capacity of ``room``."""
    free = uses <= 0
    total = float(values[free].sum())
    values, uses = values[~free], uses[~free]
    order = np.argsort(-values / uses, kind="stable")
    taken = np.cumsum(uses[order])
    whole = int(np.searchsorted(taken, room, side="right"))
    total += float(values[order][:whole].sum())
    if whole < len(order):
        remaining = room - (float(taken[whole - 1]) if whole else 0.0)
        total += float((values / uses)[order[whole]]) * remaining
    return total

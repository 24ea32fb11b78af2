"""What Theorem 4 of OASiS, and Theorem 3 of PD-ORS, say of a run: alpha, D0, and whether it held.

The theorem's ratio is 2 alpha, with alpha = max(1, ln U / L), if D0 <= OPT / 2: the dual value of
the prices of empty servers, T * sum of L * capacity, is at most half of the offline optimum. OPT
is not known. The best that one job earns alone, and what all admitted plans earn together, bound
it from below; what jobs are worth at their best, each taking the least it can of what there is,
from above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from shadowprice.core.job import Job
from shadowprice.policies.pricing.alone import Alone
from shadowprice.policies.pricing.constants import ConstantsLearner, PriceConstants

Fields = dict[str, object]

_ROUNDING: Final = 1e-9
"""Share by which D0, a product of exponentials, may exceed what it is to equal."""


def alpha_of(constants: Sequence[PriceConstants]) -> float:
    """Return alpha = max(1, ln U^r / L) over pools and resources; infinite where L is 0."""
    alpha = 1.0
    for pool in constants:
        upper = pool.ln_upper[np.isfinite(pool.ln_upper)]
        if len(upper):
            alpha = max(alpha, float(upper.max()) - pool.ln_lower)
    return alpha


def initial_dual(
    learners: Sequence[ConstantsLearner], constants: Sequence[PriceConstants], timespan: int
) -> float:
    """Return D0: the prices of all that the pools hold, empty, over the timespan."""
    total = 0.0
    for learner, pool in zip(learners, constants, strict=True):
        priced = learner.pool.total_shares[np.isfinite(pool.ln_upper)].sum()
        total += timespan * math.exp(pool.ln_lower) * float(priced)
    return total


def optimum_at_most(
    learners: Sequence[ConstantsLearner], jobs: Sequence[Job], timespan: int
) -> float:
    """Return an upper bound of the offline optimum.

    All jobs at their best, as far as they fit into each resource of each pool alone: a fractional
    knapsack, in which a job takes its fewest worker-slots. The least over resources counts, those
    apart that some server does not limit.
    """
    best = np.array([_best(job) for job in jobs])
    bound = float(best.sum())
    for learner in learners:
        if learner.carries == "ps":
            continue
        least = np.array([_least_worker_slots(job) for job in jobs])
        shares = np.array([learner.pool.shares(job.worker) for job in jobs])
        uses = shares * least[:, None]
        for resource, total in enumerate(learner.pool.room):
            if 0 < total < math.inf:
                bound = min(bound, _knapsack(best, uses[:, resource], timespan * float(total)))
    return bound


def guarantee(
    learners: Sequence[ConstantsLearner],
    constants: Sequence[PriceConstants],
    alone: Alone,
    jobs: Sequence[Job],
    earned: float,
    *,
    factor: float = 2.0,
) -> Fields:
    """Return what the theorem says of a run.

    Parameters
    ----------
    learners : sequence of ConstantsLearner
        One a pool.
    constants : sequence of PriceConstants
        In force at the end.
    alone : Alone
        What a job can earn by itself.
    jobs : sequence of Job
        All that arrived.
    earned : float
        What the plans of all admitted jobs earn together, by the model.
    factor : float
        The ratio over alpha: 2 of OASiS's Theorem 4, 6 G / delta of PD-ORS's Theorem 3.

    Returns
    -------
    dict
        ``alpha``, ``ratio``, ``D0``, bounds of the optimum and of D0 over it, and whether
        ``D0_within_half_of_optimum``: true, false, or None where neither bound decides. Infinite
        numbers are None.
    """
    alpha = alpha_of(constants)
    first = min((job.arrival for job in jobs), default=0)
    last = max((job.arrival for job in jobs), default=0)
    until, horizon = learners[0].until, learners[0].horizon
    timespan = (last + horizon if until is None else until) - first
    dual = initial_dual(learners, constants, timespan)
    windows = (horizon if until is None else min(horizon, until - job.arrival) for job in jobs)
    ln_alone = max(map(alone.ln_utility, jobs, windows), default=-math.inf)
    least = max(math.exp(ln_alone), earned)
    most = max(optimum_at_most(learners, jobs, timespan), least) if jobs else 0.0
    held = None
    if 2 * dual <= least * (1 + _ROUNDING):
        held = True
    elif 2 * dual > most:
        held = False
    return {
        "alpha": alpha if math.isfinite(alpha) else None,
        "ratio": factor * alpha if math.isfinite(factor * alpha) else None,
        "D0": dual,
        "optimum_at_least": least,
        "optimum_at_most": most,
        "D0_within_half_of_optimum": held,
    }


def _best(job: Job) -> float:
    return math.exp(float(job.utility.log_values(np.array([job.fastest_slots - 1]))[0]))


def _least_worker_slots(job: Job) -> float:
    if job.bag is not None:
        return 0.0
    gains = np.maximum(job.gains, job.internal_gains)
    useful = gains > 0
    slots = job.worker_counts[useful] * (job.required / gains[useful])
    return float(slots.min(initial=math.inf))


def _knapsack(values: np.ndarray, uses: np.ndarray, room: float) -> float:
    """Return the largest value of jobs taken in part whose uses sum to no more than the room."""
    free = uses <= 0
    total = float(values[free].sum())
    values, uses = values[~free], uses[~free]
    order = np.argsort(-values / uses, kind="stable")
    taken = np.cumsum(uses[order])
    whole = int(np.searchsorted(taken, room, side="right"))
    total += float(values[order][:whole].sum())
    if whole < len(order):
        left = room - (float(taken[whole - 1]) if whole else 0.0)
        total += float((values / uses)[order[whole]]) * left
    return total

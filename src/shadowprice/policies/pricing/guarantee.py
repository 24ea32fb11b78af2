"""The premise and ratio of Theorem 4 of OASiS, and of Theorem 3 of PD-ORS, for a run.

The theorem's ratio is 2 alpha, with alpha = max(1, ln U / L). It has premises (`guarantee`), among
them D0 <= OPT / 2. D0 is the dual value of the prices of empty servers, T * sum of L * capacity.
OPT, the offline optimum, isn't known. The best job alone and the earnings of all admitted plans
bound it from below. The utilities of all jobs at their best, as far as their minimum use fits,
bound it from above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Floats
from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.job import Job
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.constants import ConstantsLearner, PriceConstants

Fields = dict[str, object]

_ROUNDING: Final = 1e-9
"""Relative rounding error of D0, a product of exponentials, that is tolerated."""

_SMALL: Final = 0.1
"""Largest rise of ln(price) by one job on one server that counts as small.

The proofs integrate over ever smaller rises. A rise of x makes the ratio (e^x - 1) / x times as
large: 1.05 here.
"""


def guarantee_alpha(constants: Sequence[PriceConstants]) -> float:
    """Return alpha = max(1, ln U^r / L) over pools and resources; infinite if L is 0."""
    alpha = 1.0
    for pool in constants:
        upper = pool.ln_upper[np.isfinite(pool.ln_upper)]
        if len(upper):
            alpha = max(alpha, float(upper.max()) - pool.ln_lower)
    return alpha


def optimum_at_most(
    learners: Sequence[ConstantsLearner], jobs: Sequence[Job], timespan: int
) -> float:
    """Return an upper bound of the offline optimum.

    For each pool and limited resource, a fractional knapsack of jobs at their best utility, each
    with its minimum worker-slots; the minimum counts.
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


def max_share_of_server(
    learners: Sequence[ConstantsLearner], cluster: Cluster, jobs: Sequence[Job]
) -> float:
    """Return the largest share of a server's limited resources that one job can take."""
    if not jobs:
        return 0.0
    largest = 0.0
    for learner in learners:
        members = np.flatnonzero(learner.pool.members)
        _, first = np.unique(cluster.kinds[members], return_index=True)
        for capacity in cluster.capacity[members[first]]:
            total = np.zeros((len(jobs), len(capacity)))
            if learner.carries != "ps":
                demands = [job.worker for job in jobs]
                counts = [math.inf if job.bag else job.max_workers for job in jobs]
                total += _shares_on(capacity, demands, counts)
            if learner.carries != "workers":
                demands = [0 * job.worker if job.ps is None else job.ps for job in jobs]
                counts = [float(job.ps_counts.max()) for job in jobs]
                total += _shares_on(capacity, demands, counts)
            largest = max(largest, float(total.max()))
    return min(largest, 1.0)


def _shares_on(capacity: Amounts, demands: Sequence[Amounts], counts: Sequence[float]) -> Floats:
    """Return shares of a server by job and resource, for up to ``counts`` processes of a job."""
    demand = np.array(demands, dtype=np.float64)
    limited = capacity < UNLIMITED
    fits = np.full(demand.shape, np.inf)
    np.floor_divide(capacity, demand, out=fits, where=limited & (demand > 0))
    number = np.minimum(fits.min(axis=1), counts)
    number[~np.isfinite(number)] = 0.0  # nothing that the server limits
    room = np.where(limited & (capacity > 0), capacity, np.inf)
    return np.asarray(number[:, None] * demand / room)


def guarantee(
    learners: Sequence[ConstantsLearner],
    constants: Sequence[PriceConstants],
    alone: StandaloneValue,
    cluster: Cluster,
    jobs: Sequence[Job],
    earned: float,
    premises: Mapping[str, bool],
    *,
    factor: float = 2.0,
) -> Fields:
    """Return the theorem's ratio for a run, and whether each of its premises held.

    ``jobs`` are all that arrived, ``earned`` is the total utility of all admitted plans, and
    ``premises`` are those that only the policy knows. ``factor`` is the ratio over alpha: 2 in
    OASiS's Theorem 4, 6 G / delta in PD-ORS's Theorem 3.

    ``D0_within_half_of_optimum`` is None if neither bound of the optimum decides. The ratio is
    proved only if ``premises_held``: all are true. Infinite numbers are None.
    """
    alpha = guarantee_alpha(constants)
    first = min((job.arrival for job in jobs), default=0)
    last = max((job.arrival for job in jobs), default=0)
    until, horizon = learners[0].until, learners[0].horizon
    timespan = (last + horizon if until is None else until) - first
    dual = 0.0
    for learner, pool in zip(learners, constants, strict=True):
        priced = learner.pool.total_shares[np.isfinite(pool.ln_upper)].sum()
        dual += timespan * math.exp(pool.ln_lower) * float(priced)
    windows = (horizon if until is None else min(horizon, until - job.arrival) for job in jobs)
    ln_alone = max(map(alone.ln_utility, jobs, windows), default=-math.inf)
    lower_bound = max(math.exp(ln_alone), earned)
    upper_bound = max(optimum_at_most(learners, jobs, timespan), lower_bound) if jobs else 0.0
    within_half = None
    if 2 * dual <= lower_bound * (1 + _ROUNDING):
        within_half = True
    elif 2 * dual > upper_bound:
        within_half = False
    share = max_share_of_server(learners, cluster, jobs)
    held: dict[str, bool | None] = {
        "D0_within_half_of_optimum": within_half,
        "U_covers_all_jobs": all(
            learner.covers(job, pool)
            for learner, pool in zip(learners, constants, strict=True)
            for job in jobs
        ),
        # Otherwise a job can't be planned in slots that the optimum uses.
        "horizon_reaches_end": horizon >= timespan,
        "demands_are_small": share * alpha <= _SMALL,
        **premises,
    }
    return {
        "alpha": alpha if math.isfinite(alpha) else None,
        "ratio": factor * alpha if math.isfinite(factor * alpha) else None,
        "D0": dual,
        "optimum_at_least": lower_bound,
        "optimum_at_most": upper_bound,
        "max_share_of_server": share,
        **held,
        "premises_held": all(held.values()),
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

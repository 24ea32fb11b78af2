"""Competitive ratios of a run by OASiS's Theorem 4 or PD-ORS's Theorem 3, and their premises.

OASiS's ratio is 2 alpha, with alpha = max(1, ln U / L). One premise is D0 <= OPT / 2. D0 is the
dual value of the prices of empty servers, T * sum of L * capacity. OPT, the offline optimum, is
only known within bounds. The best job alone and the utility of all admitted plans are lower bounds.
`optimum_at_most` is an upper bound.
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
"""Tolerated relative rounding error of D0, a sum of exponentials."""

_SMALL: Final = 0.1
"""Maximum rise of ln(price) by one job on one server at which demands are small.

The proofs assume infinitesimal rises. A rise of x makes the ratio (e^x - 1) / x times as large:
1.05 here.
"""


def guarantee_alpha(constants: Sequence[PriceConstants]) -> float:
    """Return alpha, the maximum of 1 and ln(U / L) over pools and resources; infinite if L is 0."""
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

    It is the minimum over pools and limited resources of a fractional knapsack. Each job has its
    maximum utility there, and the use of its minimum worker-slots. The timespan is in slots.
    """
    utilities = np.array([_max_utility(job) for job in jobs])
    bound = float(utilities.sum())
    for learner in learners:
        if learner.carries == "ps":
            continue  # the minimum of parameter servers isn't computed; the bound stays valid
        min_worker_slots = np.array([_min_worker_slots(job) for job in jobs])
        shares = np.array([learner.pool.shares(job.worker) for job in jobs])
        uses = shares * min_worker_slots[:, None]
        for resource, total in enumerate(learner.pool.room):
            if 0 < total < math.inf:
                room = timespan * float(total)
                bound = min(bound, _knapsack(utilities, uses[:, resource], room))
    return bound


def max_share_of_server(
    learners: Sequence[ConstantsLearner], cluster: Cluster, jobs: Sequence[Job]
) -> float:
    """Return the largest share of a limited resource of a server that one job can take."""
    if not jobs:
        return 0.0
    largest = 0.0
    for learner in learners:
        members = np.flatnonzero(learner.pool.members)
        # One server of each kind suffices.
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
    """Return each job's shares of a server by resource, with up to ``counts`` processes."""
    demand = np.array(demands, dtype=np.float64)
    limited = capacity < UNLIMITED
    fits = np.full(demand.shape, np.inf)
    np.floor_divide(capacity, demand, out=fits, where=limited & (demand > 0))
    number = np.minimum(fits.min(axis=1), counts)
    number[~np.isfinite(number)] = 0.0  # any number fits: the server limits none of the resources
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

    ``jobs`` are all jobs that arrived. ``earned`` is the total utility of all admitted plans.
    ``premises`` has the premises that only the policy can check. ``factor`` is the ratio over
    alpha: 2 in OASiS's Theorem 4, 6 G / delta in PD-ORS's Theorem 3.

    The ratio is only proved if ``premises_held``, that is, if all premises are true.
    ``D0_within_half_of_optimum`` is None if the bounds of the optimum don't decide it. Infinite
    numbers are None.
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
        # With a shorter horizon, the optimum can use slots that the policy can't plan.
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


def _max_utility(job: Job) -> float:
    # The duration is 0 if the job completes in its arrival slot.
    return math.exp(float(job.utility.log_values(np.array([job.min_slots_colocated - 1]))[0]))


def _min_worker_slots(job: Job) -> float:
    if job.bag is not None:
        return 0.0  # a lower bound: the work of a bag is random
    gains = np.maximum(job.gains, job.internal_gains)
    useful = gains > 0
    slots = job.worker_counts[useful] * (job.required / gains[useful])
    return float(slots.min(initial=math.inf))


def _knapsack(values: np.ndarray, uses: np.ndarray, room: float) -> float:
    """Return the maximum total value of items, whole or in part, whose use is at most ``room``."""
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

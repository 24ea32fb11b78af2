"""An L at which an empty cluster admits at least one job of a known set.

The clearing price is that of each pool as one machine. It ignores that a job pays in both pools,
and that a small cluster runs a job more slowly than it could run. With few and large jobs it can
exceed what every job can pay. Then an empty cluster would refuse them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from shadowprice.core.job import Job
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.constants import ConstantsLearner, PriceConstants

LN_COST_PART: Final = math.log(0.5)
"""Ln of the part of its utility that a job pays at the limit of L. The largest L with which Theorem
4's proof holds takes the same part, for the whole cluster instead of the job's own resources."""


def limit_lower(
    constants: Sequence[PriceConstants],
    learners: Sequence[ConstantsLearner],
    alone: StandaloneValue,
    jobs: Iterable[Job],
) -> list[PriceConstants]:
    """Return constants at which some job pays at most half of its utility on an empty cluster.

    If there is none, the L of all pools are lowered by the same factor until there is one. They
    stay if no job can complete alone.
    """
    ln_largest = -math.inf
    for job in jobs:
        ln_largest = max(ln_largest, _ln_utility_per_cost(job, constants, learners, alone))
        if ln_largest + LN_COST_PART >= 0:
            return list(constants)
    if ln_largest == -math.inf:
        return list(constants)
    return [pool.lowered(ln_largest + LN_COST_PART) for pool in constants]


def _ln_utility_per_cost(
    job: Job,
    constants: Sequence[PriceConstants],
    learners: Sequence[ConstantsLearner],
    alone: StandaloneValue,
) -> float:
    """Return ln of the maximum utility per cost of a job that runs alone with one worker count."""
    counts, slots = alone.plans(job, learners[0].window(job))
    if not len(counts):
        return -math.inf
    ln_rate = np.full(len(counts), -np.inf)
    for pool, learner in zip(constants, learners, strict=True):
        shares = learner.shares_per_slot(job)[counts]
        ln_shares = np.log(shares, out=np.full(len(shares), -np.inf), where=shares > 0)
        ln_rate = np.logaddexp(ln_rate, pool.ln_lower + ln_shares)
    ln_utilities = job.utility.log_values(slots - 1)
    # Without a cost every utility pays, and without a utility no plan does.
    pays = np.isfinite(ln_utilities)
    ratios = ln_utilities[pays] - ln_rate[pays] - np.log(slots[pays])
    return float(ratios.max(initial=-np.inf))

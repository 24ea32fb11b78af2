"""What Lemma 3 and Theorem 1 say of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shadowprice.core.job import Job
from shadowprice.core.utility import Linear, Power


def sigma_of(theta_worker: float, theta_ps: float) -> float:
    """Return Lemma 3's sigma, ``2 (log theta_w + log theta_p)``; never below 1.

    A round's ideal revenue is at least 1 / sigma of the best one of that round.
    """
    return max(1.0, 2.0 * (math.log(theta_worker) + math.log(theta_ps)))


class Performance(NamedTuple):
    """Theorem 1's bound.

    Attributes
    ----------
    batches : int
        L: batches that are collected until the last arrival, each twice as long as the one before.
    loss_at_most : float or None
        Where all utilities are linear: how much less than the offline optimum is earned at most.
    ratio_at_least : float or None
        Where all are convex, (e / d)^kappa: what is earned over the optimum, at least.
    """

    batches: int
    loss_at_most: float | None
    ratio_at_least: float | None


def performance(jobs: Sequence[Job], rounds: int) -> Performance:
    """Return Theorem 1's bound over jobs, for lambda rounds a batch.

    Parameters
    ----------
    jobs : sequence of Job
        All that arrived.
    rounds : int
        lambda; the theorem takes Lemma 1's.
    """
    batches = (max((job.arrival for job in jobs), default=0) + 1).bit_length()
    slopes = [job.utility.slope for job in jobs if isinstance(job.utility, Linear)]
    if jobs and len(slopes) == len(jobs):
        # (i); slopes are negative, so the first term takes from the second.
        each = (2**batches - 1) * max(slopes)
        each -= (2 ** (batches + 1) - 1) * (2 * rounds - 1) * min(slopes)
        return Performance(batches, len(jobs) * each, None)
    powers = [job.utility for job in jobs if isinstance(job.utility, Power)]
    if jobs and len(powers) == len(jobs):
        low, high = (pick(one.exponent for one in powers) for pick in (min, max))
        least, most = (pick(one.scale for one in powers) for pick in (min, max))
        logarithm = -high * math.log(4 * rounds) - (batches - 2) * (high - low) * math.log(2)
        logarithm += high * math.log(least) - low * math.log(most)
        return Performance(batches, None, math.exp(min(logarithm, 0.0)))
    return Performance(batches, None, None)

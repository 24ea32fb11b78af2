"""The guarantees of Lemma 3 and Theorem 1 for a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shadowprice.core.job import Job
from shadowprice.core.utility import Linear, Power


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

"""Fit of a Pareto tail to measured durations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shadowprice.core.arrays import Floats
from shadowprice.core.errors import InputError

MIN_TAIL_SAMPLES = 10
"""Smallest number of points that a tail is fitted to."""


@dataclass(frozen=True, slots=True)
class ParetoTail:
    """A fitted tail S(t) = S(threshold) (threshold / t)^order."""

    threshold: float
    """Start of the tail, a value of the sample."""
    order: float
    """Tail order alpha, the maximum-likelihood (Hill) estimate beyond the threshold."""
    error: float
    """Standard error of the order."""
    points: int
    """Sample points beyond the threshold."""
    distance: float
    """Kolmogorov-Smirnov distance between those points and the fit."""
    against_exponential: float
    """Log-likelihood of the Pareto tail minus that of an exponential one; heavy if positive."""


def fit_pareto_tail(durations: Floats, candidates: int = 400) -> ParetoTail:
    """Fit order and threshold of a Pareto tail to positive durations.

    The order is the maximum-likelihood (Hill) estimate beyond each candidate threshold. The
    threshold with the smallest Kolmogorov-Smirnov distance is kept (Clauset, Shalizi and Newman,
    Power-law distributions in empirical data, SIAM Review 51, 2009). ``candidates`` limits the
    thresholds tried, which are spread evenly over the distinct values.

    Raises `InputError` if fewer than `MIN_TAIL_SAMPLES` points are above the smallest value.
    """
    sample = np.sort(np.asarray(durations, dtype=np.float64))
    suffix = np.cumsum(np.log(sample)[::-1])[::-1]
    distinct = np.unique(sample)
    best: ParetoTail | None = None
    if distinct.size > candidates:
        distinct = distinct[np.linspace(0, distinct.size - 1, candidates).astype(np.int64)]
    for threshold in distinct:
        start = int(np.searchsorted(sample, threshold, side="right"))
        points = sample.size - start
        if points < MIN_TAIL_SAMPLES:
            break
        excess = float(suffix[start] - points * math.log(threshold))
        if excess <= 0.0:  # durations that differ by rounding only
            continue
        order = points / excess
        fitted = 1.0 - (threshold / sample[start:]) ** order
        above = np.arange(1, points + 1) / points - fitted
        distance = float(max(above.max(), (1.0 / points - above).max()))
        if best is None or distance < best.distance:
            best = ParetoTail(
                threshold=float(threshold),
                order=order,
                error=order / math.sqrt(points),
                points=points,
                distance=distance,
                against_exponential=_likelihood_ratio(sample[start:], float(threshold), order),
            )
    if best is None:
        raise InputError(
            f"a tail needs {MIN_TAIL_SAMPLES} durations beyond the shortest one, the sample has "
            f"{int((sample > sample[0] * (1.0 + 1e-9)).sum())}; "
            "write tail: none to use the sample as it is"
        )
    return best


def _likelihood_ratio(tail: Floats, threshold: float, order: float) -> float:
    rate = 1.0 / float((tail - threshold).mean())
    pareto = math.log(order / threshold) - (order + 1.0) * np.log(tail / threshold)
    exponential = math.log(rate) - rate * (tail - threshold)
    return float((pareto - exponential).sum())

# ruff: noqa: D102 - the base class documents the methods that each distribution overrides
"""Measured durations as a distribution with a fitted Pareto tail, and distributions by name."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final

import numpy as np

from shadowprice.core.arrays import Floats
from shadowprice.core.bag import DurationDistribution
from shadowprice.core.errors import InputError
from shadowprice.distributions.parametric import (
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
)
from shadowprice.kernels.cloning.kinds import KNOT_STEP, TABLE

# ------------------------------------------------------------------ tail


MIN_TAIL_SAMPLES = 10
"""Minimum number of points to which a tail is fitted."""


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
    """Kolmogorov-Smirnov distance between these points and the fitted tail."""
    against_exponential: float
    """Log-likelihood of the Pareto tail less that of an exponential tail; positive if heavy."""


def fit_pareto_tail(durations: Floats, candidates: int = 400) -> ParetoTail:
    """Fit order and threshold of a Pareto tail to positive durations.

    For each candidate threshold, the order is the maximum-likelihood (Hill) estimate beyond it. The
    threshold with the smallest Kolmogorov-Smirnov distance is used (Clauset, Shalizi and Newman,
    Power-law distributions in empirical data, SIAM Review 51, 2009). At most ``candidates``
    thresholds are tried, spread evenly over the distinct durations.

    Raises `InputError` if fewer than `MIN_TAIL_SAMPLES` points are above the smallest value.
    """
    sample = np.sort(np.asarray(durations, dtype=np.float64))
    log_sums = np.cumsum(np.log(sample)[::-1])[::-1]  # of the sample from each point on
    distinct = np.unique(sample)
    best: ParetoTail | None = None
    if distinct.size > candidates:
        distinct = distinct[np.linspace(0, distinct.size - 1, candidates).astype(np.int64)]
    for threshold in distinct:
        start = int(np.searchsorted(sample, threshold, side="right"))
        points = sample.size - start
        if points < MIN_TAIL_SAMPLES:
            break
        excess = float(log_sums[start] - points * math.log(threshold))
        if excess <= 0.0:  # these durations differ only by rounding
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
    """Return the logarithm of the likelihood of a Pareto tail over that of an exponential."""
    rate = 1.0 / float((tail - threshold).mean())
    pareto = math.log(order / threshold) - (order + 1.0) * np.log(tail / threshold)
    exponential = math.log(rate) - rate * (tail - threshold)
    return float((pareto - exponential).sum())


# ------------------------------------------------------------------ distributions


@dataclass(frozen=True, eq=False)
class Empirical(Distribution):
    """Measured durations, with an optional Pareto tail beyond a threshold."""

    durations: Floats
    """The sample in seconds, all positive."""
    tail: ParetoTail | None
    """Fitted tail. None: only the sample, so that no duration exceeds its maximum."""
    factor: float = 1.0
    """Factor on every duration, for a task with more input."""
    name: str = "sample"
    """Source of the sample, for error messages."""
    kind: ClassVar[int] = TABLE
    label: ClassVar[str] = "empirical"
    convex_by_form: ClassVar[bool] = False

    def __post_init__(self) -> None:
        sample = np.asarray(self.durations, dtype=np.float64)
        if sample.size < 2 or not np.all(np.isfinite(sample)) or sample.min() <= 0.0:
            raise InputError(f"{self.name}: needs two durations or more, all positive")
        if self.tail is not None and not self.tail.order > 1.0:
            raise InputError(
                f"{self.name}: the fitted tail has order {self.tail.order:.3g} and so no mean; "
                "write tail: none to use the sample as it is, or measure longer"
            )
        if not self.factor > 0.0:
            raise InputError("the factor of measured durations must be positive")

    @cached_property
    def steps(self) -> tuple[Floats, Floats]:
        """Distinct durations up to the threshold, and S just after each, without the factor."""
        times, counts = np.unique(np.asarray(self.durations, np.float64), return_counts=True)
        survival = 1.0 - np.cumsum(counts) / counts.sum()
        if self.tail is None:
            return times, survival
        keep = times <= self.tail.threshold
        return times[keep], survival[keep]

    @cached_property
    def mean(self) -> float:
        return self.factor * float(self._unit_mean)

    @cached_property
    def _unit_mean(self) -> float:  # the mean without the factor
        log_survival, weight = self._body
        body = float(np.exp(log_survival) @ weight)
        return float(self.steps[0][0]) + body + self._tail_mean

    @property
    def _tail_mean(self) -> float:  # integral of S over the tail
        if self.tail is None:
            return 0.0
        return float(self.steps[1][-1]) * self.tail.threshold / (self.tail.order - 1.0)

    @property
    def shortest(self) -> float:
        return self.factor * float(self.steps[0][0])

    @property
    def scale(self) -> float:
        return self.factor

    @property
    def table_key(self) -> Hashable:
        return (self.label, self.durations.tobytes(), self.tail)

    def log_survival(self, time: Floats | float) -> Floats:
        times, survival = self.steps
        unit_time = np.asarray(time, float) / self.factor
        position = np.searchsorted(times, unit_time, side="right")
        with np.errstate(divide="ignore"):
            value = np.log(np.concatenate([[1.0], survival]))[position]
        if self.tail is not None:
            beyond = np.log(np.maximum(unit_time / self.tail.threshold, 1.0))
            value = value - self.tail.order * beyond
        return np.asarray(value)

    def inverse_survival(self, probability: Floats | float) -> Floats:
        times, survival = self.steps
        goal = np.asarray(probability, float)
        # The shortest time whose S is at most the probability; S falls, so search in -S.
        position = np.searchsorted(-survival, -goal, side="left")
        result = times[np.minimum(position, times.size - 1)]
        if self.tail is not None:
            with np.errstate(divide="ignore"):
                in_tail = self.tail.threshold * (survival[-1] / goal) ** (1.0 / self.tail.order)
            result = np.where(position >= times.size, in_tail, result)
        return np.asarray(self.factor * result)

    @property
    def _body(self) -> tuple[Floats, Floats]:  # ln S between the steps, and the widths
        times, survival = self.steps
        return np.log(survival[:-1]), np.diff(times)

    def quadrature(self, max_copies: float) -> tuple[Floats, Floats]:  # noqa: ARG002
        return self._body

    def table(self, max_copies: float) -> Floats:
        rows = super().table(max_copies)
        if self.tail is None:
            return rows
        # r times the integral of S^r over the tail: r p^r u / (order r - 1), with u = threshold and
        # p = S(u).
        ratio = np.exp(KNOT_STEP * np.arange(rows.shape[0]))
        order = self.tail.order
        log_left = math.log(self.steps[1][-1])
        below = order * ratio - 1.0
        value = self.tail.threshold * np.exp(log_left * ratio) * ratio / below
        # d ln value / dx, with x = ln r, and its derivative.
        slope = log_left * ratio - 1.0 / below
        curvature = log_left * ratio + order * ratio / (below * below)
        tail = np.stack([value, value * slope, value * (slope * slope + curvature)], axis=1)
        return np.asarray(rows + tail)


DISTRIBUTIONS: Final[Mapping[str, type[Any]]] = {
    distribution.label: distribution
    for distribution in (Pareto, Weibull, HyperExponential, LogNormal)
}
"""Distributions by `DurationDistribution.name`; `build_distribution` also builds `Empirical`."""


def build_distribution(distribution: DurationDistribution) -> Distribution:
    """Return the distribution of a specification, in seconds; results are cached.

    Raises `InputError` if a parameter is not allowed, such as a fitted tail that has no mean.
    """
    return _distribution(distribution.name, tuple(sorted(distribution.parameters.items())))


@lru_cache(maxsize=4096)
def _distribution(name: str, parameters: tuple[tuple[str, Any], ...]) -> Distribution:
    named = dict(parameters)
    if name == Empirical.label:
        durations = np.array(named.pop("durations"))
        tail = fit_pareto_tail(durations) if named.pop("tail") == "pareto" else None
        return Empirical(durations, tail, **named)
    distribution: Distribution = DISTRIBUTIONS[name](**named)
    return distribution

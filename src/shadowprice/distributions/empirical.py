# ruff: noqa: D102 - the base class documents the methods that each distribution overrides
"""Measured durations as a distribution, with a fitted Pareto tail."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from shadowprice.core.arrays import Floats
from shadowprice.core.errors import InputError
from shadowprice.distributions.parametric import Distribution
from shadowprice.distributions.tail import ParetoTail
from shadowprice.kernels.cloning.kinds import KNOT_STEP, TABLE


@dataclass(frozen=True, eq=False)
class Empirical(Distribution):
    """Measured durations, with a Pareto tail fitted beyond a threshold."""

    durations: Floats
    """The sample in seconds, all positive."""
    tail: ParetoTail | None
    """Fitted tail; None uses the sample alone, so that no duration exceeds its maximum."""
    factor: float = 1.0
    """Factor on every duration, for a task with more input."""
    name: str = "sample"
    """Source of the sample, for errors."""
    kind: ClassVar[int] = TABLE
    label: ClassVar[str] = "empirical"
    convex_by_form: ClassVar[bool] = False
    _steps: tuple[Floats, Floats] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sample = np.sort(np.asarray(self.durations, dtype=np.float64))
        if sample.size < 2 or not np.all(np.isfinite(sample)) or sample[0] <= 0.0:
            raise InputError(f"{self.name}: needs two durations or more, all positive")
        if self.tail is not None and not self.tail.order > 1.0:
            raise InputError(
                f"{self.name}: the fitted tail has order {self.tail.order:.3g} and so no mean; "
                "write tail: none to use the sample as it is, or measure longer"
            )
        if not self.factor > 0.0:
            raise InputError("the factor of measured durations must be positive")
        times, first = np.unique(sample, return_index=True)
        # S just after times[i] is the share of the sample that is longer.
        survival = 1.0 - np.append(first[1:], sample.size) / sample.size
        if self.tail is not None:
            keep = times <= self.tail.threshold
            times, survival = times[keep], survival[keep]
        object.__setattr__(self, "_steps", (times, survival))

    @property
    def steps(self) -> tuple[Floats, Floats]:
        """Distinct durations up to the threshold, with the share of the sample that is longer."""
        return self._steps

    @cached_property
    def mean(self) -> float:
        return self.factor * float(self._unit_mean)

    @cached_property
    def _unit_mean(self) -> float:
        log_survival, weight = self._body
        body = float(np.exp(log_survival) @ weight)
        return float(self._steps[0][0]) + body + self._tail_mean

    @property
    def _tail_mean(self) -> float:
        if self.tail is None:
            return 0.0
        return float(self._steps[1][-1]) * self.tail.threshold / (self.tail.order - 1.0)

    @property
    def shortest(self) -> float:
        return self.factor * float(self._steps[0][0])

    @property
    def scale(self) -> float:
        return self.factor

    @property
    def table_key(self) -> Hashable:
        return (self.label, self.durations.tobytes(), self.tail)

    def log_survival(self, time: Floats | float) -> Floats:
        times, survival = self._steps
        unit_time = np.asarray(time, float) / self.factor
        position = np.searchsorted(times, unit_time, side="right")
        with np.errstate(divide="ignore"):
            value = np.log(np.concatenate([[1.0], survival]))[position]
        if self.tail is not None:
            beyond = np.log(np.maximum(unit_time / self.tail.threshold, 1.0))
            value = value - self.tail.order * beyond
        return np.asarray(value)

    def inverse_survival(self, probability: Floats | float) -> Floats:
        times, survival = self._steps
        goal = np.asarray(probability, float)
        # The shortest time whose S is at most the probability (survival falls along times).
        position = np.searchsorted(-survival, -goal, side="left")
        result = times[np.minimum(position, times.size - 1)]
        if self.tail is not None:
            with np.errstate(divide="ignore"):
                in_tail = self.tail.threshold * (survival[-1] / goal) ** (1.0 / self.tail.order)
            result = np.where(position >= times.size, in_tail, result)
        return np.asarray(self.factor * result)

    @property
    def _body(self) -> tuple[Floats, Floats]:
        times, survival = self._steps
        return np.log(survival[:-1]), np.diff(times)

    def quadrature(self, max_copies: float) -> tuple[Floats, Floats]:  # noqa: ARG002
        return self._body

    def table(self, max_copies: float) -> Floats:
        rows = super().table(max_copies)
        if self.tail is None:
            return rows
        # integral over the tail: r * p^r u / (order * r - 1), with p = S(u)
        ratio = np.exp(KNOT_STEP * np.arange(rows.shape[0]))
        order = self.tail.order
        log_left = math.log(self._steps[1][-1])
        below = order * ratio - 1.0
        value = self.tail.threshold * np.exp(log_left * ratio) * ratio / below
        # d ln value / dx with x = ln r, and its derivative
        slope = log_left * ratio - 1.0 / below
        curvature = log_left * ratio + order * ratio / (below * below)
        tail = np.stack([value, value * slope, value * (slope * slope + curvature)], axis=1)
        return np.asarray(rows + tail)

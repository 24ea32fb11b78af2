# ruff: noqa: D102 - the base class documents the methods that each distribution overrides
"""Parametric distributions of a task's duration.

Each has its survival function S = 1 - F, the inverse of S, and its cost curve g. g(r) is the
expected machine time of a task with r copies, r * integral of S^r. It has the form
``minimum * r + scale * K(r)``, where K only depends on the shape. Times are in seconds.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from shadowprice.core.arrays import Floats
from shadowprice.core.errors import InputError
from shadowprice.kernels.cloning.kinds import KNOT_STEP, PARETO, TABLE, WEIBULL

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def _panels(edges: Floats) -> tuple[Floats, Floats]:
    """Return Gauss-Legendre nodes and weights for intervals between consecutive edges."""
    half = 0.5 * np.diff(edges)[:, None]
    middle = 0.5 * (edges[1:] + edges[:-1])[:, None]
    return (middle + half * _NODES).ravel(), (half * _WEIGHTS).ravel()


class Distribution(ABC):
    """Distribution of the duration of one task."""

    minimum: float  # shortest duration in seconds, if the distribution has this parameter
    kind: ClassVar[int]
    """Form of the cost curve: ``PARETO``, ``WEIBULL`` or ``TABLE`` of the kernels."""
    label: ClassVar[str]
    """Name of the distribution in files."""
    convex_by_form: ClassVar[bool] = True
    """Whether Lemma 1's condition holds for all parameters; if False, it is checked numerically."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """Expected duration in seconds."""

    @property
    def shortest(self) -> float:
        """Shortest possible duration in seconds (the coefficient of r in g)."""
        return self.minimum

    @property
    @abstractmethod
    def scale(self) -> float:
        """Factor of K in g, in seconds."""

    @property
    def shape_parameter(self) -> float:
        """Parameter of K if it has a closed form; 0 for tables."""
        return 0.0

    @property
    def table_key(self) -> Hashable:
        """Key that distributions with equal tables of K share."""
        return None

    @abstractmethod
    def log_survival(self, time: Floats | float) -> Floats:
        """Return ln S at times in seconds."""

    @abstractmethod
    def inverse_survival(self, probability: Floats | float) -> Floats:
        """Return the time that a task exceeds with this probability, in (0, 1]."""

    def survival(self, time: Floats | float) -> Floats:
        """Return S = 1 - F at times in seconds."""
        return np.asarray(np.exp(self.log_survival(time)))

    @classmethod
    def log_survivals(cls, distributions: Sequence[Distribution], time: float) -> Floats:
        """Return ln S of many distributions of this kind at one time, shape (distributions,)."""
        return np.array([float(distribution.log_survival(time)) for distribution in distributions])

    def quadrature(self, max_copies: float) -> tuple[Floats, Floats]:
        """Return ln S at quadrature nodes, and weights in units of ``scale``.

        They are precise for integrals of S^r with r <= ``max_copies``.
        """
        raise TypeError(
            f"{self.label} has a closed curve: no quadrature up to {max_copies:g} copies"
        )

    def table(self, max_copies: float) -> Floats:
        """Return K, dK/dx and d2K/dx2 at knots of x = ln r up to ln ``max_copies``.

        The shape is (knots, 3). Kernels interpolate between the rows.
        """
        knots = max(int(math.log(max_copies) / KNOT_STEP) + 2, 2)
        ratio = np.exp(KNOT_STEP * np.arange(knots))
        log_survival, weight = self.quadrature(float(ratio[-1]))
        # Integrals of S^r (ln S)^n for n = 0, 1, 2: the integral of S^r and its derivatives in r.
        moment = np.empty((3, knots))
        for block in range(0, knots, 64):
            part = slice(block, block + 64)
            power = np.exp(np.multiply.outer(ratio[part], log_survival)) * weight
            moment[0, part] = power.sum(axis=1)
            moment[1, part] = power @ log_survival
            moment[2, part] = power @ (log_survival * log_survival)
        value = ratio * moment[0]
        first = moment[0] + ratio * moment[1]
        second = 2.0 * moment[1] + ratio * moment[2]
        return np.stack([value, ratio * first, ratio * ratio * second + ratio * first], axis=1)


@dataclass(frozen=True)
class Pareto(Distribution):
    """S(t) = (x_m / t)^alpha for t >= x_m, the shortest duration."""

    shape: float
    """Tail order alpha > 1."""
    minimum: float
    """Shortest duration x_m in seconds."""
    kind: ClassVar[int] = PARETO
    label: ClassVar[str] = "pareto"

    def __post_init__(self) -> None:
        if not self.shape > 1.0:
            raise InputError(
                f"a Pareto tail of order {self.shape:g} has no mean; the order must be above 1"
            )
        if not self.minimum > 0.0:
            raise InputError("the shortest Pareto duration must be positive")

    @classmethod
    def of_mean(cls, shape: float, mean: float) -> Pareto:
        """Return the Pareto distribution of a tail order and a mean in seconds."""
        return cls(shape, mean * (shape - 1.0) / shape)

    @property
    def mean(self) -> float:
        return self.shape * self.minimum / (self.shape - 1.0)

    @property
    def scale(self) -> float:
        return self.minimum

    @property
    def shape_parameter(self) -> float:
        return self.shape

    def log_survival(self, time: Floats | float) -> Floats:
        return np.asarray(
            -self.shape * np.log(np.maximum(np.asarray(time, float) / self.minimum, 1.0))
        )

    @classmethod
    def log_survivals(cls, distributions: Sequence[Distribution], time: float) -> Floats:
        order = np.array([distribution.shape_parameter for distribution in distributions])
        shortest = np.array([distribution.shortest for distribution in distributions])
        return np.asarray(-order * np.log(np.maximum(time / shortest, 1.0)))

    def inverse_survival(self, probability: Floats | float) -> Floats:
        return np.asarray(self.minimum * np.asarray(probability, float) ** (-1.0 / self.shape))


@dataclass(frozen=True)
class Weibull(Distribution):
    """S(t) = exp(-((t - minimum) / scale)^shape); shape 1 is the exponential."""

    shape: float
    """Shape in (0, 1]. Above 1, ln S is concave, and Lemma 1 doesn't hold."""
    expected: float
    """Mean duration in seconds, including the minimum."""
    minimum: float = 0.0
    """Shortest duration in seconds."""
    kind: ClassVar[int] = WEIBULL
    label: ClassVar[str] = "weibull"

    def __post_init__(self) -> None:
        if not 0.0 < self.shape <= 1.0:
            raise InputError(
                f"a Weibull shape of {self.shape:g} breaks Lemma 1's condition: ln(1 - F) is "
                "convex only for shapes in (0, 1]; such tasks have no stragglers worth a copy"
            )
        _check_mean(self.expected, self.minimum)

    @property
    def mean(self) -> float:
        return self.expected

    @property
    def scale(self) -> float:
        return self.expected - self.minimum

    @property
    def shape_parameter(self) -> float:
        return self.shape

    @property
    def time_scale(self) -> float:
        """The Weibull scale parameter in seconds."""
        return self.scale / math.gamma(1.0 + 1.0 / self.shape)

    def log_survival(self, time: Floats | float) -> Floats:
        past = np.maximum(np.asarray(time, float) - self.minimum, 0.0) / self.time_scale
        return np.asarray(-(past**self.shape))

    def inverse_survival(self, probability: Floats | float) -> Floats:
        hazard = -np.log(np.asarray(probability, float))
        return np.asarray(self.minimum + self.time_scale * hazard ** (1.0 / self.shape))


@dataclass(frozen=True)
class HyperExponential(Distribution):
    """A mixture of exponentials: with probability ``shares[p]`` a task has mean ``means[p]``."""

    shares: tuple[float, ...]
    """Probabilities, which sum to 1."""
    means: tuple[float, ...]
    """Mean of each phase in seconds, without the minimum."""
    minimum: float = 0.0
    """Shortest duration in seconds, added to every phase."""
    kind: ClassVar[int] = TABLE
    label: ClassVar[str] = "hyper-exponential"

    def __post_init__(self) -> None:
        if not self.shares or len(self.shares) != len(self.means):
            raise InputError("a hyper-exponential needs phases, each with a share and a mean")
        if min(self.shares) <= 0.0 or abs(sum(self.shares) - 1.0) > 1e-9:
            raise InputError(
                f"the shares of a hyper-exponential must be positive and sum to 1, not "
                f"{sum(self.shares):g}"
            )
        if min(self.means) <= 0.0:
            raise InputError("the mean of every phase must be positive")
        _check_minimum(self.minimum)

    @property
    def mean(self) -> float:
        return self.minimum + self.scale

    @cached_property
    def scale(self) -> float:
        return float(np.dot(self.shares, self.means))

    @property
    def table_key(self) -> Hashable:
        return (self.label, self.shares, tuple(mean / self.scale for mean in self.means))

    def log_survival(self, time: Floats | float) -> Floats:
        past = np.maximum(np.asarray(time, float) - self.minimum, 0.0)
        parts = np.log(self.shares) - np.multiply.outer(past, 1.0 / np.asarray(self.means))
        top = parts.max(axis=-1)
        return np.asarray(
            np.minimum(top + np.log(np.exp(parts - top[..., None]).sum(axis=-1)), 0.0)
        )

    def inverse_survival(self, probability: Floats | float) -> Floats:
        goal = np.log(np.asarray(probability, float))
        low = np.full(goal.shape, 0.0)
        high = -goal * max(self.means)
        for _ in range(200):
            middle = 0.5 * (low + high)
            late = self.log_survival(self.minimum + middle) > goal
            low, high = np.where(late, middle, low), np.where(late, high, middle)
            if np.all(high - low <= 1e-15 * high):
                break
        return np.asarray(self.minimum + 0.5 * (low + high))

    def from_uniform(self, uniform: Floats) -> Floats:
        """Map uniform numbers in [0, 1) to durations.

        A number selects a phase by its share; its relative position there gives the time.
        """
        upto = np.cumsum(self.shares)
        upto[-1] = 1.0
        below = np.concatenate([[0.0], upto[:-1]])
        phase = np.searchsorted(upto, uniform, side="right")
        rest = (uniform - below[phase]) / (upto - below)[phase]
        # The division can round to 1, which would give an infinite time.
        rest = np.minimum(rest, 1.0 - 2.0**-53)
        return np.asarray(self.minimum - np.asarray(self.means)[phase] * np.log1p(-rest))

    def quadrature(self, max_copies: float) -> tuple[Floats, Floats]:
        rates = self.scale / np.asarray(self.means)
        # From where S^r has hardly fallen, to where S is e^-45; each interval is twice as long.
        first = 0.25 / (max_copies * rates.max())
        last = 45.0 / rates.min()
        edges = first * 2.0 ** np.arange(math.ceil(math.log2(last / first)) + 1)
        time, weight = _panels(np.concatenate([[0.0], edges]))
        return self.log_survival(self.minimum + self.scale * time), weight


@dataclass(frozen=True)
class LogNormal(Distribution):
    """ln(duration - minimum) is normally distributed.

    Lemma 1's condition only holds for long durations, so the solver checks it at the numbers of
    copies that it uses.
    """

    sigma: float
    """Standard deviation of the logarithm."""
    median: float
    """Median in seconds of the duration above the minimum."""
    minimum: float = 0.0
    """Shortest duration in seconds."""
    kind: ClassVar[int] = TABLE
    label: ClassVar[str] = "log-normal"
    convex_by_form: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.sigma > 0.0 and self.median > 0.0):
            raise InputError("a log-normal needs a positive sigma and a positive mean or median")
        _check_minimum(self.minimum)

    @classmethod
    def of_mean(cls, sigma: float, mean: float, minimum: float = 0.0) -> LogNormal:
        """Return the distribution of a sigma and a mean in seconds, including the minimum."""
        _check_mean(mean, minimum)
        return cls(sigma, (mean - minimum) * math.exp(-0.5 * sigma * sigma), minimum)

    @property
    def mean(self) -> float:
        return self.minimum + self.median * math.exp(0.5 * self.sigma * self.sigma)

    @property
    def scale(self) -> float:
        return self.median

    @property
    def table_key(self) -> Hashable:
        return (self.label, self.sigma)

    def log_survival(self, time: Floats | float) -> Floats:
        past = np.maximum(np.asarray(time, float) - self.minimum, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(_special().log_ndtr(-np.log(past / self.median) / self.sigma))

    def inverse_survival(self, probability: Floats | float) -> Floats:
        normal = -_special().ndtri(np.asarray(probability, float))
        return np.asarray(self.minimum + self.median * np.exp(self.sigma * normal))

    def quadrature(self, max_copies: float) -> tuple[Floats, Floats]:  # noqa: ARG002
        # z = ln(t / median) / sigma. Below -9, S^r is 1 in double precision. The integrand
        # e^(sigma z) S is largest near z = sigma, hence the upper end.
        top = 9.5 + self.sigma
        edges = np.linspace(-9.0, top, math.ceil(top + 9.0) + 1)
        normal, weight = _panels(edges)
        time = np.exp(self.sigma * normal)
        body = math.exp(-9.0 * self.sigma)
        return (
            np.concatenate([[0.0], _special().log_ndtr(-normal)]),
            np.concatenate([[body], weight * self.sigma * time]),
        )


def _check_minimum(minimum: float) -> None:
    if minimum < 0.0:
        raise InputError("the shortest duration must not be negative")


def _check_mean(mean: float, minimum: float) -> None:
    _check_minimum(minimum)
    if not mean > minimum:
        raise InputError(
            f"the mean duration ({mean:g}s) must be longer than the shortest ({minimum:g}s)"
        )


def _special() -> Any:
    """Return scipy.special, imported late because the import takes longer than a small run."""
    return importlib.import_module("scipy.special")

"""Distributions of durations in files, shared by job files and cloning files.

Each model converts itself to a `DurationDistribution` with validated parameters in seconds. Times
may be in slots if the file has a slot length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from shadowprice.core import bounds
from shadowprice.core.amounts import Duration, parse_duration
from shadowprice.core.bag import DurationDistribution, Parameters
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import fields

DISTRIBUTION_KINDS: Final = (
    "pareto",
    "weibull",
    "exponential",
    "hyper-exponential",
    "log-normal",
    "empirical",
)
"""Distributions of durations that a file can name."""


@dataclass(frozen=True)
class DistributionContext:
    """Slot length and file access for the distributions of a file."""

    slot: Fraction | None = None  # seconds of a slot; None for files without slots
    measured: EmpiricalLoader | None = None  # None if files can't be read

    def seconds(self, value: Duration) -> float:
        """Return a duration in seconds; raise InputError for slots in a file without slots."""
        if self.slot is not None:
            return float(value.in_seconds(self.slot))
        if value.slots:
            raise InputError("slots aren't valid here; write seconds, minutes or hours")
        return float(value.seconds)


EmpiricalLoader = Callable[["EmpiricalDuration"], DurationDistribution]
"""Reads measured durations from a file, and returns their distribution."""


class ParetoDuration(fields.Spec):
    """``P(longer than t) = (minimum / t)^shape``, by its mean or its minimum."""

    kind: Literal["pareto"]
    shape: fields.Shape
    mean: fields.DurationField | None = None
    minimum: fields.DurationField | None = None

    @field_validator("shape")
    @classmethod
    def _has_a_mean(cls, shape: float) -> float:
        if shape <= 1:
            raise ValueError(f"a Pareto tail of order {shape:g} has no mean; write more than 1")
        return shape

    @model_validator(mode="after")
    def _one_scale(self) -> ParetoDuration:
        if (self.mean is None) == (self.minimum is None):
            raise ValueError("give one of mean and minimum: the shape and either fix the other")
        return self

    def distribution(self, context: DistributionContext) -> DurationDistribution:
        """Return the distribution with parameters in seconds."""
        if self.mean is not None:
            mean = context.seconds(self.mean)
            minimum = mean * (self.shape - 1.0) / self.shape
        else:
            assert self.minimum is not None
            minimum = context.seconds(self.minimum)
            mean = minimum * self.shape / (self.shape - 1.0)
        _check(minimum > 0, "the shortest duration must be greater than 0")
        parameters = {"shape": self.shape, "minimum": minimum}
        return DurationDistribution("pareto", parameters, minimum, mean)


class WeibullDuration(fields.Spec):
    """Weibull beyond a minimum, with a shape of at most 1; the mean includes the minimum."""

    kind: Literal["weibull"]
    shape: fields.WeibullShape
    mean: fields.DurationField
    minimum: fields.DurationField = Duration()

    @field_validator("shape")
    @classmethod
    def _has_stragglers(cls, shape: float) -> float:
        if shape > 1:
            raise ValueError(
                f"{shape:g} is above 1: the longer a task has run, the sooner it ends, so copies "
                "would not pay; write 1 or less"
            )
        return shape

    def distribution(self, context: DistributionContext) -> DurationDistribution:
        """Return the distribution with parameters in seconds."""
        return _weibull(self.shape, self.mean, self.minimum, context)


class ExponentialDuration(fields.Spec):
    """Exponential beyond a minimum; the mean includes the minimum."""

    kind: Literal["exponential"]
    mean: fields.DurationField
    minimum: fields.DurationField = Duration()

    def distribution(self, context: DistributionContext) -> DurationDistribution:
        """Return the distribution with parameters in seconds."""
        return _weibull(1.0, self.mean, self.minimum, context)


class PhaseSpec(fields.Spec):
    """One phase of a hyper-exponential: its share of the tasks, and their mean."""

    share: fields.Positive
    mean: fields.DurationField


class HyperExponentialDuration(fields.Spec):
    """A mixture of exponentials beyond a minimum."""

    kind: Literal["hyper-exponential"]
    phases: Annotated[list[PhaseSpec], Field(min_length=1), fields.max_length(bounds.PHASES)]
    minimum: fields.DurationField = Duration()

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> HyperExponentialDuration:
        total = math.fsum(phase.share for phase in self.phases)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"the shares of the phases sum to {total:g}; they must sum to 1")
        return self

    def distribution(self, context: DistributionContext) -> DurationDistribution:
        """Return the distribution with parameters in seconds."""
        minimum = context.seconds(self.minimum)
        shares = tuple(phase.share for phase in self.phases)
        means = tuple(context.seconds(phase.mean) for phase in self.phases)
        _check(min(means) > 0, "the mean of every phase must be greater than 0")
        mean = minimum + sum(share * part for share, part in zip(shares, means, strict=True))
        parameters: Parameters = {"shares": shares, "means": means, "minimum": minimum}
        return DurationDistribution("hyper-exponential", parameters, minimum, mean)


class LogNormalDuration(fields.Spec):
    """Log-normal beyond a minimum, by sigma and its mean or its median, which include it."""

    kind: Literal["log-normal"]
    sigma: fields.Sigma
    mean: fields.DurationField | None = None
    median: fields.DurationField | None = None
    minimum: fields.DurationField = Duration()

    @model_validator(mode="after")
    def _one_scale(self) -> LogNormalDuration:
        if (self.mean is None) == (self.median is None):
            raise ValueError("give one of mean and median: sigma and either fix the other")
        return self

    def distribution(self, context: DistributionContext) -> DurationDistribution:
        """Return the distribution with parameters in seconds."""
        minimum = context.seconds(self.minimum)
        mean_over_median = math.exp(0.5 * self.sigma * self.sigma)
        given = self.mean if self.mean is not None else self.median
        assert given is not None
        beyond = context.seconds(given) - minimum
        _check(beyond > 0, "the mean or median must be longer than the minimum")
        median = beyond / mean_over_median if self.mean is not None else beyond
        parameters = {"sigma": self.sigma, "median": median, "minimum": minimum}
        mean = minimum + median * mean_over_median
        return DurationDistribution("log-normal", parameters, minimum, mean)


class EmpiricalDuration(fields.Spec):
    """Measured durations: a column of a CSV file, or one number a line."""

    kind: Literal["empirical"]
    file: Annotated[str, Field(min_length=1), fields.max_length(bounds.PATH)]
    column: str | None = None
    unit: Annotated[str, Field(min_length=1)] = "s"
    tail: Literal["pareto", "none"] = "pareto"
    factor: fields.Positive = 1.0

    @field_validator("unit")
    @classmethod
    def _known_unit(cls, unit: str) -> str:
        try:
            parsed = parse_duration(f"1{unit}")
        except InputError as error:
            raise ValueError(f"unknown unit of time {unit!r}; write s, ms or min") from error
        if parsed.slots:
            raise ValueError("expected a unit of time, got slots; write s, ms or min")
        return unit

    @property
    def seconds_per_unit(self) -> float:
        """Seconds in a unit of the file."""
        return float(parse_duration(f"1{self.unit}").seconds)

    def distribution(self, context: DistributionContext) -> DurationDistribution:
        """Return the distribution with parameters in seconds."""
        if context.measured is None:
            raise InputError(
                Fault(
                    "",
                    f"{self.file!r} can't be read: only job files and cloning files may name files",
                    "write a distribution with its parameters",
                )
            )
        return context.measured(self)


DurationDistributionSpec = Annotated[
    ParetoDuration
    | WeibullDuration
    | ExponentialDuration
    | HyperExponentialDuration
    | LogNormalDuration
    | EmpiricalDuration,
    Field(discriminator="kind"),
]


def _weibull(
    shape: float, mean: Duration, minimum: Duration, context: DistributionContext
) -> DurationDistribution:
    mean_seconds, min_seconds = context.seconds(mean), context.seconds(minimum)
    _check(mean_seconds > min_seconds, "the mean must be longer than the minimum")
    parameters = {"shape": shape, "expected": mean_seconds, "minimum": min_seconds}
    return DurationDistribution("weibull", parameters, min_seconds, mean_seconds)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)

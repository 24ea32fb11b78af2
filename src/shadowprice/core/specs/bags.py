"""The models of bags of tasks: laws of durations, tasks, deadline."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from shadowprice.core.amounts import Duration
from shadowprice.core.bag import Bag, Parameters, TaskGroup
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs.fields import DurationField, Spec

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

LAW_KINDS: Final = ("pareto", "weibull", "exponential", "hyper-exponential", "log-normal")
"""Laws of durations that a job file can name."""


class ParetoDuration(Spec):
    """``P(longer than t) = (minimum / t)^shape``, by its mean or its minimum."""

    kind: Literal["pareto"]
    shape: Positive
    mean: DurationField | None = None
    minimum: DurationField | None = None

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

    def group(self, count: int, slot: Fraction) -> TaskGroup:
        """Return so many tasks of this law."""
        if self.mean is not None:
            mean = float(self.mean.in_seconds(slot))
            minimum = mean * (self.shape - 1.0) / self.shape
        else:
            assert self.minimum is not None
            minimum = float(self.minimum.in_seconds(slot))
            mean = minimum * self.shape / (self.shape - 1.0)
        _check(minimum > 0, "the shortest duration must be longer than nothing")
        parameters = {"shape": self.shape, "minimum": minimum}
        return TaskGroup(count, "pareto", parameters, minimum, mean)


class WeibullDuration(Spec):
    """Weibull of shape 1 or less, by its mean; the minimum is part of the mean."""

    kind: Literal["weibull"]
    shape: Positive
    mean: DurationField
    minimum: DurationField = Duration()

    @field_validator("shape")
    @classmethod
    def _has_stragglers(cls, shape: float) -> float:
        if shape > 1:
            raise ValueError(
                f"with a Weibull shape of {shape:g} the longer a task ran the sooner it ends, and "
                "copies do not pay (Lemma 1 does not hold); write 1 or less"
            )
        return shape

    def group(self, count: int, slot: Fraction) -> TaskGroup:
        """Return so many tasks of this law."""
        return _weibull(count, self.shape, self.mean, self.minimum, slot)


class ExponentialDuration(Spec):
    """Exponential beyond a minimum, which is part of the mean."""

    kind: Literal["exponential"]
    mean: DurationField
    minimum: DurationField = Duration()

    def group(self, count: int, slot: Fraction) -> TaskGroup:
        """Return so many tasks of this law."""
        return _weibull(count, 1.0, self.mean, self.minimum, slot)


class PhaseSpec(Spec):
    """One phase of a hyper-exponential: a share of the tasks and the mean of those."""

    share: Positive
    mean: DurationField


class HyperExponentialDuration(Spec):
    """A mixture of exponentials beyond a minimum."""

    kind: Literal["hyper-exponential"]
    phases: Annotated[list[PhaseSpec], Field(min_length=1)]
    minimum: DurationField = Duration()

    @model_validator(mode="after")
    def _whole(self) -> HyperExponentialDuration:
        total = math.fsum(phase.share for phase in self.phases)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"the shares of the phases sum to {total:g}; they must sum to 1")
        return self

    def group(self, count: int, slot: Fraction) -> TaskGroup:
        """Return so many tasks of this law."""
        minimum = float(self.minimum.in_seconds(slot))
        shares = tuple(phase.share for phase in self.phases)
        means = tuple(float(phase.mean.in_seconds(slot)) for phase in self.phases)
        _check(min(means) > 0, "the mean of every phase must be longer than nothing")
        mean = minimum + sum(share * part for share, part in zip(shares, means, strict=True))
        parameters: Parameters = {"shares": shares, "means": means, "minimum": minimum}
        return TaskGroup(count, "hyper-exponential", parameters, minimum, mean)


class LogNormalDuration(Spec):
    """Log-normal beyond a minimum, by sigma and its mean or its median, which include it."""

    kind: Literal["log-normal"]
    sigma: Positive
    mean: DurationField | None = None
    median: DurationField | None = None
    minimum: DurationField = Duration()

    @model_validator(mode="after")
    def _one_scale(self) -> LogNormalDuration:
        if (self.mean is None) == (self.median is None):
            raise ValueError("give one of mean and median: sigma and either fix the other")
        return self

    def group(self, count: int, slot: Fraction) -> TaskGroup:
        """Return so many tasks of this law."""
        minimum = float(self.minimum.in_seconds(slot))
        stretch = math.exp(0.5 * self.sigma * self.sigma)
        given = self.mean if self.mean is not None else self.median
        assert given is not None
        beyond = float(given.in_seconds(slot)) - minimum
        _check(beyond > 0, "the mean or median must be longer than the minimum")
        median = beyond / stretch if self.mean is not None else beyond
        parameters = {"sigma": self.sigma, "median": median, "minimum": minimum}
        return TaskGroup(count, "log-normal", parameters, minimum, minimum + median * stretch)


DurationLaw = Annotated[
    ParetoDuration
    | WeibullDuration
    | ExponentialDuration
    | HyperExponentialDuration
    | LogNormalDuration,
    Field(discriminator="kind"),
]


class TaskSpec(Spec):
    """Tasks of a bag that follow one law."""

    count: PositiveInt = 1
    duration: DurationLaw


def resolve_bag(
    tasks: list[TaskSpec], deadline: Duration, miss_probability: float, slot: Fraction
) -> Bag:
    """Return the bag that a file describes.

    Raises
    ------
    InputError
        If a duration contradicts itself, or the deadline comes before the shortest possible one.
    """
    groups, faults = [], []
    for position, task in enumerate(tasks):
        try:
            groups.append(task.duration.group(task.count, slot))
        except InputError as error:
            place = f"tasks[{position}].duration"
            faults += [Fault(place, fault.message, fault.mend) for fault in error.faults]
    if faults:
        raise InputError(faults)
    seconds = float(deadline.in_seconds(slot))
    for position, group in enumerate(groups):
        if group.shortest >= seconds:
            raise InputError(
                Fault(
                    "deadline",
                    f"{seconds:g}s is not longer than the shortest possible duration of "
                    f"tasks[{position}], {group.shortest:g}s: no number of copies helps",
                    "allow a later deadline",
                )
            )
    return Bag(tuple(groups), float(deadline.in_slots(slot)), miss_probability, float(slot))


def _weibull(
    count: int, shape: float, mean: Duration, minimum: Duration, slot: Fraction
) -> TaskGroup:
    expected, least = float(mean.in_seconds(slot)), float(minimum.in_seconds(slot))
    _check(expected > least, "the mean must be longer than the minimum")
    parameters = {"shape": shape, "expected": expected, "minimum": least}
    return TaskGroup(count, "weibull", parameters, least, expected)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)

"""Models of utilities in job files, and the default utility."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from shadowprice.core import bounds
from shadowprice.core import utility as utilities
from shadowprice.core.amounts import (
    Duration,
    Rate,
)
from shadowprice.core.devices import gpus_per_worker
from shadowprice.core.job import Job
from shadowprice.core.moments import deadline_in_slots
from shadowprice.core.specs import fields


def _never_negative(rate: Rate) -> Rate:
    if rate.number < 0:
        raise ValueError("is below 0, so the utility would increase; write 0 or more")
    return rate


def _never_positive(rate: Rate) -> Rate:
    if rate.number > 0:
        raise ValueError("is above 0, so the utility would increase; write 0 or less")
    return rate


class ConstantSpec(fields.Spec):
    """``value`` whenever the job finishes."""

    kind: Literal["constant"]
    value: fields.NonNegative


class SigmoidSpec(fields.Spec):
    """``value / (1 + exp(decay (d - target)))``."""

    kind: Literal["sigmoid"]
    value: fields.NonNegative
    decay: Annotated[fields.RateField, AfterValidator(_never_negative)]
    target: fields.DurationField


class ReciprocalSpec(fields.Spec):
    """``value / (1 + d)``."""

    kind: Literal["reciprocal"]
    value: fields.NonNegative


class LinearSpec(fields.Spec):
    """``value + slope d``, never below 0."""

    kind: Literal["linear"]
    value: fields.NonNegative
    slope: Annotated[fields.RateField, AfterValidator(_never_positive)]


class PowerSpec(fields.Spec):
    """``(scale / d)^exponent``."""

    kind: Literal["power"]
    scale: fields.NonNegative
    exponent: Annotated[fields.NonNegative, fields.max_value(bounds.EXPONENT)]

    @model_validator(mode="after")
    def _has_valid_maximum(self) -> PowerSpec:
        # The maximum is at d = 1: scale^exponent.
        if self.scale > 1 and self.exponent * math.log10(self.scale) > math.log10(
            bounds.NUMBER.maximum
        ):
            raise ValueError(
                f"scale^exponent is above {bounds.NUMBER.maximum:g}; lower one of them"
            )
        return self


class DeadlineSpec(fields.Spec):
    """``value`` until ``by``, then nothing."""

    kind: Literal["deadline"]
    value: fields.NonNegative
    by: fields.DurationField


UtilitySpec = Annotated[
    ConstantSpec | SigmoidSpec | ReciprocalSpec | LinearSpec | PowerSpec | DeadlineSpec,
    Field(discriminator="kind"),
]


def resolve_utility(
    spec: Any, slot_seconds: Fraction, before: Fraction = Fraction(0)
) -> utilities.Utility:
    """Return the utility that a file describes, as a function of the papers' ``d``.

    ``before`` is the wait from the submission to the start of the arrival slot, in slots.
    """

    def in_slots(value: Any) -> Any:
        if isinstance(value, Duration):
            return deadline_in_slots(value, slot_seconds, before)
        return value.per_slot(slot_seconds) if isinstance(value, Rate) else value

    values = {name: in_slots(value) for name, value in spec if name != "kind"}
    resolved: utilities.Utility = utilities.FAMILIES[spec.kind](**values)
    return resolved


class PriorityLevel(NamedTuple):
    """A named priority: its multiple of the default utility, and its number in priority queues."""

    multiple: float
    number: float


PRIORITY_LEVELS: Final[Mapping[str, PriorityLevel]] = {
    "low": PriorityLevel(0.25, -1.0),
    "normal": PriorityLevel(1.0, 0.0),
    "high": PriorityLevel(4.0, 1.0),
    "urgent": PriorityLevel(16.0, 2.0),
}
"""Named priorities. A factor of 4 outweighs the speed per GPU that jobs lose when they scale up."""

VALUE_PER_GPU_HOUR: Final = 1.0  # default utility of an hour of one GPU at normal priority


DEFAULT_UTILITY: Final[Mapping[str, object]] = {
    "rule": (
        "value_per_gpu_hour for each GPU-hour of the work at the minimum number of workers (a "
        "worker without GPUs counts as one GPU), times the multiple of the priority: constant, or "
        "until the job's deadline `by`"
    ),
    "value_per_gpu_hour": VALUE_PER_GPU_HOUR,
    "priorities": {name: level.multiple for name, level in PRIORITY_LEVELS.items()},
}
"""The rule of `with_default_utility`, for the records of runs."""


def with_default_utility(
    job: Job,
    worker: Mapping[str, int],
    slot_seconds: Fraction,
    multiple: float = 1.0,
    by: float | None = None,
) -> Job:
    """Return a job with the default utility: a value per GPU-hour, up to its deadline if any.

    GPU-hours are those of the job's work at its minimum worker count. A worker without GPUs counts
    as one GPU. ``worker`` has a worker's resources in integer amounts. ``multiple`` is that of the
    job's priority. ``by`` is the deadline in slots after the arrival slot.
    """
    gpus = gpus_per_worker(worker.items())

    def value_of(worker_slots: float) -> float:
        return VALUE_PER_GPU_HOUR * multiple * (worker_slots * float(slot_seconds) / 3600 * gpus)

    value = value_of(job.worker_slots)
    utility = utilities.Constant(value) if by is None else utilities.Deadline(value, by)
    rate = None if job.bag else value_of(int(job.worker_counts[0]) / int(job.gains[0]))
    return replace(job, utility=utility, has_default_utility=True, value_per_unit=rate)

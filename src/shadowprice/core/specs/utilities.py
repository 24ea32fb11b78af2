"""The utilities of job files."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    model_validator,
)

from shadowprice.core import bounds
from shadowprice.core import utility as utilities
from shadowprice.core.amounts import (
    Duration,
)
from shadowprice.core.clock import deadline_in_slots
from shadowprice.core.specs.fields import (
    DurationField,
    NonNegative,
    Spec,
    max_value,
)


class ConstantSpec(Spec):
    """``value`` whenever the job finishes."""

    kind: Literal["constant"]
    value: NonNegative


class SigmoidSpec(Spec):
    """``value / (1 + exp(decay (d - target)))``."""

    kind: Literal["sigmoid"]
    value: NonNegative
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False, description="utilities never rise")]
    target: DurationField


class ReciprocalSpec(Spec):
    """``value / (1 + d)``."""

    kind: Literal["reciprocal"]
    value: NonNegative


class LinearSpec(Spec):
    """``value + slope d``, never below 0."""

    kind: Literal["linear"]
    value: NonNegative
    slope: Annotated[float, Field(le=0, allow_inf_nan=False)]


class PowerSpec(Spec):
    """``(scale / d)^exponent``."""

    kind: Literal["power"]
    scale: NonNegative
    exponent: Annotated[NonNegative, max_value(bounds.EXPONENT)]

    @model_validator(mode="after")
    def _countable(self) -> PowerSpec:
        # At d = 1 it is worth the most: scale^exponent.
        if self.scale > 1 and self.exponent * math.log10(self.scale) > math.log10(
            bounds.NUMBER.most
        ):
            raise ValueError(f"scale^exponent is above {bounds.NUMBER.most:g}; lower one of them")
        return self


class DeadlineSpec(Spec):
    """``value`` until ``by``, then nothing."""

    kind: Literal["deadline"]
    value: NonNegative
    by: DurationField


UtilitySpec = Annotated[
    ConstantSpec | SigmoidSpec | ReciprocalSpec | LinearSpec | PowerSpec | DeadlineSpec,
    Field(discriminator="kind"),
]


def resolve_utility(
    spec: Any, slot_seconds: Fraction, before: Fraction = Fraction(0)
) -> utilities.Utility:
    """Return the utility that a file describes, as a function of the papers' ``d``.

    Parameters
    ----------
    spec : UtilitySpec
        What the file says.
    slot_seconds : Fraction
        Length of a slot.
    before : Fraction
        Slots from the submission to the beginning of the arrival slot.
    """
    values = {
        name: deadline_in_slots(value, slot_seconds, before)
        if isinstance(value, Duration)
        else value
        for name, value in spec
        if name != "kind"
    }
    resolved: utilities.Utility = utilities.FAMILIES[spec.kind](**values)
    return resolved

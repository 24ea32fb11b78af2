"""Field types that every model of a file shares: quantities with units, names, strictness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from shadowprice.core.amounts import (
    UNLIMITED,
    Amount,
    Dimension,
    Duration,
    parse_amount,
    parse_duration,
)
from shadowprice.core.errors import InputError

Value = TypeVar("Value")


def lifted(parse: Callable[[object], Value]) -> Callable[[object], Value]:
    """Let pydantic collect what a parser refuses instead of stopping at it."""

    def validate(value: object) -> Value:
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    return validate


def positive(value: Duration) -> Duration:
    """Return a duration that is longer than nothing, or refuse it."""
    if not (value.seconds or value.slots):
        raise ValueError("it must be longer than nothing")
    return value


DurationField = Annotated[Duration, BeforeValidator(lifted(parse_duration))]
AmountField = Annotated[Amount, BeforeValidator(lifted(parse_amount))]
AmountsField = dict[str, AmountField]


def _rate_or_unlimited(value: object) -> Amount:
    if isinstance(value, str) and value.strip().lower() == "unlimited":
        return Amount(UNLIMITED, Dimension.RATE)
    return parse_amount(value)


LinkField = Annotated[Amount, BeforeValidator(lifted(_rate_or_unlimited))]
Number = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Spec(BaseModel):
    """Base of everything that is read from a file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, strict=False
    )


def plain(amounts: Mapping[str, Amount]) -> dict[str, int]:
    """Return amounts as the integers that are kept."""
    return {name: amount.value for name, amount in amounts.items()}

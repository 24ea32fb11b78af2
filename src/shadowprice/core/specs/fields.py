"""Field types of all models: quantities with units, names, and general limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from shadowprice.core import bounds
from shadowprice.core.amounts import (
    LEADING_ZERO,
    UNLIMITED,
    Amount,
    Dimension,
    Duration,
    Rate,
    parse_amount,
    parse_duration,
    parse_rate,
)
from shadowprice.core.bounds import InputLimit
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display, text_problem

Value = TypeVar("Value")


def as_validator(parse: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Convert a parser to a pydantic validator, whose errors pydantic collects."""

    def validate(value: Any) -> Value:
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    return validate


def check_positive(value: Duration) -> Duration:
    """Return a duration; raise ValueError if it is 0."""
    if not (value.seconds or value.slots):
        raise ValueError("must be greater than 0")
    return value


_LIMITS: Final = {
    "integer": "maximum",
    "number": "maximum",
    "string": "maxLength",
    "array": "maxItems",
    "object": "maxProperties",
}
"""Keyword of JSON Schema for the maximum of a number, or the maximum size of another type."""


@dataclass(frozen=True, slots=True)
class _Limited:
    """An annotation with a limit that JSON schemas also state.

    A size is checked before the items are validated, so that a long list of invalid items is
    refused at once. A value is checked after all other validators.
    """

    bound: InputLimit
    size: bool  # whether the limit applies to the size, not to the value
    fail_fast: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        if self.size:
            schema = handler(source)
            if self.fail_fast:
                assert schema["type"] == "list"
                schema = {**schema, "fail_fast": True}
            check_size = _size_validator(self.bound, get_origin(source) or source)
            return core_schema.no_info_before_validator_function(check_size, schema)
        check = as_validator(self.bound.checked)
        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler.resolve_ref_schema(handler(schema))
        keyword = _LIMITS.get(str(json_schema.get("type")))
        return json_schema if keyword is None else {**json_schema, keyword: self.bound.maximum}


def _size_validator(bound: InputLimit, kind: type[Any]) -> Callable[[Any], Any]:
    kinds: tuple[type[Any], ...] = (list, tuple) if kind in {list, tuple} else (kind,)

    def check(value: Any) -> Any:
        if isinstance(value, kinds):
            bound.checked(len(value))
        return value

    return as_validator(check)


def max_value(bound: InputLimit) -> _Limited:
    """Return an annotation that limits a number."""
    return _Limited(bound, size=False)


def max_length(bound: InputLimit, *, fail_fast: bool = False) -> _Limited:
    """Return an annotation that limits the length of a text or a collection.

    If ``fail_fast``, only the first invalid item of a list is reported, because each error takes
    more than a kilobyte of memory.
    """
    return _Limited(bound, size=True, fail_fast=fail_fast)


def _check_distinct_counts(value: object, parse: ValidatorFunctionWrapHandler) -> Any:
    counts = parse(value)
    if isinstance(value, Mapping) and len(counts) != len(value):  # such as 1 and "1"
        raise ValueError("a worker count is repeated; give each worker count once")
    return counts


DISTINCT_COUNTS: Final = WrapValidator(_check_distinct_counts)
"""Annotation of a mapping by worker count: refuses a count in two spellings."""

_LENGTH: Final = {"type": "string", "maxLength": bounds.QUANTITY.maximum}
_QUANTITY: Final = {"anyOf": [{"type": "number"}, _LENGTH]}

DurationField = Annotated[
    Duration, BeforeValidator(as_validator(parse_duration)), WithJsonSchema(_LENGTH)
]
AmountField = Annotated[
    Amount, BeforeValidator(as_validator(parse_amount)), WithJsonSchema(_QUANTITY)
]
# `format: double` tells rates from quantities, which are int-or-string in custom resources.
RateField = Annotated[
    Rate,
    BeforeValidator(as_validator(parse_rate)),
    WithJsonSchema({"anyOf": [{"type": "number", "format": "double"}, _LENGTH]}),
]
Name = Annotated[str, Field(min_length=1), max_length(bounds.NAME)]
AmountsField = Annotated[dict[Name, AmountField], max_length(bounds.RESOURCES)]


def check_path_segment(name: str) -> str:
    """Return a name that can be a segment of a URL's path; raise InputError otherwise.

    Clients resolve ``.`` and ``..`` before they send a request.
    """
    if any(ord(character) < 32 for character in name):
        raise InputError(Fault("", "contains control characters", "use plain text"))
    if name in {".", ".."}:
        message = f"{name!r} can't be a segment of a URL path"
        raise InputError(Fault("", message, "use a name with letters"))
    return name


PathSegmentName = Annotated[Name, AfterValidator(as_validator(check_path_segment))]
"""Name of a resource that has a URL in the live service."""


def _rate_or_unlimited(value: object) -> Amount:
    if isinstance(value, str) and value.strip().lower() == "unlimited":
        return Amount(UNLIMITED, Dimension.RATE)
    return parse_amount(value)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Shape = Annotated[Positive, max_value(bounds.SHAPE)]
WeibullShape = Annotated[Shape, Field(ge=0.05)]
Sigma = Annotated[Positive, max_value(bounds.SIGMA)]
LinkField = Annotated[
    Amount, BeforeValidator(as_validator(_rate_or_unlimited)), WithJsonSchema(_QUANTITY)
]
Number = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LimitedModel(BaseModel):
    """Base of all models that are read from a file or an option.

    Besides the checks of each field, a number may not be a boolean or have a leading zero, and the
    general limits apply to numbers and texts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _check_ambiguous_numbers(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = cls._limit_unknown_keys(value)
            booleans = {label for label, part in value.items() if _contains(part, _is_boolean)}
            # YAML 1.1 would read 0022 as octal; `yaml_values` keeps it as text.
            octal = {label for label, part in value.items() if _contains(part, _has_leading_zero)}
            for name, field in cls.model_fields.items():
                for label in {name, field.alias or name} & (booleans | octal):
                    if label in booleans and not _accepts_type(field.annotation, bool, BaseModel):
                        raise ValueError(
                            f"`{label}` is given a boolean (true, false); quote it if it is text"
                        )
                    if label in octal and not _accepts_type(field.annotation, str, BaseModel):
                        raise ValueError(f"`{label}` is given a number with a leading zero")
        return value

    @classmethod
    def _limit_unknown_keys(cls, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return a mapping with at most `bounds.FAULTS.maximum` unknown keys.

        More are never listed, and pydantic builds an error of over a kilobyte for each.
        """
        if len(value) <= len(cls.model_fields) + bounds.FAULTS.maximum:
            return value
        aliases = {field.alias for field in cls.model_fields.values()}
        known = {key for key in value if key in cls.model_fields or key in aliases}
        unknown = islice((key for key in value if key not in known), int(bounds.FAULTS.maximum))
        kept = known.union(unknown)
        return {key: part for key, part in value.items() if key in kept}

    @field_validator("*", mode="after")
    @classmethod
    def _check_general_limits(cls, value: Any) -> Any:
        as_validator(_check_limits)(value)
        return value


def _contains(value: Any, matches: Callable[[Any], bool]) -> bool:
    """Return whether a value, or a key or item of it, matches."""
    if isinstance(value, dict):
        return any(matches(part) for pair in value.items() for part in pair)
    return matches(value) or (isinstance(value, list) and any(map(matches, value)))


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _has_leading_zero(value: Any) -> bool:
    return isinstance(value, str) and LEADING_ZERO.fullmatch(value) is not None


def _accepts_type(annotation: Any, *kinds: type) -> bool:
    """Return whether an annotation is Any or contains one of some types."""
    if annotation is Any or (isinstance(annotation, type) and issubclass(annotation, kinds)):
        return True
    return any(_accepts_type(part, *kinds) for part in get_args(annotation))


def _check_limits(value: Any) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        bounds.NUMBER.checked(abs(value))
    elif isinstance(value, str):
        bounds.TEXT.checked(len(value))
        problem = text_problem(value)
        if problem is not None:
            raise InputError("; ".join(problem))
    elif isinstance(value, dict):
        for key, inner in value.items():
            for part in (key, inner):
                try:
                    _check_limits(part)
                except InputError as error:
                    raise InputError(f"{quote_for_display(key)}: {error}") from error
    elif isinstance(value, list | tuple) and not (value and isinstance(value[0], BaseModel)):
        for inner in value:  # models have checked their own values
            _check_limits(inner)


class Spec(LimitedModel):
    """Base of the models of files."""

    model_config = ConfigDict(arbitrary_types_allowed=True, strict=False)


class StrictSpec(Spec):
    """Base of request bodies: a number in a string isn't accepted as a number."""

    model_config = ConfigDict(strict=True)


def to_integer_amounts(amounts: Mapping[str, Amount]) -> dict[str, int]:
    """Return amounts as integers in the stored units."""
    return {name: amount.value for name, amount in amounts.items()}

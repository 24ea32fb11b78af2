"""Conversion of validation errors into diagnostics with a location and a hint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import (
    BaseModel,
    ValidationError,
)
from pydantic.fields import FieldInfo

from shadowprice.core import bounds
from shadowprice.core import utility as utilities
from shadowprice.core.errors import Fault
from shadowprice.core.specs.distributions import DISTRIBUTION_KINDS
from shadowprice.core.wording import (
    MAX_DISPLAY_CHARS,
    describe_type,
    format_number,
    hint_for_unknown,
    quote_for_display,
)

Model = TypeVar("Model", bound=BaseModel)

_TAGS: Mapping[str, frozenset[str]] = {
    "utility": frozenset(utilities.FAMILIES),
    "duration": frozenset(DISTRIBUTION_KINDS),
}
"""Tags of unions, which pydantic inserts into locations, by the key that precedes them."""


MAX_KEYS_IN_MESSAGE: Final = 6
"""Maximum number of keys in the message for a value that should be a mapping."""

MAX_SUGGESTIONS: Final = 16  # maximum number of keys in the hint for an unknown key

_EXAMPLES: Final[Mapping[str, str]] = {
    "budget": "{points: 1000}",
    "capacity": "{gpu: 8, cpu: 64}",
    "env": "{NAME: value}",
    "labels": "{team: vision}",
    "ps": "{cpu: 2}",
    "run": "{command: [python, train.py]}",
    "share": "{gpu: 8}",
    "throughput": "{1: 12.5, 2: 23.9}",
    "utility": "{kind: constant, value: 100}",
    "worker": "{gpu: 1}",
    "workers": "{min: 1, max: 4}",
}
"""Example of a valid mapping for each key of a file."""


def validate(model: type[Model], value: object, location: str) -> tuple[Model | None, list[Fault]]:
    """Validate a value at a location of a file; return the model, or None and the faults."""
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        issues = _merge_alternatives(error.errors(include_url=False))
        return None, [
            _fault(model, issue, location) for issue in issues[: int(bounds.FAULTS.maximum)]
        ]


def _merge_alternatives(issues: Sequence[Any]) -> list[Any]:
    """Merge issues that pydantic reports for each alternative of one value."""
    merged: list[Any] = []
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for issue in issues:
        groups.setdefault(issue["loc"][:-1], []).append(issue)
    for issue in issues:
        group = groups[issue["loc"][:-1]]
        if not any(str(part["loc"][-1]).startswith("literal[") for part in group if part["loc"]):
            merged.append(issue)
        elif issue is group[0]:
            merged.append(_merged_issue(group))
    return merged


def _merged_issue(group: Sequence[Any]) -> Any:
    """Return the issue of a value that matches none of its alternatives."""
    # A value of the right type that exceeds a limit needs no other alternative.
    chosen = next((issue for issue in group if issue["type"] in _LIMITS), None)
    if chosen is None:
        literals = [issue for issue in group if issue["type"] == "literal_error"]
        types = [text for issue in group if issue not in literals and (text := _expected(issue))]
        # pydantic joins literals as 'a', 'b' or 'c'; types follow in one list with them.
        texts = ", ".join(map(_expected, literals)).replace(" or ", ", ").split(", ")
        *first, last = [*texts, *types]
        expected = f"{', '.join(first)} or {last}" if first else last
        chosen = {**group[0], "type": "no_alternative", "ctx": {"expected": expected}}
    return {**chosen, "loc": chosen["loc"][:-1]}


def _fault(model: type[BaseModel], issue: Any, file_location: str) -> Fault:
    # The previous key decides: `deadline` is a tag after `utility`, otherwise a key of the file.
    location = [
        part
        for before, part in zip((None, *issue["loc"]), issue["loc"], strict=False)
        if part not in _TAGS.get(str(before), ())
    ]
    # For an invalid key of a mapping, pydantic's location ends with the key and "[key]".
    is_key = location[-1:] == ["[key]"]
    location = location[:-2] if is_key else location
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in location)
    where = join_location(file_location, path)
    if issue["type"] == "extra_forbidden":
        return Fault(where, "unknown key", _hint_for_key(model, location))
    if issue["type"] == "missing":
        return Fault(where, "is missing")
    if issue["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return _kind_fault(where, issue)
    if issue["type"] == "string_unicode":
        return Fault(where, "contains an unpaired surrogate", "use valid Unicode text")
    if issue["type"] == "model_type":
        return _keys_fault(model, where, location, issue)
    if issue["type"] in {"model_attributes_type", "dict_type"}:
        message = f"expected a mapping, got {describe_type(issue['input'])}"
        return Fault(where, message, _example(location, issue["input"]))
    message, hint = issue_text(issue)
    return Fault(where, f"in a key, {message}" if is_key else message, hint)


_LIMITS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than": ("be greater than", "gt"),
    "greater_than_equal": ("be at least", "ge"),
    "less_than": ("be less than", "lt"),
    "less_than_equal": ("be at most", "le"),
    "multiple_of": ("be a multiple of", "multiple_of"),
}
"""Requirement on a number, and the key of the limit in the context, by pydantic's issue type."""

_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "text",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    "int_parsing_size": "an integer of fewer digits",
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
}
"""Values that a field expects, by pydantic's issue type."""


def _expected(issue: Any) -> str:
    """Return what a field expects; empty if the issue isn't about a type or a choice."""
    match issue["type"]:
        case "literal_error" | "enum" | "no_alternative":
            return str(issue["ctx"]["expected"])
        case "string_pattern_mismatch":
            return f"text that matches {issue['ctx']['pattern']}"
    return _EXPECTED.get(issue["type"], "")


def issue_text(issue: Any) -> tuple[str, str]:
    """Return the message and the hint for an issue that pydantic found in a value."""
    kind, value, context = issue["type"], issue["input"], issue.get("ctx", {})
    got = describe_type(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        got = quote_for_display(getattr(value, "written", value))
    if expected := _expected(issue):
        return f"expected {expected}, got {got}", _type_hint(kind, value)
    if kind in _LIMITS:
        must, name = _LIMITS[kind]
        return f"must {must} {format_number(context[name], 15)}, got {got}", ""
    match kind:
        case "string_too_short" if not value:
            return "is empty", ""
        case "string_too_long":
            return f"has {len(value):,} characters", f"use at most {context['max_length']:,}"
        case "string_too_short":
            return f"has {len(value):,} characters", f"use {context['min_length']:,} or more"
        case "too_long":
            return f"has more than {context['max_length']:,} items", "remove some"
        case "too_short":
            minimum, length = context["min_length"], context["actual_length"]
            return f"expected {minimum} or more items, got {length}", "add one"
    return str(issue["msg"]).removeprefix("Value error, "), ""


def _type_hint(kind: str, value: object) -> str:
    """Return the hint for a value of the wrong type; empty if there is none."""
    if kind == "string_type" and (value is None or isinstance(value, int | float)):
        return "quote it if it is text"
    if kind == "list_type":
        return "write [item, item]"
    whole = _integer(value) if _EXPECTED.get(kind) == "an integer" else None
    return "" if whole is None else f"write {whole}"


def _integer(value: object) -> int | None:
    """Return the integer that a text such as 1e3 means, or None."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return int(number) if number.is_integer() and abs(number) < bounds.NUMBER.maximum else None


def join_location(location: str, path: str) -> str:
    """Join the location of a value and the path of a key in it, such as ``.servers[0].name``."""
    if location.endswith("]") or not path:
        return f"{location}{path}"
    return f"{location}: {path.removeprefix('.')}"


def _keys_fault(model: type[BaseModel], where: str, location: Sequence[Any], issue: Any) -> Fault:
    """Return the fault of a value that should be a mapping; name keys instead of a model class."""
    name = issue["ctx"]["class_name"]
    keys = [key for part in _models(model) if part.__name__ == name for key in part.model_fields]
    with_keys = f" with the keys {_first(keys, MAX_KEYS_IN_MESSAGE)}" if keys else ""
    message = f"expected a mapping{with_keys}, got {describe_type(issue['input'])}"
    return Fault(where, message, _example(location, issue["input"]))


def _example(location: Sequence[Any], value: object) -> str:
    """Return the hint for a value that should be a mapping."""
    key = str(location[-1]) if location else ""
    if key == "workers" and isinstance(value, int) and 0 < value <= bounds.WORKER_COUNTS.maximum:
        return f"write {{min: {value}, max: {value}}}"
    return f"write {_EXAMPLES.get(key, '{key: value}')}"


def _kind_fault(where: str, issue: Any) -> Fault:
    """Return the fault of a value whose kind is missing or unknown."""
    key = issue["ctx"]["discriminator"].strip("'")
    if issue["type"] == "union_tag_not_found":
        return Fault(f"{where}.{key}", "is missing")
    kinds = [kind.strip("'") for kind in issue["ctx"]["expected_tags"].split(", ")]
    tag = issue["ctx"]["tag"]
    hint = hint_for_unknown(tag, kinds, cutoff=0.5)
    return Fault(f"{where}.{key}", f"unknown {key} {quote_for_display(tag)}", hint)


def _key(part: object) -> str:
    text = str(part)
    return text if len(text) <= MAX_DISPLAY_CHARS else quote_for_display(text)


def _hint_for_key(model: type[BaseModel], location: Sequence[Any]) -> str:
    """Return the hint for an unknown key: another key, where it belongs, or the known keys."""
    key, parts = str(location[-1]), [model]
    for step in location[:-1]:
        if not isinstance(step, int):
            named = (_fields(part).get(str(step)) for part in parts)
            parts = [part for field in named if field for part in _nearest(field.annotation)]
    for part in parts:
        usual = getattr(part, "USUAL_KEYS", {})
        if key in usual:
            return f"write {usual[key]}"
    keys = [*dict.fromkeys(key for part in parts for key in _fields(part))]
    if not keys:
        return "remove it"
    for part in parts:
        for name, field in _fields(part).items():
            if any(key in _fields(nested) for nested in _nearest(field.annotation)):
                return f"it belongs in `{name}`"
    return hint_for_unknown(key, keys, f"known: {_first(keys, MAX_SUGGESTIONS)}")


def _first(names: Sequence[str], limit: int) -> str:
    """Return the first names, with an ellipsis if there are more."""
    return ", ".join([*names[:limit], *(["..."] if len(names) > limit else [])])


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by the keys of files, which are aliases if there are any."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _nearest(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a field may contain directly."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _nearest(part)]


def _models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return a model and all models nested in it."""
    pending: list[Any] = [model]
    seen: dict[type[BaseModel], None] = {}
    while pending:
        part = pending.pop()
        if isinstance(part, type) and issubclass(part, BaseModel):
            if part not in seen:
                seen[part] = None
                pending += [field.annotation for field in part.model_fields.values()]
        else:
            pending += getattr(part, "__args__", ())
    return list(seen)

"""Conversion of validation errors into diagnostics with a location and a hint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import (
    BaseModel,
    ValidationError,
)

from shadowprice.core import bounds
from shadowprice.core import utility as utilities
from shadowprice.core.errors import Fault
from shadowprice.core.specs.distributions import DISTRIBUTION_KINDS
from shadowprice.core.wording import (
    MAX_DISPLAY_CHARS,
    describe_type,
    hint_for_unknown,
    quote_for_display,
)

Model = TypeVar("Model", bound=BaseModel)

_TAGS: Mapping[str, frozenset[str]] = {
    "utility": frozenset(utilities.FAMILIES),
    "duration": frozenset(DISTRIBUTION_KINDS),
}
"""Union tags that pydantic inserts into locations, by the key that precedes them."""


MAX_KEYS_IN_MESSAGE: Final = 6
"""Maximum number of keys in the message for a value that should be a mapping."""

MAX_SUGGESTIONS: Final = 16  # maximum number of keys in the hint for an unknown key


def validate(model: type[Model], value: object, location: str) -> tuple[Model | None, list[Fault]]:
    """Validate a value from a file; return the model instance, or None and the faults.

    ``location`` is the location of the value, such as ``jobs.yaml: jobs[3]``.
    """
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        issues = error.errors(include_url=False)
        return None, [
            _fault(model, issue, location) for issue in issues[: int(bounds.FAULTS.maximum)]
        ]


def _fault(model: type[BaseModel], issue: Any, place: str) -> Fault:
    # The previous key decides: `deadline` is a tag after `utility`, otherwise a key of the file.
    location = [
        part
        for before, part in zip((None, *issue["loc"]), issue["loc"], strict=False)
        if part not in _TAGS.get(str(before), ())
    ]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in location)
    where = _join_location(place, path)
    if issue["type"] == "extra_forbidden":
        key = str(location[-1])
        known = sorted({key for part in _models(model) for key in part.model_fields})
        hint = hint_for_unknown(key, known, _suggest_keys(model, location[:-1]), cutoff=0.5)
        return Fault(where, "unknown key", hint)
    if issue["type"] == "missing":
        return Fault(where, "is missing")
    if issue["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return _kind_fault(where, issue)
    if issue["type"] == "string_unicode":
        return Fault(where, "contains an unpaired surrogate", "use valid Unicode text")
    if issue["type"] == "model_type":
        return _keys_fault(model, where, issue)
    if issue["type"] in {"model_attributes_type", "dict_type"}:
        message = f"expected a mapping, got {describe_type(issue['input'])}"
        return Fault(where, message, "write {key: value}")
    if issue["type"] == "too_short" and not issue["ctx"]["actual_length"]:
        message = f"expected {issue['ctx']['min_length']} or more items, got 0"
        return Fault(where, message, "add one")
    return Fault(where, issue["msg"].removeprefix("Value error, "))


def _join_location(location: str, path: str) -> str:
    """Join the location of a value and the path of a key in it, such as ``.servers[0].name``."""
    if location.endswith("]") or not path:
        return f"{location}{path}"
    separator = " " if location.endswith(":") else ": "
    return f"{location}{separator}{path.removeprefix('.')}"


def _keys_fault(model: type[BaseModel], where: str, issue: Any) -> Fault:
    """Return the fault of a value that should be a mapping; it lists keys, not pydantic's class."""
    name = issue["ctx"]["class_name"]
    keys = [key for part in _models(model) if part.__name__ == name for key in part.model_fields]
    with_keys = f" with the keys {_first(keys, MAX_KEYS_IN_MESSAGE)}" if keys else ""
    message = f"expected a mapping{with_keys}, got {describe_type(issue['input'])}"
    return Fault(where, message, "write {key: value}")


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


def _suggest_keys(model: type[BaseModel], location: Sequence[Any]) -> str:
    """Return the hint for an unknown key without a similar key: the keys at its location."""
    parts = [model]
    for step in location:
        if not isinstance(step, int):
            named = (part.model_fields.get(str(step)) for part in parts)
            parts = [part for field in named if field for part in _nearest(field.annotation)]
    keys = [*dict.fromkeys(key for part in parts for key in part.model_fields)]
    if not keys:
        return "remove it"
    return f"known: {_first(keys, MAX_SUGGESTIONS)}"


def _first(names: Sequence[str], limit: int) -> str:
    """Return the first names, with an ellipsis if there are more."""
    return ", ".join([*names[:limit], *(["..."] if len(names) > limit else [])])


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

"""Size and nesting of a YAML document, checked before any of it is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError

_OPENING: Final = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING: Final = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def check_yaml_size(path: Path, text: str) -> None:
    """Refuse a YAML document with too many values, too deep a nesting, or too long a text.

    An alias counts as its whole content, so that a few lines can't expand to a billion values. An
    alias that contains itself is refused. Errors call the document ``path``. Text that isn't YAML
    raises `yaml.YAMLError`.
    """
    values = depth = 0
    max_values, max_length = bounds.VALUES.maximum, bounds.PATH.maximum
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    event: Any
    # A document at the limit has 250,000 events: locations are built only for a refused one.
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        kind = type(event)
        if kind is yaml.ScalarEvent:
            values += 1
            if len(event.value) > max_length:
                problem = (
                    f"{len(event.value):,} exceeds the limit of {bounds.TEXT.maximum:,} characters "
                    f"of a text ({max_length:,} of a path)"
                )
                raise InputError(Fault(_place(path, event), problem, "check its quotes"))
            if event.anchor:
                sizes[event.anchor] = 1
        elif kind in _OPENING:
            depth += 1
            if depth > bounds.NESTING.maximum:
                bounds.NESTING.check(depth, _place(path, event))
            opened.append((event.anchor, values))
            values += 1
            if event.anchor:
                sizes[event.anchor] = -1
        elif kind in _CLOSING:
            depth -= 1
            anchor, values_before = opened.pop()
            if anchor:
                sizes[anchor] = values - values_before
        elif kind is yaml.AliasEvent:
            size = sizes.get(str(event.anchor), 1)
            if size < 0:
                raise InputError(Fault(_place(path, event), f"*{event.anchor} contains itself"))
            values += size
        if values > max_values:
            hint = "write jobs as JSON Lines (.jsonl), and equal servers once, with `count`"
            bounds.VALUES.check(values, _place(path, event), hint)


def check_document_size(path: Path, document: object, hint: str) -> None:
    """Refuse to write a document that `check_yaml_size` would refuse to read."""
    bounds.VALUES.check(_count_values(document), str(path), hint)


def _count_values(value: object) -> int:
    if isinstance(value, Mapping):
        return 1 + len(value) + sum(map(_count_values, value.values()))
    return 1 + sum(map(_count_values, value)) if isinstance(value, list) else 1


def _place(path: Path, event: Any) -> str:
    mark = event.start_mark
    return str(path) if mark is None else f"{path}: line {mark.line + 1}"

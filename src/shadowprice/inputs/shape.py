"""How large and how deep a YAML document is, found out before any of it is built."""

from __future__ import annotations

from pathlib import Path

import yaml

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError


def check_shape(path: Path, text: str) -> None:
    """Refuse a YAML document with too many values, too deep a nesting, or too long a text.

    An alias counts as all that it stands for, so that a few lines cannot stand for a thousand
    million values; one that stands for itself is refused.

    Parameters
    ----------
    path : Path
        What errors call it.
    text : str
        The document.

    Raises
    ------
    InputError
        With the line, naming the bound.
    yaml.YAMLError
        If it is no YAML.
    """
    values = depth = 0
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        mark = event.start_mark
        place = str(path) if mark is None else f"{path}: line {mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(str(event.anchor), 1)
            if size < 0:
                raise InputError(Fault(place, f"*{event.anchor} stands for itself"))
            values += size
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            bounds.PATH.check(len(event.value), place, "is a quote missing?")
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
            bounds.NESTING.check(depth, place)
            opened.append((event.anchor, values))
            values += 1
            if event.anchor:
                sizes[event.anchor] = -1
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = values - before
        bounds.VALUES.check(values, place, "write a job file as JSON Lines (.jsonl)")

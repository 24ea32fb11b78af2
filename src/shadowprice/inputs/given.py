"""Values that Python programs pass instead of files and options, converted to a file's types."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shadowprice.core.bounds import InputLimit
from shadowprice.core.errors import Fault, InputError


def to_python_values(value: Any) -> Any:
    """Convert numpy's numbers, texts and arrays to Python's, at every level."""
    if isinstance(value, Mapping):
        return {to_python_values(key): to_python_values(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return to_python_values(value.tolist())
    if isinstance(value, list | tuple):
        return [to_python_values(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def list_entries(given: Iterable[Any], kind: str) -> list[Any]:
    """Return the elements of an iterable as a list that a file would hold.

    ``kind`` is the name of the list: ``jobs``, ``incidents``. A mapping is refused, because it is
    the content of a file.
    """
    if isinstance(given, Mapping):
        hint = f"give the list of {kind} in it, or the path of the file"
        raise InputError(Fault(kind, "is a mapping", hint))
    return [to_python_values(entry) for entry in given]


def to_int(value: Any, location: str, bound: InputLimit, minimum: int, what: str) -> int:
    """Return an integer, possibly numpy's, from ``minimum`` to a bound."""
    try:
        number = -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = -1
    if number < minimum:
        raise InputError(Fault(location, f"{value!r} is not a {what}", f"write {max(minimum, 10)}"))
    bound.check(number, location)
    return number

"""Conversion of arguments of the Python API to the types that files and options give."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shadowprice.core.bounds import InputLimit
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display


def to_python_values(value: Any) -> Any:
    """Convert numpy's numbers, texts and arrays to Python's, at every level."""
    if isinstance(value, Mapping):
        return {to_python_values(key): to_python_values(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return to_python_values(value.tolist())
    if isinstance(value, list | tuple):
        return [to_python_values(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def list_entries(entries: Iterable[Any], kind: str) -> list[Any]:
    """Return the elements of an iterable as a list that a file would hold.

    ``kind`` is the key of the list: ``jobs``, ``incidents``. A mapping, such as the content of a
    whole file, is refused.
    """
    if isinstance(entries, Mapping):
        hint = f"give the list of {kind} in it, or the path of the file"
        raise InputError(Fault(kind, "is a mapping", hint))
    return [to_python_values(entry) for entry in to_list(entries, kind, "give a list or a path")]


def to_number(value: Any, location: str, bound: InputLimit, what: str, hint: str) -> float:
    """Return a finite number of 0 or more within a bound; ``value`` may be numpy's.

    Errors say that ``what`` was expected, such as ``0 or more seconds``.
    """
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or np.iscomplexobj(value) or not 0 <= value < float("inf"):
        problem = f"expected {what}, got {quote_for_display(value)}"
        raise InputError(Fault(location, problem, hint))
    number = to_python_values(value)
    bound.check(number, location)
    return float(number)


def to_mapping(value: Any, location: str, hint: str) -> dict[str, Any]:
    """Return a mapping with numpy's values converted; its keys have to be text."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        problem = f"expected a mapping by name, got {quote_for_display(value)}"
        raise InputError(Fault(location, problem, hint))
    mapping: dict[str, Any] = to_python_values(value)
    return mapping


def to_list(value: Any, location: str, hint: str) -> list[Any]:
    """Return the elements of an iterable; text and mappings are refused."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        problem = f"expected a list, got {quote_for_display(value)}"
        raise InputError(Fault(location, problem, hint))
    return list(value)


def to_int(value: Any, location: str, bound: InputLimit, minimum: int, what: str) -> int:
    """Return an integer from ``minimum``, which is 0 or more, to a bound; it may be numpy's.

    Errors say that ``value`` is not a ``what``.
    """
    try:
        number = -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = -1
    if number < minimum:  # also if the value isn't an integer
        raise InputError(Fault(location, f"{value!r} is not a {what}", f"write {max(minimum, 10)}"))
    bound.check(number, location)
    return number

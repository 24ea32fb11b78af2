"""What a program gives in place of a file or an option: its values as files would hold them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shadowprice.core.bounds import Bound
from shadowprice.core.errors import Fault, InputError


def plain_values(value: Any) -> Any:
    """Return a value with numpy's numbers, texts and arrays as Python's, at every level."""
    if isinstance(value, Mapping):
        return {plain_values(key): plain_values(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain_values(value.tolist())
    if isinstance(value, list | tuple):
        return [plain_values(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def entries(given: Iterable[Any], kind: str) -> list[Any]:
    """Return the entries of a list, or of anything that yields them, as a file would hold them.

    Parameters
    ----------
    given : iterable of mappings
        The entries.
    kind : str
        What they are, and what the file's list is called: ``jobs``, ``incidents``.

    Raises
    ------
    InputError
        If it is the whole of such a file, which may hold more than that list.
    """
    if isinstance(given, Mapping):
        mend = f"give the list of {kind} in it, or the path of the file"
        raise InputError(Fault(kind, "is a mapping", mend))
    return [plain_values(entry) for entry in given]


def whole_number(value: Any, place: str, bound: Bound, least: int, what: str) -> int:
    """Return a whole number, one of numpy's too, from ``least`` to a bound.

    Parameters
    ----------
    value : object
        What was given.
    place : str
        Its name.
    bound : Bound
        The most that it may be.
    least : int
        The least.
    what : str
        What it is to be, for the fault.

    Raises
    ------
    InputError
        If it is none.
    """
    try:
        number = -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = -1
    if number < least:
        raise InputError(Fault(place, f"{value!r} is no {what}", f"write {max(least, 10)}"))
    bound.check(number, place)
    return number

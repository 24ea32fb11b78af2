"""Errors that the author of a script or of a job file has to correct, and checks of arguments."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any, Final

_MAX_SECONDS: Final = 10**9


class TrainingError(Exception):
    """A training script requests something invalid, or can't continue from the state it finds."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def checked_integer(name: str, value: Any, minimum: int, maximum: int) -> int:
    """Return an integer in range as Python's int, because a checkpoint can't hold numpy's."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TrainingError(f"{name}: expected an integer, got {value!r}") from None
    if not minimum <= number <= maximum:
        limits = f"{minimum:,} to {maximum:,}"
        raise TrainingError(f"{name}: expected an integer from {limits}, got {number:,}")
    return number


def checked_seconds(name: str, value: Any, *, allow_zero: bool = False) -> float:
    """Return a number of seconds; raise `TrainingError` for other values, and out of range."""
    if not isinstance(value, Real):
        raise TrainingError(f"{name}: expected a number of seconds, got {value!r}")
    seconds = float(value)
    if not 0 <= seconds <= _MAX_SECONDS or (seconds == 0 and not allow_zero):
        lower = "from 0" if allow_zero else "above 0"
        limits = f"{lower} to {_MAX_SECONDS:,}"
        raise TrainingError(f"{name}: expected seconds {limits}, got {seconds:g}")
    return seconds

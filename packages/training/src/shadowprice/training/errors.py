"""`TrainingError`, checks of values that raise it, and imports of optional modules."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final

_MAX_SECONDS: Final = 10**9


class TrainingError(Exception):
    """A training script requests something invalid, or can't continue from the state it finds."""


def import_at_first_use(package: str, modules: Mapping[str, Sequence[str]], name: str) -> Any:
    """Import a public name of a package, whose module may need libraries that aren't installed."""
    module = next((module for module, names in modules.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name not in {"fsspec", "numpy", "torch"}:
            raise
        message = f"{package}.{name} needs {error.name}: "
        message += "pip install './packages/training[torch]' in a clone of Shadowprice"
        raise ModuleNotFoundError(message, name=error.name) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def checked_integer(name: str, value: Any, minimum: int, maximum: int) -> int:
    """Return an integer in range as an int, because a checkpoint can't hold numpy integers."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TrainingError(f"{name}: expected an integer, got {value!r}") from None
    if not minimum <= number <= maximum:
        limits = f"{minimum:,} to {maximum:,}"
        raise TrainingError(f"{name}: expected an integer from {limits}, got {number:,}")
    return number


def checked_seconds(name: str, value: Any, *, allow_zero: bool = False) -> float:
    """Return a number of seconds; raise `TrainingError` if it isn't a number, or out of range."""
    if not isinstance(value, Real):
        raise TrainingError(f"{name}: expected a number of seconds, got {value!r}")
    seconds = float(value)
    if not 0 <= seconds <= _MAX_SECONDS or (seconds == 0 and not allow_zero):
        lower = "from 0" if allow_zero else "above 0"
        limits = f"{lower} to {_MAX_SECONDS:,}"
        raise TrainingError(f"{name}: expected seconds {limits}, got {seconds:g}")
    return seconds

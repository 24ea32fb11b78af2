"""Utilities: the value of completing a job, a non-increasing function of the time it took.

Every utility is a function of ``d = completion slot - arrival slot`` (OASiS section III-C, and
likewise in the other three papers). `Utility.log_values` returns logarithms, because price
constants need ratios of utilities that underflow (a sigmoid of decay 5 at ``d = 300``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.arrays import Floats

_MAX_EXPONENT: Final = 700.0  # of e, without overflow in double precision


class Utility:
    """A non-increasing, non-negative value of completing ``d`` slots after arrival.

    A family of utilities is a dataclass with a ``kind`` that defines `_at`.
    """

    kind: ClassVar[str]
    """Name of the family in files."""

    def values(self, durations: NDArray[np.generic]) -> Floats:
        """Return the utility at each duration in slots."""
        return np.asarray(self._at(np.asarray(durations, np.float64)), np.float64)

    def _at(self, durations: Floats) -> Floats:
        raise NotImplementedError

    def log_values(self, durations: NDArray[np.generic]) -> Floats:
        """Return the natural logarithm of the utility at each duration (``-inf`` for 0)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.values(durations)), dtype=np.float64)

    def scaled(self, factor: float) -> Utility:
        """Return the utility times a positive factor."""
        return replace(self, value=self.value * factor)  # type: ignore[type-var,attr-defined]


def utility_value(utility: Utility, duration: float) -> float:
    """Return the utility at ``duration`` slots after arrival."""
    if type(utility) is Sigmoid:  # the most frequent family: floats take a fifth of an array's time
        exponent = min(utility.decay * (duration - utility.target), _MAX_EXPONENT)
        return float(utility.value / (1.0 + np.exp(exponent)))
    return float(utility.values(np.array([duration], dtype=np.float64))[0])


def utility_record(utility: Utility) -> dict[str, float | str]:
    """Return the utility as in files: its kind and its parameters."""
    record: dict[str, float | str] = {"kind": utility.kind}
    for field in fields(utility):  # type: ignore[arg-type]  # every family is a dataclass
        record[field.name] = getattr(utility, field.name)
    return record


@dataclass(frozen=True, slots=True)
class Constant(Utility):
    """``value``, whenever the job completes."""

    value: float
    kind: ClassVar[str] = "constant"

    def _at(self, durations: Floats) -> Floats:
        return np.full(durations.shape, self.value)


@dataclass(frozen=True, slots=True)
class Sigmoid(Utility):
    """``value / (1 + exp(decay (d - target)))`` (OASiS section V).

    ``value`` is the utility of completing long before the target (half of it if ``decay`` is 0).
    ``decay`` is the steepness around the target per slot. At ``target`` slots after arrival the
    utility is half of ``value``.
    """

    value: float
    decay: float
    target: float
    kind: ClassVar[str] = "sigmoid"

    def _at(self, durations: Floats) -> Floats:
        exponent = self.decay * (durations - self.target)
        return self.value / (1.0 + np.exp(np.minimum(exponent, _MAX_EXPONENT)))

    def log_values(self, durations: NDArray[np.generic]) -> Floats:
        """Return the natural logarithm of the utility at each duration."""
        exponent = self.decay * (np.asarray(durations, np.float64) - self.target)
        return np.asarray(_log(self.value) - np.logaddexp(0.0, exponent), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Reciprocal(Utility):
    """``value / (1 + d)``."""

    value: float
    kind: ClassVar[str] = "reciprocal"

    def _at(self, durations: Floats) -> Floats:
        return self.value / (1.0 + durations)


@dataclass(frozen=True, slots=True)
class Linear(Utility):
    """``max(0, value + slope d)`` with ``slope <= 0``."""

    value: float
    slope: float
    kind: ClassVar[str] = "linear"

    def _at(self, durations: Floats) -> Floats:
        return np.maximum(0.0, self.value + self.slope * durations)

    def scaled(self, factor: float) -> Linear:
        """Return the utility times a positive factor."""
        return Linear(self.value * factor, self.slope * factor)


@dataclass(frozen=True, slots=True)
class Power(Utility):
    """``(scale / max(d, 1))^exponent``."""

    scale: float
    exponent: float
    kind: ClassVar[str] = "power"

    def _at(self, durations: Floats) -> Floats:
        return (self.scale / np.maximum(1.0, durations)) ** self.exponent

    def scaled(self, factor: float) -> Utility:
        """Return the utility times a positive factor."""
        if self.exponent:
            try:
                scale = self.scale * factor ** (1 / self.exponent)
            except OverflowError:
                scale = math.inf
            if sys.float_info.min <= scale < math.inf:
                return Power(scale, self.exponent)
        # No normal float is the new scale, because the exponent is tiny: the utility hardly falls.
        return Constant(factor * utility_value(self, 1))


@dataclass(frozen=True, slots=True)
class Deadline(Utility):
    """``value`` up to ``by`` slots after arrival, 0 later."""

    value: float
    by: float
    kind: ClassVar[str] = "deadline"

    def _at(self, durations: Floats) -> Floats:
        return np.where(durations <= self.by, self.value, 0.0)


FAMILIES: Mapping[str, type[Utility]] = {
    family.kind: family for family in (Constant, Sigmoid, Reciprocal, Linear, Power, Deadline)
}


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf

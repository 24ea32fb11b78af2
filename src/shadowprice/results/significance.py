"""Means over seeds with their intervals, and whether two policies really differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

CONFIDENCE: Final = 0.95
"""Of every interval."""

EXACT: Final = 16
"""Most pairs whose signs are flipped in every way (65,536); beyond, they are drawn."""

DRAWS: Final = 100_000

_ROUNDING: Final = 1e-12
"""Part of a value by which sums of the same numbers in another order may differ."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and where it lies with a confidence of 95 %.

    Parameters
    ----------
    mean, low, high : float
        The mean of the sample, and the ends of Student's interval; infinite for a single value.
    count : int
        Values.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2

    def record(self) -> dict[str, float | int | None]:
        """Return it as plain values; an end that is not known is None."""
        known = math.isfinite(self.half)
        return {
            "mean": self.mean,
            "low": self.low if known else None,
            "high": self.high if known else None,
            "count": self.count,
        }


@dataclass(frozen=True, slots=True)
class Paired:
    """What one policy has beyond another over the same seeds.

    Parameters
    ----------
    difference : Interval
        Of the differences, seed by seed.
    p : float
        How often a difference at least as large would be seen if the sign of every seed's
        difference were a coin's (paired permutation test, two-sided).
    adjusted : float
        The same after Holm's correction for all comparisons made with it.
    """

    difference: Interval
    p: float
    adjusted: float


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values with Student's interval.

    Raises
    ------
    ValueError
        If there is none.
    """
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        raise ValueError("an interval needs a value")
    mean = float(sample.mean())
    if len(sample) == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    if float(np.ptp(sample)) <= _ROUNDING * float(np.abs(sample).max()):
        return Interval(mean, mean, mean, len(sample))
    error = float(sample.std(ddof=1)) / math.sqrt(len(sample))
    reach = float(special.stdtrit(len(sample) - 1, (1 + CONFIDENCE) / 2)) * error
    return Interval(mean, mean - reach, mean + reach, len(sample))


def sign_flips(differences: Sequence[float], seed: int = 0) -> float:
    """Return the two-sided p value of a paired permutation test on the mean difference.

    Under the hypothesis that the two policies are exchangeable seed by seed, each difference might
    as well have the other sign. All signs are tried for up to `EXACT` pairs; beyond, `DRAWS` of
    them, the observed one counted among them.

    Parameters
    ----------
    differences : sequence of float
        One a seed.
    seed : int
        Of the draws.
    """
    sample = np.asarray(differences, dtype=np.float64)
    sample = sample[sample != 0]  # a flipped zero changes nothing
    if not len(sample):
        return 1.0
    seen = abs(float(sample.sum()))
    # A sum that is the same but for the order of adding must count as reached.
    reached = seen - 1e-12 * float(np.abs(sample).sum())
    if len(sample) <= EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(sample))))
        return float((np.abs(signs @ sample) >= reached).mean())
    rng = np.random.default_rng(seed)
    signs = rng.choice((1.0, -1.0), size=(DRAWS, len(sample)))
    extreme = int((np.abs(signs @ sample) >= reached).sum())
    return (extreme + 1) / (DRAWS + 1)


def holm(values: Sequence[float]) -> list[float]:
    """Return p values after Holm's step-down correction for testing all of them."""
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=lambda at: values[at])):
        largest = max(largest, min(1.0, (len(values) - rank) * values[at]))
        adjusted[at] = largest
    return adjusted


def against(reference: Sequence[float], others: Sequence[Sequence[float]]) -> list[Paired]:
    """Compare samples with a reference, value by value.

    Parameters
    ----------
    reference : sequence of float
        One value a seed.
    others : sequence of such
        Of the same seeds, in the same order.
    """
    differences = [
        [value - base for base, value in zip(reference, other, strict=True)] for other in others
    ]
    values = [sign_flips(difference) for difference in differences]
    return [
        Paired(interval(difference), p, corrected)
        for difference, p, corrected in zip(differences, values, holm(values), strict=True)
    ]

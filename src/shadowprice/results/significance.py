"""Means over seeds with confidence intervals, and significance tests between policies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

CONFIDENCE: Final = 0.95  # confidence level of every interval

MAX_EXACT_PAIRS: Final = 16
"""Maximum number of pairs for which all sign flips (65,536) are evaluated, not sampled."""

DRAWS: Final = 100_000  # random combinations of signs
_ROUNDING: Final = 1e-12  # relative difference by which rounding changes sums of the same numbers


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A sample mean with Student's 95 % confidence interval; infinite for a single value."""

    mean: float
    low: float
    high: float
    count: int  # sample size

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2

    def record(self) -> dict[str, float | int | None]:
        """Return the interval as plain values; unknown bounds are None."""
        is_finite = math.isfinite(self.half)
        return {
            "mean": self.mean,
            "low": self.low if is_finite else None,
            "high": self.high if is_finite else None,
            "count": self.count,
        }


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Difference between two policies over the same seeds."""

    difference: ConfidenceInterval  # of the differences by seed
    # Probability of a mean difference at least as large, if the signs of all differences were
    # random (paired permutation test, two-sided).
    p: float
    adjusted: float  # ``p`` after Holm's correction for all comparisons made together


def interval(values: Sequence[float]) -> ConfidenceInterval:
    """Return the mean of at least one value with Student's interval."""
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        raise ValueError("an interval needs a value")
    mean = float(sample.mean())
    if len(sample) == 1:
        return ConfidenceInterval(mean, -math.inf, math.inf, 1)
    if float(np.ptp(sample)) <= _ROUNDING * float(np.abs(sample).max()):
        return ConfidenceInterval(mean, mean, mean, len(sample))
    error = float(sample.std(ddof=1)) / math.sqrt(len(sample))
    reach = float(special.stdtrit(len(sample) - 1, (1 + CONFIDENCE) / 2)) * error
    return ConfidenceInterval(mean, mean - reach, mean + reach, len(sample))


def paired_permutation_test(differences: Sequence[float], seed: int = 0) -> float:
    """Return the two-sided p value of a paired permutation test on the mean difference.

    Under the null hypothesis the policies are exchangeable seed by seed, so every difference could
    have the opposite sign. With up to `MAX_EXACT_PAIRS` pairs, all combinations of signs are
    evaluated. With more pairs, `DRAWS` random combinations and the observed one are evaluated.
    ``seed`` draws the signs.
    """
    sample = np.asarray(differences, dtype=np.float64)
    sample = sample[sample != 0]  # a flipped zero changes nothing
    if not len(sample):
        return 1.0
    observed = abs(float(sample.sum()))
    # Another order of the same numbers may give a sum that differs by rounding.
    threshold = observed - _ROUNDING * float(np.abs(sample).sum())
    if len(sample) <= MAX_EXACT_PAIRS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(sample))))
        return float((np.abs(signs @ sample) >= threshold).mean())
    rng = np.random.default_rng(seed)
    signs = rng.choice((1.0, -1.0), size=(DRAWS, len(sample)))
    extreme = int((np.abs(signs @ sample) >= threshold).sum())
    return (extreme + 1) / (DRAWS + 1)


def holm_adjust(values: Sequence[float]) -> list[float]:
    """Return p values after Holm's step-down correction for testing all of them."""
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


def compare_to_reference(
    reference: Sequence[float], others: Sequence[Sequence[float]]
) -> list[PairedTest]:
    """Compare samples with a reference, seed by seed; all samples have the same order of seeds."""
    differences = [
        [value - base for base, value in zip(reference, other, strict=True)] for other in others
    ]
    values = [paired_permutation_test(difference) for difference in differences]
    return [
        PairedTest(interval(difference), p, corrected)
        for difference, p, corrected in zip(differences, values, holm_adjust(values), strict=True)
    ]


def compare_with_first(samples: Mapping[str, Sequence[float]]) -> dict[str, PairedTest]:
    """Compare samples by name with the first of them, seed by seed."""
    first, *others = samples
    tests = compare_to_reference(samples[first], [samples[other] for other in others])
    return dict(zip(others, tests, strict=True))

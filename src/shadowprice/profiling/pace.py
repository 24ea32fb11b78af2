"""Step time from progress reports, without the warm-up, with a confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from shadowprice.core.errors import ShadowpriceError

LEVEL: Final = 0.95  # confidence level of the intervals
BATCHES: Final = 20  # at most; longer batches are less correlated with their neighbours
MIN_INTERVALS: Final = 6  # minimum number of intervals after the warm-up for a step time


class BackwardsError(ShadowpriceError):
    """A job reported less progress than before."""

    code = "backwards"


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a mini-batch of the whole job."""

    seconds: float  # mean over the mini-batches after the warm-up
    half_width: float  # of the confidence interval, in seconds
    minibatches: float  # mini-batches that were measured
    warm_up: float  # mini-batches left out before

    @property
    def error(self) -> float:
        """Half the width of the confidence interval as a share of the mean."""
        return self.half_width / self.seconds

    @property
    def per_second(self) -> float:
        """Mini-batches per second of the whole job."""
        return 1.0 / self.seconds


class Pace:
    """Reports of one generation, in the order of their arrival."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._done: list[float] = []

    @property
    def reports(self) -> int:
        """Number of reports that count."""
        return len(self._at)

    @property
    def first(self) -> tuple[float, float] | None:
        """Time and mini-batches of the first report, None before it."""
        return (self._at[0], self._done[0]) if self._at else None

    @property
    def done(self) -> float:
        """Mini-batches of the newest report, 0 before the first."""
        return self._done[-1] if self._done else 0.0

    def add(self, at: float, minibatches: float) -> None:
        """Record a report with progress; raise `BackwardsError` if it has less than before."""
        if self._done and minibatches < self._done[-1]:
            raise BackwardsError(
                f"it reported {minibatches:g} mini-batches after {self._done[-1]:g}: report those "
                "since the job's very beginning, over all its generations"
            )
        if not self._done or (minibatches > self._done[-1] and at > self._at[-1]):
            self._at.append(at)
            self._done.append(minibatches)

    def step_time(self) -> StepTime | None:
        """Return the current estimate of the step time, None while there are too few reports."""
        seconds, steps = np.diff(self._at), np.diff(self._done)
        excluded = _warm_up(seconds / steps) if len(steps) else 0
        seconds, steps = seconds[excluded:], steps[excluded:]
        if len(steps) < MIN_INTERVALS:
            return None
        mean = float(seconds.sum() / steps.sum())
        stretches = np.array_split(np.arange(len(steps)), min(BATCHES, len(steps)))
        residuals = np.array(
            [seconds[stretch].sum() - mean * steps[stretch].sum() for stretch in stretches]
        )
        count = len(stretches)
        # The variance of a ratio of sums; see Cochran, Sampling Techniques, 6.4.
        error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / float(steps.sum())
        factor = float(stdtrit(count - 1, 0.5 + 0.5 * LEVEL))
        return StepTime(
            mean, factor * error, float(steps.sum()), self._done[excluded] - self._done[0]
        )


def _warm_up(rates: NDArray[np.float64]) -> int:
    """Return how many intervals to leave out first, by White's marginal standard error rule."""
    centred = (rates - rates.mean())[::-1]  # small sums, so that squares don't cancel
    sums, squares = np.cumsum(centred), np.cumsum(centred**2)
    counts = np.arange(1, len(rates) + 1)
    errors = np.maximum(0.0, squares - sums**2 / counts) / counts**2  # of the newest intervals
    return int(np.argmin(errors[::-1][: len(rates) // 2 + 1]))

"""Step times from progress reports, and fits of speeds: the papers' linear model, Amdahl's law.

In the papers' model (OASiS (2)), n workers train ``n / step_time`` mini-batches per second, with
``step_time = tau + 2 e / b``. Every worker computes its own mini-batch in tau, sends e bytes of
gradients, and receives parameters, over bandwidth b. So a worker's time per mini-batch,
``workers / speed``, should be the same for every number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from shadowprice.core.errors import ShadowpriceError

LEVEL: Final = 0.95  # confidence level of the intervals
BATCHES: Final = 20  # at most; longer batches are less correlated with their neighbours
MIN_INTERVALS: Final = 6  # minimum number of intervals after the warm-up for a step time

FIT_TOLERANCE: Final = 0.05  # maximum relative error of a model that fits
ROUGH_FIT_TOLERANCE: Final = 0.15  # maximum relative error of a model that fits roughly


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


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed with some workers and parameter servers; mini-batches per second."""

    workers: int
    ps: int
    per_second: float

    @property
    def worker_seconds(self) -> float:
        """Seconds of one worker per mini-batch."""
        return self.workers / self.per_second

    @property
    def exchanges(self) -> bool:
        """Whether processes exchange tensors: a lone worker without servers doesn't."""
        return self.workers > 1 or self.ps > 0


@dataclass(frozen=True, slots=True)
class FitQuality:
    """How well a model predicts the measurements."""

    predicted: tuple[float, ...]  # mini-batches per second, in the order of the measurements
    errors: tuple[float, ...]  # relative
    determination: float | None  # R^2 of the speeds; None if all are equal, or only one
    free: int  # measurements minus fitted numbers; a model without any fits trivially

    @property
    def largest(self) -> float:
        """Largest relative error."""
        return max(map(abs, self.errors))

    @property
    def verdict(self) -> str:
        """``fits``, ``fits roughly``, ``does not fit``, or ``untried``."""
        if self.free < 1:
            return "untried"
        if self.largest <= FIT_TOLERANCE:
            return "fits"
        return "fits roughly" if self.largest <= ROUGH_FIT_TOLERANCE else "does not fit"


@dataclass(frozen=True, slots=True)
class LinearFit:
    """The linear model with the smallest error."""

    # tau in seconds, measured by the job or taken from one worker that exchanges nothing; None if
    # unknown
    minibatch_time: float | None
    step_time: float  # seconds of one worker per mini-batch, with communication
    # b in bit/s, from the rest of the step time; None if the size of the gradient is unknown, or no
    # time remains for communication
    bandwidth: float | None
    quality: FitQuality


@dataclass(frozen=True, slots=True)
class SerialFit:
    """Amdahl's law: a step takes ``serial + shared / workers`` seconds."""

    serial: float
    shared: float
    quality: FitQuality


def fit_linear(
    measured: Sequence[Speed],
    *,
    gradient_bytes: float | None = None,
    minibatch_time: float | None = None,
) -> LinearFit:
    """Fit tau and b of the linear model, by least squares of relative errors.

    ``gradient_bytes`` is e, and ``minibatch_time`` is tau if the job measured it.
    """
    alone = [speed.worker_seconds for speed in measured if not speed.exchanges]
    together = [speed.worker_seconds for speed in measured if speed.exchanges]
    tau = minibatch_time if minibatch_time is not None else (alone[0] if alone else None)
    # Minimises sum (s_n / step - 1)^2 over 1 / step.
    seconds = np.array(together or alone)
    step = float((seconds @ seconds) / seconds.sum())
    exchange = None if tau is None or not together else step - tau
    bandwidth = None
    if exchange is not None and exchange > 0.0 and gradient_bytes:
        bandwidth = 16.0 * gradient_bytes / exchange
    alone_seconds = alone[0] if alone and together else step
    predicted = [speed.workers / (step if speed.exchanges else alone_seconds) for speed in measured]
    fitted = 2 if alone and together else 1
    return LinearFit(tau, step, bandwidth, fit_quality(measured, predicted, fitted))


def fit_serial(measured: Sequence[Speed]) -> SerialFit | None:
    """Fit Amdahl's law; return None with fewer than three numbers of workers."""
    counts: NDArray[np.float64] = np.array([speed.workers for speed in measured], dtype=np.float64)
    if len(set(counts.tolist())) < 3:
        return None
    seconds = np.array([1.0 / speed.per_second for speed in measured])
    # Least squares of relative errors of the step; neither part may be negative.
    parts = np.stack([1.0 / seconds, 1.0 / (counts * seconds)], axis=1)
    (serial, shared), *_ = np.linalg.lstsq(parts, np.ones(len(counts)), rcond=None)
    if serial < 0.0:
        serial, shared = 0.0, float(parts[:, 1].sum() / (parts[:, 1] @ parts[:, 1]))
    elif shared < 0.0:
        serial, shared = float(parts[:, 0].sum() / (parts[:, 0] @ parts[:, 0])), 0.0
    predicted = [1.0 / (float(serial) + float(shared) / speed.workers) for speed in measured]
    return SerialFit(float(serial), float(shared), fit_quality(measured, predicted, 2))


def fit_quality(measured: Sequence[Speed], predicted: Sequence[float], taken: int) -> FitQuality:
    """Return how well predictions match measurements; ``taken`` numbers were fitted to them."""
    actual = np.array([item.per_second for item in measured])
    forecast = np.array(predicted)
    spread = float(((actual - actual.mean()) ** 2).sum())
    determination = (
        None if spread <= 0.0 else 1.0 - float(((actual - forecast) ** 2).sum()) / spread
    )
    errors = tuple(float(item) for item in forecast / actual - 1.0)
    free = len(measured) - taken
    return FitQuality(tuple(float(item) for item in forecast), errors, determination, free)

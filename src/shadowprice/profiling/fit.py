"""Step times from progress reports, and fits of speeds: the papers' linear model, Amdahl's law.

In the papers' model (OASiS (2)), n workers train ``n / step_time`` mini-batches per second, with
``step_time = tau + 2 e / b``. Every worker computes its own mini-batch in tau seconds. Then it
sends gradients, and receives parameters, of e bytes each, over bandwidth b. So a worker's time per
mini-batch, ``workers / speed``, should be the same for every number of workers.
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
_MAX_GROUPS: Final = 20
"""Maximum number of groups of consecutive intervals, from whose sums the error follows (batch
means). Few groups are long, and long groups are nearly independent."""
MIN_INTERVALS: Final = 6
"""Minimum number of intervals (between two reports) after the warm-up for a step time."""

FIT_TOLERANCE: Final = 0.05  # maximum relative error of a model that fits
ROUGH_FIT_TOLERANCE: Final = 0.15  # maximum relative error of a model that fits roughly


class BackwardsError(ShadowpriceError):
    """A job reported less progress than before."""

    code = "backwards"


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a mini-batch of the whole job."""

    seconds: float  # mean over the mini-batches after the warm-up
    half_width: float  # half the width of the confidence interval, in seconds
    minibatches: float  # mini-batches that were measured
    warm_up: float  # earlier mini-batches, which are left out

    @property
    def error(self) -> float:
        """Half the width of the confidence interval as a share of the mean."""
        return self.half_width / self.seconds

    @property
    def per_second(self) -> float:
        """Mini-batches per second of the whole job."""
        return 1.0 / self.seconds


class Pace:
    """Progress reports of one generation (a run of the job), in the order of their arrival."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._done: list[float] = []

    @property
    def reports(self) -> int:
        """Number of reports, without repetitions of the same progress."""
        return len(self._at)

    @property
    def first(self) -> tuple[float, float] | None:
        """Time and mini-batches of the first report; None without reports."""
        return (self._at[0], self._done[0]) if self._at else None

    @property
    def done(self) -> float:
        """Mini-batches of the newest report; 0 without reports."""
        return self._done[-1] if self._done else 0.0

    def add(self, at: float, minibatches: float) -> None:
        """Record a report of ``minibatches`` done at time ``at``, if it has new progress.

        Raises `BackwardsError` if it has less progress than the previous report.
        """
        if self._done and minibatches < self._done[-1]:
            raise BackwardsError(
                f"it reported {minibatches:g} mini-batches after {self._done[-1]:g}: report the "
                "total since the job's first start"
            )
        if not self._done or (minibatches > self._done[-1] and at > self._at[-1]):
            self._at.append(at)
            self._done.append(minibatches)

    def step_time(self) -> StepTime | None:
        """Return the current estimate of the step time, None while there are too few reports."""
        seconds, steps = np.diff(self._at), np.diff(self._done)
        excluded = _warm_up_intervals(seconds / steps) if len(steps) else 0
        seconds, steps = seconds[excluded:], steps[excluded:]
        if len(steps) < MIN_INTERVALS:
            return None
        mean = float(seconds.sum() / steps.sum())
        groups = np.array_split(np.arange(len(steps)), min(_MAX_GROUPS, len(steps)))
        residuals = np.array([seconds[group].sum() - mean * steps[group].sum() for group in groups])
        count = len(groups)
        # The variance of a ratio of sums; see Cochran, Sampling Techniques, 6.4.
        error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / float(steps.sum())
        factor = float(stdtrit(count - 1, 0.5 + 0.5 * LEVEL))
        return StepTime(
            mean, factor * error, float(steps.sum()), self._done[excluded] - self._done[0]
        )


def _warm_up_intervals(step_times: NDArray[np.float64]) -> int:
    """Return how many first intervals to leave out, by White's marginal standard error rule.

    The rule minimizes the squared standard error of the mean of the remaining intervals.
    """
    # Centred values have small sums, so the difference below loses no digits.
    centred = (step_times - step_times.mean())[::-1]
    sums, squares = np.cumsum(centred), np.cumsum(centred**2)
    counts = np.arange(1, len(step_times) + 1)
    errors = np.maximum(0.0, squares - sums**2 / counts) / counts**2  # of the newest intervals
    return int(np.argmin(errors[::-1][: len(step_times) // 2 + 1]))  # at most half is left out


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed with a number of workers and parameter servers."""

    workers: int
    ps: int
    per_second: float  # mini-batches of the whole job per second

    @property
    def worker_seconds(self) -> float:
        """Seconds of one worker per mini-batch."""
        return self.workers / self.per_second

    @property
    def exchanges(self) -> bool:
        """Whether processes exchange tensors; a single worker without servers doesn't."""
        return self.workers > 1 or self.ps > 0


@dataclass(frozen=True, slots=True)
class FitQuality:
    """How well a model predicts the measurements."""

    predicted: tuple[float, ...]  # mini-batches per second, in the order of the measurements
    errors: tuple[float, ...]  # relative errors of the predictions
    determination: float | None  # R^2 of the speeds; None if all are equal, or there is only one
    freedom: int  # degrees of freedom: measurements minus fitted parameters; with 0 all models fit

    @property
    def largest(self) -> float:
        """Largest relative error."""
        return max(map(abs, self.errors))

    @property
    def verdict(self) -> str:
        """``fits``, ``fits roughly``, ``does not fit``, or ``untried``."""
        if self.freedom < 1:
            return "untried"
        if self.largest <= FIT_TOLERANCE:
            return "fits"
        return "fits roughly" if self.largest <= ROUGH_FIT_TOLERANCE else "does not fit"


@dataclass(frozen=True, slots=True)
class LinearFit:
    """The linear model with the smallest error."""

    minibatch_time: float | None
    """tau in seconds: from the job's own report, else from a single worker without servers.

    None if neither was measured.
    """
    step_time: float  # seconds of one worker per mini-batch, with communication
    bandwidth: float | None
    """b in bit/s, from step time minus tau.

    None if tau or the size of the gradient is unknown, or no time remains for communication.
    """
    quality: FitQuality


@dataclass(frozen=True, slots=True)
class SerialFit:
    """Amdahl's law: a mini-batch takes ``serial + shared / workers`` seconds."""

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
    # The step time that minimizes the sum of (seconds / step - 1)^2, a quadratic in 1 / step.
    seconds = np.array(together or alone)
    step = float((seconds @ seconds) / seconds.sum())
    exchange = None if tau is None or not together else step - tau
    bandwidth = None
    if exchange is not None and exchange > 0.0 and gradient_bytes:
        bandwidth = 2 * 8.0 * gradient_bytes / exchange  # e bytes each way, in bits
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
    # Least squares of relative errors. If one part comes out negative, the other is fitted alone.
    parts = np.stack([1.0 / seconds, 1.0 / (counts * seconds)], axis=1)
    (serial, shared), *_ = np.linalg.lstsq(parts, np.ones(len(counts)), rcond=None)
    if serial < 0.0:
        serial, shared = 0.0, float(parts[:, 1].sum() / (parts[:, 1] @ parts[:, 1]))
    elif shared < 0.0:
        serial, shared = float(parts[:, 0].sum() / (parts[:, 0] @ parts[:, 0])), 0.0
    predicted = [1.0 / (float(serial) + float(shared) / speed.workers) for speed in measured]
    return SerialFit(float(serial), float(shared), fit_quality(measured, predicted, 2))


def fit_quality(measured: Sequence[Speed], predicted: Sequence[float], fitted: int) -> FitQuality:
    """Return how well predictions match; ``fitted`` is the number of fitted parameters."""
    actual = np.array([item.per_second for item in measured])
    forecast = np.array(predicted)
    spread = float(((actual - actual.mean()) ** 2).sum())
    determination = (
        None if spread <= 0.0 else 1.0 - float(((actual - forecast) ** 2).sum()) / spread
    )
    errors = tuple(float(item) for item in forecast / actual - 1.0)
    freedom = len(measured) - fitted
    return FitQuality(tuple(float(item) for item in forecast), errors, determination, freedom)

"""The linear model held against measured speeds, and a law with a part that nobody shares.

The papers' model (OASiS (2)): n workers train ``n / step_time`` mini-batches a second, with
``step_time = tau + 2 e / b``: every worker computes its own mini-batch in tau, and sends its
gradients, e bytes, and receives parameters over b. So a worker's time a mini-batch,
``workers / speed``, is to be the same for every number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

CLOSE: Final = 0.05
"""Largest relative error with which a model is said to fit."""

ROUGH: Final = 0.15
"""And to fit roughly."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured with some workers and parameter servers.

    Parameters
    ----------
    workers, ps : int
        How many there were.
    per_second : float
        Mini-batches a second of the whole job.
    """

    workers: int
    ps: int
    per_second: float

    @property
    def worker_seconds(self) -> float:
        """Time of one worker a mini-batch."""
        return self.workers / self.per_second

    @property
    def exchanges(self) -> bool:
        """Whether anything has to be sent: a lone worker without servers keeps it to itself."""
        return self.workers > 1 or self.ps > 0


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a model says what was measured.

    Parameters
    ----------
    predicted : tuple of float
        Mini-batches a second it says, in the order of what was measured.
    errors : tuple of float
        How far that is off, as a share of what was measured.
    determination : float or None
        R^2 of the speeds; None where they are all alike, or there is one only.
    free : int
        Numbers measured beyond those that the model's own were taken from; a model that takes as
        many as there are is right about them, and no more.
    """

    predicted: tuple[float, ...]
    errors: tuple[float, ...]
    determination: float | None
    free: int

    @property
    def largest(self) -> float:
        """The largest relative error."""
        return max(map(abs, self.errors))

    @property
    def verdict(self) -> str:
        """``fits``, ``fits roughly``, ``does not fit``, or ``untried``."""
        if self.free < 1:
            return "untried"
        if self.largest <= CLOSE:
            return "fits"
        return "fits roughly" if self.largest <= ROUGH else "does not fit"


@dataclass(frozen=True, slots=True)
class LinearFit:
    """The linear model that comes closest.

    Parameters
    ----------
    minibatch_time : float or None
        tau in seconds: as the job measured it, or as one worker that exchanges nothing took. None
        where neither is known.
    step_time : float
        Seconds of one worker a mini-batch, communication included.
    bandwidth : float or None
        b in bit/s that the rest of the step time comes to; None where the gradient's size is not
        known, or nothing is left for communication.
    quality : Quality
        How well it fits.
    """

    minibatch_time: float | None
    step_time: float
    bandwidth: float | None
    quality: Quality


@dataclass(frozen=True, slots=True)
class SerialFit:
    """A step that takes ``serial + shared / workers``: Amdahl's law.

    Parameters
    ----------
    serial, shared : float
        Seconds of a mini-batch that are not divided, and that are.
    quality : Quality
        How well it fits.
    """

    serial: float
    shared: float
    quality: Quality


def fit_linear(
    measured: Sequence[Speed],
    *,
    gradient_bytes: float | None = None,
    minibatch_time: float | None = None,
) -> LinearFit:
    """Fit tau and b of the linear model, by least squares of relative errors.

    Parameters
    ----------
    measured : sequence of Speed
        One or more.
    gradient_bytes : float, optional
        e: what a worker sends for a mini-batch.
    minibatch_time : float, optional
        tau, where the job measured it itself.
    """
    alone = [one.worker_seconds for one in measured if not one.exchanges]
    together = [one.worker_seconds for one in measured if one.exchanges]
    tau = minibatch_time if minibatch_time is not None else (alone[0] if alone else None)
    # Minimises sum (s_n / step - 1)^2 over 1 / step.
    found = np.array(together or alone)
    step = float((found @ found) / found.sum())
    exchange = None if tau is None or not together else step - tau
    bandwidth = None
    if exchange is not None and exchange > 0.0 and gradient_bytes:
        bandwidth = 16.0 * gradient_bytes / exchange
    lone = alone[0] if alone and together else step
    predicted = [one.workers / (step if one.exchanges else lone) for one in measured]
    taken = 2 if alone and together else 1
    return LinearFit(tau, step, bandwidth, quality_of(measured, predicted, taken))


def fit_serial(measured: Sequence[Speed]) -> SerialFit | None:
    """Fit a step with a part that is not divided; None below three numbers of workers."""
    counts: NDArray[np.float64] = np.array([one.workers for one in measured], dtype=np.float64)
    if len(set(counts.tolist())) < 3:
        return None
    seconds = np.array([1.0 / one.per_second for one in measured])
    # Least squares of relative errors of the step; neither part takes less than no time.
    parts = np.stack([1.0 / seconds, 1.0 / (counts * seconds)], axis=1)
    (serial, shared), *_ = np.linalg.lstsq(parts, np.ones(len(counts)), rcond=None)
    if serial < 0.0:
        serial, shared = 0.0, float(parts[:, 1].sum() / (parts[:, 1] @ parts[:, 1]))
    elif shared < 0.0:
        serial, shared = float(parts[:, 0].sum() / (parts[:, 0] @ parts[:, 0])), 0.0
    predicted = [1.0 / (float(serial) + float(shared) / one.workers) for one in measured]
    return SerialFit(float(serial), float(shared), quality_of(measured, predicted, 2))


def quality_of(measured: Sequence[Speed], predicted: Sequence[float], taken: int) -> Quality:
    """Return how well speeds that follow from ``taken`` numbers say what was measured."""
    real = np.array([one.per_second for one in measured])
    said = np.array(predicted)
    spread = float(((real - real.mean()) ** 2).sum())
    determination = None if spread <= 0.0 else 1.0 - float(((real - said) ** 2).sum()) / spread
    errors = tuple(float(one) for one in said / real - 1.0)
    free = len(measured) - taken
    return Quality(tuple(float(one) for one in said), errors, determination, free)

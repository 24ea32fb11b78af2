"""Measured speeds of running jobs, which correct the speed curves that jobs state.

The progress of a reporting job is measured over whole slots of its generations. For each worker
count, the measured speed is compared with the curve. If they differ significantly and by more than
10 %, the curve is corrected there. Other worker counts take interpolated ratios.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.job import MICRO, Job
from shadowprice.engine.engine import Engine
from shadowprice.engine.job_record import JobRecord

MIN_SAMPLE_SLOTS: Final = 2  # minimum number of whole slots for a speed
MAX_SAMPLE_SLOTS: Final = 8  # maximum slots for a speed, because older ones may be outdated
MIN_RELATIVE_DEVIATION: Final = 0.1  # minimum relative difference from the estimated speed

STUDENT_T_95: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Minimum difference in standard errors of the mean, by number of slots.

These are two-sided 95 % quantiles of Student's t distribution.
"""

MAX_CORRECTION_FACTOR: Final = 50.0  # maximum factor by which one measurement changes an estimate


@dataclass(frozen=True, slots=True)
class SpeedCorrection:
    """A corrected job; ``factor`` is the measured over the estimated speed at ``workers``."""

    job: Job
    workers: int
    factor: float


@dataclass(slots=True)
class _Watched:
    """Measurements of one job."""

    base: Job  # the job as submitted, or as last revised by its owner
    corrected: Job  # the job as last passed to the engine
    ratios: dict[int, float] = field(default_factory=dict)
    """Ratio of the measured speed to that of ``base``, by worker count."""
    windows: dict[int, deque[int]] = field(default_factory=dict)
    """Progress of the newest whole slots in millionths of a mini-batch, by worker count."""
    generation: int = 0
    since: int = 0
    again: bool = False  # skip this slot: its progress isn't that of one slot


class SpeedEstimator:
    """Measured speeds of running jobs. They are lost when the service restarts."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def revise(self, engine: Engine, record: JobRecord) -> SpeedCorrection | None:
        """Return the job with a corrected curve at the end of a whole slot; None if none is due."""
        job, placement = record.job, engine.running[record.job.name]
        workers, colocated = int(placement.total_workers), placement.colocated
        watched = self._measurements(job)
        if watched.corrected is not job:  # the owner revised the job: restore its correction
            nearest = min(watched.ratios, key=lambda count: abs(count - workers))
            return SpeedCorrection(watched.corrected, workers, watched.ratios[nearest])
        if watched.generation != record.generation or watched.again:
            watched.generation, watched.since = record.generation, record.measured
            watched.again = False
        else:
            window = watched.windows.setdefault(workers, deque(maxlen=MAX_SAMPLE_SLOTS))
            window.append(record.measured - watched.since)
            watched.since = record.measured
        believed = _speed(job, workers, colocated=colocated)
        factor = _differs(watched.windows.get(workers, ()), believed)
        if factor is None:
            return None
        stated = _speed(watched.base, workers, colocated=colocated)
        watched.ratios[workers] = factor * believed / stated
        del watched.windows[workers]
        watched.corrected = with_corrected_curve(watched.base, watched.ratios)
        return SpeedCorrection(watched.corrected, workers, factor)

    def _measurements(self, job: Job) -> _Watched:
        """Return the measurements of a job; reset them if its owner revised its speed."""
        watched = self._watched.setdefault(job.name, _Watched(job, job))
        if job is watched.corrected:
            return watched
        if _same_curve(job, watched.corrected):  # the revision keeps the curve
            stated, watched.corrected = watched.base, job
            gains, internal_gains = stated.gains, stated.internal_gains
            watched.base = replace(
                job, required=stated.required, gains=gains, internal_gains=internal_gains
            )
        elif watched.ratios and _same_curve(job, watched.base):
            watched.base, watched.corrected = job, with_corrected_curve(job, watched.ratios)
        else:
            watched = self._watched[job.name] = _Watched(job, job)
        return watched

    def skip_slot(self, name: str) -> None:
        """Skip this slot of a job, because its counted progress isn't that of one slot."""
        watched = self._watched.get(name)
        if watched is not None:
            watched.again = True

    def measured_counts(self, name: str) -> tuple[int, ...]:
        """Return the worker counts with a measured speed, in ascending order."""
        watched = self._watched.get(name)
        if watched is None:
            return ()
        confirmed = (n for n, window in watched.windows.items() if len(window) >= MIN_SAMPLE_SLOTS)
        return tuple(sorted({*watched.ratios, *confirmed}))

    def remove(self, name: str) -> None:
        """Remove the measurements of a job."""
        self._watched.pop(name, None)


def with_corrected_curve(job: Job, ratios: Mapping[int, float]) -> Job:
    """Return a stated job with its speed curve scaled by measured ratios.

    ``ratios`` maps at least one worker count to measured over stated speed. Between counts, ratios
    are interpolated over the logarithm of the count; outside, the nearest ratio holds.
    """
    measured = sorted(ratios)
    counts = np.log(job.worker_counts.astype(np.float64))
    ratio = np.interp(counts, np.log(measured), [ratios[count] for count in measured])
    # A corrected speed isn't a whole number of worker-slots, so progress counts millionths of a
    # mini-batch from now on.
    unit = job.work * MICRO / job.required

    def rescaled(gains: NDArray[np.int64]) -> NDArray[np.int64]:
        speeds = np.rint(gains * unit * ratio)
        made: NDArray[np.int64] = np.where(gains > 0, np.maximum(speeds, 1.0), 0.0).astype(np.int64)
        made.setflags(write=False)
        return made

    return replace(
        job,
        required=job.work * MICRO,
        gains=rescaled(job.gains),
        internal_gains=rescaled(job.internal_gains),
        predicted=False,
    )


def _same_curve(job: Job, other: Job) -> bool:
    if job.worker_counts.tolist() != other.worker_counts.tolist():
        return False
    unit, before = (each.work * MICRO / each.required for each in (job, other))
    return bool(
        np.allclose(job.gains * unit, other.gains * before, rtol=1e-9)
        and np.allclose(job.internal_gains * unit, other.internal_gains * before, rtol=1e-9)
    )


def _speed(job: Job, workers: int, *, colocated: bool) -> float:
    """Return the speed in millionths of a mini-batch per slot."""
    return job.gain(workers, colocated=colocated) * job.work * MICRO / job.required


def _differs(window: Collection[int], believed: float) -> float | None:
    """Return measured over estimated speed; None if they agree or data is insufficient."""
    if len(window) < MIN_SAMPLE_SLOTS or believed <= 0.0:
        return None
    mean = fmean(window)
    if mean <= 0.0:
        return None  # a job without progress has no measurable speed
    off = abs(mean - believed)
    if off <= MIN_RELATIVE_DEVIATION * believed or off <= STUDENT_T_95[len(window)] * stdev(
        window
    ) / math.sqrt(len(window)):
        return None
    return min(MAX_CORRECTION_FACTOR, max(1.0 / MAX_CORRECTION_FACTOR, mean / believed))

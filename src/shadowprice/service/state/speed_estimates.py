"""Measured speeds of running jobs, which correct the speed curves that jobs state.

The progress of a reporting job is measured over whole slots of its generations. For each worker
count, the measured speed is compared with the curve. If they differ significantly and by more than
10 %, the curve is corrected there. For other worker counts, the ratio of measured to stated speed
is interpolated.
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
MAX_SAMPLE_SLOTS: Final = 8  # maximum slots for a speed, because older slots may be outdated
MIN_RELATIVE_DEVIATION: Final = 0.1  # from the estimated speed, above which the curve is corrected

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
class _Measurements:
    base: Job  # the job as submitted, or as last revised by its owner
    corrected: Job  # the job as last passed to the engine
    ratios: dict[int, float] = field(default_factory=dict)
    """Ratio of the measured speed to that of ``base``, by worker count."""
    windows: dict[int, deque[int]] = field(default_factory=dict)
    """Progress of the newest whole slots in millionths of a mini-batch, by worker count."""
    generation: int = 0  # that the newest slot measured
    slot_start: int = 0  # measured progress at the start of the slot
    skips_slot: bool = False  # whether this slot is skipped: its progress isn't that of one slot


class SpeedEstimator:
    """Measured speeds of running jobs. They are lost when the service restarts."""

    def __init__(self) -> None:
        self._by_job: dict[str, _Measurements] = {}

    def revise(self, engine: Engine, record: JobRecord) -> SpeedCorrection | None:
        """Measure a whole slot at its end; return the job with a corrected curve, or None."""
        job, placement = record.job, engine.running[record.job.name]
        workers, colocated = int(placement.total_workers), placement.colocated
        measured = self._measurements(job)
        if measured.corrected is not job:  # the owner revised the job: restore its correction
            nearest = min(measured.ratios, key=lambda count: abs(count - workers))
            return SpeedCorrection(measured.corrected, workers, measured.ratios[nearest])
        if measured.generation != record.generation or measured.skips_slot:
            measured.generation, measured.slot_start = record.generation, record.measured
            measured.skips_slot = False
        else:
            window = measured.windows.setdefault(workers, deque(maxlen=MAX_SAMPLE_SLOTS))
            window.append(record.measured - measured.slot_start)
            measured.slot_start = record.measured
        estimated = _speed(job, workers, colocated=colocated)
        factor = _significant_ratio(measured.windows.get(workers, ()), estimated)
        if factor is None:
            return None
        stated = _speed(measured.base, workers, colocated=colocated)
        measured.ratios[workers] = factor * estimated / stated
        del measured.windows[workers]
        measured.corrected = with_corrected_curve(measured.base, measured.ratios)
        return SpeedCorrection(measured.corrected, workers, factor)

    def _measurements(self, job: Job) -> _Measurements:
        """Return the measurements of a job; reset them if its owner revised its speed."""
        measured = self._by_job.setdefault(job.name, _Measurements(job, job))
        if job is measured.corrected:
            return measured
        if _has_same_curve(job, measured.corrected):  # the revision keeps the corrected curve
            stated, measured.corrected = measured.base, job
            gains, internal_gains = stated.gains, stated.internal_gains
            measured.base = replace(
                job, required=stated.required, gains=gains, internal_gains=internal_gains
            )
        elif measured.ratios and _has_same_curve(job, measured.base):  # it keeps the stated curve
            measured.base, measured.corrected = job, with_corrected_curve(job, measured.ratios)
        else:
            measured = self._by_job[job.name] = _Measurements(job, job)
        return measured

    def skip_slot(self, name: str) -> None:
        """Skip this slot of a job, because its counted progress isn't that of one slot."""
        measured = self._by_job.get(name)
        if measured is not None:
            measured.skips_slot = True

    def measured_counts(self, name: str) -> tuple[int, ...]:
        """Return the worker counts with a measured speed, in ascending order."""
        measured = self._by_job.get(name)
        if measured is None:
            return ()
        windows = measured.windows.items()
        confirmed = (workers for workers, window in windows if len(window) >= MIN_SAMPLE_SLOTS)
        return tuple(sorted({*measured.ratios, *confirmed}))

    def remove(self, name: str) -> None:
        """Remove the measurements of a job."""
        self._by_job.pop(name, None)


def with_corrected_curve(job: Job, ratios: Mapping[int, float]) -> Job:
    """Return a stated job with its speed curve scaled by measured ratios.

    ``ratios`` maps at least one worker count to measured over stated speed. Between counts, ratios
    are interpolated over the logarithm of the count. Beyond the counts, the nearest ratio holds.
    """
    measured = sorted(ratios)
    counts = np.log(job.worker_counts.astype(np.float64))
    ratio = np.interp(counts, np.log(measured), [ratios[count] for count in measured])
    # A corrected speed isn't a whole number of the job's progress units, so the unit of progress
    # becomes a millionth of a mini-batch.
    unit = job.work * MICRO / job.required

    def rescaled(gains: NDArray[np.int64]) -> NDArray[np.int64]:
        speeds = np.rint(gains * unit * ratio)
        positive = np.where(gains > 0, np.maximum(speeds, 1.0), 0.0)
        result: NDArray[np.int64] = positive.astype(np.int64)
        result.setflags(write=False)
        return result

    return replace(
        job,
        required=job.work * MICRO,
        gains=rescaled(job.gains),
        internal_gains=rescaled(job.internal_gains),
        predicted=False,
    )


def _has_same_curve(job: Job, other: Job) -> bool:
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


def _significant_ratio(window: Collection[int], estimated: float) -> float | None:
    """Return measured over estimated speed; None if they agree or data is insufficient."""
    if len(window) < MIN_SAMPLE_SLOTS or estimated <= 0.0:
        return None
    mean = fmean(window)
    if mean <= 0.0:
        return None  # a job without progress has no measurable speed
    difference = abs(mean - estimated)
    standard_error = stdev(window) / math.sqrt(len(window))
    if (
        difference <= MIN_RELATIVE_DEVIATION * estimated
        or difference <= STUDENT_T_95[len(window)] * standard_error
    ):
        return None
    return min(MAX_CORRECTION_FACTOR, max(1.0 / MAX_CORRECTION_FACTOR, mean / estimated))

"""How fast jobs really run, against what they stated: a curve, corrected where it was measured.

A job that reports is watched for the whole slots of its generations. What it does with some
number of workers is held against what its curve says for that number, and where the two differ by
more than chance and a tenth, the curve is corrected there. Numbers of workers that were not
measured take the ratios of those that were.
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
from shadowprice.engine.state import JobRecord

SLOTS: Final = 2
"""Fewest whole slots that a speed is taken from."""

WINDOW: Final = 8
"""Most slots that it is taken from: what was longer ago may have been otherwise."""

OFF: Final = 0.1
"""Share by which it has to differ from what is believed."""

ERRORS: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Standard errors of the mean by which it has to differ as well, by the number of slots: Student's
t, so that chance alone does so in one look of twenty."""

LARGEST: Final = 50.0
"""Factor by which one measurement changes a belief at most."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A job whose curve was corrected.

    Parameters
    ----------
    job : Job
        The job as it now seems.
    workers : int
        The number of workers that was measured.
    factor : float
        Its speed over what was believed of it.
    """

    job: Job
    workers: int
    factor: float


@dataclass(slots=True)
class _Watched:
    """What is known of one job."""

    base: Job
    """As it was stated, or its owner revised it last."""
    told: Job
    """As the engine was told last."""
    ratios: dict[int, float] = field(default_factory=dict)
    """Measured speeds over those of ``base``, by number of workers."""
    windows: dict[int, deque[int]] = field(default_factory=dict)
    """Millionths of a mini-batch of whole slots, by number of workers."""
    generation: int = 0
    since: int = 0
    again: bool = False
    """Whether, in this slot, it did again what was counted before."""


class Speeds:
    """What was measured of jobs that run; kept in memory only, a restart measures anew."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def revised(self, engine: Engine, record: JobRecord) -> Revision | None:
        """Return the job as it now seems, None where it seems as before.

        Called once a slot, at its end, for a job that reported and whose newest generation ran all
        of the slot, while it is known to run.
        """
        job, placement = record.job, engine.running[record.job.name]
        workers, colocated = int(placement.total_workers), placement.colocated
        watched = self._of(job)
        if watched.told is not job:  # its owner revised something else of it
            nearest = min(watched.ratios, key=lambda one: abs(one - workers))
            return Revision(watched.told, workers, watched.ratios[nearest])
        if watched.generation != record.generation or watched.again:
            watched.generation, watched.since = record.generation, record.measured
            watched.again = False
        else:
            window = watched.windows.setdefault(workers, deque(maxlen=WINDOW))
            window.append(record.measured - watched.since)
            watched.since = record.measured
        believed = _speed(job, workers, colocated=colocated)
        factor = _differs(watched.windows.get(workers, ()), believed)
        if factor is None:
            return None
        stated = _speed(watched.base, workers, colocated=colocated)
        watched.ratios[workers] = factor * believed / stated
        del watched.windows[workers]
        watched.told = corrected(watched.base, watched.ratios)
        return Revision(watched.told, workers, factor)

    def _of(self, job: Job) -> _Watched:
        """Return what is known of a job; nothing where its owner has revised how fast it is."""
        watched = self._watched.get(job.name)
        if watched is not None and job is watched.told:
            return watched
        if watched is not None and _same_curve(job, watched.told):  # revised in something else
            stated = watched.base
            watched.base = replace(
                job,
                required=stated.required,
                gains=stated.gains,
                internal_gains=stated.internal_gains,
            )
            watched.told = job
            return watched
        if watched is not None and watched.ratios and _same_curve(job, watched.base):
            watched.base, watched.told = job, corrected(job, watched.ratios)
            return watched
        watched = self._watched[job.name] = _Watched(job, job)
        return watched

    def unknown(self, name: str) -> None:
        """Leave a slot out: what a job did in it is not what is counted of it.

        It may have begun again before where it was, for what it did since its last checkpoint was
        lost with its processes: what is counted stands still meanwhile, however fast it runs. Or
        its reports do not come through: then what is counted next is of several slots.
        """
        watched = self._watched.get(name)
        if watched is not None:
            watched.again = True

    def measured(self, name: str) -> tuple[int, ...]:
        """Return the numbers of workers whose speed is known, corrected or confirmed, ascending."""
        watched = self._watched.get(name)
        if watched is None:
            return ()
        looked = (n for n, window in watched.windows.items() if len(window) >= SLOTS)
        return tuple(sorted({*watched.ratios, *looked}))

    def forget(self, name: str) -> None:
        """Forget a job that is over."""
        self._watched.pop(name, None)


def corrected(job: Job, ratios: Mapping[int, float]) -> Job:
    """Return a job whose curve is what was measured of it.

    Parameters
    ----------
    job : Job
        The job as it was stated.
    ratios : mapping of int to float
        Measured speeds over stated ones, one or more, by number of workers. In between they are
        interpolated over the logarithm of that number; beyond, the nearest counts.
    """
    known = sorted(ratios)
    counts = np.log(job.worker_counts.astype(np.float64))
    ratio = np.interp(counts, np.log(known), [ratios[one] for one in known])
    # From here on progress counts millionths of a mini-batch: no speed is a whole number of
    # worker-slots any more.
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
    )


def _same_curve(job: Job, other: Job) -> bool:
    """Return whether two jobs say the same of how fast they are."""
    if job.worker_counts.tolist() != other.worker_counts.tolist():
        return False
    unit, before = (one.work * MICRO / one.required for one in (job, other))
    return bool(
        np.allclose(job.gains * unit, other.gains * before, rtol=1e-9)
        and np.allclose(job.internal_gains * unit, other.internal_gains * before, rtol=1e-9)
    )


def _speed(job: Job, workers: int, *, colocated: bool) -> float:
    """Return millionths of a mini-batch a slot."""
    return job.gain(workers, colocated=colocated) * job.work * MICRO / job.required


def _differs(window: Collection[int], believed: float) -> float | None:
    """Return measured over believed speed, None where they are alike or too little is known."""
    if len(window) < SLOTS or believed <= 0.0:
        return None
    mean = fmean(window)
    if mean <= 0.0:
        return None  # it stands still, which is no speed
    off = abs(mean - believed)
    if off <= OFF * believed or off <= ERRORS[len(window)] * stdev(window) / math.sqrt(len(window)):
        return None
    return min(LARGEST, max(1.0 / LARGEST, mean / believed))

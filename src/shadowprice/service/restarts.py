"""What a change of its placement costs a job, as the job itself measured it.

A job that uses `shadowprice.jobs` reports how long it took to save, to come back and to do its
first step. That takes the place of what its file, or the cluster's, says of a restart; and
where neither says anything, new jobs are expected to lose what the last ones lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import median
from typing import Final

from shadowprice.core.job import Job

PARTS: Final = ("change_checkpoint", "change_start", "change_first_step")
"""Metrics that say what a change took, in seconds."""

AWAY: Final = "change_away"
"""Metric that says how long the job was away; that is its cost only where it was not paused."""

KEPT: Final = 5
"""Newest changes that an expectation is taken from."""

OFF: Final = 0.1
"""Share by which what is measured has to differ from what is believed."""

FINEST: Final = 100
"""Parts of a slot by which it has to differ as well."""


OTHERS: Final = 20
"""Newest changes of all jobs that an expectation of new jobs is taken from."""

ENOUGH: Final = 3
"""Changes from which on there is one."""


@dataclass(slots=True)
class _Measured:
    generation: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))


class Restarts:
    """What was measured of the changes of jobs.

    Of each job it is kept in memory only, what came of it is not. Of all jobs it is kept.

    Parameters
    ----------
    others : iterable of float
        Seconds of the newest changes of all jobs, as `others` told them before.
    """

    def __init__(self, others: Iterable[float] = ()) -> None:
        self._measured: dict[str, _Measured] = {}
        self._others: deque[float] = deque(others, maxlen=OTHERS)

    @property
    def others(self) -> list[float]:
        """Seconds of the newest changes of all jobs."""
        return list(self._others)

    def expected(self, slot_seconds: float) -> Fraction | None:
        """Return the share of a slot that a change of a job of which nothing is known takes.

        Returns None as long as too few were measured.
        """
        if len(self._others) < ENOUGH:
            return None
        return _share(median(self._others), slot_seconds)

    def note(
        self, name: str, generation: int, metrics: Mapping[str, float], *, resized: bool
    ) -> bool:
        """Take in what a job reports of the change that a generation began with.

        Parameters
        ----------
        name : str
            The job.
        generation : int
            Its generation; each is taken in once.
        metrics : mapping of str to float
            What it reports.
        resized : bool
            Whether it came from another placement at once, without a pause.

        Returns
        -------
        bool
            Whether it told anything new.
        """
        if not all(metrics.get(part, -1.0) >= 0.0 for part in PARTS):
            return False
        measured = self._measured.setdefault(name, _Measured())
        if generation <= measured.generation:
            return False
        measured.generation = generation
        away = max(0.0, metrics.get(AWAY, 0.0)) if resized else 0.0
        seconds = sum(metrics[part] for part in PARTS) + away
        measured.seconds.append(seconds)
        self._others.append(seconds)
        return True

    def revised(self, job: Job, slot_seconds: float) -> Job | None:
        """Return a job with the restart that it really has, None where it is about as believed.

        Parameters
        ----------
        job : Job
            The job as it is believed to be.
        slot_seconds : float
            The length of a slot.
        """
        measured = self._measured.get(job.name)
        if measured is None or not measured.seconds:
            return None
        restart = _share(median(measured.seconds), slot_seconds)
        apart = abs(restart - job.restart)
        if apart <= max(Fraction(1, FINEST), job.restart * Fraction(OFF)):
            return None
        return replace(job, restart=restart)

    def forget(self, name: str) -> None:
        """Forget a job that is over."""
        self._measured.pop(name, None)


def _share(seconds: float, slot_seconds: float) -> Fraction:
    """Return seconds as a share of a slot, rounded up: a promise of too much time is kept."""
    return Fraction(math.ceil(min(1.0, seconds / slot_seconds) * FINEST), FINEST)

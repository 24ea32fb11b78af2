"""What a change of its placement costs a job, as the job itself measured it.

A job that trains with `shadowprice.training` reports how long it took to save, to come back and to
do its first step. That takes the place of what its file, or the cluster's, says of a restart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
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


@dataclass(slots=True)
class _Measured:
    generation: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))


class Restarts:
    """What was measured of the changes of jobs; kept in memory only, what came of it is not."""

    def __init__(self) -> None:
        self._measured: dict[str, _Measured] = {}

    def note(
        self, name: str, generation: int, metrics: Mapping[str, float], *, resized: bool
    ) -> None:
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
        """
        if not all(metrics.get(part, -1.0) >= 0.0 for part in PARTS):
            return
        measured = self._measured.setdefault(name, _Measured())
        if generation <= measured.generation:
            return
        measured.generation = generation
        away = max(0.0, metrics.get(AWAY, 0.0)) if resized else 0.0
        measured.seconds.append(sum(metrics[part] for part in PARTS) + away)

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
        # Rounded up: a promise that leaves too much time is kept.
        share = min(1.0, median(measured.seconds) / slot_seconds)
        restart = Fraction(math.ceil(share * FINEST), FINEST)
        apart = abs(restart - job.restart)
        if apart <= max(Fraction(1, FINEST), job.restart * Fraction(OFF)):
            return None
        return replace(job, restart=restart)

    def forget(self, name: str) -> None:
        """Forget a job that is over."""
        self._measured.pop(name, None)

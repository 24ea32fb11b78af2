"""What a change of its placement costs a job, as the job itself and the service measured it.

A job reports how long it took to save, to come back and to do its first step (`jobs.changes`). That
takes the place of what its file, or the cluster's, says of a restart. Jobs that are new have
measured nothing: where a file says something, they are expected to lose as much more than that as
the last ones lost more than was said of them; where none does, as much as those lost. A first start
is no change, so nothing is reported of it; the service sees from the first report what the slot
lost by it, which is set beside what was said alone: seconds in which other jobs are fetched and
loaded for the first time say little of one that says nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import median
from types import MappingProxyType
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
"""Newest changes, and starts, of all jobs that an expectation of new jobs is taken from."""

ENOUGH: Final = 3
"""Starts and changes from which on there is one."""


@dataclass(slots=True)
class _Measured:
    generation: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))


class Restarts:
    """What was measured of the starts and changes of jobs.

    Of each job it is kept in memory only, what came of it is not. Of all jobs it is kept.

    Parameters
    ----------
    stored : mapping, optional
        The result of `record`; empty at the first start.
    """

    def __init__(self, stored: Mapping[str, Iterable[float]] = MappingProxyType({})) -> None:
        self._measured: dict[str, _Measured] = {}
        self._others = deque(stored.get("seconds", ()), maxlen=OTHERS)
        self._factors = deque(stored.get("factors", ()), maxlen=OTHERS)

    def record(self) -> dict[str, list[float]]:
        """Return what is to be kept: seconds, and how many times what was said of them they are."""
        return {"seconds": list(self._others), "factors": list(self._factors)}

    def expected(self, stated: Fraction | None, slot_seconds: float) -> Fraction:
        """Return the share of a slot that a change of a job takes of which nothing was measured.

        Parameters
        ----------
        stated : Fraction or None
            The share that its file, or the cluster's, says; None where neither does.
        slot_seconds : float
            The length of a slot.
        """
        if stated is None:
            known = len(self._others) >= ENOUGH
            return _share(median(self._others), slot_seconds) if known else Fraction(0)
        if len(self._factors) < ENOUGH:
            return stated
        factor = median(self._factors)
        # Never less than is said: whoever says more may have seen worse.
        if factor <= 1.0 + OFF:
            return stated
        return max(stated, _share(float(stated) * slot_seconds * factor, slot_seconds))

    def started(self, seconds: float, stated: float) -> None:
        """Take in what a slot lost by a job's first start.

        Parameters
        ----------
        seconds : float
            Until its mini-batches came at the speed that is believed of it.
        stated : float
            What its file, or the cluster's, says of it; 0 where neither does.
        """
        if stated:
            self._factors.append(seconds / stated)

    def note(
        self,
        name: str,
        generation: int,
        metrics: Mapping[str, float],
        *,
        resized: bool,
        stated: Callable[[], float] = lambda: 0.0,
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
        stated : callable
            Called where it told anything new: returns the seconds that its file, or the cluster's,
            says of it, 0 where neither does.

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
        self.started(seconds, stated())
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

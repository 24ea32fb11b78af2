"""How fast jobs really run, against what they stated.

A job that reports is watched while one generation of it runs; where its mini-batches a slot are off
by more than a tenth over two whole slots, what remains of it takes another time than was planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from shadowprice.core.job import MICRO, Job
from shadowprice.engine.engine import Engine
from shadowprice.engine.state import JobRecord

SLOTS: Final = 2
"""Whole slots of one generation that a speed is taken from."""

OFF: Final = 0.1
"""Share by which it has to differ from what is believed."""

LARGEST: Final = 50.0
"""Factor by which one measurement changes a belief at most."""


@dataclass(slots=True)
class _Watched:
    generation: int
    slots: int
    since: int


class Speeds:
    """What was measured of jobs that run; kept in memory only, a restart measures anew."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def revised(self, engine: Engine, record: JobRecord) -> Job | None:
        """Return the job as it now seems, None where it seems as before.

        Called once a slot, at its end, for a job that reported and whose newest generation ran all
        of the slot, while it is known to run.
        """
        name, job = record.job.name, record.job
        watched = self._watched.get(name)
        if watched is None or watched.generation != record.generation:
            self._watched[name] = _Watched(record.generation, 0, record.measured)
            return None
        watched.slots += 1
        if watched.slots < SLOTS:
            return None
        measured = (record.measured - watched.since) / watched.slots
        self._watched[name] = _Watched(record.generation, 0, record.measured)
        placement = engine.running[name]
        gain = job.gain(placement.total_workers, colocated=placement.colocated)
        believed = gain * job.work * MICRO / job.required
        if measured <= 0 or believed <= 0:
            return None  # it stands still, which is no speed
        factor = min(LARGEST, max(1 / LARGEST, believed / measured))
        if abs(factor - 1.0) <= OFF:
            return None
        # The gain of a slot stays what it is; the work is more, or less, of it.
        return replace(job, required=max(1, math.ceil(job.required * factor)))

    def forget(self, name: str) -> None:
        """Forget a job that is over."""
        self._watched.pop(name, None)

"""Running again from where a job comes, not from the beginning: what is before it stays as it was.

A policy that foresees nothing knows a job from its arrival on. All runs in which only that job is
another are one run until then: it is gone through once and pauses before slots in which a job
comes, for each change to go on from there by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from shadowprice.simulator.driver import Course, Simulation

_MOST: Final = 64
"""Pauses of one run that are kept."""


class Pauses:
    """A run, paused before slots in which something may come that is no part of it.

    Parameters
    ----------
    simulation : Simulation
        The run.
    begun : Course, optional
        Where it goes on from, before any slot that is asked for; from its beginning, if not given.
    """

    def __init__(self, simulation: Simulation, begun: Course | None = None) -> None:
        self._simulation = simulation
        self._slots: list[int] = []
        self._courses: list[Course] = []
        self._begun = Course(simulation) if begun is None else begun

    def before(self, slot: int) -> Course:
        """Return the run as it is before a slot. It is to be forked, not to be gone on with."""
        at = bisect_right(self._slots, slot)
        if at and self._slots[at - 1] == slot:
            return self._courses[at - 1]
        course = (self._courses[at - 1] if at else self._begun).fork(self._simulation)
        course.run(slot)
        self._slots.insert(at, slot)
        self._courses.insert(at, course)
        if len(self._slots) > _MOST:
            # Between those that stay, a part of the run is gone through again where need be.
            del self._slots[1::2], self._courses[1::2]
        return course

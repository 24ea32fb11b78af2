"""Checkpoints of a run: a repeated run starts where a job arrives, not at the beginning.

A policy that foresees nothing knows a job only from its arrival on. Until then, all runs that
differ only in that job are equal. That part is simulated once, with checkpoints before the slots in
which a job arrives; the run of each change continues from there.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from shadowprice.simulator.driver import Simulation, SimulationRun

_MAX_CHECKPOINTS: Final = 64  # number of checkpoints of one run that are kept


class SimulationCheckpoints:
    """A run with checkpoints before slots in which events of forks may occur.

    It continues from ``begun``, which is before any requested slot, or from the start.
    """

    def __init__(self, simulation: Simulation, begun: SimulationRun | None = None) -> None:
        self._simulation = simulation
        self._slots: list[int] = []
        self._checkpoints: list[SimulationRun] = []
        self._origin = SimulationRun(simulation) if begun is None else begun

    def before(self, slot: int) -> SimulationRun:
        """Return the run in its state before a slot; only fork it, don't continue it."""
        index = bisect_right(self._slots, slot)
        if index and self._slots[index - 1] == slot:
            return self._checkpoints[index - 1]
        checkpoint = (self._checkpoints[index - 1] if index else self._origin).fork(
            self._simulation
        )
        checkpoint.run(slot)
        self._slots.insert(index, slot)
        self._checkpoints.insert(index, checkpoint)
        if len(self._slots) > _MAX_CHECKPOINTS:
            # The part between two kept checkpoints is simulated again if needed.
            del self._slots[1::2], self._checkpoints[1::2]
        return checkpoint

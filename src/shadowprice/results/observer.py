"""Looking on while a driver, of simulated or of real time, runs an engine."""

from __future__ import annotations

from collections.abc import Sequence

from shadowprice.core.events import Command, DriverEvent
from shadowprice.engine import Engine
from shadowprice.engine.state import JobRecord


class Observer:
    """What looks on while a driver runs an engine; every hook does nothing by default.

    Attributes
    ----------
    collects : bool
        Whether it keeps what became of jobs that are over: they then leave the engine.
    """

    collects = False

    def began(self, engine: Engine) -> None:
        """Take note of the engine before its first event."""

    def coming(self, engine: Engine, event: DriverEvent) -> None:
        """Take note of an event that the engine is about to handle."""

    def took(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Take note of an event that the engine handled and of the commands it gave."""

    def slot_running(self, engine: Engine, slot: int) -> None:
        """Take note of a slot in which placements are settled and running."""

    def decided(self, seconds: float) -> None:
        """Take note of how long the policy took over one decision."""

    def left(self, records: Sequence[JobRecord]) -> None:
        """Take note of jobs that are over and have left the engine."""

    def finished(self, engine: Engine) -> None:
        """Take note of the end of the run."""

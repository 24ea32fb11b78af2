"""Observer of an engine, for drivers of simulated or real time."""

from __future__ import annotations

from collections.abc import Sequence

from shadowprice.core.events import Command, DriverEvent
from shadowprice.engine import Engine
from shadowprice.engine.job_record import JobRecord


class Observer:
    """Observer of a driver that runs an engine; every hook does nothing by default.

    Attributes
    ----------
    collects : bool
        Whether it stores the records of closed jobs, which the driver then removes from the engine.
    """

    collects = False

    def began(self, engine: Engine) -> None:
        """Handle the start of the run, before the engine's first event."""

    def coming(self, engine: Engine, event: DriverEvent) -> None:
        """Handle an event before the engine processes it."""

    def took(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Handle an event that the engine processed, and the resulting commands."""

    def slot_running(self, engine: Engine, slot: int) -> None:
        """Handle a slot after its placements are settled and running."""

    def decided(self, seconds: float) -> None:
        """Handle the duration of one decision of the policy, in seconds."""

    def left(self, records: Sequence[JobRecord]) -> None:
        """Handle closed jobs that were removed from the engine."""

    def finished(self, engine: Engine) -> None:
        """Handle the end of the run."""

"""Base class of observers: hooks that a driver calls during a run."""

from __future__ import annotations

from collections.abc import Sequence

from shadowprice.core.events import Command, DriverEvent
from shadowprice.engine import Engine
from shadowprice.engine.job_record import JobRecord


class Observer:
    """Hooks that a driver calls while it runs an engine; by default they do nothing.

    If ``collects`` is true, the driver removes closed jobs from the engine and passes their records
    to `on_jobs_closed`. If ``takes_quiet_slots`` is true, it may replace the events of slots in
    which jobs only make progress by one call of `on_quiet_slots`.
    """

    collects = False
    takes_quiet_slots = False

    def on_start(self, engine: Engine) -> None:
        """Handle the start of the run, before the engine's first event."""

    def before_event(self, engine: Engine, event: DriverEvent) -> None:
        """Handle an event before the engine processes it."""

    def on_event(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Handle an event that the engine processed, and the resulting commands."""

    def on_slot(self, engine: Engine, slot: int) -> None:
        """Handle a slot once its placements are final and running."""

    def on_quiet_slots(self, engine: Engine, slots: range) -> None:
        """Handle slots that have passed, and in which jobs only made progress."""

    def on_decision(self, seconds: float) -> None:
        """Handle the time that one decision of the policy took, in seconds."""

    def on_jobs_closed(self, records: Sequence[JobRecord]) -> None:
        """Handle closed jobs that were removed from the engine."""

    def on_finish(self, engine: Engine) -> None:
        """Handle the end of the run."""

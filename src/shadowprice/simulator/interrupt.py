"""Stops a simulation between two events, so that its results are consistent."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from shadowprice.core.events import Command, DriverEvent
from shadowprice.engine import Engine
from shadowprice.results.observer import Observer

STOP_GRACE_SECONDS: Final = 2.0
"""Seconds that an event may take after Ctrl-C before the run stops inside it."""


class StopRequestObserver(Observer):
    """Raises `KeyboardInterrupt` after the current event, if a stop is requested.

    It must be the last observer, so that all other observers have received the event.
    ``requested_at`` is the monotonic time of the request, or None. ``status`` is the exit status of
    a stopped run: 128 plus the signal's number.
    """

    takes_quiet_slots = True

    def __init__(self) -> None:
        self.requested_at: float | None = None
        self.status = 128 + signal.SIGINT

    def on_event(self, _event: DriverEvent, _commands: Sequence[Command]) -> None:
        """Stop here if requested."""
        self._stop_if_requested()

    def on_quiet_slots(self, _engine: Engine, _slots: range) -> None:
        """Stop here if requested."""
        self._stop_if_requested()

    def _stop_if_requested(self) -> None:
        if self.requested_at is not None:
            raise KeyboardInterrupt

    def on_decision(self, _seconds: float) -> None:
        """Stop inside a long event if the request is older than the grace period."""
        if (
            self.requested_at is not None
            and time.monotonic() - self.requested_at > STOP_GRACE_SECONDS
        ):
            raise KeyboardInterrupt


@contextmanager
def stop_on_signal() -> Iterator[StopRequestObserver]:
    """Yield an observer that Ctrl-C or SIGTERM sets; a second signal interrupts immediately."""
    observer = StopRequestObserver()
    if threading.current_thread() is not threading.main_thread():  # only that can set handlers
        yield observer
        return

    def request_stop(number: int, frame: FrameType | None) -> None:
        observer.status = 128 + number
        if observer.requested_at is not None:
            previous = previous_handlers[signal.Signals(number)]
            if callable(previous):
                previous(number, frame)
            raise KeyboardInterrupt
        observer.requested_at = time.monotonic()

    previous_handlers = {
        number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield observer
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)

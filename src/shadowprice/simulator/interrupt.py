"""Stopping a simulation between two events, so that what was done is whole."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from shadowprice.core.events import Command, DriverEvent
from shadowprice.results.observer import Observer

PATIENCE: Final = 2.0
"""Seconds that an event may still take after Ctrl-C before the run stops inside it."""


class StopSign(Observer):
    """Raises `KeyboardInterrupt` after the event in hand once somebody asked to stop.

    It must be the last observer: the others have then seen the event.

    Attributes
    ----------
    asked : float or None
        When somebody asked to stop.
    status : int
        Exit status of a run that was stopped: 128 and the signal's number.
    """

    def __init__(self) -> None:
        self.asked: float | None = None
        self.status = 128 + signal.SIGINT

    def took(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Stop here if asked to."""
        del event, commands
        if self.asked is not None:
            raise KeyboardInterrupt

    def decided(self, seconds: float) -> None:
        """Stop inside a long event if asked to a while ago."""
        del seconds
        if self.asked is not None and time.monotonic() - self.asked > PATIENCE:
            raise KeyboardInterrupt


@contextmanager
def stop_sign() -> Iterator[StopSign]:
    """Give an observer that Ctrl-C or SIGTERM sets; a second signal interrupts at once.

    Outside the main thread, where signals cannot be caught, the observer is never set.
    """
    sign = StopSign()
    if threading.current_thread() is not threading.main_thread():
        yield sign
        return

    def ask(number: int, frame: FrameType | None) -> None:
        sign.status = 128 + number
        if sign.asked is not None:
            outer = before[signal.Signals(number)]
            if callable(outer):
                outer(number, frame)
            raise KeyboardInterrupt
        sign.asked = time.monotonic()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield sign
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

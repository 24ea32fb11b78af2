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
    """

    def __init__(self) -> None:
        self.asked: float | None = None

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
    """Give an observer that Ctrl-C sets; a second Ctrl-C interrupts at once.

    Outside the main thread, where signals cannot be caught, the observer is never set.
    """
    sign = StopSign()
    if threading.current_thread() is not threading.main_thread():
        yield sign
        return

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        if sign.asked is not None:
            raise KeyboardInterrupt
        sign.asked = time.monotonic()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield sign
    finally:
        signal.signal(signal.SIGINT, before)

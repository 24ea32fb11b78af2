"""Ending on SIGTERM as on Ctrl-C: between two steps, with what was done on disk."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
TERMINATED: Final = 143


@dataclass
class Termination:
    """Whether the process was told to end, and by what.

    Attributes
    ----------
    status : int
        The exit status that says so.
    told : bool
        Whether a command has said what became of its work.
    """

    status: int = INTERRUPTED
    told: bool = False


_current = Termination()


def current() -> Termination:
    """Return how the command that runs was told to end, if it was."""
    return _current


@contextmanager
def terminable() -> Iterator[Termination]:
    """Turn SIGTERM into a `KeyboardInterrupt` while a command runs.

    A command that takes both signals itself (`shadowprice.simulator.interrupt.stop_sign`) does so
    inside this. Outside the main thread, where signals cannot be caught, nothing changes.
    """
    global _current  # noqa: PLW0603  # one command runs at a time
    _current = termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        termination.status = TERMINATED
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, before)

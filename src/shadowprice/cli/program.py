"""The running program: its name for hints, and its end by SIGTERM, which keeps completed work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Final

PROGRAM: Final = "shadowprice"

called_program: Final = ContextVar("called_program", default=PROGRAM)
"""This program, or the plugin of kubectl that runs its commands."""


INTERRUPTED: Final = 130
CLOSED: Final = 141
"""Exit status if the reader of the output closed it, as after SIGPIPE: `... | head`."""
TERMINATED: Final = 143


@dataclass
class Termination:
    """A signal to the running command to stop."""

    status: int = INTERRUPTED  # exit status for the signal
    reported: bool = False  # the command already printed what it kept


_current = Termination()


def current() -> Termination:
    """Return the termination state of the running command."""
    return _current


@contextmanager
def terminable() -> Iterator[Termination]:
    """Turn SIGTERM into a `KeyboardInterrupt` while a command runs.

    Commands that handle both signals (`shadowprice.simulator.interrupt.stop_on_signal`) install
    their handlers inside this block. Outside the main thread this does nothing, because signals
    can't be handled there.
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

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, previous)

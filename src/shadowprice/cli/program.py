"""The running program: its name in hints, its exit statuses, and its reaction to SIGTERM."""

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
"""Name of this program, or of the plugin of kubectl that runs its commands."""


INTERRUPTED: Final = 130  # exit status after SIGINT
CLOSED: Final = 141
"""Exit status if the reader of stdout closed it (`... | head`), as after SIGPIPE."""
TERMINATED: Final = 143  # exit status after SIGTERM


@dataclass
class Termination:
    """State of a command that a signal may stop."""

    status: int = INTERRUPTED  # exit status after the signal
    reported: bool = False  # whether the command has printed a message about its results


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

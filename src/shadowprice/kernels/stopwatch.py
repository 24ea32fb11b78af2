"""A clock that stands still while kernels are compiled or loaded.

How fast a scheduler decides says nothing of how long its kernels once took to compile; a time that
holds both measures neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds spent on making kernels ready in this process.

    Attributes
    ----------
    seconds : float
        Total so far; kernels that are made ready for another one count once.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = False

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time of a block."""
        if self._running:
            yield
            return
        self._running = True
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began
            self._running = False


preparing = Stopwatch()
"""What compiling and loading kernels took in this process."""


def working_time() -> float:
    """Return a time in seconds, to be subtracted from another, less what `preparing` took."""
    return time.perf_counter() - preparing.seconds

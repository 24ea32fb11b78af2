"""A clock that excludes the loading and compiling of kernels, so that it measures decisions."""

from __future__ import annotations

import time


class Stopwatch:
    """Seconds spent on loading and compiling kernels in this process.

    A kernel that is compiled for another one counts once.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._started = 0.0

    def start(self) -> None:
        """Start, unless it runs already; each start needs a stop."""
        if self._depth == 0:
            self._started = time.perf_counter()
        self._depth += 1

    def stop(self) -> None:
        """Undo one start; the last one adds the elapsed time."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._started


preparing = Stopwatch()
"""Counts in this process; `shadowprice.kernels.jit` starts and stops it."""


def working_time() -> float:
    """Return a monotonic time in seconds that stands still while `preparing` runs."""
    return time.perf_counter() - preparing.seconds

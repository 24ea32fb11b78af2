"""Time spent on loading and compiling kernels, so that decision times can exclude it."""

from __future__ import annotations

import time


class Stopwatch:
    """Seconds spent on loading and compiling kernels in this process.

    Nested compilations are counted once.
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
"""The stopwatch of this process; `shadowprice.kernels.jit` starts and stops it."""


def working_time() -> float:
    """Return `perf_counter` less the time spent on preparing kernels.

    Call it only while no kernel is being prepared: that time is subtracted when it ends.
    """
    return time.perf_counter() - preparing.seconds

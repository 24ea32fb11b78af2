"""Clock of the time limit of a search."""

from __future__ import annotations

import time
from enum import StrEnum


class Clock(StrEnum):
    """Elapsed time or processor time.

    If other processes use the machine, elapsed time passes without progress, and a search that it
    ends has a poorer result than on an idle machine.
    """

    WALL = "wall"
    PROCESSOR = "processor"

    def now(self) -> float:
        """Return seconds since a fixed moment: elapsed, or of this process's processor time."""
        return time.perf_counter() if self is Clock.WALL else time.process_time()

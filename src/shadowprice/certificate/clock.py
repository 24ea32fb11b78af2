"""What the time that a certificate may take is counted by."""

from __future__ import annotations

import time
from enum import StrEnum


class Clock(StrEnum):
    """A clock.

    On a machine that others use, time on the wall passes without work being done, and a search that
    ends by it leaves a poorer result than on an idle one.
    """

    WALL = "wall"
    PROCESSOR = "processor"

    def now(self) -> float:
        """Return seconds since some moment: on the wall, or worked by this process."""
        return time.perf_counter() if self is Clock.WALL else time.process_time()

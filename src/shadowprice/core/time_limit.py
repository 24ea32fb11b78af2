"""Clock of the time limit of a search."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import StrEnum


class Clock(StrEnum):
    """Elapsed time or processor time.

    On a busy machine, elapsed time passes without progress. A search with a limit in elapsed time
    then has a poorer result than on an idle machine.
    """

    WALL = "wall"
    PROCESSOR = "processor"

    def now(self) -> float:
        """Return seconds since a fixed moment: elapsed, or of this process's processor time."""
        return time.perf_counter() if self is Clock.WALL else time.process_time()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a clock; infinite if there is no limit."""

    clock: Clock
    end: float

    @classmethod
    def after(cls, seconds: float, clock: Clock) -> Deadline:
        """Return the moment that is ``seconds`` from now."""
        return cls(clock, clock.now() + seconds)

    @classmethod
    def never(cls) -> Deadline:
        """Return a moment that is never reached."""
        return cls(Clock.WALL, math.inf)

    @property
    def passed(self) -> bool:
        """Whether the moment has passed."""
        return self.clock.now() >= self.end

    @property
    def remaining(self) -> float:
        """Seconds that remain; 0 if the moment has passed."""
        return max(0.0, self.end - self.clock.now())

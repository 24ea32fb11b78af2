"""Exponential backoff with jitter."""

from __future__ import annotations

import math
import random
import time
from typing import Final

JITTER: Final = 0.2  # maximum share by which a delay is shortened, so that retries spread out


class Backoff:
    """Exponential backoff: each failure doubles the delay in seconds, up to a maximum."""

    def __init__(self, initial: float, maximum: float) -> None:
        self._initial = initial
        self._maximum = maximum
        self._next_delay = initial
        self._until = -math.inf  # monotonic end of the current delay

    def record_failure(self) -> float:
        """Record a failed attempt; return the delay until the next one in seconds."""
        delay = self._next_delay * random.uniform(1.0 - JITTER, 1.0)
        self._next_delay = min(2.0 * self._next_delay, self._maximum)
        self._until = time.monotonic() + delay
        return delay

    def reset(self) -> None:
        """Reset to the initial backoff."""
        self._next_delay = self._initial
        self._until = -math.inf

    @property
    def over(self) -> bool:
        """Whether the delay since the last failure has elapsed."""
        return time.monotonic() >= self._until

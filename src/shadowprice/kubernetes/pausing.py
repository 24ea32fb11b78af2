"""Exponential backoff with jitter."""

from __future__ import annotations

import math
import random
import time
from typing import Final

JITTER: Final = 0.2
"""Maximum fraction by which jitter shortens a backoff, so that retries spread out."""


class Backoff:
    """Exponential backoff: each failure doubles the wait, up to a maximum.

    ``first`` and ``longest`` are the initial and maximum backoff in seconds.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first
        self._until = -math.inf

    def failed(self) -> float:
        """Record a failed attempt; return the seconds until the next."""
        pause = self._next * random.uniform(1.0 - JITTER, 1.0)
        self._next = min(2.0 * self._next, self._longest)
        self._until = time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        """Reset to the initial backoff."""
        self._next = self._first
        self._until = -math.inf

    @property
    def over(self) -> bool:
        """Whether the backoff since the last failure has elapsed."""
        return time.monotonic() >= self._until

    @staticmethod
    def most(first: float, longest: float, span: float) -> int:
        """Return the maximum number of attempts within ``span`` seconds, including the first."""
        count, elapsed, pause = 1, 0.0, first
        while True:
            elapsed += pause * (1.0 - JITTER)
            if elapsed > span:
                return count
            count, pause = count + 1, min(2.0 * pause, longest)

"""Growing pauses: what is asked for again is asked for less and less often, down to a bound."""

from __future__ import annotations

import math
import random
import time
from typing import Final

SPREAD: Final = 0.2
"""The part of a pause by which it is longer or shorter, so that not all ask at once."""


class Pauses:
    """Seconds between tries: twice as long from one to the next, up to a longest.

    Parameters
    ----------
    first, longest : float
        Seconds of the first pause, and of every one from some try on.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first
        self._until = -math.inf

    def failed(self) -> float:
        """Take in that a try failed; return the seconds until the next."""
        pause = self._next * random.uniform(1.0 - SPREAD, 1.0)
        self._next = min(2.0 * self._next, self._longest)
        self._until = time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        """Begin anew with the first pause."""
        self._next = self._first
        self._until = -math.inf

    @property
    def over(self) -> bool:
        """Whether the pause since the last try that failed is over."""
        return time.monotonic() >= self._until

    @staticmethod
    def most(first: float, longest: float, span: float) -> int:
        """Return how often is asked within so many seconds at most, from the first try on."""
        count, at, pause = 1, 0.0, first
        while True:
            at += pause * (1.0 - SPREAD)
            if at > span:
                return count
            count, pause = count + 1, min(2.0 * pause, longest)

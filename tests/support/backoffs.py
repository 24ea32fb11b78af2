"""How many attempts an exponential backoff allows."""

from __future__ import annotations

from shadowprice.kubernetes.pausing import JITTER


def max_attempts(initial: float, maximum: float, span: float) -> int:
    """Return the maximum number of attempts within ``span`` seconds, including the first."""
    count, elapsed, delay = 1, 0.0, initial
    while True:
        elapsed += delay * (1.0 - JITTER)
        if elapsed > span:
            return count
        count, delay = count + 1, min(2.0 * delay, maximum)

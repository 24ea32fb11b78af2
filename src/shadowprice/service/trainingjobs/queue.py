"""Keys that have to be looked at: each once however often it is named, later where it failed."""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 60.0
"""Seconds before a key that failed is looked at again, from the first time to the last."""


class WorkQueue:
    """Hands out keys, none to two workers at once.

    A key that is named while it is looked at is looked at once more afterwards.

    Parameters
    ----------
    gather : float
        Seconds that a key waits before it is handed out, so that changes that come together are
        looked at together.
    clock : callable, optional
        Seconds that only grow.
    """

    def __init__(self, gather: float = 0.05, clock: Callable[[], float] = time.monotonic) -> None:
        self._gather = gather
        self._clock = clock
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._busy: set[str] = set()
        self._failures: dict[str, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: str, after: float | None = None) -> None:
        """Name a key, to be looked at after so many seconds, or sooner if it is due already."""
        at = self._clock() + (self._gather if after is None else after)
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            heapq.heappush(self._heap, (at, key))
            self._wake.set()

    def failed(self, key: str) -> float:
        """Name a key again that failed; return the seconds until then, more each time."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(count - 1, 20))
        pause *= random.uniform(0.8, 1.2)
        self.add(key, pause)
        return pause

    def succeeded(self, key: str) -> None:
        """Forget that a key ever failed."""
        self._failures.pop(key, None)

    def take(self) -> str | None:
        """Return a key that is due and with no worker, None where there is none."""
        now = self._clock()
        put_off = []
        found = None
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._due.get(key) != at:
                continue  # it was named anew, for an earlier moment
            if key in self._busy:
                put_off.append((at, key))
                continue
            del self._due[key]
            self._busy.add(key)
            found = key
            break
        for entry in put_off:
            heapq.heappush(self._heap, entry)
        return found

    def done(self, key: str) -> None:
        """Take a key back from a worker."""
        self._busy.discard(key)
        if key in self._due:
            self._wake.set()

    async def work(self, look: Callable[[str], Awaitable[None]]) -> None:
        """Hand keys to ``look`` until cancelled; it lets no error out."""
        while True:
            key = self.take()
            if key is None:
                await self._pause()
                continue
            try:
                await look(key)
            finally:
                self.done(key)

    async def _pause(self) -> None:
        wait = 1.0
        now = self._clock()
        for at, key in self._heap[:1]:
            if key not in self._busy:
                wait = min(wait, max(0.0, at - now))
        self._wake.clear()
        try:
            async with asyncio.timeout(max(0.001, wait)):
                await self._wake.wait()
        except TimeoutError:
            pass

"""Work queue of keys to reconcile: duplicates merge, and failed keys return with backoff."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

INITIAL_BACKOFF_SECONDS: Final = 0.1
MAX_BACKOFF_SECONDS: Final = 60.0  # initial and maximum backoff of a failed key, in seconds


class WorkQueue:
    """Delayed queue of keys for several workers; no key is processed twice at the same time.

    A key that is added while a worker processes it is processed again afterwards. ``gather`` is the
    default delay of a key in seconds, which merges simultaneous changes.
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
        """Add a key with a delay in seconds (None: ``gather``); an earlier due time is kept."""
        due = self._clock() + (self._gather if after is None else after)
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._wake.set()

    def add_rate_limited(self, key: str) -> float:
        """Add a failed key again with exponential backoff; return the delay in seconds."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2.0 ** min(count - 1, 20))
        pause *= random.uniform(0.8, 1.2)
        self.add(key, pause)
        return pause

    def reset_backoff(self, key: str) -> None:
        """Reset a key's backoff."""
        self._failures.pop(key, None)

    def take(self) -> str | None:
        """Return a due key that no worker processes, and mark it busy; None if there is none."""
        now = self._clock()
        postponed = []
        result = None
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # stale entry: the key was added again with an earlier due time
            if key in self._busy:
                postponed.append((due, key))
                continue
            del self._due[key]
            self._busy.add(key)
            result = key
            break
        for entry in postponed:
            heapq.heappush(self._heap, entry)
        return result

    def mark_done(self, key: str) -> None:
        """Mark a key as not busy."""
        self._busy.discard(key)
        if key in self._due:
            self._wake.set()

    async def work(self, look: Callable[[str], Awaitable[None]]) -> None:
        """Process keys with ``look``, which must not raise, until cancelled."""
        while True:
            key = self.take()
            if key is None:
                await self._pause()
                continue
            try:
                await look(key)
            finally:
                self.mark_done(key)

    async def _pause(self) -> None:
        if self._heap and self._heap[0][1] in self._busy:
            # Other keys may become due while the first one is busy.
            due = min((due for due, key in self._heap if key not in self._busy), default=math.inf)
        else:
            due = self._heap[0][0] if self._heap else math.inf
        wait = min(1.0, due - self._clock())
        self._wake.clear()
        try:
            async with asyncio.timeout(max(0.001, wait)):
                await self._wake.wait()
        except TimeoutError:
            pass

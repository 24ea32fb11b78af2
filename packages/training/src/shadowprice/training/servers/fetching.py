"""Background prefetching of chunks, so that a worker waits only for its first chunk."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

from shadowprice import jobs
from shadowprice.training.servers.chunks import Arrays

_STOP_POLL_SECONDS: Final = 0.1  # seconds between polls of the stop signal while a worker waits


class ChunkPrefetcher:
    """Fetches chunks in background threads, and keeps the last ones used.

    ``fetch`` returns a chunk by its number. It may take long, and may raise. ``keep`` is the number
    of chunks in memory, including those being fetched.
    """

    def __init__(self, fetch: Callable[[int], Arrays], keep: int = 2) -> None:
        self._read = fetch
        self._keep = max(1, keep)
        self._futures: OrderedDict[int, Future[Arrays]] = OrderedDict()

    def want(self, number: int) -> None:
        """Start to fetch a chunk, unless it is in memory or being fetched."""
        if number < 0 or number in self._futures:
            return
        future: Future[Arrays] = Future()
        self._futures[number] = future
        # One daemon thread per chunk: a fetch that hangs delays neither others nor the exit.
        threading.Thread(target=self._fetch_into, args=(number, future), daemon=True).start()
        while len(self._futures) > self._keep:
            self._futures.popitem(last=False)

    def prefetch_if_room(self, number: int) -> None:
        """Prefetch a chunk, unless only one chunk is kept."""
        if self._keep > 1:
            self.want(number)

    def fetch(self, number: int, stop: Any = None) -> Arrays:
        """Wait for a chunk, and return it.

        ``stop`` becomes true on SIGTERM. Then the process exits with status 143, even if the
        storage hangs. Raises `TrainingError` if the chunk can't be fetched; the next call retries.
        """
        prefetched = self._futures.get(number)
        if prefetched is not None and prefetched.done() and prefetched.exception() is not None:
            del self._futures[number]  # a prefetch that failed: the storage may be back
        self.want(number)
        self._futures.move_to_end(number)
        future = self._futures[number]
        while not wait((future,), _STOP_POLL_SECONDS).done:
            if stop:
                jobs.leave()
        try:
            return future.result()
        except BaseException:
            self._futures.pop(number, None)
            raise

    def _fetch_into(self, number: int, future: Future[Arrays]) -> None:
        try:
            future.set_result(self._read(number))
        except BaseException as error:  # raised again in `fetch`
            future.set_exception(error)

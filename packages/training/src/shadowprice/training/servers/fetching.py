"""Prefetching of chunks, so that a worker waits only for its first chunk."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

from shadowprice import jobs
from shadowprice.training.servers.chunks import Arrays

_LOOK: Final = 0.1
"""Seconds between polls of the stop signal while a worker waits."""


class Fetcher:
    """Fetches chunks in the background, and keeps the last ones.

    ``fetch`` returns a chunk by its number. It may take long, and may raise. ``keep`` is the number
    of chunks in memory, including those being fetched.
    """

    def __init__(self, fetch: Callable[[int], Arrays], keep: int = 2) -> None:
        self._fetch = fetch
        self._keep = max(1, keep)
        self._known: OrderedDict[int, Future[Arrays]] = OrderedDict()
        self.waited = 0
        """Number of chunks that were not there yet when a worker took them."""

    def want(self, number: int) -> None:
        """Start to fetch a chunk, unless it is there or being fetched."""
        if number < 0 or number in self._known:
            return
        future: Future[Arrays] = Future()
        self._known[number] = future
        # One daemon thread per chunk: a hanging fetch delays no other, nor the process's exit.
        threading.Thread(target=self._run, args=(number, future), daemon=True).start()
        while len(self._known) > self._keep:
            self._known.popitem(last=False)

    def prefetch_if_room(self, number: int) -> None:
        """Prefetch a chunk, unless only one chunk is kept."""
        if self._keep > 1:
            self.want(number)

    def take(self, number: int, stop: Any = None) -> Arrays:
        """Wait for a chunk, and return it.

        ``stop`` becomes true on SIGTERM, which ends the wait for a storage that hangs.

        Raises
        ------
        SystemExit
            Status 143, if SIGTERM comes before the chunk.
        TrainingError
            If the chunk can't be fetched; the next call tries again.
        """
        ahead = self._known.get(number)
        if ahead is not None and ahead.done() and ahead.exception() is not None:
            del self._known[number]  # a prefetch that failed: the storage may be back
        self.want(number)
        self._known.move_to_end(number)
        future = self._known[number]
        self.waited += not future.done()
        while not wait((future,), _LOOK).done:
            if stop:
                jobs.leave()
        try:
            return future.result()
        except BaseException:
            self._known.pop(number, None)
            raise

    def _run(self, number: int, coming: Future[Arrays]) -> None:
        try:
            coming.set_result(self._fetch(number))
        except BaseException as error:  # raised again in `take`
            coming.set_exception(error)

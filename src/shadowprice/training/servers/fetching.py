"""Chunks fetched ahead of need, so that a worker waits for its first one only."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

from shadowprice import jobs
from shadowprice.training.servers.chunks import Arrays

_LOOK: Final = 0.1
"""Seconds between looks at whether a worker that waits was told to stop."""


class Fetcher:
    """Fetches chunks in the background, and keeps the last few.

    Parameters
    ----------
    fetch : callable
        Returns a chunk by its number; may take long, and may raise.
    keep : int
        Chunks kept in memory, those on their way included.
    """

    def __init__(self, fetch: Callable[[int], Arrays], keep: int = 2) -> None:
        self._fetch = fetch
        self._keep = max(1, keep)
        self._known: OrderedDict[int, Future[Arrays]] = OrderedDict()
        self.waited = 0
        """Chunks that were not there yet when they were taken."""

    def want(self, number: int) -> None:
        """Begin to fetch a chunk, unless it is there or on its way."""
        if number < 0 or number in self._known:
            return
        coming: Future[Arrays] = Future()
        self._known[number] = coming
        # A thread of its own each: one that hangs holds nobody up, and none outlives the process.
        threading.Thread(target=self._run, args=(number, coming), daemon=True).start()
        while len(self._known) > self._keep:
            self._known.popitem(last=False)

    def want_ahead(self, number: int) -> None:
        """Begin to fetch a chunk that is needed later, where it takes no other's place."""
        if self._keep > 1:
            self.want(number)

    def take(self, number: int, stop: Any = None) -> Arrays:
        """Return a chunk, once it is there.

        Parameters
        ----------
        number : int
            Which.
        stop : object, optional
            True once the job was told to stop: a storage that stands still is waited for no longer.

        Raises
        ------
        SystemExit
            Status 143, if the job is told to stop before it is there.
        TrainingError
            If it cannot be fetched; the next who asks tries again.
        """
        ahead = self._known.get(number)
        if ahead is not None and ahead.done() and ahead.exception() is not None:
            del self._known[number]  # that was ahead of need: the storage may be back
        self.want(number)
        self._known.move_to_end(number)
        coming = self._known[number]
        self.waited += not coming.done()
        while not wait((coming,), _LOOK).done:
            if stop:
                jobs.leave()
        try:
            return coming.result()
        except BaseException:
            self._known.pop(number, None)
            raise

    def _run(self, number: int, coming: Future[Arrays]) -> None:
        try:
            coming.set_result(self._fetch(number))
        except BaseException as error:  # handed to who takes it
            coming.set_exception(error)

"""Progress reports that never delay training."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

from shadowprice import jobs


class ProgressReporter:
    """Sends the newest report in a thread of its own; ``due`` is true every ``every`` seconds."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._next = 0.0
        self._waiting: tuple[float, dict[str, float]] | None = None
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._has_failed = False

    @property
    def due(self) -> bool:
        """Whether the next report is due."""
        return time.monotonic() >= self._next

    def report(self, minibatches: float, metrics: Mapping[str, float]) -> None:
        """Queue a report, which replaces any report that isn't being sent yet."""
        self._next = time.monotonic() + self._every
        with self._change:
            self._waiting = (minibatches, dict(metrics))
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="reports", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until every report is sent or the timeout ends; return whether all are sent."""
        with self._change:
            return self._change.wait_for(lambda: not (self._waiting or self._busy), seconds)

    def _send(self) -> None:
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._waiting is not None)
                assert self._waiting is not None
                (minibatches, metrics), self._waiting = self._waiting, None
                self._busy = True
            try:
                jobs.report(minibatches, **metrics)
            except Exception as error:  # the thread has to send later reports
                if not self._has_failed:
                    print(f"shadowprice: failed to report progress: {error}", file=sys.stderr)
                self._has_failed = True

"""The generations that an executor hasn't forgotten, and the queue of its reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from shadowprice.executors.contract import GenerationStatus, InvalidProgress, Progressed, Report
from shadowprice.executors.generations.tracked_generation import TrackedGeneration

log = logging.getLogger("shadowprice.executors")

GenerationT = TypeVar("GenerationT", bound=TrackedGeneration)


class GenerationRegistry(Generic[GenerationT]):
    """Registry of generations by job and number, with job locks and a report queue."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], GenerationT] = {}
        # Holders and waiters keep a lock alive. A lock on its way to a waiter isn't `locked`.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()

    def job_lock(self, job: str) -> asyncio.Lock:
        """Return the lock that serializes a job's commands."""
        return self._locks.setdefault(job, asyncio.Lock())

    @property
    def live(self) -> list[GenerationT]:
        """The generations that haven't ended."""
        return [entry for entry in self.entries.values() if not entry.is_finished]

    @property
    def allocations(self) -> list[Mapping[str, Any]]:
        """Demands of the generations that haven't ended, each with its server."""
        return [record for entry in self.live for record in entry.allocations]

    @property
    def in_acceptance_order(self) -> list[GenerationT]:
        """The generations in order of acceptance."""
        return sorted(self.entries.values(), key=lambda entry: entry.accepted)

    def statuses(self) -> tuple[GenerationStatus, ...]:
        """Return every unforgotten generation, as `Executor.list` does."""
        return tuple(entry.to_status() for entry in self.in_acceptance_order)

    def remove_job(self, job: str) -> None:
        """Remove the entries of a job."""
        for key in [key for key in self.entries if key[0] == job]:
            del self.entries[key]

    # ------------------------------------------------------------------ reports

    def emit(self, reports: Iterable[Report]) -> None:
        """Queue reports for `watch`."""
        for report in reports:
            self._reports.put_nowait(report)

    def close_watch(self) -> None:
        """End `watch` after the queued reports."""
        self._reports.put_nowait(None)

    async def watch(self, first: Callable[[], Iterable[Report]] = tuple) -> AsyncIterator[Report]:
        """Yield reports of ``first``, the current state of all generations, then new reports."""
        # Starts and ends are emitted again below; progress was read once, so it must be kept.
        previous, reports = self._reports, asyncio.Queue[Report | None]()
        self._reports = reports
        while not previous.empty():
            report = previous.get_nowait()
            if isinstance(report, Progressed | InvalidProgress):
                self.emit((report,))
        self.emit(first())
        for entry in self.in_acceptance_order:
            entry.start_reported = entry.end_reported = False
            entry.reported_exit_count = 0
            try:
                self.emit(entry.pop_reports())
            except Exception:  # one damaged generation must not hide the others
                log.exception("failed to report generation %d of %r", entry.number, entry.job)
        while True:
            next_report = await reports.get()
            if next_report is None:
                return
            yield next_report

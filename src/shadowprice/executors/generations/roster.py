"""The generations that an executor has not forgotten, and what it tells of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from shadowprice.executors.contract import Held, Misreported, Progressed, Report
from shadowprice.executors.generations.entry import Entry

Known = TypeVar("Known", bound=Entry)

_LOCKS: Final = 10_000
"""Locks of jobs that are kept before those that nobody holds are let go."""


class Roster(Generic[Known]):
    """Entries by job and generation; orders of a job one after the other; the queue of reports."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], Known] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()

    def one_at_a_time(self, job: str) -> asyncio.Lock:
        """Return the lock of a job's orders."""
        if len(self._locks) > _LOCKS:
            self._locks = {name: lock for name, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(job, asyncio.Lock())

    @property
    def live(self) -> list[Known]:
        """The generations that are not over."""
        return [one for one in self.entries.values() if not one.over]

    @property
    def deals(self) -> list[Mapping[str, Any]]:
        """What the generations that are not over take of servers."""
        return [deal for one in self.live for deal in one.deals]

    @property
    def ordered(self) -> list[Known]:
        """The generations in the order in which they were taken."""
        return sorted(self.entries.values(), key=lambda entry: entry.accepted)

    def held(self) -> tuple[Held, ...]:
        """Return every generation that is not forgotten, as `Executor.list` tells it."""
        return tuple(entry.held() for entry in self.ordered)

    def drop(self, job: str) -> None:
        """Let go of what is known of a job."""
        for key in [key for key in self.entries if key[0] == job]:
            del self.entries[key]

    # ------------------------------------------------------------------ reports

    def tell(self, reports: Iterable[Report]) -> None:
        """Put reports where `watch` finds them."""
        for report in reports:
            self._reports.put_nowait(report)

    def end(self) -> None:
        """Let who watches end, once everything is told."""
        self._reports.put_nowait(None)

    async def watch(self, first: Callable[[], Iterable[Report]] = tuple) -> AsyncIterator[Report]:
        """Tell what stands, and then what happens.

        Parameters
        ----------
        first : callable
            Returns what is told before any generation.
        """
        # What stands is told again, what jobs said is seen once only.
        before, reports = self._reports, asyncio.Queue[Report | None]()
        self._reports = reports
        while not before.empty():
            report = before.get_nowait()
            if isinstance(report, Progressed | Misreported):
                self.tell((report,))
        self.tell(first())
        for entry in self.ordered:
            entry.told_start = entry.told_end = False
            self.tell(entry.news())
        while True:
            told = await reports.get()
            if told is None:
                return
            yield told

"""Progress polls that run to their end even if their caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from shadowprice.executors.contract import Progressed, Report


class ProgressPolls:
    """Running progress polls. Cancelling one would lose progress that it already read.

    ``emit`` emits the result of a poll whose caller was cancelled.
    """

    def __init__(self, emit: Callable[[Iterable[Report]], None]) -> None:
        self._emit = emit
        self._running: set[asyncio.Task[Sequence[Progressed]]] = set()

    @property
    def in_progress(self) -> bool:
        """Whether a poll is running."""
        return bool(self._running)

    async def poll(self, work: Coroutine[Any, Any, Sequence[Progressed]]) -> Sequence[Progressed]:
        """Run a poll and return its result; if cancelled, the poll continues and emits it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._emit_late)
            raise

    def _emit_late(self, task: asyncio.Task[Sequence[Progressed]]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._emit(task.result())

    async def end(self) -> None:
        """Cancel all running polls."""
        tasks = tuple(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

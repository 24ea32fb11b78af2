"""Unpacking of jobs' files before their starts, so that no other command waits for it.

After a job's end, the files that it didn't change are deleted: each job has a copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from shadowprice.executors.contract import (
    Executor,
    ExecutorError,
    GenerationSpec,
    UnpacksFiles,
)

log = logging.getLogger("shadowprice.service")


class FileUnpacker:
    """Tasks that unpack the files of jobs, one for each job, and one that deletes them.

    A generation whose files are being unpacked isn't commanded yet, so that its job can be stopped
    at once. `Executor.start` finds the files there, or unpacks them itself if they are gone.
    ``ready`` is called when a task has ended.
    """

    def __init__(self, executor: Executor, ready: Callable[[], None]) -> None:
        self._executor = executor if isinstance(executor, UnpacksFiles) else None
        self._ready = ready
        self._tasks: dict[str, asyncio.Task[str]] = {}
        self._releasing: asyncio.Task[None] | None = None
        self._unreleased: set[str] = set()

    def is_busy(self, job: str) -> bool:
        """Return whether the files of a job are being unpacked."""
        return job in self._tasks and not self._tasks[job].done()

    def result(self, spec: GenerationSpec) -> str | None:
        """Return the result of unpacking a job's files; begin it if it hasn't begun.

        The result is why the generation is refused, empty if the files are there, and None while
        they are unpacked. Raise `ExecutorError` if the disk write failed.
        """
        if self._executor is None or not spec.archive:
            return ""
        task = self._tasks.get(spec.job)
        if task is None:
            task = self._tasks[spec.job] = asyncio.create_task(self._executor.unpack(spec))
            task.add_done_callback(lambda _: self._ready())
        if not task.done():
            return None
        del self._tasks[spec.job]
        return task.result()

    def retain(self, jobs: Collection[str]) -> None:
        """Forget the results for all jobs but these."""
        for job in [job for job, task in self._tasks.items() if task.done() and job not in jobs]:
            task = self._tasks.pop(job)
            if not task.cancelled():
                task.exception()  # marks it as retrieved

    def release(self, closed: Callable[[str], bool]) -> None:
        """Begin to delete the files that closed jobs didn't change."""
        if self._executor is None:
            return
        if self._releasing is not None and not self._releasing.done():
            return
        jobs = [
            job for job in self._executor.unpacked() if job not in self._unreleased and closed(job)
        ]
        if jobs:
            self._releasing = asyncio.create_task(self._release(self._executor, jobs))

    async def _release(self, executor: UnpacksFiles, jobs: Sequence[str]) -> None:
        for job in jobs:
            try:
                await executor.release(job)
            except ExecutorError as error:  # retried at the next start of the service
                self._unreleased.add(job)
                log.warning("failed to delete the unpacked files of %r: %s", job, error)

    async def close(self) -> None:
        """Cancel the tasks; their threads end by themselves."""
        tasks: list[asyncio.Task[Any]] = list(self._tasks.values())
        tasks += [] if self._releasing is None else [self._releasing]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

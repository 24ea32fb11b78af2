"""Generations whose commands are durable in directories of this machine, and their executors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from shadowprice.executors.contract import (
    ExecutorError,
    GenerationSpec,
    GenerationStatus,
    LogChunk,
    Receipt,
    Started,
    UnpackFailure,
)
from shadowprice.executors.generations import logs
from shadowprice.executors.generations.disk import make_private
from shadowprice.executors.generations.generation import TERMINAL_PHASES, GenerationDirectory
from shadowprice.executors.generations.log_chunks import read_chunk
from shadowprice.executors.generations.progress_polls import ProgressPolls
from shadowprice.executors.generations.registry import GenerationRegistry
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.executors.generations.tracked_generation import TrackedGeneration
from shadowprice.executors.generations.unpacking import JobFiles, UnpackedJobs

_UNPACKING: Final = ThreadPoolExecutor(2, "unpacking")
"""Threads of their own for large writes, so that other calls don't wait for the default pool."""

GenerationT = TypeVar("GenerationT", bound=TrackedGeneration)


class DiskGenerationRegistry(GenerationRegistry[GenerationT]):
    """A registry whose commands and records are in a `GenerationStore`, in the directory ``path``.

    ``make`` creates an entry from a job, a generation and its directory.
    """

    store: GenerationStore
    files: UnpackedJobs

    def __init__(
        self, path: Path, make: Callable[[str, int, GenerationDirectory], GenerationT]
    ) -> None:
        super().__init__()
        self._path = path
        self._make = make

    def open(self) -> None:
        """Open the store; raise OSError if its directory can't be created."""
        self.store = GenerationStore(self._path)
        self.files = UnpackedJobs(self._path / "unpacked")

    @contextlib.contextmanager
    def _with_path(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{self._path}: {error}") from error

    def load_existing(self) -> None:
        """Load the unforgotten generations that an earlier executor left."""
        for job, number, generation in self.store.live():
            entry = self._make(job, number, generation)
            entry.read()
            self.entries[job, number] = entry

    async def start(
        self,
        spec: GenerationSpec,
        prepare: Callable[[GenerationT], tuple[dict[str, Any], str]],
        files: JobFiles,
    ) -> tuple[Receipt, GenerationT | None, str]:
        """Accept a start command; the caller holds the job's lock.

        After the files are unpacked, ``prepare`` returns the plan of an entry, and a reason if the
        generation is refused. Returns the receipt, the new entry (None if the command wasn't
        accepted), and why the generation won't run (empty if it will). Raises `ExecutorError` if
        the disk write failed.
        """
        key = spec.job, spec.generation
        with self._with_path():
            receipt, failure = await self._check_and_unpack(spec, files)
            if receipt is not Receipt.ACCEPTED:
                return receipt, None, ""
            entry = self._make(*key, self.store.generation(*key))
            entry.placement = spec.placement
            # No `await` from here to the entry: the devices of its plan are allocated by it.
            plan, refusal = prepare(entry) if failure is None else ({}, failure.reason)
            entry.set_plan(plan)
            self.entries[key] = entry
            try:
                await asyncio.to_thread(self._accept, spec, plan, refusal)
            except BaseException:
                del self.entries[key]
                raise
        return receipt, entry, refusal

    async def unpack(self, spec: GenerationSpec, files: JobFiles) -> UnpackFailure | None:
        """Unpack a job's files before its start; see `UnpacksFiles`. The caller holds its lock."""
        with self._with_path():
            _, failure = await self._check_and_unpack(spec, files)
        return failure

    async def _check_and_unpack(
        self, spec: GenerationSpec, files: JobFiles
    ) -> tuple[Receipt, UnpackFailure | None]:
        """Unpack a job's files if a start would be accepted; return the cause if that fails."""
        receipt = await asyncio.to_thread(self.store.check_start, spec)
        if receipt is not Receipt.ACCEPTED or not spec.archive:
            return receipt, None
        # Also if they are there: without its record, they would stay until the job is purged.
        await asyncio.to_thread(self.files.add, spec.job, spec.archive, files.directory)
        # Not in the threads that unpack, because others may occupy them.
        if await asyncio.to_thread(files.are_unpacked, spec.archive):
            return receipt, None
        loop = asyncio.get_running_loop()
        return receipt, await loop.run_in_executor(_UNPACKING, files.fill)

    def _accept(self, spec: GenerationSpec, plan: dict[str, Any], refusal: str) -> None:
        make_private(self.store.job(spec.job))
        for folder in plan.get("folders", ()):
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.store.accept(spec, plan, refusal)

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None
    ) -> tuple[Receipt, GenerationT | None]:
        """Accept a stop command; return the receipt and the generation to stop, if any.

        The caller holds the job's lock. ``grace`` is in seconds; None for the program's own. Raises
        `ExecutorError` if the disk write failed.
        """
        entry = self.entries.get((job, generation))
        if grace is None:
            grace = entry.grace if entry is not None else 0.0
        with self._with_path():
            receipt = await asyncio.to_thread(
                self.store.stop, command, job, generation, max(0.0, grace)
            )
        if receipt not in {Receipt.ACCEPTED, Receipt.DUPLICATE}:
            return receipt, None
        if entry is None:
            entry = self._make(job, generation, self.store.generation(job, generation))
            if await asyncio.to_thread(entry.is_live):
                self.entries[job, generation] = entry
        entry.stop_ordered = True
        entry.end_reported = False  # emitted again, with this command's number
        return receipt, entry

    async def refresh(self, entry: GenerationT) -> None:
        """Read a generation's state and emit its new reports."""
        async with entry.refreshing:  # serialized: the end is the last report
            await asyncio.to_thread(entry.read)
            progress = await entry.poll_progress_async()
            reports = entry.pop_reports()
            if progress is not None:  # the last progress precedes the end
                has_end = bool(reports) and not isinstance(reports[-1], Started)
                reports.insert(len(reports) - has_end, progress)
            self.emit(reports)

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Acknowledge a recorded end; see `Executor.acknowledge_end`."""
        async with self.job_lock(job):
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(self.store.acknowledge_end, job, generation):
                    self.entries.pop((job, generation), None)

    async def delete_job_data(self, job: str) -> bool:
        """Remove a finished job's records; return whether it is finished.

        The caller holds the job's lock. Raises `ExecutorError` if the files can't be removed.
        """
        with self._with_path():
            finished = await asyncio.to_thread(self.store.delete_job_data, job)
            if finished:
                await asyncio.to_thread(self.files.remove, job)
        if finished:
            self.remove_job(job)
        return finished

    async def release(self, job: str) -> None:
        """Delete the files that a closed job didn't change; see `UnpacksFiles.release`."""
        async with self.job_lock(job):
            if any(entry.job == job for entry in self.live):
                return
            with self._with_path():
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(_UNPACKING, self.files.clean, job)

    def has_logs(self, job: str, number: int) -> bool:
        """Return whether this machine has logs of a generation."""
        return bool(logs.names(self.store.generation(job, number).logs))

    def read_log(
        self, job: str, number: int, process: str, start: int | None, max_bytes: int
    ) -> LogChunk:
        """Return a chunk of a log on this machine; see `Executor.logs`."""
        generation = self.store.generation(job, number)
        complete = generation.state()["phase"] in TERMINAL_PHASES
        return read_chunk(generation.logs, number, process, start, max_bytes, complete=complete)


class DiskExecutor(Generic[GenerationT]):
    """Base of executors that keep commands and records in the directory ``path``.

    ``make`` creates an entry from a job, a generation and its directory.
    """

    def __init__(
        self, path: Path, make: Callable[[str, int, GenerationDirectory], GenerationT]
    ) -> None:
        self.path = path
        self._registry = DiskGenerationRegistry(path, make)
        self._polls = ProgressPolls(self._registry.emit)

    def _files(self, spec: GenerationSpec) -> JobFiles:
        """Return the directory that a job's archive fills."""
        raise NotImplementedError

    @property
    def directory(self) -> Path:
        """Directory of its records; see `KeepsLocalRecords`."""
        return self.path

    async def unpack(self, spec: GenerationSpec) -> UnpackFailure | None:
        """Unpack a job's files before its start; see `UnpacksFiles`."""
        async with self._registry.job_lock(spec.job):
            return await self._registry.unpack(spec, self._files(spec))

    def unpacked(self) -> Collection[str]:
        """Return the jobs with unpacked files; see `UnpacksFiles`."""
        return self._registry.files.jobs()

    async def release(self, job: str) -> None:
        """Delete the files that a closed job didn't change; see `UnpacksFiles`."""
        await self._registry.release(job)

    async def list(self) -> tuple[GenerationStatus, ...]:
        """Return every generation that isn't forgotten."""
        return self._registry.statuses()

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Acknowledge a recorded end; see `Executor.acknowledge_end`."""
        await self._registry.acknowledge_end(job, generation)

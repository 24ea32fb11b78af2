"""Base classes of executors: generations, commands on disk, discovered servers and logs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic

from shadowprice.executors.background import BackgroundTasks
from shadowprice.executors.contract import (
    ExecutorError,
    ExecutorOptions,
    GenerationSpec,
    GenerationStatus,
    LogChunk,
    Progressed,
    Receipt,
    Report,
    ServerGone,
    ServerInfo,
    ServerSeen,
    Started,
    UnpackFailure,
)
from shadowprice.executors.generations import logs
from shadowprice.executors.generations.disk import FileLock, make_private
from shadowprice.executors.generations.generation import TERMINAL_PHASES, GenerationDirectory
from shadowprice.executors.generations.registry import GenerationRegistry, GenerationT
from shadowprice.executors.generations.store import (
    GenerationStore,
    UnpackedJobs,
    is_filled,
    unpack_files,
)
from shadowprice.executors.processes import PlacementError

MAX_CHUNK_BYTES: Final = 1 << 20  # maximum bytes of a `LogChunk`
log = logging.getLogger("shadowprice.executors")
_UNPACKING: Final = ThreadPoolExecutor(2, "unpacking")  # unpacking must not occupy other threads


def read_chunk(
    folder: Path, number: int, process: str, start: int | None, max_bytes: int, *, complete: bool
) -> LogChunk:
    """Return a chunk of a process's log in a directory; ``complete`` if the process has ended."""
    if process not in logs.names(folder):
        raise KeyError(f"{process} of generation {number}")
    max_bytes = max(1, min(max_bytes, MAX_CHUNK_BYTES))
    begin, end, text = logs.read(folder, process, start, max_bytes, complete=complete)
    _, log_end, _ = logs.read(folder, process, None, 1, complete=True)
    return LogChunk(number, process, begin, end, text, complete and end >= log_end)


class ExecutorBase(Generic[GenerationT]):
    """Base class: generations in memory, the directory's lock, and discovered servers."""

    def __init__(self, options: ExecutorOptions) -> None:
        self.path = Path(options.directory)
        self._registry: GenerationRegistry[GenerationT] = GenerationRegistry()
        self._background = BackgroundTasks(log, options.failed)
        self._lock: FileLock | None = None
        self._expected: frozenset[str] = frozenset()  # servers that the service set
        self._discovered: Mapping[str, ServerInfo] = {}

    @property
    def health_error(self) -> str | None:
        """Current failure of a background task; see `ReportsHealth`."""
        return self._background.health_error

    def _acquire_lock(self) -> None:
        self._lock = FileLock.try_acquire(self.path)
        if self._lock is None:
            raise ExecutorError(
                f"{self.path} is in use by another service; stop it, or use another --data"
            )

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    async def list(self) -> tuple[GenerationStatus, ...]:
        """Return every generation that isn't forgotten."""
        return tuple(entry.to_status() for entry in self._registry.in_acceptance_order)

    def watch(self) -> AsyncIterator[Report]:
        """Yield reports; see `Executor.watch`."""
        return self._registry.watch(self._server_reports)

    # ------------------------------------------------------------------ discovered servers

    async def set_servers(self, servers: Sequence[ServerInfo]) -> None:
        """Set the servers that the service expects; missing ones are reported as `ServerGone`."""
        self._expected = frozenset(server.name for server in servers)
        self._registry.emit(map(self._server_gone_report, self._expected - self._discovered.keys()))

    def _update_servers(self, servers: Mapping[str, ServerInfo]) -> None:
        previous, self._discovered = self._discovered, servers
        now = time.time()
        self._registry.emit(
            ServerSeen(server, now)
            for name, server in servers.items()
            if previous.get(name) != server
        )
        self._registry.emit(map(self._server_gone_report, previous.keys() - servers.keys()))

    def _server_reports(self) -> Iterator[Report]:
        for server in self._discovered.values():
            yield ServerSeen(server, time.time())
        yield from map(self._server_gone_report, self._expected - self._discovered.keys())

    def _server_gone_report(self, name: str) -> ServerGone:
        return ServerGone(name, time.time(), self._absence_reason(name))

    def _absence_reason(self, name: str) -> str:
        raise NotImplementedError


class DiskExecutor(ExecutorBase[GenerationT]):
    """Base class of executors that store commands and records on disk (`GenerationStore`)."""

    _store: GenerationStore
    _unpacked: UnpackedJobs

    def __init__(
        self,
        options: ExecutorOptions,
        make: Callable[[str, int, GenerationDirectory], GenerationT],
    ) -> None:
        super().__init__(options)
        self.directory = self.path  # of its records; see `KeepsLocalRecords`
        self._make = make
        self._running_poll: asyncio.Task[list[Progressed]] | None = None

    def _job_directory(self, spec: GenerationSpec) -> Path:
        """Return the directory that holds the job's ``work`` directory."""
        raise NotImplementedError

    def _make_job_directory(self, spec: GenerationSpec, directory: Path) -> tuple[int, int] | None:
        """Create the job's directory; return the owner of its files if they aren't this user's."""
        del spec
        make_private(directory)
        return None

    def _remove_job_files(self, job: str) -> None:
        """Remove the files of a job that aren't records."""
        raise NotImplementedError

    def _open_store(self) -> None:
        self._store = GenerationStore(self.path)
        self._unpacked = UnpackedJobs(self.path / "unpacked")

    @contextlib.contextmanager
    def _raising_executor_errors(self) -> Iterator[None]:
        """Raise errors of disk access as `ExecutorError`."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{self.path}: {error}") from error

    def _load_existing(self) -> None:
        for job, number, generation in self._store.live():
            entry = self._make(job, number, generation)
            entry.read()
            self._registry.entries[job, number] = entry

    # ------------------------------------------------------------------ commands

    async def start(self, spec: GenerationSpec) -> Receipt:
        """Start a generation; see `Executor.start`."""
        key, entries = (spec.job, spec.generation), self._registry.entries
        async with self._registry.job_lock(spec.job):
            with self._raising_executor_errors():
                receipt, failure = await self._check_and_unpack(spec)
                if receipt is not Receipt.ACCEPTED:
                    return receipt
                entry = self._make(*key, self._store.generation(*key))
                entry.placement = spec.placement
                # No `await` until the entry is registered, because only that reserves its devices.
                plan, refusal = ({}, failure.reason) if failure else self._prepare(spec, entry)
                entry.set_plan(plan)
                entries[key] = entry
                try:
                    await asyncio.to_thread(self._write_start, spec, plan, refusal)
                except BaseException:
                    del entries[key]
                    raise
            if not refusal:
                await self._begin(entry)
            await self._poll(entry)
            return receipt

    def _prepare(self, spec: GenerationSpec, entry: GenerationT) -> tuple[dict[str, Any], str]:
        """Return the plan of a generation, and a reason if the generation is refused."""
        raise NotImplementedError

    async def _begin(self, entry: GenerationT) -> None:
        raise NotImplementedError

    def _write_start(self, spec: GenerationSpec, plan: dict[str, Any], refusal: str) -> None:
        make_private(self._store.job(spec.job))
        for folder in plan.get("folders", ()):
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store.accept(spec, plan, refusal)

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        """Stop a generation; see `Executor.stop`."""
        entries, key = self._registry.entries, (job, generation)
        async with self._registry.job_lock(job):
            entry = entries.get(key)
            if grace is None:
                grace = entry.grace if entry is not None else 0.0
            with self._raising_executor_errors():
                receipt = await asyncio.to_thread(self._store.stop, command, *key, max(0.0, grace))
            if receipt not in {Receipt.ACCEPTED, Receipt.DUPLICATE}:
                return receipt
            if entry is None:
                entry = self._make(*key, self._store.generation(*key))
                if await asyncio.to_thread(entry.is_live):  # stopped before its start, so refused
                    entries[key] = entry
            entry.stop_ordered = True
            entry.end_reported = False  # report the end again, with this command's number
            await self._poll(entry)
            return receipt

    async def _poll(self, entry: GenerationT) -> None:
        """Read a generation's state and emit its new reports."""
        async with entry.refreshing:  # concurrent polls could report progress after the end
            await asyncio.to_thread(entry.read)
            progress = await entry.poll_progress_async()
            reports = entry.pop_reports()
            if progress is not None:  # the last progress precedes the end
                has_end = bool(reports) and not isinstance(reports[-1], Started)
                reports.insert(len(reports) - has_end, progress)
            self._registry.emit(reports)

    async def progress(self) -> Sequence[Progressed]:
        """Poll progress files; see `PollsProgress`.

        If this is cancelled, the poll continues, and `watch` yields its result.
        """
        if self._running_poll is not None and not self._running_poll.done():
            return []
        poll = self._running_poll = self._background.start(self._poll_progress())
        try:
            return await asyncio.shield(poll)
        except asyncio.CancelledError:
            poll.add_done_callback(self._emit_late)
            raise

    async def _poll_progress(self) -> list[Progressed]:
        raise NotImplementedError

    def _emit_late(self, poll: asyncio.Task[list[Progressed]]) -> None:
        if not poll.cancelled() and poll.exception() is None:
            self._registry.emit(poll.result())

    # ------------------------------------------------------------------ files of jobs

    async def unpack(self, spec: GenerationSpec) -> UnpackFailure | None:
        """Unpack a job's files before its start; see `UnpacksFiles`."""
        async with self._registry.job_lock(spec.job):
            with self._raising_executor_errors():
                return (await self._check_and_unpack(spec))[1]

    async def _check_and_unpack(self, spec: GenerationSpec) -> tuple[Receipt, UnpackFailure | None]:
        """Return a start's receipt; unpack the job's files first if it is accepted."""
        receipt = await asyncio.to_thread(self._store.check_start, spec)
        if receipt is not Receipt.ACCEPTED or not spec.archive:
            return receipt, None
        directory = self._job_directory(spec)
        # Recorded even if the files exist: without a record, they would stay until the job's purge.
        await asyncio.to_thread(self._unpacked.add, spec.job, spec.archive, directory / "work")
        # Not in the threads that unpack, because other jobs may occupy them for minutes.
        if await asyncio.to_thread(is_filled, directory / "work", spec.archive):
            return receipt, None
        loop = asyncio.get_running_loop()
        return receipt, await loop.run_in_executor(_UNPACKING, self._unpack, spec, directory)

    def _unpack(self, spec: GenerationSpec, directory: Path) -> UnpackFailure | None:
        try:
            owner = self._make_job_directory(spec, directory)
        except PlacementError as error:
            return UnpackFailure(str(error), lasting=False)
        except OSError as error:
            return UnpackFailure(f"{error.filename}: {error.strerror}", lasting=False)
        return unpack_files(spec.archive, directory / "work", owner)

    def unpacked(self) -> Collection[str]:
        """Return the jobs with unpacked files; see `UnpacksFiles`."""
        return self._unpacked.jobs()

    async def release(self, job: str) -> None:
        """Delete the files that a closed job didn't change; see `UnpacksFiles`."""
        async with self._registry.job_lock(job):
            if any(entry.job == job for entry in self._registry.unended):
                return
            with self._raising_executor_errors():
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(_UNPACKING, self._unpacked.clean, job)

    # ------------------------------------------------------------------ retention and queries

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Acknowledge a recorded end; see `Executor.acknowledge_end`."""
        async with self._registry.job_lock(job):
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(self._store.acknowledge_end, job, generation):
                    self._registry.entries.pop((job, generation), None)

    async def delete_job_data(self, job: str) -> None:
        """Remove the files of a finished job."""
        async with self._registry.job_lock(job):
            with self._raising_executor_errors():
                if await asyncio.to_thread(self._store.delete_job_data, job):
                    await asyncio.to_thread(self._unpacked.remove, job)
                    self._registry.remove_job(job)
                    await asyncio.to_thread(self._remove_job_files, job)

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        max_bytes: int = 65_536,
    ) -> LogChunk:
        """Return a chunk of a process's log; see `Executor.logs`."""
        numbers = await asyncio.to_thread(self._store.generations, job)
        if generation is None:
            with_logs = (number for number in numbers if self._has_logs(job, number))
            generation = max(with_logs, default=0)
        if generation not in numbers:
            raise KeyError(f"{process} of generation {generation}")
        return await self._read_log(job, generation, process, start, max_bytes)

    def _has_logs(self, job: str, number: int) -> bool:
        return bool(logs.names(self._store.generation(job, number).logs))

    async def _read_log(
        self, job: str, number: int, process: str, start: int | None, max_bytes: int
    ) -> LogChunk:

        def read() -> LogChunk:
            generation = self._store.generation(job, number)
            complete = generation.state()["phase"] in TERMINAL_PHASES
            return read_chunk(generation.logs, number, process, start, max_bytes, complete=complete)

        return await asyncio.to_thread(read)

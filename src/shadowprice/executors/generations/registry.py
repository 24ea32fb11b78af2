"""Generations whose end isn't acknowledged, their reports, and base classes of executors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from shadowprice.core.errors import InputError
from shadowprice.core.job_keys import key_digest
from shadowprice.core.program import DEFAULT_GRACE_SECONDS
from shadowprice.core.wording import escape_controls
from shadowprice.executors.background import BackgroundTasks
from shadowprice.executors.contract import (
    Ended,
    Ending,
    ExecutorError,
    ExecutorOptions,
    GenerationPhase,
    GenerationSpec,
    GenerationStatus,
    InvalidProgress,
    LogChunk,
    ObservedJob,
    PartlyEnded,
    Progressed,
    Receipt,
    Report,
    ServerAllocation,
    ServerGone,
    ServerInfo,
    ServerSeen,
    Started,
    StartRefused,
    UnpackFailure,
)
from shadowprice.executors.generations import logs
from shadowprice.executors.generations.disk import FileLock, make_private, read_untrusted
from shadowprice.executors.generations.generation import TERMINAL_PHASES, GenerationDirectory, Phase
from shadowprice.executors.generations.outcome import ProcessExit, is_outcome_final
from shadowprice.executors.generations.store import (
    GenerationStore,
    UnpackedJobs,
    is_filled,
    unpack_files,
)
from shadowprice.executors.processes import PlacementError
from shadowprice.executors.progress import (
    decode_report,
    describe_omitted,
    format_report_error,
    read_progress,
    same_kind,
)

_MAX_PROGRESS_BYTES: Final = 65_536

UNEVEN_END_SECONDS: Final = 3.0  # from the first worker's end until `PartlyEnded` is reported

_RESOURCE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Errors of the machine, and not of the job; the file is read again later."""

MAX_CHUNK_BYTES: Final = 1 << 20  # maximum bytes of a `LogChunk`
log = logging.getLogger("shadowprice.executors")
_UNPACKING: Final = ThreadPoolExecutor(2, "unpacking")  # unpacking must not occupy other threads


class TrackedGeneration:
    """One generation whose end isn't acknowledged."""

    def __init__(self, job: str, number: int, generation: GenerationDirectory) -> None:
        self.job = job
        self.number = number
        self.key = key_digest(job)
        self.generation = generation
        self.state: dict[str, Any] = {"phase": Phase.ACCEPTED, "command": 0, "accepted": 0.0}
        self.placement: tuple[ServerAllocation, ...] = ()
        self.processes: tuple[str, ...] = ()
        self.allocations: list[dict[str, Any]] = []
        self.port = 0  # rendezvous port; 0 if its node chooses one
        self.grace = DEFAULT_GRACE_SECONDS
        self.progress = generation.progress
        self.stop_ordered = False
        self.start_reported = False
        self.end_reported = False
        self.reported_exit_count = 0  # number of exited workers in the last `PartlyEnded`
        self.launched = float("-inf")  # monotonic time when its supervisor was last started
        self.refreshing = asyncio.Lock()
        self._uneven_since: float | None = None  # monotonic, since some workers have ended
        self._stop_command = 0
        self._seen_progress: tuple[int, int, int] | None = None
        self._fault = ""  # error of its last invalid progress report
        self._fault_polls = 0  # number of consecutive polls that found an invalid report
        self._reported_faults: list[str] = []

    @property
    def phase(self) -> str:
        """State according to its directory."""
        return str(self.state["phase"])

    @property
    def is_finished(self) -> bool:
        """Whether it ended or was refused."""
        return self.phase in TERMINAL_PHASES

    def set_plan(self, plan: dict[str, Any]) -> None:
        """Copy the executor's part of a plan; an empty plan changes nothing."""
        if plan:
            self.processes = tuple(process["name"] for process in plan["processes"])
            self.allocations = plan["allocations"]
            self.port = plan["port"]
            self.grace = plan["grace"]
            self.progress = Path(plan.get("progress") or self.generation.progress)

    def read(self) -> None:
        """Read its directory; damaged records give it the phase ``damaged``."""
        try:
            self.state = self.generation.state()
            self._stop_command = self.generation.stop()["command"]
            if not self.allocations and not self.is_finished:
                self.set_plan(self.generation.plan())
        except FileNotFoundError:  # not accepted yet, or already deleted
            return
        except (OSError, ValueError):
            self.state = {**self.state, "phase": Phase.DAMAGED}
        self.stop_ordered = bool(self._stop_command)
        self.placement = tuple(
            ServerAllocation(*share) for share in self.state.get("placement", ())
        )

    def is_live(self) -> bool:
        """Return whether its file in ``live`` exists; see `store`."""
        jobs = self.generation.path.parent.parent.parent
        return (jobs.parent / "live" / f"{self.key}.{self.number}").exists()

    def pop_reports(self) -> list[Report]:
        """Return the reports that weren't emitted yet, and mark them as emitted."""
        reports: list[Report] = []
        started = self._started_report()
        if started is not None and not self.start_reported:
            self.start_reported = True
            reports.append(started)
        # A single poll may have read a half-written file.
        if self._fault_polls > 1 and not same_kind(self._fault, self._reported_faults):
            self._reported_faults.append(self._fault)
            reports.append(InvalidProgress(self.job, self.number, time.time(), self._fault))
        partly = self._partly_ended_report()
        if partly is not None and len(partly.ended) != self.reported_exit_count:
            self.reported_exit_count = len(partly.ended)
            reports.append(partly)
        end = self._end_report()
        if end is not None and not self.end_reported:
            self.end_reported = True
            reports.append(end)
        return reports

    def _started_report(self) -> Started | None:
        # A generation lost during its launch has no start time, but `Started` must precede `Ended`.
        started = self.state.get("started")
        if started is None and self.phase == Phase.ENDED:
            started = self.state.get("at", 0.0)
        if started is None:
            return None
        return Started(self.state["command"], self.job, self.number, started)

    def exits(self) -> dict[str, int]:
        """Return the exit statuses of the processes that have ended, while others run."""
        return dict(self.state.get("exits", ()))

    def _partly_ended_report(self) -> PartlyEnded | None:
        """Return which workers exited 0, if others have not ended some seconds later."""
        exits = self.exits()
        workers = [name for name in self.processes if name.startswith("worker-")]
        ended = tuple(name for name in workers if exits.get(name) == 0)
        running = tuple(name for name in workers if name not in exits)
        if self.phase != Phase.RUNNING or self.stop_ordered or not ended or not running:
            self._uneven_since = None
            return None
        now = time.monotonic()
        if self._uneven_since is None:
            self._uneven_since = now
        if now - self._uneven_since < UNEVEN_END_SECONDS:
            return None
        since = time.time() - (now - self._uneven_since)
        return PartlyEnded(self.job, self.number, since, ended, running)

    def _end_report(self) -> Ended | StartRefused | None:
        ended = float(self.state.get("at", 0.0))
        reason = escape_controls(str(self.state.get("reason", "")))
        if self.phase == Phase.REFUSED:
            command = self.state["command"]
            return StartRefused(command, self.job, self.number, ended, reason)
        if self.phase != Phase.ENDED:
            return None
        return Ended(
            command=self._stop_command,
            job=self.job,
            generation=self.number,
            at=ended,
            ending=Ending(self.state["ending"]),
            code=self.state.get("code"),
            reason=reason,
            tail=tuple(escape_controls(line) for line in self.state.get("tail", ())),
            forced=bool(self.state.get("forced", False)),
            from_outside=bool(self.state.get("outside", False)),
        )

    def to_status(self) -> GenerationStatus:
        """Return the generation's state for `Executor.list`."""
        if self.is_finished:
            phase = GenerationPhase.ENDED
        elif self.stop_ordered:
            phase = GenerationPhase.STOPPING
        else:
            not_running_yet = self.phase in {Phase.ACCEPTED, Phase.LAUNCHING}
            phase = GenerationPhase.STARTING if not_running_yet else GenerationPhase.RUNNING
        return GenerationStatus(
            job=self.job,
            generation=self.number,
            phase=phase,
            placement=self.placement,
            processes=self.processes,
            started=self.state.get("started"),
            end=self._end_report(),
            identity=str(self.state.get("identity", "")),
        )

    def poll_progress(self) -> Progressed | None:
        """Return new progress of the job's file, or None."""
        try:
            content, status = read_untrusted(self.progress, _MAX_PROGRESS_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _RESOURCE_ERRORS:
                reason = (
                    "its progress file can't be read: it is a link, or its permissions forbid it"
                )
                self._record_read_error(reason)
            return None
        except ValueError:
            self._record_read_error("its progress file is not a regular file")
            return None
        # Not only the time: within one clock tick, a file may be read half-written and then grow.
        version = (status.st_mtime_ns, status.st_ino, status.st_size)
        if version == self._seen_progress:
            self.on_unchanged_progress()
            return None
        self._seen_progress = version
        return self.parse_progress(content, status.st_mtime)

    async def poll_progress_async(self) -> Progressed | None:
        """Run `poll_progress` in a thread."""
        return await asyncio.to_thread(self.poll_progress)

    def parse_progress(self, content: bytes, at: float) -> Progressed | None:
        """Parse a progress file's content; record the error of an invalid report or part.

        A file that is too long only needs one byte more than allowed in ``content``. ``at`` is the
        file's modification time. A job can set it to any moment, so it is clamped to the time
        between the start and now. Returns None if the report is invalid or from another generation.
        """
        at = min(max(at, float(self.state.get("started") or 0.0)), time.time())
        if len(content) > _MAX_PROGRESS_BYTES:
            self._record_read_error(f"its progress file exceeds {_MAX_PROGRESS_BYTES:,} bytes")
            return None
        try:
            report, omitted = read_progress(self.job, decode_report(content), at)
        except InputError as error:
            self._record_read_error(str(error))
        except (ValueError, RecursionError):
            self._record_read_error('its progress file is not JSON; write {"generation": 1, ...}')
        else:
            if omitted:
                self._record_read_error(describe_omitted(omitted))
            else:
                self._fault_polls = 0
            return report if report.generation == self.number else None
        return None

    def on_unchanged_progress(self) -> None:
        """Count another poll of the same file if its report is invalid."""
        self._fault_polls += bool(self._fault_polls)

    def _record_read_error(self, error: str) -> None:
        self._fault = format_report_error(error)
        self._fault_polls += 1


class RemoteGeneration(TrackedGeneration):
    """A generation on several machines, driven by a background task of the executor."""

    def __init__(self, job: str, number: int, generation: GenerationDirectory) -> None:
        super().__init__(job, number, generation)
        self.workers = 0
        self.tolerant = False
        self.parts: dict[str, Any] = {}  # processes by name; ``end`` is a `ProcessExit` or None
        self.changed = asyncio.Event()
        self.driving: asyncio.Task[None] | None = None

    @property
    def task_description(self) -> str:
        """Description of the `driving` task, for people."""
        return f"running generation {self.number} of {self.job!r}"

    def set_plan(self, plan: dict[str, Any]) -> None:
        """Copy the executor's part of a plan; an empty plan changes nothing."""
        super().set_plan(plan)
        if plan:
            self.tolerant = bool(plan["tolerates_workers"])
            self.workers = sum(name.startswith("worker-") for name in self.processes)

    def process_exits(self) -> list[ProcessExit]:
        """Return the exits of the processes that have ended."""
        return [part.end for part in self.parts.values() if part.end is not None]

    def exits(self) -> dict[str, int]:
        """Return the exit statuses of the processes that have ended, while others run."""
        return {end.name: end.code for end in self.process_exits()}

    @property
    def is_outcome_final(self) -> bool:
        """Whether the running processes can't change its result."""
        return is_outcome_final(self.process_exits(), self.workers, tolerant=self.tolerant)


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


GenerationT = TypeVar("GenerationT", bound=TrackedGeneration)


class GenerationRegistry(Generic[GenerationT]):
    """Registry of generations by job and number, with job locks and a report queue."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], GenerationT] = {}
        # Holders and waiters keep a lock alive. Deleting unlocked locks would be wrong: a released
        # lock that a waiter is about to acquire isn't `locked`.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()

    def job_lock(self, job: str) -> asyncio.Lock:
        """Return the lock that serializes a job's commands."""
        return self._locks.setdefault(job, asyncio.Lock())

    @property
    def unended(self) -> list[GenerationT]:
        """The generations that haven't ended."""
        return [entry for entry in self.entries.values() if not entry.is_finished]

    @property
    def allocations(self) -> list[Mapping[str, Any]]:
        """Processes' demands and servers, of the generations that haven't ended."""
        return [record for entry in self.unended for record in entry.allocations]

    @property
    def in_acceptance_order(self) -> list[GenerationT]:
        """The generations in order of acceptance."""
        return sorted(
            self.entries.values(),
            key=lambda entry: (entry.state.get("accepted", 0.0), entry.number),
        )

    def running_jobs(self) -> list[ObservedJob]:
        """Return the running generations, as `Executor.observe` does."""
        return [
            ObservedJob(entry.job, entry.placement, entry.state.get("started") or 0.0, is_own=True)
            for entry in self.entries.values()
            if entry.phase == Phase.RUNNING
        ]

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

    async def watch(self, first: Callable[[], Iterable[Report]]) -> AsyncIterator[Report]:
        """Yield reports of ``first``, the current state of all generations, then new reports."""
        # The previous consumer's queue is dropped, as starts and ends are emitted again below.
        # Progress is kept, because it is read only once.
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

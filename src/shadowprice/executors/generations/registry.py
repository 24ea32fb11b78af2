"""Generations whose end isn't acknowledged, and their reports."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
)
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from shadowprice.core.errors import InputError
from shadowprice.core.job_keys import key_digest
from shadowprice.core.program import DEFAULT_GRACE_SECONDS
from shadowprice.core.wording import escape_controls
from shadowprice.executors.contract import (
    Ended,
    Ending,
    GenerationPhase,
    GenerationStatus,
    InvalidProgress,
    ObservedJob,
    PartlyEnded,
    Progressed,
    Report,
    ServerAllocation,
    Started,
    StartRefused,
)
from shadowprice.executors.generations.disk import read_untrusted
from shadowprice.executors.generations.generation import TERMINAL_PHASES, GenerationDirectory, Phase
from shadowprice.executors.generations.outcome import ProcessExit, is_outcome_final
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

log = logging.getLogger("shadowprice.executors")


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

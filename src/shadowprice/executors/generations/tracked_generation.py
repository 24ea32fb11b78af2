"""An executor's in-memory record of a generation: its directory's state and its reports."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from pathlib import Path
from typing import Any, Final

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
    PartlyEnded,
    Progressed,
    Report,
    ServerAllocation,
    Started,
    StartRefused,
)
from shadowprice.executors.generations.generation import (
    ACCEPTED,
    DAMAGED,
    ENDED,
    LAUNCHING,
    REFUSED,
    RUNNING,
    TERMINAL_PHASES,
    GenerationDirectory,
)
from shadowprice.executors.progress import (
    decode_report,
    describe_omitted,
    format_report_error,
    read_progress,
    same_kind,
)

_MAX_PROGRESS_BYTES: Final = 65_536

UNEVEN_END_SECONDS: Final = 3.0  # seconds that workers may end after the first one without a report

_RESOURCE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors caused by the service's own resource limits; the file is read again later."""


class TrackedGeneration:
    """One generation that isn't forgotten.

    ``generation`` is its directory.
    """

    def __init__(self, job: str, number: int, generation: GenerationDirectory) -> None:
        self.job = job
        self.number = number
        self.key = key_digest(job)
        self.generation = generation
        self.state: dict[str, Any] = {"phase": ACCEPTED, "command": 0, "accepted": 0.0}
        self.placement: tuple[ServerAllocation, ...] = ()
        self.processes: tuple[str, ...] = ()
        self.allocations: list[dict[str, Any]] = []
        self.port = 0
        self.grace = DEFAULT_GRACE_SECONDS
        self.progress = generation.progress
        self.stop_ordered = False
        self.start_reported = False
        self.end_reported = False
        self.reported_exit_count = 0
        """Number of workers in the last report of those that exited."""
        self.launched = float("-inf")
        self.refreshing = asyncio.Lock()
        self._uneven_since: float | None = None
        """Monotonic time since which some workers have ended, and others haven't."""
        self._stop_command = 0
        self._seen_progress: tuple[int, int, int] | None = None
        self._fault = ""
        """Problem of its last progress report; empty if valid."""
        self._faults = 0
        """Number of consecutive polls that found an invalid report."""
        self._reported_faults: list[str] = []

    @property
    def phase(self) -> str:
        """State according to its directory."""
        return str(self.state["phase"])

    @property
    def is_finished(self) -> bool:
        """Whether it ended or was refused."""
        return self.phase in TERMINAL_PHASES

    @property
    def accepted(self) -> tuple[float, int]:
        """Sort key for the order of acceptance."""
        return float(self.state.get("accepted", 0.0)), self.number

    def set_plan(self, plan: dict[str, Any]) -> None:
        """Copy the executor's part of a plan; an empty plan changes nothing."""
        if plan:
            self.processes = tuple(process["name"] for process in plan["processes"])
            self.allocations = plan["allocations"]
            self.port = plan["port"]
            self.grace = plan["grace"]
            self.progress = Path(plan.get("progress") or self.generation.progress)

    def read(self) -> None:
        """Read its directory."""
        try:
            self.state = self.generation.state()
            self._stop_command = self.generation.stop()["command"]
            if not self.allocations and not self.is_finished:
                self.set_plan(self.generation.plan())
        except FileNotFoundError:  # not accepted yet, or already removed
            return
        except (OSError, ValueError):
            self.state = {**self.state, "phase": DAMAGED}
        self.stop_ordered = bool(self._stop_command)
        self.placement = tuple(
            ServerAllocation(*share) for share in self.state.get("placement", ())
        )

    def is_live(self) -> bool:
        """Return whether it isn't forgotten."""
        jobs = self.generation.path.parent.parent.parent
        return (jobs.parent / "live" / f"{self.key}.{self.number}").exists()

    def pop_reports(self) -> list[Report]:
        """Return the reports that weren't emitted yet, and mark them as emitted."""
        reports: list[Report] = []
        started = self._started()
        if started is not None and not self.start_reported:
            self.start_reported = True
            reports.append(started)
        # A single poll may have read a half-written file.
        if self._faults > 1 and not same_kind(self._fault, self._reported_faults):
            self._reported_faults.append(self._fault)
            reports.append(InvalidProgress(self.job, self.number, time.time(), self._fault))
        partly = self._partly_ended()
        if partly is not None and len(partly.ended) != self.reported_exit_count:
            self.reported_exit_count = len(partly.ended)
            reports.append(partly)
        end = self._end()
        if end is not None and not self.end_reported:
            self.end_reported = True
            reports.append(end)
        return reports

    def _started(self) -> Started | None:
        # A generation lost during its launch has no start time, but needs a `Started` first.
        started = self.state.get("started")
        if started is None and self.phase == ENDED:
            started = self.state.get("at", 0.0)
        if started is None:
            return None
        return Started(self.state["command"], self.job, self.number, started)

    def exits(self) -> dict[str, int]:
        """Return the exit statuses of the processes that have ended, while others run."""
        return dict(self.state.get("exits", ()))

    def _partly_ended(self) -> PartlyEnded | None:
        """Return which workers exited 0, if others have not ended some seconds later."""
        exits = self.exits()
        workers = [name for name in self.processes if name.startswith("worker-")]
        ended = tuple(name for name in workers if exits.get(name) == 0)
        running = tuple(name for name in workers if name not in exits)
        if self.phase != RUNNING or self.stop_ordered or not ended or not running:
            self._uneven_since = None
            return None
        now = time.monotonic()
        if self._uneven_since is None:
            self._uneven_since = now
        if now - self._uneven_since < UNEVEN_END_SECONDS:
            return None
        since = time.time() - (now - self._uneven_since)
        return PartlyEnded(self.job, self.number, since, ended, running)

    def _end(self) -> Ended | StartRefused | None:
        ended = float(self.state.get("at", 0.0))
        reason = escape_controls(str(self.state.get("reason", "")))
        if self.phase == REFUSED:
            command = self.state["command"]
            return StartRefused(command, self.job, self.number, ended, reason)
        if self.phase != ENDED:
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
            not_running_yet = self.phase in {ACCEPTED, LAUNCHING}
            phase = GenerationPhase.STARTING if not_running_yet else GenerationPhase.RUNNING
        return GenerationStatus(
            job=self.job,
            generation=self.number,
            phase=phase,
            placement=self.placement,
            processes=self.processes,
            started=self.state.get("started"),
            end=self._end(),
            identity=str(self.state.get("identity", "")),
        )

    def poll_progress(self) -> Progressed | None:
        """Return progress that is new in the job's file since the last poll, or None.

        The job controls the path: it may be a link, a pipe, or a huge file.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.progress, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _RESOURCE_ERRORS:
                reason = (
                    "its progress file can't be read: it is a link, or its permissions forbid it"
                )
                self._record_read_error(reason)
            return None
        try:
            status = os.fstat(descriptor)
            # A file that is written in place can be read in between, within one tick of its clock.
            version = (status.st_mtime_ns, status.st_ino, status.st_size)
            if not stat.S_ISREG(status.st_mode):
                self._record_read_error("its progress file is not a regular file")
                return None
            if version == self._seen_progress:
                self.on_unchanged_progress()
                return None
            self._seen_progress = version
            content = os.read(descriptor, _MAX_PROGRESS_BYTES + 1)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return self.parse_progress(content, status.st_mtime)

    async def poll_progress_async(self) -> Progressed | None:
        """Run `poll_progress` in a thread."""
        return await asyncio.to_thread(self.poll_progress)

    def parse_progress(self, content: bytes, at: float) -> Progressed | None:
        """Parse a progress file's content; record an invalid report or part of a report.

        Of a file that is too long, one byte too many is enough. ``at`` is the file's modification
        time, which the job can set to any moment. So it counts at most as now, and at least as the
        start. Returns None if the report is invalid or from another generation.
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
                self._faults = 0
            return report if report.generation == self.number else None
        return None

    def on_unchanged_progress(self) -> None:
        """Count another poll that found the same invalid report."""
        self._faults += bool(self._faults)

    def _record_read_error(self, why: str) -> None:
        self._fault = format_report_error(why)
        self._faults += 1


class RemoteGeneration(TrackedGeneration):
    """A generation whose processes run separately, driven by a background task."""

    def __init__(self, job: str, number: int, generation: GenerationDirectory) -> None:
        super().__init__(job, number, generation)
        self.workers = 0
        self.tolerant = False
        self.changed = asyncio.Event()
        self.driving: asyncio.Task[None] | None = None

    @property
    def task_description(self) -> str:
        """Description of the `driving` task, for people."""
        return f"carrying generation {self.number} of {self.job!r} on"

    def set_plan(self, plan: dict[str, Any]) -> None:
        """Copy the executor's part of a plan; an empty plan changes nothing."""
        super().set_plan(plan)
        if plan:
            self.tolerant = bool(plan["tolerates_workers"])
            self.workers = sum(name.startswith("worker-") for name in self.processes)

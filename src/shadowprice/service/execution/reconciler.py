"""Reconciler: compares desired with actual generations, and derives commands. No I/O.

It is level-triggered: after a lost command or report, the next comparison yields the missing step.
Times are monotonic, in nanoseconds, so that a step of the wall clock doesn't delay a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from shadowprice.core.events import Resize, Start, Stop
from shadowprice.executors.contract import (
    UNCOMMANDED_STOP,
    Ended,
    Ending,
    GenerationPhase,
    GenerationStatus,
    InvalidProgress,
    PartlyEnded,
    Progressed,
    Report,
    Started,
    StartRefused,
)
from shadowprice.service.clock import SECOND

LaunchCommand = Start | Resize
ExecutionCommand = Start | Resize | Stop

INITIAL_BACKOFF_NS: Final = 5 * SECOND  # of a failed job's restart; doubled by each failure
MAX_BACKOFF_NS: Final = 600 * SECOND
MAX_DOUBLINGS: Final = 30  # more than `MAX_BACKOFF_NS` needs, and small enough for a shift
STOP_OVERDUE_NS: Final = 120 * SECOND  # most grace periods are shorter


@dataclass(frozen=True, slots=True)
class StopAction:
    """Action: stop a generation, for example because it is superseded or an orphan."""

    command: int  # number of the job's newest open command; `UNCOMMANDED_STOP` without one
    job: str
    generation: int


@dataclass(slots=True)
class Reconciler:
    """Actual state of the executor, which it compares with the desired state.

    ``phases`` has the phase of each generation, by job and number. An entry is added by a start or
    by the executor's list, and removed when the generation's end is recorded in the store.

    A generation without a command in the store is an orphan. The reconciler stops it, ignores its
    reports, doesn't reuse its number, and starts nothing on its servers until it ends.
    """

    phases: dict[str, dict[int, GenerationPhase]] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    _newest_failed: dict[str, int] = field(default_factory=dict)
    """Newest generation of each job that counts in `_failures`, because reports can repeat."""
    _not_before: dict[str, int] = field(default_factory=dict)  # earliest restart of failed jobs
    _stopping: dict[tuple[str, int], int] = field(default_factory=dict)
    """When the executor accepted to stop each generation that hasn't ended, in nanoseconds."""
    _orphans: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """Servers of each orphan; kept after its end, because its reports can repeat."""

    def set_actual_state(
        self, generations: Collection[GenerationStatus], orphans: Collection[GenerationStatus] = ()
    ) -> None:
        """Replace the actual state by the executor's list, and add its orphans."""
        self.phases = {}
        self._stopping.clear()
        for item in generations:
            self.phases.setdefault(item.job, {})[item.generation] = item.phase
        for item in orphans:
            servers = frozenset(share.server for share in item.placement)
            self._orphans[item.job, item.generation] = servers

    def mark_number_used(self, job: str, generation: int) -> None:
        """Mark a generation number as used by an orphan that the executor no longer holds."""
        self._orphans.setdefault((job, generation), frozenset())

    def is_orphan(self, job: str, generation: int) -> bool:
        """Return whether a generation is an orphan."""
        return (job, generation) in self._orphans

    def is_orphan_report(self, report: Report) -> bool:
        """Return whether a report is about an orphan, and so is ignored.

        A refused start is recorded even so: it makes the engine use the next number.
        """
        return isinstance(
            report, Started | Ended | Progressed | InvalidProgress | PartlyEnded
        ) and self.is_orphan(report.job, report.generation)

    def mark_starting(self, job: str, generation: int) -> None:
        """Record that a start is being sent to the executor."""
        self.phases.setdefault(job, {}).setdefault(generation, GenerationPhase.STARTING)

    def on_stop_accepted(self, job: str, generation: int, now: int) -> None:
        """Record when the executor accepted to stop a generation."""
        self._stopping[job, generation] = now

    def overdue_stops(self, now: int) -> dict[tuple[str, int], int]:
        """Return the generations that should have ended by now, with the times of their stops."""
        return {
            key: since for key, since in self._stopping.items() if now - since >= STOP_OVERDUE_NS
        }

    def record_report(self, report: Report, now: int) -> None:
        """Apply a report to the actual state; a failure delays the job's restart."""
        if isinstance(report, Started):
            phases = self.phases.setdefault(report.job, {})
            if phases.get(report.generation) is not GenerationPhase.ENDED:
                phases[report.generation] = GenerationPhase.RUNNING
        elif isinstance(report, Ended | StartRefused):
            self.phases.setdefault(report.job, {})[report.generation] = GenerationPhase.ENDED
            self._stopping.pop((report.job, report.generation), None)
            if self.is_orphan(report.job, report.generation):
                return  # the job itself didn't fail
            if (
                isinstance(report, StartRefused)
                or report.from_outside
                or report.ending in {Ending.FAILED, Ending.LOST}
            ):
                if report.generation > self._newest_failed.get(report.job, 0):
                    self._newest_failed[report.job] = report.generation
                    self.delay_restart(report.job, now)
            else:
                self._failures.pop(report.job, None)

    def delay_restart(self, job: str, now: int) -> None:
        """Delay a job's restart, with exponential backoff."""
        failures = self._failures[job] = self._failures.get(job, 0) + 1
        wait = min(MAX_BACKOFF_NS, INITIAL_BACKOFF_NS << min(failures - 1, MAX_DOUBLINGS))
        self._not_before[job] = now + wait

    def on_end_recorded(self, job: str, generation: int, *, is_open: bool) -> None:
        """Remove a generation whose end was recorded; ``is_open`` is whether its job is open."""
        phases = self.phases.get(job, {})
        if phases.get(generation) is GenerationPhase.ENDED:
            del phases[generation]
        if not phases:
            self.phases.pop(job, None)
        if not is_open:  # the end was reported after the job was closed, and counted as a failure
            self.on_job_closed(job)

    def on_job_closed(self, job: str) -> None:
        """Forget the failures of a closed job."""
        self._failures.pop(job, None)
        self._newest_failed.pop(job, None)
        self._not_before.pop(job, None)

    def completed_commands(
        self, desired: Mapping[str, LaunchCommand], unacknowledged: Mapping[int, ExecutionCommand]
    ) -> list[int]:
        """Return the numbers of the commands that are completed or superseded.

        A stop or resize completes when the old generation has ended, and a start when its
        generation runs.
        """
        return [
            number
            for number, command in unacknowledged.items()
            if self._is_completed(command, desired.get(command.job))
        ]

    def _is_completed(self, command: ExecutionCommand, wanted: LaunchCommand | None) -> bool:
        phases = self.phases.get(command.job, {})
        if isinstance(command, Stop):
            return all(
                phase is GenerationPhase.ENDED for number, phase in phases.items()
                if number <= command.generation
            )  # fmt: skip
        older_ended = all(
            phase is GenerationPhase.ENDED
            for number, phase in phases.items()
            if number < command.generation
        )
        if isinstance(command, Resize):
            return older_ended
        is_orphan = self.is_orphan(command.job, command.generation)
        phase = None if is_orphan else phases.get(command.generation)
        if phase in {GenerationPhase.RUNNING, GenerationPhase.STOPPING, GenerationPhase.ENDED}:
            return True
        superseded = wanted is None or wanted.generation > command.generation
        return superseded and phase is None

    def actions(
        self,
        desired: Mapping[str, LaunchCommand],
        unacknowledged: Mapping[int, ExecutionCommand],
        now: int,
    ) -> list[LaunchCommand | StopAction]:
        """Return the starts and stops that lead to the desired state."""
        actions: list[LaunchCommand | StopAction] = []
        newest_command = {command.job: number for number, command in unacknowledged.items()}
        for job, phases in self.phases.items():
            wanted = desired.get(job)
            for generation, phase in phases.items():
                if phase is GenerationPhase.ENDED or (job, generation) in self._stopping:
                    continue
                is_orphan = self.is_orphan(job, generation)
                if wanted is not None and wanted.generation == generation and not is_orphan:
                    continue
                number = (
                    UNCOMMANDED_STOP if is_orphan else newest_command.get(job, UNCOMMANDED_STOP)
                )
                actions.append(StopAction(number, job, generation))
        occupied = self._servers_of_orphans()
        for job, command in desired.items():
            # A job starts only after its previous end is recorded: an exit 0 may complete the job.
            if self.phases.get(job) or now < self._not_before.get(job, 0):
                continue
            if any(number in unacknowledged for number in command.after):
                continue
            if not occupied.isdisjoint(command.servers):
                continue
            actions.append(command)
        return actions

    def _servers_of_orphans(self) -> frozenset[str]:
        """Return the servers of running orphans, whose use the engine doesn't know."""
        occupied = [
            servers
            for (job, generation), servers in self._orphans.items()
            if self.phases.get(job, {}).get(generation, GenerationPhase.ENDED)
            is not GenerationPhase.ENDED
        ]
        return frozenset().union(*occupied)

    def next_retry_at(self, desired: Mapping[str, LaunchCommand], now: int) -> int | None:
        """Return the earliest end of a restart delay after ``now``; None if no job waits."""
        times = [time for job, time in self._not_before.items() if job in desired and time > now]
        return min(times, default=None)

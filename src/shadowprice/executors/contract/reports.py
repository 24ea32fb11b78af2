"""Reports of an executor: results of commands, progress, and discovered servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shadowprice.executors.contract.servers import ServerGone, ServerSeen


class Ending(StrEnum):
    """How a generation ended."""

    DONE = "done"
    """Every worker exited 0. If workers are tolerated: all ended, and at least one exited 0."""
    STOPPED = "stopped"
    """It was stopped: it exited 143, died of SIGTERM, or was killed after the grace period."""
    FAILED = "failed"
    """A process failed. If workers are tolerated: a parameter server, or every worker, failed."""
    LOST = "lost"
    """An external cause ended it: its server, machine or agent was lost. The job isn't at fault."""


@dataclass(frozen=True, slots=True)
class Started:
    """Report that every process of a generation runs.

    ``command`` is the command that started it, ``at`` is in seconds since 1970.
    """

    command: int
    job: str
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class StartRefused:
    """Report that a generation was refused and never starts: a server is missing or not free.

    ``command`` and ``at`` are as in `Started`. ``reason`` is for people. ``lasting`` says that the
    cause is the job itself, such as missing files, so that other starts fail too.
    """

    command: int
    job: str
    generation: int
    at: float
    reason: str
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """Report that a generation has ended and none of its processes run.

    Parameters
    ----------
    command : int
        The newest stop command; 0 if there was none.
    at : float
        Seconds since 1970.
    code : int or None
        Exit status of the deciding process, 128 + n for death by signal n; None if unknown.
    reason : str
        Description of the end, for people.
    tail : tuple of str
        Last lines of the deciding process's log, printable.
    forced : bool
        Whether processes were killed after the grace period.
    """

    command: int
    job: str
    generation: int
    at: float
    ending: Ending
    code: int | None
    reason: str
    tail: tuple[str, ...] = ()
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Progressed:
    """Progress that a generation reports.

    Parameters
    ----------
    progress : int
        Total since the start of the job's first generation, in millionths of a mini-batch.
    metrics : mapping of str to float
        Losses, accuracies, rates and other metrics of the job.
    at : float
        Time of the report, seconds since 1970.
    checkpoints : bool
        Whether the process says that it resumes from checkpoints.
    """

    job: str
    generation: int
    progress: int
    metrics: Mapping[str, float]
    at: float
    checkpoints: bool = False


@dataclass(frozen=True, slots=True)
class InvalidProgress:
    """Report that a generation's progress report is malformed; emitted once per generation.

    ``at`` is in seconds since 1970. ``reason`` is a diagnostic with a hint.
    """

    job: str
    generation: int
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class PartlyEnded:
    """Report that workers of a running generation exited 0, while others have not ended.

    It is emitted if that lasts for some seconds, and again when more workers have exited. ``at`` is
    in seconds since 1970. ``ended`` and ``running`` are names of workers.
    """

    job: str
    generation: int
    at: float
    ended: tuple[str, ...]
    running: tuple[str, ...]


Report = (
    Started
    | StartRefused
    | Ended
    | Progressed
    | InvalidProgress
    | PartlyEnded
    | ServerSeen
    | ServerGone
)

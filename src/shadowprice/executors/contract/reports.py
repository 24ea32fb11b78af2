"""Reports of an executor: results of commands, progress, and discovered servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

ROLE_LABEL: Final = "shadowprice.io/role"  # label with a server's role: worker, ps or any


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
    """Report that the processes of a generation were started.

    It also precedes the `Ended` of one that failed or was lost while they were being started.
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

    ``code`` and ``tail`` (last lines of its log) are those of the process that decided the end. If
    ``from_outside``, a signal asked it to end before it ended, and no stop command did: then
    ``done`` only completes a job whose work is done.
    """

    command: int  # the newest stop command; 0 if there was none
    job: str
    generation: int
    at: float  # seconds since 1970
    ending: Ending
    code: int | None  # exit status, 128 + n for death by signal n; None if unknown
    reason: str  # for people
    tail: tuple[str, ...] = ()
    forced: bool = False  # whether processes were killed after the grace period
    from_outside: bool = False  # whether something other than a command asked it to end


@dataclass(frozen=True, slots=True)
class Progressed:
    """Progress that a generation reports."""

    job: str
    generation: int
    progress: int  # total since the job's first generation began, in millionths of a mini-batch
    metrics: Mapping[str, float]
    at: float  # seconds since 1970
    checkpoints: bool = False  # whether the process resumes from checkpoints, by its own account


@dataclass(frozen=True, slots=True)
class InvalidProgress:
    """Report that a generation's progress report is malformed; once for each kind of problem.

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
    when the first exit was seen, in seconds since 1970. ``ended`` and ``running`` are names of
    workers.
    """

    job: str
    generation: int
    at: float
    ended: tuple[str, ...]
    running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's name in the cluster, its capacity and its labels.

    ``capacity`` is by resource, in the units of `core.amounts`. If ``takes_work`` is false, nothing
    new may be placed on the server. Running processes continue, or have to leave if ``evicts``.
    """

    name: str
    capacity: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    takes_work: bool = True
    evicts: bool = False


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A server is new or changed; only from executors that discover servers."""

    server: ServerInfo
    at: float


@dataclass(frozen=True, slots=True)
class ServerGone:
    """A server is lost; its generations are reported `Ended` as lost."""

    server: str
    at: float
    reason: str = ""


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

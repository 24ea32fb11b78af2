"""Results of an executor's queries: generations, log chunks and observed jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shadowprice.executors.contract.commands import ServerAllocation
from shadowprice.executors.contract.reports import Ended, StartRefused


class GenerationPhase(StrEnum):
    """State of a generation from its start command until it is forgotten."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class GenerationStatus:
    """A generation that the executor hasn't forgotten, as returned by `list`.

    ``processes`` are the names that `logs` accepts, such as ``worker-0`` and ``ps-1``. ``started``
    is in seconds since 1970. ``end`` is set once the generation has ended or was refused.
    ``identity`` is that of its start command, or empty.
    """

    job: str
    generation: int
    phase: GenerationPhase
    placement: tuple[ServerAllocation, ...]
    processes: tuple[str, ...]
    started: float | None = None
    end: Ended | StartRefused | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A generation that the executor can't start or end now, although it tries to.

    ``servers`` are those whose capacity it occupies meanwhile. ``reason`` is for people.
    """

    job: str
    generation: int
    servers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A chunk of one process's log, with standard output and error interleaved.

    ``start`` and ``end`` are byte offsets in everything that the process wrote, including bytes
    already rotated away. Invalid UTF-8 is replaced in ``text``.
    """

    generation: int
    process: str
    start: int
    end: int
    text: str
    complete: bool  # whether the process has ended and wrote nothing after `end`


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job that runs or ran on the cluster, started by any scheduler; for observer mode.

    Times are in seconds since 1970. A job that is no longer returned has ended too.
    """

    job: str  # its name; its key if `is_own`
    placement: tuple[ServerAllocation, ...]  # server names as far as known
    since: float
    tenant: str | None = None
    ended: float | None = None  # None if it runs or the time is unknown
    done: bool | None = None  # whether it succeeded; None if unknown
    is_own: bool = False  # whether this executor started it

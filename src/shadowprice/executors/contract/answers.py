"""Results of an executor's queries: generations, log chunks and observed jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shadowprice.executors.contract.orders import ServerAllocation
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

    Parameters
    ----------
    start, end : int
        Byte offsets in everything that the process wrote, including bytes already rotated away.
    text : str
        The decoded bytes; invalid UTF-8 is replaced.
    complete : bool
        Whether the process has ended and wrote nothing after ``end``.
    """

    generation: int
    process: str
    start: int
    end: int
    text: str
    complete: bool


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job that runs or ran on the cluster, started by any scheduler; for observer mode.

    Parameters
    ----------
    job : str
        Name of the job; its key if ``is_own``.
    placement : tuple of Share
        Servers by their names in the cluster, as far as these are known.
    since : float
        Start, seconds since 1970.
    ended : float or None
        End, seconds since 1970, if known. A job that is no longer returned has ended too.
    done : bool or None
        Whether the job succeeded; None if that is unknown.
    is_own : bool
        Whether this executor started the job.
    """

    job: str
    placement: tuple[ServerAllocation, ...]
    since: float
    tenant: str | None = None
    ended: float | None = None
    done: bool | None = None
    is_own: bool = False

"""What an executor answers when it is asked: what it holds, what was written, what really runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shadowprice.executors.contract.orders import Share
from shadowprice.executors.contract.reports import Ended, Refused


class Phase(StrEnum):
    """Where a generation is between its order and the moment it is forgotten."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Held:
    """A generation that an executor holds, as `list` tells it.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation.
    phase : Phase
        Where it is.
    placement : tuple of Share
        Where it runs.
    processes : tuple of str
        Names of its processes, as `logs` takes them: ``worker-0``, ``ps-1``.
    started : float or None
        When it started, seconds since 1970.
    end : Ended or Refused or None
        How it ended, until it is forgotten.
    identity : str
        That of the order which asked for it; empty where that said none.
    """

    job: str
    generation: int
    phase: Phase
    placement: tuple[Share, ...]
    processes: tuple[str, ...]
    started: float | None = None
    end: Ended | Refused | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of what one process wrote, standard output and error together.

    Parameters
    ----------
    generation : int
        The generation it is of.
    process : str
        The process.
    start, end : int
        Its place among all bytes that the process wrote; what was rotated away counts.
    text : str
        The piece; bytes that are no UTF-8 are replaced.
    complete : bool
        Whether the process is over and nothing comes after ``end``.
    """

    generation: int
    process: str
    start: int
    end: int
    text: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """A job that really runs, or ran, whoever started it; for services that only look on.

    Parameters
    ----------
    job : str
        Its name.
    placement : tuple of Share
        Where, by the names of the cluster's servers as far as they are known.
    since : float
        When it began, seconds since 1970.
    tenant : str or None
        Its owner.
    ended : float or None
        When it ended, where that is known; what is not told of any more ended as well.
    done : bool or None
        Whether it ended with success; None where nobody can tell.
    """

    job: str
    placement: tuple[Share, ...]
    since: float
    tenant: str | None = None
    ended: float | None = None
    done: bool | None = None

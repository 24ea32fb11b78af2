"""What an executor reports: what became of orders, how far jobs are, which servers there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shadowprice.executors.contract.servers import ServerGone, ServerSeen


class Ending(StrEnum):
    """How a generation ended."""

    DONE = "done"
    """Every worker exited 0; of a program that tolerates workers, all have ended, and one so."""
    STOPPED = "stopped"
    """It was told to stop, and exited 143, died of SIGTERM, or was killed after its grace."""
    FAILED = "failed"
    """A process exited otherwise; of a program that tolerates workers, a server did, or all did."""
    LOST = "lost"
    """It was ended from outside: its server, machine or agent went away. No fault of the job."""


@dataclass(frozen=True, slots=True)
class Started:
    """Acknowledgement: every process of a generation runs.

    Parameters
    ----------
    command : int
        The command that asked for it.
    job : str
        The job.
    generation : int
        The generation.
    at : float
        When, seconds since 1970.
    """

    command: int
    job: str
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A generation was not started, and never will be: its place is not there, or not free.

    Parameters
    ----------
    command, job, generation, at
        As in `Started`.
    reason : str
        Why, for people.
    """

    command: int
    job: str
    generation: int
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Acknowledgement: a generation is over, and nothing of it runs any more.

    Parameters
    ----------
    command : int
        The newest command that told it to stop; 0 where none did.
    job : str
        The job.
    generation : int
        The generation.
    at : float
        When, seconds since 1970.
    ending : Ending
        How.
    code : int or None
        Exit status of the process that decided it, 128 + n for death by signal n; None where
        nobody saw it.
    reason : str
        What happened, for people.
    tail : tuple of str
        Last lines of that process's log, printable.
    forced : bool
        Whether it had to be killed after its grace.
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
    """How far a generation says it is.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation that reports.
    progress : int
        Since the job's very beginning, in millionths of a mini-batch.
    metrics : mapping of str to float
        What it measures: losses, accuracies, rates.
    at : float
        When it was reported, seconds since 1970.
    checkpoints : bool
        Whether the process says that it continues from checkpoints.
    """

    job: str
    generation: int
    progress: int
    metrics: Mapping[str, float]
    at: float
    checkpoints: bool = False


@dataclass(frozen=True, slots=True)
class Misreported:
    """What a generation puts where its progress belongs is no report; told once of each.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation that reports.
    at : float
        When that was seen, seconds since 1970.
    reason : str
        What is wrong with it, and what mends it.
    """

    job: str
    generation: int
    at: float
    reason: str


Report = Started | Refused | Ended | Progressed | Misreported | ServerSeen | ServerGone

"""What a driver tells the engine: what happened outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from shadowprice.core.cluster import Role, Tenant
from shadowprice.core.job import Job


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server is gone: what runs on it has ended, and nothing may be planned on it.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    server : str
        Its name.
    row : int
        Its row, for policies; the engine fills it in.
    """

    tag: ClassVar[str] = "ServerLost"

    slot: int
    server: str
    row: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class ServerBack:
    """A lost or drained server takes work again.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    server : str
        Its name.
    row : int
        Its row, for policies; the engine fills it in.
    """

    tag: ClassVar[str] = "ServerBack"

    slot: int
    server: str
    row: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server is from now on.

    Parameters
    ----------
    role : Role
        What it may carry.
    capacity : mapping of str to int
        Amounts by resource, in the units of `core.amounts`; resources of the cluster only.
    drained : bool
        Whether it is to be emptied: jobs leave it after the running slot, and none comes.
    cost : float or None
        What it costs an hour, where servers have prices; None keeps what it was, 0 of a new one.
    """

    role: Role
    capacity: Mapping[str, int]
    drained: bool = False
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """Servers were added, removed, resized, drained or given another role, or shares changed.

    Or it became known that moving a job costs another time than was believed.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    servers : mapping of str to ServerState or None
        What each named server is from now on; None removes it. Names that are new are added.
    tenants : tuple of Tenant or None
        All tenants with their shares, None where they stay as they are.
    restart_seconds : Fraction or None
        Time that jobs lose whenever they move, where they do not say so themselves: of those that
        are to come. None where it stays.
    restart_first : bool or None
        Whether a job's first start loses it as well; None where it stays.
    """

    tag: ClassVar[str] = "CapacityChanged"

    slot: int
    servers: Mapping[str, ServerState | None] = field(default_factory=dict)
    tenants: tuple[Tenant, ...] | None = None
    restart_seconds: Fraction | None = None
    restart_first: bool | None = None


@dataclass(frozen=True, slots=True)
class TimespanChanged:
    """The end of the timespan was set, moved or removed.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    until : int or None
        First slot in which nothing may run, None where there is no end. It may have passed.
    """

    tag: ClassVar[str] = "TimespanChanged"

    slot: int
    until: int | None


@dataclass(frozen=True, slots=True)
class JobRevised:
    """What is known of a job changed: its rate, its work, its utility, its deadline.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    job : Job
        The job as it is now known, under its old name and arrival. Progress keeps its share of the
        work in mini-batches.
    """

    tag: ClassVar[str] = "JobRevised"

    slot: int
    job: Job


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A generation of a job ended with a failure.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    job : str
        The job.
    generation : int
        The generation that failed; one that is not the newest changes nothing.
    reason : str
        What is known of it.
    retries : int
        Failures that the job is allowed in all; one more closes it.
    """

    tag: ClassVar[str] = "JobFailed"

    slot: int
    job: str
    generation: int
    reason: str
    retries: int = 0


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A generation of a job could not be started where it was told to; the job is planned anew.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    job : str
        The job.
    generation : int
        The generation; one that is not the newest changes nothing.
    reason : str
        What is known of it.
    """

    tag: ClassVar[str] = "StartFailed"

    slot: int
    job: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A generation of a job ended by itself, done, whatever had been counted of its progress."""

    tag: ClassVar[str] = "JobEnded"

    slot: int
    job: str
    generation: int


@dataclass(frozen=True, slots=True)
class ProgressMeasured:
    """How far running jobs say they are.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    progress : mapping of str to (int, int)
        By job, the generation that reports, and its progress since the job's very beginning in
        millionths of a mini-batch. A report of an old generation, or that goes back, is ignored;
        until one says more than nothing, each takes the place of what was counted by time.
    """

    tag: ClassVar[str] = "ProgressMeasured"

    slot: int
    progress: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Commands were carried out; of a `Stop` or `Resize`, the old generation's end was seen."""

    tag: ClassVar[str] = "Acknowledged"

    slot: int
    commands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A job was withdrawn by its owner; to policies, also one that failed for good."""

    tag: ClassVar[str] = "JobCancelled"

    slot: int
    job: str


@dataclass(frozen=True, slots=True)
class JobsArrived:
    """Jobs arrived, in the order in which they are to be considered."""

    tag: ClassVar[str] = "JobsArrived"

    slot: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class SlotBegan:
    """A slot begins: placements for it are settled now."""

    tag: ClassVar[str] = "SlotBegan"

    slot: int


@dataclass(frozen=True, slots=True)
class SlotEnded:
    """A slot is over, with the progress that each running job made in it.

    Parameters
    ----------
    slot : int
        The slot.
    progress : mapping of str to int
        Progress units by job.
    finished : mapping of str to tuple of int
        For every running bag, the tasks that finished in the slot, by entry of the copies that
        its plan gave them; their sum is its progress.
    """

    tag: ClassVar[str] = "SlotEnded"

    slot: int
    progress: Mapping[str, int]
    finished: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


DriverEvent = (
    ServerLost
    | ServerBack
    | CapacityChanged
    | TimespanChanged
    | JobCancelled
    | JobRevised
    | JobFailed
    | StartFailed
    | JobEnded
    | ProgressMeasured
    | Acknowledged
    | JobsArrived
    | SlotBegan
    | SlotEnded
)

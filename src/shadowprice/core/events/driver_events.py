"""Events from a driver to the engine; see `core.events` for the meaning of ``slot``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from shadowprice.core.cluster import Role, Tenant
from shadowprice.core.job import Job


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server was lost: its processes have ended, and it can't be used."""

    tag: ClassVar[str] = "ServerLost"

    slot: int
    server: str
    row: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class ServerBack:
    """An unavailable server is available again: lost, drained or cordoned."""

    tag: ClassVar[str] = "ServerBack"

    slot: int
    server: str
    row: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class ServerState:
    """The new configuration of a server.

    ``capacity`` has amounts by resource of the cluster, in the units of `core.amounts`. No job
    starts on a ``drained`` or ``cordoned`` server. Jobs leave a drained one after the running slot,
    and keep their placement on a cordoned one until they end. At most one of the two is set.
    ``cost`` is the price per hour, if servers have prices; None keeps the present price, 0 for a
    new server.
    """

    role: Role
    capacity: Mapping[str, int]
    drained: bool = False
    cordoned: bool = False
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """Servers, shares of tenants, or the restart times of future jobs changed; None if unchanged.

    ``servers`` are new configurations by name: None removes a server, and a new name adds one.
    ``tenants`` are all tenants. The restart fields are those of `Cluster`.
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

    ``until`` is the first slot in which nothing may run, None without an end. It may be in the
    past.
    """

    tag: ClassVar[str] = "TimespanChanged"

    slot: int
    until: int | None


@dataclass(frozen=True, slots=True)
class JobRevised:
    """The description of a job changed: its rate, work, utility or deadline.

    ``job`` has the old name and arrival, and its progress keeps its number of mini-batches.
    ``admission`` says that the owner asks for more than before. If the job has a promise or a plan,
    the policy then decides about the remaining work at current prices, as on an arrival. It raises
    `RevisionRefusedError` to refuse.
    """

    tag: ClassVar[str] = "JobRevised"

    slot: int
    job: Job
    admission: bool = False


@dataclass(frozen=True, slots=True)
class GenerationEvent:
    """Common fields of events of a job's generation, which are ignored if it isn't the newest."""

    slot: int
    job: str
    generation: int


@dataclass(frozen=True, slots=True)
class JobFailed(GenerationEvent):
    """A generation of a job failed.

    ``retries`` is the total of failures that the job is allowed: the next failure closes it.
    """

    tag: ClassVar[str] = "JobFailed"

    reason: str
    retries: int = 0


@dataclass(frozen=True, slots=True)
class StartFailed(GenerationEvent):
    """A generation of a job couldn't be started; the job is replanned."""

    tag: ClassVar[str] = "StartFailed"

    reason: str


@dataclass(frozen=True, slots=True)
class JobStarted(GenerationEvent):
    """The processes of a generation run since a slot."""

    tag: ClassVar[str] = "JobStarted"

    since: int


@dataclass(frozen=True, slots=True)
class JobEnded(GenerationEvent):
    """A generation ended because the job is done, regardless of the progress counted so far."""

    tag: ClassVar[str] = "JobEnded"


@dataclass(frozen=True, slots=True)
class ProgressMeasured:
    """Progress that running jobs reported.

    ``progress`` has, by job, the reporting generation and the job's total progress in millionths of
    a mini-batch. Reports of an old generation are ignored, and so are smaller values. Every report
    up to the first positive one replaces the progress that was estimated by time.
    """

    tag: ClassVar[str] = "ProgressMeasured"

    slot: int
    progress: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Commands were executed; for `Stop` and `Resize`, the old generation has ended."""

    tag: ClassVar[str] = "Acknowledged"

    slot: int
    commands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The owner cancelled a job. Policies also get this event for a job that failed permanently."""

    tag: ClassVar[str] = "JobCancelled"

    slot: int
    job: str


@dataclass(frozen=True, slots=True)
class JobsArrived:
    """Jobs arrived; the policy considers them in this order."""

    tag: ClassVar[str] = "JobsArrived"

    slot: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class SlotBegan:
    """A slot starts, and its placements become commands."""

    tag: ClassVar[str] = "SlotBegan"

    slot: int


@dataclass(frozen=True, slots=True)
class SlotEnded:
    """A slot ended, with the progress units of each running job in it.

    ``finished`` has, for every running bag, the tasks that finished in the slot by entry of the
    plan's copies; their sum is the bag's progress. ``lengths`` has new descriptions of jobs that
    ran and whose length turned out to differ. Only their work, utility and time limit differ, so
    progress keeps its units.
    """

    tag: ClassVar[str] = "SlotEnded"

    slot: int
    progress: Mapping[str, int]
    finished: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lengths: Mapping[str, Job] = field(default_factory=dict)


DriverEvent = (
    ServerLost
    | ServerBack
    | CapacityChanged
    | TimespanChanged
    | JobCancelled
    | JobRevised
    | JobFailed
    | StartFailed
    | JobStarted
    | JobEnded
    | ProgressMeasured
    | Acknowledged
    | JobsArrived
    | SlotBegan
    | SlotEnded
)

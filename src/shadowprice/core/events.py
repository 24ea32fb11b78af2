"""Events, decisions and commands.

Drivers send events to the engine, policies send decisions to the engine, and the engine sends
commands to the driver. All are immutable values without behaviour.

An event's ``slot`` is the first slot that can still be decided: between two slots the coming one,
and while a slot runs the one after it. `SlotBegan` and `SlotEnded` name the slot itself. Servers
are identified by name. Only the engine and the policies use rows of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Role, Tenant
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Placement, Schedule


class EngineMessage:
    """Base of events, decisions and commands."""

    __slots__ = ()
    tag: ClassVar[str]
    """Name in journals and messages: that of the class."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.tag = cls.__name__


# --------------------------------------------------------------- from drivers to the engine


@dataclass(frozen=True, slots=True)
class ServerLost(EngineMessage):
    """A server was lost: its processes have ended, and it can't be used.

    The engine sets ``row``, the server's row, when it passes the event to a policy.
    """

    slot: int
    server: str
    row: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class ServerBack(EngineMessage):
    """A lost, drained or cordoned server is available again; ``row`` as in `ServerLost`."""

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
class CapacityChanged(EngineMessage):
    """Servers, shares of tenants, or the restart times of future jobs changed; None if unchanged.

    ``servers`` are new configurations by name: None removes a server, and a new name adds one.
    ``tenants`` are all tenants. The restart fields are those of `Cluster`.
    """

    slot: int
    servers: Mapping[str, ServerState | None] = field(default_factory=dict)
    tenants: tuple[Tenant, ...] | None = None
    restart_seconds: Fraction | None = None
    restart_first: bool | None = None


@dataclass(frozen=True, slots=True)
class TimespanChanged(EngineMessage):
    """The end of the timespan was set, moved or removed.

    ``until`` is the first slot in which nothing may run, None without an end. It may be in the
    past.
    """

    slot: int
    until: int | None


@dataclass(frozen=True, slots=True)
class JobRevised(EngineMessage):
    """The description of a job changed: its rate, work, utility or deadline.

    ``job`` has the old name and arrival, and its progress keeps its number of mini-batches.
    ``admission`` says that the owner asks for more than before. If the job has a promise or a plan,
    the policy then decides about the remaining work at current prices, as on an arrival. It raises
    `RevisionRefusedError` to refuse.
    """

    slot: int
    job: Job
    admission: bool = False


@dataclass(frozen=True, slots=True)
class GenerationEvent(EngineMessage):
    """Common fields of events of a job's generation; those of older generations are ignored."""

    slot: int
    job: str
    generation: int


@dataclass(frozen=True, slots=True)
class JobFailed(GenerationEvent):
    """A generation of a job failed.

    ``retries`` is the total number of failures that the job may have; one more closes the job.
    """

    reason: str
    retries: int = 0


@dataclass(frozen=True, slots=True)
class StartFailed(GenerationEvent):
    """A generation of a job couldn't be started; the job is replanned."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobStarted(GenerationEvent):
    """The processes of a generation run since a slot."""

    since: int


@dataclass(frozen=True, slots=True)
class JobEnded(GenerationEvent):
    """A generation ended because the job is done, regardless of the progress counted so far."""


@dataclass(frozen=True, slots=True)
class ProgressMeasured(EngineMessage):
    """Progress that running jobs reported.

    ``progress`` has, by job, the reporting generation and the job's total progress in millionths of
    a mini-batch. Reports of an old generation and smaller values are ignored. Until a report was
    positive, the progress is an estimate by time, which a report may also lower.
    """

    slot: int
    progress: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Acknowledged(EngineMessage):
    """Commands were executed; for `Stop` and `Resize`, the old generation has ended."""

    slot: int
    commands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobCancelled(EngineMessage):
    """The owner cancelled a job. Policies also get this event for a job that failed permanently."""

    slot: int
    job: str


@dataclass(frozen=True, slots=True)
class JobsArrived(EngineMessage):
    """Jobs arrived; the policy considers them in this order."""

    slot: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class SlotBegan(EngineMessage):
    """A slot starts, and its placements become commands."""

    slot: int


@dataclass(frozen=True, slots=True)
class SlotEnded(EngineMessage):
    """A slot ended, with the progress units of each running job in it.

    ``finished`` has, for every running bag, how many tasks of each entry of the plan's copies
    finished in the slot; their sum is the bag's progress. ``lengths`` has new descriptions of jobs
    that ran and whose length turned out to differ. Only their work, utility and time limit differ,
    so the unit of progress stays.
    """

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


# --------------------------------------------------------------- from the engine to policies


@dataclass(frozen=True, slots=True)
class JobsFinished(EngineMessage):
    """Jobs completed in the slot before ``slot``; their reservations are released."""

    slot: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobsDisplaced(EngineMessage):
    """Admitted jobs, in order of arrival, lost their placement.

    The policy may replan or drop them now or later.
    ``slot`` is the first slot in which they could run again. ``server`` is the row of the server
    whose loss displaced them. It is None for other causes: a plan that falls short, a failed start,
    changed servers, or the end of the timespan.
    """

    slot: int
    jobs: tuple[str, ...]
    server: int | None


@dataclass(frozen=True, slots=True)
class PlansFellShort(EngineMessage):
    """Plans of admitted jobs ended, or can't complete the remaining work; in order of arrival.

    The jobs still hold the remaining slots of their plans. The policy extends each plan, moves the
    job, or drops it.
    """

    slot: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LengthsRevised(EngineMessage):
    """Open jobs have more work than was stated so far; placements and plans stay in force.

    The view has the new descriptions. Plans that don't suffice any more follow in `PlansFellShort`.
    """

    slot: int
    jobs: tuple[str, ...]


PolicyEvent = (
    JobsArrived
    | SlotBegan
    | JobsFinished
    | JobsDisplaced
    | PlansFellShort
    | LengthsRevised
    | JobCancelled
    | JobRevised
    | ServerLost
    | ServerBack
    | CapacityChanged
    | TimespanChanged
)


# --------------------------------------------------------------- from policies to the engine


@dataclass(frozen=True, slots=True)
class Commit(EngineMessage):
    """Admit a job, or replan an admitted one, with a schedule.

    Parameters
    ----------
    schedule : Schedule
        All future slots, which complete the remaining work.
    payoff, utility, cost : float
        The planner's numbers: ``payoff = utility - cost``.
    copies : tuple of TaskCopies
        For a bag, the copies of every remaining task. All start in the schedule's first slot.
    charged : float or None
        Total of its future payments to tenants (`Charge`), if that isn't its cost: capacity of its
        own tenant has a price but costs nothing.
    payoff_bound : float or None
        Upper bound of any schedule's payoff at the present prices; None if unknown.
    slot_costs : tuple of float
        Cost of each active slot, if requested (`PolicyContext.itemised`) and if the decision admits
        the job.
    message : str
        Why an admitted job is replanned.
    """

    job: str
    schedule: Schedule
    payoff: float
    utility: float
    cost: float
    copies: tuple[TaskCopies, ...] = ()
    charged: float | None = None
    payoff_bound: float | None = None
    slot_costs: tuple[float, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Reject(EngineMessage):
    """Refuse a job permanently."""

    job: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Queue(EngineMessage):
    """Accept a job without promising when it runs."""

    job: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Promise(EngineMessage):
    """Admit a new or waiting job with the slot by whose end it completes.

    The plan stays open: placements follow slot by slot. A later promise for the same job replaces
    an earlier one that can't be kept any more.

    Parameters
    ----------
    completion : int or None
        Last slot that the job may need; None withdraws a promise and leaves the job waiting.
    expected : int or None
        Completion slot in the present plan.
    payoff, utility, cost : float
        Difference of the next two; utility of the expected completion; its cost to other jobs.
    message : str
        Why a promise changed.
    copies : tuple of TaskCopies
        For a bag, the copies of its tasks in the present plan.
    """

    job: str
    completion: int | None
    expected: int | None = None
    payoff: float = 0.0
    utility: float = 0.0
    cost: float = 0.0
    message: str = ""
    copies: tuple[TaskCopies, ...] = ()


@dataclass(frozen=True, slots=True)
class Place(EngineMessage):
    """Run a job in this placement from the coming slot on, until another decision.

    For a bag, ``copies`` are the copies that start, with one worker each. If it is empty, running
    copies continue, with at most the present number of workers on each server.
    """

    job: str
    placement: Placement
    copies: tuple[TaskCopies, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause(EngineMessage):
    """Stop a placed job from the coming slot on; it keeps its progress."""

    job: str


@dataclass(frozen=True, slots=True)
class Displace(EngineMessage):
    """Release the plan of an admitted job, to make its capacity available to another job.

    The policy replans or drops the job by a later decision on the same event.
    """

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drop(EngineMessage):
    """Abandon an open job that can't be completed, such as one that was admitted or ran before."""

    job: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Charge(EngineMessage):
    """A payment from one tenant to another for a job's resources in a slot.

    Amounts are millionths of a unit of utility, by resource (``worker``, ``ps``, ``worker/v100``).
    """

    job: str
    slot: int
    payer: str
    payee: str
    amounts: Mapping[str, int]


Decision = Commit | Reject | Queue | Promise | Place | Pause | Displace | Drop | Charge


# --------------------------------------------------------------- from the engine to drivers


@dataclass(frozen=True, slots=True)
class NumberedCommand(EngineMessage):
    """Common fields of commands; comparisons ignore all but the slot and the job.

    Parameters
    ----------
    id : int
        Number among all commands of the engine. A driver executes it at most once.
    generation : int
        The job's generation, starting from 1. It fences commands: older generations are refused.
    after : tuple of int
        Commands that must be acknowledged first, because they free this command's servers. They
        may be later commands of the same slot. Two resizes may name each other: each stops its
        previous generation before it waits.
    frees : tuple of str
        Servers that the job's previous generation occupies until its end is observed.
    """

    slot: int
    job: str
    id: int = field(default=0, compare=False, kw_only=True)
    generation: int = field(default=0, compare=False, kw_only=True)
    after: tuple[int, ...] = field(default=(), compare=False, kw_only=True)
    frees: tuple[str, ...] = field(default=(), compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Run(NumberedCommand):
    """Common fields of `Start` and `Resize`, which run a new generation of a job from a slot on.

    ``servers`` are the names of the placement's servers, in its order. ``copies`` are those of a
    bag at the start of the current plan. ``plan`` is the number of the job's plan, starting from 1;
    0 if the job is placed without a plan.
    """

    placement: Placement
    servers: tuple[str, ...] = field(default=(), compare=False, kw_only=True)
    copies: tuple[TaskCopies, ...] = field(default=(), compare=False, kw_only=True)
    plan: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Start(Run):
    """Start or resume a job in this placement at the start of the slot."""


@dataclass(frozen=True, slots=True)
class Resize(Run):
    """Move a running job to this placement at the start of the slot."""


@dataclass(frozen=True, slots=True)
class Stop(NumberedCommand):
    """Stop a job at the start of the slot; ``finished`` says whether it is complete."""

    finished: bool


@dataclass(frozen=True, slots=True)
class Displaced(EngineMessage):
    """A job lost its plan or placement, and waits for a new one."""

    slot: int
    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decided(EngineMessage):
    """A decision was validated and took effect; drivers report it to users."""

    slot: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Completed(EngineMessage):
    """A job completed in a slot and earned its utility."""

    slot: int
    job: str
    utility: float = field(default=0.0)


Command = Start | Resize | Stop | Displaced | Decided | Completed

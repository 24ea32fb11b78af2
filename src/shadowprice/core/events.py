"""What happens to a cluster, what policies decide, and what drivers are told to do.

Events flow from a driver into the engine, decisions from a policy to the engine, and commands from
the engine to the driver. All are values: none of them acts.

An event's ``slot`` is the first slot that can still be decided when it happens: between two slots
the coming one, and while a slot runs the one after it. `SlotBegan` and `SlotEnded` name the slot
itself. Outside, servers go by name; rows of arrays are the engine's and the policies' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Role, Tenant
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Placement, Schedule

# ------------------------------------------------------------------ events, driver -> engine


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

    slot: int
    servers: Mapping[str, ServerState | None] = field(default_factory=dict)
    tenants: tuple[Tenant, ...] | None = None
    restart_seconds: Fraction | None = None
    restart_first: bool | None = None


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

    slot: int
    job: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A generation of a job ended by itself, done, whatever had been counted of its progress."""

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

    slot: int
    progress: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Commands were carried out; of a `Stop` or `Resize`, the old generation's end was seen."""

    slot: int
    commands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A job was withdrawn by its owner; to policies, also one that failed for good."""

    slot: int
    job: str


@dataclass(frozen=True, slots=True)
class JobsArrived:
    """Jobs arrived, in the order in which they are to be considered."""

    slot: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class SlotBegan:
    """A slot begins: placements for it are settled now."""

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

    slot: int
    progress: Mapping[str, int]
    finished: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


DriverEvent = (
    ServerLost
    | ServerBack
    | CapacityChanged
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

# ------------------------------------------------------------------ events, engine -> policy


@dataclass(frozen=True, slots=True)
class JobsFinished:
    """Jobs completed in the slot before ``slot``; what they held is released."""

    slot: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobsDisplaced:
    """Admitted jobs lost their plan or placement and must be planned again, or dropped.

    Parameters
    ----------
    slot : int
        First slot in which they could run again.
    jobs : tuple of str
        The jobs, in the order in which they were admitted.
    server : int or None
        Row of the server whose loss displaced them; None where a plan is not enough for the work
        that remains, or could not be started.
    """

    slot: int
    jobs: tuple[str, ...]
    server: int | None


PolicyEvent = (
    JobsArrived
    | SlotBegan
    | JobsFinished
    | JobsDisplaced
    | JobCancelled
    | JobRevised
    | ServerLost
    | ServerBack
    | CapacityChanged
)

# ------------------------------------------------------------------ decisions, policy -> engine


@dataclass(frozen=True, slots=True)
class Commit:
    """Admit a job, or re-plan an admitted one, with the schedule it will run.

    Parameters
    ----------
    job : str
        The job.
    schedule : Schedule
        All of its future; completes the work that remains.
    payoff, utility, cost : float
        The planner's numbers: ``payoff = utility - cost``.
    copies : tuple of TaskCopies
        For a bag, the copies of every task that remains; all start in the schedule's first slot.
    charged : float or None
        What it will pay to tenants (`Charge`) over its slots, where that is not its cost: a place
        of its own tenant has a price, and costs nothing.
    payoff_bound : float or None
        No schedule had a larger payoff at the prices of that moment; None where that is not known.
    slot_costs : tuple of float
        What each active slot of the schedule costs, where the policy was asked to say so
        (`PolicyContext.itemised`) and admits the job; they make up the cost.
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


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse a job for good."""

    job: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Queue:
    """Take a job in without promising when it runs."""

    job: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """Admit a job, or one that waits, with the slot by whose end it will be complete.

    How the promise is met stays open: placements follow slot by slot. A later promise for the same
    job takes the place of the earlier one, which is for when that cannot be kept any more.

    Parameters
    ----------
    job : str
        The job.
    completion : int or None
        Last slot that the job may need; None takes a promise back and leaves the job waiting.
    expected : int or None
        Slot in which the plan of the moment completes it.
    payoff, utility, cost : float
        What completing then is worth, what it costs others, and the difference.
    message : str
        Why a promise changed.
    copies : tuple of TaskCopies
        Of a bag: the copies that the plan of the moment gives its tasks.
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
class Place:
    """Run a queued job in this placement from the coming slot on, until told otherwise.

    Parameters
    ----------
    job : str
        The job.
    placement : Placement
        Where it stands.
    copies : tuple of TaskCopies
        Of a bag: the copies that are to start, one place each. Without, those that run go on, in
        no more places on any server than they have.
    """

    job: str
    placement: Placement
    copies: tuple[TaskCopies, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop a placed job from the coming slot on; it keeps its progress."""

    job: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Give up an admitted job that cannot be kept."""

    job: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Charge:
    """One tenant pays another for what a job uses in a slot.

    Parameters
    ----------
    job : str
        The job that uses it.
    slot : int
        The slot it is paid for.
    payer, payee : str
        Tenants.
    amounts : mapping of str to int
        Micro-units of utility by type of place (``worker``, ``ps``, ``worker/v100``).
    """

    job: str
    slot: int
    payer: str
    payee: str
    amounts: Mapping[str, int]


Decision = Commit | Reject | Queue | Promise | Place | Pause | Drop | Charge

# ------------------------------------------------------------------ commands, engine -> driver


@dataclass(frozen=True, slots=True)
class Order:
    """What every command to run or stop something says; two are equal if they ask for the same.

    Parameters
    ----------
    id : int
        Its number among all commands of the engine; a driver acts on it at most once.
    generation : int
        Which placement of the job it speaks of, from 1 on; older ones are refused.
    after : tuple of int
        Commands not acknowledged yet that free what this one takes, of the same slot and given
        later among them: their end is waited for. Two resizes may name each other; each ends what
        it replaces before it waits.
    frees : tuple of str
        Servers that the job's generation before holds until its end is seen.
    """

    id: int = field(default=0, compare=False, kw_only=True)
    generation: int = field(default=0, compare=False, kw_only=True)
    after: tuple[int, ...] = field(default=(), compare=False, kw_only=True)
    frees: tuple[str, ...] = field(default=(), compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Run(Order):
    """What `Start` and `Resize` have in common: a new generation of a job.

    Parameters
    ----------
    slot : int
        The slot at whose beginning it is to run.
    job : str
        The job.
    placement : Placement
        Where, by row.
    servers : tuple of str
        The placement's servers by name.
    copies : tuple of TaskCopies
        Of a bag, the copies of its tasks that the plan in force began with.
    plan : int
        Which plan of the job it follows, from 1 on; 0 where it stands until told otherwise.
    """

    slot: int
    job: str
    placement: Placement
    servers: tuple[str, ...] = field(default=(), compare=False, kw_only=True)
    copies: tuple[TaskCopies, ...] = field(default=(), compare=False, kw_only=True)
    plan: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Start(Run):
    """Start, or resume, a job in this placement at the beginning of the slot."""


@dataclass(frozen=True, slots=True)
class Resize(Run):
    """Move a running job to this placement at the beginning of the slot."""


@dataclass(frozen=True, slots=True)
class Stop(Order):
    """Stop a job at the beginning of the slot; ``finished`` tells whether it is complete."""

    slot: int
    job: str
    finished: bool


@dataclass(frozen=True, slots=True)
class Displaced:
    """A job lost what it had been promised, and waits to be planned anew.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    job : str
        The job.
    reason : str
        What happened.
    """

    slot: int
    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision was checked and took effect; what drivers report to users."""

    slot: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Completed:
    """A job completed in a slot and earned its utility."""

    slot: int
    job: str
    utility: float = field(default=0.0)


Command = Start | Resize | Stop | Displaced | Decided | Completed

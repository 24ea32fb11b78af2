"""What happens to a cluster, what policies decide, and what drivers are told to do.

Events flow from a driver into the engine, decisions from a policy to the engine, and commands from
the engine to the driver. All are values: none of them acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shadowprice.core.bag import TaskCopies
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Placement, Schedule

# ------------------------------------------------------------------ events, driver -> engine


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server is gone from ``slot`` on."""

    slot: int
    server: int


@dataclass(frozen=True, slots=True)
class ServerBack:
    """A lost server is back from ``slot`` on."""

    slot: int
    server: int


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The owner of a job withdrew it."""

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


DriverEvent = ServerLost | ServerBack | JobCancelled | JobsArrived | SlotBegan | SlotEnded

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
        The server whose loss displaced them; None where a plan ended short of the work.
    """

    slot: int
    jobs: tuple[str, ...]
    server: int | None


PolicyEvent = (
    JobsArrived | SlotBegan | JobsFinished | JobsDisplaced | JobCancelled | ServerLost | ServerBack
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
    """

    job: str
    schedule: Schedule
    payoff: float
    utility: float
    cost: float
    copies: tuple[TaskCopies, ...] = ()


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
    """

    job: str
    completion: int | None
    expected: int | None = None
    payoff: float = 0.0
    utility: float = 0.0
    cost: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Run a queued job in this placement from the coming slot on, until told otherwise."""

    job: str
    placement: Placement


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
class Start:
    """Start, or resume, a job in this placement at the beginning of the slot."""

    slot: int
    job: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Resize:
    """Move a running job to this placement at the beginning of the slot."""

    slot: int
    job: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a job at the beginning of the slot; ``finished`` tells whether it is complete."""

    slot: int
    job: str
    finished: bool


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


Command = Start | Resize | Stop | Decided | Completed

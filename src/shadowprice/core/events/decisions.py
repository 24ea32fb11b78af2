"""What a policy decides; the engine checks each before it takes effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from shadowprice.core.bag import TaskCopies
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Placement, Schedule


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
    message : str
        Why an admitted job is planned again.
    """

    tag: ClassVar[str] = "Commit"

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
class Reject:
    """Refuse a job for good."""

    tag: ClassVar[str] = "Reject"

    job: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Queue:
    """Take a job in without promising when it runs."""

    tag: ClassVar[str] = "Queue"

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

    tag: ClassVar[str] = "Promise"

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

    tag: ClassVar[str] = "Place"

    job: str
    placement: Placement
    copies: tuple[TaskCopies, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop a placed job from the coming slot on; it keeps its progress."""

    tag: ClassVar[str] = "Pause"

    job: str


@dataclass(frozen=True, slots=True)
class Displace:
    """Release the plan of an admitted job, so that another one can have its place.

    The policy plans the job again, or drops it, with a later decision on the same event.

    Parameters
    ----------
    job : str
        The job.
    reason : str
        Why, for its history.
    """

    tag: ClassVar[str] = "Displace"

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Give up an admitted job that cannot be kept."""

    tag: ClassVar[str] = "Drop"

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

    tag: ClassVar[str] = "Charge"

    job: str
    slot: int
    payer: str
    payee: str
    amounts: Mapping[str, int]


Decision = Commit | Reject | Queue | Promise | Place | Pause | Displace | Drop | Charge

"""Decisions of policies; the engine validates each before it takes effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from shadowprice.core.bag import TaskCopies
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Placement, Schedule


@dataclass(frozen=True, slots=True)
class Commit:
    """Admit a job, or replan an admitted one, with a schedule.

    Parameters
    ----------
    schedule : Schedule
        All future slots, which complete the remaining work.
    payoff, utility, cost : float
        The planner's numbers: ``payoff = utility - cost``.
    copies : tuple of TaskCopies
        Of a bag: the copies of every remaining task. All start in the schedule's first slot.
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
    """Refuse a job permanently."""

    tag: ClassVar[str] = "Reject"

    job: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Queue:
    """Accept a job without promising when it runs."""

    tag: ClassVar[str] = "Queue"

    job: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
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
        ``payoff = utility - cost``: utility of that completion, and its cost to other jobs.
    message : str
        Why a promise changed.
    copies : tuple of TaskCopies
        Of a bag: the copies of its tasks in the present plan.
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
    """Run a job in this placement from the coming slot on, until another decision.

    ``copies`` of a bag are those that start, one worker each. If empty, running copies continue,
    with at most the present number of workers on each server.
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
    """Release the plan of an admitted job, to make its capacity available to another job.

    The policy replans or drops the job by a later decision on the same event.
    """

    tag: ClassVar[str] = "Displace"

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Abandon an admitted job that can't be completed."""

    tag: ClassVar[str] = "Drop"

    job: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Charge:
    """A payment from one tenant to another for a job's resources in a slot.

    Amounts are millionths of a unit of utility, by resource (``worker``, ``ps``, ``worker/v100``).
    """

    tag: ClassVar[str] = "Charge"

    job: str
    slot: int
    payer: str
    payee: str
    amounts: Mapping[str, int]


Decision = Commit | Reject | Queue | Promise | Place | Pause | Displace | Drop | Charge

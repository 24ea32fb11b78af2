"""What a priced planner can offer a job, and the questions that every such planner answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.bag import TaskCopies
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import View
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Schedule
from shadowprice.policies.pricing.board import PriceBoard

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Offer:
    """The best that the cluster can offer a job.

    Parameters
    ----------
    completion : int
        Slot in which it would complete.
    utility, cost, payoff : float
        What that is worth, what it costs, and the difference: OASiS's mu of (20), PD-ORS's lambda.
    choice : ndarray of int64, shape (slots,)
        The choice made in each slot of the window, -1 for none; what a choice is, the planner that
        made the offer knows.
    copies : tuple of TaskCopies
        Copies of the tasks of a bag.
    bound : float or None
        No offer has a larger payoff; None where the planner does not prove one.
    plan : Schedule or None
        Where it stands, if that is not what the planner makes of the choice.
    """

    completion: int
    utility: float
    cost: float
    payoff: float
    choice: Integers
    copies: tuple[TaskCopies, ...] = ()
    bound: float | None = None
    plan: Schedule | None = None


class Scarcity(NamedTuple):
    """What leaves a job the least room.

    Attributes
    ----------
    resource : str
        Name of the resource.
    where : str
        The servers it is short on, such as ``worker servers``.
    kind : str
        What it leaves room for: ``workers`` or ``parameter servers``.
    room : float
        How many of them a slot has room for on average.
    """

    resource: str
    where: str
    kind: str
    room: float


class Outpriced(NamedTuple):
    """Proof that no offer has a positive payoff.

    Attributes
    ----------
    bound : float
        No schedule pays more; ``-inf`` where none completes the work.
    utility, cost : float or None
        Of the schedule that the bound is of, which need not be one that can be had: roughly what
        the job is worth and would pay. None without one.
    """

    bound: float
    utility: float | None = None
    cost: float | None = None


class Quote(Protocol):
    """One job at the prices of one moment."""

    def best(self, factor: float = 1.0, *, more: int = 0) -> Offer | None:
        """Return the offer of largest payoff, None where nothing completes the work.

        Parameters
        ----------
        factor : float
            What every utility is multiplied by.
        more : int
            Progress units to make beyond those that remain. A bag of tasks has none.
        """
        ...

    def outpriced(self) -> Outpriced | None:
        """Return a bound that proves at once that no offer has a positive payoff.

        It is for where nobody asks for the best of the offers that are refused. None where there
        is no such proof that takes less time than `best`.
        """
        ...

    def schedule(self, offer: Offer) -> Schedule:
        """Return where the workers and parameter servers of an offer stand."""
        ...

    def fastest(self) -> int:
        """Return the most progress units that one slot can add, in an empty cluster."""
        ...

    def hopeless(self) -> Refusal | None:
        """Return why nothing completes the work; None where the other questions tell it."""
        ...

    def scarcest(self) -> Scarcity:
        """Return what leaves the least room over the slots in which the job could run."""
        ...

    def dearest(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource that makes up most of a schedule's cost, and that cost."""
        ...

    def slot_costs(self, schedule: Schedule) -> NDArray[np.float64]:
        """Return what a schedule costs in each of its active slots."""
        ...


class PricedPlanner(Protocol):
    """Finds the schedule of largest payoff at posted prices."""

    @property
    def boards(self) -> Sequence[PriceBoard]:
        """The pools it prices."""
        ...

    def follow(self, ledger: LedgerView) -> None:
        """Catch up with the ledger."""
        ...

    def quote(self, view: View, job: Job, remaining: int) -> Quote:
        """Return a job's quote for the progress units that remain."""
        ...

"""Offers of a priced planner to a job, and the protocol of such planners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.bag import TaskCopies
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import View
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Schedule
from shadowprice.policies.pricing.board import PriceBoard


@dataclass(frozen=True, eq=False)
class PricedOffer:
    """The best plan that the cluster can offer a job."""

    completion: int  # slot
    utility: float
    cost: float
    payoff: float  # utility of completing then, less the cost: OASiS's mu of (20), PD-ORS's lambda
    choice: Integers  # in each slot of the window, -1 for none; the meaning depends on the planner
    copies: tuple[TaskCopies, ...] = ()  # of the tasks of a bag
    bound: float | None = None  # upper bound of the payoff of every offer; None if unproved
    plan: Schedule | None = None  # the schedule, if it isn't the one built from the choice


class ResourceBottleneck(NamedTuple):
    """The resource that limits a job most."""

    resource: str
    where: str  # the servers that lack it, such as "worker servers"
    kind: str  # processes that it limits: "workers" or "parameter servers"
    room: float  # how many of them fit in a slot on average


class TooExpensiveProof(NamedTuple):
    """Proof that no offer has a positive payoff."""

    bound: float  # upper bound of the payoff of every schedule; -inf if none completes the work
    utility: float | None = None
    """Of the schedule behind the bound, which may not be feasible, as is the cost: approximations
    of the job's. None without a schedule."""
    cost: float | None = None


class PricedJob(Protocol):
    """One job at the prices of one moment."""

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer with the largest payoff, None if no plan completes the work.

        Every utility is multiplied by ``factor``. ``more`` progress units are planned beyond those
        that remain, but not for a bag of tasks.
        """
        ...

    def prove_too_expensive(self) -> TooExpensiveProof | None:
        """Return a quick proof that no offer has a positive payoff.

        For callers that don't need the best offer of a refused job. None if there is no proof that
        is faster than `best`.
        """
        ...

    def schedule(self, offer: PricedOffer) -> Schedule:
        """Return the schedule of an offer."""
        ...

    def max_gain(self) -> int:
        """Return the maximum progress units of one slot in an empty cluster."""
        ...

    def explain_infeasible(self) -> Refusal | None:
        """Return why no plan completes the work; None if the other methods explain it."""
        ...

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource that limits the job most in the slots in which it could run."""
        ...

    def most_expensive(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource with the largest part of a schedule's cost, and that part."""
        ...

    def slot_costs(self, schedule: Schedule) -> Floats:
        """Return the cost of a schedule in each of its active slots."""
        ...


class DerivedJob:
    """Base of priced jobs whose plans meet more conditions; all else is that of another's.

    If ``begun``, the first slot of a plan counts a restart.
    """

    def __init__(
        self, quote: PricedJob, view: View, job: Job, remaining: int, *, begun: bool
    ) -> None:
        self._quote = quote
        self._view = view
        self._job = job
        self._remaining = remaining
        self._begun = begun

    def prove_too_expensive(self) -> TooExpensiveProof | None:
        """Return a bound that holds for every plan, and so for those that meet the conditions."""
        return self._quote.prove_too_expensive()

    def schedule(self, offer: PricedOffer) -> Schedule:
        """Return the schedule of an offer."""
        return self._quote.schedule(offer) if offer.plan is None else offer.plan

    def max_gain(self) -> int:
        """Return the maximum progress units of one slot in an empty cluster."""
        return self._quote.max_gain()

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource that limits the job most in the slots in which it could run."""
        return self._quote.find_bottleneck()

    def most_expensive(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource with the largest part of a schedule's cost, and that part."""
        return self._quote.most_expensive(schedule)

    def slot_costs(self, schedule: Schedule) -> Floats:
        """Return the cost of a schedule in each of its active slots."""
        return self._quote.slot_costs(schedule)


class PricedPlanner(Protocol):
    """Finds the schedule with the largest payoff at posted prices."""

    @property
    def boards(self) -> Sequence[PriceBoard]:
        """Boards of the priced pools."""
        ...

    def follow(self, ledger: LedgerView) -> None:
        """Update the boards from the ledger."""
        ...

    def quote(self, view: View, job: Job, remaining: int) -> PricedJob:
        """Return a job's quote for its remaining progress units."""
        ...

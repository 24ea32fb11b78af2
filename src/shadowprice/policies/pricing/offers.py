"""Searches for the best plan of one job at current prices, and the reasons of refusals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Amounts
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import View
from shadowprice.core.potential import planned_progress
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.core.utility import utility_value
from shadowprice.policies.placements import (
    constant_schedule,
    demand_by_server,
    dense_placement,
    distribute,
    fit_counts,
    slots_needed,
)
from shadowprice.policies.pricing.board import PriceBoard


@dataclass(frozen=True, eq=False)
class PricedOffer:
    """A plan for a job with its utility and cost; a search returns the one of maximum payoff."""

    completion: int  # slot
    utility: float
    cost: float
    payoff: float  # utility - cost: mu in OASiS (20), lambda in PD-ORS
    choice: Integers  # by slot: the planner's index of what runs, -1 if nothing does
    copies: tuple[TaskCopies, ...] = ()  # of the tasks of a bag
    bound: float | None = None  # upper bound of the payoff of every offer; None if unproved
    plan: Schedule | None = None  # the schedule; None if it is built from `choice`


class ResourceBottleneck(NamedTuple):
    """The resource that limits a job most."""

    resource: str
    where: str  # the servers on which it is scarce, such as "worker servers"
    kind: str  # limited processes: "workers" or "parameter servers"
    room: float  # how many processes fit in a slot on average


class BoardUse(NamedTuple):
    """What a schedule takes from one board's pool."""

    label: str  # suffix of resource names in texts, such as " of worker servers"
    board: PriceBoard
    counts: Integers  # of processes, by entry of the schedule
    demand: Amounts  # of one of them


class TooExpensiveProof(NamedTuple):
    """Proof that no offer has a positive payoff."""

    bound: float  # upper bound of the payoff of every schedule; -inf if none completes the work
    utility: float | None = None
    """Utility of the schedule that gives the bound, perhaps an infeasible one; None without one."""
    cost: float | None = None  # of the same schedule


class OfferSearch(ABC):
    """Finds plans for one job at current prices.

    ``remaining`` is the job's remaining work in progress units. ``plain`` is the planner's own
    search, without further conditions on plans; it also computes costs.
    """

    plain: PricedJob

    def __init__(self, view: View, job: Job, remaining: int) -> None:
        self.view = view
        self.job = job
        self.remaining = remaining

    @abstractmethod
    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer with the largest payoff, None if no plan completes the work.

        Every utility is multiplied by ``factor``. ``more`` progress units are planned in addition
        to the remaining ones; a bag of tasks ignores it.
        """

    def schedule(self, offer: PricedOffer) -> Schedule:
        """Return the schedule of an offer."""
        return self.plain.place(offer) if offer.plan is None else offer.plan

    def explain_infeasible(self) -> Refusal | None:
        """Return why no plan completes the work; None: `build_refusal` derives it from `plain`."""
        return None


class PricedJob(OfferSearch):
    """A planner's own search for plans of one job, and the costs of plans."""

    def __init__(self, view: View, job: Job, remaining: int) -> None:
        super().__init__(view, job, remaining)
        self.plain = self

    def prove_too_expensive(self) -> TooExpensiveProof | None:
        """Return a quick proof that no offer has a positive payoff, None without one.

        It saves the search for callers that don't need the best offer of a refused job.
        """
        return None

    @abstractmethod
    def place(self, offer: PricedOffer) -> Schedule:
        """Return the schedule that an offer's ``choice`` stands for."""

    @abstractmethod
    def max_gain(self) -> int:
        """Return the maximum progress units of one slot in an empty cluster."""

    @abstractmethod
    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource that limits the job most in the slots in which it could run."""

    @abstractmethod
    def uses(self, schedule: Schedule) -> list[BoardUse]:
        """Return what a schedule takes from each board's pool."""

    def most_expensive(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource with the largest part of a schedule's cost, and that part."""
        totals: dict[str, Floats] = {}
        for label, board, counts, demand in self.uses(schedule):
            spent = board.spent(self.view.ledger, schedule, counts, demand)
            totals[label] = totals[label] + spent if label in totals else spent
        label, total = max(totals.items(), key=lambda entry: float(entry[1].max()))
        column = int(np.argmax(total))
        return self.view.cluster.resources[column] + label, float(total[column])

    def slot_costs(self, schedule: Schedule) -> Floats:
        """Return the cost of a schedule in each of its active slots."""
        total = np.zeros(len(schedule.active_slots))
        for _, board, counts, demand in self.uses(schedule):
            total += board.cost_by_slot(self.view.ledger, schedule, counts, demand)
        return total


class DerivedSearch(OfferSearch):
    """Base of searches whose plans meet conditions that the planner's own search ignores.

    If ``first_start_costs``, the first slot of a plan has a restart, as if the job had run before.
    """

    def __init__(self, plain: PricedJob, *, first_start_costs: bool) -> None:
        super().__init__(plain.view, plain.job, plain.remaining)
        self.plain = plain
        self._first_start_costs = first_start_costs

    def _offer(self, plan: Schedule, factor: float, choice: Integers) -> PricedOffer:
        utility = factor * utility_value(self.job.utility, plan.completion - self.job.arrival)
        cost = float(self.plain.slot_costs(plan).sum())
        return PricedOffer(plan.completion, utility, cost, utility - cost, choice, plan=plan)


class PricedPlanner(ABC):
    """Finds the schedule with the largest payoff at the prices of its boards, one for each pool."""

    boards: tuple[PriceBoard, ...]

    def follow(self, ledger: LedgerView) -> None:
        """Update the boards from the ledger."""
        for board in self.boards:
            board.follow(ledger)

    @abstractmethod
    def quote(self, view: View, job: Job, remaining: int) -> PricedJob:
        """Return the search for a job that has ``remaining`` progress units to make."""


_MAX_PLANS: Final = 4  # each longer by the last shortfall; most jobs need one
_RESTART_LOSS: Final = 1e-3  # share of the payoff: above it, fixed placements are tried too
_MAX_FIXED_PLACEMENTS: Final = 8  # a plan may have hundreds of placements


class RestartAwareSearch(DerivedSearch):
    """Finds plans that complete the work with their restarts counted.

    The papers plan as if a move cost nothing. A plan that is just long enough then falls short by
    its restarts, and its promise breaks. Here more and more work is planned, until the plan's
    progress less its restarts covers the work. The job isn't a bag, because copies don't move.
    """

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return an offer that completes the work with restarts, None if none was found."""
        plain = self.plain.best(factor, more=more)
        return None if plain is None else self.lengthen(plain, factor, more=more)

    def lengthen(
        self, plain: PricedOffer, factor: float = 1.0, *, more: int = 0
    ) -> PricedOffer | None:
        """Return an offer that completes the work with restarts, None if none was found.

        ``plain`` is the best offer without restarts, for the same ``factor`` and ``more``. Restarts
        depend on the whole plan, but the search plans slot by slot. So the payoff may be below the
        maximum; the payoff of ``plain`` is an upper bound.
        """
        best = next(self._lengthen(plain, factor, more), None)
        if best is None or best.payoff < plain.payoff - _RESTART_LOSS * abs(plain.payoff):
            offers = [*self._fixed_offers(plain, factor, more), *([] if best is None else [best])]
            best = max(offers, key=lambda offer: offer.payoff, default=None)
        if best is None or plain.bound is None:
            return best
        # A fixed placement may beat the bound of a planner that rounds work up to chunks.
        return replace(best, bound=max(plain.bound, best.payoff))

    def _lengthen(self, plain: PricedOffer, factor: float, more: int) -> Iterator[PricedOffer]:
        """Yield one plan that is long enough, or none; each try plans more work."""
        remaining, offer, planned_extra = self.remaining + more, plain, more
        for _ in range(_MAX_PLANS):
            done = self._charged_progress(offer)
            if done >= remaining:
                yield offer
                return
            planned_extra += remaining - done
            longer = self.plain.best(factor, more=planned_extra)
            if longer is None:
                return
            offer = longer
        kept_share = 1 - self.job.restart
        if kept_share:
            # Last try, for a restart in every slot: a slot keeps this share of its units, floored.
            slots = self.view.end - self.view.slot
            enough = -(-(remaining + slots) * kept_share.denominator // kept_share.numerator)
            longer = self.plain.best(factor, more=enough - self.remaining)
            if longer is not None and self._charged_progress(longer) >= remaining:
                yield longer

    def _charged_progress(self, offer: PricedOffer) -> int:
        """Return the progress units of an offer's plan after its restarts."""
        plan = self.plain.place(offer)
        return planned_progress(self.job, plan, None, charged=True, ran=self._first_start_costs)

    def _fixed_offers(self, plain: PricedOffer, factor: float, more: int) -> Iterator[PricedOffer]:
        """Yield offers that keep one of the plan's placements from its first slot to the end."""
        first: dict[Placement, int] = {}
        for slot, placement in self.plain.place(plain).placements():
            first.setdefault(placement, slot)
        for placement, slot in islice(first.items(), _MAX_FIXED_PLACEMENTS):
            plan = self._fixed_plan(slot, placement, self.remaining + more)
            if plan is not None:
                yield self._offer(plan, factor, plain.choice)

    def _fixed_plan(self, slot: int, placement: Placement, remaining: int) -> Schedule | None:
        """Return a plan with one placement from a slot on, None if it doesn't fit."""
        end = slot + slots_needed(
            self.job,
            placement.total_workers,
            remaining,
            colocated=placement.colocated,
            restarts=self._first_start_costs,
        )
        if end > self.view.end:
            return None
        ledger, servers = self.view.ledger, list(placement.servers)
        used = ledger.used[slot - ledger.start : end - ledger.start, servers]
        demand = demand_by_server(self.job, placement.workers, placement.ps)
        fits = bool((used + demand <= ledger.capacity[servers]).all())
        return constant_schedule(placement, slot, end) if fits else None

    def explain_infeasible(self) -> Refusal | None:
        """Return why no plan completes the work: the restarts, if a plan without them would."""
        plain = self.plain.best()
        if plain is None:
            return self.plain.explain_infeasible()
        loss = float(self.job.restart)
        return Refusal(
            RefusalReason.NO_ROOM,
            f"no plan with its restarts fits; a restart takes {loss:.2g} of a slot. Without "
            f"restarts, it would complete in slot {plain.completion}",
            completion=plain.completion,
            numbers={"restart_slots": loss},
        )


_MAX_COUNTS: Final = 12  # worker counts that are tried, evenly spaced; each takes a search


class FixedPlacementSearch(DerivedSearch):
    """Finds plans that keep one placement from the first slot to the last.

    The papers' plans may move a job in every slot. A job that doesn't save its progress can't move.
    ``boards`` are those of workers and of parameter servers, or one for both.
    """

    def __init__(
        self, plain: PricedJob, boards: Sequence[PriceBoard], *, first_start_costs: bool
    ) -> None:
        super().__init__(plain, first_start_costs=first_start_costs)
        view = plain.view
        self._hosts = tuple(np.zeros(view.cluster.servers, dtype=np.bool_) for _ in range(2))
        for hosts, board in zip(self._hosts, (boards[0], boards[-1]), strict=True):
            hosts[board.servers] = True
        self._hosts[0][:] &= view.cluster.hosts_workers
        self._hosts[1][:] &= view.cluster.hosts_ps

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer with the largest payoff among the earliest of each worker count."""
        offers = self._offers(factor, self.remaining + more)
        return max(offers, key=lambda offer: offer.payoff, default=None)

    def _offers(self, factor: float, remaining: int) -> Iterator[PricedOffer]:
        none = np.full(self.view.end - self.view.slot, -1, dtype=np.int64)
        counts = np.linspace(0, len(self.job.worker_counts) - 1, _MAX_COUNTS).round().astype(int)
        for choice in np.unique(counts).tolist():
            plan = self._earliest(int(choice), remaining)
            if plan is not None:
                yield self._offer(plan, factor, none)

    def _earliest(self, choice: int, remaining: int) -> Schedule | None:
        """Return the plan with a worker count that completes first, None if none fits."""
        job, view = self.job, self.view
        workers = int(job.worker_counts[choice])
        # Co-location may be faster, so it is tried first, with its own duration.
        for colocated in (True, False):
            if not job.gain(workers, colocated=colocated):
                continue
            slots = slots_needed(
                job, workers, remaining, colocated=colocated, restarts=self._first_start_costs
            )
            for start in range(view.slot, view.end - slots + 1):
                placement = self._fit(start, slots, choice, colocated=colocated)
                if placement is not None:
                    return constant_schedule(placement, start, start + slots)
        return None

    def _fit(self, start: int, slots: int, choice: int, *, colocated: bool) -> Placement | None:
        """Return a placement that is free in all these slots, on one server if ``colocated``."""
        job, ledger = self.job, self.view.ledger
        offset = start - ledger.start
        # A cordoned server has a capacity of 0, but may be in use.
        free = np.maximum(ledger.capacity - ledger.used[offset : offset + slots].max(axis=0), 0)
        workers, ps = int(job.worker_counts[choice]), int(job.ps_counts[choice])
        room = fit_counts(free, job.worker, self._hosts[0])
        if colocated:
            return self._on_one(free, room, workers, ps)
        # Servers with the most capacity first: fewer servers mean less traffic.
        order = np.argsort(-room, kind="stable")
        on_workers = distribute(room, order, workers)
        if on_workers is None:
            return None
        on_ps = np.zeros_like(on_workers)
        if ps and job.ps is not None:
            remaining = free - on_workers[:, None] * job.worker
            ps_room = fit_counts(remaining, job.ps, self._hosts[1])
            filled = distribute(ps_room, np.argsort(-ps_room, kind="stable"), ps)
            if filled is None:
                return None
            on_ps = filled
        placement = dense_placement(on_workers, on_ps)
        if placement.colocated and job.two_rates:
            return None  # co-located placements were tried with their own, shorter duration
        return placement

    def _on_one(self, free: Integers, room: Integers, workers: int, ps: int) -> Placement | None:
        """Return a placement on the first server on which all processes fit."""
        job = self.job
        fits = room >= workers
        if ps and job.ps is not None:
            remaining = free - workers * job.worker
            fits &= self._hosts[1] & (fit_counts(remaining, job.ps) >= ps)
        servers = np.flatnonzero(fits)
        return Placement.of([(int(servers[0]), workers, ps)]) if len(servers) else None

    def explain_infeasible(self) -> Refusal | None:
        """Return why no plan with one placement completes the work."""
        if self.plain.best() is None:
            return self.plain.explain_infeasible()
        return Refusal(
            RefusalReason.NO_ROOM,
            "the job does not save its progress, so it needs one placement from its start to its "
            "end; no placement is free for that long",
        )


_MAX_NEWTON_STEPS = 20
_DISTANT_FACTOR = 1e9
"""Utility over cost at which the cost hardly matters: the best plan has the maximum utility."""
_MAX_FACTOR = 1e200  # a larger factor on the utility could overflow


def build_refusal(quote: OfferSearch, offer: PricedOffer | None) -> Refusal:
    """Return a refusal with its numbers; ``offer`` is the best one, with a payoff of at most 0."""
    if offer is None:
        return quote.explain_infeasible() or _no_schedule(quote.plain)
    _, nearest = min_acceptance_factor(quote, offer)
    if nearest is None:
        return _no_value(quote.plain, offer)
    return Refusal(
        RefusalReason.PRICE,
        f"its utility by slot {nearest.completion} is {nearest.utility:.4g}, not above the price "
        f"of its best plan, {nearest.cost:.4g}",
        value=nearest.utility,
        cost=nearest.cost,
        completion=nearest.completion,
        bottleneck=_most_expensive_resource(quote, nearest),
        numbers={"payoff": offer.payoff},
    )


def _no_value(priced: PricedJob, offer: PricedOffer) -> Refusal:
    """Return the refusal of a job that can only complete when its utility is 0."""
    view, job = priced.view, priced.job
    durations = np.arange(view.slot - job.arrival, view.end - job.arrival)
    useful = int(np.count_nonzero(job.utility.values(durations) > 0))
    shortest = -(-priced.remaining // max(priced.max_gain(), 1))
    numbers = {"slots_needed": shortest, "slots_with_value": useful}
    if shortest > useful:
        return Refusal(
            RefusalReason.NO_VALUE,
            f"needs {shortest} slots with its maximum number of workers, and its utility is 0 "
            f"after {useful}",
            value=0.0,
            cost=offer.cost,
            completion=offer.completion,
            numbers=numbers,
        )
    bottleneck = priced.find_bottleneck()
    return Refusal(
        RefusalReason.NO_ROOM,
        f"too little free capacity to complete by slot {view.slot + useful - 1}, after which its "
        f"utility is 0; planned for slot {offer.completion} at best",
        value=0.0,
        cost=offer.cost,
        completion=offer.completion,
        bottleneck=f"{bottleneck.resource} of {bottleneck.where}",
        numbers=numbers,
    )


def _no_schedule(priced: PricedJob) -> Refusal:
    view = priced.view
    slots = view.end - view.slot
    shortest = -(-priced.remaining // max(priced.max_gain(), 1))
    if shortest > slots:
        limit = "timespan" if view.until == view.end else "planning horizon"
        return Refusal(
            RefusalReason.TOO_LATE,
            f"needs {shortest} slots with its maximum number of workers, and the {limit} has "
            f"{max(slots, 0)} left",
            bottleneck=f"{limit} ending at slot {view.end}",
            numbers={"slots_needed": shortest, "slots_left": max(slots, 0)},
        )
    bottleneck = priced.find_bottleneck()
    return Refusal(
        RefusalReason.NO_ROOM,
        f"free {bottleneck.resource} capacity is only enough for {bottleneck.room:.3g} "
        f"{bottleneck.kind} a slot on average until slot {view.end}",
        bottleneck=f"{bottleneck.resource} of {bottleneck.where}",
        numbers={"mean_room": bottleneck.room},
    )


def _most_expensive_resource(quote: OfferSearch, offer: PricedOffer) -> str:
    """Describe a plan's most expensive resource, with its part of the cost and the slots."""
    schedule = quote.schedule(offer)
    label, amount = quote.plain.most_expensive(schedule)
    span = f"slots {schedule.start} to {schedule.completion}"
    return f"{label}, {amount / max(offer.cost, 1e-300):.0%} of the cost over {span}"


def min_acceptance_factor(
    quote: OfferSearch, offer: PricedOffer
) -> tuple[float, PricedOffer | None]:
    """Return the minimum factor on the utility at which some plan has a payoff of 0, and that plan.

    The factor is the minimum of cost / utility over all plans. Dinkelbach's algorithm (Newton's
    method on the largest payoff as a function of the factor) takes a few steps, each with one
    search. It starts from the offer, or from the plan of maximum utility if the offer has no
    utility. The plan is None if no plan has a utility.
    """
    job = quote.job
    nearest: PricedOffer | None = None
    if offer.utility > 0 and offer.cost / offer.utility < _DISTANT_FACTOR:
        nearest, factor = offer, offer.cost / offer.utility
    else:
        at_best = max(utility_value(job.utility, 0), 1.0 / _MAX_FACTOR)
        factor = min(_DISTANT_FACTOR * max(offer.cost, 1.0) / at_best, _MAX_FACTOR)
    for _ in range(_MAX_NEWTON_STEPS):
        better = quote.best(factor)
        if better is None or (nearest is not None and better.payoff <= 1e-9 * better.cost):
            break
        value = utility_value(job.utility, better.completion - job.arrival)
        if value <= 0:
            break
        nearest = replace(better, utility=value, payoff=value - better.cost)
        if better.cost >= _MAX_FACTOR * value:
            break
        factor = better.cost / value
    return factor, nearest

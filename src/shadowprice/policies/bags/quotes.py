"""One bag of tasks at current prices, on the servers that host workers, and its refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from shadowprice.cloning.problem import (
    CloningProblem,
    DeadlineConstraint,
    TaskGroup,
    fewest_machines,
    min_feasible_deadline,
)
from shadowprice.core.amounts import format_seconds
from shadowprice.core.bag import Bag
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, Status, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Schedule
from shadowprice.distributions.named import build_distribution
from shadowprice.kernels.slots.costs import expand_choices, slot_costs
from shadowprice.policies.bags.planner import RESERVE_SHARE, BagPlanner, CopyPlan, TabulatedCosts
from shadowprice.policies.placements import fit_counts
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.offers import BoardUse, PricedJob, PricedOffer, ResourceBottleneck

_MAX_COUNTED_COPIES = 4096  # limit of the copies counted in a slot, unless 16 per task are more


class PricedBag(PricedJob):
    """A bag at the current prices of the pool that hosts workers.

    It is among the view's open jobs, or was never submitted.
    """

    def __init__(self, board: PriceBoard, view: View, job: Job, remaining: int) -> None:
        super().__init__(view, job, remaining)
        self.board = board

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer with the largest payoff, None if no plan meets the deadline.

        An admitted bag that is replanned may have lost too much time for its miss probability. It
        then gets the best plan for twice the probability, four times, and so on.
        """
        del more
        planner = self._planner
        plan = None if planner is None else planner.best(factor)
        loosened = self._bag.miss_probability
        while plan is None and planner is not None and self._was_admitted and 2.0 * loosened < 1.0:
            loosened *= 2.0
            plan = self._planner_for(loosened).best(factor)
        return None if plan is None else self._offer(plan, factor)

    def schedule(self, offer: PricedOffer) -> Schedule:
        """Return the schedule of an offer's copies."""
        pool = self.board.window(len(offer.choice))
        demand, share = self.job.worker, self.board.shares(self.job.worker)
        choices = np.arange(len(offer.choice))
        entries = expand_choices(
            pool, demand, share, self.board.servers, pool, demand, share, self.board.servers,
            offer.choice, np.zeros_like(offer.choice), np.where(offer.choice > 0, choices, -1),
        )  # fmt: skip
        return Schedule.from_arrays(entries[:, 0] + self.view.slot, *entries[:, 1:].T)

    def max_gain(self) -> int:
        """Return the maximum number of tasks that can finish in one slot: all of them."""
        return self._bag.tasks

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource that limits the bag most until the deadline."""
        column, room = self.board.scarcest(
            self.job, ps=False, ledger=self.view.ledger, slots=max(self._slots, 1)
        )
        resource = self.view.cluster.resources[column]
        return ResourceBottleneck(resource, "worker servers", "workers", room)

    def uses(self, schedule: Schedule) -> list[BoardUse]:
        """Return what a schedule takes from the board."""
        return [BoardUse(" of worker servers", self.board, schedule.workers, self.job.worker)]

    def explain_infeasible(self) -> Refusal:
        """Return why no plan meets the deadline."""
        view = self.view
        last = self.job.arrival + self._bag.slots - 1
        if view.slot > last:
            return refuse_past_deadline(self.job, self._remaining_tasks)
        limit = "timespan" if view.until == view.end else "planning horizon"
        cut = f", in the {limit} that ends at slot {view.end}" if view.end <= last else ""
        planner = self._planner
        need = None if planner is None else planner.min_units(self._slots - 1)
        if planner is None or need is None:
            places = self._costs.limit if self._slots > 0 else 0
            return refuse_infeasible_deadline(
                self.job, self._remaining_tasks, view.slot, self._slots, places, cut
            )
        # Later starts need more units.
        max_room = max(planner.room(start) for start in range(self._slots))
        bottleneck = self.find_bottleneck()
        return Refusal(
            RefusalReason.NO_ROOM,
            f"needs room for {need} copies in one slot, or more in later slots, plus room for "
            f"copies still running{cut}; no slot before its deadline has room for more than "
            f"{max_room}",
            bottleneck=f"{bottleneck.resource} of {bottleneck.where}",
            numbers={"places_needed": need, "max_room": max_room},
        )

    # ---------------------------------------------------------------- state

    @property
    def _bag(self) -> Bag:
        assert self.job.bag is not None
        return self.job.bag

    @property
    def _state(self) -> JobState | None:
        """State of the bag, None if it was never submitted."""
        return self.view.open_jobs.get(self.job.name)

    @property
    def _remaining_tasks(self) -> tuple[int, ...]:
        """Unfinished tasks by group."""
        if self._state is None:
            return tuple(group.count for group in self._bag.groups)
        return self._state.tasks_left

    @property
    def _was_admitted(self) -> bool:
        """Whether the bag was admitted before."""
        return self._state is not None and self._state.status is not Status.ARRIVED

    @property
    def _slots(self) -> int:
        """Number of usable slots: to the deadline and the end of plans."""
        return min(self.job.arrival + self._bag.slots, self.view.end) - self.view.slot

    @cached_property
    def _costs(self) -> TabulatedCosts:
        demand = self.job.worker
        capacity = self.view.ledger.capacity[self.board.servers]
        fits = int(fit_counts(capacity, demand).sum())
        limit = min(fits, max(_MAX_COUNTED_COPIES, 16 * self._bag.tasks))
        counts = np.arange(limit + 1, dtype=np.int64)
        pool, share = self.board.window(self._slots), self.board.shares(demand)
        # A row for each state of the servers: most slots have no reservations.
        states, state = np.unique(pool.row_of, return_inverse=True)
        pool, no_ps = pool._replace(row_of=states), np.zeros_like(counts)
        table = slot_costs(pool, demand, share, pool, demand, share, counts, no_ps)
        return TabulatedCosts(table, state)

    @cached_property
    def _planner(self) -> BagPlanner | None:
        return self._planner_for(self._bag.miss_probability) if self._slots > 0 else None

    def _planner_for(self, miss_probability: float) -> BagPlanner:
        elapsed = self.view.slot - self.job.arrival
        return BagPlanner(
            bag=self._bag,
            left=self._remaining_tasks,
            passed=elapsed,
            costs=self._costs,
            utility=self.job.utility.values(np.arange(elapsed, elapsed + self._slots)),
            miss_probability=miss_probability,
        )

    def _offer(self, plan: CopyPlan, factor: float) -> PricedOffer:
        end = plan.start + len(plan.places) - 1
        completion = self.view.slot + end
        duration = np.array([completion - self.job.arrival])
        utility = factor * float(self.job.utility.values(duration)[0])
        places = np.zeros(end + 1, dtype=np.int64)
        places[plan.start :] = plan.places
        return PricedOffer(
            completion=completion,
            utility=utility,
            cost=plan.cost,
            payoff=utility - plan.cost,
            choice=places,
            copies=plan.copies,
        )


def refuse_past_deadline(job: Job, remaining: Sequence[int]) -> Refusal:
    """Return the refusal of a bag whose deadline has passed; ``remaining`` is by group."""
    bag = job.bag
    assert bag is not None
    last = job.arrival + bag.slots - 1
    unfinished = sum(remaining)
    return Refusal(
        RefusalReason.DEADLINE,
        f"its deadline passed in slot {last} with {unfinished} of {bag.tasks} tasks unfinished",
        numbers={"tasks_unfinished": unfinished},
    )


def refuse_infeasible_deadline(
    job: Job, remaining: Sequence[int], slot: int, slot_count: int, units: int, limit_text: str = ""
) -> Refusal:
    """Return the refusal of a bag that would miss its deadline even with all capacity.

    ``units`` copies of the ``remaining`` tasks by group fit at once, in ``slot_count`` slots from
    ``slot`` on. ``limit_text`` names another limit of the time, if there is one.
    """
    bag = job.bag
    assert bag is not None
    if slot_count <= 0:
        return Refusal(RefusalReason.TOO_LATE, f"no slot is left for it{limit_text}")
    elapsed = slot - job.arrival
    time = min(float(slot_count), bag.deadline - elapsed) * bag.slot_seconds
    groups = [
        TaskGroup(count, build_distribution(group.distribution))
        for count, group in zip(remaining, bag.groups, strict=True)
        if count
    ]
    tasks = sum(group.count for group in groups)
    # `CloningProblem` needs a machine for each task, so the bound is optimistic if fewer units fit.
    machines = max(units, tasks)
    # Only this share of the miss probability is spent on copies; the rest covers reserving fewer
    # units.
    share = 1.0 - RESERVE_SHARE
    problem = CloningProblem(groups, machines, time, bag.miss_probability * share)
    decays = problem.decays(time)
    best = 1.0
    if decays.min() > 0.0:
        phi, _ = fewest_machines(problem, DeadlineConstraint.EXACT, machines, decays)
        best = -math.expm1(-phi) / share
    # Reported deadlines count from the submission.
    slots_since_submission = elapsed + job.before_arrival
    soonest = min_feasible_deadline(problem) + slots_since_submission * bag.slot_seconds
    return Refusal(
        RefusalReason.TOO_LATE if limit_text else RefusalReason.DEADLINE,
        f"no number of copies on {machines} places ends {tasks} tasks within "
        f"{format_seconds(time)} with a miss probability of {bag.miss_probability:g}{limit_text}; "
        f"the best misses with {min(best, 1.0):.3g}",
        numbers={"best_miss_probability": min(best, 1.0), "smallest_deadline_s": soonest},
    )

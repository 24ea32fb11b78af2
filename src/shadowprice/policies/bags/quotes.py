"""One bag of tasks at the prices of one moment, on the servers of a board that carry workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.bag import Bag
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, Status, View
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.slots.costs import expand_choices, slot_costs
from shadowprice.policies.bags.planner import BagPlanner, Plan
from shadowprice.policies.bags.refusals import out_of_reach, past_deadline
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.offers import Offer, Scarcity

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_PLACES = 4096
"""Places of a slot that are weighed, at least; large bags weigh more."""


@dataclass(frozen=True)
class BagQuote:
    """See `policies.pricing.offers.Quote`.

    Parameters
    ----------
    board : PriceBoard
        The pool that carries workers, at the prices of the moment.
    view : View
        The state; the bag is among its open jobs, or was never submitted.
    job : Job
        The bag.
    """

    board: PriceBoard
    view: View
    job: Job

    def best(self, factor: float = 1.0, *, more: int = 0) -> Offer | None:
        """Return the offer of largest payoff, None where no plan keeps the deadline.

        A bag that was admitted before and has to be planned anew may have lost too much time for
        its miss probability; it then gets the best plan for twice the probability, four times it,
        and so on.
        """
        del more
        planner = self._planner
        plan = None if planner is None else planner.best(factor)
        loosened = self._bag.miss_probability
        while plan is None and planner is not None and self._kept and 2.0 * loosened < 1.0:
            loosened *= 2.0
            plan = self._planner_for(loosened).best(factor)
        return None if plan is None else self._offer(plan, factor)

    def outpriced(self) -> None:
        """Prove nothing: no bound is known that takes less time than the best offer."""

    def schedule(self, offer: Offer) -> Schedule:
        """Return where the copies of an offer stand."""
        pool = self.board.window(len(offer.choice))
        demand, share = self.job.worker, self.board.shares(self.job.worker)
        each = np.arange(len(offer.choice))
        entries = expand_choices(
            pool,
            demand,
            share,
            self.board.servers,
            pool,
            demand,
            share,
            self.board.servers,
            offer.choice,
            np.zeros_like(offer.choice),
            np.where(offer.choice > 0, each, -1),
        )
        return Schedule.from_arrays(
            entries[:, 0] + self.view.slot,
            entries[:, 1].copy(),
            entries[:, 2].copy(),
            entries[:, 3].copy(),
        )

    def fastest(self) -> int:
        """Return the most tasks that can finish in one slot: all of them."""
        return self._bag.tasks

    def scarcest(self) -> Scarcity:
        """Return what leaves the least room until the deadline."""
        column, room = self.board.scarcest(
            self.job, ps=False, ledger=self.view.ledger, slots=max(self._slots, 1)
        )
        resource = self.view.cluster.resources[column]
        return Scarcity(resource, "worker servers", "workers", room)

    def dearest(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource that makes up most of a schedule's cost."""
        total = self.board.spent(self.view.ledger, schedule, schedule.workers, self.job.worker)
        column = int(np.argmax(total))
        return f"{self.view.cluster.resources[column]} of worker servers", float(total[column])

    def slot_costs(self, schedule: Schedule) -> NDArray[np.float64]:
        """Return what a schedule costs in each of its active slots."""
        ledger, job = self.view.ledger, self.job
        return self.board.spent_by_slot(ledger, schedule, schedule.workers, job.worker)

    def hopeless(self) -> Refusal:
        """Return why no plan keeps the deadline."""
        view = self.view
        last = self.job.arrival + self._bag.slots - 1
        if view.slot > last:
            return past_deadline(self.job, self._left)
        limit = "timespan" if view.until == view.end else "planning horizon"
        cut = f", in the {limit} that ends at slot {view.end}" if view.end <= last else ""
        planner = self._planner
        need = None if planner is None else planner.least_places(self._slots - 1)
        if planner is None or need is None:
            return self._hopeless(cut)
        # Every later start needs more.
        open_now = max(planner.room(start) for start in range(self._slots))
        scarce = self.scarcest()
        return Refusal(
            Reason.NO_ROOM,
            f"needs {need} places in one slot or more of them later, and places for what still "
            f"runs after it{cut}; until its deadline no slot has room for more than {open_now}",
            bottleneck=f"{scarce.resource} of {scarce.where}",
            numbers={"places_needed": need, "most_room": open_now},
        )

    # ---------------------------------------------------------------- the bag and its market

    @property
    def _bag(self) -> Bag:
        assert self.job.bag is not None
        return self.job.bag

    @property
    def _state(self) -> JobState | None:
        """Its life so far, None where it is only asked about."""
        return self.view.open_jobs.get(self.job.name)

    @property
    def _left(self) -> tuple[int, ...]:
        """Unfinished tasks by group."""
        if self._state is None:
            return tuple(group.count for group in self._bag.groups)
        return self._state.tasks_left

    @property
    def _kept(self) -> bool:
        """Whether it was admitted before."""
        return self._state is not None and self._state.status is not Status.ARRIVED

    @property
    def _slots(self) -> int:
        """Slots that can be used: up to the deadline, and as far as plans may go."""
        return min(self.job.arrival + self._bag.slots, self.view.end) - self.view.slot

    @cached_property
    def _costs(self) -> Floats:
        """Least cost of every number of places in every usable slot."""
        demand = self.job.worker
        capacity = self.view.ledger.capacity[self.board.servers]
        asked = demand > 0
        fits = (capacity[:, asked] // demand[asked]).min(axis=1)
        most = min(int(fits.sum()), max(_PLACES, 16 * self._bag.tasks))
        counts = np.arange(most + 1, dtype=np.int64)
        pool, share = self.board.window(self._slots), self.board.shares(demand)
        nothing = np.zeros_like(counts)
        return np.asarray(slot_costs(pool, demand, share, pool, demand, share, counts, nothing))

    @cached_property
    def _planner(self) -> BagPlanner | None:
        return self._planner_for(self._bag.miss_probability) if self._slots > 0 else None

    def _planner_for(self, miss_probability: float) -> BagPlanner:
        passed = self.view.slot - self.job.arrival
        return BagPlanner(
            bag=self._bag,
            left=self._left,
            passed=passed,
            cost=self._costs,
            utility=self.job.utility.values(np.arange(passed, passed + self._slots)),
            miss_probability=miss_probability,
        )

    def _offer(self, plan: Plan, factor: float) -> Offer:
        ends = plan.start + len(plan.places) - 1
        completion = self.view.slot + ends
        duration = np.array([completion - self.job.arrival])
        worth = factor * float(self.job.utility.values(duration)[0])
        places = np.zeros(ends + 1, dtype=np.int64)
        places[plan.start :] = plan.places
        return Offer(
            completion=completion,
            utility=worth,
            cost=plan.cost,
            payoff=worth - plan.cost,
            choice=places,
            copies=plan.copies,
        )

    def _hopeless(self, cut: str) -> Refusal:
        """Return the refusal of a bag that all places of the pool together could not save."""
        places = self._costs.shape[1] - 1 if self._slots > 0 else 0
        return out_of_reach(self.job, self._left, self.view.slot, self._slots, places, cut)

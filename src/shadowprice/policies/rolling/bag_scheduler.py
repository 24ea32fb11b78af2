"""Decisions of `rolling` about bags of tasks: promise, start slot, and number of copies.

The promise of a bag is a slot by whose end all tasks are done. It may be missed with the
probability that the bag states, because durations are random. A bag's plan reserves the units of
capacity that its copies may still need, on certain servers, and all other jobs are planned around
it. A bag may move until its copies start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision, Pause, Place, Promise
from shadowprice.core.job import Job
from shadowprice.core.policy import View
from shadowprice.core.refusal import Refusal
from shadowprice.core.utility import utility_value
from shadowprice.policies.bags.planner import (
    BagPlanner,
    CopyPlan,
    ProportionalCosts,
    refuse_infeasible_deadline,
    refuse_past_deadline,
)
from shadowprice.policies.placements import fit_counts
from shadowprice.policies.rolling.offers import NO_CEILING, Offer, end_waiting
from shadowprice.policies.rolling.planner import CountedPlans, Planner
from shadowprice.policies.rolling.state import BagPlan, State

_MAX_COPIES: Final = 256  # counted of a slot's free capacity, or 16 per task if that is more
_MAX_PLANNED: Final = 32  # maximum number of bags that are planned when a slot begins


@dataclass(frozen=True, slots=True)
class BagOffer(Offer):
    """A plan that a bag could have."""

    plan: CopyPlan  # its start is relative to the next slot


class BagScheduler:
    """Decides about bags of tasks."""

    def __init__(self, cluster: Cluster, until: int | None, planner: Planner) -> None:
        self._cluster, self._until, self._planner = cluster, until, planner

    # ---------------------------------------------------------------- submission

    def density(self, state: State, slot: int, job: Job) -> float:
        """Return the maximum utility per worker-slot (`ranking_weights`) with a copy per task."""
        bag = job.bag
        assert bag is not None
        soonest = slot + bag.shortest_slots - 1
        value = utility_value(job.utility, soonest - job.arrival)
        weight = state.demand.copy_weight(slot, job)
        return value / max(weight * bag.worker_slots, 1e-300)

    def answer(self, state: State, slot: int, job: Job) -> Promise | Refusal:
        """Return the promise of a new bag, or its refusal."""
        price = state.demand.copy_cost(slot, job)
        offer = self._offer(state, slot, job, price, CountedPlans.ALL)
        if promise := self._promise(state, slot, job, offer):
            return promise
        alone = self._offer(state, slot, job, price, CountedPlans.NONE)
        if alone is None:
            return self._refuse_out_of_reach(state, slot, job)
        if alone.utility <= alone.cost:
            return alone.refuse_below_price()
        if self._planner.revises:  # try a plan for which others must move
            moved = self._offer(state, slot, job, price, CountedPlans.BAGS_AND_PINNED)
            if promise := self._promise(state, slot, job, moved):
                return promise
        if offer is not None and offer.utility <= offer.cost:
            return offer.refuse_below_price()
        return alone.refuse_no_capacity(None, None)

    def may_wait(self, state: State, slot: int, job: Job) -> bool:
        """Return whether a bag could meet its deadline on all servers alone."""
        if not state.servers.all_up:  # lost servers may come back
            return True
        if job.name in state.bags.promised_once:  # any miss probability is allowed; see `_offer`
            return self._usable_slots(slot, job) > 0
        search = self._search(state, slot, job, 0.0, CountedPlans.NONE, 1.0)
        # Whether any number of copies keeps a promise for the last usable slot.
        return search is not None and search.min_units(len(search.utility) - 1) is not None

    def _refuse_out_of_reach(self, state: State, slot: int, job: Job) -> Refusal:
        remaining, slots = state.bags.remaining[job.name], self._usable_slots(slot, job)
        capacity = self._capacity(state, slot, job, CountedPlans.NONE)
        return refuse_infeasible_deadline(job, remaining, slot, slots, int(capacity.max(initial=0)))

    # ---------------------------------------------------------------- plans

    def _usable_slots(self, slot: int, job: Job) -> int:
        """Return the number of slots to the deadline or the timespan's end, at most a horizon."""
        assert job.bag is not None
        end = min(job.arrival + job.bag.slots, slot + self._cluster.horizon)
        return (end if self._until is None else min(end, self._until)) - slot

    def _capacity(self, state: State, slot: int, job: Job, counted: CountedPlans) -> Integers:
        assert job.bag is not None
        limit = max(_MAX_COPIES, 16 * job.bag.tasks)
        end = slot + max(0, self._usable_slots(slot, job))
        return self._planner.copy_capacity(state, slot, job, end, limit, counted)

    def _search(
        self,
        state: State,
        slot: int,
        job: Job,
        price: float,
        counted: CountedPlans,
        miss_factor: float,
    ) -> BagPlanner | None:
        """Return the plan search in what ``counted`` plans leave; None if no unit is free."""
        bag, elapsed = job.bag, slot - job.arrival
        assert bag is not None
        capacity = self._capacity(state, slot, job, counted)
        plan = state.bags.plans.get(job.name)
        if plan is not None and counted is CountedPlans.ALL:  # a bag may use its own reservation
            own = [plan.count(slot + k) for k in range(len(capacity))]
            capacity = capacity + np.array(own, np.int64)
        if not len(capacity) or not capacity.any():
            return None
        return BagPlanner(
            bag=bag,
            remaining=state.bags.remaining[job.name],
            elapsed=elapsed,
            costs=ProportionalCosts(price, capacity),
            utility=job.utility.values(elapsed + np.arange(len(capacity), dtype=np.float64)),
            miss_probability=min(bag.miss_probability * miss_factor, 1.0),
        )

    def _offer(
        self, state: State, slot: int, job: Job, price: float, counted: CountedPlans
    ) -> BagOffer | None:
        """Return the plan with the largest payoff in what ``counted`` plans leave, or None."""
        bag = job.bag
        assert bag is not None
        # A bag that was promised once may have lost too much time for its miss probability. It gets
        # the best plan for twice that, four times, and so on.
        miss_factor = 1.0
        while miss_factor * bag.miss_probability < 1.0:
            search = self._search(state, slot, job, price, counted, miss_factor)
            if search is None:
                return None
            plan = search.best()
            if plan is not None:
                target = completion = slot + plan.start + len(plan.places) - 1
                utility = utility_value(job.utility, completion - job.arrival)
                if utility <= 0.0:
                    return None
                return BagOffer(target, NO_CEILING, completion, utility, plan.cost, plan)
            if job.name not in state.bags.promised_once:
                return None
            miss_factor *= 2.0
        return None

    def _reserve(self, state: State, slot: int, job: Job, offer: BagOffer) -> bool:
        """Reserve a bag's plan, if its copies fit and all promises can be kept around it."""
        bags, name = state.bags, job.name
        previous = bags.plans.pop(name, None)
        plan = self._assign_servers(state, slot, job, offer.plan)
        if plan is not None:
            bags.plans[name] = plan
            joint_plan = self._planner.replan_around_bags(state, slot)
            if joint_plan is not None:
                self._planner.put_in_force(state, joint_plan)
                bags.broken.pop(name, None)
                return True
            del bags.plans[name]
        if previous is not None:
            bags.plans[name] = previous
        return False

    def _assign_servers(self, state: State, slot: int, job: Job, plan: CopyPlan) -> BagPlan | None:
        """Assign the copies of a plan to servers that hold them to its end; None if none can.

        A plan that starts at once prefers servers without training jobs.
        """
        bags, start, capacity = state.bags, slot + plan.start, state.servers.capacity()
        pinning = self._planner.pinning
        end = start + len(plan.places) - 1
        hosts = self._cluster.hosts_workers
        fits = np.where(hosts, int(plan.places[0]), 0)
        for first in {start, *(change for change in bags.change_slots(start) if change <= end)}:
            used = bags.usage(first) + pinning.usage(state.plan.pinned, first)
            fits = np.minimum(fits, fit_counts(capacity - used, job.worker))
        unused = fits
        if not plan.start:
            free = capacity - bags.usage(start) - state.jobs.usage()
            unused = np.minimum(fits, fit_counts(free, job.worker))
        counts, remaining = np.zeros(len(fits), np.int64), int(plan.places[0])
        for limit in (unused, fits):
            while remaining:
                # Best fit, else the server with most capacity: few servers, small remainders.
                spare = limit - counts
                enough = np.flatnonzero(spare >= remaining)
                server = int(enough[np.argmin(spare[enough])] if len(enough) else np.argmax(spare))
                if spare[server] <= 0:
                    break
                count = min(int(spare[server]), remaining)
                counts[server] += count
                remaining -= count
        if remaining:
            return None
        servers = np.flatnonzero(counts)
        return BagPlan(start, plan.copies, plan.places.copy(), servers, counts[servers])

    def _promise(
        self, state: State, slot: int, job: Job, offer: BagOffer | None, message: str = ""
    ) -> Promise | None:
        """Reserve an offer if it is worth its price; return the promise, None without one."""
        if offer is None or offer.utility <= offer.cost:
            return None
        if not self._reserve(state, slot, job, offer):
            return None
        state.bags.promise[job.name] = offer.completion
        state.bags.promised_once.add(job.name)
        return offer.promise(job.name, offer.completion, message, offer.plan.copies)

    # ---------------------------------------------------------------- revision

    def replan_broken(self, state: State, slot: int) -> Iterator[Decision]:
        """Replan promised bags that lost their plan; yield new promises, or withdraw the old."""
        bags = state.bags
        for name, reason in list(bags.broken.items()):
            job = bags.jobs[name]
            del bags.broken[name]
            if name not in bags.promise:
                continue
            attempts = (CountedPlans.ALL, CountedPlans.BAGS_AND_PINNED)
            for counted in attempts if self._planner.revises else attempts[:1]:
                offer = self._offer(state, slot, job, 0.0, counted)  # a promise isn't priced again
                if promise := self._promise(state, slot, job, offer, reason):
                    yield promise
                    break
            else:
                del bags.promise[name]
                yield Promise(name, None, message=f"{reason}; the job waits")

    def drop_infeasible(self, state: State, view: View) -> Iterator[Decision]:
        """Abandon waiting bags that can't complete in time with any number of copies."""
        for name in state.bags.unpromised():
            job, remaining = state.bags.jobs[name], state.bags.remaining[name]
            if self.may_wait(state, view.slot, job):
                continue
            if self._usable_slots(view.slot, job) <= 0:
                refusal = refuse_past_deadline(job, remaining)
            else:
                refusal = self._refuse_out_of_reach(state, view.slot, job)
            state.bags.remove(name)
            yield end_waiting(view.open_jobs[name], refusal)

    def promise_waiting(self, state: State, slot: int, *, at_no_cost: bool) -> Iterator[Promise]:
        """Promise waiting bags that are worth their price in the free capacity, the densest first.

        With ``at_no_cost``, capacity costs nothing, but a bag must start at once.
        """
        bags = state.bags
        jobs = [bags.jobs[name] for name in bags.unpromised()]
        jobs.sort(key=lambda job: -self.density(state, slot, job))
        for job in islice(jobs, _MAX_PLANNED):
            price = 0.0 if at_no_cost else state.demand.copy_cost(slot, job)
            offer = self._offer(state, slot, job, price, CountedPlans.ALL)
            if at_no_cost and offer is not None and offer.plan.start:
                continue
            if promise := self._promise(state, slot, job, offer):
                yield promise

    def start_early(self, state: State, slot: int) -> None:
        """Start later-planned bags now if capacity is free, unless that pays less."""
        for name, plan in islice(list(state.bags.plans.items()), _MAX_PLANNED):
            if plan.begun or plan.start == slot:
                continue
            job = state.bags.jobs[name]
            price = state.demand.copy_cost(slot, job)
            offer = self._offer(state, slot, job, price, CountedPlans.ALL)
            if offer is None or offer.plan.start or offer.completion > plan.end:
                continue
            utility = utility_value(job.utility, plan.end - job.arrival)
            if offer.utility - offer.cost >= utility - price * int(plan.units.sum()):
                self._reserve(state, slot, job, offer)

    # ---------------------------------------------------------------- placement

    def release_finished(self, state: State, view: View) -> Iterator[Decision]:
        """Release finished and superfluous copies, before other jobs move into their place."""
        for name in state.bags.jobs:
            placement = view.open_jobs[name].placement
            if placement is None:
                continue
            plan = state.bags.plans.get(name)
            if plan is None or not plan.begun:
                yield Pause(name)
            elif plan.placement(view.slot) != placement:
                yield Place(name, plan.placement(view.slot))

    def start(self, state: State, slot: int) -> Iterator[Decision]:
        """Start the copies that are planned for the next slot, after other jobs have moved away."""
        for name, plan in state.bags.plans.items():
            if not plan.begun and plan.start == slot:
                state.bags.plans[name] = replace(plan, begun=True)
                yield Place(name, plan.placement(slot), plan.copies)

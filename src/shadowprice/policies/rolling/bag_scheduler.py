"""Decisions of `rolling` about bags of tasks: promise, start slot, and number of copies.

A bag promises a slot by whose end all tasks are done, except with its miss probability, because
durations are random. Its plan reserves the units that copies may still need, on servers of its own,
and all other plans are laid out around it. A bag may move until its copies start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision, Drop, Pause, Place, Promise, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Status, View
from shadowprice.core.refusal import Refusal
from shadowprice.core.utility import utility_value
from shadowprice.policies.bags.planner import BagPlanner, Plan
from shadowprice.policies.bags.refusals import out_of_reach, past_deadline
from shadowprice.policies.rolling.bags import BagBook, CopyPlan
from shadowprice.policies.rolling.offers import Offer, crowded, dear
from shadowprice.policies.rolling.planner import Beside, Planner

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_PLACES: Final = 256
"""Limit of the copies counted in a slot, unless 16 per task are more."""

_CONSIDERED: Final = 32
"""Maximum number of bags that are planned when a slot begins, the densest first."""


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """A plan that a bag could have.

    Parameters
    ----------
    plan : Plan
        Start of its copies, counted from the next slot, and the units they need.
    done : int
        Last slot of the plan: the promise.
    utility, cost : float
        Utility of completing then, and the plan's cost at current prices.
    """

    plan: Plan
    done: int
    utility: float
    cost: float

    @property
    def offer(self) -> Offer:
        """The offer in the form that `reasons` reports."""
        return Offer(self.done, 0, self.done, self.utility, self.cost)


class Copies:
    """Decides about bags of tasks.

    Parameters
    ----------
    until : int or None
        End of the timespan T.
    price : callable
        Cost of one copy in a slot, from the next slot and the bag.
    revision, standby : bool
        As in `RollingParameters`.
    """

    def __init__(
        self,
        cluster: Cluster,
        until: int | None,
        bags: BagBook,
        planner: Planner,
        price: Callable[[int, Job], float],
        *,
        revision: bool,
        standby: bool,
    ) -> None:
        self._cluster, self._until = cluster, until
        self._bags, self._planner, self._price = bags, planner, price
        self._revision, self._standby = revision, standby

    # ---------------------------------------------------------------- submission

    def answer(self, slot: int, job: Job, capacity: Integers) -> Decision:
        """Return a promise if a bag is worth its price; otherwise queue or refuse it.

        ``capacity`` has the capacity of each server, 0 for lost ones.
        """
        self._bags.add(job)
        promise, refusal = self._decide(slot, job, capacity)
        if promise is not None:
            return promise
        assert refusal is not None
        if self._standby and self._may_wait(slot, job):
            return Queue(job.name, f"waits without a promise: {refusal.message}")
        self._bags.remove(job.name)
        return Reject(job.name, refusal)

    def density(self, slot: int, job: Job, weight: float) -> float:
        """Return the maximum utility of a bag by weighted worker-slot, with one copy a task."""
        bag = job.bag
        assert bag is not None
        soonest = slot + bag.shortest_slots - 1
        value = utility_value(job.utility, soonest - job.arrival)
        return value / max(weight * bag.worker_slots, 1e-300)

    def _decide(
        self, slot: int, job: Job, capacity: Integers
    ) -> tuple[Promise | None, Refusal | None]:
        """Return a promise, or a refusal."""
        price = self._price(slot, job)
        offer = self._offer(slot, job, price, Beside.ALL)
        if self._pays(slot, job, offer, capacity):
            assert offer is not None
            return self._promise(job, offer), None
        alone = self._offer(slot, job, price, Beside.NOBODY)
        if alone is None:
            return None, self._hopeless(slot, job)
        if alone.utility <= alone.cost:
            return None, dear(alone.offer)
        if self._revision:
            moved = self._offer(slot, job, price, Beside.BAGS)
            if self._pays(slot, job, moved, capacity):
                assert moved is not None
                return self._promise(job, moved), None
        if offer is not None and offer.utility <= offer.cost:
            return None, dear(offer.offer)
        return None, crowded(alone.offer, None, None)

    def _pays(self, slot: int, job: Job, found: CopyOffer | None, capacity: Integers) -> bool:
        """Allocate an offer if it is worth its price; return whether that succeeded."""
        if found is None or found.utility <= found.cost:
            return False
        return self._take(slot, job, found, capacity)

    def _may_wait(self, slot: int, job: Job) -> bool:
        """Return whether a bag could meet its deadline on all servers alone."""
        if not self._planner.whole:  # lost servers may come back
            return True
        if job.name in self._bags.kept:
            return self._slots(slot, job) > 0
        planner = self._planner_of(slot, job, 0.0, Beside.NOBODY)
        return planner is not None and planner.least_places(len(planner.utility) - 1) is not None

    def _hopeless(self, slot: int, job: Job) -> Refusal:
        remaining, slots = self._bags.left[job.name], self._slots(slot, job)
        room = self._room(slot, job, Beside.NOBODY)
        return out_of_reach(job, remaining, slot, slots, int(room.max(initial=0)))

    # ---------------------------------------------------------------- plans

    def _slots(self, slot: int, job: Job) -> int:
        """Return the number of usable slots: to the deadline, at most a horizon."""
        assert job.bag is not None
        end = min(job.arrival + job.bag.slots, slot + self._cluster.horizon)
        return (end if self._until is None else min(end, self._until)) - slot

    def _room(self, slot: int, job: Job, beside: Beside) -> Integers:
        assert job.bag is not None
        limit = max(_PLACES, 16 * job.bag.tasks)
        end = slot + max(0, self._slots(slot, job))
        return self._planner.copy_capacity(slot, job, end, limit, beside)

    def _planner_of(
        self, slot: int, job: Job, price: float, beside: Beside, looser: float = 1.0
    ) -> BagPlanner | None:
        """Return the plan search in the free capacity; None if no slot or unit is free."""
        bag, elapsed = job.bag, slot - job.arrival
        assert bag is not None
        room = self._room(slot, job, beside)
        plan = self._bags.plans.get(job.name)
        if plan is not None and beside is Beside.ALL:
            room = room + np.array([plan.count(slot + k) for k in range(len(room))], np.int64)
        if not len(room) or not room.any():
            return None
        counts = np.arange(int(room.max()) + 1)
        cost = np.where(counts <= room[:, None], counts * price, np.inf)
        return BagPlanner(
            bag=bag,
            left=self._bags.left[job.name],
            passed=elapsed,
            cost=cost,
            utility=job.utility.values(np.arange(elapsed, elapsed + len(room)).astype(np.float64)),
            miss_probability=min(bag.miss_probability * looser, 1.0),
        )

    def _offer(self, slot: int, job: Job, price: float, beside: Beside) -> CopyOffer | None:
        """Return the plan with the largest payoff in the free capacity; None if there is none.

        A bag that was promised once may have lost too much time for its miss probability. It gets
        the best plan for twice that, four times, and so on.
        """
        bag = job.bag
        assert bag is not None
        looser = 1.0
        while looser * bag.miss_probability < 1.0:
            planner = self._planner_of(slot, job, price, beside, looser)
            if planner is None:
                return None
            plan = planner.best()
            if plan is not None:
                done = slot + plan.start + len(plan.places) - 1
                utility = utility_value(job.utility, done - job.arrival)
                return CopyOffer(plan, done, utility, plan.cost) if utility > 0.0 else None
            if job.name not in self._bags.kept:
                return None
            looser *= 2.0
        return None

    def _take(self, slot: int, job: Job, found: CopyOffer, capacity: Integers) -> bool:
        """Reserve a bag's plan, if its copies fit and all promises can be kept around it."""
        bags, name = self._bags, job.name
        previous = bags.plans.pop(name, None)
        plan = self._stood(slot, job, found.plan, capacity)
        if plan is not None:
            bags.plans[name] = plan
            if self._planner.replan_around_bags(slot, revise=self._revision):
                bags.broken.pop(name, None)
                return True
            del bags.plans[name]
        if previous is not None:
            bags.plans[name] = previous
        return False

    def _stood(self, slot: int, job: Job, plan: Plan, capacity: Integers) -> CopyPlan | None:
        """Assign the copies of a plan to servers that can hold them from its start to its end.

        A plan that starts at once prefers servers without training jobs. Returns None if it doesn't
        fit.
        """
        bags, stays, start = self._bags, self._planner.stays, slot + plan.start
        end = start + len(plan.places) - 1
        needed = job.worker > 0
        hosts = self._cluster.hosts_workers
        fits = np.where(hosts, int(plan.places[0]), 0)
        for at in {start, *(cut for cut in bags.cuts(start) if cut <= end)}:
            free = np.maximum(capacity - bags.held(at) - stays.held(at), 0)[:, needed]
            fits = np.minimum(fits, (free // job.worker[needed]).min(axis=1, initial=1 << 40))
        unused = fits
        if not plan.start:
            free = np.maximum(capacity - bags.held(start) - self._planner.standing(), 0)[:, needed]
            unused = np.minimum(fits, (free // job.worker[needed]).min(axis=1, initial=1 << 40))
        counts, remaining = np.zeros(len(fits), np.int64), int(plan.places[0])
        for room in (unused, fits):
            while remaining:
                # Best fit, else the server with most capacity: few servers, small remainders.
                spare = room - counts
                enough = np.flatnonzero(spare >= remaining)
                at = int(enough[np.argmin(spare[enough])] if len(enough) else np.argmax(spare))
                if spare[at] <= 0:
                    break
                count = min(int(spare[at]), remaining)
                counts[at] += count
                remaining -= count
        if remaining:
            return None
        servers = np.flatnonzero(counts)
        return CopyPlan(start, plan.copies, plan.places.copy(), servers, counts[servers])

    def _promise(self, job: Job, found: CopyOffer, message: str = "") -> Promise:
        """Record and return the promise of an offer."""
        self._bags.promise[job.name] = found.done
        self._bags.kept.add(job.name)
        values = found.utility - found.cost, found.utility, found.cost
        return Promise(job.name, found.done, found.done, *values, message, found.plan.copies)

    # ---------------------------------------------------------------- revision

    def mend(self, slot: int, capacity: Integers) -> Iterator[Decision]:
        """Replan bags that lost their plan; yield a new promise, or its withdrawal."""
        bags = self._bags
        for name, reason in list(bags.broken.items()):
            job = bags.jobs[name]
            del bags.broken[name]
            if name not in bags.promise:
                continue
            scopes = (Beside.ALL, Beside.BAGS) if self._revision else (Beside.ALL,)
            for scope in scopes:
                offer = self._offer(slot, job, 0.0, scope)
                if offer is not None and self._take(slot, job, offer, capacity):
                    yield self._promise(job, offer, reason)
                    break
            else:
                del bags.promise[name]
                yield Promise(name, None, message=f"{reason}: it waits")

    def drop_infeasible(self, view: View) -> Iterator[Decision]:
        """Abandon waiting bags that can't complete in time with any number of copies."""
        for name in self._bags.waiting():
            job, remaining = self._bags.jobs[name], self._bags.left[name]
            if self._may_wait(view.slot, job):
                continue
            too_late = self._slots(view.slot, job) <= 0
            refusal = past_deadline(job, remaining) if too_late else self._hopeless(view.slot, job)
            self._bags.remove(name)
            admitted = view.open_jobs[name].status is Status.ADMITTED
            yield (Drop if admitted else Reject)(name, refusal)

    def plan_waiting(
        self, slot: int, capacity: Integers, weight: Callable[[Job], float], *, free: bool
    ) -> Iterator[Promise]:
        """Promise waiting bags that are worth their price in the free capacity, the densest first.

        Parameters
        ----------
        capacity : ndarray of int64, shape (servers, resources)
            Capacity of the servers, 0 for lost ones.
        weight : callable
            Weight of a copy, for ranking.
        free : bool
            Whether capacity that no plan uses costs nothing. A bag must then start at once.
        """
        bags = self._bags
        jobs = [bags.jobs[name] for name in bags.waiting()]
        jobs.sort(key=lambda job: -self.density(slot, job, weight(job)))
        for job in islice(jobs, _CONSIDERED):
            offer = self._offer(slot, job, 0.0 if free else self._price(slot, job), Beside.ALL)
            if offer is None or offer.utility <= offer.cost or (free and offer.plan.start):
                continue
            if self._take(slot, job, offer, capacity):
                yield self._promise(job, offer)

    def advance(self, slot: int, capacity: Integers) -> None:
        """Start later-planned bags now if that pays more and capacity is free."""
        for name, plan in islice(list(self._bags.plans.items()), _CONSIDERED):
            if plan.begun or plan.start == slot:
                continue
            job = self._bags.jobs[name]
            price = self._price(slot, job)
            offer = self._offer(slot, job, price, Beside.ALL)
            if offer is None or offer.plan.start or offer.done > plan.end:
                continue
            utility = utility_value(job.utility, plan.end - job.arrival)
            if offer.utility - offer.cost >= utility - price * int(plan.places.sum()):
                self._take(slot, job, offer, capacity)

    # ---------------------------------------------------------------- placement

    def release_finished(self, view: View) -> Iterator[Decision]:
        """Yield the release of ended and unneeded copies, before other jobs move."""
        for name in self._bags.jobs:
            placement = view.open_jobs[name].placement
            if placement is None:
                continue
            plan = self._bags.plans.get(name)
            if plan is None or not plan.begun:
                yield Pause(name)
            elif plan.placement(view.slot) != placement:
                yield Place(name, plan.placement(view.slot))

    def start(self, slot: int) -> Iterator[Decision]:
        """Yield the copies that start in the next slot, after other jobs have moved."""
        for name, plan in self._bags.plans.items():
            if not plan.begun and plan.start == slot:
                self._bags.plans[name] = replace(plan, begun=True)
                yield Place(name, plan.placement(slot), plan.copies)

"""What `rolling` decides about bags of tasks: a promise, when to start, and in how many copies.

A bag's promise is a slot by whose end all tasks are done, but for its miss probability: how long
copies last is chance. Its plan keeps the places that the copies may still need, on servers of its
own, so that all other plans are laid out around it. Until its copies start, it may move.
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
from shadowprice.policies.rolling.planner import Beside, Offer, Planner
from shadowprice.policies.rolling.reasons import crowded, dear

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_PLACES: Final = 256
"""Places of a slot that are weighed, at least; large bags weigh more."""

_CONSIDERED: Final = 32
"""Waiting bags, the densest first, that are planned when a slot begins."""


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """A plan that a bag could have.

    Parameters
    ----------
    plan : Plan
        When its copies start, counted from the coming slot, and the places they need.
    done : int
        Last slot of the plan: the promise.
    utility, cost : float
        What that is worth, and what it costs at the prices of the moment.
    """

    plan: Plan
    done: int
    utility: float
    cost: float

    @property
    def offer(self) -> Offer:
        """The same as reasons are told by."""
        return Offer(self.done, 0, self.done, self.utility, self.cost)


class Copies:
    """Decides about bags of tasks.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    until : int or None
        End of the timespan T.
    bags : BagBook
        The open bags.
    planner : Planner
        The plans of promised jobs.
    price : callable
        What a copy of a bag costs in a slot, from the coming slot and the bag.
    revision, standby : bool
        As of the policy's parameters.
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
        """Return a promise if a bag is worth its price; else whether it waits.

        Parameters
        ----------
        slot : int
            The coming slot.
        job : Job
            The bag.
        capacity : ndarray of int64, shape (servers, resources)
            What servers hold, 0 for those that are out.
        """
        self._bags.add(job)
        made, refusal = self._decide(slot, job, capacity)
        if made is not None:
            return made
        assert refusal is not None
        if self._standby and self._may_wait(slot, job):
            return Queue(job.name, f"waits without a promise: {refusal.message}")
        self._bags.remove(job.name)
        return Reject(job.name, refusal)

    def density(self, slot: int, job: Job, weight: float) -> float:
        """Return what a bag earns, at most, by a unit of weighted worker-slots in one copy each."""
        bag = job.bag
        assert bag is not None
        soonest = slot + bag.shortest_slots - 1
        value = utility_value(job.utility, soonest - job.arrival)
        return value / max(weight * bag.worker_slots, 1e-300)

    def _decide(
        self, slot: int, job: Job, capacity: Integers
    ) -> tuple[Promise | None, Refusal | None]:
        """Return a promise, or why there is none."""
        price = self._price(slot, job)
        found = self._offer(slot, job, price, Beside.ALL)
        if self._pays(slot, job, found, capacity):
            assert found is not None
            return self._promise(job, found), None
        best = self._offer(slot, job, price, Beside.NOBODY)
        if best is None:
            return None, self._hopeless(slot, job)
        if best.utility <= best.cost:
            return None, dear(best.offer)
        if self._revision:
            moved = self._offer(slot, job, price, Beside.BAGS)
            if self._pays(slot, job, moved, capacity):
                assert moved is not None
                return self._promise(job, moved), None
        if found is not None and found.utility <= found.cost:
            return None, dear(found.offer)
        return None, crowded(best.offer, None, None)

    def _pays(self, slot: int, job: Job, found: CopyOffer | None, capacity: Integers) -> bool:
        """Whether there is a plan, it is worth its price, and it could be taken."""
        if found is None or found.utility <= found.cost:
            return False
        return self._take(slot, job, found, capacity)

    def _may_wait(self, slot: int, job: Job) -> bool:
        """Whether a bag could keep its deadline if servers that are there did nothing else."""
        if not self._planner.whole:
            return True
        if job.name in self._bags.kept:
            return self._slots(slot, job) > 0
        planner = self._planner_of(slot, job, 0.0, Beside.NOBODY)
        return planner is not None and planner.least_places(len(planner.utility) - 1) is not None

    def _hopeless(self, slot: int, job: Job) -> Refusal:
        left, slots = self._bags.left[job.name], self._slots(slot, job)
        room = self._room(slot, job, Beside.NOBODY)
        return out_of_reach(job, left, slot, slots, int(room.max(initial=0)))

    # ---------------------------------------------------------------- plans

    def _slots(self, slot: int, job: Job) -> int:
        """Return the slots that can be used: to the deadline, and no more than a horizon."""
        assert job.bag is not None
        end = min(job.arrival + job.bag.slots, slot + self._cluster.horizon)
        return (end if self._until is None else min(end, self._until)) - slot

    def _room(self, slot: int, job: Job, beside: Beside) -> Integers:
        assert job.bag is not None
        most = max(_PLACES, 16 * job.bag.tasks)
        end = slot + max(0, self._slots(slot, job))
        return self._planner.room_for_copies(slot, job, end, most, beside)

    def _planner_of(
        self, slot: int, job: Job, price: float, beside: Beside, looser: float = 1.0
    ) -> BagPlanner | None:
        """Return the search for a plan in what others leave; None where no slot is left."""
        bag, passed = job.bag, slot - job.arrival
        assert bag is not None
        room = self._room(slot, job, beside)
        plan = self._bags.plans.get(job.name)
        if plan is not None and beside is Beside.ALL:
            room = room + np.array([plan.count(slot + at) for at in range(len(room))], np.int64)
        if not len(room) or not room.any():
            return None
        counts = np.arange(int(room.max()) + 1)
        cost = np.where(counts <= room[:, None], counts * price, np.inf)
        return BagPlanner(
            bag=bag,
            left=self._bags.left[job.name],
            passed=passed,
            cost=cost,
            utility=job.utility.values(np.arange(passed, passed + len(room)).astype(np.float64)),
            miss_probability=min(bag.miss_probability * looser, 1.0),
        )

    def _offer(self, slot: int, job: Job, price: float, beside: Beside) -> CopyOffer | None:
        """Return the plan of largest payoff in what others leave, None where there is none.

        A bag that was promised once may have lost too much time for its miss probability: it gets
        the best plan for twice that, four times, and so on, as half a chance is better than none.
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
                worth = utility_value(job.utility, done - job.arrival)
                return CopyOffer(plan, done, worth, plan.cost) if worth > 0.0 else None
            if job.name not in self._bags.kept:
                return None
            looser *= 2.0
        return None

    def _take(self, slot: int, job: Job, found: CopyOffer, capacity: Integers) -> bool:
        """Give a bag a plan, if its copies find servers and all promises can be kept around it."""
        bags, name = self._bags, job.name
        before = bags.plans.pop(name, None)
        plan = self._stood(slot, job, found.plan, capacity)
        if plan is not None:
            bags.plans[name] = plan
            if self._planner.beside_bags(slot, revise=self._revision):
                bags.broken.pop(name, None)
                return True
            del bags.plans[name]
        if before is not None:
            bags.plans[name] = before
        return False

    def _stood(self, slot: int, job: Job, plan: Plan, capacity: Integers) -> CopyPlan | None:
        """Put the copies of a plan on servers that hold them from its start to its end.

        Servers that promised or waiting jobs do not stand on come first where it starts at once.
        """
        bags, stays, start = self._bags, self._planner.stays, slot + plan.start
        end = start + len(plan.places) - 1
        asked = job.worker > 0
        hosts = self._cluster.hosts_workers
        fits = np.where(hosts, int(plan.places[0]), 0)
        for at in {start, *(cut for cut in bags.cuts(start) if cut <= end)}:
            free = np.maximum(capacity - bags.held(at) - stays.held(at), 0)[:, asked]
            fits = np.minimum(fits, (free // job.worker[asked]).min(axis=1, initial=1 << 40))
        unused = fits
        if not plan.start:
            free = np.maximum(capacity - bags.held(start) - self._planner.standing(), 0)[:, asked]
            unused = np.minimum(fits, (free // job.worker[asked]).min(axis=1, initial=1 << 40))
        each, rest = np.zeros(len(fits), np.int64), int(plan.places[0])
        for room in (unused, fits):
            while rest:
                # The server that the rest fills best, else the roomiest: few servers, little left.
                more = room - each
                enough = np.flatnonzero(more >= rest)
                at = int(enough[np.argmin(more[enough])] if len(enough) else np.argmax(more))
                if more[at] <= 0:
                    break
                put = min(int(more[at]), rest)
                each[at] += put
                rest -= put
        if rest:
            return None
        servers = np.flatnonzero(each)
        return CopyPlan(start, plan.copies, plan.places.copy(), servers, each[servers])

    def _promise(self, job: Job, found: CopyOffer, message: str = "") -> Promise:
        self._bags.promise[job.name] = found.done
        self._bags.kept.add(job.name)
        worth = found.utility - found.cost, found.utility, found.cost
        return Promise(job.name, found.done, found.done, *worth, message, found.plan.copies)

    # ---------------------------------------------------------------- revision

    def mend(self, slot: int, capacity: Integers) -> Iterator[Decision]:
        """Plan anew what is left of bags whose plan is gone; tell of a new promise, or of none."""
        bags = self._bags
        for name, why in list(bags.broken.items()):
            job = bags.jobs[name]
            del bags.broken[name]
            if name not in bags.promise:
                continue
            ways = (Beside.ALL, Beside.BAGS) if self._revision else (Beside.ALL,)
            for beside in ways:
                found = self._offer(slot, job, 0.0, beside)
                if found is not None and self._take(slot, job, found, capacity):
                    yield self._promise(job, found, why)
                    break
            else:
                del bags.promise[name]
                yield Promise(name, None, message=f"{why}: it waits")

    def give_up(self, view: View) -> Iterator[Decision]:
        """Let go of waiting bags that no number of copies ends in time any more."""
        for name in self._bags.waiting():
            job, left = self._bags.jobs[name], self._bags.left[name]
            if self._may_wait(view.slot, job):
                continue
            late = self._slots(view.slot, job) <= 0
            refusal = past_deadline(job, left) if late else self._hopeless(view.slot, job)
            self._bags.remove(name)
            admitted = view.open_jobs[name].status is Status.ADMITTED
            yield (Drop if admitted else Reject)(name, refusal)

    def plan_waiting(
        self, slot: int, capacity: Integers, weight: Callable[[Job], float], *, free: bool
    ) -> Iterator[Promise]:
        """Promise waiting bags, the densest first, what is worth its price in what others leave.

        Parameters
        ----------
        slot : int
            The coming slot.
        capacity : ndarray of int64, shape (servers, resources)
            What servers hold, 0 for those that are out.
        weight : callable
            Weight of a copy, for ranking.
        free : bool
            Whether nothing is asked for what nobody plans to use; a bag then has to start at once.
        """
        bags = self._bags
        jobs = [bags.jobs[name] for name in bags.waiting()]
        jobs.sort(key=lambda job: -self.density(slot, job, weight(job)))
        for job in islice(jobs, _CONSIDERED):
            found = self._offer(slot, job, 0.0 if free else self._price(slot, job), Beside.ALL)
            if found is None or found.utility <= found.cost or (free and found.plan.start):
                continue
            if self._take(slot, job, found, capacity):
                yield self._promise(job, found)

    def advance(self, slot: int, capacity: Integers) -> None:
        """Start bags now that were planned for later, where there is room and that pays more."""
        for name, plan in islice(list(self._bags.plans.items()), _CONSIDERED):
            if plan.begun or plan.start == slot:
                continue
            job = self._bags.jobs[name]
            price = self._price(slot, job)
            found = self._offer(slot, job, price, Beside.ALL)
            if found is None or found.plan.start or found.done > plan.end:
                continue
            worth = utility_value(job.utility, plan.end - job.arrival)
            if found.utility - found.cost >= worth - price * int(plan.places.sum()):
                self._take(slot, job, found, capacity)

    # ---------------------------------------------------------------- standing

    def let_go(self, view: View) -> Iterator[Decision]:
        """Yield what ends, and what fewer copies need: before anybody else moves."""
        for name in self._bags.jobs:
            before = view.open_jobs[name].placement
            if before is None:
                continue
            plan = self._bags.plans.get(name)
            if plan is None or not plan.begun:
                yield Pause(name)
            elif plan.placement(view.slot) != before:
                yield Place(name, plan.placement(view.slot))

    def start(self, slot: int) -> Iterator[Decision]:
        """Yield the copies that start in the coming slot: after everybody else has moved."""
        for name, plan in self._bags.plans.items():
            if not plan.begun and plan.start == slot:
                self._bags.plans[name] = replace(plan, begun=True)
                yield Place(name, plan.placement(slot), plan.copies)

"""Open bags of tasks, and the plans of their copies: which servers they hold in which slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.core.schedule import Placement
from shadowprice.policies.rolling.quotas import Quotas

Integers = NDArray[np.int64]


@dataclass
class CopyPlan:
    """Copies of all remaining tasks of a bag, and the places that are kept for them.

    Parameters
    ----------
    start : int
        Slot in which all copies start.
    copies : tuple of TaskCopies
        Copies of every task.
    places : ndarray of int64
        Places kept from the first slot on; they never grow.
    servers, each : ndarray of int64
        Servers, ascending, and the copies that start on each. Where fewer places are kept, the
        first servers keep theirs, as the engine has it.
    begun : bool
        Whether the copies run.
    """

    start: int
    copies: tuple[TaskCopies, ...]
    places: Integers
    servers: Integers
    each: Integers
    begun: bool = False

    @property
    def end(self) -> int:
        """Last slot in which anything is kept."""
        return self.start + len(self.places) - 1

    def count(self, slot: int) -> int:
        """Return the places kept in a slot."""
        return int(self.places[slot - self.start]) if self.start <= slot <= self.end else 0

    def on_servers(self, slot: int) -> Integers:
        """Return how many of them are on each of the servers."""
        before = np.cumsum(self.each) - self.each
        return np.asarray(np.clip(self.count(slot) - before, 0, self.each), np.int64)

    def placement(self, slot: int) -> Placement:
        """Return where copies stand in a slot."""
        pairs = zip(self.servers.tolist(), self.on_servers(slot).tolist(), strict=True)
        return Placement.of((server, count, 0) for server, count in pairs)

    def shrink(self, slot: int, most: int) -> None:
        """Keep no more places than copies still run, from a slot on."""
        at = slot - self.start
        self.places[at:] = np.minimum(self.places[at:], most)


class BagBook:
    """Open bags in order of arrival.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    quotas : Quotas
        What promises to each tenant may hold.

    Attributes
    ----------
    jobs : dict of str to Job
        The bags.
    left : dict of str to tuple of int
        Unfinished tasks by group.
    plans : dict of str to CopyPlan
        Plans in force.
    promise : dict of str to int
        Slot by whose end all tasks are promised to be done, but for the miss probability.
    kept : set of str
        Bags that were promised once: for them half a chance is better than none.
    broken : dict of str to str
        Why the plan of a bag, which has a promise, is gone.
    """

    def __init__(self, cluster: Cluster, quotas: Quotas) -> None:
        self._cluster, self._quotas = cluster, quotas
        self.jobs: dict[str, Job] = {}
        self.left: dict[str, tuple[int, ...]] = {}
        self.plans: dict[str, CopyPlan] = {}
        self.promise: dict[str, int] = {}
        self.kept: set[str] = set()
        self.broken: dict[str, str] = {}

    def add(self, job: Job) -> None:
        """Take a bag in."""
        assert job.bag is not None
        self.jobs[job.name] = job
        self.left[job.name] = tuple(group.count for group in job.bag.groups)

    def resume(self, state: JobState, before: BagBook, slot: int) -> None:
        """Take in a bag that was decided before, on servers that may be others now.

        Where nothing is known of its plan, every copy that runs keeps its place from the coming
        slot to the promise.
        """
        name = state.job.name
        self.add(state.job)
        self.left[name] = state.tasks_left
        self.kept |= {name} & before.kept
        if state.promise is None:
            return
        self.promise[name] = state.promise
        self.kept.add(name)
        plan = before.plans.get(name)
        standing = state.placement
        if standing is not None:
            servers = np.array(standing.servers, np.int64)
            each = np.array(standing.workers, np.int64)
            if plan is not None and plan.begun:
                self.plans[name] = CopyPlan(
                    plan.start, plan.copies, plan.places, servers, each, begun=True
                )
                return
            places = np.full(max(1, state.promise - slot + 1), int(each.sum()), np.int64)
            self.plans[name] = CopyPlan(slot, (), places, servers, each, begun=True)
            return
        if plan is not None and not plan.begun:
            index = self._cluster.index
            names = [before._cluster.names[row] for row in plan.servers.tolist()]
            rows = np.array([index.get(one, -1) for one in names], np.int64)
            if (rows >= 0).all() and self._cluster.hosts_workers[rows].all():
                order = np.argsort(rows)
                self.plans[name] = CopyPlan(
                    plan.start, plan.copies, plan.places, rows[order], plan.each[order]
                )
                return
        self.broken[name] = "the servers changed"

    def remove(self, name: str) -> None:
        """Forget a bag."""
        self.kept.discard(name)
        for known in (self.jobs, self.left, self.plans, self.promise, self.broken):
            known.pop(name, None)

    def lose_plan(self, name: str, why: str) -> None:
        """Take note that a bag's plan is gone."""
        if self.plans.pop(name, None) is not None:
            self.broken[name] = why

    def lose_server(self, server: int) -> None:
        """Take note of plans that counted on a server which is out."""
        for name, plan in list(self.plans.items()):
            if server in plan.servers:
                self.lose_plan(name, "servers were lost")

    def refresh(self, view: View, capacity: Integers) -> None:
        """Take note of tasks that ended; plans that are over, or too large, are gone."""
        slot = view.slot
        for name in self.jobs:
            state = view.open_jobs[name]
            self.left[name] = state.tasks_left
            plan = self.plans.get(name)
            if plan is None:
                continue
            if not plan.begun:
                if plan.start < slot:
                    self.lose_plan(name, "its slot was left out")
                continue
            if state.placement is None:
                self.lose_plan(name, "servers were lost")
                continue
            if plan.end < slot:
                self.lose_plan(name, "its tasks lasted longer than was promised")
            else:
                plan.shrink(slot, state.copies_running)
        # Servers that hold less than before: what has not begun gives way, the latest first.
        for name, plan in reversed(list(self.plans.items())):
            if not plan.begun and not self.holds(capacity, plan):
                self.lose_plan(name, "the servers changed")

    def holds(self, capacity: Integers, plan: CopyPlan) -> bool:
        """Whether the servers of a plan, which is in force, carry what is planned on them."""
        for slot in {plan.start, *(cut for cut in self.cuts(plan.start) if cut <= plan.end)}:
            rows = plan.servers
            if (self.held(slot)[rows] > capacity[rows]).any():
                return False
        return True

    def cuts(self, now: int) -> list[int]:
        """Return the slots after ``now`` at which other places are held than in the slot before."""
        found: set[int] = set()
        for plan in self.plans.values():
            ends = np.flatnonzero(np.diff(plan.places)) + 1
            found.update((plan.start + ends).tolist())
            found.update((plan.start, plan.end + 1))
        return sorted(slot for slot in found if slot > now)

    def held(self, slot: int) -> Integers:
        """Return what plans hold in a slot, shape (servers, resources)."""
        held = np.zeros_like(self._cluster.capacity)
        for name, plan in self.plans.items():
            if plan.count(slot):
                held[plan.servers] += plan.on_servers(slot)[:, None] * self.jobs[name].worker
        return held

    def held_by(self, slot: int) -> Integers:
        """Return what plans hold in a slot by tenant, shape as of `Quotas.share`."""
        held = np.zeros_like(self._quotas.share)
        for name, plan in self.plans.items() if len(held) else ():
            job = self.jobs[name]
            held[self._quotas.row_of(self._cluster, job)] += plan.count(slot) * job.worker
        return held

    def waiting(self) -> Iterator[str]:
        """Yield the bags without a promise."""
        return (name for name in list(self.jobs) if name not in self.promise)

"""Open bags of tasks, and their plans: the servers that copies hold in each slot."""

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
    """Copies of all remaining tasks of a bag, and the capacity reserved for them.

    A unit of capacity is the demand of one copy.

    Parameters
    ----------
    start : int
        Slot in which all copies start.
    copies : tuple of TaskCopies
        Copies of every task.
    places : ndarray of int64
        Units reserved in each slot from the first on; they never increase.
    servers, each : ndarray of int64
        Servers, ascending, and the copies that start on each. If fewer units are reserved, the
        first servers keep theirs, as in the engine.
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
        """Last slot with a reservation."""
        return self.start + len(self.places) - 1

    def count(self, slot: int) -> int:
        """Return the units reserved in a slot."""
        return int(self.places[slot - self.start]) if self.start <= slot <= self.end else 0

    def on_servers(self, slot: int) -> Integers:
        """Return the units reserved in a slot on each of `servers`."""
        earlier = np.cumsum(self.each) - self.each
        return np.asarray(np.clip(self.count(slot) - earlier, 0, self.each), np.int64)

    def placement(self, slot: int) -> Placement:
        """Return the placement of the copies in a slot."""
        pairs = zip(self.servers.tolist(), self.on_servers(slot).tolist(), strict=True)
        return Placement.of((server, count, 0) for server, count in pairs)

    def shrink(self, slot: int, most: int) -> None:
        """Reduce the reservation from a slot on to at most ``most`` units."""
        index = slot - self.start
        self.places[index:] = np.minimum(self.places[index:], most)


class BagBook:
    """Open bags in order of arrival.

    Attributes
    ----------
    jobs : dict of str to Job
        The bags.
    left : dict of str to tuple of int
        Unfinished tasks by group.
    plans : dict of str to CopyPlan
        Plans in force.
    promise : dict of str to int
        Slot by whose end all tasks are promised to be done, except with the miss probability.
    kept : set of str
        Bags that were promised once. They are planned again with a larger miss probability rather
        than abandoned.
    broken : dict of str to str
        Bags with a promise that lost their plan, and the reason.
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
        """Add a bag with all tasks unfinished."""
        assert job.bag is not None
        self.jobs[job.name] = job
        self.left[job.name] = tuple(group.count for group in job.bag.groups)

    def resume(self, state: JobState, before: BagBook, slot: int) -> None:
        """Add a bag that was decided on earlier; the servers may differ now.

        A running bag without a known plan keeps its units on its servers until the promised slot.
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
            rows = np.array([index.get(server, -1) for server in names], np.int64)
            if (rows >= 0).all() and self._cluster.hosts_workers[rows].all():
                order = np.argsort(rows)
                self.plans[name] = CopyPlan(
                    plan.start, plan.copies, plan.places, rows[order], plan.each[order]
                )
                return
        self.broken[name] = "the servers changed"

    def remove(self, name: str) -> None:
        """Remove a bag."""
        self.kept.discard(name)
        for by_name in (self.jobs, self.left, self.plans, self.promise, self.broken):
            by_name.pop(name, None)

    def plan_lost(self, name: str, why: str) -> None:
        """Remove the plan of a bag, if it has one, and record the reason."""
        if self.plans.pop(name, None) is not None:
            self.broken[name] = why

    def lose_server(self, server: int) -> None:
        """Remove the plans that use a lost server."""
        for name, plan in list(self.plans.items()):
            if server in plan.servers:
                self.plan_lost(name, "servers were lost")

    def refresh(self, view: View, capacity: Integers) -> None:
        """Update unfinished tasks; remove plans that are over or don't fit any more.

        ``capacity`` has the capacity of each server, 0 for lost ones.
        """
        slot = view.slot
        for name in self.jobs:
            state = view.open_jobs[name]
            self.left[name] = state.tasks_left
            plan = self.plans.get(name)
            if plan is None:
                continue
            if not plan.begun:
                if plan.start < slot:
                    self.plan_lost(name, "its slot was left out")
                continue
            if state.placement is None:
                self.plan_lost(name, "servers were lost")
                continue
            if plan.end < slot:
                self.plan_lost(name, "its tasks lasted longer than was promised")
            else:
                plan.shrink(slot, state.copies_running)
        # If servers shrank, plans that haven't started are removed, the latest first.
        for name, plan in reversed(list(self.plans.items())):
            if not plan.begun and not self.holds(capacity, plan):
                self.plan_lost(name, "the servers changed")

    def holds(self, capacity: Integers, plan: CopyPlan) -> bool:
        """Return whether the servers of a plan in force carry all bags planned on them."""
        for slot in {plan.start, *(cut for cut in self.cuts(plan.start) if cut <= plan.end)}:
            rows = plan.servers
            if (self.held(slot)[rows] > capacity[rows]).any():
                return False
        return True

    def cuts(self, now: int) -> list[int]:
        """Return the slots after ``now`` in which the reservations of bags change."""
        slots: set[int] = set()
        for plan in self.plans.values():
            changes = np.flatnonzero(np.diff(plan.places)) + 1
            slots.update((plan.start + changes).tolist())
            slots.update((plan.start, plan.end + 1))
        return sorted(slot for slot in slots if slot > now)

    def held(self, slot: int) -> Integers:
        """Return the usage of all plans in a slot, shape (servers, resources)."""
        usage = np.zeros_like(self._cluster.capacity)
        for name, plan in self.plans.items():
            if plan.count(slot):
                usage[plan.servers] += plan.on_servers(slot)[:, None] * self.jobs[name].worker
        return usage

    def held_by(self, slot: int) -> Integers:
        """Return the usage of all plans in a slot by tenant, shaped as `Quotas.share`."""
        usage = np.zeros_like(self._quotas.share)
        for name, plan in self.plans.items() if len(usage) else ():
            job = self.jobs[name]
            usage[self._quotas.row_of(self._cluster, job)] += plan.count(slot) * job.worker
        return usage

    def waiting(self) -> Iterator[str]:
        """Return an iterator over the names of bags without a promise."""
        return (name for name in list(self.jobs) if name not in self.promise)

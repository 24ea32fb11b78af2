"""Open bags of tasks, and their plans: the servers that copies hold in each slot."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.core.schedule import Placement
from shadowprice.policies.rolling.quotas import Quotas


@dataclass(frozen=True, eq=False)
class BagPlan:
    """Copies of all remaining tasks of a bag, and the capacity reserved for them.

    A unit of capacity is the demand of one copy.
    """

    start: int  # slot in which all copies start
    copies: tuple[TaskCopies, ...]  # of every task
    units: Integers  # reserved in each slot from the first on; they never increase
    servers: Integers  # ascending
    each: Integers
    """Copies that start on each server. If fewer units are reserved, the first servers keep theirs,
    as in the engine."""
    begun: bool = False  # whether the copies run

    @property
    def end(self) -> int:
        """Last slot with a reservation."""
        return self.start + len(self.units) - 1

    def count(self, slot: int) -> int:
        """Return the units reserved in a slot."""
        return int(self.units[slot - self.start]) if self.start <= slot <= self.end else 0

    def on_servers(self, slot: int) -> Integers:
        """Return the units reserved in a slot on each of `servers`."""
        earlier = np.cumsum(self.each) - self.each
        return np.asarray(np.clip(self.count(slot) - earlier, 0, self.each), np.int64)

    def placement(self, slot: int) -> Placement:
        """Return the placement of the copies in a slot."""
        pairs = zip(self.servers.tolist(), self.on_servers(slot).tolist(), strict=True)
        return Placement.of((server, count, 0) for server, count in pairs)

    def reduced(self, slot: int, limit: int) -> BagPlan:
        """Return the plan with at most ``limit`` units reserved from a slot on."""
        units, first = self.units.copy(), slot - self.start
        units[first:] = np.minimum(units[first:], limit)
        return replace(self, units=units)


class BagTable:
    """Open bags in order of arrival."""

    def __init__(self, cluster: Cluster, quotas: Quotas) -> None:
        self._cluster, self._quotas = cluster, quotas
        self.jobs: dict[str, Job] = {}
        self.remaining: dict[str, tuple[int, ...]] = {}  # unfinished tasks by group
        self.plans: dict[str, BagPlan] = {}  # in force
        # Slot by whose end all tasks are promised to be done, except with the miss probability.
        self.promise: dict[str, int] = {}
        # Bags that were promised once are planned again with a larger miss probability rather than
        # abandoned.
        self.promised_once: set[str] = set()
        self.broken: dict[str, str] = {}  # bags with a promise that lost their plan, and why

    def copy(self) -> Self:
        """Return a copy; plans never change in place and are shared."""
        copied = copy.copy(self)
        for name in ("jobs", "remaining", "plans", "promise", "promised_once", "broken"):
            setattr(copied, name, getattr(self, name).copy())
        return copied

    def add(self, job: Job) -> None:
        """Add a bag with all tasks unfinished."""
        assert job.bag is not None
        self.jobs[job.name] = job
        self.remaining[job.name] = tuple(group.count for group in job.bag.groups)

    def resume(self, state: JobState, before: BagTable, slot: int) -> None:
        """Add a bag that was decided on earlier; the servers may differ now.

        A running bag without a known plan keeps its units on its servers until the promised slot.
        """
        name = state.job.name
        self.add(state.job)
        self.remaining[name] = state.tasks_left
        self.promised_once |= {name} & before.promised_once
        if state.promise is None:
            return
        self.promise[name] = state.promise
        self.promised_once.add(name)
        plan = before.plans.get(name)
        placement = state.placement
        if placement is not None:
            servers = np.array(placement.servers, np.int64)
            each = np.array(placement.workers, np.int64)
            if plan is not None and plan.begun:
                self.plans[name] = BagPlan(
                    plan.start, plan.copies, plan.units, servers, each, begun=True
                )
                return
            units = np.full(max(1, state.promise - slot + 1), int(each.sum()), np.int64)
            self.plans[name] = BagPlan(slot, (), units, servers, each, begun=True)
            return
        if plan is not None and not plan.begun:
            index = self._cluster.index
            names = [before._cluster.names[row] for row in plan.servers.tolist()]
            rows = np.array([index.get(server, -1) for server in names], np.int64)
            if (rows >= 0).all() and self._cluster.hosts_workers[rows].all():
                order = np.argsort(rows)
                self.plans[name] = BagPlan(
                    plan.start, plan.copies, plan.units, rows[order], plan.each[order]
                )
                return
        self.broken[name] = "the servers changed"

    def remove(self, name: str) -> None:
        """Remove a bag."""
        self.promised_once.discard(name)
        for by_name in (self.jobs, self.remaining, self.plans, self.promise, self.broken):
            by_name.pop(name, None)

    def lose_plan(self, name: str, reason: str) -> None:
        """Remove the plan of a bag, if it has one, and record the reason."""
        if self.plans.pop(name, None) is not None:
            self.broken[name] = reason

    def lose_server(self, server: int) -> None:
        """Remove the plans that use a lost server."""
        for name, plan in list(self.plans.items()):
            if server in plan.servers:
                self.lose_plan(name, "servers were lost")

    def refresh(self, view: View, capacity: Integers) -> None:
        """Update unfinished tasks; remove plans that are over or don't fit any more.

        ``capacity`` has the capacity of each server, 0 for lost ones.
        """
        slot = view.slot
        for name in self.jobs:
            state = view.open_jobs[name]
            self.remaining[name] = state.tasks_left
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
                self.plans[name] = plan.reduced(slot, state.copies_running)
        # If servers shrank, plans that haven't started are removed, the latest first.
        for name, plan in reversed(list(self.plans.items())):
            if not plan.begun and not self.fits(capacity, plan):
                self.lose_plan(name, "the servers changed")

    def fits(self, capacity: Integers, plan: BagPlan) -> bool:
        """Return whether the servers of a plan in force carry all bags planned on them."""
        changes = self.change_slots(plan.start)
        for slot in {plan.start, *(change for change in changes if change <= plan.end)}:
            rows = plan.servers
            if (self.usage(slot)[rows] > capacity[rows]).any():
                return False
        return True

    def change_slots(self, slot: int) -> list[int]:
        """Return the slots after ``slot`` in which the reservations of bags change."""
        slots: set[int] = set()
        for plan in self.plans.values():
            changes = np.flatnonzero(np.diff(plan.units)) + 1
            slots.update((plan.start + changes).tolist())
            slots.update((plan.start, plan.end + 1))
        return sorted(change for change in slots if change > slot)

    def usage(self, slot: int) -> Integers:
        """Return the usage of all plans in a slot, shape (servers, resources)."""
        usage = np.zeros_like(self._cluster.capacity)
        for name, plan in self.plans.items():
            if plan.count(slot):
                usage[plan.servers] += plan.on_servers(slot)[:, None] * self.jobs[name].worker
        return usage

    def tenant_usage(self, slot: int) -> Integers:
        """Return the usage of all plans in a slot by tenant, shaped as `Quotas.share`."""
        usage = np.zeros_like(self._quotas.share)
        for name, plan in self.plans.items() if len(usage) else ():
            job = self.jobs[name]
            usage[self._quotas.row_of(self._cluster, job)] += plan.count(slot) * job.worker
        return usage

    def unpromised(self) -> Iterator[str]:
        """Return an iterator over the names of bags without a promise."""
        return (name for name in list(self.jobs) if name not in self.promise)

"""The state of `rolling`: open jobs and bags, learnt prices, and the plans in force.

Words for jobs that don't move:

- A *pinned plan* (`PinnedPlan`) names its servers and never moves; a promise depends on it.
- An *unstoppable* job (`OpenJobs.unstoppable`) hasn't shown checkpoints: a stop loses its work.
  While it runs, its pinned plan is one of `State.unstoppable_plans`.
- A job that *keeps its level* (`OpenJobs.keeps_level`) may have only plans with one worker count.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.core.schedule import Placement
from shadowprice.kernels.replanning.plans import JobArrays, PackingLog, PlannedLevels
from shadowprice.kernels.replanning.timeline import Timeline, new_timeline
from shadowprice.policies.rolling.open_jobs import OpenJobs, RunningJobs
from shadowprice.policies.rolling.prices import DemandPrices, ServerPools
from shadowprice.policies.rolling.quotas import Quotas

MAX_RUNS: Final = 256  # maximum number of runs of equal slots in a plan


@dataclass(frozen=True, eq=False, slots=True)
class PinnedPlan:
    """A plan that never moves: the processes of a job on servers, until it is done.

    It is that of a running job on its current servers, or of one that starts in the next slot.
    """

    level: int
    end: int  # last slot
    servers: Integers  # ascending; the counts of processes are by server
    workers: Integers
    ps: Integers
    amounts: Integers  # usage of each server, shape (servers, resources)
    tenant: int

    @classmethod
    def of(
        cls, arrays: JobArrays, row: int, level: int, end: int, *processes: Integers
    ) -> PinnedPlan:
        """Return a plan of a row's job: ``processes`` are servers, and workers and PS on each."""
        servers, workers, ps = processes
        amounts = workers[:, None] * arrays.worker[row] + ps[:, None] * arrays.ps[row]
        return cls(level, end, servers, workers, ps, amounts, int(arrays.tenant[row]))


PinnedPlans = dict[int, PinnedPlan]
"""Pinned plans by row of the open jobs: replaced, never changed in place."""


class JointPlan:
    """Plans of jobs, and the capacity that they leave over time.

    Pickles omit unused space.
    """

    def __init__(self, line: Timeline) -> None:
        self.line = line  # free capacity over time
        # Plans by row.
        self.steps = PlannedLevels(*(np.zeros(shape, np.int64) for shape in (0, (0, 0), (0, 0))))
        # Allocations of the first slot, in packing order.
        self.log = PackingLog(*(np.zeros(n, np.int64) for n in (1, 0, 0, 0, 0)))
        self.order = np.zeros(0, np.int64)  # rows in planning order
        self.pinned: PinnedPlans = {}  # a job with a pinned plan has no other one
        self.unplanned: list[int] = []  # rows that found no plan

    def __getstate__(self) -> dict[str, Any]:
        line, steps, log = self.line, self.steps, self.log
        runs = int(steps.runs.max(initial=0))
        entries = int(log.used[0])
        return {
            "size": (*line.servers.shape, line.limits, line.shared),
            "line": self._used_parts(),
            "steps": [steps.runs, steps.until[:, :runs], steps.level[:, :runs]],
            "log": [log.used, *(part[:entries] for part in log[1:4]), log.level],
            "order": self.order,
            "pinned": self.pinned,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(_filled(new_timeline(*state["size"]), state["line"]))  # type: ignore[misc]
        # Copies, so that a state can also be set from another plan's.
        self.steps = PlannedLevels(*(part.copy() for part in state["steps"]))
        self.log = PackingLog(*(part.copy() for part in state["log"]))
        self.order, self.pinned = state["order"], state["pinned"]

    def copy(self) -> JointPlan:
        """Return a copy, without unused space."""
        copied = JointPlan.__new__(JointPlan)
        copied.__setstate__(self.__getstate__())
        return copied

    def reserve(self, rows: int, entries: int) -> None:
        """Allocate space for plans of ``rows`` rows and a log of ``entries``; keep the content."""
        steps, log, width = self.steps, self.log, min(len(self.line.state), MAX_RUNS)
        if steps.until.shape != (rows, width):
            runs = int(steps.runs.max(initial=0))
            self.steps = PlannedLevels(
                _pad(steps.runs, (rows,), -1),
                _pad(steps.until[:, :runs], (rows, width), 0),
                _pad(steps.level[:, :runs], (rows, width), 0),
            )
        if len(log.row) < entries or len(log.level) < rows:
            entries = max(entries, min(2 * entries, 2 * len(log.row)))
            self.log = PackingLog(
                log.used,
                _pad(log.row, (entries,), 0),
                _pad(log.workers, (entries,), 0),
                _pad(log.ps, (entries,), 0),
                _pad(log.level, (rows,), -1),
            )

    def grow(self, max_states: int) -> None:
        """Allocate space for ``max_states`` intervals; keep the plans."""
        line = self.line
        larger = new_timeline(max_states, line.servers.shape[1], line.limits, line.shared)
        self.line = _filled(larger, self._used_parts())

    def _used_parts(self) -> list[Integers]:
        """Return the used parts of the timeline's arrays.

        The rest is most of them, so that copying it would delay a submission.
        """
        line = self.line
        states = int(line.used[1])
        groups = int(line.groups[:states].max(initial=0))
        return [
            line.used,
            line.start[: states + 1],
            *(part[:states] for part in line[2:4]),
            *(part[:states, :groups] for part in line[4:7]),
            line.tenant_usage[:states],
        ]


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


@dataclass(eq=False)
class State:
    """Everything that decisions depend on, besides the cluster and the parameters."""

    servers: ServerPools  # those that are up
    jobs: OpenJobs
    bags: BagTable
    demand: DemandPrices
    plan: JointPlan  # in force
    owed: Floats  # slots of its share that each tenant is owed (`Quotas.owed_after`)
    owed_slot: int = -1  # last slot that `owed` counts
    planned_slot: int | None = None  # first slot of the plan; None if it has to be renewed
    # Plans of running jobs that can't be stopped, promised or not; part of the plan's pinned ones.
    unstoppable_plans: PinnedPlans = field(default_factory=dict)
    is_estimate: bool = False  # whether the plan counts on progress of a slot that is under way
    is_lean: bool = False  # whether pinned jobs gave up workers for arrivals
    misfits: frozenset[str] | None = None  # open jobs that a joint plan of all failed for
    held_until: int = -1  # next slot to plan if no event comes before; -1 after an event
    held: RunningJobs | None = None  # in the layout in force, once it was held

    def copy(self) -> State:
        """Return a state for decisions that are not kept; it must not learn or lose servers."""
        return replace(
            self,
            jobs=self.jobs.copy(),
            bags=self.bags.copy(),
            demand=self.demand.copy(),
            plan=self.plan.copy(),
        )

    def promised(self, pinned: Iterable[int] = ()) -> Flags:
        """Return which rows have a promise, and work left after the slot under way.

        Rows in ``pinned`` are left out.
        """
        promised = np.asarray((self.jobs.promise >= 0) & (self.jobs.arrays.remaining > 0))
        if rows := list(pinned):
            promised[rows] = False
        return promised

    def unpin(self, row: int) -> None:
        """Remove the pinned plan of a job that is gone or has no placement."""
        self.plan.pinned = _remove_row(self.plan.pinned, row)
        self.unstoppable_plans = _remove_row(self.unstoppable_plans, row)

    def set_unstoppable_plans(self, plans: PinnedPlans) -> None:
        """Replace the plans of running jobs that can't be stopped."""
        previous = self.unstoppable_plans
        if plans or previous:
            others = {row: plan for row, plan in self.plan.pinned.items() if row not in previous}
            self.plan.pinned = {**others, **plans}
            self.unstoppable_plans = plans

    def late_unstoppable_jobs(self) -> list[int]:
        """Return the promised jobs that can't be stopped and end after their promise."""
        promise = self.jobs.promise
        return [row for row, plan in self.unstoppable_plans.items() if 0 <= promise[row] < plan.end]

    def withdraw_promise(self, row: int) -> None:
        """Withdraw a promise, and the pinned plan unless the job can't be stopped."""
        self.jobs.promise[row] = -1
        if row not in self.unstoppable_plans:
            self.unpin(row)

    def lose_server(self, server: int) -> None:
        """Mark a server as lost, and remove the plans on it."""
        self.servers.lose(server)
        self.jobs.lose(server)
        self.bags.lose_server(server)
        for row, plan in self.plan.pinned.items():
            if server in plan.servers.tolist():
                self.unpin(row)

    def restore_server(self, server: int) -> None:
        """Mark a lost server as up."""
        self.servers.restore(server)
        self.jobs.restore(server)
        self.misfits = None


def _remove_row(pinned: PinnedPlans, row: int) -> PinnedPlans:
    """Return plans without that of a row."""
    if row not in pinned:
        return pinned
    return {other: plan for other, plan in pinned.items() if other != row}


def _filled(line: Timeline, parts: list[Integers]) -> Timeline:
    """Copy parts of another timeline's arrays into a new one."""
    for array, part in zip(line[:8], parts, strict=True):
        array[tuple(slice(size) for size in part.shape)] = part
    return line


def _pad(array: Integers, shape: tuple[int, ...], value: int) -> Integers:
    """Return a larger array that starts with the content of the old one."""
    larger_shape = tuple(map(max, array.shape, shape))
    larger = np.full(larger_shape, value, np.int64) if value else np.zeros(larger_shape, np.int64)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger

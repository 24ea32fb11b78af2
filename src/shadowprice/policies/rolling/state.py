"""The state of `rolling`: open jobs and bags, learnt prices, and the plans in force.

Words for jobs that don't move:

- A *pinned plan* (`PinnedPlan`) names its servers and never moves: all other plans are made around
  it. A *pinned job* has one, either because it can't be stopped or because restarts cost progress.
- An *unstoppable* job (`OpenJobs.unstoppable`) hasn't shown checkpoints: a stop loses its work.
  While it runs, the engine refuses to stop it (`View.is_unstoppable`), and its pinned plan is one
  of `State.unstoppable_plans`.
  The engine also refuses to stop a resumable job whose newest progress isn't saved. Plans don't
  know that: the engine leaves the move out, and the policy resyncs.
- A *plan of levels* fixes a job's level in each slot, but no servers.
- A job that *keeps its level* (`OpenJobs.keeps_level`) only gets plans with one level.
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
from shadowprice.policies.reactive.table import copy_overlap, resized
from shadowprice.policies.rolling.open_jobs import OpenJobs, RunningJobs
from shadowprice.policies.rolling.prices import DemandPrices, ServerPools
from shadowprice.policies.rolling.quotas import Quotas

MAX_RUNS: Final = 256  # maximum number of runs of equal slots in a plan


@dataclass(frozen=True, eq=False, slots=True)
class PinnedPlan:
    """A plan that never moves: a job's processes on servers, from the next slot or earlier on."""

    level: int  # position in `JobArrays.worker_counts`
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
"""Pinned plans by row of the open jobs. A dictionary is replaced, never changed in place."""


class JointPlan:
    """Plans of jobs, and the capacity that they leave over time.

    Copies and pickles omit unused space: `reserve` must be called before they are used.
    """

    def __init__(self, width: int, limits: Integers, shared: bool) -> None:
        self._intervals, self._width = 64, width  # space for intervals, and for groups in each
        self.line = new_timeline(self._intervals, width, limits, shared)  # free capacity over time
        # Plans by row.
        self.steps = PlannedLevels(*(np.zeros(shape, np.int64) for shape in (0, (0, 0), (0, 0))))
        # Allocations of the first slot, in packing order.
        self.log = PackingLog(*(np.zeros(n, np.int64) for n in (1, 0, 0, 0, 0)))
        self.order = np.zeros(0, np.int64)  # rows in planning order
        self.pinned: PinnedPlans = {}  # a job with a pinned plan has no other one
        self.unplanned: list[int] = []  # rows that found no plan

    def __getstate__(self) -> dict[str, Any]:
        return vars(self.copy())

    def copy(self) -> JointPlan:
        """Return a copy without unused space; copying that too would take most of the time."""
        copied = JointPlan.__new__(JointPlan)
        vars(copied).update(vars(self))
        line, steps, log = self.line, self.steps, self.log
        states = int(line.used[1])
        copied.line = _resize_timeline(line, states, int(line.groups[:states].max(initial=0)))
        copied.steps = _resize_levels(steps, len(steps.runs), int(steps.runs.max(initial=0)))
        copied.log = _resize_log(log, int(log.used[0]), len(log.level))
        return copied

    def reserve(self, intervals: int, rows: int, entries: int) -> None:
        """Allocate space for intervals, plans of rows and entries of the log; keep the content.

        An array with enough space isn't replaced, because a caller may hold and write it.
        """
        if intervals > self._intervals:
            self._intervals = 1 << (intervals - 1).bit_length()
        if len(self.line.state) < self._intervals:
            self.line = _resize_timeline(self.line, self._intervals, self._width)
        runs = min(self._intervals, MAX_RUNS)
        if self.steps.until.shape != (rows, runs):
            self.steps = _resize_levels(self.steps, rows, runs)
        old = len(self.log.row)
        if old < entries or len(self.log.level) < rows:
            self.log = _resize_log(self.log, max(entries, min(2 * entries, 2 * old)), rows)


@dataclass(frozen=True, eq=False)
class BagPlan:
    """Copies of all remaining tasks of a bag, and the capacity reserved for them.

    A unit of capacity is the demand of one copy.
    """

    start: int  # slot in which all copies start
    copies: tuple[TaskCopies, ...]  # of every task
    units: Integers  # reserved in each slot from `start` on; they never increase
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
        # Slot by whose end all tasks are done, but for the miss probability that the bag states.
        self.promise: dict[str, int] = {}
        # Bags that ever had a promise; they aren't abandoned but planned with a larger miss
        # probability.
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

    def restore_job(self, state: JobState, before: BagTable, slot: int) -> None:
        """Add an open bag after a restart or a change of servers, with its promise and plan.

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
            if plan is None or not plan.begun:
                units = np.full(max(1, state.promise - slot + 1), int(each.sum()), np.int64)
                plan = BagPlan(slot, (), units, servers, each, begun=True)
            self.plans[name] = replace(plan, servers=servers, each=each)
            return
        if plan is not None and not plan.begun:
            index = self._cluster.index
            names = [before._cluster.names[row] for row in plan.servers.tolist()]
            rows = np.array([index.get(server, -1) for server in names], np.int64)
            if (rows >= 0).all() and self._cluster.hosts_workers[rows].all():
                order = np.argsort(rows)
                self.plans[name] = replace(plan, servers=rows[order], each=plan.each[order])
                return
        self.broken[name] = "the servers changed"

    def remove(self, name: str) -> None:
        """Remove a bag and all that is known of it."""
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
        """Update unfinished tasks; remove plans that have ended or exceed the capacity."""
        slot = view.slot
        for name in self.jobs:
            state = view.open_jobs[name]
            self.remaining[name] = state.tasks_left
            plan = self.plans.get(name)
            if plan is None:
                continue
            if not plan.begun:
                if plan.start < slot:
                    self.lose_plan(name, "its start slot was skipped")
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
        """Return whether the servers of a plan in force have capacity for all bags on them."""
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
    """Everything that decisions depend on, besides the cluster and the parameters.

    Three questions decide how long the plan in force is kept:

    1. Does it begin with the slot to plan? Only if `planned_slot` is that slot. All events except
       arrivals set it to None, and so does a slot that begins if `is_estimate` or `is_lean`.
    2. May the placements stay as they are without planning? In slots before `held_until`, if jobs
       make the progress that was planned. `held_jobs` only caches the jobs that run in them.
    3. Is it worth trying a joint plan of all open jobs again? Not while all `misfits` are open.
    """

    servers: ServerPools  # which servers are up, and their capacity
    jobs: OpenJobs
    bags: BagTable
    demand: DemandPrices
    plan: JointPlan  # in force
    owed: Floats  # slots of its share that each tenant is owed (`Quotas.owed_after`)
    owed_slot: int = -1  # last slot that `owed` counts
    planned_slot: int | None = None  # first slot of the plan in force; None if it is outdated
    # Plans of running jobs that can't be stopped, promised or not; part of the plan's pinned ones.
    unstoppable_plans: PinnedPlans = field(default_factory=dict)
    is_estimate: bool = False  # whether the plan counts on progress of a slot that is under way
    is_lean: bool = False  # whether pinned jobs may have given up workers for arrivals
    misfits: frozenset[str] | None = None  # all open jobs when a joint plan of them last failed
    held_until: int = -1  # next slot to plan if no event comes before; -1 after an event
    held_jobs: RunningJobs | None = None  # None until the placements are held

    def copy(self) -> State:
        """Return a state for trial decisions; learning or losing servers would change this one."""
        return replace(
            self,
            jobs=self.jobs.copy(),
            bags=self.bags.copy(),
            demand=self.demand.copy(),
            plan=self.plan.copy(),
        )

    def with_promises(self, rows: Integers | int, promises: Integers | int) -> State:
        """Return a state for trial plans in which rows have other promises."""
        jobs = copy.copy(self.jobs)
        jobs.promise = self.jobs.promise.copy()
        jobs.promise[rows] = promises
        return replace(self, jobs=jobs)

    def promised(self, pinned: Iterable[int] = ()) -> Flags:
        """Return which rows, except ``pinned``, have a promise and work after the current slot."""
        promised = np.asarray((self.jobs.promise >= 0) & (self.jobs.arrays.remaining > 0))
        if rows := list(pinned):
            promised[rows] = False
        return promised

    def unpin(self, row: int) -> None:
        """Remove the pinned plan of a row, if it has one."""
        kept, unstoppable = self.plan.pinned.copy(), self.unstoppable_plans.copy()
        kept.pop(row, None)
        unstoppable.pop(row, None)
        self.plan.pinned, self.unstoppable_plans = kept, unstoppable

    def set_unstoppable_plans(self, plans: PinnedPlans) -> None:
        """Replace the plans of running jobs that can't be stopped."""
        previous = self.unstoppable_plans
        if plans or previous:
            others = {row: plan for row, plan in self.plan.pinned.items() if row not in previous}
            self.plan.pinned = {**others, **plans}
            self.unstoppable_plans = plans

    def late_unstoppable_jobs(self) -> list[int]:
        """Return the rows of promised jobs that can't be stopped and end after their promise."""
        promise = self.jobs.promise
        return [row for row, plan in self.unstoppable_plans.items() if 0 <= promise[row] < plan.end]

    def withdraw_promise(self, row: int) -> None:
        """Withdraw a promise, and the pinned plan unless the job can't be stopped."""
        self.jobs.promise[row] = -1
        if row not in self.unstoppable_plans:
            self.unpin(row)

    def lose_server(self, server: int) -> None:
        """Mark a server as lost, and remove the plans on it."""
        self.servers.mark(server, is_up=False)
        self.jobs.lose(server)
        self.bags.lose_server(server)
        for row, plan in self.plan.pinned.items():
            if server in plan.servers.tolist():
                self.unpin(row)

    def restore_server(self, server: int) -> None:
        """Mark a lost server as up."""
        self.servers.mark(server, is_up=True)
        self.jobs.restore(server)
        self.misfits = None


def _resize_timeline(line: Timeline, states: int, groups: int) -> Timeline:
    resized = new_timeline(states, groups, line.limits, line.shared)
    for new, old in zip(resized[:8], line[:8], strict=True):  # all but limits and scratch space
        copy_overlap(new, old)
    return resized


def _resize_levels(steps: PlannedLevels, rows: int, runs: int) -> PlannedLevels:
    by_run = (resized(part, (rows, runs)) for part in steps[1:])
    return PlannedLevels(resized(steps.runs, (rows,), -1), *by_run)


def _resize_log(log: PackingLog, entries: int, rows: int) -> PackingLog:
    row, workers, ps = (resized(part, (entries,)) for part in log[1:4])
    return PackingLog(log.used.copy(), row, workers, ps, resized(log.level, (rows,), -1))

"""The state of `rolling`: open jobs, learnt prices, and the joint plan in force.

Words for jobs that don't move:

- A *pinned plan* (`PinnedPlan`) names its servers and never moves; a promise depends on it.
- An *unstoppable* job (`OpenJobs.unstoppable`) hasn't shown checkpoints: a stop loses its work.
  While it runs, its pinned plan is one of `State.unstoppable_plans`.
- A job that *keeps its level* (`OpenJobs.keeps_level`) may have only plans with one worker count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.kernels.replanning.plans import PackingLog, PlannedLevels
from shadowprice.kernels.replanning.timeline import Timeline, new_timeline
from shadowprice.policies.rolling.bags import BagTable
from shadowprice.policies.rolling.open_jobs import OpenJobs, RunningJobs
from shadowprice.policies.rolling.prices import DemandPrices, ServerPools

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


PinnedPlans = dict[int, PinnedPlan]
"""Pinned plans by row of the open jobs: replaced, never changed in place."""


class JointPlan:
    """Plans of jobs, and the capacity that they leave over time.

    There are at most ``max_states`` intervals, with ``width`` groups of equal servers each. Pickles
    omit unused space.
    """

    def __init__(self, max_states: int, width: int, share: Integers, common: Integers) -> None:
        self.max_states = max_states
        # Free capacity over time.
        self.line: Timeline = new_timeline(max_states, width, share, common)
        # Plans by row.
        self.steps = PlannedLevels(*(np.zeros(shape, np.int64) for shape in (0, (0, 0), (0, 0))))
        # Allocations of the first slot, in packing order.
        self.log = PackingLog(*(np.zeros(n, np.int64) for n in (1, 0, 0, 0, 0)))
        self.order = np.zeros(0, np.int64)  # rows in planning order
        self.pinned: PinnedPlans = {}  # a job with a pinned plan has no other one
        self.unplanned: list[int] = []  # rows that found no plan

    def __getstate__(self) -> dict[str, object]:
        line, steps, log = self.line, self.steps, self.log
        states = int(line.used[1])
        groups = int(line.groups[:states].max(initial=0))
        runs = int(steps.runs.max(initial=0))
        entries = int(log.used[0])
        return {
            "size": (self.max_states, line.free.shape[1], line.share, line.common),
            "line": [
                part[: states + 1] if part is line.start else part[:states] for part in line[:4]
            ]
            + [part[:states, :groups] for part in line[4:7]]
            + [line.tenant_usage[:states]],
            "used": line.used,
            "steps": [steps.runs, steps.until[:, :runs], steps.level[:, :runs]],
            "log": [log.used, *(part[:entries] for part in log[1:4]), log.level],
            "order": self.order,
            "pinned": self.pinned,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(*state["size"])  # type: ignore[misc]  # two integers, two arrays
        for array, part in zip(self.line, state["line"], strict=False):  # type: ignore[call-overload]
            array[tuple(slice(size) for size in part.shape)] = part
        self.line.used[:] = state["used"]  # type: ignore[call-overload]  # two integers
        # Copies, so that a state can also be set from another plan's.
        self.steps = PlannedLevels(*(part.copy() for part in state["steps"]))  # type: ignore[attr-defined]
        self.log = PackingLog(*(part.copy() for part in state["log"]))  # type: ignore[attr-defined]
        self.order = state["order"]  # type: ignore[assignment]
        self.pinned = state["pinned"]  # type: ignore[assignment]

    def copy(self) -> JointPlan:
        """Return a copy, without unused space."""
        copied = JointPlan.__new__(JointPlan)
        copied.__setstate__(self.__getstate__())
        return copied

    def reserve(self, rows: int, entries: int) -> None:
        """Allocate space for plans of ``rows`` rows and a log of ``entries``; keep the content."""
        steps, log, width = self.steps, self.log, min(self.max_states, MAX_RUNS)
        if steps.until.shape != (rows, width):
            self.steps = PlannedLevels(
                _pad(steps.runs, (rows,), -1),
                _widen(steps.until, steps.runs, (rows, width)),
                _widen(steps.level, steps.runs, (rows, width)),
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
        old = self.line
        larger = new_timeline(max_states, old.servers.shape[1], old.share, old.common)
        larger.used[:] = old.used
        # Copy used states only: writing to the rest, which is most of it, would delay a submission.
        states = int(old.used[1]) + 1
        for new_array, old_array in zip(larger[1:8], old[1:8], strict=True):
            used = old_array[:states]
            new_array[: len(used)] = used
        self.line, self.max_states = larger, max_states


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


def _pad(array: Integers, shape: tuple[int, ...], value: int) -> Integers:
    """Return a larger array that starts with the content of the old one."""
    larger_shape = tuple(map(max, array.shape, shape))
    larger = np.full(larger_shape, value, np.int64) if value else np.zeros(larger_shape, np.int64)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def _widen(array: Integers, runs: Integers, shape: tuple[int, int]) -> Integers:
    """Return a larger array of zeros with the runs of each row."""
    larger = np.zeros(shape, np.int64)
    rows, count = np.flatnonzero(runs > 0), int(runs.max(initial=0))
    larger[rows, :count] = array[rows, :count]
    return larger

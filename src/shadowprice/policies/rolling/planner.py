"""Joint plans of all promised jobs, and offers to single jobs in the remaining capacity."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.utility import utility_value
from shadowprice.kernels.replanning import next_slot, plans, timeline
from shadowprice.kernels.replanning.plans import JobArrays
from shadowprice.kernels.replanning.timeline import Timeline
from shadowprice.policies.rolling.offers import NO_CEILING, Offer
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.pinned_plans import PinnedPlanner
from shadowprice.policies.rolling.quotas import Quotas
from shadowprice.policies.rolling.state import JointPlan, PinnedPlan, PinnedPlans, State

# Maximum groups of equal servers in an interval, unless there are more kinds; others are lost.
_MAX_GROUPS: Final = 512
_MAX_ORDERS: Final = 3  # maximum number of planning orders that are tried for a joint plan


class CountedPlans(Enum):
    """Which plans reduce the free capacity: all, only those of bags and pinned jobs, or none."""

    ALL = "all"
    BAGS_AND_PINNED = "bags and pinned"
    NONE = "none"


class WaitingPlans(NamedTuple):
    """Plans of waiting jobs, as arrays with an entry for each."""

    exists: Flags  # whether the job has a plan; otherwise its other entries mean nothing
    target: Integers  # as in `Offer`, like the next three
    completion: Integers
    utility: Floats
    cost: Floats
    is_certain: Flags  # whether the plan counts on certain progress only

    def offer(self, index: int) -> Offer:
        """Return the plan of a job as an offer; the plan is allocated already."""
        target, completion = int(self.target[index]), int(self.completion[index])
        utility, cost = float(self.utility[index]), float(self.cost[index])
        return Offer(target, NO_CEILING, completion, utility, cost)


class Planner:
    """Plans jobs, each slot packed server by server; it keeps no state but reused arrays.

    Methods that return a `JointPlan` don't change the state. They all return the same object, the
    spare plan, which the next call overwrites. Only `put_in_force` keeps it: the spare plan and the
    plan in force change roles.
    """

    def __init__(self, cluster: Cluster, quotas: Quotas, parameters: RollingParameters) -> None:
        self._cluster, self._quotas = cluster, quotas
        # Whether plans may change; otherwise each job keeps the rest of its plan.
        self.revises = parameters.revision
        self._steady = parameters.steady  # plans only change if they no longer complete the work
        self.pinning = PinnedPlanner(cluster, quotas)
        self._shared = bool((cluster.hosts_workers & cluster.hosts_ps).any())
        self._roles = timeline.server_roles(cluster.hosts_workers, cluster.hosts_ps)
        first = np.unique(cluster.kinds, return_index=True)[1]
        self._kind_free = np.ascontiguousarray(cluster.capacity[first])
        self._kind_role = self._roles[first]
        self._no_changes = (  # last arguments of `init_timeline`: no changes and no usage
            np.zeros(2, np.int64),
            np.zeros(0, np.int64),
            np.zeros((0, len(cluster.resources)), np.int64),
            np.zeros((1, *quotas.share.shape), np.int64),
        )
        self._width = min(cluster.servers, max(_MAX_GROUPS, len(first)))
        self._spare = self.new_plan()

    def __getstate__(self) -> dict[str, object]:
        state = dict(self.__dict__)
        del state["_spare"]  # written before it is read
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._spare = self.new_plan()

    def new_plan(self) -> JointPlan:
        """Return an empty plan."""
        limits = np.vstack((self._quotas.share, self._quotas.common))
        return JointPlan(self._width, limits, self._shared)

    def reserve(self, state: State, intervals: int = 0) -> None:
        """Allocate space for plans of all open jobs and for intervals; keep the content."""
        jobs = state.jobs
        # These sizes are ample; a plan that finds no space fails like a plan that doesn't fit.
        intervals = max(intervals, 4 * len(jobs.rows) + 16)
        # A job is logged once, and again whenever it scales up, each time in at most two entries.
        rows, servers = jobs.row_count, int(state.servers.kind_count.sum())
        maximum = 2 * (int(jobs.arrays.levels.sum()) + rows)
        entries = min(3 * rows + servers * 64, maximum) + 64
        for plan in (state.plan, self._spare):
            plan.reserve(intervals, rows, entries)

    # ---------------------------------------------------------------- joint plans

    def replan(self, state: State, slot: int, *, lean: bool = False) -> JointPlan:
        """Return a plan of all promised jobs from a slot on.

        The plan is the first of these that breaks no promise:

        1. If ``steady``: the plan in force, carried over around each set of pinned plans.
        2. If plans may change: a new joint plan around each set of pinned plans.
        3. The plan in force, carried over around its own pinned plans.
        4. A new joint plan in which only jobs that can't be stopped are pinned.
        5. A new joint plan that skips jobs that find no plan. It is only needed if servers were
           lost or work was misstated.

        With ``lean``, pinned jobs use the fewest workers, to leave capacity for arrivals; otherwise
        they keep their current placement if they can.
        """
        in_force = state.plan.pinned
        candidates: Iterable[PinnedPlans] = (in_force,)
        if self.revises and (in_force or state.jobs.restart_loss.any()):
            order = self._by_promise(state)
            in_force = self.pinning.still_valid(state, slot)
            candidates = self.pinning.candidate_sets(
                state, slot, order, in_force, new_only=self._steady and not lean, lean_first=lean
            )
        if self._steady:  # attempt 1
            # Attempt 2 needs the sets again. Without `steady`, it makes each set when it needs it.
            candidates = list(candidates)
            for pinned in candidates:
                plan = self.carry_over(state, slot, pinned)
                if plan is not None:
                    return plan
        if self.revises:  # attempt 2
            for pinned in candidates:
                plan = self._plan_jointly(state, slot, pinned)
                if not plan.unplanned:
                    return plan
        plan = self.carry_over(state, slot, in_force)  # attempt 3
        if plan is not None:
            return plan
        if in_force.keys() != state.unstoppable_plans.keys():  # attempt 4
            plan = self._plan_jointly(state, slot, state.unstoppable_plans)
            if not plan.unplanned:
                return plan
        order = self._by_promise(state, in_force)  # attempt 5
        return self._plan_rows(state, slot, in_force, order, skip=True)

    def plan_with(self, state: State, slot: int, row: int, promise: int) -> JointPlan:
        """Return a joint plan of all promised jobs and one more.

        If it fails, only its ``unplanned`` is valid: the job that first found no plan beside the
        pinned plans in force.
        """
        trial, pinned = state.with_promises(row, promise), state.plan.pinned
        plan = self._plan_jointly(trial, slot, pinned)
        if not plan.unplanned or not pinned:
            return plan
        failed = plan.unplanned  # the next plan replaces this list, but overwrites all the rest
        # Pin jobs with all their current workers, so that they may end sooner; then, pin only jobs
        # that can't be stopped.
        order = self._by_promise(trial)
        first = next(self.pinning.candidate_sets(state, slot, order, pinned))
        for other in (first, state.unstoppable_plans):
            plan = self._plan_jointly(trial, slot, other)
            if not plan.unplanned:
                return plan
        plan.unplanned = failed
        return plan

    def plan_pinned(self, state: State, slot: int, row: int, pinned: PinnedPlan) -> JointPlan:
        """Return a plan of all promised jobs beside one more that never moves; see `plan_with`."""
        trial, together = state.with_promises(row, pinned.end), {**state.plan.pinned, row: pinned}
        return self.carry_over(trial, slot, together) or self._plan_jointly(trial, slot, together)

    def plan_together(
        self, state: State, slot: int, rows: Integers, due: Integers
    ) -> JointPlan | None:
        """Return a joint plan of promised jobs and ``rows`` by expected progress, or None.

        The ``rows`` get no promise; each has to complete by the end of its slot in ``due``.
        """
        trial, gains = state.with_promises(rows, due), state.jobs.expected_gains(rows)
        trial.jobs.arrays = state.jobs.arrays._replace(counted_gains=gains)
        plan = self._plan_jointly(trial, slot, state.plan.pinned)
        return None if plan.unplanned else plan

    def replan_around_bags(self, state: State, slot: int) -> JointPlan | None:
        """Return a plan of promised jobs around the plans of bags; None if a job doesn't fit."""
        if self.revises:
            plan = self._plan_jointly(state, slot, state.plan.pinned)
            if not plan.unplanned:
                return plan
        return self.carry_over(state, slot, state.plan.pinned)

    def broken_runs(self, state: State, plan: JointPlan, rows: Integers) -> list[int]:
        """Return which of ``rows`` a plan pauses or resizes although they must keep their level."""
        runs, levels = plan.steps.runs, plan.steps.level
        level_keepers = rows[state.jobs.keeps_level[rows]].tolist()
        return [row for row in level_keepers if not _has_one_run(levels[row, : max(runs[row], 0)])]

    def cordoned_usage(self, state: State, slot: int) -> Integers:
        """Return the usage of running jobs on servers that aren't up, by server and resource."""
        usage = self.pinning.usage(state.unstoppable_plans, slot)
        usage[state.servers.up] = 0
        return usage

    def can_start(self, state: State, slot: int, row: int, pinned: PinnedPlans) -> bool:
        """Return whether the plans in force hold if a job starts that can't be stopped then.

        ``pinned`` has the job's pinned plan and all others.
        """
        plan = pinned[row]
        others = {other: kept for other, kept in pinned.items() if other != row}
        if 0 <= state.jobs.promise[row] < plan.end:
            return False
        free = state.servers.capacity() - self.pinning.usage(others, slot)
        fits = self.pinning.fits_servers(state, slot, plan, free)
        return fits and self.carry_over(state, slot, pinned) is not None

    def can_wait(self, state: State, slot: int, pinned: PinnedPlans) -> bool:
        """Return whether all promises can be kept if a planned start waits for the next slot."""
        return not self._plan_jointly(state, slot + 1, pinned).unplanned

    def put_in_force(self, state: State, plan: JointPlan) -> None:
        """Put the planner's last plan in force; the arrays of the previous plan are reused."""
        assert plan is self._spare
        state.plan, self._spare = plan, state.plan

    # ---------------------------------------------------------------- single jobs

    def offer(self, state: State, row: int, price: Floats) -> Offer | None:
        """Return the plan with the largest payoff beside the joint plan; None if there is none.

        A running job that can't be stopped only has its pinned plan. ``price`` has the prices of a
        worker and of a parameter server in a slot. The timeline's ``fitting`` has the levels that
        fit until `add_last_offer` reads them.
        """
        plan = state.plan
        if (pinned := state.unstoppable_plans.get(row)) is not None:
            is_useful = pinned.end <= state.jobs.arrays.last_slot[row]
            return self.planned_offer(state, plan, row, price) if is_useful else None
        offer = self._offer(plan, state.jobs.arrays, row, price)
        if offer is not None and state.jobs.keeps_level[row]:
            arrays, line = state.jobs.arrays, plan.line
            # The last slot may have a lower level than the interval that it ends.
            count = int(np.searchsorted(line.start[: line.used[0]], offer.completion))
            last = plans.min_final_level(line, arrays, row, offer.ceiling, offer.completion)
            levels = np.minimum(line.fitting[:count], arrays.hull[row, offer.ceiling])
            if not _has_one_run(np.append(levels, last)):
                return None
        return offer

    def offer_alone(self, state: State, slot: int, row: int, price: Floats) -> Offer | None:
        """Return the plan with the largest payoff if no other job existed, None without one."""
        plan = self._new_plan(state, slot, {}, CountedPlans.NONE)
        return self._offer(plan, state.jobs.arrays, row, price)

    def _offer(self, plan: JointPlan, arrays: JobArrays, row: int, price: Floats) -> Offer | None:
        result = plans.best_plan(plan.line, arrays, row, price)
        return None if result[0] < 0 else Offer(*result)

    def add_last_offer(self, state: State, row: int, offer: Offer) -> bool:
        """Add the last result of `offer` to the plan in force; return whether it fits.

        Call it right after `offer`, because any other search or plan overwrites the timeline's
        ``fitting``. The plan of a job that can't be stopped is in force already.
        """
        if row in state.unstoppable_plans:
            return True
        plan = state.plan
        fits = plans.allocate_plan(
            plan.line, state.jobs.arrays, row, offer.ceiling, offer.completion, plan.steps, plan.log
        )
        if fits:
            plan.order = np.append(plan.order, row)
        return bool(fits)

    def planned_offer(self, state: State, plan: JointPlan, row: int, price: Floats) -> Offer:
        """Return the plan that a job has in a joint plan, as an offer at current prices."""
        jobs, arrays = state.jobs, state.jobs.arrays
        start, pinned = int(plan.line.start[0]), plan.pinned.get(row)
        if pinned is not None:
            end = pinned.end
            slots = end - start + 1
            worker_slots, ps_slots = slots * pinned.workers.sum(), slots * pinned.ps.sum()
        else:
            runs = plan.steps.runs[row]
            until, level = plan.steps.until[row, :runs], plan.steps.level[row, :runs]
            end = int(until[-1]) - 1
            run_slots, run_level = np.diff(until, prepend=start)[level >= 0], level[level >= 0]
            worker_slots = run_slots @ arrays.worker_counts[row, run_level]
            ps_slots = run_slots @ arrays.ps_counts[row, run_level]
        job = jobs.job(row)
        utility = utility_value(job.utility, max(end - job.arrival, 0))
        cost = float(np.array([worker_slots, ps_slots]) @ price)
        return Offer(end, NO_CEILING, end, utility, cost)

    def earliest_completion(self, state: State, row: int) -> int | None:
        """Return the first completion slot beside the joint plan, whatever its utility."""
        arrays, line, end = state.jobs.arrays, state.plan.line, state.jobs.final_slot + 1
        modes = range(plans.mode_count(arrays, row))
        slots = [int(plans.earliest_completion(line, arrays, row, mode, end)) for mode in modes]
        return min((slot for slot in slots if slot >= 0), default=None)

    def plan_waiting(
        self, state: State, rows: Integers, price: Floats, line: Timeline
    ) -> WaitingPlans:
        """Add plans of waiting jobs to the joint plan, in the free capacity of a timeline.

        Jobs without a plan by certain progress are planned by expected progress.
        """
        result = np.full((len(rows), 5), -1.0)
        if len(rows):
            jobs, plan = state.jobs, state.plan
            restarts = jobs.restart_loss[rows] > 0.0
            gains = jobs.expected_gains(rows) if restarts.any() else jobs.arrays.counted_gains
            expected = jobs.arrays._replace(counted_gains=gains)
            next_slot.plan_waiting(
                line, jobs.arrays, expected, restarts, rows, price, plan.steps, plan.log, result
            )
        target, completion = result[:, :2].astype(np.int64).T
        utility, cost, is_certain = result[:, 2], result[:, 3], result[:, 4] > 0.0
        return WaitingPlans(target >= 0, target, completion, utility, cost, is_certain)

    def copy_capacity(
        self, state: State, slot: int, job: Job, end: int, limit: int, counted: CountedPlans
    ) -> Integers:
        """Return how many copies of a bag's tasks, up to a limit, fit in each slot."""
        plan = state.plan
        if counted is not CountedPlans.ALL:
            plan = self._new_plan(state, slot, plan.pinned, counted)
        counts = np.zeros(max(0, end - slot), np.int64)
        tenant = self._quotas.row_of(self._cluster, job)
        timeline.copy_capacity(plan.line, job.worker.copy(), tenant, limit, end, counts)
        return counts

    # ---------------------------------------------------------------- planning

    def _by_promise(self, state: State, pinned: Iterable[int] = ()) -> Integers:
        """Return promised rows, except pinned ones: the earliest, then the longest job first."""
        jobs, rows = state.jobs, np.flatnonzero(state.promised(pinned))
        slots = -(-jobs.arrays.remaining[rows] // np.maximum(jobs.max_gain[rows], 1))
        return rows[np.lexsort((rows, -slots, jobs.promise[rows]))].astype(np.int64)

    def _plan_jointly(self, state: State, slot: int, pinned: PinnedPlans) -> JointPlan:
        """Plan promised jobs in order; after a failure, retry with the failed job in front.

        If all orders fail, the plan comes from the last order, but its ``unplanned`` has the row
        that failed in the first order.
        """
        order = self._by_promise(state, pinned)
        first: list[int] = []
        for _ in range(_MAX_ORDERS):
            plan = self._plan_rows(state, slot, pinned, order)
            if not plan.unplanned:
                return plan
            first = first or plan.unplanned
            order = np.concatenate((plan.unplanned, order[order != plan.unplanned[0]]))
        plan.unplanned = first
        return plan

    def _plan_rows(
        self, state: State, slot: int, pinned: PinnedPlans, order: Integers, *, skip: bool = False
    ) -> JointPlan:
        """Plan jobs in order; stop at the first that finds no plan, unless ``skip``."""
        plan, jobs = self._new_plan(state, slot, pinned, CountedPlans.BAGS_AND_PINNED), state.jobs
        failed = np.zeros(len(order), np.int64)
        count = plans.plan_in_order(
            plan.line, jobs.arrays, order, jobs.promise, skip, plan.steps, plan.log, failed
        )
        plan.unplanned = failed[:count].tolist()
        if not skip and not count:
            plan.unplanned = self.broken_runs(state, plan, order)[:1]
        plan.order = order[~np.isin(order, plan.unplanned)] if plan.unplanned else order
        return plan

    def carry_over(self, state: State, slot: int, pinned: PinnedPlans) -> JointPlan | None:
        """Return the rest of the plan in force for promised jobs; None if it breaks a promise."""
        previous, promised = state.plan, state.promised(pinned)
        kept = previous.order[promised[previous.order]]
        if len(kept) < int(promised.sum()):
            return None
        plan = self._new_plan(state, slot, pinned, CountedPlans.BAGS_AND_PINNED)
        count = plans.replay_plans(
            plan.line, state.jobs.arrays, kept, previous.steps, plan.steps, plan.log
        )
        plan.order = kept
        return plan if count == len(kept) else None

    # ---------------------------------------------------------------- free capacity

    def _new_plan(
        self, state: State, slot: int, pinned: PinnedPlans, counted: CountedPlans
    ) -> JointPlan:
        """Return the spare plan, with all capacity free that no bag or pinned job uses."""
        self.reserve(state)
        plan, bags = self._spare, state.bags
        plan.pinned, plan.unplanned = pinned, []
        plan.log.used[0] = 0
        plan.log.level[:] = -1
        plan.order = np.zeros(0, np.int64)
        if counted is not CountedPlans.NONE and (bags.plans or pinned):
            self._reset_around_named_servers(state, slot, plan)
        else:
            timeline.init_timeline(
                plan.line, np.array([slot]), self._kind_free.copy(), self._kind_role,
                state.servers.kind_count, *self._no_changes,
            )  # fmt: skip
        timeline.split_interval_at(plan.line, slot + 1)
        return plan

    def _reset_around_named_servers(self, state: State, slot: int, plan: JointPlan) -> None:
        """Reset a plan to the capacity that bags and pinned jobs leave, server by server."""
        bags, pinned, promises = state.bags, plan.pinned, state.jobs.promise
        bag_changes = bags.change_slots(slot)
        ends = {pinned_plan.end + 1 for pinned_plan in pinned.values()}
        starts = sorted({slot, *bag_changes, *(end for end in ends if end > slot)})
        self.reserve(state, 4 * len(state.jobs.rows) + 16 + 2 * len(starts))
        by_tenant = [
            bags.tenant_usage(start) + self.pinning.tenant_usage(pinned, promises, start)
            for start in starts
        ]
        usage = np.array(by_tenant, np.int64)
        before = bags.usage(slot)
        servers, changes = [np.zeros(0, np.int64)], [before[:0]]
        first = [0, 0]  # position of each interval's first change; the first interval has none
        for start in starts[1:]:
            for pinned_plan in pinned.values():
                if pinned_plan.end + 1 == start:
                    servers.append(pinned_plan.servers)
                    changes.append(pinned_plan.amounts)
            if start in bag_changes:
                after = bags.usage(start)
                differ = np.flatnonzero((after != before).any(axis=1))
                servers.append(differ)
                changes.append(before[differ] - after[differ])
                before = after
            first.append(sum(map(len, servers)))
        planned_usage = bags.usage(slot) + self.pinning.usage(pinned, slot)
        free, up = state.servers.capacity() - planned_usage, state.servers.up.astype(np.int64)
        if not timeline.init_timeline(
            plan.line, np.array(starts, np.int64), free, self._roles, up,
            np.array(first, np.int64), np.concatenate(servers), np.concatenate(changes), usage,
        ):  # fmt: skip
            self._reset_narrow(state, plan, starts, usage)
        for row, pinned_plan in pinned.items():
            plan.log.level[row] = pinned_plan.level

    def _reset_narrow(
        self, state: State, plan: JointPlan, starts: list[int], usage: Integers
    ) -> None:
        """Reset a timeline that can't hold all groups; the lowest by role and capacity are lost."""
        line, width, up = plan.line, self._width, state.servers.up
        capacity = state.servers.capacity()
        for interval, start in enumerate(starts):
            pinned_usage = self.pinning.usage(plan.pinned, start)
            free = np.maximum(capacity - state.bags.usage(start) - pinned_usage, 0)
            kinds = np.column_stack((self._roles, free))[up]
            groups, count = np.unique(kinds, axis=0, return_counts=True)
            groups, count = groups[-width:], count[-width:]
            size = len(groups)
            line.groups[interval] = size
            line.servers[interval, :size] = count
            line.role[interval, :size] = groups[:, 0]
            line.free[interval, :size] = groups[:, 1:]
            line.tenant_usage[interval] = usage[interval]
            line.start[interval], line.state[interval] = start, interval
        line.used[:] = len(starts)
        line.start[len(starts)] = timeline.INFINITE_SLOT


def _has_one_run(levels: Integers) -> bool:
    """Return whether a job keeps one level, without a pause, once it has started."""
    running = levels[int(np.argmax(levels >= 0)) :] if len(levels) else levels
    return bool((running == running[:1]).all())

"""Pinned plans: jobs keep their servers, so that restarts cost them nothing.

The module `state` defines pinned and unstoppable jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.policy import View
from shadowprice.core.utility import utility_value
from shadowprice.kernels.replanning.placement import Placements, place_packed_jobs, reduce_to_sum
from shadowprice.kernels.replanning.plans import PackingLog
from shadowprice.kernels.replanning.timeline import server_roles
from shadowprice.policies.rolling.offers import NO_CEILING, Offer
from shadowprice.policies.rolling.open_jobs import OpenJobs
from shadowprice.policies.rolling.quotas import Quotas
from shadowprice.policies.rolling.state import BagTable, PinnedPlan, PinnedPlans, State


class _Choice(NamedTuple):
    """A level for a pinned plan, its offer, and the plan itself if the job runs already."""

    level: int
    offer: Offer
    plan: PinnedPlan | None


class PinnedPlanner:
    """Chooses pinned plans for jobs whose restart would cost part of a slot.

    Running promised jobs get them whenever they can. Jobs that wait get them at submission, or
    later, if no other plan completes them in time.

    A plan of levels names no servers, so it assumes a restart in every slot. A pinned plan assumes
    no restart if the job keeps its placement, and a single restart if the job scales down in the
    plan's first slot. All other jobs are planned around pinned plans.
    """

    def __init__(self, cluster: Cluster, quotas: Quotas) -> None:
        self._cluster, self._quotas = cluster, quotas

    def still_valid(self, state: State, slot: int) -> PinnedPlans:
        """Return the plans in force that still keep their promises, with updated end slots."""
        jobs, arrays = state.jobs, state.jobs.arrays
        valid: PinnedPlans = dict(state.unstoppable_plans)
        for row, plan in state.plan.pinned.items():
            if row not in valid and jobs.promise[row] >= 0 and arrays.remaining[row] > 0:
                gain = int(arrays.gains[row, plan.level])
                restart_gain = int(arrays.counted_gains[row, plan.level])
                planned = plan.servers, plan.workers, plan.ps
                stays = all(map(np.array_equal, jobs.placements.of_row(row), planned))
                stays |= not jobs.start_costs[row]  # its first start is free
                first = gain if stays else restart_gain
                end = slot + slots_needed(int(arrays.remaining[row]), first, gain) - 1
                if end <= jobs.promise[row]:
                    valid[row] = plan if end == plan.end else replace(plan, end=end)
        return valid

    def candidate_sets(
        self,
        state: State,
        slot: int,
        order: Integers,
        in_force: PinnedPlans,
        *,
        new_only: bool = False,
        lean_first: bool = False,
    ) -> Iterator[PinnedPlans]:
        """Yield sets of pinned plans to plan other jobs around, the best first.

        In one set, jobs keep their current placement if it completes in time. In the lean set, each
        job has the minimum number of workers that completes in time. The last set has only the
        plans in force.

        ``order`` has the rows of promised jobs, the earliest promise first. With ``new_only``, jobs
        that already have a plan keep it. With ``lean_first``, the lean set comes first, because it
        leaves the most capacity for arrivals.
        """
        jobs = state.jobs
        order = order[(jobs.restart_loss[order] > 0.0) & (jobs.level[order] >= 0)]
        kept = in_force if new_only else state.unstoppable_plans
        rows = [row for row in order.tolist() if row not in kept]
        first = self._pin(state, slot, rows, in_force, lean=lean_first)
        yield first
        second = self._pin(state, slot, rows, in_force, lean=not lean_first)
        # Plans compare by identity: a kept plan is the same object (`still_valid`). Equal sets of
        # new plans are both yielded, which costs time but changes nothing.
        if second != first:
            yield second
        if in_force != first:
            yield in_force

    def _pin(
        self, state: State, slot: int, rows: list[int], in_force: PinnedPlans, *, lean: bool
    ) -> PinnedPlans:
        """Return ``in_force`` with new plans of ``rows`` that can keep servers, chosen in order."""
        jobs, pinned = state.jobs, dict(in_force)
        usage = self.tenant_usage(pinned, jobs.promise, slot)
        free = state.servers.capacity() - self.usage(pinned, slot)
        for row in rows:
            previous = pinned.get(row)
            if previous is not None and not lean and previous.level == jobs.level[row]:
                continue  # the plan in force already has this level
            if previous is not None:
                _add_usage(usage, previous, -1)
                free[previous.servers] += previous.amounts
            for plan in _plans_on_servers(jobs, slot, row, int(jobs.promise[row]), lean=lean):
                if self._fits(state, slot, plan, free, usage):
                    pinned[row] = plan
                    break
            if row in pinned:
                _add_usage(usage, pinned[row], 1)
                free[pinned[row].servers] -= pinned[row].amounts
        return pinned

    def _fits(
        self, state: State, slot: int, plan: PinnedPlan, free: Integers, usage: Integers
    ) -> bool:
        """Return whether a plan fits beside pinned plans and bags, and in its tenant's share."""
        fits = self.fits_servers(state, slot, plan, free)
        return fits and self._fits_share(state, slot, plan, usage)

    def _fits_share(self, state: State, slot: int, plan: PinnedPlan, usage: Integers) -> bool:
        """Return whether a plan fits in its tenant's share beside other plans and bags."""
        if not self._quotas.has_shares:
            return True
        bags, total = state.bags, plan.amounts.sum(axis=0)
        for start in _change_slots(bags, slot, plan):
            headroom = self._quotas.headroom(usage + bags.tenant_usage(start), plan.tenant)
            if (total > headroom)[(headroom >= 0) & (total > 0)].any():
                return False
        return True

    def fits_servers(self, state: State, slot: int, plan: PinnedPlan, free: Integers) -> bool:
        """Return whether a plan's servers have capacity for it beside other plans and bags."""
        bags = state.bags
        for start in _change_slots(bags, slot, plan):
            by_bags = bags.usage(start)[plan.servers] if bags.plans else 0
            if (plan.amounts > free[plan.servers] - by_bags).any():
                return False
        return True

    # ---------------------------------------------------------------- offers

    def offers(
        self, state: State, slot: int, row: int, price: Floats
    ) -> list[tuple[Offer, PinnedPlan]]:
        """Return offers of plans that start in the next slot and never move, best payoff first.

        The plans fit beside all pinned plans and bags, and in the tenant's share. A running job
        keeps its current servers.
        """
        jobs, bags, pinned = state.jobs, state.bags, state.plan.pinned
        choices = [
            choice
            for choice in self._choices(jobs, slot, row, price)
            if choice.offer.utility > choice.offer.cost
        ]
        if not choices:
            return []
        free = state.servers.capacity() - self.usage(pinned, slot)
        usage = self.tenant_usage(pinned, jobs.promise, slot)
        always_free = free
        if bags.plans:
            changes = [slot, *bags.change_slots(slot)]
            always_free = free - np.maximum.reduce([bags.usage(start) for start in changes])
        placed = self._place(jobs, row, choices, np.maximum(always_free, 0))
        return [each for each in placed if self._fits(state, slot, each[1], free, usage)]

    def offer_alone(self, state: State, slot: int, row: int, price: Floats) -> Offer | None:
        """Return the best offer of a pinned plan if no other job existed; None if there is none."""
        no_usage = np.zeros_like(self._quotas.share)
        choices = self._choices(state.jobs, slot, row, price)
        for offer, plan in self._place(state.jobs, row, choices, state.servers.capacity()):
            if self._fits_share(state, slot, plan, no_usage):
                return offer
        return None

    def _choices(self, jobs: OpenJobs, slot: int, row: int, price: Floats) -> list[_Choice]:
        """Return the levels whose plans complete while the job has a utility, best payoff first."""
        arrays, job, last = jobs.arrays, jobs.job(row), int(jobs.arrays.last_slot[row])
        plans: list[tuple[int, int, PinnedPlan | None]]
        if jobs.level[row] >= 0:
            plans = [
                (plan.level, plan.end, plan)
                for plan in _plans_on_servers(jobs, slot, row, last, lean=False)
            ]
        else:
            levels = arrays.hull[row, : arrays.hull_size[row]]
            gains = np.maximum(arrays.gains[row, levels], 1)
            first = arrays.counted_gains[row, levels] if jobs.start_costs[row] else gains
            ends = slot + np.maximum(0, -((first - arrays.remaining[row]) // gains))
            plans = [
                (level, end, None)
                for level, end in zip(levels.tolist(), ends.tolist(), strict=True)
                if end <= last
            ]
        choices = []
        for level, end, plan in plans:
            processes = arrays.worker_counts[row, level], arrays.ps_counts[row, level]
            cost = (end - slot + 1) * float(np.array(processes) @ price)
            utility = utility_value(job.utility, max(end - job.arrival, 0))
            choices.append(_Choice(level, Offer(end, NO_CEILING, end, utility, cost), plan))
        return sorted(
            choices,
            key=lambda each: (
                each.offer.cost - each.offer.utility,
                each.offer.completion,
                each.level,
            ),
        )

    def _place(
        self, jobs: OpenJobs, row: int, choices: list[_Choice], free: Integers
    ) -> Iterator[tuple[Offer, PinnedPlan]]:
        """Yield the choices that fit on servers with free capacity, with their plans."""
        arrays, cluster = jobs.arrays, self._cluster
        roles = server_roles(cluster.hosts_workers, cluster.hosts_ps)
        no_placements, no_level = pinned_placements({}, jobs.row_count)
        for level, offer, plan in choices:
            if plan is not None:
                yield offer, plan
                continue
            levels = np.full(jobs.row_count, -1)
            levels[row] = level
            # The kernel places entries of a log, here the only one of this job.
            processes = arrays.worker_counts[row, [level]], arrays.ps_counts[row, [level]]
            log = PackingLog(np.array([1]), np.array([row]), *processes, levels)
            complete, placed = place_packed_jobs(
                free.copy(), roles, arrays, log, no_placements, no_placements, no_level, False
            )
            if complete:
                yield offer, PinnedPlan.of(arrays, row, level, offer.completion, *placed[2:])

    # ---------------------------------------------------------------- usage

    def usage(self, pinned: PinnedPlans, slot: int) -> Integers:
        """Return the usage of plans in a slot, shape (servers, resources)."""
        usage = np.zeros_like(self._cluster.capacity)
        for plan in pinned.values():
            if plan.end >= slot:
                usage[plan.servers] += plan.amounts
        return usage

    def tenant_usage(self, pinned: PinnedPlans, promises: Integers, slot: int) -> Integers:
        """Return the usage in a slot by tenant, shaped as its shares; only promises count."""
        usage = np.zeros_like(self._quotas.share)
        for row, plan in pinned.items() if len(usage) else ():
            if promises[row] >= 0 and plan.end >= slot:
                _add_usage(usage, plan, 1)
        return usage


def find_unstoppable_plans(view: View, state: State) -> PinnedPlans:
    """Return the plans of running jobs that can't be stopped: they stay until they end.

    Such jobs may also run on servers that aren't up, because these are cordoned. An elastic job
    that may still show checkpoints is left out if it would miss its promise, because its plan
    counts on more workers than it has now.
    """
    plans: PinnedPlans = {}
    jobs, up = state.jobs, state.servers.up
    if up.all() and not jobs.unstoppable.any():
        return plans
    on_cordoned = np.zeros(len(jobs.level), np.bool_)
    if not up.all():
        running = np.flatnonzero(jobs.level >= 0).tolist()
        on_cordoned[running] = [not up[jobs.placements.of_row(row)[0]].all() for row in running]
    for row in np.flatnonzero((jobs.unstoppable | on_cordoned) & (jobs.level >= 0)).tolist():
        name = jobs.name(row)
        if not view.is_unstoppable(name) or jobs.arrays.remaining[row] <= 0:
            continue
        plan = plan_until_end(jobs, view.slot, row, int(jobs.level[row]), jobs.placements)
        is_late = 0 <= jobs.promise[row] < plan.end
        if jobs.keeps_level[row] or on_cordoned[row] or not is_late:
            plans[row] = plan
    return plans


def plan_until_end(
    jobs: OpenJobs, slot: int, row: int, level: int, placements: Placements
) -> PinnedPlan:
    """Return the plan of a job that keeps a placement from a slot on until it is done."""
    gain = max(int(jobs.arrays.gains[row, level]), 1)
    end = slot + slots_needed(int(jobs.arrays.remaining[row]), gain, gain) - 1
    processes = (part.copy() for part in placements.of_row(row))
    return PinnedPlan.of(jobs.arrays, row, level, end, *processes)


def pinned_placements(pinned: PinnedPlans, rows: int) -> tuple[Placements, Integers]:
    """Return the pinned placements of the next slot, and the pinned level of each row."""
    level, placements = np.full(rows, -1), Placements.empty(rows)
    for row, plan in pinned.items():
        level[row] = plan.level
        placements = placements.replaced(row, plan.servers, plan.workers, plan.ps)
    return placements, level


def forbidden_levels(state: State, slot: int) -> Flags:
    """Return the levels that jobs may not scale up to in the next slot; size 0 if all are allowed.

    - A pinned job that scales up for a slot must return to its plan and still complete in time.
    - The plan of a promised job may count on a free first start in a later slot. The job may start
      now only if this slot's progress makes up for the restart that the later slot then costs.
    - A job that can't be stopped keeps its level.
    """
    plan, jobs, arrays = state.plan, state.jobs, state.jobs.arrays
    if not (plan.pinned or arrays.first_start_free.any() or jobs.keeps_level.any()):
        return np.zeros((0, 0), np.bool_)
    forbidden = np.zeros(arrays.gains.shape, np.bool_)
    if plan.pinned:
        rows = np.fromiter(plan.pinned, np.int64, len(plan.pinned))
        level, end = np.array([(each.level, each.end) for each in plan.pinned.values()]).T
        progress = arrays.counted_gains[rows]
        running = np.flatnonzero(jobs.level[rows] >= 0)
        current = rows[running], jobs.level[rows[running]]
        progress[running, current[1]] = arrays.gains[current]
        starts_free = ~jobs.start_costs[rows]
        progress[starts_free] = arrays.gains[rows[starts_free]]
        resumed, gain = arrays.counted_gains[rows, level], arrays.gains[rows, level]
        work = arrays.remaining[rows, None] - progress
        forbidden[rows] = ~_end_in_time(slot, work, resumed[:, None], gain[:, None], end[:, None])
    level, promised = plan.log.level[: jobs.row_count], state.promised(plan.pinned)
    keeping = np.flatnonzero(promised & jobs.keeps_level & (level >= 0))
    # A job that can't be stopped couldn't return to its plan.
    staying = [row for row in plan.pinned if jobs.unstoppable[row]]
    forbidden[[*state.unstoppable_plans, *staying, *keeping.tolist()]] = True
    rows = np.flatnonzero(promised & arrays.first_start_free & (level < 0))
    if len(rows):
        levels = plan.steps.level[rows]  # of each run; the first one without a pause starts the job
        first = levels[np.arange(len(rows)), np.argmax(levels >= 0, axis=1)]
        bonus = arrays.gains[rows, first] - arrays.counted_gains[rows, first]
        needed = np.minimum(bonus, arrays.remaining[rows])
        forbidden[rows] |= arrays.gains[rows] < needed[:, None]
    return forbidden


def cannot_move(state: State, slot: int, row: int, level: int) -> bool:
    """Return whether a job that moved to a level in the next slot would miss its plan's end."""
    plan, jobs, arrays = state.plan.pinned.get(row), state.jobs, state.jobs.arrays
    if plan is None or level == plan.level:
        return False
    first = arrays.counted_gains if jobs.start_costs[row] else arrays.gains
    remaining = arrays.remaining[row] - first[row, level]
    resumed, gain = arrays.counted_gains[row, plan.level], arrays.gains[row, plan.level]
    return not bool(_end_in_time(slot, remaining, resumed, gain, plan.end))


def slots_needed(remaining: int, first: int, gain: int) -> int:
    """Return the number of slots for ``remaining`` work, if the first slot yields ``first``."""
    return 1 + max(0, -(-(remaining - first) // gain))


def _plans_on_servers(
    jobs: OpenJobs, slot: int, row: int, last: int, *, lean: bool
) -> Iterator[PinnedPlan]:
    """Yield plans on a job's current servers that end by slot ``last``, at most at its level.

    The plan with the most workers comes first, or with ``lean`` the plan with the fewest.
    """
    arrays = jobs.arrays
    servers, workers, ps = jobs.placements.of_row(row)
    if not len(servers):
        return
    top, spread = int(jobs.level[row]), int(arrays.spread_levels[row])
    hull = arrays.hull[row, : arrays.hull_size[row]]
    below = hull[(hull < top) & ((hull >= spread) == (top >= spread))].tolist()
    remaining = int(arrays.remaining[row])
    for level in [*below, top] if lean else [top, *reversed(below)]:
        wanted, wanted_ps = arrays.worker_counts[row, level], arrays.ps_counts[row, level]
        kept = reduce_to_sum(workers.copy(), int(wanted))
        kept_ps = reduce_to_sum(ps.copy(), int(wanted_ps))
        if kept.sum() != wanted or kept_ps.sum() != wanted_ps:  # it runs fewer than the level
            continue
        unchanged = np.array_equal(kept, workers) and np.array_equal(kept_ps, ps)
        gain = int(arrays.gains[row, level])
        if gain <= 0:
            continue
        first = gain if unchanged else int(arrays.counted_gains[row, level])
        end = slot + slots_needed(remaining, first, gain) - 1
        if end <= last:
            used = np.flatnonzero(kept + kept_ps)
            yield PinnedPlan.of(arrays, row, level, end, servers[used], kept[used], kept_ps[used])


def _change_slots(bags: BagTable, slot: int, plan: PinnedPlan) -> list[int]:
    """Return ``slot``, and later slots up to the plan's end in which plans of bags change."""
    return [slot, *(change for change in bags.change_slots(slot) if change <= plan.end)]


def _add_usage(usage: Integers, plan: PinnedPlan, sign: int) -> None:
    if len(usage):
        usage[plan.tenant] += sign * plan.amounts.sum(axis=0)


def _end_in_time(
    slot: int, remaining: Integers, resumed: Integers, gain: Integers, end: Integers | int
) -> Flags:
    """Return which plans still end by ``end`` if a restart resumes them after the next slot.

    ``remaining`` are the progress units missing after the next slot. The slot that resumes a plan
    yields ``resumed``, and each later slot ``gain``.
    """
    done = slot + 1 + np.maximum(0, -(-(remaining - resumed) // gain))
    return np.asarray((remaining <= 0) | (done <= end))

"""Allocation of the next slot: waiting jobs, and spare capacity."""

import heapq
from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Floats, Integers
from shadowprice.kernels.jit import allocation_free, inlined, kernel
from shadowprice.kernels.replanning.plans import (
    JobArrays,
    PackingLog,
    PlannedLevels,
    allocate_plan,
    best_plan,
    last_slot_worth,
    log_allocation,
    max_colocated_level,
    max_gain,
    pack_colocated,
    pack_spread,
    utility,
)
from shadowprice.kernels.replanning.timeline import (
    WORKER_ROLE,
    Timeline,
    tenant_headroom,
    total_fit,
)

MAX_PROMISE_STRETCH = 8
"""Maximum distance of a promise, in planned durations; the horizon if that is more."""

MIN_STEP_COST = 1e-200
"""Minimum cost of a step, so that its value is finite; infinity times a utility of 0 is NaN."""


@kernel
def utility_densities(
    jobs: JobArrays, rows: Integers, next_slot: int, weight: Floats
) -> tuple[Floats, Floats]:
    """Return each row's maximum utility density on an empty cluster, and the utility there.

    The density of a level is its utility over its weighted worker-slots; the maximum is 0 if no
    level completes in time. ``weight`` (rows of ``jobs``, 2) are weights of a worker and of a
    parameter server of each job. Any weights do, because densities only rank jobs.
    """
    density, best_utility = np.zeros(len(rows)), np.zeros(len(rows))
    for n in range(len(rows)):
        row = rows[n]
        for position in range(jobs.hull_size[row]):
            level = jobs.hull[row, position]
            gain = jobs.gains[row, level]
            slots = (jobs.remaining[row] + gain - 1) // gain
            if next_slot + slots - 1 > jobs.last_slot[row]:
                continue
            processes = weight[row, 0] * jobs.worker_counts[row, level]
            processes += weight[row, 1] * jobs.ps_counts[row, level]
            value = utility(jobs, row, next_slot + slots - 1)
            # The weight is 0 if a job only needs resources without a limit.
            weighted_slots = max(processes, 1e-300) * slots
            if value > density[n] * weighted_slots:
                density[n] = value / weighted_slots
                best_utility[n] = value
    return density, best_utility


@kernel
def min_cluster_slots(jobs: JobArrays, rows: Integers, on_worker: Floats, on_ps: Floats) -> Floats:
    """Return each row's work in slots of the entire cluster, at its thriftiest level.

    ``on_worker`` and ``on_ps`` (jobs, priced resources) are the shares of the cluster that a worker
    and a parameter server use. The work of a level is in shares of its dominant resource.
    """
    result = np.full(len(rows), np.inf)
    for n in range(len(rows)):
        row = rows[n]
        for position in range(jobs.hull_size[row]):
            level = jobs.hull[row, position]
            share = 0.0
            for c in range(on_worker.shape[1]):
                used = jobs.worker_counts[row, level] * on_worker[n, c]
                share = max(share, used + jobs.ps_counts[row, level] * on_ps[n, c])
            result[n] = min(result[n], share * jobs.remaining[row] / jobs.gains[row, level])
    return result


@allocation_free
def latest_acceptable_slot(
    jobs: JobArrays, row: int, next_slot: int, completion: int, horizon: int, tolerance: float
) -> int:
    """Return the last slot whose utility is almost that in the slot ``completion``.

    ``tolerance`` is the share of the utility that may be lost. The result is at most ``horizon``
    slots away, or `MAX_PROMISE_STRETCH` times as far as ``completion`` if that is later.
    """
    reach = max(horizon, MAX_PROMISE_STRETCH * (completion - next_slot + 1))
    last = max(completion, min(jobs.last_slot[row], next_slot + reach))
    min_utility = utility(jobs, row, completion) * (1.0 - tolerance)
    return max(completion, last_slot_worth(jobs, row, min_utility, completion, last))


@kernel
def latest_acceptable_slots(
    jobs: JobArrays, rows: Integers, next_slot: int, horizon: int, tolerance: float
) -> tuple[Integers, Floats]:
    """Return each row's latest acceptable slot, and the utility of its work at full speed."""
    result = np.zeros(len(rows), np.int64)
    value = np.zeros(len(rows))
    for n in range(len(rows)):
        row = rows[n]
        fastest = max(max_gain(jobs, row), 1)
        completion = next_slot + (jobs.remaining[row] + fastest - 1) // fastest - 1
        value[n] = utility(jobs, row, completion)
        result[n] = latest_acceptable_slot(jobs, row, next_slot, completion, horizon, tolerance)
    return result, value


@allocation_free
def plan_waiting(
    line: Timeline,
    jobs: JobArrays,
    expected: JobArrays,
    loses_by_restarts: Flags,
    rows: Integers,
    price: Floats,
    steps: PlannedLevels,
    log: PackingLog,
    result: Floats,
) -> None:
    """Plan waiting jobs in order, each in the capacity that the plans before it leave.

    - ``expected``: the same jobs, but ``counted_gains`` is their expected progress. Jobs without a
      plan by certain progress are planned by it; such plans may break.
    - ``loses_by_restarts`` (jobs,): whether a restart costs a job progress. If it doesn't, expected
      progress isn't more than the certain one.
    - ``rows`` (jobs,): waiting jobs, the highest density first.
    - ``price`` (rows of ``jobs``, 2): of a worker and of a parameter server in a slot.
    - ``result`` (jobs, 5), written: slot by which the plan was to complete (-1 without a plan),
      slot in which it completes, utility, cost, and 1 if it counts on certain progress only.
    """
    for n in range(len(rows)):
        row = rows[n]
        result[n, 0] = -1.0
        result[n, 4] = 1.0
        end, ceiling, completion, value, cost = best_plan(line, jobs, row, price[row])
        if end >= 0:
            if not allocate_plan(line, jobs, row, ceiling, completion, steps, log):
                continue
        elif loses_by_restarts[n]:
            result[n, 4] = 0.0
            end, ceiling, completion, value, cost = best_plan(line, expected, row, price[row])
            if end >= 0 and not allocate_plan(line, expected, row, ceiling, completion, steps, log):
                continue
        if end >= 0:
            result[n, 0] = end
            result[n, 1] = completion
            result[n, 2] = value
            result[n, 3] = cost


class StepWeights(NamedTuple):
    """Weights by which steps up, to more workers, are compared (`best_step`)."""

    utility: Floats  # of completing each job, shape (rows,)
    process: Floats  # weight of a worker and of a parameter server, shape (rows, 2)
    loss: Floats  # share of a slot lost by a move; 0 before the first start, shape (rows,)
    previous_level: Integers  # level in the previous slot, -1 for none, shape (rows,)
    forbidden: Flags  # whether a level is forbidden, shape (rows, levels); empty if none is


@kernel
def allocate_spare(
    line: Timeline, jobs: JobArrays, rows: Integers, weights: StepWeights, log: PackingLog
) -> None:
    """Allocate the spare capacity of the first slot: one step up at a time, the best first.

    The value of a step is the job's utility times the share of remaining work that the step adds,
    over the weight of the resources that it takes. If the step moves a job that would otherwise
    keep its placement, the move's cost is subtracted. A co-located job may start here; it scales up
    once its server is known (`placement.scale_up_colocated`).

    ``rows`` (jobs,) may run in the slot.
    """
    heap = [(0.0, -1, -1)]  # numba infers the type from this entry
    heap.pop()
    for n in range(len(rows)):
        # Paused jobs (level -1) and spread jobs; co-located ones scale up on their servers later.
        if log.level[rows[n]] < jobs.spread_levels[rows[n]]:
            push_step(heap, jobs, rows, n, jobs.levels[rows[n]], weights, log)
    state = line.state[0]
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        current_level = log.level[row]
        workers = jobs.worker_counts[row, target]
        ps_count = jobs.ps_counts[row, target]
        if current_level >= 0:
            workers -= jobs.worker_counts[row, current_level]
            ps_count -= jobs.ps_counts[row, current_level]
        first_role = 0
        if target < jobs.spread_levels[row]:
            first_role = _pack_spread_step(line, state, jobs, row, workers, ps_count)
        elif max_colocated_level(line, state, jobs, row) >= target:
            first_role = pack_colocated(line, state, jobs, row, target)
        if first_role == 0:
            # Free capacity only shrinks, but a smaller step may still fit.
            push_step(heap, jobs, rows, n, target, weights, log)
            continue
        if not log_allocation(log, row, target, workers, ps_count, first_role):
            return
        if target < jobs.spread_levels[row]:
            push_step(heap, jobs, rows, n, jobs.levels[row], weights, log)


@kernel
def push_step(
    heap: list[tuple[float, int, int]],
    jobs: JobArrays,
    rows: Integers,
    n: int,
    below: int,
    weights: StepWeights,
    log: PackingLog,
) -> None:
    """Push the best step up of ``rows[n]`` below a level, if it adds progress.

    A paused job starts co-located if it can, else spread. A running job keeps its mode.
    """
    row = rows[n]
    current_level, spread = log.level[row], jobs.spread_levels[row]
    value, target = 0.0, -1
    if current_level < 0 and below > spread:
        value, target = best_step(jobs, row, current_level, spread, below, weights)
    if target < 0:
        first, end = current_level + 1, below if current_level >= spread else min(below, spread)
        value, target = best_step(jobs, row, current_level, first, end, weights)
    if target >= 0:
        heapq.heappush(heap, (-value * weights.utility[row] / jobs.remaining[row], n, target))


@allocation_free
def best_step(
    jobs: JobArrays, row: int, current_level: int, first: int, end: int, weights: StepWeights
) -> tuple[float, int]:
    """Return the best step to a level of ``[first, end)``: its value by weight, and the level.

    The level is -1 if no step is allowed or adds progress.
    """
    gain = 0.0
    used = 0.0
    if current_level >= 0:
        gain = float(jobs.gains[row, current_level])
        if gain >= jobs.remaining[row]:
            return 0.0, -1
        used = weights.process[row, 0] * jobs.worker_counts[row, current_level]
        used += weights.process[row, 1] * jobs.ps_counts[row, current_level]
        if weights.previous_level[row] != current_level:
            gain *= 1.0 - weights.loss[row]
    best = 0.0
    target = -1
    # Compare all steps, because one more worker may add nothing, and several more may.
    for level in range(first, end):
        step_gain = float(min(jobs.gains[row, level], jobs.remaining[row]))
        if weights.previous_level[row] != level:
            step_gain *= 1.0 - weights.loss[row]
        step_gain -= gain
        cost = weights.process[row, 0] * jobs.worker_counts[row, level]
        cost += weights.process[row, 1] * jobs.ps_counts[row, level] - used
        cost = max(cost, MIN_STEP_COST)
        allowed = len(weights.forbidden) == 0 or not weights.forbidden[row, level]
        # Of equal steps, up to rounding, the smallest comes first.
        if allowed and step_gain > 0.0 and step_gain > best * cost * (1.0 + 1e-9):
            best = step_gain / cost
            target = level
        if jobs.gains[row, level] >= jobs.remaining[row]:
            break
    return best, target


@inlined
def _pack_spread_step(
    line: Timeline, state: int, jobs: JobArrays, row: int, workers: int, ps_count: int
) -> int:
    """Pack more processes of a spread job within its tenant's headroom; see `pack_spread`."""
    worker, ps = jobs.worker[row], jobs.ps[row]
    if len(line.limits) > 1:
        for r in range(len(worker)):
            needed = workers * worker[r] + ps_count * ps[r]
            if needed > 0 and needed > tenant_headroom(line, state, jobs.tenant[row], r):
                return 0
    if total_fit(line, state, WORKER_ROLE, worker, workers) < workers:
        return 0
    return pack_spread(line, state, jobs, row, workers, ps_count)

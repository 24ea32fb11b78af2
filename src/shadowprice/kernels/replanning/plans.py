"""Plans of single jobs in a timeline: the fewest workers that complete in time.

A job's *ceiling* is the maximum level that its plan takes in any slot, as a position on the job's
hulls (`JobArrays.hull`); the job runs with less if less fits. The least ceiling that completes by a
slot is ElasticFlow's minimum satisfactory share (`reactive.shares`), here for several resources,
kinds of servers, parameter servers, and curves of any shape. Ceilings are on the upper hull of the
curve, so that a job never runs with a worker count that wastes workers if a better one fits.

A plan uses one placement mode throughout (`replanning.jobs`), and every search is within one mode.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined, kernel
from shadowprice.kernels.reactive.shares import completes_fresh, min_ceiling
from shadowprice.kernels.replanning.jobs import (
    COLOCATED,
    SPREAD,
    JobArrays,
    colocated_demand,
    colocated_role,
    first_slot_gains,
    hull_range,
    last_slot_worth,
    level_range,
    mode_count,
    utility,
)
from shadowprice.kernels.replanning.timeline import (
    ONE,
    PS_ROLE,
    WORKER_ROLE,
    Timeline,
    add_tenant_usage,
    copy_state,
    pack,
    pack_ps_first,
    split_interval_at,
    tenant_headroom,
    total_fit,
)

LOWEST = constant(0)


class LevelDemand(NamedTuple):
    """Demand of one job by level: the only arrays that functions get which visit every interval."""

    worker: Integers  # shape (resources,)
    ps: Integers  # shape (resources,)
    worker_counts: Integers  # shape (levels,)
    ps_counts: Integers  # shape (levels,)
    tenant: int  # row of `Timeline.share`


@inlined
def _level_demand(jobs: JobArrays, row: int) -> LevelDemand:
    """Return the demand of a job by level."""
    return LevelDemand(
        jobs.worker[row],
        jobs.ps[row],
        jobs.worker_counts[row],
        jobs.ps_counts[row],
        jobs.tenant[row],
    )


@inlined
def _max_spread_level(
    line: Timeline, state: int, demand: LevelDemand, last: int, shared: bool
) -> int:
    """Return the highest level of a spread job, up to ``last``, that fits into a state, or -1.

    ``shared`` says whether some servers host both workers and parameter servers. Then only a trial
    packing can decide.
    """
    top = _max_level_in_share(line, state, demand, LOWEST, last)
    if top < 0:
        return -1
    limit = total_fit(line, state, WORKER_ROLE, demand.worker, demand.worker_counts[top])
    level = _last_at_most(demand.worker_counts, top + 1, limit)
    if level < 0 or demand.ps_counts[top] == 0:
        return level
    if not shared:
        limit = total_fit(line, state, PS_ROLE, demand.ps, demand.ps_counts[level])
        while level >= 0 and demand.ps_counts[level] > limit:
            level -= 1
        return level
    scratch = len(line.state) - 1
    low, high = -1, level
    probe = level  # the highest level fits most often
    while low < high:
        workers, ps_count = demand.worker_counts[probe], demand.ps_counts[probe]
        copy_state(line, state, scratch)
        if (
            pack(line, scratch, WORKER_ROLE, demand.worker, workers)
            and pack(line, scratch, PS_ROLE, demand.ps, ps_count)
        ) or pack_ps_first(line, scratch, state, demand.worker, workers, demand.ps, ps_count):
            low = probe
        else:
            high = probe - 1
        probe = (low + high + 1) // 2
    return low


@allocation_free
def max_colocated_level(line: Timeline, state: int, jobs: JobArrays, row: int) -> int:
    """Return the highest level of a job that fits on one server of a state, or -1."""
    first = jobs.spread_levels[row]
    top = _max_level_in_share(line, state, _level_demand(jobs, row), first, jobs.levels[row] - 1)
    role = colocated_role(jobs, row)
    worker, ps = jobs.worker[row], jobs.ps[row]
    level = first - 1
    for g in range(line.groups[state]):
        if line.role[state, g] & role != role:
            continue
        fits = True
        while fits and level < top:
            workers, ps_count = jobs.worker_counts[row, level + 1], jobs.ps_counts[row, level + 1]
            for r in range(len(worker)):
                if line.free[state, g, r] < workers * worker[r] + ps_count * ps[r]:
                    fits = False
                    break
            if fits:
                level += 1
    return level if level >= first else -1


@allocation_free
def _max_level_in_share(
    line: Timeline, state: int, demand: LevelDemand, first: int, top: int
) -> int:
    """Return the highest level of ``[first, top]`` within the tenant's headroom, or first - 1."""
    level = top
    if len(line.share) == 0:
        return int(level)
    for r in range(len(demand.worker)):
        worker, ps = demand.worker[r], demand.ps[r]
        if worker == 0 and ps == 0:
            continue
        headroom = tenant_headroom(line, state, demand.tenant, r)
        while (
            level >= first
            and demand.worker_counts[level] * worker > headroom - demand.ps_counts[level] * ps
        ):
            level -= 1
    return int(level)


@inlined
def _last_at_most(numbers: Integers, count: int, limit: int) -> int:
    """Return the position of the last of ascending numbers that is at most ``limit``."""
    low, high = -1, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        if numbers[middle] <= limit:
            low = middle
        else:
            high = middle - 1
    return low


@allocation_free
def fitting_levels(
    line: Timeline, jobs: JobArrays, row: int, mode: int, end: int, shared: bool, fitting: Integers
) -> int:
    """Write the level that fits into each interval that starts before ``end``; count them."""
    intervals = line.used[0]
    k = 0
    # Two loops, because LLVM unrolls and inlines small bodies only.
    if mode == COLOCATED:
        while k < intervals and line.start[k] < end:
            fitting[k] = max_colocated_level(line, line.state[k], jobs, row)
            k += 1
        return k
    demand, last = _level_demand(jobs, row), jobs.spread_levels[row] - 1
    while k < intervals and line.start[k] < end:
        fitting[k] = _max_spread_level(line, line.state[k], demand, last, shared)
        k += 1
    return k


class PlannedLevels(NamedTuple):
    """Planned levels by row, as runs of equal slots that start at the slot of planning."""

    runs: Integers  # number of runs of each row; -1 without a plan
    until: Integers  # first slot after each run, shape (rows, width)
    level: Integers  # level of each run, -1 for a pause, shape (rows, width)


class PackingLog(NamedTuple):
    """Allocations of the first slot in packing order, so that servers can be packed by it."""

    used: Integers  # number of entries, shape (1,)
    row: Integers  # job of each entry
    workers: Integers
    ps: Integers
    level: Integers  # level of each job in the first slot, -1 for none, shape (rows,)


@allocation_free
def min_final_level(
    line: Timeline, jobs: JobArrays, row: int, ceiling: int, completion: int, fitting: Integers
) -> int:
    """Return the least level that completes a plan in its last slot."""
    top = jobs.hull[row, ceiling]
    first, _ = level_range(jobs, row, COLOCATED if top >= jobs.spread_levels[row] else SPREAD)
    remaining = jobs.remaining[row]
    starts_free = jobs.starts_free[row]
    level = -1
    for k in range(line.used[0]):
        if line.start[k] > completion:
            break
        level = min(top, fitting[k])
        slots = min(line.start[k + 1], completion) - line.start[k]
        if level >= 0 and slots > 0:
            remaining -= slots * jobs.certain_gains[row, level]
            if starts_free:
                remaining -= jobs.gains[row, level] - jobs.certain_gains[row, level]
                starts_free = False
    gains = jobs.gains[row] if starts_free else jobs.certain_gains[row]
    while level > first and gains[level - 1] >= remaining:
        level -= 1
    return level


@inlined
def plan_cost(
    line: Timeline,
    jobs: JobArrays,
    row: int,
    ceiling: int,
    completion: int,
    fitting: Integers,
    price: Floats,
) -> tuple[float, float]:
    """Return the cost of a plan up to its completion, and its worker-slots.

    ``ceiling`` is the position on the hulls of the plan's highest level, and ``completion`` its
    completion slot. ``fitting`` (intervals,) comes from `fitting_levels`, without this plan.
    ``price`` (2,) is that of a worker and of a parameter server in a slot.
    """
    top = jobs.hull[row, ceiling]
    total = 0.0
    worker_slots = 0.0
    for k in range(line.used[0]):
        if line.start[k] > completion:
            break
        level = min(top, fitting[k])
        if level < 0:
            continue
        slots = float(min(line.start[k + 1], completion) - line.start[k])
        workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
        worker_slots += slots * workers
        total += slots * (price[0] * workers + price[1] * ps_count)
    level = min_final_level(line, jobs, row, ceiling, completion, fitting)
    workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    worker_slots += workers
    total += price[0] * workers + price[1] * ps_count
    return total, worker_slots


@kernel
def commit_plan(
    line: Timeline,
    jobs: JobArrays,
    row: int,
    ceiling: int,
    completion: int,
    fitting: Integers,
    steps: PlannedLevels,
    log: PackingLog,
) -> bool:
    """Allocate a plan in the timeline and record it; return False if the arrays are full.

    A plan that has more runs than ``steps`` can record allocates nothing. If a state runs out of
    groups, nothing is recorded, but the intervals before it keep the allocation: the timeline shows
    less capacity than there is until the next joint plan.
    """
    final = min_final_level(line, jobs, row, ceiling, completion, fitting)
    if split_interval_at(line, completion + 1) < 0:
        return False
    last = split_interval_at(line, completion)
    if last < 0:
        return False
    top = jobs.hull[row, ceiling]
    if _count_runs(top, final, last, fitting) > steps.until.shape[1]:
        return False
    entries, first_level = log.used[0], log.level[row]
    runs = 0
    for k in range(last + 1):
        # `split_interval_at` may have split the last interval; earlier ones keep their position.
        level = final if k == last else min(top, fitting[k])
        if level >= jobs.spread_levels[row]:
            packed = pack_colocated(line, line.state[k], jobs, row, level, k == 0, log)
        else:
            packed = level < 0 or pack_spread(line, line.state[k], jobs, row, level, k == 0, log)
        if not packed:
            log.used[0], log.level[row] = entries, first_level
            return False
        if runs > 0 and steps.level[row, runs - 1] == level:
            steps.until[row, runs - 1] = line.start[k + 1]
            continue
        steps.until[row, runs] = line.start[k + 1]
        steps.level[row, runs] = level
        runs += 1
    steps.runs[row] = runs
    return True


@inlined
def _count_runs(top: int, final: int, last: int, fitting: Integers) -> int:
    """Return the number of runs of a plan with levels up to ``top``, and ``final`` in ``last``."""
    runs = 1
    for k in range(1, last + 1):
        level = final if k == last else min(top, fitting[k])
        if level != min(top, fitting[k - 1]):
            runs += 1
    return runs


@allocation_free
def pack_spread(
    line: Timeline, state: int, jobs: JobArrays, row: int, level: int, first: bool, log: PackingLog
) -> bool:
    """Pack a spread level of a job into a state, and log it if the state is of the first slot."""
    workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    worker, ps = jobs.worker[row], jobs.ps[row]
    scratch = len(line.state) - 1
    if ps_count > 0:
        copy_state(line, state, scratch)
    if not pack(line, state, WORKER_ROLE, worker, workers):
        return False
    first_role = WORKER_ROLE
    if ps_count > 0 and not pack(line, state, PS_ROLE, ps, ps_count):
        if not pack_ps_first(line, state, scratch, worker, workers, ps, ps_count):
            return False
        first_role = PS_ROLE
    add_tenant_usage(line, state, jobs.tenant[row], worker, workers, ps, ps_count)
    return not first or log_allocation(log, row, level, workers, ps_count, first_role)


@inlined
def pack_colocated(
    line: Timeline, state: int, jobs: JobArrays, row: int, level: int, first: bool, log: PackingLog
) -> bool:
    """Pack a co-located level of a job into a state; see `pack_spread`."""
    demand = colocated_demand(jobs, row, level)
    if not pack(line, state, colocated_role(jobs, row), demand, ONE):
        return False
    workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    add_tenant_usage(
        line, state, jobs.tenant[row], jobs.worker[row], workers, jobs.ps[row], ps_count
    )
    return not first or log_allocation(log, row, level, workers, ps_count, WORKER_ROLE)


@allocation_free
def log_allocation(
    log: PackingLog, row: int, level: int, workers: int, ps_count: int, first_role: int
) -> bool:
    """Log an allocation of the first slot; return False if the log is full."""
    if log.used[0] + 2 > len(log.row):
        return False
    log.level[row] = level
    if first_role == PS_ROLE:
        # Entries are packed again with their workers first, so this order needs two entries.
        _append(log, row, 0, ps_count)
        ps_count = 0
    _append(log, row, workers, ps_count)
    return True


@inlined
def _append(log: PackingLog, row: int, workers: int, ps_count: int) -> None:
    entry = log.used[0]
    log.row[entry] = row
    log.workers[entry] = workers
    log.ps[entry] = ps_count
    log.used[0] = entry + 1


@inlined
def recommit_plan(
    line: Timeline,
    jobs: JobArrays,
    row: int,
    old: PlannedLevels,
    steps: PlannedLevels,
    log: PackingLog,
) -> bool:
    """Allocate the remaining part of an earlier plan in the timeline.

    Returns False if the plan doesn't complete the work any more, or doesn't fit.
    """
    next_slot = line.start[0]
    remaining = jobs.remaining[row]
    starts_free = jobs.starts_free[row]
    start = next_slot
    runs = 0
    for n in range(old.runs[row]):
        until = old.until[row, n]
        if until <= next_slot:
            continue
        level = old.level[row, n]
        if level >= 0 and (starts_free or jobs.certain_gains[row, level] > 0):
            gain = jobs.certain_gains[row, level]
            if starts_free:
                remaining -= jobs.gains[row, level] - gain
                starts_free = False
            if remaining <= gain:
                until = start + 1
            elif gain > 0:
                until = min(until, start + (remaining + gain - 1) // gain)
            remaining -= (until - start) * gain
            if split_interval_at(line, until) < 0:
                return False
            k = split_interval_at(line, start)
            if k < 0:
                return False
            while line.start[k] < until:
                if level >= jobs.spread_levels[row]:
                    if not pack_colocated(line, line.state[k], jobs, row, level, k == 0, log):
                        return False
                elif not pack_spread(line, line.state[k], jobs, row, level, k == 0, log):
                    return False
                k += 1
        steps.until[row, runs] = until
        steps.level[row, runs] = level
        runs += 1
        start = until
        if remaining <= 0:
            steps.runs[row] = runs
            return True
    return False


@kernel
def plan_in_order(
    line: Timeline,
    jobs: JobArrays,
    order: Integers,
    promise: Integers,
    shared: bool,
    continue_on_failure: bool,
    fitting: Integers,
    steps: PlannedLevels,
    log: PackingLog,
    failed: Integers,
) -> int:
    """Plan jobs in order, each with the least ceiling that keeps its promise.

    Returns the number of rows without a plan, which are written to ``failed`` (jobs,). Planning
    stops at the first one unless ``continue_on_failure``.

    ``order`` (jobs,): rows in planning order. ``promise`` (rows,): promised completion slots.
    ``shared``: whether some servers host both workers and parameter servers. Written: ``line`` (the
    plans are subtracted), ``steps`` and ``log`` (the plans), ``fitting`` (intervals,), which is
    scratch space.
    """
    failures = 0
    for n in range(len(order)):
        row = order[n]
        end = promise[row] + 1
        ceiling, completion = -1, -1
        mode = mode_count(jobs, row)
        while ceiling < 0 and mode > SPREAD:  # co-located first: never slower with equal workers
            mode -= 1
            intervals = fitting_levels(line, jobs, row, mode, end, shared, fitting)
            ceiling, completion = _min_ceiling(line, jobs, row, mode, intervals, fitting, end)
        if ceiling < 0 or not commit_plan(
            line, jobs, row, ceiling, completion, fitting, steps, log
        ):
            failed[failures] = row
            failures += 1
            if not continue_on_failure:
                break
    return failures


@inlined
def _min_ceiling(
    line: Timeline,
    jobs: JobArrays,
    row: int,
    mode: int,
    intervals: int,
    fitting: Integers,
    end: int,
) -> tuple[int, int]:
    """Return the least ceiling of a mode that completes before ``end``, and its completion slot."""
    low, high = hull_range(jobs, row, mode)
    gains, hull = jobs.certain_gains[row], jobs.hull[row, low:high]
    ceiling, completion = min_ceiling(
        line.start, intervals, fitting, gains, hull, high - low, jobs.remaining[row], end,
        first_slot_gains(jobs, row),
    )  # fmt: skip
    return (low + ceiling if ceiling >= 0 else -1), completion


@kernel
def replay_plans(
    line: Timeline,
    jobs: JobArrays,
    order: Integers,
    old: PlannedLevels,
    steps: PlannedLevels,
    log: PackingLog,
) -> int:
    """Allocate earlier plans in order; return how many succeed before the first failure."""
    for n in range(len(order)):
        if not recommit_plan(line, jobs, order[n], old, steps, log):
            return n
    return len(order)


@allocation_free
def best_plan(
    line: Timeline, jobs: JobArrays, row: int, price: Floats, shared: bool, fitting: Integers
) -> tuple[int, int, int, float, float]:
    """Return the plan with the largest payoff that a job can have in a timeline.

    Completion slots are tried from the earliest on: multiples of the shortest duration, and slots
    by which the utility has lost a given part. Each is planned with its least ceiling, co-located
    first if that is faster. ``fitting`` then has the levels that `commit_plan` needs for the plan.

    Returns the latest completion slot that was tried, -1 if nothing completes in time; the ceiling;
    the completion slot of the plan; utility; and cost.
    """
    next_slot = line.start[0]
    last = jobs.last_slot[row]
    best = (-1, -1, -1, 0.0, 0.0)
    if last < next_slot:
        return best
    if mode_count(jobs, row) > 1:
        best = _best_plan_in_mode(line, jobs, row, COLOCATED, price, shared, fitting)
        if best[0] >= 0:
            gain = max(jobs.gains[row, jobs.spread_levels[row] - 1], 1)
            earliest = next_slot + (jobs.remaining[row] + gain - 1) // gain - 1
            payoff = best[3] - best[4]
            if earliest > last or utility(jobs, row, earliest) <= payoff:
                return best
            other = _best_plan_in_mode(line, jobs, row, SPREAD, price, shared, fitting)
            if other[0] >= 0 and other[3] - other[4] > payoff:
                return other
            fitting_levels(line, jobs, row, COLOCATED, last + 1, shared, fitting)
            return best
    return _best_plan_in_mode(line, jobs, row, SPREAD, price, shared, fitting)


@allocation_free
def _best_plan_in_mode(
    line: Timeline,
    jobs: JobArrays,
    row: int,
    mode: int,
    price: Floats,
    shared: bool,
    fitting: Integers,
) -> tuple[int, int, int, float, float]:
    """Return the plan with the largest payoff in one placement mode; see `best_plan`."""
    next_slot = line.start[0]
    last = jobs.last_slot[row]
    best = (-1, -1, -1, 0.0, 0.0)
    remaining = jobs.remaining[row]
    intervals = fitting_levels(line, jobs, row, mode, last + 1, shared, fitting)
    _, hull_end = hull_range(jobs, row, mode)
    starts, certain_gains, hull = line.start, jobs.certain_gains[row], jobs.hull[row]
    earliest = completes_fresh(
        starts,
        intervals,
        fitting,
        certain_gains,
        first_slot_gains(jobs, row),
        hull[hull_end - 1],
        remaining,
        last + 1,
    )
    if earliest < 0:
        return best
    first_worth = utility(jobs, row, earliest)
    if first_worth <= 0.0:
        return best
    duration = earliest - next_slot + 1
    previous_end = -1
    best_payoff = -np.inf
    best_worker_slots = np.inf
    for n in range(2 * len(_DURATION_FACTORS)):
        if n < len(_DURATION_FACTORS):
            end = next_slot + int(np.ceil(duration * _DURATION_FACTORS[n])) - 1
        else:
            end = last_slot_worth(
                jobs, row, first_worth * _UTILITY_PARTS[n - len(_DURATION_FACTORS)], earliest, last
            )
        end = min(end, last)
        if end == previous_end:
            continue
        previous_end = end
        ceiling, completion = _min_ceiling(line, jobs, row, mode, intervals, fitting, end + 1)
        if ceiling < 0:
            continue
        value = utility(jobs, row, completion)
        cost, worker_slots = plan_cost(line, jobs, row, ceiling, completion, fitting, price)
        improvement = value - cost - best_payoff
        # Of plans with equal payoff, the one with the fewest worker-slots leaves most to others.
        if improvement > 1e-9 * first_worth or (
            improvement > -1e-9 * first_worth and worker_slots < best_worker_slots
        ):
            best_payoff = value - cost
            best_worker_slots = worker_slots
            best = (end, ceiling, completion, value, cost)
    return best


# Completion slots that `_best_plan_in_mode` tries: multiples of the shortest duration, and slots
# with these shares of the utility of the earliest completion.
_DURATION_FACTORS = (1.0, 1.15, 1.35, 1.6, 2.0, 2.5, 3.2, 4.0, 6.0, 9.0)
_UTILITY_PARTS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.1, 0.02)


@inlined
def utility_density(
    jobs: JobArrays, row: int, next_slot: int, price: Floats
) -> tuple[float, float]:
    """Return the maximum utility density of a job on an empty cluster, and its utility.

    The density is the utility over weighted worker-slots, the maximum over all levels; 0 if nothing
    completes in time. ``price`` (2,), of a worker and of a parameter server of the job, is any
    positive weight: it ranks jobs, and nothing is paid.
    """
    best = 0.0
    best_utility = 0.0
    for n in range(jobs.hull_size[row]):
        level = jobs.hull[row, n]
        gain = jobs.gains[row, level]
        slots = (jobs.remaining[row] + gain - 1) // gain
        if next_slot + slots - 1 > jobs.last_slot[row]:
            continue
        weight = price[0] * jobs.worker_counts[row, level] + price[1] * jobs.ps_counts[row, level]
        value = utility(jobs, row, next_slot + slots - 1)
        weighted_slots = max(weight, 1e-300) * slots
        if value > best * weighted_slots:
            best = value / weighted_slots
            best_utility = value
    return best, best_utility

"""Plans of single jobs in a timeline: the fewest workers that complete in time.

A job's useful worker counts are its *levels* (`JobArrays`). It may run faster if all its processes
are on one server (PD-ORS, Fact 1). A *co-located* job is one demand of one server; a *spread* job
is many demands. Capacity for one placement mode doesn't imply capacity for the other, so a plan
uses one mode throughout, and every search is within one mode.

A job's *ceiling* is the maximum level that its plan takes in any slot, as a position on the job's
hulls (`JobArrays.hull`); the job runs with less if less fits. The least ceiling that completes by a
slot is ElasticFlow's minimum satisfactory share (`reactive.shares`), here for several resources,
kinds of servers, parameter servers, and curves of any shape. Ceilings are on the upper hull of the
curve, so that a job never runs with a worker count that wastes workers if a better one fits.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Floats, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined
from shadowprice.kernels.reactive.shares import completion_slot_of_new_job, min_ceiling
from shadowprice.kernels.reactive.worth import Worths, worth
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


class JobArrays(NamedTuple):
    """Open jobs as rows; arrays without a shape are (rows,).

    The levels of a job are its useful worker counts: each gains more than all smaller ones of the
    same mode. Spread levels, at the external rate, come first. Co-located levels, at the internal
    rate, follow; a job with one rate has none. A level is given by its position in the row. The
    hulls are the upper hulls of both curves through the origin.
    """

    worker: Integers  # demand, shape (rows, resources)
    ps: Integers  # zeros for all-reduce jobs
    levels: Integers  # number of levels
    spread_levels: Integers  # number of levels in spread mode
    worker_counts: Integers  # workers of each level, ascending in each mode, shape (rows, width)
    ps_counts: Integers  # parameter servers of each level
    gains: Integers  # progress units of each level per slot
    # Progress units of each level per slot that plans count on. Those of promises count on a
    # restart in every slot, so that no move can break one; other plans may count on more.
    counted_gains: Integers
    first_start_free: Flags  # the first slot yields `gains`; only if later starts cost progress
    hull_size: Integers  # number of levels on the hulls
    spread_hull_size: Integers  # number of those on the spread curve
    hull: Integers  # the levels on the hulls, ascending, shape (rows, width)
    remaining: Integers  # progress units
    arrival: Integers  # slot
    last_slot: Integers  # last slot in which completing has a utility that counts
    tenant: Integers  # row of `Timeline.limits`
    worths: Worths


SPREAD, COLOCATED = constant(0), constant(1)
"""Placement modes: processes on any servers, or all processes on one server."""


@inlined
def mode_count(jobs: JobArrays, row: int) -> int:
    """Return the number of placement modes of a job."""
    return 2 if jobs.levels[row] > jobs.spread_levels[row] else 1


@inlined
def max_gain(jobs: JobArrays, row: int) -> int:
    """Return the maximum progress units of a job in a slot, in either mode."""
    spread, colocated = jobs.spread_levels[row] - 1, jobs.levels[row] - 1
    return int(max(jobs.gains[row, spread], jobs.gains[row, colocated]))


@inlined
def first_slot_gains(jobs: JobArrays, row: int) -> Integers:
    """Return the certain progress units of a job's first slot, by level."""
    first: Integers = jobs.gains[row] if jobs.first_start_free[row] else jobs.counted_gains[row]
    return first


@inlined
def hull_range(jobs: JobArrays, row: int, mode: int) -> tuple[int, int]:
    """Return the first position of a mode on the hulls, and the end of its positions."""
    if mode == SPREAD:
        return 0, int(jobs.spread_hull_size[row])
    return int(jobs.spread_hull_size[row]), int(jobs.hull_size[row])


@inlined
def colocated_role(jobs: JobArrays, row: int) -> int:
    """Return the role that a server needs to host all processes of a job."""
    needs_ps = jobs.ps_counts[row, jobs.spread_levels[row]] > 0
    return WORKER_ROLE | PS_ROLE if needs_ps else WORKER_ROLE


@inlined
def write_colocated_demand(jobs: JobArrays, row: int, level: int, demand: Integers) -> None:
    """Write the demand of all workers and parameter servers of a level together."""
    for r in range(len(demand)):
        demand[r] = jobs.worker_counts[row, level] * jobs.worker[row, r]
        demand[r] += jobs.ps_counts[row, level] * jobs.ps[row, r]


@inlined
def utility(jobs: JobArrays, row: int, slot: int) -> float:
    """Return the utility of completing in a slot."""
    return worth(jobs.worths, row, float(slot - jobs.arrival[row]))


@allocation_free
def last_slot_worth(jobs: JobArrays, row: int, min_utility: float, low: int, high: int) -> int:
    """Return the last slot of ``[low, high]`` that is worth ``min_utility`` or more, or low - 1.

    Bisection is exact, because utilities never rise.
    """
    if utility(jobs, row, low) < min_utility:
        return low - 1
    while low < high:
        middle = (low + high + 1) // 2
        if utility(jobs, row, middle) >= min_utility:
            low = middle
        else:
            high = middle - 1
    return low


FIRST_SPREAD_LEVEL = constant(0)


class LevelDemand(NamedTuple):
    """Demand of one job by level, for functions that are called for every interval.

    Passing all arrays of `JobArrays` to them would cost more than packing.
    """

    worker: Integers  # shape (resources,)
    ps: Integers  # shape (resources,)
    worker_counts: Integers  # shape (levels,)
    ps_counts: Integers  # shape (levels,)
    tenant: int  # row of `Timeline.limits`


@inlined
def _level_demand(jobs: JobArrays, row: int) -> LevelDemand:
    return LevelDemand(
        jobs.worker[row],
        jobs.ps[row],
        jobs.worker_counts[row],
        jobs.ps_counts[row],
        jobs.tenant[row],
    )


@inlined
def _max_spread_level(line: Timeline, state: int, demand: LevelDemand, last: int) -> int:
    """Return the highest level of a spread job, up to ``last``, that fits into a state, or -1."""
    top = _max_level_in_share(line, state, demand, FIRST_SPREAD_LEVEL, last)
    if top < 0:
        return -1
    limit = total_fit(line, state, WORKER_ROLE, demand.worker, demand.worker_counts[top])
    level = int(np.searchsorted(demand.worker_counts[: top + 1], limit, side="right")) - 1
    if level < 0 or demand.ps_counts[top] == 0:
        return level
    if not line.shared:
        limit = total_fit(line, state, PS_ROLE, demand.ps, demand.ps_counts[level])
        while level >= 0 and demand.ps_counts[level] > limit:
            level -= 1
        return level
    # Workers and parameter servers compete for servers: only a trial packing can decide.
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
    if len(line.limits) == 1:
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


@allocation_free
def fitting_levels(line: Timeline, jobs: JobArrays, row: int, mode: int, end: int) -> None:
    """Write to `Timeline.fitting` the highest level that fits intervals before ``end``."""
    intervals = line.used[0]
    k = 0
    # Two loops, because LLVM unrolls and inlines small bodies only.
    if mode == COLOCATED:
        while k < intervals and line.start[k] < end:
            line.fitting[k] = max_colocated_level(line, line.state[k], jobs, row)
            k += 1
        return
    demand, last = _level_demand(jobs, row), jobs.spread_levels[row] - 1
    while k < intervals and line.start[k] < end:
        line.fitting[k] = _max_spread_level(line, line.state[k], demand, last)
        k += 1


@allocation_free
def earliest_completion(line: Timeline, jobs: JobArrays, row: int, mode: int, end: int) -> int:
    """Return the earliest completion slot in a mode, -1 if none is before ``end``.

    Also writes the levels that fit (`fitting_levels`).
    """
    fitting_levels(line, jobs, row, mode, end)
    top = jobs.hull[row, hull_range(jobs, row, mode)[1] - 1]
    return completion_slot_of_new_job(
        line.start, line.used[0], line.fitting, jobs.counted_gains[row],
        first_slot_gains(jobs, row), top, jobs.remaining[row], end,
    )  # fmt: skip


class PlannedLevels(NamedTuple):
    """Planned levels by row, as runs of equal slots; the first run starts in the plan's slot."""

    runs: Integers  # number of runs of each row; -1 without a plan
    until: Integers  # first slot after each run, shape (rows, width)
    level: Integers  # level of each run, -1 for a pause, shape (rows, width)


class PackingLog(NamedTuple):
    """Allocations of the first slot in packing order, in which servers are packed too."""

    used: Integers  # number of entries, shape (1,)
    row: Integers  # job of each entry
    workers: Integers
    ps: Integers
    level: Integers  # level of each job in the first slot, -1 for none, shape (rows,)


@allocation_free
def min_final_level(
    line: Timeline, jobs: JobArrays, row: int, ceiling: int, completion: int
) -> int:
    """Return the least level in the slot ``completion`` that completes a plan in this slot."""
    top = jobs.hull[row, ceiling]
    first = jobs.spread_levels[row] if top >= jobs.spread_levels[row] else FIRST_SPREAD_LEVEL
    remaining = jobs.remaining[row]
    starts_free = jobs.first_start_free[row]
    level = -1
    for k in range(line.used[0]):
        if line.start[k] > completion:
            break
        level = min(top, line.fitting[k])
        slots = min(line.start[k + 1], completion) - line.start[k]
        if level >= 0 and slots > 0:
            remaining -= slots * jobs.counted_gains[row, level]
            if starts_free:
                remaining -= jobs.gains[row, level] - jobs.counted_gains[row, level]
                starts_free = False
    gains = jobs.gains[row] if starts_free else jobs.counted_gains[row]
    while level > first and gains[level - 1] >= remaining:
        level -= 1
    return level


@inlined
def plan_cost(
    line: Timeline, jobs: JobArrays, row: int, ceiling: int, completion: int, price: Floats
) -> tuple[float, float]:
    """Return the cost of a plan at prices of a worker and of a PS, and its worker-slots."""
    top = jobs.hull[row, ceiling]
    total = 0.0
    worker_slots = 0.0
    for k in range(line.used[0]):
        if line.start[k] > completion:
            break
        level = min(top, line.fitting[k])
        if level < 0:
            continue
        slots = float(min(line.start[k + 1], completion) - line.start[k])
        workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
        worker_slots += slots * workers
        total += slots * (price[0] * workers + price[1] * ps_count)
    level = min_final_level(line, jobs, row, ceiling, completion)
    workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    worker_slots += workers
    total += price[0] * workers + price[1] * ps_count
    return total, worker_slots


@allocation_free
def allocate_plan(
    line: Timeline,
    jobs: JobArrays,
    row: int,
    ceiling: int,
    completion: int,
    steps: PlannedLevels,
    log: PackingLog,
) -> bool:
    """Allocate a plan with the levels that fit, and record it; return False if arrays are full.

    The intervals' ``fitting`` levels must be those of the job's mode (`fitting_levels`).

    After False, the job has no plan, and callers may go on with the timeline. Usually nothing is
    allocated, for instance because the plan has more runs than ``steps`` can record. But if a state
    runs out of groups, earlier intervals keep the allocation. The timeline then shows less capacity
    than there is until the next joint plan.
    """
    final = min_final_level(line, jobs, row, ceiling, completion)
    if split_interval_at(line, completion + 1) < 0:
        return False
    last = split_interval_at(line, completion)
    if last < 0:
        return False
    top = jobs.hull[row, ceiling]
    if _count_runs(top, final, last, line.fitting) > steps.until.shape[1]:
        return False
    entries, first_level = log.used[0], log.level[row]
    runs = 0
    for k in range(last + 1):
        # `split_interval_at` may have split the last interval; earlier ones keep their position.
        level = final if k == last else min(top, line.fitting[k])
        if level >= 0 and not pack_level(line, line.state[k], jobs, row, level, k == 0, log):
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
    """Return the number of runs of a plan up to level ``top``, with ``final`` in ``last``."""
    runs = 1
    for k in range(1, last + 1):
        level = final if k == last else min(top, fitting[k])
        if level != min(top, fitting[k - 1]):
            runs += 1
    return runs


# Called for each interval of each plan: passing all arrays of jobs to a function would cost
# three times as much as packing.
@inlined
def pack_level(
    line: Timeline, state: int, jobs: JobArrays, row: int, level: int, first: bool, log: PackingLog
) -> bool:
    """Pack a level of a job into a state, and log it if the state is of the first slot."""
    workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    if level >= jobs.spread_levels[row]:
        first_role = pack_colocated(line, state, jobs, row, level)
    else:
        first_role = pack_spread(line, state, jobs, row, workers, ps_count)
    if first_role == 0:
        return False
    return not first or log_allocation(log, row, level, workers, ps_count, first_role)


@allocation_free
def pack_spread(
    line: Timeline, state: int, jobs: JobArrays, row: int, workers: int, ps_count: int
) -> int:
    """Pack processes of a spread job; return the role that was packed first, 0 on failure."""
    worker, ps = jobs.worker[row], jobs.ps[row]
    scratch = len(line.state) - 1
    if ps_count > 0:
        copy_state(line, state, scratch)
    if not pack(line, state, WORKER_ROLE, worker, workers):
        return 0
    first_role = WORKER_ROLE
    if ps_count > 0 and not pack(line, state, PS_ROLE, ps, ps_count):
        if not pack_ps_first(line, state, scratch, worker, workers, ps, ps_count):
            return 0
        first_role = PS_ROLE
    add_tenant_usage(line, state, jobs.tenant[row], worker, workers, ps, ps_count)
    return int(first_role)


@allocation_free
def pack_colocated(line: Timeline, state: int, jobs: JobArrays, row: int, level: int) -> int:
    """Pack a level of a co-located job; see `pack_spread`."""
    demand = line.free[-1, 0]  # scratch space
    write_colocated_demand(jobs, row, level, demand)
    if not pack(line, state, colocated_role(jobs, row), demand, ONE):
        return 0
    workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    worker, ps = jobs.worker[row], jobs.ps[row]
    add_tenant_usage(line, state, jobs.tenant[row], worker, workers, ps, ps_count)
    return int(WORKER_ROLE)


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
def allocate_rest_of_plan(
    line: Timeline,
    jobs: JobArrays,
    row: int,
    old: PlannedLevels,
    steps: PlannedLevels,
    log: PackingLog,
) -> bool:
    """Allocate the rest of an earlier plan; return False if it doesn't fit or do the work."""
    next_slot = line.start[0]
    remaining = jobs.remaining[row]
    starts_free = jobs.first_start_free[row]
    start = next_slot
    runs = 0
    for n in range(old.runs[row]):
        until = old.until[row, n]
        if until <= next_slot:
            continue
        level = old.level[row, n]
        # A level without certain progress, other than that of a free start, needs no capacity.
        if level >= 0 and (starts_free or jobs.counted_gains[row, level] > 0):
            gain = jobs.counted_gains[row, level]
            if starts_free:
                remaining -= jobs.gains[row, level] - gain
                starts_free = False
            if remaining <= gain:  # also if the gain is 0 and the free start did all work
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
                if not pack_level(line, line.state[k], jobs, row, level, k == 0, log):
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


@allocation_free
def plan_in_order(
    line: Timeline,
    jobs: JobArrays,
    order: Integers,
    promise: Integers,
    continue_on_failure: bool,
    steps: PlannedLevels,
    log: PackingLog,
    failed: Integers,
) -> int:
    """Plan jobs in order, each with the least ceiling that keeps its promise.

    ``order`` (jobs,) are rows, and ``promise`` (rows,) completion slots. Returns the number of rows
    that find no plan, which are written to ``failed`` (jobs,). Planning stops at the first of them
    unless ``continue_on_failure``.
    """
    failures = 0
    for n in range(len(order)):
        row = order[n]
        end = promise[row] + 1
        ceiling, completion = -1, -1
        mode = mode_count(jobs, row)
        while ceiling < 0 and mode > SPREAD:  # co-located first: never slower with equal workers
            mode -= 1
            fitting_levels(line, jobs, row, mode, end)
            ceiling, completion = _min_ceiling(line, jobs, row, mode, end)
        if ceiling < 0 or not allocate_plan(line, jobs, row, ceiling, completion, steps, log):
            failed[failures] = row
            failures += 1
            if not continue_on_failure:
                break
    return failures


@inlined
def _min_ceiling(line: Timeline, jobs: JobArrays, row: int, mode: int, end: int) -> tuple[int, int]:
    """Return the least ceiling of a mode that completes before ``end``, and its completion slot."""
    low, high = hull_range(jobs, row, mode)
    gains, hull = jobs.counted_gains[row], jobs.hull[row, low:high]
    ceiling, completion = min_ceiling(
        line.start, line.used[0], line.fitting, gains, hull, high - low, jobs.remaining[row], end,
        first_slot_gains(jobs, row),
    )  # fmt: skip
    return (low + ceiling if ceiling >= 0 else -1), completion


@allocation_free
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
        if not allocate_rest_of_plan(line, jobs, order[n], old, steps, log):
            return n
    return len(order)


@allocation_free
def best_plan(
    line: Timeline, jobs: JobArrays, row: int, price: Floats
) -> tuple[int, int, int, float, float]:
    """Return the plan with the largest payoff in a timeline among those tried.

    Completion slots are tried from the earliest on: multiples of the shortest duration, and slots
    by which the utility has lost a given part. Each is planned with its least ceiling, co-located
    first if that is faster. `allocate_plan` may follow: ``fitting`` has the levels of that mode.

    Returns (target, ceiling, completion, utility, cost). The target is the slot by which the plan
    was to complete, -1 if nothing completes in time; the plan may complete earlier.
    """
    next_slot = line.start[0]
    last = jobs.last_slot[row]
    best = (-1, -1, -1, 0.0, 0.0)
    if last < next_slot:
        return best
    if mode_count(jobs, row) > 1:
        best = _best_plan_in_mode(line, jobs, row, COLOCATED, price)
        if best[0] >= 0:
            # Skip the search in the other mode if even a free plan at full speed pays no more.
            gain = max(jobs.gains[row, jobs.spread_levels[row] - 1], 1)
            earliest = next_slot + (jobs.remaining[row] + gain - 1) // gain - 1
            payoff = best[3] - best[4]
            if earliest > last or utility(jobs, row, earliest) <= payoff:
                return best
            other = _best_plan_in_mode(line, jobs, row, SPREAD, price)
            if other[0] >= 0 and other[3] - other[4] > payoff:
                return other
            fitting_levels(line, jobs, row, COLOCATED, last + 1)
            return best
    return _best_plan_in_mode(line, jobs, row, SPREAD, price)


@allocation_free
def _best_plan_in_mode(
    line: Timeline, jobs: JobArrays, row: int, mode: int, price: Floats
) -> tuple[int, int, int, float, float]:
    """Return the plan with the largest payoff in one placement mode; see `best_plan`."""
    next_slot = line.start[0]
    last = jobs.last_slot[row]
    best = (-1, -1, -1, 0.0, 0.0)
    earliest = earliest_completion(line, jobs, row, mode, last + 1)
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
        ceiling, completion = _min_ceiling(line, jobs, row, mode, end + 1)
        if ceiling < 0:
            continue
        value = utility(jobs, row, completion)
        cost, worker_slots = plan_cost(line, jobs, row, ceiling, completion, price)
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

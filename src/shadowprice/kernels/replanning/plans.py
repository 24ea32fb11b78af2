"""Plans of single jobs in a timeline: the fewest workers that complete in time.

A job's *ceiling* is the maximum level that its plan takes in any slot; it runs with less where less
fits. The least ceiling that completes by a slot is ElasticFlow's minimum satisfactory share
(`reactive.shares`), here for several resources, kinds of servers, parameter servers, and curves of
any shape. Ceilings lie on the upper hull of the curve, so that a job never runs with a worker count
that wastes workers if a better one fits.

A plan uses one placement mode throughout (`replanning.jobs`), and every search stays in one mode.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.reactive.shares import completes_fresh, least_ceiling
from shadowprice.kernels.replanning.jobs import (
    SPREAD,
    WHOLE,
    Jobs,
    demand_of_whole,
    first_gains,
    hull_of,
    last_worth,
    levels_of,
    role_of_whole,
    utility,
    ways,
)
from shadowprice.kernels.replanning.timeline import (
    ONE,
    SERVERS,
    WORKERS,
    Timeline,
    copy_state,
    entitled,
    hold,
    put,
    put_servers_first,
    split,
    total_fit,
)

Ints = NDArray[np.int64]

LOWEST = constant(0)


class Asked(NamedTuple):
    """Demand of one job by level; functions that visit every interval get this, not all `Jobs`.

    Attributes
    ----------
    worker, ps : int64[resources]
        Demands.
    workers, servers : int64[levels]
        Workers and parameter servers of each level.
    tenant : int
        Owner, as a row of `Timeline.share`.
    """

    worker: Ints
    ps: Ints
    workers: Ints
    servers: Ints
    tenant: int


@inlined
def _asked(jobs: Jobs, row: int) -> Asked:
    """Return the demand of a job by level."""
    return Asked(
        jobs.worker[row], jobs.ps[row], jobs.workers[row], jobs.servers[row], jobs.tenant[row]
    )


@inlined
def _room_for(line: Timeline, state: int, asked: Asked, last: int, shared: bool) -> int:
    """Return the highest level of a spread job that fits into a state, or -1.

    Parameters
    ----------
    last : int
        Highest level of the job.
    shared : bool
        Whether some servers host both workers and parameter servers, so that only a trial packing
        can tell.
    """
    top = _level_of_tenant(line, state, asked, LOWEST, last)
    if top < 0:
        return -1
    most = total_fit(line, state, WORKERS, asked.worker, asked.workers[top])
    level = _at_most(asked.workers, top + 1, most)
    if level < 0 or asked.servers[top] == 0:
        return level
    if not shared:
        most = total_fit(line, state, SERVERS, asked.ps, asked.servers[level])
        while level >= 0 and asked.servers[level] > most:
            level -= 1
        return level
    scratch = len(line.state) - 1
    low, high = -1, level
    probe = level  # the highest level fits most often
    while low < high:
        workers, servers = asked.workers[probe], asked.servers[probe]
        copy_state(line, state, scratch)
        if (
            put(line, scratch, WORKERS, asked.worker, workers)
            and put(line, scratch, SERVERS, asked.ps, servers)
        ) or put_servers_first(line, scratch, state, asked.worker, workers, asked.ps, servers):
            low = probe
        else:
            high = probe - 1
        probe = (low + high + 1) // 2
    return low


@kernel
def room_for_whole(line: Timeline, state: int, jobs: Jobs, row: int) -> int:
    """Return the highest level of a job that fits on one server of a state, or -1."""
    first = jobs.spread[row]
    top = _level_of_tenant(line, state, _asked(jobs, row), first, jobs.levels[row] - 1)
    role = role_of_whole(jobs, row)
    worker, ps = jobs.worker[row], jobs.ps[row]
    level = first - 1
    for g in range(line.groups[state]):
        if line.role[state, g] & role != role:
            continue
        fits = True
        while fits and level < top:
            workers, servers = jobs.workers[row, level + 1], jobs.servers[row, level + 1]
            for r in range(len(worker)):
                if line.free[state, g, r] < workers * worker[r] + servers * ps[r]:
                    fits = False
                    break
            if fits:
                level += 1
    return level if level >= first else -1


@kernel
def _level_of_tenant(line: Timeline, state: int, asked: Asked, first: int, top: int) -> int:
    """Return the highest level of ``[first, top]`` within the tenant's headroom, or first - 1."""
    level = top
    if len(line.share) == 0:
        return int(level)
    for r in range(len(asked.worker)):
        worker, ps = asked.worker[r], asked.ps[r]
        if worker == 0 and ps == 0:
            continue
        most = entitled(line, state, asked.tenant, r)
        while level >= first and asked.workers[level] * worker > most - asked.servers[level] * ps:
            level -= 1
    return int(level)


@inlined
def _at_most(numbers: Ints, count: int, most: int) -> int:
    """Return the position of the last of ascending numbers that is at most ``most``."""
    low, high = -1, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        if numbers[middle] <= most:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def rooms(
    line: Timeline, jobs: Jobs, row: int, way: int, end: int, shared: bool, room: Ints
) -> int:
    """Write the level that fits into each interval that starts before ``end``; count them."""
    intervals = line.used[0]
    k = 0
    # Two loops, because LLVM unrolls and inlines small bodies only.
    if way == WHOLE:
        while k < intervals and line.start[k] < end:
            room[k] = room_for_whole(line, line.state[k], jobs, row)
            k += 1
        return k
    asked, last = _asked(jobs, row), jobs.spread[row] - 1
    while k < intervals and line.start[k] < end:
        room[k] = _room_for(line, line.state[k], asked, last, shared)
        k += 1
    return k


Floats = NDArray[np.float64]


class Steps(NamedTuple):
    """Planned levels by row, as runs of equal slots that start at the slot of planning.

    Attributes
    ----------
    runs : int64[rows]
        Number of runs of each row; -1 without a plan.
    until : int64[rows, width]
        First slot after each run.
    level : int64[rows, width]
        Level of each run, -1 for a pause.
    """

    runs: Ints
    until: Ints
    level: Ints


class Log(NamedTuple):
    """Allocations of the first slot in packing order, so that they can be packed on servers again.

    Attributes
    ----------
    used : int64[1]
        Number of entries.
    row, workers, servers : int64[most]
        Job, workers and parameter servers of each.
    level : int64[rows]
        Level of each job in the first slot, -1 for none.
    """

    used: Ints
    row: Ints
    workers: Ints
    servers: Ints
    level: Ints


@kernel
def last_level(line: Timeline, jobs: Jobs, row: int, ceiling: int, done: int, room: Ints) -> int:
    """Return the least level that completes a plan in its last slot."""
    top = jobs.hull[row, ceiling]
    first, _ = levels_of(jobs, row, WHOLE if top >= jobs.spread[row] else SPREAD)
    left = jobs.left[row]
    fresh = jobs.fresh[row]
    level = -1
    for k in range(line.used[0]):
        if line.start[k] > done:
            break
        level = min(top, room[k])
        slots = min(line.start[k + 1], done) - line.start[k]
        if level >= 0 and slots > 0:
            left -= slots * jobs.sure[row, level]
            if fresh:
                left -= jobs.gains[row, level] - jobs.sure[row, level]
                fresh = False
    made = jobs.gains[row] if fresh else jobs.sure[row]
    while level > first and made[level - 1] >= left:
        level -= 1
    return level


@inlined
def cost_of(
    line: Timeline,
    jobs: Jobs,
    row: int,
    ceiling: int,
    done: int,
    room: Ints,
    price: Floats,
) -> tuple[float, float]:
    """Return the cost of a plan up to its completion, and its worker-slots.

    Parameters
    ----------
    line : Timeline
        Free capacity, without this plan.
    ceiling : int
        Position on the hulls of the highest level that the plan takes.
    done : int
        Completion slot.
    room : int64[intervals]
        Fitting level of each interval, from `rooms`.
    price : float64[2]
        Price of a worker and of a parameter server of the job in a slot.
    """
    top = jobs.hull[row, ceiling]
    total = 0.0
    used = 0.0
    for k in range(line.used[0]):
        if line.start[k] > done:
            break
        level = min(top, room[k])
        if level < 0:
            continue
        slots = float(min(line.start[k + 1], done) - line.start[k])
        workers, servers = jobs.workers[row, level], jobs.servers[row, level]
        used += slots * workers
        total += slots * (price[0] * workers + price[1] * servers)
    level = last_level(line, jobs, row, ceiling, done, room)
    workers, servers = jobs.workers[row, level], jobs.servers[row, level]
    used += workers
    total += price[0] * workers + price[1] * servers
    return total, used


@kernel
def enter(
    line: Timeline,
    jobs: Jobs,
    row: int,
    ceiling: int,
    done: int,
    room: Ints,
    steps: Steps,
    log: Log,
) -> bool:
    """Allocate a plan in the timeline and record it; return False if the arrays are full.

    A failure leaves the timeline half-changed: the caller discards it.
    """
    final = last_level(line, jobs, row, ceiling, done, room)
    if split(line, done + 1) < 0:
        return False
    last = split(line, done)
    if last < 0:
        return False
    top = jobs.hull[row, ceiling]
    runs = 0
    for k in range(last + 1):
        # `split` may have cut the last slot off its interval: earlier ones keep their position.
        level = final if k == last else min(top, room[k])
        if level >= jobs.spread[row]:
            if not pack_whole(line, line.state[k], jobs, row, level, k == 0, log):
                return False
        elif level >= 0 and not pack(line, line.state[k], jobs, row, level, k == 0, log):
            return False
        if runs > 0 and steps.level[row, runs - 1] == level:
            steps.until[row, runs - 1] = line.start[k + 1]
            continue
        if runs == steps.until.shape[1]:
            return False
        steps.until[row, runs] = line.start[k + 1]
        steps.level[row, runs] = level
        runs += 1
    steps.runs[row] = runs
    return True


@kernel
def pack(
    line: Timeline, state: int, jobs: Jobs, row: int, level: int, first: bool, log: Log
) -> bool:
    """Pack a spread level of a job into a state, and log it if the state is of the first slot."""
    workers, servers = jobs.workers[row, level], jobs.servers[row, level]
    worker, ps = jobs.worker[row], jobs.ps[row]
    scratch = len(line.state) - 1
    if servers > 0:
        copy_state(line, state, scratch)
    if not put(line, state, WORKERS, worker, workers):
        return False
    put_first = WORKERS
    if servers > 0 and not put(line, state, SERVERS, ps, servers):
        if not put_servers_first(line, state, scratch, worker, workers, ps, servers):
            return False
        put_first = SERVERS
    hold(line, state, jobs.tenant[row], worker, workers, ps, servers)
    return not first or note(log, row, level, workers, servers, put_first)


@inlined
def pack_whole(
    line: Timeline, state: int, jobs: Jobs, row: int, level: int, first: bool, log: Log
) -> bool:
    """Pack a co-located level of a job into a state; see `pack`."""
    demand = demand_of_whole(jobs, row, level)
    if not put(line, state, role_of_whole(jobs, row), demand, ONE):
        return False
    workers, servers = jobs.workers[row, level], jobs.servers[row, level]
    hold(line, state, jobs.tenant[row], jobs.worker[row], workers, jobs.ps[row], servers)
    return not first or note(log, row, level, workers, servers, WORKERS)


@kernel
def note(log: Log, row: int, level: int, workers: int, servers: int, put_first: int) -> bool:
    """Log an allocation of the first slot; return False if the log is full."""
    if log.used[0] + 2 > len(log.row):
        return False
    log.level[row] = level
    if put_first == SERVERS:
        # Entries are packed again with their workers first, so this order needs two entries.
        _enter(log, row, 0, servers)
        servers = 0
    _enter(log, row, workers, servers)
    return True


@inlined
def _enter(log: Log, row: int, workers: int, servers: int) -> None:
    at = log.used[0]
    log.row[at] = row
    log.workers[at] = workers
    log.servers[at] = servers
    log.used[0] = at + 1


@inlined
def enter_again(line: Timeline, jobs: Jobs, row: int, old: Steps, steps: Steps, log: Log) -> bool:
    """Allocate the remaining part of an earlier plan in the timeline.

    Returns
    -------
    bool
        False if the plan doesn't complete the work any more, or doesn't fit.
    """
    now = line.start[0]
    left = jobs.left[row]
    fresh = jobs.fresh[row]
    begin = now
    runs = 0
    for n in range(old.runs[row]):
        until = old.until[row, n]
        if until <= now:
            continue
        level = old.level[row, n]
        if level >= 0 and (fresh or jobs.sure[row, level] > 0):
            gain = jobs.sure[row, level]
            if fresh:
                left -= jobs.gains[row, level] - gain
                fresh = False
            if left <= gain:
                until = begin + 1
            elif gain > 0:
                until = min(until, begin + (left + gain - 1) // gain)
            left -= (until - begin) * gain
            if split(line, until) < 0:
                return False
            k = split(line, begin)
            if k < 0:
                return False
            while line.start[k] < until:
                if level >= jobs.spread[row]:
                    if not pack_whole(line, line.state[k], jobs, row, level, k == 0, log):
                        return False
                elif not pack(line, line.state[k], jobs, row, level, k == 0, log):
                    return False
                k += 1
        steps.until[row, runs] = until
        steps.level[row, runs] = level
        runs += 1
        begin = until
        if left <= 0:
            steps.runs[row] = runs
            return True
    return False


@kernel
def lay_out(
    line: Timeline,
    jobs: Jobs,
    order: Ints,
    promise: Ints,
    shared: bool,
    go_on: bool,
    room: Ints,
    steps: Steps,
    log: Log,
    failed: Ints,
) -> int:
    """Plan jobs in order, each with the least ceiling that keeps its promise.

    Parameters
    ----------
    line : Timeline
        Free capacity; plans are subtracted.
    order : int64[jobs]
        Rows in planning order.
    promise : int64[rows]
        Promised completion slots.
    shared : bool
        Whether some servers host both workers and parameter servers.
    go_on : bool
        Whether planning goes on after a job without a plan.
    room : int64[intervals]
        Scratch space.
    steps, log : Steps, Log
        Plans; written.
    failed : int64[jobs]
        Rows without a plan; written.

    Returns
    -------
    int
        Number of rows without a plan; at most 1 unless ``go_on``.
    """
    failures = 0
    for n in range(len(order)):
        row = order[n]
        end = promise[row] + 1
        ceiling, done = -1, -1
        way = ways(jobs, row)
        while ceiling < 0 and way > SPREAD:  # co-located first: never slower with equal workers
            way -= 1
            known = rooms(line, jobs, row, way, end, shared, room)
            ceiling, done = _least_ceiling(line, jobs, row, way, known, room, end)
        if ceiling < 0 or not enter(line, jobs, row, ceiling, done, room, steps, log):
            failed[failures] = row
            failures += 1
            if not go_on:
                break
    return failures


@inlined
def _least_ceiling(
    line: Timeline, jobs: Jobs, row: int, way: int, known: int, room: Ints, end: int
) -> tuple[int, int]:
    """Return the least ceiling of a mode that completes before ``end``, and its completion slot."""
    low, high = hull_of(jobs, row, way)
    ceiling, done = least_ceiling(
        line.start, known, room, jobs.sure[row], jobs.hull[row, low:high], high - low,
        jobs.left[row], end, first_gains(jobs, row),
    )  # fmt: skip
    return (low + ceiling if ceiling >= 0 else -1), done


@kernel
def lay_out_again(
    line: Timeline, jobs: Jobs, order: Ints, old: Steps, steps: Steps, log: Log
) -> int:
    """Allocate earlier plans in order; return how many succeed before the first failure."""
    for n in range(len(order)):
        if not enter_again(line, jobs, order[n], old, steps, log):
            return n
    return len(order)


@kernel
def offer(
    line: Timeline,
    jobs: Jobs,
    row: int,
    price: Floats,
    shared: bool,
    room: Ints,
) -> tuple[int, int, int, float, float]:
    """Return the plan with the largest payoff that a job can have in a timeline.

    Completion slots are tried from the earliest on: multiples of the shortest duration, and slots
    by which the utility has lost a given part. Each is planned with its least ceiling, co-located
    first if that is faster. ``room`` is then what `enter` needs for the plan.

    Returns
    -------
    (int, int, int, float, float)
        Latest completion slot that was tried, ceiling, completion slot of the plan, utility, cost;
        the first is -1 if nothing completes in time.
    """
    now = line.start[0]
    last = jobs.last[row]
    best = (-1, -1, -1, 0.0, 0.0)
    if last < now:
        return best
    if ways(jobs, row) > 1:
        best = _offer(line, jobs, row, WHOLE, price, shared, room)
        if best[0] >= 0:
            gain = max(jobs.gains[row, jobs.spread[row] - 1], 1)
            earliest = now + (jobs.left[row] + gain - 1) // gain - 1
            payoff = best[3] - best[4]
            if earliest > last or utility(jobs, row, earliest) <= payoff:
                return best
            other = _offer(line, jobs, row, SPREAD, price, shared, room)
            if other[0] >= 0 and other[3] - other[4] > payoff:
                return other
            rooms(line, jobs, row, WHOLE, last + 1, shared, room)
            return best
    return _offer(line, jobs, row, SPREAD, price, shared, room)


@kernel
def _offer(
    line: Timeline, jobs: Jobs, row: int, way: int, price: Floats, shared: bool, room: Ints
) -> tuple[int, int, int, float, float]:
    """Return the plan with the largest payoff in one placement mode; see `offer`."""
    now = line.start[0]
    last = jobs.last[row]
    best = (-1, -1, -1, 0.0, 0.0)
    left = jobs.left[row]
    known = rooms(line, jobs, row, way, last + 1, shared, room)
    _, hulls = hull_of(jobs, row, way)
    begins, sure, hull = line.start, jobs.sure[row], jobs.hull[row]
    earliest = completes_fresh(
        begins, known, room, sure, first_gains(jobs, row), hull[hulls - 1], left, last + 1
    )
    if earliest < 0:
        return best
    first_worth = utility(jobs, row, earliest)
    if first_worth <= 0.0:
        return best
    duration = earliest - now + 1
    tried = -1
    best_payoff = -np.inf
    best_used = np.inf
    for n in range(2 * len(_STRETCH)):
        if n < len(_STRETCH):
            end = now + int(np.ceil(duration * _STRETCH[n])) - 1
        else:
            end = last_worth(jobs, row, first_worth * _PARTS[n - len(_STRETCH)], earliest, last)
        end = min(end, last)
        if end == tried:
            continue
        tried = end
        ceiling, done = _least_ceiling(line, jobs, row, way, known, room, end + 1)
        if ceiling < 0:
            continue
        value = utility(jobs, row, done)
        cost, used = cost_of(line, jobs, row, ceiling, done, room, price)
        more = value - cost - best_payoff
        # Of plans with equal payoff, the one with the fewest worker-slots leaves most to others.
        if more > 1e-9 * first_worth or (more > -1e-9 * first_worth and used < best_used):
            best_payoff = value - cost
            best_used = used
            best = (end, ceiling, done, value, cost)
    return best


_STRETCH = (1.0, 1.15, 1.35, 1.6, 2.0, 2.5, 3.2, 4.0, 6.0, 9.0)
_PARTS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.1, 0.02)


@inlined
def density(jobs: Jobs, row: int, now: int, price: Floats) -> tuple[float, float]:
    """Return the maximum utility density of a job on an empty cluster, and its utility.

    Parameters
    ----------
    now : int
        The next slot.
    price : float64[2]
        Weight of a worker and of a parameter server of the job.

    Returns
    -------
    (float, float)
        Utility over weighted worker-slots, the maximum over all levels, and that utility; 0 if
        nothing completes in time.
    """
    best = 0.0
    worth_most = 0.0
    for n in range(jobs.hulls[row]):
        level = jobs.hull[row, n]
        gain = jobs.gains[row, level]
        slots = (jobs.left[row] + gain - 1) // gain
        if now + slots - 1 > jobs.last[row]:
            continue
        weight = price[0] * jobs.workers[row, level] + price[1] * jobs.servers[row, level]
        value = utility(jobs, row, now + slots - 1)
        used = max(weight, 1e-300) * slots
        if value > best * used:
            best = value / used
            worth_most = value
    return best, worth_most

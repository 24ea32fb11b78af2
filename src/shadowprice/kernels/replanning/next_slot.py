"""Allocation of the next slot: waiting jobs, and spare capacity."""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import copy_into
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.replanning.jobs import (
    Jobs,
    demand_of_whole,
    last_worth,
    most_gain,
    role_of_whole,
    utility,
)
from shadowprice.kernels.replanning.plans import (
    Log,
    Steps,
    density,
    enter,
    note,
    offer,
    room_for_whole,
)
from shadowprice.kernels.replanning.timeline import (
    ONE,
    SERVERS,
    WORKERS,
    Timeline,
    copy_state,
    hold,
    may_hold,
    put,
    put_servers_first,
    total_fit,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

REACH = 8
"""Maximum distance of a promise, in planned durations; the horizon if that is more."""


@kernel
def densities(jobs: Jobs, rows: Ints, now: int, weight: Floats) -> tuple[Floats, Floats]:
    """Return the utility density of each row and its utility; see `plans.density`.

    Parameters
    ----------
    rows : int64[jobs]
        Rows of the table.
    now : int
        The next slot.
    weight : float64[rows of the table, 2]
        Weight of a worker and of a parameter server of each job.
    """
    result = np.zeros(len(rows))
    value = np.zeros(len(rows))
    for n in range(len(rows)):
        result[n], value[n] = density(jobs, rows[n], now, weight[rows[n]])
    return result, value


@kernel
def least_use(jobs: Jobs, rows: Ints, on_worker: Floats, on_ps: Floats) -> Floats:
    """Return the minimum cluster slots of each row's work.

    Parameters
    ----------
    rows : int64[jobs]
        Rows of the table.
    on_worker, on_ps : float64[jobs, priced resources]
        Share of the cluster that a worker and a parameter server of each take; the scarcest
        resource counts.

    Returns
    -------
    float64[jobs]
        Slots of the whole cluster at the thriftiest level.
    """
    result = np.full(len(rows), np.inf)
    for n in range(len(rows)):
        row = rows[n]
        for at in range(jobs.hulls[row]):
            level = jobs.hull[row, at]
            share = 0.0
            for c in range(on_worker.shape[1]):
                taken = jobs.workers[row, level] * on_worker[n, c]
                share = max(share, taken + jobs.servers[row, level] * on_ps[n, c])
            result[n] = min(result[n], share * jobs.left[row] / jobs.gains[row, level])
    return result


@kernel
def due(jobs: Jobs, row: int, now: int, done: int, horizon: int, slack: float) -> int:
    """Return the last slot whose utility is within ``slack`` of that of completing in ``done``.

    Parameters
    ----------
    now : int
        The next slot.
    done : int
        Completion slot of the plan.
    horizon : int
        Maximum slots ahead, unless `REACH` times those of ``done`` are more.
    slack : float
        Share of the utility that may be lost.
    """
    reach = max(horizon, REACH * (done - now + 1))
    last = max(done, min(jobs.last[row], now + reach))
    return max(done, last_worth(jobs, row, utility(jobs, row, done) * (1.0 - slack), done, last))


@kernel
def dues(
    jobs: Jobs, rows: Ints, now: int, horizon: int, slack: float, result: Ints, value: Floats
) -> None:
    """Write the utility that each job would have alone, and the last acceptable slot; see `due`.

    Parameters
    ----------
    rows : int64[jobs]
        Rows of the table.
    now, horizon, slack
        As in `due`.
    result : int64[jobs]
        Last acceptable slots; written.
    value : float64[jobs]
        Utility of the earliest completion; written.
    """
    for n in range(len(rows)):
        row = rows[n]
        fastest = max(most_gain(jobs, row), 1)
        done = now + (jobs.left[row] + fastest - 1) // fastest - 1
        value[n] = utility(jobs, row, done)
        result[n] = due(jobs, row, now, done, horizon, slack)


@kernel
def overfull(jobs: Jobs, order: Ints, by: Ints, now: int, capacity: Floats) -> bool:
    """Return whether jobs need more than the capacity up to a due slot, so that no plans exist.

    Each job needs at least its work at the level that is thriftiest with the resource.

    Parameters
    ----------
    order : int64[jobs]
        Rows, the earliest due first.
    by : int64[rows of the table]
        Due slot of each.
    now : int
        The next slot.
    capacity : float64[resources]
        Capacity of all servers together.
    """
    need = np.zeros(len(capacity))
    for n in range(len(order)):
        row = order[n]
        for resource in range(len(capacity)):
            least = np.inf
            for level in range(jobs.levels[row]):
                if jobs.gains[row, level] > 0:
                    taken = float(jobs.workers[row, level]) * jobs.worker[row, resource]
                    taken += float(jobs.servers[row, level]) * jobs.ps[row, resource]
                    least = min(least, taken / jobs.gains[row, level])
            if least < np.inf:
                need[resource] += least * jobs.left[row]
            if need[resource] > capacity[resource] * (by[row] - now + 1) * (1.0 + 1e-9):
                return True
    return False


@kernel
def plan_waiting(
    line: Timeline,
    jobs: Jobs,
    rows: Ints,
    hoped: Ints,
    hope: Flags,
    price: Floats,
    shared: bool,
    room: Ints,
    steps: Steps,
    log: Log,
    result: Floats,
) -> None:
    """Plan waiting jobs in order, each in the capacity that the plans before it leave.

    Parameters
    ----------
    line : Timeline
        Free capacity; plans are subtracted.
    rows : int64[jobs]
        Rows of the waiting jobs, the highest density first.
    hoped : int64[jobs, levels]
        Expected progress units of a slot, for jobs without a plan by ``sure``; such plans may
        break.
    hope : bool[jobs]
        Whether ``hoped`` is more than ``sure``.
    price : float64[rows of the table, 2]
        Price of a worker and of a parameter server of each.
    shared : bool
        Whether some servers host both workers and parameter servers.
    room : int64[intervals]
        Scratch space.
    steps, log : Steps, Log
        Plans; written.
    result : float64[jobs, 5]
        Completion slot that was tried (-1 without a plan), completion slot, utility, cost, and 1 if
        the plan is sure; written.
    """
    for n in range(len(rows)):
        row = rows[n]
        result[n, 0] = -1.0
        result[n, 4] = 1.0
        end, ceiling, done, value, cost = offer(line, jobs, row, price[row], shared, room)
        hopeful = end < 0 and hope[n]
        if hopeful:
            sure = jobs.sure[row].copy()
            copy_into(jobs.sure[row], hoped[n])
            result[n, 4] = 0.0
            end, ceiling, done, value, cost = offer(line, jobs, row, price[row], shared, room)
        entered = end < 0 or enter(line, jobs, row, ceiling, done, room, steps, log)
        if hopeful:
            copy_into(jobs.sure[row], sure)
        if not entered:
            return
        if end < 0:
            continue
        result[n, 0] = end
        result[n, 1] = done
        result[n, 2] = value
        result[n, 3] = cost


class Terms(NamedTuple):
    """Weights of a job's steps up.

    Attributes
    ----------
    weight : float64[rows, 2]
        Weight of a worker and of a parameter server of each job.
    loss : float64[rows]
        Share of a slot that each job loses if its placement changes; 0 before its first start.
    standing : int64[rows]
        Level of each job in the slot before, -1 for none.
    barred : bool[rows, levels]
        Levels that jobs may not scale up to; empty without limits.
    """

    weight: Floats
    loss: Floats
    standing: Ints
    barred: Flags


@kernel
def fill(
    line: Timeline,
    jobs: Jobs,
    rows: Ints,
    worth_left: Floats,
    terms: Terms,
    log: Log,
) -> None:
    """Allocate the spare capacity of the first slot: one step up at a time, the best first.

    The value of a step is the share of the remaining work that it adds times the job's utility,
    over the weight of the resources that it takes. A step that moves a job which would otherwise
    keep its placement also costs the move. A co-located job may start here; it scales up once its
    server is known (`placement.grow`).

    Parameters
    ----------
    line : Timeline
        Free capacity; the first slot is updated.
    rows : int64[jobs]
        Rows that may run in the slot.
    worth_left : float64[jobs]
        Utility of completing each.
    log : Log
        Levels; written.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        most = jobs.levels[rows[n]]
        offer_step(heap, jobs, rows[n], worth_left[n], n, most, terms, log)
    state = line.state[0]
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        before = log.level[row]
        workers = jobs.workers[row, target]
        servers = jobs.servers[row, target]
        if before >= 0:
            workers -= jobs.workers[row, before]
            servers -= jobs.servers[row, before]
        whole = target >= jobs.spread[row]
        put_first = 0
        if not whole:
            put_first = _pack_beside(
                line, state, jobs.tenant[row], jobs.worker[row], workers, jobs.ps[row], servers
            )
        elif room_for_whole(line, state, jobs, row) >= target:
            put_first = WORKERS
            put(line, state, role_of_whole(jobs, row), demand_of_whole(jobs, row, target), ONE)
            hold(line, state, jobs.tenant[row], jobs.worker[row], workers, jobs.ps[row], servers)
        if put_first == 0:
            # Free capacity only shrinks, but a smaller step may still fit.
            offer_step(heap, jobs, row, worth_left[n], n, target, terms, log)
            continue
        if not note(log, row, target, workers, servers, put_first):
            return
        most = jobs.levels[row]
        offer_step(heap, jobs, row, worth_left[n], n, most, terms, log)


@kernel
def offer_step(
    heap: list[tuple[float, int, int]],
    jobs: Jobs,
    row: int,
    worth_left: float,
    n: int,
    most: int,
    terms: Terms,
    log: Log,
) -> None:
    """Push the best step up of a job below a level, if it adds progress.

    A paused job starts co-located if it can, else spread.
    """
    before, spread = log.level[row], jobs.spread[row]
    if before >= spread:
        return
    value, target = 0.0, -1
    if before < 0 and most > spread:
        value, target = best_step(jobs, row, before, spread, most, terms)
    if target < 0:
        first, end = before + 1, min(most, spread)
        value, target = best_step(jobs, row, before, first, end, terms)
    if target >= 0:
        heapq.heappush(heap, (-value * worth_left / jobs.left[row], n, target))


@kernel
def best_step(
    jobs: Jobs,
    row: int,
    before: int,
    first: int,
    end: int,
    terms: Terms,
) -> tuple[float, int]:
    """Return the value per weight of the best step up, and its level; -1 if none adds progress.

    Parameters
    ----------
    before : int
        Level of the job so far, -1 for none.
    first, end : int
        First level to consider, and the end.
    """
    gain = 0.0
    taken = 0.0
    if before >= 0:
        gain = float(jobs.gains[row, before])
        if gain >= jobs.left[row]:
            return 0.0, -1
        taken = terms.weight[row, 0] * jobs.workers[row, before]
        taken += terms.weight[row, 1] * jobs.servers[row, before]
        if terms.standing[row] != before:
            gain *= 1.0 - terms.loss[row]
    best = 0.0
    target = -1
    # Several workers more may add progress where one adds none: compare all steps.
    for level in range(first, end):
        more = float(min(jobs.gains[row, level], jobs.left[row]))
        if terms.standing[row] != level:
            more *= 1.0 - terms.loss[row]
        more -= gain
        cost = terms.weight[row, 0] * jobs.workers[row, level]
        cost += terms.weight[row, 1] * jobs.servers[row, level] - taken
        allowed = len(terms.barred) == 0 or not terms.barred[row, level]
        if allowed and more > 0.0 and more > best * cost * (1.0 + 1e-9):
            best = more / cost
            target = level
        if jobs.gains[row, level] >= jobs.left[row]:
            break
    return best, target


@inlined
def _pack_beside(
    line: Timeline, state: int, tenant: int, worker: Ints, workers: int, ps: Ints, servers: int
) -> int:
    """Pack more workers and parameter servers of a tenant into a state, within its headroom.

    Returns
    -------
    int
        The role that was packed first; 0 if they don't fit, and nothing changes.
    """
    if not may_hold(line, state, tenant, worker, workers, ps, servers):
        return 0
    if total_fit(line, state, WORKERS, worker, workers) < workers:
        return 0
    put_first = WORKERS
    if servers == 0:
        put(line, state, WORKERS, worker, workers)
    else:
        scratch = len(line.state) - 1
        copy_state(line, state, scratch)
        put(line, state, WORKERS, worker, workers)
        if not put(line, state, SERVERS, ps, servers):
            if not put_servers_first(line, state, scratch, worker, workers, ps, servers):
                return 0
            put_first = SERVERS
    hold(line, state, tenant, worker, workers, ps, servers)
    return put_first

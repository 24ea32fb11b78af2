"""The slot about to begin: who waits, who gets what nobody needs, and where everybody stands."""

import heapq

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.revision.plans import Jobs, Log, Steps, density, enter, offer
from shadowprice.kernels.revision.timeline import (
    FOR_EVER,
    SERVERS,
    WORKERS,
    Timeline,
    copy_state,
    hold,
    may_hold,
    put,
    total_fit,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@kernel
def densities(jobs: Jobs, rows: Ints, now: int, weight: Floats) -> tuple[Floats, Floats]:
    """Return the density of each row and what it would earn; see `plans.density`.

    Parameters
    ----------
    weight : float64[rows of the table, 2]
        Weight of a worker and of a parameter server of each job.
    """
    result = np.zeros(len(rows))
    value = np.zeros(len(rows))
    for n in range(len(rows)):
        result[n], value[n] = density(jobs, rows[n], now, weight[rows[n]])
    return result, value


@kernel
def plan_waiting(
    line: Timeline,
    jobs: Jobs,
    rows: Ints,
    price: Floats,
    shared: bool,
    room: Ints,
    steps: Steps,
    log: Log,
    result: Floats,
) -> None:
    """Plan waiting jobs in order, each in the room that those before it leave.

    Parameters
    ----------
    rows : int64[jobs]
        Rows of the waiting jobs, the densest first.
    price : float64[rows of the table, 2]
        Price of a worker and of a parameter server of each.
    result : float64[jobs, 4]
        Completion tried (-1: no plan), slot of completion, utility, and cost; written.
    """
    for n in range(len(rows)):
        row = rows[n]
        result[n, 0] = -1.0
        end, ceiling, done, value, cost = offer(line, jobs, row, price[row], shared, room)
        if end < 0:
            continue
        if not enter(line, jobs, row, ceiling, done, room, steps, log):
            return
        result[n, 0] = end
        result[n, 1] = done
        result[n, 2] = value
        result[n, 3] = cost


@kernel
def fill(
    line: Timeline,
    jobs: Jobs,
    rows: Ints,
    worth_left: Floats,
    weight: Floats,
    loss: Floats,
    standing: Ints,
    log: Log,
) -> None:
    """Deal what is left of the first slot: one step up at a time, where it brings most.

    A step is worth the share of the remaining work that it adds, times what the job is worth, by
    the weight of what it takes. A step that moves a job which would have stayed as it is also
    costs what moving costs.

    Parameters
    ----------
    rows : int64[jobs]
        Rows that may run in the slot.
    worth_left : float64[jobs]
        What completing each is worth.
    weight : float64[rows of the table, 2]
        Weight of a worker and of a parameter server of each job.
    loss : float64[rows of the table]
        Share of a slot that each loses when its placement changes; 0 before its first start.
    standing : int64[rows of the table]
        Level at which each job ran in the slot before, -1 for none.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        most = jobs.levels[rows[n]]
        _offer_step(heap, jobs, rows[n], worth_left[n], n, most, weight, loss, standing, log)
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
        if not _fits_beside(line, state, jobs, row, workers, servers):
            # What is left only shrinks, but a smaller step may fit where this one does not.
            _offer_step(heap, jobs, row, worth_left[n], n, target, weight, loss, standing, log)
            continue
        at = log.used[0]
        if at == len(log.row):
            return
        put(line, state, WORKERS, jobs.worker[row], workers)
        if servers > 0:
            put(line, state, SERVERS, jobs.ps[row], servers)
        hold(line, state, jobs.tenant[row], jobs.worker[row], workers, jobs.ps[row], servers)
        log.row[at] = row
        log.workers[at] = workers
        log.servers[at] = servers
        log.used[0] = at + 1
        log.level[row] = target
        most = jobs.levels[row]
        _offer_step(heap, jobs, row, worth_left[n], n, most, weight, loss, standing, log)


@kernel
def _offer_step(
    heap: list[tuple[float, int, int]],
    jobs: Jobs,
    row: int,
    worth_left: float,
    n: int,
    most: int,
    weight: Floats,
    loss: Floats,
    standing: Ints,
    log: Log,
) -> None:
    """Push the next step up of a job below a level, if it has one that brings anything."""
    before = log.level[row]
    gain = 0.0
    taken = 0.0
    if before >= 0:
        gain = float(jobs.gains[row, before])
        if gain >= jobs.left[row]:
            return
        taken = weight[row, 0] * jobs.workers[row, before]
        taken += weight[row, 1] * jobs.servers[row, before]
        if standing[row] != before:
            gain *= 1.0 - loss[row]
    best = 0.0
    target = -1
    # Where one worker more brings nothing, several may: the step of the best return counts.
    for level in range(before + 1, most):
        more = float(min(jobs.gains[row, level], jobs.left[row]))
        if standing[row] != level:
            more *= 1.0 - loss[row]
        more -= gain
        cost = weight[row, 0] * jobs.workers[row, level]
        cost += weight[row, 1] * jobs.servers[row, level] - taken
        if more > 0.0 and more > best * cost * (1.0 + 1e-9):
            best = more / cost
            target = level
        if jobs.gains[row, level] >= jobs.left[row]:
            break
    if target >= 0:
        heapq.heappush(heap, (-best * worth_left / jobs.left[row], n, target))


@kernel
def _fits_beside(
    line: Timeline, state: int, jobs: Jobs, row: int, workers: int, servers: int
) -> bool:
    """Whether so many workers and parameter servers more find room, tried in scratch space.

    Where tenants have shares, also whether the job's tenant may hold them.
    """
    tenant = jobs.tenant[row]
    if not may_hold(line, state, tenant, jobs.worker[row], workers, jobs.ps[row], servers):
        return False
    if total_fit(line, state, WORKERS, jobs.worker[row], workers) < workers:
        return False
    if servers == 0:
        return True
    scratch = len(line.state) - 1
    copy_state(line, state, scratch)
    put(line, scratch, WORKERS, jobs.worker[row], workers)
    return total_fit(line, scratch, SERVERS, jobs.ps[row], servers) >= servers


@kernel
def stand(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    log: Log,
    kept_workers: Ints,
    kept_ps: Ints,
    new_workers: Ints,
    new_ps: Ints,
    stay: bool,
) -> bool:
    """Put what was packed by groups on servers.

    Parameters
    ----------
    free : int64[servers, resources]
        What each server holds; what is taken is taken off.
    hosts_workers, hosts_ps : bool[servers]
        What each may carry.
    log : Log
        What to put, in order.
    kept_workers, kept_ps : int64[rows, servers]
        Where jobs stand now.
    new_workers, new_ps : int64[rows, servers]
        Where they are to stand; zero for the rows of the log on entry.
    stay : bool
        Whether jobs first keep what they have. Without, everything is packed in the order of the
        log by the rules of the timeline, and fits as it did there; what does not, because the
        timeline ran out of groups, stands nowhere.

    Returns
    -------
    bool
        Whether everything found its place. Without ``stay`` what did is right even if not.
    """
    entries = log.used[0]
    servers = len(free)
    if stay:
        seen = np.zeros(len(log.level), np.bool_)
        for at in range(entries):
            row = log.row[at]
            if seen[row]:
                continue
            seen[row] = True
            _keep(
                free, kept_workers[row], jobs.worker[row], jobs.workers[row, log.level[row]],
                new_workers[row],
            )  # fmt: skip
            _keep(free, kept_ps[row], jobs.ps[row], jobs.servers[row, log.level[row]], new_ps[row])
        for row in range(len(seen)):
            if not seen[row]:
                continue
            lack = jobs.workers[row, log.level[row]]
            lack_ps = jobs.servers[row, log.level[row]]
            for s in range(servers):
                lack -= new_workers[row, s]
                lack_ps -= new_ps[row, s]
            if lack > 0 and not _put_on(
                free, hosts_workers, jobs.worker[row], lack, new_workers[row]
            ):
                return False
            if lack_ps > 0 and not _put_on(free, hosts_ps, jobs.ps[row], lack_ps, new_ps[row]):
                return False
        return True
    complete = True
    for at in range(entries):
        row = log.row[at]
        if log.level[row] < 0:
            continue
        fits = _put_on(free, hosts_workers, jobs.worker[row], log.workers[at], new_workers[row])
        if not fits or not _put_on(free, hosts_ps, jobs.ps[row], log.servers[at], new_ps[row]):
            complete = False
            _take_back(free, jobs.worker[row], new_workers[row])
            _take_back(free, jobs.ps[row], new_ps[row])
            log.level[row] = -1
    return complete


@kernel
def _take_back(free: Ints, demand: Ints, new: Ints) -> None:
    """Give back all that a job was given."""
    for s in range(len(new)):
        if new[s] > 0:
            for r in range(len(demand)):
                free[s, r] += new[s] * demand[r]
            new[s] = 0


@kernel
def _keep(free: Ints, kept: Ints, demand: Ints, wanted: int, new: Ints) -> None:
    """Keep up to ``wanted`` where they stand, giving up the smallest groups first."""
    total = 0
    for s in range(len(kept)):
        new[s] = kept[s]
        total += kept[s]
    while total > wanted:
        smallest = -1
        for s in range(len(kept)):
            if new[s] > 0 and (smallest < 0 or new[s] < new[smallest]):
                smallest = s
        gone = min(new[smallest], total - wanted)
        new[smallest] -= gone
        total -= gone
    for s in range(len(kept)):
        if new[s] > 0:
            for r in range(len(demand)):
                free[s, r] -= new[s] * demand[r]


@kernel
def _put_on(free: Ints, hosts: Flags, demand: Ints, number: int, new: Ints) -> bool:
    """Place so many of a demand on servers, by the rule of `timeline.put`."""
    rest = number
    servers, resources = free.shape
    while rest > 0:
        best = -1
        best_fit = 0
        for s in range(servers):
            if not hosts[s]:
                continue
            room = FOR_EVER
            for r in range(resources):
                if demand[r] > 0:
                    if free[s, r] < demand[r]:
                        room = 0
                        break
                    room = min(room, free[s, r] // demand[r])
            if room == 0:
                continue
            if best < 0:
                better = True
            elif room == best_fit:
                better = False
                for r in range(resources):
                    if free[s, r] != free[best, r]:
                        better = free[s, r] < free[best, r]
                        break
            elif room >= rest:
                better = best_fit < rest or room < best_fit
            else:
                better = best_fit < rest and room > best_fit
            if better:
                best = s
                best_fit = room
        if best < 0:
            return False
        each = min(best_fit, rest)
        new[best] += each
        for r in range(resources):
            free[best, r] -= each * demand[r]
        rest -= each
    return True

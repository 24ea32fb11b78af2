"""Placement on single servers of the levels that were packed by groups.

Jobs use few of all servers. So placements are lists of entries, and servers with equal free
capacity are handled as one group: no step visits every server for every job.
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import copy_into
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.replanning.jobs import Jobs, demand_of_whole, role_of_whole
from shadowprice.kernels.replanning.next_slot import Terms, best_step, offer_step
from shadowprice.kernels.replanning.plans import Log
from shadowprice.kernels.replanning.timeline import FOR_EVER, ONE, SERVERS, WORKERS

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Crowds(NamedTuple):
    """Servers grouped by free capacity.

    Attributes
    ----------
    free : int64[most, resources]
        Free capacity of each server of a group.
    role : int64[most]
        Role of its servers, as in `Timeline`.
    size : int64[most]
        Number of its servers; an empty group is reused.
    member : int64[servers]
        Servers of the initial groups, ascending in each.
    first, end : int64[most]
        Range of ``member`` on which nothing was placed yet.
    head, after : int64[most], int64[servers]
        Linked list of the group's other servers, unordered; -1 ends it.
    of : int64[servers]
        Group of each server, -1 for one without a role.
    used : int64[1]
        Number of groups.
    """

    free: Ints
    role: Ints
    size: Ints
    member: Ints
    first: Ints
    end: Ints
    head: Ints
    after: Ints
    of: Ints
    used: Ints


@kernel
def best_crowd(crowds: Crowds, role: int, demand: Ints, rest: int) -> tuple[int, int]:
    """Return the best-fitting group for the rest of a demand, -1 for none, and the fit of a server.

    The group that the rest fills best; if the rest fits on no single server, the freest.
    """
    best = -1
    best_fit = 0
    for g in range(crowds.used[0]):
        if crowds.size[g] == 0 or crowds.role[g] & role != role:
            continue
        room = FOR_EVER
        for r in range(len(demand)):
            if demand[r] > 0:
                if crowds.free[g, r] < demand[r]:
                    room = 0
                    break
                room = min(room, crowds.free[g, r] // demand[r])
        if room == 0:
            continue
        if best < 0:
            better = True
        elif room == best_fit:
            better = _before(crowds, g, best)
        elif room >= rest:
            better = best_fit < rest or room < best_fit
        else:
            better = best_fit < rest and room > best_fit
        if better:
            best = g
            best_fit = room
    return best, best_fit


@inlined
def _before(crowds: Crowds, g: int, other: int) -> bool:
    """Return whether a group precedes another with the same fit, as in `timeline`."""
    for r in range(crowds.free.shape[1]):
        if crowds.free[g, r] != crowds.free[other, r]:
            return bool(crowds.free[g, r] < crowds.free[other, r])
    return bool(crowds.role[g] < crowds.role[other])


@kernel
def lowest_of(crowds: Crowds, g: int) -> int:
    """Return the lowest server of a group."""
    lowest = len(crowds.of)
    if crowds.first[g] < crowds.end[g]:
        lowest = crowds.member[crowds.first[g]]
    s = crowds.head[g]
    while s >= 0:
        lowest = min(lowest, s)
        s = crowds.after[s]
    return lowest


@kernel
def change(free: Ints, crowds: Crowds, server: int, demand: Ints, number: int) -> None:
    """Add a number of demands to a server's free capacity, and move it to the matching group."""
    if number == 0:
        return
    g = crowds.of[server]
    role = crowds.role[g]
    if crowds.first[g] < crowds.end[g] and crowds.member[crowds.first[g]] == server:
        crowds.first[g] += 1  # nothing was put on it yet
    elif crowds.head[g] == server:
        crowds.head[g] = crowds.after[server]
    else:
        s = crowds.head[g]
        while crowds.after[s] != server:
            s = crowds.after[s]
        crowds.after[s] = crowds.after[server]
    crowds.size[g] -= 1
    for r in range(len(demand)):
        free[server, r] += number * demand[r]
    g = _crowd_of(crowds, free[server], role)
    crowds.of[server] = g
    crowds.size[g] += 1
    crowds.after[server] = crowds.head[g]
    crowds.head[g] = server


@inlined
def _crowd_of(crowds: Crowds, room: Ints, role: int) -> int:
    """Return the group of a role and free capacity, and add one if there is none."""
    vacant = -1
    for g in range(crowds.used[0]):
        if crowds.size[g] == 0:
            vacant = g if vacant < 0 else vacant
        elif crowds.role[g] == role and _equal(crowds.free[g], room):
            return g
    if vacant < 0:
        vacant = crowds.used[0]
        crowds.used[0] = vacant + 1
    for r in range(len(room)):
        crowds.free[vacant, r] = room[r]
    crowds.role[vacant] = role
    crowds.first[vacant] = 0
    crowds.end[vacant] = 0
    crowds.head[vacant] = -1
    return vacant


@inlined
def _equal(one: Ints, other: Ints) -> bool:
    same = True
    for r in range(len(one)):
        same = same and one[r] == other[r]
    return same


@kernel
def gather(free: Ints, hosts_workers: Flags, hosts_ps: Flags) -> Crowds:
    """Group servers by free capacity."""
    servers, resources = free.shape
    most = servers + 1
    crowds = Crowds(
        np.zeros((most, resources), np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(servers, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.full(most, -1),
        np.full(servers, -1),
        np.full(servers, -1),
        np.zeros(1, np.int64),
    )
    slots = 2 * servers + 1
    table = np.full(slots, -1)  # hash table of groups with open addressing
    for s in range(servers):
        role = (WORKERS if hosts_workers[s] else 0) + (SERVERS if hosts_ps[s] else 0)
        if role == 0:
            continue
        key = role
        for r in range(resources):
            key = (31 * key + free[s, r] % 1_000_003) % slots
        g = table[key]
        while g >= 0 and not (crowds.role[g] == role and _equal(crowds.free[g], free[s])):
            key = key + 1 if key + 1 < slots else 0
            g = table[key]
        if g < 0:
            g = crowds.used[0]
            crowds.used[0] = g + 1
            table[key] = g
            for r in range(free.shape[1]):
                crowds.free[g, r] = free[s, r]
            crowds.role[g] = role
        crowds.of[s] = g
        crowds.size[g] += 1
    begin = 0
    for g in range(crowds.used[0]):
        crowds.first[g] = begin
        crowds.end[g] = begin
        begin += crowds.size[g]
    for s in range(servers):
        g = crowds.of[s]
        if g >= 0:
            crowds.member[crowds.end[g]] = s
            crowds.end[g] += 1
    return crowds


class Stood(NamedTuple):
    """Placements of jobs, as entries of one server each.

    Attributes
    ----------
    first, number : int64[rows]
        First entry of a row, and the number of its entries.
    server, workers, ps : int64[entries]
        Server, workers and parameter servers on it; a row's servers ascend.
    """

    first: Ints
    number: Ints
    server: Ints
    workers: Ints
    ps: Ints


class Chains(NamedTuple):
    """Placements while they are computed: a linked list of entries a job.

    Attributes
    ----------
    head : int64[rows]
        Newest entry of a row, -1 for none.
    after : int64[most]
        The entry of the same row before it, -1 for none.
    server, workers, ps : int64[most]
        As in `Stood`.
    used : int64[1]
        Number of entries.
    """

    head: Ints
    after: Ints
    server: Ints
    workers: Ints
    ps: Ints
    used: Ints


@kernel
def entry(chains: Chains, row: int, server: int) -> int:
    """Return a row's entry of a server, and add one if there is none."""
    at = chains.head[row]
    while at >= 0:
        if chains.server[at] == server:
            return int(at)
        at = chains.after[at]
    at = chains.used[0]
    chains.used[0] = at + 1
    chains.server[at] = server
    chains.workers[at] = 0
    chains.ps[at] = 0
    chains.after[at] = chains.head[row]
    chains.head[row] = at
    return int(at)


@kernel
def listed(chains: Chains) -> Stood:
    """Return the placements of all entries that aren't empty."""
    rows, used = len(chains.head), chains.used[0]
    first, number = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    server, workers = np.empty(used, np.int64), np.empty(used, np.int64)
    ps = np.empty(used, np.int64)
    end = 0
    for row in range(rows):
        first[row] = end
        at = chains.head[row]
        while at >= 0:
            if chains.workers[at] > 0 or chains.ps[at] > 0:
                to = end
                while to > first[row] and server[to - 1] > chains.server[at]:
                    server[to], workers[to] = server[to - 1], workers[to - 1]
                    ps[to] = ps[to - 1]
                    to -= 1
                server[to], workers[to] = chains.server[at], chains.workers[at]
                ps[to] = chains.ps[at]
                end += 1
            at = chains.after[at]
        number[row] = end - first[row]
    return Stood(first, number, server[:end].copy(), workers[:end].copy(), ps[:end].copy())


@kernel
def put_on(
    free: Ints, crowds: Crowds, role: int, demand: Ints, number: int, row: int, chains: Chains
) -> bool:
    """Place several of a job's demands on servers, by the rule of `timeline.put`."""
    rest = number
    while rest > 0:
        best, fits = best_crowd(crowds, role, demand, rest)
        if best < 0:
            return False
        server = lowest_of(crowds, best)
        each = min(fits, rest)
        at = entry(chains, row, server)
        if role == WORKERS:
            chains.workers[at] += each
        else:
            chains.ps[at] += each
        change(free, crowds, server, demand, -each)
        rest -= each
    return True


@kernel
def put_whole(free: Ints, crowds: Crowds, jobs: Jobs, row: int, level: int, chains: Chains) -> bool:
    """Place a co-located level on one server, by the rule of `timeline.put`."""
    demand = demand_of_whole(jobs, row, level)
    best, _ = best_crowd(crowds, role_of_whole(jobs, row), demand, ONE)
    if best < 0:
        return False
    server = lowest_of(crowds, best)
    at = entry(chains, row, server)
    chains.workers[at] = jobs.workers[row, level]
    chains.ps[at] = jobs.servers[row, level]
    change(free, crowds, server, demand, -ONE)
    return True


@kernel
def take_back(free: Ints, crowds: Crowds, worker: Ints, ps: Ints, row: int, chains: Chains) -> None:
    """Release everything that a job was given."""
    at = chains.head[row]
    while at >= 0:
        change(free, crowds, chains.server[at], worker, chains.workers[at])
        change(free, crowds, chains.server[at], ps, chains.ps[at])
        chains.workers[at] = 0
        chains.ps[at] = 0
        at = chains.after[at]


Floats = NDArray[np.float64]


@kernel
def stand(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    log: Log,
    kept: Stood,
    fixed: Stood,
    least: Ints,
    stay: bool,
) -> tuple[bool, Stood]:
    """Place the levels that were packed by groups on servers.

    Parameters
    ----------
    free : int64[servers, resources]
        Capacity of each server; placements are subtracted.
    hosts_workers, hosts_ps : bool[servers]
        Whether each may host workers, and parameter servers.
    log : Log
        Levels to place, in order.
    kept : Stood
        Current placements.
    fixed : Stood
        Pinned placements; the log has the levels beyond them.
    least : int64[rows]
        Pinned level of each row, -1 for jobs that may move; empty if all may.
    stay : bool
        Whether jobs first keep their current servers. If not, everything is packed in the order of
        the log by the rules of the timeline, and fits as it did there. A level that doesn't fit,
        because the timeline ran out of groups, is dropped.

    Returns
    -------
    (bool, Stood)
        Whether everything fits, and the placements. Without ``stay`` they are valid in any case.
    """
    entries = log.used[0]
    rows = len(kept.first)
    chains = _no_chains(jobs, log, kept, len(free), len(fixed.server))
    complete = True
    for row in range(len(least)):
        if least[row] >= 0:
            _fix(free, jobs, row, fixed, chains)
    if stay:
        seen = np.zeros(rows, np.bool_)
        for at in range(entries):
            row = log.row[at]
            if not seen[row]:
                seen[row] = True
                if log.level[row] >= jobs.spread[row]:
                    _stay_whole(
                        free, hosts_workers, hosts_ps, jobs, row, log.level[row], kept, chains
                    )
                else:
                    _stay(free, jobs, row, log.level[row], kept, chains)
        crowds = gather(free, hosts_workers, hosts_ps)
        for row in range(rows):
            if not seen[row]:
                continue
            if log.level[row] >= jobs.spread[row]:
                if chains.head[row] < 0 and not put_whole(
                    free, crowds, jobs, row, log.level[row], chains
                ):
                    complete = False
                    break
                continue
            lack, lack_ps = jobs.workers[row, log.level[row]], jobs.servers[row, log.level[row]]
            at = chains.head[row]
            while at >= 0:
                lack -= chains.workers[at]
                lack_ps -= chains.ps[at]
                at = chains.after[at]
            complete = (
                complete
                and put_on(free, crowds, WORKERS, jobs.worker[row], lack, row, chains)
                and put_on(free, crowds, SERVERS, jobs.ps[row], lack_ps, row, chains)
            )
            if not complete:
                break
        return complete, listed(chains)
    crowds = gather(free, hosts_workers, hosts_ps)
    for at in range(entries):
        row = log.row[at]
        if log.level[row] < 0:
            continue
        if log.level[row] >= jobs.spread[row]:
            found = put_whole(free, crowds, jobs, row, log.level[row], chains)
        else:
            found = put_on(
                free, crowds, WORKERS, jobs.worker[row], log.workers[at], row, chains
            ) and put_on(free, crowds, SERVERS, jobs.ps[row], log.servers[at], row, chains)
        if not found:
            complete = False
            if len(least) > 0 and least[row] >= 0:
                _cut_back(free, crowds, jobs, row, fixed, chains)
                log.level[row] = least[row]
                continue
            take_back(free, crowds, jobs.worker[row], jobs.ps[row], row, chains)
            log.level[row] = -1
    return complete, listed(chains)


@kernel
def compared(rows: Ints, then: Stood, now: Stood) -> Ints:
    """Compare new placements with the current ones.

    Returns
    -------
    int64[rows]
        As in `kernels.reactive.places`: 0 equal, 1 less somewhere, 2 more somewhere, 3 both.
    """
    result = np.zeros(len(rows), np.int64)
    for n in range(len(rows)):
        row = rows[n]
        a, b = then.first[row], now.first[row]
        a_end, b_end = a + then.number[row], b + now.number[row]
        less = False
        more = False
        while a < a_end or b < b_end:
            if b == b_end or (a < a_end and then.server[a] < now.server[b]):
                less = True
                a += 1
            elif a == a_end or now.server[b] < then.server[a]:
                more = True
                b += 1
            else:
                workers, ps = now.workers[b] - then.workers[a], now.ps[b] - then.ps[a]
                less = less or workers < 0 or ps < 0
                more = more or workers > 0 or ps > 0
                a += 1
                b += 1
        result[n] = (1 if less else 0) + (2 if more else 0)
    return result


@inlined
def _no_chains(jobs: Jobs, log: Log, kept: Stood, servers: int, fixed: int) -> Chains:
    """Return empty lists with room for all possible entries."""
    # Placing one number of a demand uses each server at most once.
    rows = len(kept.first)
    most = fixed
    for at in range(log.used[0]):
        most += min(log.workers[at], servers) + min(log.servers[at], servers)
    for row in range(rows):
        level = log.level[row]
        if level >= 0:
            most += min(jobs.workers[row, level], servers) + min(jobs.servers[row, level], servers)
        most += kept.number[row]
    return Chains(
        np.full(rows, -1),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.zeros(1, np.int64),
    )


@inlined
def _fix(free: Ints, jobs: Jobs, row: int, fixed: Stood, chains: Chains) -> None:
    """Add a job's pinned placement."""
    for n in range(fixed.first[row], fixed.first[row] + fixed.number[row]):
        server = fixed.server[n]
        at = entry(chains, row, server)
        chains.workers[at] = fixed.workers[n]
        chains.ps[at] = fixed.ps[n]
        for r in range(free.shape[1]):
            free[server, r] -= fixed.workers[n] * jobs.worker[row, r]
            free[server, r] -= fixed.ps[n] * jobs.ps[row, r]


@inlined
def _cut_back(
    free: Ints, crowds: Crowds, jobs: Jobs, row: int, fixed: Stood, chains: Chains
) -> None:
    """Release what a job was given beyond its pinned placement."""
    at = chains.head[row]
    while at >= 0:
        workers, ps = chains.workers[at], chains.ps[at]
        for n in range(fixed.first[row], fixed.first[row] + fixed.number[row]):
            if fixed.server[n] == chains.server[at]:
                workers -= fixed.workers[n]
                ps -= fixed.ps[n]
        change(free, crowds, chains.server[at], jobs.worker[row], workers)
        change(free, crowds, chains.server[at], jobs.ps[row], ps)
        chains.workers[at] -= workers
        chains.ps[at] -= ps
        at = chains.after[at]


@inlined
def _stay(free: Ints, jobs: Jobs, row: int, level: int, kept: Stood, chains: Chains) -> None:
    """Keep a level's processes where they are, releasing the smallest groups first.

    Capacity that other jobs took meanwhile, such as bags of tasks, is released before that.
    """
    begin, end = kept.first[row], kept.first[row] + kept.number[row]
    workers, ps = kept.workers[begin:end].copy(), kept.ps[begin:end].copy()
    at = chains.head[row]
    while at >= 0:  # pinned processes are placed already
        for n in range(end - begin):
            if kept.server[begin + n] == chains.server[at]:
                workers[n] = max(0, workers[n] - chains.workers[at])
                ps[n] = max(0, ps[n] - chains.ps[at])
        at = chains.after[at]
    for n in range(end - begin):
        room = free[kept.server[begin + n]]
        for r in range(free.shape[1]):
            one, other = jobs.worker[row, r], jobs.ps[row, r]
            if one > 0 and workers[n] * one > room[r]:
                workers[n] = max(0, room[r]) // one
            if other > 0 and workers[n] * one + ps[n] * other > room[r]:
                ps[n] = max(0, room[r] - workers[n] * one) // other
    lack, lack_ps = jobs.workers[row, level], jobs.servers[row, level]
    at = chains.head[row]
    while at >= 0:
        lack -= chains.workers[at]
        lack_ps -= chains.ps[at]
        at = chains.after[at]
    workers = _cut(workers, lack)
    ps = _cut(ps, lack_ps)
    for n in range(end - begin):
        if workers[n] == 0 and ps[n] == 0:
            continue
        server = kept.server[begin + n]
        at = entry(chains, row, server)
        chains.workers[at] += workers[n]
        chains.ps[at] += ps[n]
        for r in range(free.shape[1]):
            free[server, r] -= workers[n] * jobs.worker[row, r] + ps[n] * jobs.ps[row, r]


@inlined
def _stay_whole(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    row: int,
    level: int,
    kept: Stood,
    chains: Chains,
) -> None:
    """Place a co-located level on the server that has most of the job, if it fits there."""
    demand = demand_of_whole(jobs, row, level)
    best = -1
    for n in range(kept.first[row], kept.first[row] + kept.number[row]):
        server = kept.server[n]
        fits = hosts_workers[server] and (jobs.servers[row, level] == 0 or hosts_ps[server])
        for r in range(len(demand)):
            fits = fits and demand[r] <= free[server, r]
        if fits and (best < 0 or kept.workers[n] > kept.workers[best]):
            best = n
    if best >= 0:
        server = kept.server[best]
        at = entry(chains, row, server)
        chains.workers[at] = jobs.workers[row, level]
        chains.ps[at] = jobs.servers[row, level]
        for r in range(len(demand)):
            free[server, r] -= demand[r]


@kernel
def _cut(left: Ints, wanted: int) -> Ints:
    """Reduce numbers to a sum, the smallest first; return them."""
    total = left.sum()
    while total > wanted:
        smallest = -1
        for n in range(len(left)):
            if left[n] > 0 and (smallest < 0 or left[n] < left[smallest]):
                smallest = n
        gone = min(left[smallest], total - wanted)
        left[smallest] -= gone
        total -= gone
    return left


@kernel
def grow(
    free: Ints,
    jobs: Jobs,
    rows: Ints,
    worth_left: Floats,
    terms: Terms,
    stood: Stood,
    log: Log,
) -> None:
    """Scale co-located jobs up into the free capacity of their servers, one best step at a time.

    A step is weighed as in `next_slot.fill`.

    Parameters
    ----------
    free : int64[servers, resources]
        Free capacity after `stand`; what is taken is subtracted.
    rows : int64[jobs]
        Rows of co-located jobs that run in the slot.
    worth_left : float64[jobs]
        Utility of completing each.
    stood : Stood
        Placements; written.
    log : Log
        Levels; written.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        most = jobs.levels[rows[n]]
        _push(heap, jobs, rows[n], worth_left[n], n, most, terms, log)
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        before = log.level[row]
        at = stood.first[row]
        server = stood.server[at]
        workers = jobs.workers[row, target] - jobs.workers[row, before]
        servers = jobs.servers[row, target] - jobs.servers[row, before]
        fits = True
        for r in range(free.shape[1]):
            asked = workers * jobs.worker[row, r] + servers * jobs.ps[row, r]
            fits = fits and (asked <= 0 or asked <= free[server, r])
        most = target
        if fits:
            for r in range(free.shape[1]):
                free[server, r] -= workers * jobs.worker[row, r] + servers * jobs.ps[row, r]
            stood.workers[at] += workers
            stood.ps[at] += servers
            log.level[row] = target
            most = jobs.levels[row]
        _push(heap, jobs, row, worth_left[n], n, most, terms, log)


@inlined
def _push(
    heap: list[tuple[float, int, int]],
    jobs: Jobs,
    row: int,
    worth_left: float,
    n: int,
    most: int,
    terms: Terms,
    log: Log,
) -> None:
    """Push the best step up of a co-located job below a level, if it adds progress."""
    before = log.level[row]
    value, target = best_step(jobs, row, before, before + 1, most, terms)
    if target >= 0:
        heapq.heappush(heap, (-value * worth_left / jobs.left[row], n, target))


@kernel
def seat(
    free: Ints,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: Jobs,
    rows: Ints,
    worth_left: Floats,
    terms: Terms,
    stood: Stood,
    log: Log,
) -> Stood:
    """Place paused jobs on the remaining capacity of servers, the best steps first.

    `next_slot.fill` assumes servers as plans pack them. Jobs that keep their placement leave other
    capacity: less on some servers, more on others.

    Parameters
    ----------
    free : int64[servers, resources]
        Free capacity after `stand` and `grow`; placements are subtracted.
    hosts_workers, hosts_ps : bool[servers]
        Whether each may host workers, and parameter servers.
    rows : int64[jobs]
        Rows that may run in the slot.
    worth_left : float64[jobs]
        Utility of completing each.
    stood : Stood
        Placements so far.
    log : Log
        Levels; written.

    Returns
    -------
    Stood
        All placements; the same object if no job fits.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        if log.level[rows[n]] < 0:
            most = jobs.levels[rows[n]]
            offer_step(heap, jobs, rows[n], worth_left[n], n, most, terms, log)
    if len(heap) == 0:
        return stood
    crowds = gather(free, hosts_workers, hosts_ps)
    chains = _wider(_none(len(stood.first)), len(free))
    found = False
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        if best_crowd(crowds, WORKERS, jobs.worker[row], ONE)[0] < 0:
            continue
        used = chains.used[0]
        chains = _wider(chains, used + 2 * len(free))
        if _seated(free, crowds, jobs, row, target, chains):
            log.level[row] = target
            found = True
        else:
            chains.head[row], chains.used[0] = -1, used
            offer_step(heap, jobs, row, worth_left[n], n, target, terms, log)
    return _joined(stood, listed(chains)) if found else stood


@inlined
def _seated(free: Ints, crowds: Crowds, jobs: Jobs, row: int, level: int, chains: Chains) -> bool:
    """Place a job at a level; on failure nothing changes.

    Workers come first, or parameter servers if they don't fit after the workers.
    """
    if level >= jobs.spread[row]:
        return put_whole(free, crowds, jobs, row, level, chains)
    workers, servers = jobs.workers[row, level], jobs.servers[row, level]
    worker, ps = jobs.worker[row], jobs.ps[row]
    if put_on(free, crowds, WORKERS, worker, workers, row, chains) and put_on(
        free, crowds, SERVERS, ps, servers, row, chains
    ):
        return True
    take_back(free, crowds, worker, ps, row, chains)
    if servers == 0:
        return False
    if put_on(free, crowds, SERVERS, ps, servers, row, chains) and put_on(
        free, crowds, WORKERS, worker, workers, row, chains
    ):
        return True
    take_back(free, crowds, worker, ps, row, chains)
    return False


@inlined
def _none(rows: int) -> Chains:
    """Return empty lists without room for entries."""
    return Chains(
        np.full(rows, -1),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.zeros(1, np.int64),
    )


@kernel
def _wider(chains: Chains, entries: int) -> Chains:
    """Return lists with room for at least ``entries`` entries."""
    if len(chains.after) >= entries:
        return chains
    most = max(entries, 2 * len(chains.after))
    return Chains(
        chains.head,
        _longer(chains.after, most),
        _longer(chains.server, most),
        _longer(chains.workers, most),
        _longer(chains.ps, most),
        chains.used,
    )


@inlined
def _longer(column: Ints, most: int) -> Ints:
    whole = np.empty(most, np.int64)
    copy_into(whole, column)
    return whole


@inlined
def _joined(stood: Stood, more: Stood) -> Stood:
    """Return placements of both; a row has entries in at most one of them."""
    first, number = stood.first.copy(), stood.number.copy()
    for row in range(len(first)):
        if more.number[row] > 0:
            first[row] = len(stood.server) + more.first[row]
            number[row] = more.number[row]
    return Stood(
        first,
        number,
        np.concatenate((stood.server, more.server)),
        np.concatenate((stood.workers, more.workers)),
        np.concatenate((stood.ps, more.ps)),
    )

"""Assigns levels that were packed by server group to individual servers.

Jobs use few of all servers. So placements are lists of entries, and servers with equal free
capacity are handled as one group: no step visits every server for every job.
"""

import heapq
from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Floats, Integers, copy_into
from shadowprice.kernels.jit import allocation_free, inlined, kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.replanning.jobs import JobArrays, colocated_demand, colocated_role
from shadowprice.kernels.replanning.next_slot import StepWeights, best_step, push_step
from shadowprice.kernels.replanning.plans import PackingLog
from shadowprice.kernels.replanning.timeline import ONE, PS_ROLE, UNLIMITED_COUNT, WORKER_ROLE


class ServerGroups(NamedTuple):
    """Servers grouped by free capacity; arrays without a shape are (capacity,), by group.

    A group's servers are in two parts. Those on which nothing was placed yet are a range of
    ``member``. All others are a linked list: ``head`` is its first server, and ``next`` the server
    after each. ``group_of`` finds the group of a server when its free capacity changes.
    """

    free: Integers  # free capacity of each server of a group, shape (capacity, resources)
    role: Integers  # role of its servers, as in `Timeline`
    size: Integers  # number of its servers; an empty group is reused
    member: Integers  # servers of the initial groups, ascending in each, shape (servers,)
    first: Integers  # start of the range of `member` on which nothing was placed yet
    end: Integers
    head: Integers  # linked list of the group's other servers, unordered; -1 ends it
    next: Integers  # shape (servers,)
    group_of: Integers  # group of each server, -1 for one without a role, shape (servers,)
    used: Integers  # number of groups, shape (1,)


@allocation_free
def best_fit_group(
    groups: ServerGroups, role: int, demand: Integers, remaining: int
) -> tuple[int, int]:
    """Return the best-fitting group for ``remaining`` demands, or -1, and how many fit on a server.

    The best group is the one that all remaining demands together fill best. If no server fits all
    of them, it is the group with the most free capacity.
    """
    best = -1
    best_fit_count = 0
    for g in range(groups.used[0]):
        if groups.size[g] == 0 or groups.role[g] & role != role:
            continue
        fit_count = UNLIMITED_COUNT
        for r in range(len(demand)):
            if demand[r] > 0:
                if groups.free[g, r] < demand[r]:
                    fit_count = 0
                    break
                fit_count = min(fit_count, groups.free[g, r] // demand[r])
        if fit_count == 0:
            continue
        if best < 0:
            better = True
        elif fit_count == best_fit_count:
            better = _precedes(groups, g, best)
        elif fit_count >= remaining:
            better = best_fit_count < remaining or fit_count < best_fit_count
        else:
            better = best_fit_count < remaining and fit_count > best_fit_count
        if better:
            best = g
            best_fit_count = fit_count
    return best, best_fit_count


@inlined
def _precedes(groups: ServerGroups, g: int, other: int) -> bool:
    """Return whether a group precedes another with the same fit; see `timeline._precedes`."""
    for r in range(groups.free.shape[1]):
        if groups.free[g, r] != groups.free[other, r]:
            return bool(groups.free[g, r] < groups.free[other, r])
    return bool(groups.role[g] < groups.role[other])


@allocation_free
def lowest_server(groups: ServerGroups, g: int) -> int:
    """Return the lowest server of a group."""
    lowest = len(groups.group_of)
    if groups.first[g] < groups.end[g]:
        lowest = groups.member[groups.first[g]]
    s = groups.head[g]
    while s >= 0:
        lowest = min(lowest, s)
        s = groups.next[s]
    return lowest


@allocation_free
def update_free(
    free: Integers, groups: ServerGroups, server: int, demand: Integers, count: int
) -> None:
    """Add demands to a server's free capacity, and move it to the matching group."""
    if count == 0:
        return
    g = groups.group_of[server]
    role = groups.role[g]
    if groups.first[g] < groups.end[g] and groups.member[groups.first[g]] == server:
        groups.first[g] += 1  # nothing was put on it yet
    elif groups.head[g] == server:
        groups.head[g] = groups.next[server]
    else:
        s = groups.head[g]
        while groups.next[s] != server:
            s = groups.next[s]
        groups.next[s] = groups.next[server]
    groups.size[g] -= 1
    for r in range(len(demand)):
        free[server, r] += count * demand[r]
    g = _find_or_add_group(groups, free[server], role)
    groups.group_of[server] = g
    groups.size[g] += 1
    groups.next[server] = groups.head[g]
    groups.head[g] = server


@inlined
def _find_or_add_group(groups: ServerGroups, free: Integers, role: int) -> int:
    """Return the group of a role and free capacity, and add one if there is none."""
    vacant = -1
    for g in range(groups.used[0]):
        if groups.size[g] == 0:
            vacant = g if vacant < 0 else vacant
        elif groups.role[g] == role and _equal(groups.free[g], free):
            return g
    if vacant < 0:
        vacant = groups.used[0]
        groups.used[0] = vacant + 1
    for r in range(len(free)):
        groups.free[vacant, r] = free[r]
    groups.role[vacant] = role
    groups.first[vacant] = 0
    groups.end[vacant] = 0
    groups.head[vacant] = -1
    return vacant


@inlined
def _equal(first: Integers, second: Integers) -> bool:
    same = True
    for r in range(len(first)):
        same = same and first[r] == second[r]
    return same


@kernel
def group_servers(free: Integers, hosts_workers: Flags, hosts_ps: Flags) -> ServerGroups:
    """Group servers by free capacity."""
    servers, resources = free.shape
    capacity = servers + 1
    groups = ServerGroups(
        np.zeros((capacity, resources), np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(servers, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.full(capacity, -1),
        np.full(servers, -1),
        np.full(servers, -1),
        np.zeros(1, np.int64),
    )
    buckets = 2 * servers + 1
    table = np.full(buckets, -1)  # hash table of groups with open addressing
    for s in range(servers):
        role = (WORKER_ROLE if hosts_workers[s] else 0) + (PS_ROLE if hosts_ps[s] else 0)
        if role == 0:
            continue
        key = role
        for r in range(resources):
            key = (31 * key + free[s, r] % 1_000_003) % buckets
        g = table[key]
        while g >= 0 and not (groups.role[g] == role and _equal(groups.free[g], free[s])):
            key = key + 1 if key + 1 < buckets else 0
            g = table[key]
        if g < 0:
            g = groups.used[0]
            groups.used[0] = g + 1
            table[key] = g
            for r in range(free.shape[1]):
                groups.free[g, r] = free[s, r]
            groups.role[g] = role
        groups.group_of[s] = g
        groups.size[g] += 1
    start = 0
    for g in range(groups.used[0]):
        groups.first[g] = start
        groups.end[g] = start
        start += groups.size[g]
    for s in range(servers):
        g = groups.group_of[s]
        if g >= 0:
            groups.member[groups.end[g]] = s
            groups.end[g] += 1
    return groups


class Placements(NamedTuple):
    """Placements of jobs, as entries of one server each."""

    first: Integers  # first entry of a row
    size: Integers  # number of a row's entries
    server: Integers  # ascending in a row
    workers: Integers
    ps: Integers


class PlacementLists(NamedTuple):
    """Placements while they are computed: a linked list of entries for each job."""

    head: Integers  # newest entry of a row, -1 for none
    next: Integers  # the row's next older entry, -1 for none
    server: Integers
    workers: Integers
    ps: Integers
    used: Integers  # number of entries, shape (1,)


@allocation_free
def find_or_add_entry(lists: PlacementLists, row: int, server: int) -> int:
    """Return a row's entry of a server, and add one if there is none."""
    entry = lists.head[row]
    while entry >= 0:
        if lists.server[entry] == server:
            return int(entry)
        entry = lists.next[entry]
    return add_entry(lists, row, server)


@inlined
def add_entry(lists: PlacementLists, row: int, server: int) -> int:
    """Add a row's entry of a server, of which it has none."""
    entry = lists.used[0]
    lists.used[0] = entry + 1
    lists.server[entry] = server
    lists.workers[entry] = 0
    lists.ps[entry] = 0
    lists.next[entry] = lists.head[row]
    lists.head[row] = entry
    return int(entry)


@kernel
def to_placements(lists: PlacementLists) -> Placements:
    """Return the placements of all entries that aren't empty."""
    rows, used = len(lists.head), lists.used[0]
    first, size = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    server, workers = np.empty(used, np.int64), np.empty(used, np.int64)
    ps = np.empty(used, np.int64)
    end = 0
    for row in range(rows):
        first[row] = end
        entry = lists.head[row]
        while entry >= 0:
            if lists.workers[entry] > 0 or lists.ps[entry] > 0:
                end += 1
            entry = lists.next[entry]
        size[row] = end - first[row]
        # Sort from the end on: the newest entry mostly has the highest server.
        start = end
        entry = lists.head[row]
        while entry >= 0:
            if lists.workers[entry] > 0 or lists.ps[entry] > 0:
                start -= 1
                position = start
                while position + 1 < end and server[position + 1] < lists.server[entry]:
                    server[position] = server[position + 1]
                    workers[position] = workers[position + 1]
                    ps[position] = ps[position + 1]
                    position += 1
                server[position] = lists.server[entry]
                workers[position] = lists.workers[entry]
                ps[position] = lists.ps[entry]
            entry = lists.next[entry]
    return Placements(first, size, server[:end].copy(), workers[:end].copy(), ps[:end].copy())


@allocation_free
def place_spread(
    free: Integers,
    groups: ServerGroups,
    role: int,
    demand: Integers,
    count: int,
    row: int,
    lists: PlacementLists,
) -> bool:
    """Place several of a job's demands on servers, by the rule of `timeline.pack`."""
    remaining = count
    # Each server is chosen once, so a search is only needed if the job is on some already.
    is_new = lists.head[row] < 0
    while remaining > 0:
        best, fit_count = best_fit_group(groups, role, demand, remaining)
        if best < 0:
            return False
        server = lowest_server(groups, best)
        placed = min(fit_count, remaining)
        if is_new:
            entry = add_entry(lists, row, server)
        else:
            entry = find_or_add_entry(lists, row, server)
        if role == WORKER_ROLE:
            lists.workers[entry] += placed
        else:
            lists.ps[entry] += placed
        update_free(free, groups, server, demand, -placed)
        remaining -= placed
    return True


@kernel
def place_colocated(
    free: Integers,
    groups: ServerGroups,
    jobs: JobArrays,
    row: int,
    level: int,
    lists: PlacementLists,
) -> bool:
    """Place a co-located level on one server, by the rule of `timeline.pack`."""
    demand = colocated_demand(jobs, row, level)
    best, _ = best_fit_group(groups, colocated_role(jobs, row), demand, ONE)
    if best < 0:
        return False
    server = lowest_server(groups, best)
    entry = find_or_add_entry(lists, row, server)
    lists.workers[entry] = jobs.worker_counts[row, level]
    lists.ps[entry] = jobs.ps_counts[row, level]
    update_free(free, groups, server, demand, -ONE)
    return True


@allocation_free
def release_job(
    free: Integers,
    groups: ServerGroups,
    worker: Integers,
    ps: Integers,
    row: int,
    lists: PlacementLists,
) -> None:
    """Release all entries of a job."""
    entry = lists.head[row]
    while entry >= 0:
        update_free(free, groups, lists.server[entry], worker, lists.workers[entry])
        update_free(free, groups, lists.server[entry], ps, lists.ps[entry])
        lists.workers[entry] = 0
        lists.ps[entry] = 0
        entry = lists.next[entry]


@kernel
def place_packed_jobs(
    free: Integers,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: JobArrays,
    log: PackingLog,
    current: Placements,
    pinned: Placements,
    pinned_level: Integers,
    keep_servers: bool,
) -> tuple[bool, Placements]:
    """Place the levels that were packed by groups on servers, in the order of the log.

    Returns whether everything fits, and the placements. Without ``keep_servers`` they are valid in
    any case.

    ``free`` (servers, resources): placements are subtracted. ``hosts_workers``, ``hosts_ps``
    (servers,). ``pinned``: placements to which the log's levels are added. ``pinned_level``
    (rows,): -1 for jobs that may move; empty if all may.

    With ``keep_servers`` jobs first keep their current servers. If not, everything is packed by the
    rules of the timeline, and fits as it did there. A level that doesn't fit, because the timeline
    ran out of groups, is dropped with all its entries; a pinned job falls back to its pinned level.
    """
    lists = _empty_lists_for_log(jobs, log, current, len(free), len(pinned.server))
    for row in range(len(pinned_level)):
        if pinned_level[row] >= 0:
            _place_pinned(free, jobs, row, pinned, lists)
    if keep_servers:
        complete = _place_keeping_servers(free, hosts_workers, hosts_ps, jobs, log, current, lists)
    else:
        complete = _place_as_packed(
            free, hosts_workers, hosts_ps, jobs, log, pinned, pinned_level, lists
        )
    return complete, to_placements(lists)


@kernel
def _place_keeping_servers(
    free: Integers,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: JobArrays,
    log: PackingLog,
    current: Placements,
    lists: PlacementLists,
) -> bool:
    """Place jobs first on their current servers, then the rest; stop if a job doesn't fit."""
    rows = len(current.first)
    is_logged = np.zeros(rows, np.bool_)
    for log_entry in range(log.used[0]):
        row = log.row[log_entry]
        if not is_logged[row]:
            is_logged[row] = True
            if log.level[row] >= jobs.spread_levels[row]:
                _keep_colocated(
                    free, hosts_workers, hosts_ps, jobs, row, log.level[row], current, lists
                )
            else:
                _keep_spread(free, jobs, row, log.level[row], current, lists)
    groups = group_servers(free, hosts_workers, hosts_ps)
    for row in range(rows):
        if not is_logged[row]:
            continue
        if log.level[row] >= jobs.spread_levels[row]:
            if lists.head[row] < 0 and not place_colocated(
                free, groups, jobs, row, log.level[row], lists
            ):
                return False
            continue
        missing, missing_ps = (
            jobs.worker_counts[row, log.level[row]],
            jobs.ps_counts[row, log.level[row]],
        )
        list_entry = lists.head[row]
        while list_entry >= 0:
            missing -= lists.workers[list_entry]
            missing_ps -= lists.ps[list_entry]
            list_entry = lists.next[list_entry]
        if not place_spread(free, groups, WORKER_ROLE, jobs.worker[row], missing, row, lists):
            return False
        if not place_spread(free, groups, PS_ROLE, jobs.ps[row], missing_ps, row, lists):
            return False
    return True


@kernel
def _place_as_packed(
    free: Integers,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: JobArrays,
    log: PackingLog,
    pinned: Placements,
    pinned_level: Integers,
    lists: PlacementLists,
) -> bool:
    """Place entries of the log by the rules of the timeline; drop levels that don't fit."""
    rows = len(log.level)
    complete = True
    groups = group_servers(free, hosts_workers, hosts_ps)
    is_dropped = np.zeros(rows, np.bool_)
    for log_entry in range(log.used[0]):
        row = log.row[log_entry]
        if log.level[row] < 0 or is_dropped[row]:
            continue
        if log.level[row] >= jobs.spread_levels[row]:
            fits = place_colocated(free, groups, jobs, row, log.level[row], lists)
        else:
            fits = place_spread(
                free, groups, WORKER_ROLE, jobs.worker[row], log.workers[log_entry], row, lists
            ) and place_spread(free, groups, PS_ROLE, jobs.ps[row], log.ps[log_entry], row, lists)
        if not fits:
            complete = False
            is_dropped[row] = True
            if len(pinned_level) > 0 and pinned_level[row] >= 0:
                _release_unpinned(free, groups, jobs, row, pinned, lists)
                log.level[row] = pinned_level[row]
                continue
            release_job(free, groups, jobs.worker[row], jobs.ps[row], row, lists)
            log.level[row] = -1
    return complete


@kernel
def compare_placements(rows: Integers, current: Placements, new: Placements) -> Integers:
    """Compare new placements with the current ones; see `kernels.reactive.places` for the values.

    The value is 0 for equal, 1 for less on some server, 2 for more on some server, 3 for both.
    """
    result = np.zeros(len(rows), np.int64)
    for n in range(len(rows)):
        row = rows[n]
        a, b = current.first[row], new.first[row]
        a_end, b_end = a + current.size[row], b + new.size[row]
        has_less = False
        has_more = False
        while a < a_end or b < b_end:
            if b == b_end or (a < a_end and current.server[a] < new.server[b]):
                has_less = True
                a += 1
            elif a == a_end or new.server[b] < current.server[a]:
                has_more = True
                b += 1
            else:
                workers, ps = new.workers[b] - current.workers[a], new.ps[b] - current.ps[a]
                has_less = has_less or workers < 0 or ps < 0
                has_more = has_more or workers > 0 or ps > 0
                a += 1
                b += 1
        result[n] = (1 if has_less else 0) + (2 if has_more else 0)
    return result


@inlined
def _empty_lists_for_log(
    jobs: JobArrays, log: PackingLog, current: Placements, servers: int, pinned: int
) -> PlacementLists:
    """Return empty lists with capacity for all possible entries."""
    # Placing one number of a demand uses each server at most once.
    rows = len(current.first)
    capacity = pinned
    for entry in range(log.used[0]):
        capacity += min(log.workers[entry], servers) + min(log.ps[entry], servers)
    for row in range(rows):
        level = log.level[row]
        if level >= 0:
            capacity += min(jobs.worker_counts[row, level], servers) + min(
                jobs.ps_counts[row, level], servers
            )
        capacity += current.size[row]
    return PlacementLists(
        np.full(rows, -1),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.zeros(1, np.int64),
    )


@inlined
def _place_pinned(
    free: Integers, jobs: JobArrays, row: int, pinned: Placements, lists: PlacementLists
) -> None:
    """Add a job's pinned placement."""
    for n in range(pinned.first[row], pinned.first[row] + pinned.size[row]):
        server = pinned.server[n]
        entry = find_or_add_entry(lists, row, server)
        lists.workers[entry] = pinned.workers[n]
        lists.ps[entry] = pinned.ps[n]
        for r in range(free.shape[1]):
            free[server, r] -= pinned.workers[n] * jobs.worker[row, r]
            free[server, r] -= pinned.ps[n] * jobs.ps[row, r]


@inlined
def _release_unpinned(
    free: Integers,
    groups: ServerGroups,
    jobs: JobArrays,
    row: int,
    pinned: Placements,
    lists: PlacementLists,
) -> None:
    """Release a job's processes except its pinned placement."""
    entry = lists.head[row]
    while entry >= 0:
        workers, ps = lists.workers[entry], lists.ps[entry]
        for n in range(pinned.first[row], pinned.first[row] + pinned.size[row]):
            if pinned.server[n] == lists.server[entry]:
                workers -= pinned.workers[n]
                ps -= pinned.ps[n]
        update_free(free, groups, lists.server[entry], jobs.worker[row], workers)
        update_free(free, groups, lists.server[entry], jobs.ps[row], ps)
        lists.workers[entry] -= workers
        lists.ps[entry] -= ps
        entry = lists.next[entry]


@inlined
def _keep_spread(
    free: Integers,
    jobs: JobArrays,
    row: int,
    level: int,
    current: Placements,
    lists: PlacementLists,
) -> None:
    """Keep a level's processes on their servers; release the smallest groups first.

    Processes whose capacity was meanwhile allocated to others, such as bags of tasks, are released
    before those.
    """
    start, end = current.first[row], current.first[row] + current.size[row]
    workers, ps = current.workers[start:end].copy(), current.ps[start:end].copy()
    entry = lists.head[row]
    while entry >= 0:  # pinned processes are placed already
        for n in range(end - start):
            if current.server[start + n] == lists.server[entry]:
                workers[n] = max(0, workers[n] - lists.workers[entry])
                ps[n] = max(0, ps[n] - lists.ps[entry])
        entry = lists.next[entry]
    for n in range(end - start):
        free_on_server = free[current.server[start + n]]
        for r in range(free.shape[1]):
            worker_demand, ps_demand = jobs.worker[row, r], jobs.ps[row, r]
            if worker_demand > 0 and workers[n] * worker_demand > free_on_server[r]:
                workers[n] = max(0, free_on_server[r]) // worker_demand
            if ps_demand > 0 and workers[n] * worker_demand + ps[n] * ps_demand > free_on_server[r]:
                ps[n] = max(0, free_on_server[r] - workers[n] * worker_demand) // ps_demand
    missing, missing_ps = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    entry = lists.head[row]
    while entry >= 0:
        missing -= lists.workers[entry]
        missing_ps -= lists.ps[entry]
        entry = lists.next[entry]
    workers = reduce_to_sum(workers, missing)
    ps = reduce_to_sum(ps, missing_ps)
    is_new = lists.head[row] < 0
    for n in range(end - start):
        if workers[n] == 0 and ps[n] == 0:
            continue
        server = current.server[start + n]
        if is_new:
            entry = add_entry(lists, row, server)
        else:
            entry = find_or_add_entry(lists, row, server)
        lists.workers[entry] += workers[n]
        lists.ps[entry] += ps[n]
        for r in range(free.shape[1]):
            free[server, r] -= workers[n] * jobs.worker[row, r] + ps[n] * jobs.ps[row, r]


@inlined
def _keep_colocated(
    free: Integers,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: JobArrays,
    row: int,
    level: int,
    current: Placements,
    lists: PlacementLists,
) -> None:
    """Place a co-located level on the server with most of the job's workers, if it fits there."""
    demand = colocated_demand(jobs, row, level)
    best = -1
    for n in range(current.first[row], current.first[row] + current.size[row]):
        server = current.server[n]
        fits = hosts_workers[server] and (jobs.ps_counts[row, level] == 0 or hosts_ps[server])
        for r in range(len(demand)):
            fits = fits and demand[r] <= free[server, r]
        if fits and (best < 0 or current.workers[n] > current.workers[best]):
            best = n
    if best >= 0:
        server = current.server[best]
        entry = find_or_add_entry(lists, row, server)
        lists.workers[entry] = jobs.worker_counts[row, level]
        lists.ps[entry] = jobs.ps_counts[row, level]
        for r in range(len(demand)):
            free[server, r] -= demand[r]


@kernel
def reduce_to_sum(counts: Integers, limit: int) -> Integers:
    """Reduce counts in place to a sum of at most ``limit``, the smallest first; return them."""
    excess = counts.sum() - max(limit, 0)
    if excess > 0:
        for n in stable_order(counts):
            removed = min(counts[n], excess)
            counts[n] -= removed
            excess -= removed
    return counts


@kernel
def scale_up_colocated(
    free: Integers,
    jobs: JobArrays,
    rows: Integers,
    job_utility: Floats,
    weights: StepWeights,
    placements: Placements,
    log: PackingLog,
) -> None:
    """Scale co-located jobs up into the free capacity of their servers, one best step at a time.

    A step is weighed as in `next_slot.allocate_spare`. ``rows`` (jobs,) are co-located jobs that
    run in the slot, and ``job_utility`` (jobs,) is that of completing each. Steps are subtracted
    from ``free`` (servers, resources), as `place_packed_jobs` left it. ``placements`` and ``log``
    are updated.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        level_limit = jobs.levels[rows[n]]
        _push_colocated_step(heap, jobs, rows[n], job_utility[n], n, level_limit, weights, log)
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        current_level = log.level[row]
        entry = placements.first[row]
        server = placements.server[entry]
        workers = jobs.worker_counts[row, target] - jobs.worker_counts[row, current_level]
        ps_count = jobs.ps_counts[row, target] - jobs.ps_counts[row, current_level]
        fits = True
        for r in range(free.shape[1]):
            needed = workers * jobs.worker[row, r] + ps_count * jobs.ps[row, r]
            fits = fits and (needed <= 0 or needed <= free[server, r])
        level_limit = target
        if fits:
            for r in range(free.shape[1]):
                free[server, r] -= workers * jobs.worker[row, r] + ps_count * jobs.ps[row, r]
            placements.workers[entry] += workers
            placements.ps[entry] += ps_count
            log.level[row] = target
            level_limit = jobs.levels[row]
        _push_colocated_step(heap, jobs, row, job_utility[n], n, level_limit, weights, log)


@inlined
def _push_colocated_step(
    heap: list[tuple[float, int, int]],
    jobs: JobArrays,
    row: int,
    job_utility: float,
    n: int,
    level_limit: int,
    weights: StepWeights,
    log: PackingLog,
) -> None:
    """Push the best step up of a co-located job below a level, if it adds progress."""
    current_level = log.level[row]
    value, target = best_step(jobs, row, current_level, current_level + 1, level_limit, weights)
    if target >= 0:
        heapq.heappush(heap, (-value * job_utility / jobs.remaining[row], n, target))


@kernel
def place_paused_jobs(
    free: Integers,
    hosts_workers: Flags,
    hosts_ps: Flags,
    jobs: JobArrays,
    rows: Integers,
    job_utility: Floats,
    weights: StepWeights,
    placements: Placements,
    log: PackingLog,
) -> Placements:
    """Place paused jobs on the remaining capacity of servers, the best steps first.

    `next_slot.allocate_spare` assumes that servers are packed as in plans. Jobs that keep their
    placement leave less capacity on some servers, and more on others.

    ``rows`` (jobs,) may run in the slot, and ``job_utility`` (jobs,) is that of completing each.
    Placements are subtracted from ``free`` (servers, resources), as `scale_up_colocated` left it,
    and levels are written to ``log``. Returns all placements; the same object if no job fits.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        if log.level[rows[n]] < 0:
            level_limit = jobs.levels[rows[n]]
            push_step(heap, jobs, rows[n], job_utility[n], n, level_limit, weights, log)
    if len(heap) == 0:
        return placements
    groups = group_servers(free, hosts_workers, hosts_ps)
    lists = _with_capacity(_empty_lists(len(placements.first)), len(free))
    placed_any = False
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        if best_fit_group(groups, WORKER_ROLE, jobs.worker[row], ONE)[0] < 0:
            continue
        used = lists.used[0]
        lists = _with_capacity(lists, used + 2 * len(free))
        if _place_job(free, groups, jobs, row, target, lists):
            log.level[row] = target
            placed_any = True
        else:
            lists.head[row], lists.used[0] = -1, used
            push_step(heap, jobs, row, job_utility[n], n, target, weights, log)
    return _concatenate(placements, to_placements(lists)) if placed_any else placements


@inlined
def _place_job(
    free: Integers,
    groups: ServerGroups,
    jobs: JobArrays,
    row: int,
    level: int,
    lists: PlacementLists,
) -> bool:
    """Place a job at a level; on failure nothing changes.

    Workers come first, or parameter servers if they don't fit after the workers.
    """
    if level >= jobs.spread_levels[row]:
        return place_colocated(free, groups, jobs, row, level, lists)
    workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    worker, ps = jobs.worker[row], jobs.ps[row]
    if place_spread(free, groups, WORKER_ROLE, worker, workers, row, lists) and place_spread(
        free, groups, PS_ROLE, ps, ps_count, row, lists
    ):
        return True
    release_job(free, groups, worker, ps, row, lists)
    if ps_count == 0:
        return False
    if place_spread(free, groups, PS_ROLE, ps, ps_count, row, lists) and place_spread(
        free, groups, WORKER_ROLE, worker, workers, row, lists
    ):
        return True
    release_job(free, groups, worker, ps, row, lists)
    return False


@inlined
def _empty_lists(rows: int) -> PlacementLists:
    """Return empty lists without capacity."""
    return PlacementLists(
        np.full(rows, -1),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.zeros(1, np.int64),
    )


@kernel
def _with_capacity(lists: PlacementLists, entries: int) -> PlacementLists:
    """Return lists with capacity for at least ``entries`` entries."""
    if len(lists.next) >= entries:
        return lists
    capacity = max(entries, 2 * len(lists.next))
    return PlacementLists(
        lists.head,
        _longer(lists.next, capacity),
        _longer(lists.server, capacity),
        _longer(lists.workers, capacity),
        _longer(lists.ps, capacity),
        lists.used,
    )


@inlined
def _longer(column: Integers, capacity: int) -> Integers:
    longer = np.empty(capacity, np.int64)
    copy_into(longer, column)
    return longer


@inlined
def _concatenate(placements: Placements, added: Placements) -> Placements:
    """Return the union of two placements; a row has entries in at most one of them."""
    first, size = placements.first.copy(), placements.size.copy()
    for row in range(len(first)):
        if added.size[row] > 0:
            first[row] = len(placements.server) + added.first[row]
            size[row] = added.size[row]
    return Placements(
        first,
        size,
        np.concatenate((placements.server, added.server)),
        np.concatenate((placements.workers, added.workers)),
        np.concatenate((placements.ps, added.ps)),
    )

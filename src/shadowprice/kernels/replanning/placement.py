"""Placement of levels, which were packed by server group, on individual servers.

A job uses few of all servers. So placements are lists of entries, and servers with equal free
capacity are handled as one group: no step visits every server for every job.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import allocation_free, inlined, kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.replanning.next_slot import StepWeights, push_step
from shadowprice.kernels.replanning.plans import (
    JobArrays,
    PackingLog,
    colocated_role,
    write_colocated_demand,
)
from shadowprice.kernels.replanning.timeline import ONE, PS_ROLE, WORKER_ROLE, best_fit_group


class ServerGroups(NamedTuple):
    """Servers grouped by free capacity; arrays without a shape are (capacity,), by group."""

    server_free: Integers  # free capacity of each server, shape (servers, resources)
    free: Integers  # free capacity of each server of a group, shape (capacity, resources)
    role: Integers  # role of its servers, as in `Timeline`
    size: Integers  # number of its servers; an empty group is reused
    first: Integers  # its lowest server, or a lower number from which a search finds it
    group_of: Integers  # group of each server, -1 for one without a role, shape (servers,)
    used: Integers  # number of groups, shape (1,)


@inlined
def _best_fit(groups: ServerGroups, role: int, demand: Integers, remaining: int) -> tuple[int, int]:
    """Return `timeline.best_fit_group` for groups of servers."""
    return best_fit_group(
        groups.used[0], groups.free, groups.role, groups.size, role, demand, remaining
    )


@inlined
def _lowest_server(groups: ServerGroups, g: int) -> int:
    server = groups.first[g]
    while groups.group_of[server] != g:
        server += 1
    groups.first[g] = server  # the next search starts here
    return int(server)


@allocation_free
def update_free(groups: ServerGroups, server: int, demand: Integers, count: int) -> None:
    """Add demands to a server's free capacity, and move it to the matching group."""
    if count == 0:
        return
    g = groups.group_of[server]
    groups.size[g] -= 1
    for r in range(len(demand)):
        groups.server_free[server, r] += count * demand[r]
    g = _find_or_add_group(groups, groups.server_free[server], groups.role[g])
    groups.group_of[server] = g
    groups.size[g] += 1
    groups.first[g] = min(groups.first[g], server)


@inlined
def _find_or_add_group(groups: ServerGroups, free: Integers, role: int) -> int:
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
    groups.first[vacant] = len(groups.group_of)
    return vacant


@inlined
def _equal(first: Integers, second: Integers) -> bool:
    same = True
    for r in range(len(first)):
        same = same and first[r] == second[r]
    return same


@kernel
def group_servers(free: Integers, roles: Integers) -> ServerGroups:
    """Group servers by free capacity and role; those with role 0 host nothing."""
    servers, resources = free.shape
    capacity = servers + 1
    groups = ServerGroups(
        free,
        np.zeros((capacity, resources), np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.full(servers, -1),
        np.zeros(1, np.int64),
    )
    buckets = 2 * servers + 1
    table = np.full(buckets, -1)  # hash table of groups with open addressing
    for s in range(servers):
        role = roles[s]
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
            groups.first[g] = s
        groups.group_of[s] = g
        groups.size[g] += 1
    return groups


class Placements(NamedTuple):
    """Placements of jobs, as entries of one server each.

    While placements are computed, a row has space for more entries, its entries are in any order,
    and some may be empty.
    """

    first: Integers  # first entry of a row
    size: Integers  # number of a row's entries
    server: Integers  # ascending in a row
    workers: Integers
    ps: Integers

    @classmethod
    def empty(cls, rows: int) -> Placements:
        """Return no placement of any row."""
        none = np.zeros(0, np.int64)
        return cls(np.zeros(rows, np.int64), np.zeros(rows, np.int64), none, none, none)

    def of_row(self, row: int) -> tuple[Integers, Integers, Integers]:
        """Return the servers of a row, and its workers and PS on each."""
        part = slice(int(self.first[row]), int(self.first[row] + self.size[row]))
        return self.server[part], self.workers[part], self.ps[part]

    def replaced(self, row: int, servers: Integers, workers: Integers, ps: Integers) -> Placements:
        """Give a row other entries; return the result, which replaces this object."""
        self.first[row], self.size[row] = len(self.server), len(servers)
        return self._replace(
            server=np.append(self.server, servers),
            workers=np.append(self.workers, workers),
            ps=np.append(self.ps, ps),
        )


@inlined
def _new_entries(space: Integers) -> Placements:
    """Return placements without entries, with ``space`` (rows,) for new entries."""
    end = np.cumsum(space)
    size = end[-1] if len(space) > 0 else 0
    return Placements(
        end - space,
        np.zeros(len(space), np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
    )


@allocation_free
def find_or_add_entry(entries: Placements, row: int, server: int, is_new: bool) -> int:
    """Return a row's entry of a server; add an empty one if there is none.

    ``is_new`` skips the search: the caller knows that the row isn't on the server.
    """
    end = entries.first[row] + entries.size[row]
    if not is_new:
        for entry in range(entries.first[row], end):
            if entries.server[entry] == server:
                return int(entry)
    entries.server[end] = server
    entries.workers[end] = 0
    entries.ps[end] = 0
    entries.size[row] += 1
    return int(end)


@kernel
def to_placements(entries: Placements) -> Placements:
    """Return the placements of all entries that aren't empty."""
    rows, used = len(entries.first), entries.size.sum()
    first, size = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    server, workers = np.empty(used, np.int64), np.empty(used, np.int64)
    ps = np.empty(used, np.int64)
    end = 0
    for row in range(rows):
        first[row] = end
        for entry in range(entries.first[row], entries.first[row] + entries.size[row]):
            if entries.workers[entry] == 0 and entries.ps[entry] == 0:
                continue
            # Sort by insertion: the newest entry mostly has the highest server.
            position = end
            while position > first[row] and server[position - 1] > entries.server[entry]:
                server[position] = server[position - 1]
                workers[position] = workers[position - 1]
                ps[position] = ps[position - 1]
                position -= 1
            server[position] = entries.server[entry]
            workers[position] = entries.workers[entry]
            ps[position] = entries.ps[entry]
            end += 1
        size[row] = end - first[row]
    return Placements(first, size, server[:end].copy(), workers[:end].copy(), ps[:end].copy())


@allocation_free
def place_spread(
    groups: ServerGroups, role: int, demand: Integers, count: int, row: int, entries: Placements
) -> bool:
    """Place several of a job's demands on servers, by the rule of `timeline.pack`."""
    remaining = count
    # The loop chooses each server once, so search only if the job has entries from before.
    is_new = entries.size[row] == 0
    while remaining > 0:
        best, fit_count = _best_fit(groups, role, demand, remaining)
        if best < 0:
            return False
        server = _lowest_server(groups, best)
        placed = min(fit_count, remaining)
        entry = find_or_add_entry(entries, row, server, is_new)
        if role == WORKER_ROLE:
            entries.workers[entry] += placed
        else:
            entries.ps[entry] += placed
        update_free(groups, server, demand, -placed)
        remaining -= placed
    return True


@kernel
def place_colocated(
    groups: ServerGroups, jobs: JobArrays, row: int, level: int, entries: Placements
) -> bool:
    """Place a co-located level on one server, by the rule of `timeline.pack`."""
    demand = np.empty(jobs.worker.shape[1], np.int64)
    write_colocated_demand(jobs, row, level, demand)
    best, _ = _best_fit(groups, colocated_role(jobs, row), demand, ONE)
    if best < 0:
        return False
    server = _lowest_server(groups, best)
    entry = find_or_add_entry(entries, row, server, entries.size[row] == 0)
    entries.workers[entry] = jobs.worker_counts[row, level]
    entries.ps[entry] = jobs.ps_counts[row, level]
    update_free(groups, server, demand, -ONE)
    return True


@allocation_free
def release_job(groups: ServerGroups, jobs: JobArrays, row: int, entries: Placements) -> None:
    """Release all entries of a job."""
    for entry in range(entries.first[row], entries.first[row] + entries.size[row]):
        update_free(groups, entries.server[entry], jobs.worker[row], entries.workers[entry])
        update_free(groups, entries.server[entry], jobs.ps[row], entries.ps[entry])
        entries.workers[entry] = 0
        entries.ps[entry] = 0


@kernel
def place_packed_jobs(
    free: Integers,
    roles: Integers,
    jobs: JobArrays,
    log: PackingLog,
    current: Placements,
    pinned: Placements,
    pinned_level: Integers,
    keep_servers: bool,
) -> tuple[bool, Placements]:
    """Place the levels that were packed by groups on servers, in the order of the log.

    Returns whether everything fits, and the placements, which are subtracted from ``free``
    (servers, resources). The log's levels are added to the placements in ``pinned``;
    ``pinned_level`` (rows,) is -1 for jobs that may move.

    If ``keep_servers`` is True, jobs first keep their current servers. The placements are invalid
    if not everything fits.

    If it is False, everything is packed by the rules of the timeline, and fits as it did there. A
    level that doesn't fit, because the timeline ran out of groups, is dropped with all its entries;
    a pinned job falls back to its pinned level. So the placements are always valid.
    """
    servers, rows = len(free), len(current.first)
    # Placing one number of a demand uses each server at most once.
    space = current.size + pinned.size
    for n in range(log.used[0]):
        space[log.row[n]] += min(log.workers[n], servers) + min(log.ps[n], servers)
    for row in range(rows):
        level = log.level[row]
        if level >= 0:
            space[row] += min(jobs.worker_counts[row, level], servers)
            space[row] += min(jobs.ps_counts[row, level], servers)
    entries = _new_entries(space)
    for row in range(rows):
        if pinned_level[row] >= 0:
            for n in range(pinned.first[row], pinned.first[row] + pinned.size[row]):
                _copy_entry(entries, row, pinned, n)
                server, workers, ps = pinned.server[n], pinned.workers[n], pinned.ps[n]
                for r in range(free.shape[1]):
                    free[server, r] -= workers * jobs.worker[row, r] + ps * jobs.ps[row, r]
    if keep_servers:
        complete = _place_keeping_servers(free, roles, jobs, log, current, entries)
    else:
        complete = _place_as_packed(free, roles, jobs, log, pinned, pinned_level, entries)
    return complete, to_placements(entries)


@inlined
def _copy_entry(entries: Placements, row: int, placements: Placements, n: int) -> None:
    """Add an entry of a placement, in which each server occurs once."""
    entry = find_or_add_entry(entries, row, placements.server[n], True)
    entries.workers[entry] = placements.workers[n]
    entries.ps[entry] = placements.ps[n]


@kernel
def _place_keeping_servers(
    free: Integers,
    roles: Integers,
    jobs: JobArrays,
    log: PackingLog,
    current: Placements,
    entries: Placements,
) -> bool:
    """Place jobs first on their current servers, then the rest; stop if a job doesn't fit."""
    rows = len(current.first)
    is_logged = np.zeros(rows, np.bool_)
    for log_entry in range(log.used[0]):
        row = log.row[log_entry]
        if not is_logged[row]:
            is_logged[row] = True
            if log.level[row] >= jobs.spread_levels[row]:
                _keep_colocated(free, roles, jobs, row, log.level[row], current, entries)
            else:
                _keep_spread(free, jobs, row, log.level[row], current, entries)
    groups = group_servers(free, roles)
    for row in range(rows):
        if not is_logged[row]:
            continue
        level = log.level[row]
        if level >= jobs.spread_levels[row]:
            if entries.size[row] == 0 and not place_colocated(groups, jobs, row, level, entries):
                return False
            continue
        missing, missing_ps = _missing_processes(jobs, row, level, entries)
        if not place_spread(groups, WORKER_ROLE, jobs.worker[row], missing, row, entries):
            return False
        if not place_spread(groups, PS_ROLE, jobs.ps[row], missing_ps, row, entries):
            return False
    return True


@inlined
def _missing_processes(
    jobs: JobArrays, row: int, level: int, entries: Placements
) -> tuple[int, int]:
    """Return the workers and parameter servers of a level that aren't placed yet."""
    missing, missing_ps = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    for entry in range(entries.first[row], entries.first[row] + entries.size[row]):
        missing -= entries.workers[entry]
        missing_ps -= entries.ps[entry]
    return missing, missing_ps


@kernel
def _place_as_packed(
    free: Integers,
    roles: Integers,
    jobs: JobArrays,
    log: PackingLog,
    pinned: Placements,
    pinned_level: Integers,
    entries: Placements,
) -> bool:
    """Place entries of the log by the rules of the timeline; drop levels that don't fit."""
    complete = True
    groups = group_servers(free, roles)
    is_dropped = np.zeros(len(log.level), np.bool_)
    for log_entry in range(log.used[0]):
        row = log.row[log_entry]
        if log.level[row] < 0 or is_dropped[row]:
            continue
        worker, ps = jobs.worker[row], jobs.ps[row]
        if log.level[row] >= jobs.spread_levels[row]:
            fits = place_colocated(groups, jobs, row, log.level[row], entries)
        else:
            fits = place_spread(
                groups, WORKER_ROLE, worker, log.workers[log_entry], row, entries
            ) and place_spread(groups, PS_ROLE, ps, log.ps[log_entry], row, entries)
        if fits:
            continue
        complete = False
        is_dropped[row] = True
        release_job(groups, jobs, row, entries)
        log.level[row] = -1
        if pinned_level[row] >= 0:
            log.level[row] = pinned_level[row]
            for n in range(pinned.first[row], pinned.first[row] + pinned.size[row]):
                entry = find_or_add_entry(entries, row, pinned.server[n], False)
                entries.workers[entry] = pinned.workers[n]
                entries.ps[entry] = pinned.ps[n]
                update_free(groups, pinned.server[n], worker, -pinned.workers[n])
                update_free(groups, pinned.server[n], ps, -pinned.ps[n])
    return complete


@kernel
def compare_placements(rows: Integers, current: Placements, new: Placements) -> Integers:
    """Return 0 for equal placements, 1 if the new one has less, 2 if it has more, 3 if both."""
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
def _keep_spread(
    free: Integers, jobs: JobArrays, row: int, level: int, current: Placements, entries: Placements
) -> None:
    """Keep a level's processes on their servers; excess ones leave servers with the fewest.

    Before that, processes are released if others, such as bags of tasks, use their capacity now.
    """
    start, end = current.first[row], current.first[row] + current.size[row]
    workers, ps = current.workers[start:end].copy(), current.ps[start:end].copy()
    for entry in range(entries.first[row], entries.first[row] + entries.size[row]):
        # Pinned processes are placed already.
        for n in range(end - start):
            if current.server[start + n] == entries.server[entry]:
                workers[n] = max(0, workers[n] - entries.workers[entry])
                ps[n] = max(0, ps[n] - entries.ps[entry])
    for n in range(end - start):
        free_on_server = free[current.server[start + n]]
        for r in range(free.shape[1]):
            worker_demand, ps_demand = jobs.worker[row, r], jobs.ps[row, r]
            if worker_demand > 0 and workers[n] * worker_demand > free_on_server[r]:
                workers[n] = max(0, free_on_server[r]) // worker_demand
            if ps_demand > 0 and workers[n] * worker_demand + ps[n] * ps_demand > free_on_server[r]:
                ps[n] = max(0, free_on_server[r] - workers[n] * worker_demand) // ps_demand
    missing, missing_ps = _missing_processes(jobs, row, level, entries)
    workers = reduce_to_sum(workers, missing)
    ps = reduce_to_sum(ps, missing_ps)
    is_new = entries.size[row] == 0
    for n in range(end - start):
        if workers[n] == 0 and ps[n] == 0:
            continue
        server = current.server[start + n]
        entry = find_or_add_entry(entries, row, server, is_new)
        entries.workers[entry] += workers[n]
        entries.ps[entry] += ps[n]
        for r in range(free.shape[1]):
            free[server, r] -= workers[n] * jobs.worker[row, r] + ps[n] * jobs.ps[row, r]


@inlined
def _keep_colocated(
    free: Integers,
    roles: Integers,
    jobs: JobArrays,
    row: int,
    level: int,
    current: Placements,
    entries: Placements,
) -> None:
    """Place a co-located level on the server with most of the job's workers, if it fits there."""
    demand, role = np.empty(jobs.worker.shape[1], np.int64), colocated_role(jobs, row)
    write_colocated_demand(jobs, row, level, demand)
    best = -1
    for n in range(current.first[row], current.first[row] + current.size[row]):
        server = current.server[n]
        fits = roles[server] & role == role
        for r in range(len(demand)):
            fits = fits and demand[r] <= free[server, r]
        if fits and (best < 0 or current.workers[n] > current.workers[best]):
            best = n
    if best >= 0:
        server = current.server[best]
        entry = find_or_add_entry(entries, row, server, entries.size[row] == 0)
        entries.workers[entry] = jobs.worker_counts[row, level]
        entries.ps[entry] = jobs.ps_counts[row, level]
        for r in range(len(demand)):
            free[server, r] -= demand[r]


@kernel
def reduce_to_sum(counts: Integers, limit: int) -> Integers:
    """Reduce counts in place to a sum of at most ``limit``; the smallest become 0 first."""
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
    weights: StepWeights,
    placements: Placements,
    log: PackingLog,
) -> None:
    """Scale co-located jobs up into the free capacity of their servers, one best step at a time.

    A step is weighed as in `next_slot.allocate_spare`. ``rows`` (jobs,) are co-located jobs that
    run in the slot. ``free`` (servers, resources), ``placements`` and ``log`` are updated.
    """
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        push_step(heap, jobs, rows, n, jobs.levels[rows[n]], weights, log)
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
        push_step(heap, jobs, rows, n, level_limit, weights, log)


@kernel
def place_paused_jobs(
    free: Integers,
    roles: Integers,
    jobs: JobArrays,
    rows: Integers,
    weights: StepWeights,
    placements: Placements,
    log: PackingLog,
) -> Placements:
    """Place paused jobs on the remaining capacity of servers, the best steps first.

    `next_slot.allocate_spare` assumes that servers are packed as in plans. Jobs that keep their
    placement leave less capacity on some servers, and more on others. So more jobs may fit.
    ``free`` (servers, resources) and ``log`` are updated. Returns the placements of all rows.
    """
    space = placements.size.copy()
    heap = [(0.0, -1, -1)]
    heap.pop()
    for n in range(len(rows)):
        row = rows[n]
        if log.level[row] < 0:
            push_step(heap, jobs, rows, n, jobs.levels[row], weights, log)
            widest = jobs.spread_levels[row] - 1
            processes = jobs.worker_counts[row, widest] + jobs.ps_counts[row, widest]
            space[row] = min(2 * processes, len(free))  # `_place_job` tries two orders
    if len(heap) == 0:
        return placements
    groups = group_servers(free, roles)
    entries = _new_entries(space)
    for row in range(len(space)):
        for n in range(placements.first[row], placements.first[row] + placements.size[row]):
            _copy_entry(entries, row, placements, n)
    while len(heap) > 0:
        _, n, target = heapq.heappop(heap)
        row = rows[n]
        if _best_fit(groups, WORKER_ROLE, jobs.worker[row], ONE)[0] < 0:
            continue  # not even one worker fits, so no smaller step does
        if _place_job(groups, jobs, row, target, entries):
            log.level[row] = target
        else:
            entries.size[row] = 0
            push_step(heap, jobs, rows, n, target, weights, log)
    return to_placements(entries)


@inlined
def _place_job(
    groups: ServerGroups, jobs: JobArrays, row: int, level: int, entries: Placements
) -> bool:
    """Place a job at a level; on failure nothing changes."""
    if level >= jobs.spread_levels[row]:
        return place_colocated(groups, jobs, row, level, entries)
    workers, ps_count = jobs.worker_counts[row, level], jobs.ps_counts[row, level]
    worker, ps = jobs.worker[row], jobs.ps[row]
    if place_spread(groups, WORKER_ROLE, worker, workers, row, entries) and place_spread(
        groups, PS_ROLE, ps, ps_count, row, entries
    ):
        return True
    release_job(groups, jobs, row, entries)
    if ps_count == 0:
        return False
    if place_spread(groups, PS_ROLE, ps, ps_count, row, entries) and place_spread(
        groups, WORKER_ROLE, worker, workers, row, entries
    ):
        return True
    release_job(groups, jobs, row, entries)
    return False

"""Cost of a worker count in each slot, and the servers on which the workers are placed.

A *position* is free capacity for one worker (or parameter server) on a server. In a slot, y workers
cost least on the y cheapest positions, and their z parameter servers on the z cheapest positions of
their own pool (OASiS Algorithm 2, lines 18-27). So the cost depends only on y. Servers come in
groups of equal servers (`groups`). Only the cheapest groups that together have positions for the
largest y matter: a heap keeps them while a loop scans the groups. The positions of a group are
counted only if it is cheap enough for the heap.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.heap import lift, sink
from shadowprice.kernels.jit import allocation_free, constant, inlined, kernel
from shadowprice.kernels.slots.groups import Groups
from shadowprice.kernels.slots.rooms import fits_on

WORKERS, PS = constant(2), constant(3)
"""Columns of the counts in the entries of `expand_choices`."""


class Scratch(NamedTuple):
    """Scratch space of one slot: the first four arrays by group, the others by used server."""

    unit_cost: Floats  # cost of one position in each group
    positions: Integers  # number of positions of each chosen group, on all its servers
    chosen: Integers  # the chosen groups
    quota: Integers  # processes that each group still gets
    server: Integers  # used servers, by their number in the pool
    processes: Integers  # processes on each of them
    heap: Integers  # used servers, the highest on top; keys are their numbers
    key: Floats


@inlined
def _scratch(groups: int, servers: int) -> Scratch:
    return Scratch(
        np.empty(groups), np.empty(groups, np.int64), np.empty(groups, np.int64),
        np.empty(groups, np.int64), np.empty(servers, np.int64), np.empty(servers, np.int64),
        np.empty(servers, np.int64), np.empty(servers),
    )  # fmt: skip


@allocation_free
def cheapest_positions(
    pool: Groups, row: int, demand: Integers, share: Floats, limit: int, scratch: Scratch
) -> int:
    """Find the groups with a slot's cheapest positions, the cheapest first; return their number.

    Together they have at least ``limit`` positions, or all that exist; on ties the group with the
    lowest server comes first. ``demand`` and ``share`` (resources,) are the needs of one worker (or
    parameter server), in amounts and as shares, to which prices refer. The result is in
    ``scratch``: ``chosen``, and the ``unit_cost`` and ``positions`` of each chosen group.
    """
    unit_cost, positions, chosen = scratch.unit_cost, scratch.positions, scratch.chosen
    if limit <= 0:
        return 0
    groups, price, free = pool.groups[row], pool.price[row], pool.free[row]
    count, first = pool.members[row], pool.first[row]
    resources = len(demand)
    unit_cost[:groups] = 0.0
    for r in range(resources):
        if share[r] > 0.0:  # 0 times an infinite price is NaN
            resource_share = share[r]
            prices = price[r]
            for g in range(groups):
                unit_cost[g] += resource_share * prices[g]
    size = 0
    total = 0
    max_cost = np.inf
    last = -1  # lowest server of the most expensive group, with the price `max_cost`
    for g in range(groups):
        if (
            unit_cost[g] > max_cost
            or (unit_cost[g] == max_cost and first[g] > last)
            or count[g] == 0
        ):
            continue
        fit_count = limit
        for r in range(resources):
            if demand[r] > 0:
                fit_count = max(0, min(fit_count, free[r, g] // demand[r]))
        if fit_count == 0 or unit_cost[g] == np.inf:
            continue
        positions[g] = limit
        if count[g] * fit_count < limit:
            positions[g] = count[g] * fit_count
        total += positions[g]
        chosen[size] = g
        lift(chosen, size, unit_cost, first)
        size += 1
        while total - positions[chosen[0]] >= limit:
            total -= positions[chosen[0]]
            size -= 1
            chosen[0] = chosen[size]
            sink(chosen, size, unit_cost, first)
        if total >= limit:
            max_cost = unit_cost[chosen[0]]
            last = first[chosen[0]]
    # Popping the most expensive group first fills the result from the end.
    for position in range(size - 1, 0, -1):
        top = chosen[0]
        chosen[0] = chosen[position]
        sink(chosen, position, unit_cost, first)
        chosen[position] = top
    return size


@allocation_free
def _running_cost(
    pool: Groups, row: int, demand: Integers, share: Floats, total: Floats, scratch: Scratch
) -> None:
    """Write the cost of a row's n cheapest positions to ``total[n]``; ``inf`` if fewer exist."""
    limit = len(total) - 1
    size = cheapest_positions(pool, row, demand, share, limit, scratch)
    total[0] = 0.0
    n = 0
    for i in range(size):
        g = scratch.chosen[i]
        for _ in range(min(scratch.positions[g], limit - n)):
            total[n + 1] = total[n] + scratch.unit_cost[g]
            n += 1
    total[n + 1 :] = np.inf


@kernel
def slot_costs(
    worker_pool: Groups,
    worker_demand: Integers,
    worker_share: Floats,
    ps_pool: Groups,
    ps_demand: Integers,
    ps_share: Floats,
    workers: Integers,
    ps_counts: Integers,
) -> Floats:
    """Price each worker count, with its parameter servers, in every slot.

    Parameters
    ----------
    worker_pool, ps_pool : Groups
        The two pools over the same T slots; no server is in both. Without parameter servers, pass
        the worker pool twice.
    worker_demand, ps_demand : int64[R]
        Demand of one worker, and of one parameter server.
    worker_share, ps_share : float64[R]
        The same as shares of the largest capacity, to which prices refer.
    workers, ps_counts : int64[C]
        Worker counts, in any order, and parameter servers of each (0 for all-reduce training).

    Returns
    -------
    float64[T, C]
        Least cost; ``inf`` if they don't fit.
    """
    slots = len(worker_pool.row_of)
    choices = len(workers)
    max_workers = 0
    max_ps = 0
    for c in range(choices):
        max_workers = max(max_workers, workers[c])
        max_ps = max(max_ps, ps_counts[c])
    widest = max(worker_pool.members.shape[1], ps_pool.members.shape[1])
    scratch = _scratch(widest, 0)
    worker_total = np.empty(max_workers + 1)
    ps_total = np.empty(max_ps + 1)
    cost = np.empty((slots, choices))
    worker_row = -1
    ps_row = -1
    for t in range(slots):
        row = worker_pool.row_of[t]
        other = ps_pool.row_of[t]
        # Successive slots often share their row, and so their costs.
        if t > 0 and row == worker_row and (other == ps_row or max_ps == 0):
            for c in range(choices):
                cost[t, c] = cost[t - 1, c]
            continue
        if row != worker_row:
            _running_cost(worker_pool, row, worker_demand, worker_share, worker_total, scratch)
            worker_row = row
        if other != ps_row and max_ps > 0:
            _running_cost(ps_pool, other, ps_demand, ps_share, ps_total, scratch)
        ps_row = other
        for c in range(choices):
            cost[t, c] = worker_total[workers[c]]
            if ps_counts[c] > 0:
                cost[t, c] += ps_total[ps_counts[c]]
    return cost


@allocation_free
def _take(
    pool: Groups, row: int, g: int, s: int, demand: Integers, scratch: Scratch, n: int
) -> int:
    """Fill a server of a group, up to the group's quota; return its number of processes.

    ``n`` is the number of servers used before.
    """
    taken = fits_on(pool.free[row, :, g], demand, scratch.quota[g])
    scratch.quota[g] -= taken
    scratch.server[n] = s
    scratch.processes[n] = taken
    scratch.key[n] = s
    scratch.heap[n] = n
    lift(scratch.heap, n, scratch.key, scratch.server)
    return taken


@inlined
def _write_entries(
    pool: Groups,
    slot: int,
    demand: Integers,
    share: Floats,
    count: int,
    numbers: Integers,
    column: int,
    entry: Integers,
    n: int,
    scratch: Scratch,
) -> int:
    """Write the entries of ``count`` demands on a slot's cheapest positions; return their end.

    ``numbers`` (S,) are the numbers of the pool's servers in the cluster. Entries start with row
    ``n`` of ``entry``, with counts in ``column``.
    """
    row = pool.row_of[slot]
    size = cheapest_positions(pool, row, demand, share, count, scratch)
    chosen, quota = scratch.chosen, scratch.quota
    quota[: pool.groups[row]] = 0
    remaining = count
    reserved = 0  # processes to place on servers that have reservations
    for i in range(size):
        g = chosen[i]
        quota[g] = min(scratch.positions[g], remaining)
        remaining -= quota[g]
        if pool.unreserved_group[row, pool.kind[row, g]] != g:
            reserved += quota[g]
    count = 0
    position = 0
    while reserved > 0:
        g = pool.reserved_group[row, position]
        if quota[g] > 0:
            s = pool.reserved_server[row, position]
            reserved -= _take(pool, row, g, s, demand, scratch, count)
            count += 1
        position += 1
    # Then servers without reservations: members of the kind that the row doesn't list.
    kinds = pool.kinds
    for i in range(size):
        g = chosen[i]
        k = pool.kind[row, g]
        if pool.unreserved_group[row, k] != g:
            continue
        position = 0
        for m in range(kinds.start[k], kinds.start[k + 1]):
            if quota[g] == 0:
                break
            s = kinds.member[m]
            while position < pool.reserved[row] and pool.reserved_server[row, position] < s:
                position += 1
            if position == pool.reserved[row] or pool.reserved_server[row, position] != s:
                _take(pool, row, g, s, demand, scratch, count)
                count += 1
    # Popping the highest server first fills the entries from the end.
    for last in range(count - 1, -1, -1):
        top = scratch.heap[0]
        scratch.heap[0] = scratch.heap[last]
        sink(scratch.heap, last, scratch.key, scratch.server)
        entry[n + last] = 0
        entry[n + last, 0] = slot
        entry[n + last, 1] = numbers[scratch.server[top]]
        entry[n + last, column] = scratch.processes[top]
    return n + count


@kernel
def expand_choices(
    worker_pool: Groups,
    worker_demand: Integers,
    worker_share: Floats,
    worker_servers: Integers,
    ps_pool: Groups,
    ps_demand: Integers,
    ps_share: Floats,
    ps_servers: Integers,
    workers: Integers,
    ps_counts: Integers,
    choice: Integers,
) -> Integers:
    """Return the servers of the chosen worker counts and their parameter servers.

    The cheapest groups are filled first, and in a group one server after another from the lowest
    number: the placement whose cost `slot_costs` returns.

    Parameters
    ----------
    worker_pool, worker_demand, worker_share, ps_pool, ps_demand, ps_share
        As in `slot_costs`, unchanged since.
    worker_servers, ps_servers : int64[S]
        Number in the cluster of each server of the pools.
    workers, ps_counts : int64[C]
        As in `slot_costs`.
    choice : int64[T]
        Chosen entry of ``workers`` in each slot, -1 for none; its cost is finite.

    Returns
    -------
    int64[E, 4]
        Slot, server, workers, parameter servers: by slot, in each the servers for workers first,
        then in the order of their pool.
    """
    widest = max(worker_pool.members.shape[1], ps_pool.members.shape[1])
    size = 0
    max_servers = 0
    for t in range(len(choice)):
        if choice[t] >= 0:
            used_workers = min(workers[choice[t]], len(worker_servers))
            used_ps = min(ps_counts[choice[t]], len(ps_servers))
            size += used_workers + used_ps
            max_servers = max(max_servers, used_workers, used_ps)
    scratch = _scratch(widest, max_servers)
    entry = np.empty((size, 4), np.int64)
    n = 0
    for t in range(len(choice)):
        c = choice[t]
        if c < 0:
            continue
        n = _write_entries(
            worker_pool, t, worker_demand, worker_share, workers[c], worker_servers, WORKERS,
            entry, n, scratch,
        )  # fmt: skip
        n = _write_entries(
            ps_pool, t, ps_demand, ps_share, ps_counts[c], ps_servers, PS,
            entry, n, scratch,
        )  # fmt: skip
    return entry[:n]

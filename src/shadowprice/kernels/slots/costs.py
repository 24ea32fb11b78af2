"""Cost of a worker count in each slot, and the servers on which the workers are placed.

In a slot, y workers cost least on the y cheapest positions, and their z parameter servers on the z
cheapest positions of their own pool (OASiS Algorithm 2, lines 18-27). So the cost depends only on
y. Servers come in groups of equal servers (`groups`). Only the cheapest groups that together have
room for the largest y matter: a heap keeps them while it scans the groups. The number of positions
of a group is computed only if its price gets it into the heap.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.heap import lift, sink
from shadowprice.kernels.jit import allocation_free, constant, inlined, kernel
from shadowprice.kernels.slots.groups import Groups

WORKERS, PS = constant(2), constant(3)
"""Columns of the counts in the entries of `expand_choices`."""


@inlined
def count_fits(free: Integers, demand: Integers, limit: int) -> int:
    """Return how many times ``demand`` fits into ``free`` (both int64[R]), at most ``limit``."""
    fit_count = limit
    for r in range(len(demand)):
        if demand[r] > 0:
            fit_count = max(0, min(fit_count, free[r] // demand[r]))
    return fit_count


@inlined
def _costs_more(a: int, b: int, unit: Floats, first: Integers) -> bool:
    """Return whether a group comes after another: by cost, then by lowest server."""
    return bool(unit[a] > unit[b] or (unit[a] == unit[b] and first[a] > first[b]))


@inlined
def _lift_group(heap: Integers, place: int, unit: Floats, first: Integers) -> None:
    """Restore a heap of groups, the most expensive on top, after its last entry was added."""
    while place > 0:
        parent = (place - 1) // 2
        if not _costs_more(heap[place], heap[parent], unit, first):
            break
        heap[place], heap[parent] = heap[parent], heap[place]
        place = parent


@inlined
def _sink_group(heap: Integers, size: int, unit: Floats, first: Integers) -> None:
    """Restore a heap of ``size`` groups after its first entry changed."""
    place = 0
    entry = heap[0]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _costs_more(heap[child + 1], heap[child], unit, first):
            child += 1
        if not _costs_more(heap[child], entry, unit, first):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry


@allocation_free
def cheapest_positions(
    pool: Groups,
    row: int,
    demand: Integers,
    share: Floats,
    limit: int,
    unit_cost: Floats,
    positions: Integers,
    chosen: Integers,
) -> int:
    """Find the groups with a slot's cheapest positions, the cheapest first; return their number.

    They have ``limit`` positions, or all that exist; the group with the lowest server comes first
    on ties. ``demand`` and ``share`` (resources,) are the needs of one worker (or parameter
    server), in amounts and as shares, to which prices refer. Written, (groups,): ``unit_cost``,
    cost of one position in each group; ``positions``, those of each group that is returned (on all
    its servers, at most ``limit``); ``chosen``, the groups.
    """
    if limit <= 0:
        return 0
    groups, price, free = pool.groups[row], pool.price[row], pool.free[row]
    count, first = pool.members[row], pool.first[row]
    resources = len(demand)
    unit_cost[:groups] = 0.0
    for r in range(resources):
        if share[r] > 0.0:  # 0 times an infinite price is NaN
            part = share[r]
            prices = price[r]
            for g in range(groups):
                unit_cost[g] += part * prices[g]
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
        _lift_group(chosen, size, unit_cost, first)
        size += 1
        while total - positions[chosen[0]] >= limit:
            total -= positions[chosen[0]]
            size -= 1
            chosen[0] = chosen[size]
            _sink_group(chosen, size, unit_cost, first)
        if total >= limit:
            max_cost = unit_cost[chosen[0]]
            last = first[chosen[0]]
    # Popping the most expensive group first fills the result from the end.
    for place in range(size - 1, 0, -1):
        top = chosen[0]
        chosen[0] = chosen[place]
        _sink_group(chosen, place, unit_cost, first)
        chosen[place] = top
    return size


@allocation_free
def _running_cost(
    pool: Groups,
    row: int,
    demand: Integers,
    share: Floats,
    total: Floats,
    scratch: Floats,
    ints: Integers,
) -> None:
    """Write the cost of a row's n cheapest positions to ``total[n]``; ``inf`` if fewer exist."""
    limit = len(total) - 1
    size = cheapest_positions(pool, row, demand, share, limit, scratch, ints[0], ints[1])
    total[0] = 0.0
    n = 0
    for i in range(size):
        g = ints[1, i]
        for _ in range(min(ints[0, g], limit - n)):
            total[n + 1] = total[n] + scratch[g]
            n += 1
    total[n + 1 :] = np.inf


@kernel
def slot_costs(
    worker_pool: Groups,
    worker_demand: Integers,
    worker_share: Floats,
    server_pool: Groups,
    server_demand: Integers,
    server_share: Floats,
    workers: Integers,
    servers: Integers,
) -> Floats:
    """Price each worker count, with its parameter servers, in every slot.

    Parameters
    ----------
    worker_pool, server_pool : Groups
        The two pools over the same T slots; no server is in both. Without parameter servers, pass
        the worker pool twice.
    worker_demand, server_demand : int64[R]
        Demand of one worker, and of one parameter server.
    worker_share, server_share : float64[R]
        The same as shares of the largest capacity, to which prices refer.
    workers, servers : int64[C]
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
        max_ps = max(max_ps, servers[c])
    widest = max(worker_pool.members.shape[1], server_pool.members.shape[1])
    scratch = np.empty(widest)
    ints = np.empty((2, widest), np.int64)
    worker_total = np.empty(max_workers + 1)
    server_total = np.empty(max_ps + 1)
    cost = np.empty((slots, choices))
    worker_row = -1
    server_row = -1
    for t in range(slots):
        row = worker_pool.row_of[t]
        other = server_pool.row_of[t]
        # Slots in a row often share their state, and so their costs.
        if t > 0 and row == worker_row and (other == server_row or max_ps == 0):
            for c in range(choices):
                cost[t, c] = cost[t - 1, c]
            continue
        if row != worker_row:
            _running_cost(
                worker_pool, row, worker_demand, worker_share, worker_total, scratch, ints
            )
            worker_row = row
        if other != server_row and max_ps > 0:
            _running_cost(
                server_pool, other, server_demand, server_share, server_total, scratch, ints
            )
        server_row = other
        for c in range(choices):
            cost[t, c] = worker_total[workers[c]]
            if servers[c] > 0:
                cost[t, c] += server_total[servers[c]]
    return cost


class Filled(NamedTuple):
    """Servers that receive processes, and scratch space to sort them."""

    server: Integers  # position in the pool
    processes: Integers  # their number
    heap: Integers
    key: Floats


@allocation_free
def _take(
    pool: Groups, row: int, g: int, s: int, demand: Integers, quota: Integers, found: Filled, n: int
) -> int:
    """Fill a server of a group up to the group's quota; return the number of processes."""
    taken = count_fits(pool.free[row, :, g], demand, quota[g])
    quota[g] -= taken
    found.server[n] = s
    found.processes[n] = taken
    found.key[n] = s
    found.heap[n] = n
    lift(found.heap, n, found.key)
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
    scratch: Floats,
    ints: Integers,
    found: Filled,
) -> int:
    """Write the entries of ``count`` demands on a slot's cheapest positions; return their end.

    ``numbers`` (S,) are the servers' numbers in the cluster, ``column`` that of the counts in
    ``entry``, and ``n`` the first entry.
    """
    row = pool.row_of[slot]
    size = cheapest_positions(pool, row, demand, share, count, scratch, ints[0], ints[1])
    quota = ints[2]
    quota[: pool.groups[row]] = 0
    rest = count
    reserved = 0  # processes on servers that have reservations
    for i in range(size):
        g = ints[1, i]
        quota[g] = min(ints[0, g], rest)
        rest -= quota[g]
        if pool.unreserved_group[row, pool.kind[row, g]] != g:
            reserved += quota[g]
    count = 0
    place = 0
    while reserved > 0:
        g = pool.reserved_group[row, place]
        if quota[g] > 0:
            s = pool.reserved_server[row, place]
            reserved -= _take(pool, row, g, s, demand, quota, found, count)
            count += 1
        place += 1
    # Then the other servers: members of the kind that aren't among the reserved ones.
    kinds = pool.kinds
    for i in range(size):
        g = ints[1, i]
        k = pool.kind[row, g]
        if pool.unreserved_group[row, k] != g:
            continue
        place = 0
        for m in range(kinds.start[k], kinds.start[k + 1]):
            if quota[g] == 0:
                break
            s = kinds.member[m]
            while place < pool.reserved[row] and pool.reserved_server[row, place] < s:
                place += 1
            if place == pool.reserved[row] or pool.reserved_server[row, place] != s:
                _take(pool, row, g, s, demand, quota, found, count)
                count += 1
    # Popping the highest server first fills the entries from the end.
    for last in range(count - 1, -1, -1):
        top = found.heap[0]
        found.heap[0] = found.heap[last]
        sink(found.heap, last, found.key)
        entry[n + last] = 0
        entry[n + last, 0] = slot
        entry[n + last, 1] = numbers[found.server[top]]
        entry[n + last, column] = found.processes[top]
    return n + count


@kernel
def expand_choices(
    worker_pool: Groups,
    worker_demand: Integers,
    worker_share: Floats,
    worker_servers: Integers,
    server_pool: Groups,
    server_demand: Integers,
    server_share: Floats,
    server_servers: Integers,
    workers: Integers,
    servers: Integers,
    choice: Integers,
) -> Integers:
    """Return the servers of the chosen worker counts and their parameter servers.

    The cheapest groups are filled first, and in a group one server after another from the lowest
    number: the placement whose cost `slot_costs` returns.

    Parameters
    ----------
    worker_pool, worker_demand, worker_share, server_pool, server_demand, server_share
        As in `slot_costs`, unchanged since.
    worker_servers, server_servers : int64[S]
        Number in the cluster of each server of the pools.
    workers, servers : int64[C]
        As in `slot_costs`.
    choice : int64[T]
        Chosen entry of ``workers`` in each slot, -1 for none; its cost is finite.

    Returns
    -------
    int64[E, 4]
        Slot, server, workers, parameter servers: by slot, in each the servers for workers first, by
        position in their pool.
    """
    widest = max(worker_pool.members.shape[1], server_pool.members.shape[1])
    scratch = np.empty(widest)
    ints = np.empty((3, widest), np.int64)
    size = 0
    most = 0
    for t in range(len(choice)):
        if choice[t] >= 0:
            size += min(workers[choice[t]], len(worker_servers))
            size += min(servers[choice[t]], len(server_servers))
            most = max(most, min(workers[choice[t]], len(worker_servers)))
            most = max(most, min(servers[choice[t]], len(server_servers)))
    found = Filled(
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    )
    entry = np.empty((size, 4), np.int64)
    n = 0
    for t in range(len(choice)):
        c = choice[t]
        if c < 0:
            continue
        n = _write_entries(
            worker_pool, t, worker_demand, worker_share, workers[c], worker_servers, WORKERS,
            entry, n, scratch, ints, found,
        )  # fmt: skip
        n = _write_entries(
            server_pool, t, server_demand, server_share, servers[c], server_servers, PS,
            entry, n, scratch, ints, found,
        )  # fmt: skip
    return entry[:n]

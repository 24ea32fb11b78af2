"""Free capacity of servers slot by slot, for schedules that are placed and removed many times.

Free capacity is one array over slots, servers and resources, which these kernels update in place.
That is cheaper than groups of equal servers (`groups`) if schedules come and go often: a full
server costs one comparison, and the scan of servers ends as soon as everything fits.
"""

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers, copy_into
from shadowprice.kernels.jit import inlined, kernel


@kernel
def fits_on(free: Integers, demand: Integers, most: int) -> int:
    """Return how many times a demand fits on one server, at most ``most``."""
    for r in range(len(demand)):
        if demand[r] > free[r]:
            return 0
    fits = most
    for r in range(len(demand)):
        if demand[r] > 0:
            fits = min(fits, free[r] // demand[r])
    return fits


@inlined
def _room(free: Integers, members: Integers, demand: Integers, most: int) -> int:
    """Return how many times a demand fits on a pool in a slot, at most ``most``."""
    total = 0
    for s in members:
        total += fits_on(free[s], demand, most - total)
        if total >= most:
            return most
    return total


@kernel
def room_costs(
    free: Integers,
    first: int,
    worker_members: Integers,
    worker: Integers,
    worker_price: Floats,
    server_members: Integers,
    ps: Integers,
    server_price: Floats,
    workers: Integers,
    servers: Integers,
) -> Floats:
    """Return the cost of choices in slots (slots, choices), ``inf`` if they don't fit.

    ``free`` (horizon, servers, resources): free capacity. ``first``: the first slot;
    ``worker_price`` and ``server_price`` (slots,) give the number of slots. ``worker_members``,
    ``server_members``: servers of the two pools; no server is in both. ``workers``, ``servers``
    (choices,): workers of each choice, ascending, and its parameter servers.
    """
    slots, choices = len(worker_price), len(workers)
    cost = np.empty((slots, choices))
    most_servers = 0
    for c in range(choices):
        most_servers = max(most_servers, servers[c])
    for t in range(slots):
        row = free[first + t]
        room = _room(row, worker_members, worker, workers[choices - 1])
        beside = 0
        if most_servers > 0 and room >= workers[0]:
            beside = _room(row, server_members, ps, most_servers)
        for c in range(choices):
            if workers[c] <= room and servers[c] <= beside:
                cost[t, c] = workers[c] * worker_price[t] + servers[c] * server_price[t]
            else:
                cost[t, c] = np.inf
    return cost


@kernel
def _choose_servers(
    free: Integers,
    members: Integers,
    demand: Integers,
    count: int,
    before: Integers,
    room: Integers,
    taken: Integers,
) -> None:
    """Choose servers in a slot: those of the slot before, then the tightest."""
    for s in members:
        room[s] = fits_on(free[s], demand, count)
        kept = min(before[s], room[s], count)
        taken[s] = kept
        room[s] -= kept
        count -= kept
    while count > 0:
        best = -1
        for s in members:
            if room[s] > 0 and (best < 0 or room[s] < room[best]):
                best = s
        if best < 0:
            return
        more = min(room[best], count)
        taken[best] += more
        room[best] = 0
        count -= more


@kernel
def stand_in_slots(
    free: Integers,
    first: int,
    worker_members: Integers,
    worker: Integers,
    server_members: Integers,
    ps: Integers,
    workers: Integers,
    servers: Integers,
    choice: Integers,
) -> Integers:
    """Choose the servers of the chosen workers in each slot; free capacity doesn't change.

    ``choice`` (slots,) is the entry of ``workers``, which fits, or -1. Other parameters are as in
    `room_costs`. The result (entries, 4) has slot, server, workers and parameter servers, by slot
    and server.
    """
    count = free.shape[1]
    most = 0
    for t in range(len(choice)):
        if choice[t] >= 0:
            most += min(count, workers[choice[t]] + servers[choice[t]])
    entries = np.empty((most, 4), np.int64)
    room = np.zeros(count, np.int64)
    taken = np.zeros((2, count), np.int64)
    before = np.zeros((2, count), np.int64)
    used = 0
    for t in range(len(choice)):
        c = choice[t]
        if c < 0:
            continue
        taken[:] = 0
        _choose_servers(
            free[first + t], worker_members, worker, workers[c], before[0], room, taken[0]
        )
        if servers[c] > 0:
            _choose_servers(
                free[first + t], server_members, ps, servers[c], before[1], room, taken[1]
            )
        for s in range(count):
            if taken[0, s] > 0 or taken[1, s] > 0:
                entries[used, 0] = first + t
                entries[used, 1] = s
                entries[used, 2] = taken[0, s]
                entries[used, 3] = taken[1, s]
                used += 1
        copy_into(before[0], taken[0])
        copy_into(before[1], taken[1])
    return entries[:used].copy()


@kernel
def take_off(free: Integers, entries: Integers, worker: Integers, ps: Integers, times: int) -> bool:
    """Subtract the demand of entries from the free capacity, or (``times`` -1) add it.

    Returns False, and changes nothing, if the demand doesn't fit.
    """
    for n in range(len(entries)):
        row = free[entries[n, 0], entries[n, 1]]
        for r in range(len(worker)):
            need = entries[n, 2] * worker[r] + entries[n, 3] * ps[r]
            if need > 0 and times * need > row[r]:
                return False
    for n in range(len(entries)):
        row = free[entries[n, 0], entries[n, 1]]
        for r in range(len(worker)):
            row[r] -= times * (entries[n, 2] * worker[r] + entries[n, 3] * ps[r])
    return True

"""Free capacity of servers slot by slot, for schedules that are placed and removed many times.

Free capacity is one array over slots, servers and resources, which these kernels update in place.
If schedules come and go often, this array is cheaper than groups of equal servers (`groups`): a
full server costs one comparison, and the scan of servers ends as soon as everything fits.
"""

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers, copy_into
from shadowprice.kernels.jit import allocation_free, inlined, kernel


@allocation_free
def fits_on(free: Integers, demand: Integers, limit: int) -> int:
    """Return how many times a demand fits on one server, at most ``limit``."""
    # Most servers are full: compare before any division.
    for r in range(len(demand)):
        if demand[r] > free[r]:
            return 0
    fit_count = limit
    for r in range(len(demand)):
        if demand[r] > 0:
            fit_count = min(fit_count, free[r] // demand[r])
    return fit_count


@inlined
def _pool_fit(free: Integers, members: Integers, demand: Integers, limit: int) -> int:
    """Return how many times a demand fits on a pool in a slot, at most ``limit``."""
    total = 0
    for s in members:
        total += fits_on(free[s], demand, limit - total)
        if total >= limit:
            return limit
    return total


@kernel
def choice_costs(
    free: Integers,
    first: int,
    worker_members: Integers,
    worker: Integers,
    worker_price: Floats,
    ps_members: Integers,
    ps: Integers,
    ps_price: Floats,
    workers: Integers,
    ps_counts: Integers,
) -> Floats:
    """Return the cost of choices in slots (slots, choices), ``inf`` if they don't fit.

    ``free`` (horizon, servers, resources): free capacity. ``first``: the first slot;
    ``worker_price`` and ``ps_price`` (slots,) give the number of slots. ``worker_members``,
    ``ps_members``: servers of the two pools; no server is in both. ``workers``, ``ps_counts``
    (choices,): workers of each choice, ascending, and its parameter servers.
    """
    slots, choices = len(worker_price), len(workers)
    cost = np.empty((slots, choices))
    max_ps = 0
    for c in range(choices):
        max_ps = max(max_ps, ps_counts[c])
    for t in range(slots):
        row = free[first + t]
        worker_fit = _pool_fit(row, worker_members, worker, workers[choices - 1])
        ps_fit = 0
        if max_ps > 0 and worker_fit >= workers[0]:
            ps_fit = _pool_fit(row, ps_members, ps, max_ps)
        for c in range(choices):
            if workers[c] <= worker_fit and ps_counts[c] <= ps_fit:
                cost[t, c] = workers[c] * worker_price[t] + ps_counts[c] * ps_price[t]
            else:
                cost[t, c] = np.inf
    return cost


@kernel
def _choose_in_slot(
    free: Integers,
    members: Integers,
    demand: Integers,
    count: int,
    previous: Integers,
    fit_counts: Integers,
    chosen: Integers,
) -> None:
    """Choose servers in a slot: first as in ``previous``, then those with least capacity.

    ``fit_counts`` is scratch space, and ``chosen`` gets the processes on each server.
    """
    for s in members:
        fit_counts[s] = fits_on(free[s], demand, count)
        reused = min(previous[s], fit_counts[s], count)
        chosen[s] = reused
        fit_counts[s] -= reused
        count -= reused
    while count > 0:
        best = -1
        for s in members:
            if fit_counts[s] > 0 and (best < 0 or fit_counts[s] < fit_counts[best]):
                best = s
        if best < 0:
            return
        added = min(fit_counts[best], count)
        chosen[best] += added
        fit_counts[best] = 0
        count -= added


@kernel
def choose_servers(
    free: Integers,
    first: int,
    worker_members: Integers,
    worker: Integers,
    ps_members: Integers,
    ps: Integers,
    workers: Integers,
    ps_counts: Integers,
    choice: Integers,
) -> Integers:
    """Choose the servers of the chosen workers in each slot; free capacity doesn't change.

    ``choice`` (slots,) is the entry of ``workers``, which fits, or -1. Other parameters are as in
    `choice_costs`. The result (entries, 4) has slot, server, workers and parameter servers, by slot
    and server.
    """
    count = free.shape[1]
    max_entries = 0
    for t in range(len(choice)):
        if choice[t] >= 0:
            max_entries += min(count, workers[choice[t]] + ps_counts[choice[t]])
    entries = np.empty((max_entries, 4), np.int64)
    fit_counts = np.zeros(count, np.int64)
    chosen = np.zeros((2, count), np.int64)
    previous = np.zeros((2, count), np.int64)
    used = 0
    for t in range(len(choice)):
        c = choice[t]
        if c < 0:
            continue
        chosen[:] = 0
        _choose_in_slot(
            free[first + t], worker_members, worker, workers[c], previous[0], fit_counts, chosen[0]
        )
        if ps_counts[c] > 0:
            _choose_in_slot(
                free[first + t], ps_members, ps, ps_counts[c], previous[1], fit_counts, chosen[1]
            )
        for s in range(count):
            if chosen[0, s] > 0 or chosen[1, s] > 0:
                entries[used, 0] = first + t
                entries[used, 1] = s
                entries[used, 2] = chosen[0, s]
                entries[used, 3] = chosen[1, s]
                used += 1
        copy_into(previous[0], chosen[0])
        copy_into(previous[1], chosen[1])
    return entries[:used].copy()


@kernel
def subtract_entries(
    free: Integers, entries: Integers, worker: Integers, ps: Integers, times: int
) -> bool:
    """Subtract the demand of entries if all of it fits; return whether it does.

    With ``times`` -1, their demand is added.
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

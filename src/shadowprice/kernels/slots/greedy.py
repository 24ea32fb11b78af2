"""Integer placements in one slot without search: fill, remove, repair, and the cheapest machine."""

import math
from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers, copy_into
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.slots.polygons import Slot, fits_on_machine, max_servers
from shadowprice.kernels.slots.rounding import WHOLE


class Orders(NamedTuple):
    """Machines by ascending price of a worker, and of a parameter server (`machines_by_price`)."""

    worker: Integers
    server: Integers


@inlined
def placement_cost(slot: Slot, at_w: Integers, at_s: Integers) -> float:
    """Return the cost of an integer placement, summed machine by machine."""
    cost = 0.0
    for h in range(len(at_w)):
        if at_w[h] > 0 or at_s[h] > 0:
            cost += slot.price_worker[h] * at_w[h] + slot.price_server[h] * at_s[h]
    return cost


@inlined
def is_on_one_machine(at_w: Integers, at_s: Integers) -> bool:
    """Return whether a placement uses one machine, so that its traffic is internal (Fact 1)."""
    used_machines = 0
    for h in range(len(at_w)):
        if at_w[h] > 0 or at_s[h] > 0:
            used_machines += 1
    return used_machines == 1


@kernel
def machines_by_price(price: Floats, other_price: Floats) -> Integers:
    """Return the machines with finite prices by ascending `price`, lower numbers first."""
    order = stable_order(price)
    size = 0
    for h in order:
        if np.isfinite(price[h]) and np.isfinite(other_price[h]):
            order[size] = h
            size += 1
    return order[:size]


@kernel
def fill(
    order: Integers,
    free: Integers,
    demand: Integers,
    other_demand: Integers,
    counts: Integers,
    other_counts: Integers,
    total: int,
) -> bool:
    """Add workers (or servers) on the cheapest machines; return whether the total is reached.

    ``order`` are the machines by ascending price of the added kind (`machines_by_price`).
    ``demand`` is that of the added kind. ``counts`` and ``other_counts`` (machines,) are the
    placement so far; `counts` grows.
    """
    missing: int = total - counts.sum()
    for h in order:
        if missing <= 0:
            break
        # `max_servers` is symmetric in the two kinds.
        max_count = max_servers(free[h], other_demand, demand, other_counts[h], total)
        extra = min(max_count - counts[h], missing)
        if extra > 0:
            counts[h] += extra
            missing -= extra
    return missing <= 0


@kernel
def remove_surplus(price: Floats, counts: Integers, total: int) -> None:
    """Remove surplus from the most expensive machines, the last on ties, down to `total`."""
    surplus = counts.sum() - total
    while surplus > 0:
        costliest = -1
        for h in range(len(counts)):
            if counts[h] > 0 and (costliest < 0 or price[h] >= price[costliest]):
                costliest = h
        removed = min(counts[costliest], surplus)
        counts[costliest] -= removed
        surplus -= removed


@kernel
def place_greedily(
    slot: Slot,
    orders: Orders,
    workers: int,
    servers: int,
    out_w: Integers,
    out_s: Integers,
) -> float:
    """Place each kind on its cheapest machines, in both orders; write the cheaper placement.

    Returns its cost, inf if neither order finds one.
    """
    free, worker, server = slot.free, slot.worker, slot.server
    best = np.inf
    machines = len(free)
    for turn in range(2):
        at_w = np.zeros(machines, np.int64)
        at_s = np.zeros(machines, np.int64)
        if turn == 0:
            done = fill(orders.worker, free, worker, server, at_w, at_s, workers) and fill(
                orders.server, free, server, worker, at_s, at_w, servers
            )
        else:
            done = fill(orders.server, free, server, worker, at_s, at_w, servers) and fill(
                orders.worker, free, worker, server, at_w, at_s, workers
            )
        if done:
            cost = placement_cost(slot, at_w, at_s)
            if cost < best:
                best = cost
                copy_into(out_w, at_w)
                copy_into(out_s, at_s)
    return best


@inlined
def repair(
    slot: Slot,
    orders: Orders,
    relaxed_w: Floats,
    relaxed_s: Floats,
    workers: int,
    servers: int,
    out_w: Integers,
    out_s: Integers,
) -> float:
    """Round a relaxed solution up if it fits, fill up, and remove surplus; return the cost.

    The result of `place_greedily` is used if it is cheaper. This is the deterministic last step of
    Algorithm 4 (papers' README, reading 11). All arrays are (machines,); `out_w` and `out_s` are
    written if a placement is found. Otherwise the cost is inf.
    """
    free, worker, server = slot.free, slot.worker, slot.server
    for h in range(len(relaxed_w)):
        down_w = math.floor(relaxed_w[h] + WHOLE)
        down_s = math.floor(relaxed_s[h] + WHOLE)
        up_w = math.ceil(relaxed_w[h] - WHOLE)
        up_s = math.ceil(relaxed_s[h] - WHOLE)
        if up_w == 0 and up_s == 0:
            out_w[h], out_s[h] = 0, 0
        elif fits_on_machine(free[h], worker, server, up_w, up_s):
            out_w[h], out_s[h] = up_w, up_s
        elif fits_on_machine(free[h], worker, server, up_w, down_s):
            out_w[h], out_s[h] = up_w, down_s
        elif fits_on_machine(free[h], worker, server, down_w, up_s):
            out_w[h], out_s[h] = down_w, up_s
        else:
            # The counts rounded down fit, except for floating-point error.
            while not fits_on_machine(free[h], worker, server, down_w, down_s):
                if down_w > 0:
                    down_w -= 1
                else:
                    down_s -= 1
            out_w[h], out_s[h] = down_w, down_s
    # Removing one kind first may make the other fit.
    remove_surplus(slot.price_worker, out_w, workers)
    remove_surplus(slot.price_server, out_s, servers)
    done = fill(orders.server, free, server, worker, out_s, out_w, servers) and fill(
        orders.worker, free, worker, server, out_w, out_s, workers
    )
    # On nearly full machines the rest may only fit at many times the cheapest price. The relaxed
    # solution is then a worse start than an empty placement.
    own_w, own_s = out_w.copy(), out_s.copy()
    greedy = place_greedily(slot, orders, workers, servers, out_w, out_s)
    if done:
        cost = placement_cost(slot, own_w, own_s)
        if cost <= greedy:
            copy_into(out_w, own_w)
            copy_into(out_s, own_s)
            return cost
    return greedy


@inlined
def cheapest_machines(
    slot: Slot,
    workers: Integers,
    servers: Integers,
    cost: Floats,
    chosen: Integers,
) -> None:
    """Find the cheapest single machine for each worker count (Algorithm 4 steps 2-7).

    All arrays are (choices,). The pairs of ``workers`` and ``servers`` don't decrease. ``cost``
    receives the least cost, inf if no machine fits the pair, and ``chosen`` the machine, the lowest
    on ties, -1 for none.
    """
    choices = len(workers)
    cost[:] = np.inf
    chosen[:] = -1
    free, worker, server = slot.free, slot.worker, slot.server
    for h in range(len(free)):
        price_w, price_s = slot.price_worker[h], slot.price_server[h]
        if not (np.isfinite(price_w) and np.isfinite(price_s)):
            continue
        # Pairs grow, so those that fit come first. Find their number by bisection, starting from
        # the bound for workers alone, which is usually exact.
        widest = workers[choices - 1]
        for r in range(len(worker)):
            if worker[r] > 0:
                widest = min(widest, max(free[h, r], 0) // worker[r])
        fits, over = 0, choices
        while fits < over and workers[over - 1] > widest:
            over -= 1
        probe = over
        while fits < over:
            if fits_on_machine(free[h], worker, server, workers[probe - 1], servers[probe - 1]):
                fits = probe
            else:
                over = probe - 1
            probe = (fits + over + 1) // 2
        for i in range(fits):
            price = price_w * workers[i] + price_s * servers[i]
            if price < cost[i]:
                cost[i] = price
                chosen[i] = h

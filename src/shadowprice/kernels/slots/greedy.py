"""Integer placements in one slot without search: fill, remove, repair, and the cheapest machine."""

import math
from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers, copy_into
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.slots.polygons import Counts, Point, Slot, fits_on_machine, max_servers
from shadowprice.kernels.slots.rounding import WHOLE


class Orders(NamedTuple):
    """Machines by ascending price of a worker, and of a parameter server (`machines_by_price`)."""

    worker: Integers
    server: Integers


@inlined
def placement_cost(slot: Slot, at: Counts) -> float:
    """Return the cost of an integer placement, summed machine by machine."""
    cost = 0.0
    for h in range(len(at.w)):
        if at.w[h] > 0 or at.s[h] > 0:
            cost += slot.price_worker[h] * at.w[h] + slot.price_server[h] * at.s[h]
    return cost


@inlined
def is_on_one_machine(at: Counts) -> bool:
    """Return whether a placement uses one machine, so that its traffic is internal (Fact 1)."""
    used_machines = 0
    for h in range(len(at.w)):
        if at.w[h] > 0 or at.s[h] > 0:
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


@inlined
def _fill_both(
    slot: Slot, orders: Orders, workers: int, servers: int, at: Counts, workers_first: bool
) -> bool:
    """Add workers and parameter servers in an order; return whether both totals are reached."""
    free, worker, server = slot.free, slot.worker, slot.server
    if workers_first and not fill(orders.worker, free, worker, server, at.w, at.s, workers):
        return False
    if not fill(orders.server, free, server, worker, at.s, at.w, servers):
        return False
    return workers_first or fill(orders.worker, free, worker, server, at.w, at.s, workers)


@kernel
def place_greedily(slot: Slot, orders: Orders, workers: int, servers: int, out: Counts) -> float:
    """Place each kind on its cheapest machines, in both orders; write the cheaper placement.

    Returns its cost, inf if neither order finds one.
    """
    best = np.inf
    for turn in range(2):
        at = Counts(np.zeros_like(out.w), np.zeros_like(out.s))
        if _fill_both(slot, orders, workers, servers, at, turn == 0):
            cost = placement_cost(slot, at)
            if cost < best:
                best = cost
                copy_into(out.w, at.w)
                copy_into(out.s, at.s)
    return best


@inlined
def repair(
    slot: Slot, orders: Orders, relaxed: Point, workers: int, servers: int, out: Counts
) -> float:
    """Round a relaxed solution up if it fits, fill up, and remove surplus; return the cost.

    The result of `place_greedily` is used if it is cheaper. This is the deterministic last step of
    Algorithm 4 (papers' README, reading 11). `out` is written if a placement is found. Otherwise
    the cost is inf.
    """
    free, worker, server = slot.free, slot.worker, slot.server
    out_w, out_s = out
    for h in range(len(out_w)):
        down_w = math.floor(relaxed.w[h] + WHOLE)
        down_s = math.floor(relaxed.s[h] + WHOLE)
        up_w = math.ceil(relaxed.w[h] - WHOLE)
        up_s = math.ceil(relaxed.s[h] - WHOLE)
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
    done = _fill_both(slot, orders, workers, servers, out, False)
    # On nearly full machines the rest may only fit at many times the cheapest price. The relaxed
    # solution is then a worse start than an empty placement.
    own = Counts(out_w.copy(), out_s.copy())
    greedy = place_greedily(slot, orders, workers, servers, out)
    if done:
        cost = placement_cost(slot, own)
        if cost <= greedy:
            copy_into(out_w, own.w)
            copy_into(out_s, own.s)
            return cost
    return greedy

"""PD-ORS's theta(t, v), problem (3.18), for every worker count of one slot in one pass.

theta depends on the workload only through the worker count (papers' README, reading 12). So a slot
has two choices per worker count: the cheapest machine that fits everything (internal rate, Fact 1)
and the cheapest placement on several machines (external rate).
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import inlined, kernel
from shadowprice.kernels.slots.coupled_lp import advance, path_cost, path_point, start_path
from shadowprice.kernels.slots.exact import place_exactly, search_placement
from shadowprice.kernels.slots.greedy import (
    Orders,
    is_on_one_machine,
    machines_by_price,
    place_greedily,
    placement_cost,
    remove_surplus,
    repair,
)
from shadowprice.kernels.slots.polygons import Counts, Point, Slot, fits_on_machine, slot_corners
from shadowprice.kernels.slots.rounding import RequiredTotals, gain_factor, mix, round_feasibly

RANDOMISED, EXACT, GREEDY = range(3)
"""Method for external placements: Algorithm 4, the optimum, or cheapest first."""

SKIPPED, REPAIRED, SEARCHED = 0, -1, -2
"""Values of `rounds` without a successful rounding: not tried, repaired, found by exact search."""


class Pairs(NamedTuple):
    """The pairs to place; the last worker count is K of (3.2)."""

    workers: Integers  # ascending, shape (choices,)
    servers: Integers  # not decreasing, and at most the workers (3.5)


class Method(NamedTuple):
    """Method for external placements.

    ``spread`` forbids a placement on one machine (the literal reading of (3.4), in which it would
    communicate at a rate for which it lacks servers). Otherwise one machine is allowed, because the
    internal choice is then as good.
    """

    kind: int  # `RANDOMISED`, `EXACT` or `GREEDY`
    spread: bool
    gain: float  # G of the rounding; 0 derives G from delta by Theorem 2
    delta: float
    tries: int  # maximum rounds of rounding before the repair


@inlined
def _round(
    slot: Slot,
    method: Method,
    required: RequiredTotals,
    point: Point,
    stream: np.uint64,
    out: Counts,
) -> int:
    """Round a relaxed solution and remove surplus; return the number of rounds, 0 on failure."""
    factor = method.gain
    if factor == 0.0:
        rows, cover = 2, min(required.workers, required.servers)
        if required.servers == 0:
            rows, cover = 1, required.workers
        factor = gain_factor(method.delta, rows, cover)
    tried, _ = round_feasibly(point, slot, required, factor, method.tries, stream, out)
    if tried > 0:
        remove_surplus(slot.price_worker, out.w, required.workers)
        remove_surplus(slot.price_server, out.s, required.servers)
    return tried


@kernel
def place_external(
    slot: Slot, pairs: Pairs, enough: Floats, method: Method, stream: np.uint64, only: int
) -> tuple[Floats, Floats, Integers, Counts]:
    """Place each worker count of one slot at the external rate.

    Rounding with G > 1 may place more than the pair. The surplus is removed, the most expensive
    first, so that a choice adds its planned progress. This only lowers the cost.

    ``enough`` (choices,): a choice whose relaxed cost is at least this is skipped, because a better
    one is known; inf to skip none. ``stream``: random stream, of `rounding.mix` over seed, job and
    slot. ``only``: place only this choice; -1 for all. Its placement is the same in both cases.

    Returns three arrays (choices,): the cost (inf without a placement, or if a better choice is
    known), its lower bound (the relaxation's optimum; over integer hulls with EXACT), and the
    rounds of rounding, or SKIPPED, REPAIRED, SEARCHED. Also returns the last placement.
    """
    choices, machines = len(pairs.workers), len(slot.free)
    cost = np.full(choices, np.inf)
    relaxed = np.full(choices, np.inf)
    rounds = np.zeros(choices, np.int64)
    maximum = pairs.workers[choices - 1]
    corners = slot_corners(slot, maximum, pairs.servers[choices - 1], method.kind == EXACT)
    path = start_path(corners)
    point = Point(np.empty(machines), np.empty(machines))
    out = Counts(np.zeros(machines, np.int64), np.zeros(machines, np.int64))
    orders = Orders(np.empty(0, np.int64), np.empty(0, np.int64))
    for i in range(choices):
        m_w, m_p = pairs.workers[i], pairs.servers[i]
        # Counts ascend: if the relaxation can't place this pair, it can't place larger ones.
        if not advance(corners, path, float(m_w), float(m_p)):
            break
        relaxed[i] = path_cost(corners, path)
        if relaxed[i] >= enough[i] or 0 <= only != i:
            continue
        if method.kind != GREEDY:
            path_point(corners, path, point)
        if method.kind == RANDOMISED:
            required = RequiredTotals(m_w, m_p, maximum)
            tried = _round(slot, method, required, point, mix(stream, m_w), out)
            if tried > 0:
                cost[i] = placement_cost(slot, out)
                rounds[i] = tried
        if cost[i] == np.inf:
            if len(orders.worker) == 0:
                orders = Orders(
                    machines_by_price(slot.price_worker, slot.price_server),
                    machines_by_price(slot.price_server, slot.price_worker),
                )
            if method.kind == GREEDY:
                cost[i] = place_greedily(slot, orders, m_w, m_p, out)
            else:
                cost[i] = repair(slot, orders, point, m_w, m_p, out)
            rounds[i] = REPAIRED
        if method.spread and cost[i] < np.inf and is_on_one_machine(out):
            cost[i] = np.inf
        if method.kind == EXACT:
            cost[i] = place_exactly(slot, corners, path, m_w, m_p, method.spread, cost[i], out)
            rounds[i] = SEARCHED
        elif cost[i] == np.inf:
            # The exact search finds a placement if one exists.
            cost[i] = search_placement(slot, m_w, m_p, method.spread, out)
            rounds[i] = SEARCHED
        if cost[i] == np.inf and not method.spread:
            # Larger pairs have no placement either.
            break
    return cost, relaxed, rounds, out


@inlined
def place_internal(slot: Slot, workers: Integers, servers: Integers) -> tuple[Floats, Integers]:
    """Place each worker count of one slot on its cheapest machine, at the internal rate.

    This is Algorithm 4, steps 2-7. ``workers`` (choices,) are ascending. ``servers`` are those of
    each, not decreasing: ceil(w b_e / B), or ceil(w b_i / B) by the letter of (3.4) (papers'
    README, reading 10); empty if one machine is not allowed. Returns the least cost, inf if no
    machine fits everything, and the machine, the lowest on ties, -1 for none; both (choices,).
    """
    choices = len(workers)
    cost = np.full(choices, np.inf)
    chosen = np.full(choices, -1, np.int64)
    if len(servers) == 0:
        return cost, chosen
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
    return cost, chosen

"""PD-ORS Algorithm 4: placements of one job in the slots of a horizon, for every worker count.

theta(t, v), problem (3.18), depends on the workload only through the worker count (papers' README,
reading 12). So a slot has two choices per worker count: the cheapest machine that fits everything
(internal rate, Fact 1) and the cheapest placement on several machines (external rate).

Slots have the same *state* if every machine has the same free capacity and price of the resources
that the job needs; each state is placed once. `groups` has the groups of equal machines of every
slot, and `slot_states` expands them. `horizon.search.best_schedule` takes the result of
`slot_choices` and runs Algorithms 2 and 3.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import Flags, Floats, Integers, copy_into
from shadowprice.kernels.jit import allocation_free, constant, inlined, kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.prices.exponential import demand_cost
from shadowprice.kernels.slots.coupled_lp import advance, path_cost, path_point, start_path
from shadowprice.kernels.slots.exact import place_exactly, search_placement
from shadowprice.kernels.slots.groups import Groups, expand_groups
from shadowprice.kernels.slots.polygons import (
    Counts,
    Point,
    Slot,
    add_to_hash,
    fits_on_machine,
    max_ps_count,
    placement_cost,
    slot_corners,
)
from shadowprice.kernels.slots.rounding import (
    WHOLE,
    RequiredTotals,
    gain_factor,
    mix,
    round_feasibly,
)

RANDOMISED, EXACT, GREEDY = range(3)
"""Method for external placements: Algorithm 4, the optimum, or cheapest first."""

SKIPPED, REPAIRED, SEARCHED = 0, -1, -2
"""Values of `rounds` without a successful rounding: not tried, repaired, found by exact search."""

PLACES = 1 << 40
"""Capacity for workers, or for parameter servers, of a machine with that role; others have 0.

A machine's role is modelled by two more resources, of which a process needs 1.
"""

ALL = constant(-1)
"""Value of ``only`` with which `place_external` places every choice."""


class Pairs(NamedTuple):
    """Pairs of workers and parameter servers to place; the last worker count is K of (3.2)."""

    workers: Integers  # ascending, shape (choices,)
    ps_counts: Integers  # not decreasing, and at most the workers (3.5)


class Method(NamedTuple):
    """Method for external placements.

    ``spread`` forbids a placement on one machine: in the literal reading of (3.4), such a placement
    has too few parameter servers for its internal rate. Otherwise one machine is allowed, because
    the internal choice is then as good.
    """

    kind: int  # `RANDOMISED`, `EXACT` or `GREEDY`
    spread: bool
    gain: float  # G of the rounding; 0 derives G from delta by Theorem 2
    delta: float
    tries: int  # maximum rounds of rounding before the repair


class Orders(NamedTuple):
    """Machines by ascending price of a worker, and of a parameter server (`machines_by_price`)."""

    worker: Integers
    ps: Integers


@inlined
def is_on_one_machine(placed: Counts) -> bool:
    """Return whether a placement uses one machine, so that its traffic is internal (Fact 1)."""
    used_machines = 0
    for h in range(len(placed.w)):
        if placed.w[h] > 0 or placed.s[h] > 0:
            used_machines += 1
    return used_machines == 1


@kernel
def machines_by_price(price: Floats, other_price: Floats) -> Integers:
    """Return the machines with two finite prices, by ascending `price`, then by number."""
    order = stable_order(price)
    size = 0
    for h in order:
        if np.isfinite(price[h]) and np.isfinite(other_price[h]):
            order[size] = h
            size += 1
    return order[:size]


@allocation_free
def fill(
    order: Integers,
    free: Integers,
    demand: Integers,
    other_demand: Integers,
    counts: Integers,
    other_counts: Integers,
    total: int,
) -> bool:
    """Add workers (or parameter servers) on the cheapest machines; return whether all fit.

    ``order`` has the machines by ascending price of the added kind (`machines_by_price`), and
    ``demand`` is the demand of one process of this kind. ``counts`` (machines,), which grows, and
    ``other_counts`` are the placement so far of this kind and of the other.
    """
    missing: int = total - counts.sum()
    for h in order:
        if missing <= 0:
            break
        # `max_ps_count` is symmetric in the two kinds of processes.
        max_count = max_ps_count(free[h], other_demand, demand, other_counts[h], total)
        extra = min(max_count - counts[h], missing)
        if extra > 0:
            counts[h] += extra
            missing -= extra
    return missing <= 0


@allocation_free
def remove_surplus(price: Floats, counts: Integers, total: int) -> None:
    """Reduce counts to the sum `total` on the most expensive machines, on ties on the last."""
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
    slot: Slot, orders: Orders, workers: int, ps_count: int, placed: Counts, workers_first: bool
) -> bool:
    """Add workers and parameter servers in an order; return whether both totals are reached."""
    free, worker, ps = slot.free, slot.worker, slot.ps
    if workers_first and not fill(orders.worker, free, worker, ps, placed.w, placed.s, workers):
        return False
    if not fill(orders.ps, free, ps, worker, placed.s, placed.w, ps_count):
        return False
    return workers_first or fill(orders.worker, free, worker, ps, placed.w, placed.s, workers)


@kernel
def place_greedily(slot: Slot, orders: Orders, workers: int, ps_count: int, out: Counts) -> float:
    """Place each kind on its cheapest machines, in both orders; write the cheaper placement.

    Returns its cost, inf if neither order finds one.
    """
    best = np.inf
    for turn in range(2):
        placed = Counts(np.zeros_like(out.w), np.zeros_like(out.s))
        if _fill_both(slot, orders, workers, ps_count, placed, turn == 0):
            cost = placement_cost(slot, placed)
            if cost < best:
                best = cost
                copy_into(out.w, placed.w)
                copy_into(out.s, placed.s)
    return best


@inlined
def repair(
    slot: Slot, orders: Orders, relaxed: Point, workers: int, ps_count: int, out: Counts
) -> float:
    """Round a relaxed solution up where it fits, remove surplus and fill up; return the cost.

    If `place_greedily` is cheaper, its result is used. This is the deterministic last step of
    Algorithm 4 (papers' README, reading 11). `out` has the placement; the cost is inf without one.
    """
    free, worker, ps = slot.free, slot.worker, slot.ps
    out_w, out_s = out
    for h in range(len(out_w)):
        down_w = math.floor(relaxed.w[h] + WHOLE)
        down_s = math.floor(relaxed.s[h] + WHOLE)
        up_w = math.ceil(relaxed.w[h] - WHOLE)
        up_s = math.ceil(relaxed.s[h] - WHOLE)
        if up_w == 0 and up_s == 0:
            out_w[h], out_s[h] = 0, 0
        elif fits_on_machine(free[h], worker, ps, up_w, up_s):
            out_w[h], out_s[h] = up_w, up_s
        elif fits_on_machine(free[h], worker, ps, up_w, down_s):
            out_w[h], out_s[h] = up_w, down_s
        elif fits_on_machine(free[h], worker, ps, down_w, up_s):
            out_w[h], out_s[h] = down_w, up_s
        else:
            # The counts rounded down fit, except for floating-point error.
            while not fits_on_machine(free[h], worker, ps, down_w, down_s):
                if down_w > 0:
                    down_w -= 1
                else:
                    down_s -= 1
            out_w[h], out_s[h] = down_w, down_s
    # Removing one kind first may make the other fit.
    remove_surplus(slot.price_worker, out_w, workers)
    remove_surplus(slot.price_ps, out_s, ps_count)
    done = _fill_both(slot, orders, workers, ps_count, out, False)
    # On nearly full machines the rest may only fit at many times the cheapest price. The relaxed
    # solution is then a worse start than an empty placement.
    own = Counts(out_w.copy(), out_s.copy())
    greedy = place_greedily(slot, orders, workers, ps_count, out)
    if done:
        cost = placement_cost(slot, own)
        if cost <= greedy:
            copy_into(out_w, own.w)
            copy_into(out_s, own.s)
            return cost
    return greedy


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
        rows, cover = 2, min(required.workers, required.ps_count)
        if required.ps_count == 0:
            rows, cover = 1, required.workers
        factor = gain_factor(method.delta, rows, cover)
    tried, _ = round_feasibly(point, slot, required, factor, method.tries, stream, out)
    if tried > 0:
        remove_surplus(slot.price_worker, out.w, required.workers)
        remove_surplus(slot.price_ps, out.s, required.ps_count)
    return tried


@kernel
def place_external(
    slot: Slot, pairs: Pairs, enough: Floats, method: Method, stream: np.uint64, only: int
) -> tuple[Floats, Floats, Integers, Counts]:
    """Place each worker count of one slot at the external rate.

    Rounding with G > 1 may place more than the pair. The surplus is removed, the most expensive
    first, so that a choice adds its planned progress. This only lowers the cost.

    ``enough`` (choices,): a choice whose relaxed cost is at least this is skipped, because a better
    choice is known (`internal_rivals`). ``stream``: random stream, of `rounding.mix` over seed, job
    and slot. ``only``: place only this choice, with the same result as among all; `ALL` for all.

    Returns three arrays (choices,) and the last placement. The arrays are the cost (inf without a
    placement or for a skipped choice), its lower bound (the relaxation's optimum; over integer
    hulls with EXACT), and the rounds of rounding, or SKIPPED, REPAIRED, SEARCHED.
    """
    choices, machines = len(pairs.workers), len(slot.free)
    cost = np.full(choices, np.inf)
    relaxed = np.full(choices, np.inf)
    rounds = np.zeros(choices, np.int64)
    maximum = pairs.workers[choices - 1]
    corners = slot_corners(slot, maximum, pairs.ps_counts[choices - 1], method.kind == EXACT)
    path = start_path(corners)
    point = Point(np.empty(machines), np.empty(machines))
    out = Counts(np.zeros(machines, np.int64), np.zeros(machines, np.int64))
    orders = Orders(np.empty(0, np.int64), np.empty(0, np.int64))
    for i in range(choices):
        m_w, m_p = pairs.workers[i], pairs.ps_counts[i]
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
                    machines_by_price(slot.price_worker, slot.price_ps),
                    machines_by_price(slot.price_ps, slot.price_worker),
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
def place_internal(slot: Slot, workers: Integers, ps_counts: Integers) -> tuple[Floats, Integers]:
    """Place each worker count of one slot on its cheapest machine, at the internal rate.

    This is Algorithm 4, steps 2-7. ``workers`` (choices,) are ascending. ``ps_counts`` (choices,)
    don't decrease: ceil(w b_e / B), or ceil(w b_i / B) by the letter of (3.4) (papers' README,
    reading 10); empty if a placement on one machine isn't allowed. Returns two arrays (choices,):
    the least cost, inf if no machine fits everything, and its machine, the lowest on ties, or -1.
    """
    choices = len(workers)
    cost = np.full(choices, np.inf)
    chosen = np.full(choices, -1, np.int64)
    if len(ps_counts) == 0:
        return cost, chosen
    free, worker, ps = slot.free, slot.worker, slot.ps
    for h in range(len(free)):
        price_w, price_s = slot.price_worker[h], slot.price_ps[h]
        if not (np.isfinite(price_w) and np.isfinite(price_s)):
            continue
        # Pairs grow, so those that fit come first. Find their number by bisection, starting from
        # the bound for workers alone, which is usually exact.
        widest = workers[choices - 1]
        for r in range(len(worker)):
            if worker[r] > 0:
                widest = min(widest, max(free[h, r], 0) // worker[r])
        fits, limit = 0, choices
        while fits < limit and workers[limit - 1] > widest:
            limit -= 1
        probe = limit
        while fits < limit:
            if fits_on_machine(free[h], worker, ps, workers[probe - 1], ps_counts[probe - 1]):
                fits = probe
            else:
                limit = probe - 1
            probe = (fits + limit + 1) // 2
        for i in range(fits):
            price = price_w * workers[i] + price_s * ps_counts[i]
            if price < cost[i]:
                cost[i] = price
                chosen[i] = h
    return cost, chosen


@kernel
def slot_states(
    pool: Groups, requested: Integers, worker_share: Floats, ps_share: Floats, hosts: Flags
) -> tuple[Floats, Floats, Integers, Integers, Integers]:
    """Expand every distinct state of a horizon, machine by machine.

    ``pool``: the groups of the horizon's slots. ``requested`` (kinds,): resources that a worker or
    a parameter server needs. ``worker_share``, ``ps_share`` (resources,): demands as shares, to
    which prices refer. ``hosts`` (2, machines): whether each machine hosts workers, and parameter
    servers; (2, 0) if all host both.

    Returns five arrays: the prices of a worker and of a parameter server (states, machines), p^w
    and p^s of (3.22); the free capacity of the requested resources (states, machines, kinds), with
    ``hosts`` also for workers and for parameter servers (`PLACES` or 0); the state of each slot
    (slots,), numbered in order of first appearance; the first slot of each state (states,).
    """
    row_of, price, free = pool.row_of, pool.price, pool.free
    slots, machines = len(row_of), len(pool.kinds.of)
    kinds = len(requested)
    width = kinds
    if hosts.shape[1] > 0:
        width = kinds + 2
    state_of_row = np.full(len(pool.groups), -1, np.int64)
    max_states = 0  # number of rows in use; several may have the same state
    for t in range(slots):
        if state_of_row[row_of[t]] < 0:
            state_of_row[row_of[t]] = 0
            max_states += 1
    state_of_row[:] = -1
    price_worker = np.empty((max_states, machines))
    price_ps = np.empty((max_states, machines))
    needed_free = np.empty((max_states, machines, width), np.int64)
    state_of = np.empty(slots, np.int64)
    first = np.empty(max_states, np.int64)
    hashes = np.empty(max_states, np.int64)
    states = 0
    size = 4
    # At most half full, so that probes stay short.
    while size < 2 * max_states:
        size *= 2
    table = np.full(size, -1, np.int64)
    resources = price.shape[1]
    one_price = np.empty(resources)
    widest = price.shape[2]
    group_w = np.empty(widest)
    group_s = np.empty(widest)
    group_hash = np.empty(widest, np.int64)
    group_of = np.empty(machines, np.int64)
    for t in range(slots):
        row = row_of[t]
        if state_of_row[row] >= 0:
            state_of[t] = state_of_row[row]
            continue
        for g in range(pool.groups[row]):
            for r in range(resources):
                one_price[r] = price[row, r, g]
            group_w[g] = demand_cost(one_price, worker_share)
            group_s[g] = demand_cost(one_price, ps_share)
            mixed = 0
            for k in range(kinds):
                mixed = add_to_hash(mixed, free[row, requested[k], g])
            group_hash[g] = mixed
        mixed = 0
        expand_groups(row, pool, group_of)
        for h in range(machines):
            g = group_of[h]
            mixed = add_to_hash(mixed, group_hash[g])
            price_worker[states, h] = group_w[g]
            price_ps[states, h] = group_s[g]
            for k in range(kinds):
                needed_free[states, h, k] = free[row, requested[k], g]
        bucket = mixed & (size - 1)
        while True:
            twin = table[bucket]
            if twin < 0:
                table[bucket] = states
                hashes[states] = mixed
                first[states] = t
                state_of_row[row] = states
                states += 1
                break
            # Equal hashes may be a collision.
            if (
                hashes[twin] == mixed
                and np.array_equal(price_worker[twin], price_worker[states])
                and np.array_equal(price_ps[twin], price_ps[states])
                and np.array_equal(needed_free[twin, :, :kinds], needed_free[states, :, :kinds])
            ):
                state_of_row[row] = twin
                break
            bucket = (bucket + 1) & (size - 1)
        state_of[t] = state_of_row[row]
    # Roles are the same in every slot, so states are compared without them.
    if width > kinds:
        for h in range(machines):
            for side in range(2):
                capacity = 0
                if hosts[side, h]:
                    capacity = PLACES
                needed_free[:states, h, kinds + side] = capacity
    return (
        price_worker[:states],
        price_ps[:states],
        needed_free[:states],
        state_of,
        first[:states],
    )


@inlined
def internal_rivals(cost: Floats, gains: Integers, internal_gains: Integers) -> Floats:
    """Return the cost of the cheapest internal choice that gains as much as each external one.

    All arrays are (choices,); ``cost`` has the internal choices. An external placement that costs
    at least the result is never better. The result is inf if no internal choice gains as much.
    """
    enough = np.full(len(cost), np.inf)
    for i in range(len(cost)):
        for j in range(len(cost)):
            if internal_gains[j] >= gains[i]:
                enough[i] = min(enough[i], cost[j])
    return enough


class Slots(NamedTuple):
    """Distinct slot states as one job sees them: `polygons.Slot` with a row for each."""

    price_worker: Floats  # shape (slots, machines)
    price_ps: Floats  # shape (slots, machines)
    free: Integers  # shape (slots, machines, resources)
    worker: Integers  # demand, shape (resources,)
    ps: Integers  # demand of a parameter server


class Gains(NamedTuple):
    """Progress units of each worker count at the external and at the internal rate."""

    external: Integers
    internal: Integers


@kernel
def slot_at(slots: Slots, row: int) -> Slot:
    """Return one slot state."""
    return Slot(
        slots.price_worker[row],
        slots.price_ps[row],
        slots.free[row],
        slots.worker,
        slots.ps,
    )


@kernel
def slot_choices(
    slots: Slots,
    pairs: Pairs,
    internal_ps_counts: Integers,
    gains: Gains,
    method: Method,
    streams: NDArray[np.uint64],
) -> tuple[Floats, Integers, Floats, Integers]:
    """Price every worker count, at both rates, in every distinct slot state.

    ``pairs`` and ``method`` are as in `placement.place_external`, and ``internal_ps_counts`` as in
    `placement.place_internal`. ``streams`` (slots,) are the random streams of the rows.

    No remaining external choice is on one machine. If `internal_ps_counts` equal the counts of the
    pairs, such a choice costs at least its internal rival; if they differ, `Method.spread` forbids
    it. So a plan's rate is always the rate of its placement by Fact 1.

    Returns four arrays. The first (slots, 2 * choices) has the costs of the external choices, then
    of the internal ones: inf without a placement, or for an external choice if an internal one is
    as cheap and gains as much. The others (slots, choices) are the machine of each internal choice,
    or -1; lower bounds of the external choices; and rounds as in `placement.place_external`.
    """
    count = len(slots.price_worker)
    choices = len(pairs.workers)
    cost = np.empty((count, 2 * choices))
    machine = np.empty((count, choices), np.int64)
    relaxed = np.empty((count, choices))
    rounds = np.empty((count, choices), np.int64)
    for t in range(count):
        slot = slot_at(slots, t)
        cost[t, choices:], machine[t] = place_internal(slot, pairs.workers, internal_ps_counts)
        enough = internal_rivals(cost[t, choices:], gains.external, gains.internal)
        cost[t, :choices], relaxed[t], rounds[t], _ = place_external(
            slot, pairs, enough, method, streams[t], ALL
        )
        for i in range(choices):
            if cost[t, i] >= enough[i]:
                cost[t, i] = np.inf
    return cost, machine, relaxed, rounds

"""All choices of all slots of a horizon for one job: PD-ORS Algorithm 4, slot by slot.

Slots in which every machine has the same free capacity and price of the resources that the job
needs are placed once. `groups` has the groups of equal machines of every slot; `slot_states`
expands them for the placement kernels, each distinct state once. `horizon.search.best_schedule`
takes the result of `slot_choices` and runs Algorithms 2 and 3.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import Flags, Floats, Integers
from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.prices.exponential import demand_cost
from shadowprice.kernels.slots.groups import Groups, expand_groups
from shadowprice.kernels.slots.placement import Method, Pairs, place_external, place_internal
from shadowprice.kernels.slots.polygons import Slot, add_to_hash

PLACES = 1 << 40
"""Unlimited capacity of the two resources that model a machine's role; otherwise it is 0."""

ALL = constant(-1)
"""Value of ``only`` with which `place_external` places every choice."""


@kernel
def slot_states(
    pool: Groups, requested: Integers, worker_share: Floats, server_share: Floats, hosts: Flags
) -> tuple[Floats, Floats, Integers, Integers, Integers]:
    """Expand every distinct state of a horizon.

    ``pool``: the groups of the horizon's slots. ``requested`` (kinds,): resources that a worker or
    a parameter server needs. ``worker_share``, ``server_share`` (resources,): demands as shares, to
    which prices refer. ``hosts`` (2, machines): machines for workers and for parameter servers;
    (2, 0) if all host both.

    Returns the prices of a worker and of a parameter server (states, machines), p^w and p^s of
    (3.22); the free capacity of the needed resources (states, machines, kinds), with ``hosts`` also
    the capacity for workers and for parameter servers (`PLACES` or 0); the state of each slot
    (slots,), numbered in order of first appearance; the first slot of each state (states,).
    """
    row_of, price, free = pool.row_of, pool.price, pool.free
    slots, machines = len(row_of), len(pool.kinds.of)
    kinds = len(requested)
    wide = kinds
    if hosts.shape[1] > 0:
        wide = kinds + 2
    state_of_row = np.full(len(pool.groups), -1, np.int64)
    max_states = 0
    for t in range(slots):
        if state_of_row[row_of[t]] < 0:
            state_of_row[row_of[t]] = 0
            max_states += 1
    state_of_row[:] = -1
    price_worker = np.empty((max_states, machines))
    price_server = np.empty((max_states, machines))
    needed_free = np.empty((max_states, machines, wide), np.int64)
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
    group_print = np.empty(widest, np.int64)
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
            group_s[g] = demand_cost(one_price, server_share)
            mixed = 0
            for k in range(kinds):
                mixed = add_to_hash(mixed, free[row, requested[k], g])
            group_print[g] = mixed
        mixed = 0
        expand_groups(row, pool, group_of)
        for h in range(machines):
            g = group_of[h]
            mixed = add_to_hash(mixed, group_print[g])
            price_worker[states, h] = group_w[g]
            price_server[states, h] = group_s[g]
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
                and np.array_equal(price_server[twin], price_server[states])
                and np.array_equal(needed_free[twin, :, :kinds], needed_free[states, :, :kinds])
            ):
                state_of_row[row] = twin
                break
            bucket = (bucket + 1) & (size - 1)
        state_of[t] = state_of_row[row]
    # Roles are the same in every slot, so states are compared without them.
    if wide > kinds:
        for h in range(machines):
            for side in range(2):
                capacity = 0
                if hosts[side, h]:
                    capacity = PLACES
                needed_free[:states, h, kinds + side] = capacity
    return (
        price_worker[:states],
        price_server[:states],
        needed_free[:states],
        state_of,
        first[:states],
    )


@inlined
def internal_rivals(cost: Floats, gains: Integers, internal_gains: Integers) -> Floats:
    """Return the cost of the cheapest internal choice that gains as much as each external one.

    All arrays are (choices,); ``cost`` is that of the internal choices. An external placement that
    costs at least the result is never better. The result is inf if no internal choice gains as
    much.
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
    price_server: Floats  # shape (slots, machines)
    free: Integers  # shape (slots, machines, resources)
    worker: Integers  # demand, shape (resources,)
    server: Integers  # demand of a parameter server


class Gains(NamedTuple):
    """Progress units of each worker count at the external and at the internal rate."""

    external: Integers
    internal: Integers


@kernel
def slot_at(slots: Slots, row: int) -> Slot:
    """Return one slot state."""
    return Slot(
        slots.price_worker[row],
        slots.price_server[row],
        slots.free[row],
        slots.worker,
        slots.server,
    )


@kernel
def slot_choices(
    slots: Slots,
    pairs: Pairs,
    internal_servers: Integers,
    gains: Gains,
    method: Method,
    streams: NDArray[np.uint64],
) -> tuple[Floats, Integers, Floats, Integers]:
    """Price every worker count, at both rates, in every distinct slot state.

    ``pairs`` and ``method`` are as in `placement.place_external`, and ``internal_servers`` as in
    `placement.place_internal`. ``streams`` (slots,) are the random streams of the rows.

    If `internal_servers` are the pairs' servers, no remaining external choice is on one machine: it
    would cost at least its internal rival. If they are not, `Method.spread` forbids it. So a plan's
    rate is always the rate of its placement by Fact 1.

    Returns four arrays. (slots, 2 * choices): costs of the external choices, then of the internal
    ones; inf without a placement, or if an internal choice of that slot is as cheap and gains as
    much. (slots, choices): machine of each internal choice, -1 for none; lower bounds of the
    external choices; rounds as in `placement.place_external`.
    """
    count = len(slots.price_worker)
    choices = len(pairs.workers)
    cost = np.empty((count, 2 * choices))
    machine = np.empty((count, choices), np.int64)
    relaxed = np.empty((count, choices))
    rounds = np.empty((count, choices), np.int64)
    for t in range(count):
        slot = slot_at(slots, t)
        cost[t, choices:], machine[t] = place_internal(slot, pairs.workers, internal_servers)
        enough = internal_rivals(cost[t, choices:], gains.external, gains.internal)
        cost[t, :choices], relaxed[t], rounds[t], _ = place_external(
            slot, pairs, enough, method, streams[t], ALL
        )
        for i in range(choices):
            if cost[t, i] >= enough[i]:
                cost[t, i] = np.inf
    return cost, machine, relaxed, rounds

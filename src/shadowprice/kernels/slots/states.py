"""The distinct states of a horizon's slots as one job sees them, machine by machine.

PD-ORS places a job slot by slot (Algorithm 4). Slots in which every machine has the same free
capacity and price of the resources that the job needs are placed once. `groups` has the groups of
equal machines of every slot; this module expands them for the placement kernels, each state once.
"""

import numpy as np

from shadowprice.kernels.arrays import Flags, Floats, Integers
from shadowprice.kernels.jit import kernel
from shadowprice.kernels.prices.exponential import demand_cost
from shadowprice.kernels.slots.groups import Groups, expand_groups
from shadowprice.kernels.slots.polygons import add_to_hash

PLACES = 1 << 40
"""Unlimited capacity of the two resources that model a machine's role; otherwise it is 0."""


@kernel
def slot_states(
    pool: Groups,
    requested: Integers,
    worker_share: Floats,
    server_share: Floats,
    hosts: Flags,
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

"""All choices of all slots of a horizon for one job: PD-ORS Algorithm 4, slot by slot.

`horizon.search.best_schedule` takes the result and runs Algorithms 2 and 3.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.slots.placement import Method, Pairs, place_external, place_internal
from shadowprice.kernels.slots.polygons import Slot

ALL = constant(-1)
"""Value of ``only`` with which `place_external` places every choice."""


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
    count, machines = slots.price_worker.shape
    choices = len(pairs.workers)
    cost = np.empty((count, 2 * choices))
    machine = np.empty((count, choices), np.int64)
    relaxed = np.empty((count, choices))
    rounds = np.empty((count, choices), np.int64)
    scratch_w = np.zeros(machines, np.int64)
    scratch_s = np.zeros(machines, np.int64)
    for t in range(count):
        slot = slot_at(slots, t)
        cost[t, choices:], machine[t] = place_internal(slot, pairs.workers, internal_servers)
        enough = internal_rivals(cost[t, choices:], gains.external, gains.internal)
        cost[t, :choices], relaxed[t], rounds[t] = place_external(
            slot, pairs, enough, method, streams[t], ALL, scratch_w, scratch_s
        )
        for i in range(choices):
            if cost[t, i] >= enough[i]:
                cost[t, i] = np.inf
    return cost, machine, relaxed, rounds

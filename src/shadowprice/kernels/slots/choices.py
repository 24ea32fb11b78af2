"""All choices of all slots of a horizon for one job: PD-ORS Algorithm 4, slot by slot.

`horizon.best_schedule` takes the result and runs Algorithms 2 and 3.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.slots.placement import Method, Pairs, place_external, place_internal
from shadowprice.kernels.slots.polygons import Slot

ALL = constant(-1)
"""Makes `place_external` place every choice."""


@inlined
def internal_rivals(
    cost: NDArray[np.float64], gains: NDArray[np.int64], internal_gains: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the cost of the cheapest internal choice that gains as much as each external one.

    Parameters
    ----------
    cost : ndarray of float64, shape (choices,)
        Costs of the internal choices.
    gains, internal_gains : ndarray of int64, shape (choices,)
        Progress units of each choice at the external and at the internal rate.

    Returns
    -------
    ndarray of float64, shape (choices,)
        An external placement that costs at least this much is never better; inf if no internal
        choice gains as much.
    """
    enough = np.full(len(cost), np.inf)
    for i in range(len(cost)):
        for j in range(len(cost)):
            if internal_gains[j] >= gains[i]:
                enough[i] = min(enough[i], cost[j])
    return enough


class Slots(NamedTuple):
    """Distinct slot states as one job sees them: `polygons.Slot` with a row for each.

    Attributes
    ----------
    price_worker, price_server : ndarray of float64, shape (slots, machines)
        Prices of a worker and of a parameter server.
    free : ndarray of int64, shape (slots, machines, resources)
        Free capacity.
    worker, server : ndarray of int64, shape (resources,)
        Demands of a worker and of a parameter server.
    """

    price_worker: NDArray[np.float64]
    price_server: NDArray[np.float64]
    free: NDArray[np.int64]
    worker: NDArray[np.int64]
    server: NDArray[np.int64]


class Gains(NamedTuple):
    """Progress units of each worker count at the external and at the internal rate."""

    external: NDArray[np.int64]
    internal: NDArray[np.int64]


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
    internal_servers: NDArray[np.int64],
    gains: Gains,
    method: Method,
    streams: NDArray[np.uint64],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Price every worker count, at both rates, in every distinct slot state.

    Parameters
    ----------
    slots : Slots
        One row for all slots in the same state.
    pairs, method
        As in `placement.place_external`.
    internal_servers : ndarray of int64, shape (choices,) or (0,)
        As in `placement.place_internal`.
    gains : Gains
        Progress units of each choice.
    streams : ndarray of uint64, shape (slots,)
        Random stream of each row.

    Returns
    -------
    cost : ndarray of float64, shape (slots, 2 * choices)
        External choices first, then internal ones; inf without a placement, or if an internal
        choice of that slot is as cheap and gains as much.
    machine : ndarray of int64, shape (slots, choices)
        Machine of each internal choice, -1 for none.
    relaxed : ndarray of float64, shape (slots, choices)
        Lower bounds of the external choices.
    rounds : ndarray of int64, shape (slots, choices)
        As in `placement.place_external`.

    Notes
    -----
    If `internal_servers` are the pairs' servers, no remaining external choice is on one machine: it
    would cost at least its internal rival. If they are not, `Method.spread` forbids it. So a plan's
    rate is always the rate of its placement by Fact 1.
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

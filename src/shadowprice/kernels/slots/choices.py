"""All choices of all slots of a horizon for one job: PD-ORS Algorithm 4, slot by slot.

What comes out feeds `horizon.best_schedule`, which carries Algorithms 2 and 3.
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.slots.placement import place_external, place_internal


@kernel
def internal_rivals(
    cost: NDArray[np.float64], gains: NDArray[np.int64], internal_gains: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return, for each external choice, the cheapest internal one that gains as much.

    Parameters
    ----------
    cost : ndarray of float64, shape (choices,)
        Costs of the internal choices.
    gains, internal_gains : ndarray of int64, shape (choices,)
        Progress units of each choice at the external and at the internal rate.

    Returns
    -------
    ndarray of float64, shape (choices,)
        An external placement that costs at least this much is never better; inf where no
        internal choice gains as much.
    """
    enough = np.full(len(cost), np.inf)
    for i in range(len(cost)):
        for j in range(len(cost)):
            if internal_gains[j] >= gains[i]:
                enough[i] = min(enough[i], cost[j])
    return enough


@kernel
def slot_choices(
    price_worker: NDArray[np.float64],
    price_server: NDArray[np.float64],
    free: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    workers: NDArray[np.int64],
    servers: NDArray[np.int64],
    internal_servers: NDArray[np.int64],
    gains: NDArray[np.int64],
    internal_gains: NDArray[np.int64],
    method: int,
    spread: bool,
    gain: float,
    delta: float,
    tries: int,
    streams: NDArray[np.uint64],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Cost every number of workers, at either rate, in every distinct slot.

    Parameters
    ----------
    price_worker, price_server : ndarray of float64, shape (slots, machines)
        Prices of a worker and of a parameter server, one row for slots in the same state.
    free : ndarray of int64, shape (slots, machines, resources)
        Free amounts.
    worker, server, workers, servers, method, spread, gain, delta, tries
        As in `placement.place_external`.
    internal_servers : ndarray of int64, shape (choices,) or (0,)
        As in `placement.place_internal`.
    gains, internal_gains : ndarray of int64, shape (choices,)
        Progress units of each number of workers at each rate.
    streams : ndarray of uint64, shape (slots,)
        Selects the draws of each row.

    Returns
    -------
    cost : ndarray of float64, shape (slots, 2 * choices)
        External choices first, then internal ones; inf where there is no placement, or where
        an internal choice of that slot is as cheap and gains as much.
    machine : ndarray of int64, shape (slots, choices)
        Machine of each internal choice, -1 for none.
    relaxed : ndarray of float64, shape (slots, choices)
        Lower bounds of the external choices.
    rounds : ndarray of int64, shape (slots, choices)
        As in `placement.place_external`.

    Notes
    -----
    Where `internal_servers` are `servers`, no external choice that is left stands on one machine:
    it would cost at least its internal rival. Where they are not, `spread` sees to it. So a plan's
    rate is always the one that its placement has by Fact 1.
    """
    slots, machines = price_worker.shape
    choices = len(workers)
    cost = np.empty((slots, 2 * choices))
    machine = np.empty((slots, choices), np.int64)
    relaxed = np.empty((slots, choices))
    rounds = np.empty((slots, choices), np.int64)
    scratch_w = np.zeros(machines, np.int64)
    scratch_s = np.zeros(machines, np.int64)
    for t in range(slots):
        cost[t, choices:], machine[t] = place_internal(
            price_worker[t], price_server[t], free[t], worker, server, workers, internal_servers
        )
        enough = internal_rivals(cost[t, choices:], gains, internal_gains)
        cost[t, :choices], relaxed[t], rounds[t] = place_external(
            price_worker[t],
            price_server[t],
            free[t],
            worker,
            server,
            workers,
            servers,
            enough,
            method,
            spread,
            gain,
            delta,
            tries,
            streams[t],
            -1,
            scratch_w,
            scratch_s,
        )
        for i in range(choices):
            if cost[t, i] >= enough[i]:
                cost[t, i] = np.inf
    return cost, machine, relaxed, rounds

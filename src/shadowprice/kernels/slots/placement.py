"""PD-ORS's theta(t, v), problem (3.18), for every number of workers of one slot in one pass.

theta depends on the workload only through the number of workers (papers' README, reading 12), so a
slot has two choices a number of workers: the cheapest machine that holds everything (internal rate,
Fact 1) and the cheapest placement on several machines (external rate).
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.slots.coupled_lp import (
    DUAL_S,
    DUAL_W,
    FLOATS,
    INTEGERS,
    advance,
    path_cost,
    path_point,
    start_path,
)
from shadowprice.kernels.slots.exact import place_exactly, search_placement
from shadowprice.kernels.slots.greedy import (
    cheapest_machines,
    machines_by_price,
    place_greedily,
    placement_cost,
    repair,
    shed,
    stands_alone,
)
from shadowprice.kernels.slots.polygons import slot_corners
from shadowprice.kernels.slots.rounding import gain_factor, mix, round_feasibly

RANDOMISED, EXACT, GREEDY = range(3)
"""How an external placement is found: Algorithm 4, the optimum, or cheapest first."""

SKIPPED, REPAIRED, SEARCHED = 0, -1, -2
"""What `rounds` says where no rounding succeeded: not tried, repaired, found by exact search."""


@kernel
def place_external(
    price_worker: NDArray[np.float64],
    price_server: NDArray[np.float64],
    free: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    workers: NDArray[np.int64],
    servers: NDArray[np.int64],
    enough: NDArray[np.float64],
    method: int,
    spread: bool,
    gain: float,
    delta: float,
    tries: int,
    stream: np.uint64,
    only: int,
    out_w: NDArray[np.int64],
    out_s: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Place each number of workers of one slot at the external rate.

    Parameters
    ----------
    price_worker, price_server : ndarray of float64, shape (machines,)
        Price of a worker and of a parameter server on each machine, p^w and p^s of (3.22), not
        negative; a machine where either is not finite is not used.
    free : ndarray of int64, shape (machines, resources)
        Free amounts, C^ of (3.23).
    worker, server : ndarray of int64, shape (resources,)
        alpha, beta.
    workers, servers : ndarray of int64, shape (choices,)
        The pairs to place: numbers of workers, rising, and the servers each needs, not falling
        and not more than the workers (3.5). The last number of workers is K of (3.2).
    enough : ndarray of float64, shape (choices,)
        A choice whose relaxed cost is at least this is left out: something better is known.
        inf to leave out none.
    method : int
        RANDOMISED, EXACT or GREEDY.
    spread : bool
        Whether a placement on one machine is forbidden (the literal reading of (3.4), where it
        would communicate at a rate for which it lacks servers). Otherwise one machine is allowed:
        the internal choice is then as good.
    gain, delta : float
        G of the rounding; where it is 0, G follows from delta by Theorem 2.
    tries : int
        Most rounds of rounding before the repair.
    stream : uint64
        Selects the draws, of `rounding.mix` over seed, job and slot.
    only : int
        Place this choice alone and leave it in `out_w` and `out_s`; -1 for all. Its placement is
        the one that the pass over all finds.
    out_w, out_s : ndarray of int64, shape (machines,)
        Work space, and the placement asked for.

    Returns
    -------
    cost : ndarray of float64, shape (choices,)
        Cost of exactly so many workers and servers; inf where there is no placement or a better
        choice is known.
    relaxed : ndarray of float64, shape (choices,)
        Lower bound: the relaxation's optimum (over integer hulls with EXACT).
    rounds : ndarray of int64, shape (choices,)
        Rounds of rounding, or SKIPPED, REPAIRED, SEARCHED.

    Notes
    -----
    Rounding with G > 1 may place more than was asked; the surplus is shed, dearest first, so that
    a choice adds what the plan says. It only ever lowers the cost.
    """
    choices, machines = len(workers), len(price_worker)
    cost = np.full(choices, np.inf)
    relaxed = np.full(choices, np.inf)
    rounds = np.zeros(choices, np.int64)
    whole = method == EXACT
    most = workers[choices - 1]
    begin, corner_w, corner_s, corner_cost, first, count, following = slot_corners(
        price_worker, price_server, free, worker, server, most, servers[choices - 1], whole
    )
    key = np.empty(len(first), np.int64)
    state = np.empty(FLOATS)
    basis = np.empty(INTEGERS, np.int64)
    start_path(begin, key, state, basis)
    point_w = np.empty(machines)
    point_s = np.empty(machines)
    order_w = np.empty(0, np.int64)
    order_s = order_w
    for i in range(choices):
        m_w, m_p = workers[i], servers[i]
        if not advance(
            begin, corner_w, corner_s, corner_cost, key, state, basis, float(m_w), float(m_p)
        ):
            break
        relaxed[i] = path_cost(corner_cost, key, state, basis)
        if relaxed[i] >= enough[i] or 0 <= only != i:
            continue
        if method != GREEDY:
            path_point(
                corner_w,
                corner_s,
                key,
                state,
                basis,
                first,
                count,
                following,
                point_w,
                point_s,
            )
        if method == RANDOMISED:
            factor = gain
            if factor == 0.0:
                rows, cover = 2, min(m_w, m_p)
                if m_p == 0:
                    rows, cover = 1, m_w
                factor = gain_factor(delta, rows, cover)
            tried, _ = round_feasibly(
                point_w,
                point_s,
                free,
                worker,
                server,
                m_w,
                m_p,
                most,
                factor,
                tries,
                mix(stream, m_w),
                out_w,
                out_s,
            )
            if tried > 0:
                shed(price_worker, out_w, m_w)
                shed(price_server, out_s, m_p)
                cost[i] = placement_cost(price_worker, price_server, out_w, out_s)
                rounds[i] = tried
        if cost[i] == np.inf:
            if len(order_w) == 0:
                order_w = machines_by_price(price_worker, price_server)
                order_s = machines_by_price(price_server, price_worker)
            if method == GREEDY:
                cost[i] = place_greedily(
                    price_worker,
                    price_server,
                    order_w,
                    order_s,
                    free,
                    worker,
                    server,
                    m_w,
                    m_p,
                    out_w,
                    out_s,
                )
            else:
                cost[i] = repair(
                    price_worker,
                    price_server,
                    order_w,
                    order_s,
                    free,
                    worker,
                    server,
                    point_w,
                    point_s,
                    m_w,
                    m_p,
                    out_w,
                    out_s,
                )
            rounds[i] = REPAIRED
        if spread and cost[i] < np.inf and stands_alone(out_w, out_s):
            cost[i] = np.inf
        if method == EXACT:
            cost[i] = place_exactly(
                price_worker,
                price_server,
                free,
                worker,
                server,
                begin,
                corner_w,
                corner_s,
                corner_cost,
                first,
                count,
                following,
                relaxed[i],
                state[DUAL_W],
                state[DUAL_S],
                m_w,
                m_p,
                spread,
                cost[i],
                out_w,
                out_s,
            )
            rounds[i] = SEARCHED
        elif cost[i] == np.inf:
            # What fits is never missed: the rest is left to the exact search.
            cost[i] = search_placement(
                price_worker, price_server, free, worker, server, m_w, m_p, spread, out_w, out_s
            )
            rounds[i] = SEARCHED
        if cost[i] == np.inf and not spread:
            # Less is never harder to place: nothing larger has a placement either.
            break
    return cost, relaxed, rounds


@kernel
def place_internal(
    price_worker: NDArray[np.float64],
    price_server: NDArray[np.float64],
    free: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    workers: NDArray[np.int64],
    servers: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Place each number of workers of one slot on one machine, at the internal rate.

    Parameters
    ----------
    price_worker, price_server, free, worker, server, workers
        As in `place_external`.
    servers : ndarray of int64, shape (choices,)
        Servers that each needs beside it: ceil(w b_e / B), or ceil(w b_i / B) by the letter of
        (3.4) (papers' README, reading 10); empty where one machine is not allowed.

    Returns
    -------
    cost : ndarray of float64, shape (choices,)
        Least cost, inf where no machine holds everything.
    machine : ndarray of int64, shape (choices,)
        The machine, the lowest of equals, -1 for none.
    """
    cost = np.full(len(workers), np.inf)
    machine = np.full(len(workers), -1, np.int64)
    if len(servers) > 0:
        cheapest_machines(
            price_worker,
            price_server,
            np.arange(len(price_worker)),
            free,
            worker,
            server,
            workers,
            servers,
            cost,
            machine,
        )
    return cost, machine

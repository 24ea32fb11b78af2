"""The exact placement of one slot: (3.22) in integers.

The relaxation over the hulls of each machine's integer points (`coupled_lp`, ``whole=True``) leaves
at most two machines between corners, so its optimum is a tight bound and its multipliers price
every point of every machine: a placement costs the bound plus the reduced costs of its points,
none negative. With a placement in hand, only points whose reduced cost is inside the gap can be
part of a better one: machines left with one such point are settled, and a dynamic program over the
totals of the others finds the optimum.
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
    start_path,
)
from shadowprice.kernels.slots.greedy import placement_cost
from shadowprice.kernels.slots.polygons import most_servers, slot_corners

EXACT = 1e-12
"""Costs closer than this, relative to the largest terms, are equal."""


@kernel
def _core_points(
    price_w: float,
    price_s: float,
    room: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    workers: int,
    servers: int,
    spread: bool,
    dual_w: float,
    dual_s: float,
    base: float,
    budget: float,
    out_w: NDArray[np.int64],
    out_s: NDArray[np.int64],
    out_cost: NDArray[np.float64],
) -> int:
    """Write a machine's points whose reduced cost is within `budget`, if there is where to.

    Returns how many there are, so that a first call with empty arrays says what to allocate.
    """
    points = 0
    for w in range(workers + 1):
        top = most_servers(room, worker, server, w, servers)
        if top < 0:
            break
        for s in range(top + 1):
            if spread and w == workers and s == servers:
                continue
            reduced = (price_w * w + price_s * s) - dual_w * w - dual_s * s - base
            if reduced <= budget:
                if len(out_w) > 0:
                    out_w[points] = w
                    out_s[points] = s
                    out_cost[points] = max(reduced, 0.0)
                points += 1
    return points


@kernel
def place_exactly(
    price_worker: NDArray[np.float64],
    price_server: NDArray[np.float64],
    free: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    begin: NDArray[np.int64],
    corner_w: NDArray[np.float64],
    corner_s: NDArray[np.float64],
    corner_cost: NDArray[np.float64],
    first: NDArray[np.int64],
    count: NDArray[np.int64],
    following: NDArray[np.int64],
    bound: float,
    dual_w: float,
    dual_s: float,
    workers: int,
    servers: int,
    spread: bool,
    best: float,
    out_w: NDArray[np.int64],
    out_s: NDArray[np.int64],
) -> float:
    """Find a cheapest placement of `workers` and `servers`.

    Parameters
    ----------
    price_worker, price_server, free, worker, server
        The slot, as in `coupled_lp.solve_slots_lp`.
    begin, corner_w, corner_s, corner_cost, first, count, following
        Its classes and the corners of their integer hulls (`polygons.slot_corners`).
    bound, dual_w, dual_s : float
        Optimum and multipliers of the relaxation over those hulls.
    workers, servers : int
        Wanted in all, m_w and m_p.
    spread : bool
        Forbid that everything stands on one machine.
    best : float
        Cost of the placement in `out_w` and `out_s`; inf if there is none yet.
    out_w, out_s : ndarray of int64, shape (machines,)
        A placement on entry where `best` is finite; an optimal one on return.

    Returns
    -------
    float
        Its cost; inf if there is none.
    """
    classes = len(first)
    machines = len(price_worker)
    # No placement costs more than every unit at the dearest class that holds something.
    dear_w, dear_s = 0.0, 0.0
    base = np.empty(classes)
    members = 0
    for c in range(classes):
        dear_w = max(dear_w, price_worker[first[c]])
        dear_s = max(dear_s, price_server[first[c]])
        members += count[c]
        least = np.inf
        for j in range(begin[c], begin[c + 1]):
            least = min(least, corner_cost[j] - dual_w * corner_w[j] - dual_s * corner_s[j])
        base[c] = least / count[c]
    slack = EXACT * (bound + dual_w * workers + dual_s * servers)
    ceiling = dear_w * workers + dear_s * servers
    if np.isfinite(best):
        if best - bound <= slack:
            return best
        budget = best - bound
    else:
        # Nothing in hand: widen the gap until something is found or nothing is left out.
        budget = max(dual_w, dual_s)
    none = np.empty(0, np.int64)
    core = np.empty(classes, np.int64)
    start = np.zeros(classes + 1, np.int64)
    loose = np.empty(members, np.int64)
    loose_class = np.empty(members, np.int64)
    while True:
        for c in range(classes):
            h = first[c]
            core[c] = _core_points(
                price_worker[h],
                price_server[h],
                free[h],
                worker,
                server,
                workers,
                servers,
                spread,
                dual_w,
                dual_s,
                base[c],
                budget + slack,
                none,
                none,
                np.empty(0),
            )
            start[c + 1] = start[c] + core[c]
        core_w = np.empty(start[classes], np.int64)
        core_s = np.empty(start[classes], np.int64)
        core_cost = np.empty(start[classes])
        done_w, done_s, n = 0, 0, 0
        for c in range(classes):
            h, at = first[c], start[c]
            if core[c] == 0:
                continue
            _core_points(
                price_worker[h],
                price_server[h],
                free[h],
                worker,
                server,
                workers,
                servers,
                spread,
                dual_w,
                dual_s,
                base[c],
                budget + slack,
                core_w[at:],
                core_s[at:],
                core_cost[at:],
            )
            if core[c] == 1:
                done_w += count[c] * core_w[at]
                done_s += count[c] * core_s[at]
                continue
            while h >= 0:
                loose[n] = h
                loose_class[n] = c
                n += 1
                h = following[h]
        rest_w, rest_s = workers - done_w, servers - done_s
        settled = core.min() > 0 if classes > 0 else True
        if settled and rest_w >= 0 and rest_s >= 0:
            wide = rest_s + 1
            states = (rest_w + 1) * wide
            value = np.full((n + 1, states), np.inf)
            taken = np.full((n, states), -1, np.int32)
            value[0, 0] = 0.0
            top_w, top_s = 0, 0
            for i in range(n):
                c = loose_class[i]
                next_w, next_s = top_w, top_s
                for p in range(start[c], start[c + 1]):
                    w, s, extra = core_w[p], core_s[p], core_cost[p]
                    last_w, last_s = min(top_w, rest_w - w), min(top_s, rest_s - s)
                    if last_w >= 0 and last_s >= 0:
                        next_w = max(next_w, last_w + w)
                        next_s = max(next_s, last_s + s)
                    for x in range(last_w + 1):
                        shift = (x + w) * wide + s
                        for y in range(last_s + 1):
                            cost = value[i, x * wide + y] + extra
                            if cost < value[i + 1, shift + y] and cost <= budget + slack:
                                value[i + 1, shift + y] = cost
                                taken[i, shift + y] = p
                top_w, top_s = next_w, next_s
            if value[n, states - 1] < np.inf:
                at_w = np.zeros(machines, np.int64)
                at_s = np.zeros(machines, np.int64)
                for c in range(classes):
                    h = first[c]
                    while h >= 0 and core[c] == 1:
                        at_w[h] = core_w[start[c]]
                        at_s[h] = core_s[start[c]]
                        h = following[h]
                state = states - 1
                for i in range(n - 1, -1, -1):
                    p = taken[i, state]
                    at_w[loose[i]] = core_w[p]
                    at_s[loose[i]] = core_s[p]
                    state -= core_w[p] * wide + core_s[p]
                cost = placement_cost(price_worker, price_server, at_w, at_s)
                if cost < best:
                    best = cost
                    out_w[:] = at_w
                    out_s[:] = at_s
        if np.isfinite(best) or bound + budget >= ceiling:
            return best
        budget = max(4.0 * budget, EXACT * ceiling)


@kernel
def search_placement(
    price_worker: NDArray[np.float64],
    price_server: NDArray[np.float64],
    free: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    workers: int,
    servers: int,
    spread: bool,
    out_w: NDArray[np.int64],
    out_s: NDArray[np.int64],
) -> float:
    """Find a cheapest placement of one pair from nothing.

    Parameters
    ----------
    price_worker, price_server, free, worker, server, workers, servers, spread
        As in `place_exactly`.
    out_w, out_s : ndarray of int64, shape (machines,)
        The placement; written where there is one.

    Returns
    -------
    float
        Its cost; inf if there is none.
    """
    begin, corner_w, corner_s, corner_cost, first, count, following = slot_corners(
        price_worker, price_server, free, worker, server, workers, servers, True
    )
    key = np.empty(len(first), np.int64)
    state = np.empty(FLOATS)
    basis = np.empty(INTEGERS, np.int64)
    start_path(begin, key, state, basis)
    if not advance(
        begin,
        corner_w,
        corner_s,
        corner_cost,
        key,
        state,
        basis,
        float(workers),
        float(servers),
    ):
        return np.inf
    return place_exactly(
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
        path_cost(corner_cost, key, state, basis),
        state[DUAL_W],
        state[DUAL_S],
        workers,
        servers,
        spread,
        np.inf,
        out_w,
        out_s,
    )

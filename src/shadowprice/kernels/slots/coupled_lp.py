"""The linear relaxation of PD-ORS (3.22): many small polygons under two coupling rows.

``min sum_h (pw_h w_h + ps_h s_h)`` with ``sum w >= m_w``, ``sum s >= m_p`` and each machine's
``(w_h, s_h)`` in its polygon. Written over corners (Dantzig-Wolfe), every machine has one convexity
row, and all but two basic columns are one *key* corner a machine (generalised upper bounds): the
whole basis is a corner a machine and two further columns, each a second corner of some machine or
the surplus of a coupling row. All linear algebra is 2 x 2.

The path starts where both demands are 0: every machine at the origin, both surpluses basic, which
is optimal since prices are not negative. Raising the demands along a straight line keeps the basis
optimal up to a breakpoint; a dual simplex pivot passes it. So one pass gives the optimum for every
number of workers in turn, a few pivots each, and an infeasible demand shows as a pivot that no
column can answer.

Ties: the demands are taken as an infinitesimal (eps, eps^2) below their values. No two basic
variables then vanish at once (their rows of the inverse are independent), so that the line
parameter strictly grows from pivot to pivot and no basis comes twice, equal prices or not.
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.slots.polygons import slot_corners

TIE = 1e-11
"""Weights closer than this are equal; the infinitesimal part decides."""

ROUNDING = 8e-16
"""Reduced costs below this share of their terms are zero."""

WORKER_SURPLUS = -1
SERVER_SURPLUS = -2

# Rows of the float state and of the integer state; see `start_path`.
DEMAND_W, DEMAND_S, KEY_W, KEY_S, KEY_COST, WEIGHT_0, WEIGHT_1, DUAL_W, DUAL_S = range(9)
FLOATS = 9
COLUMN_0, COLUMN_1, OWNER_0, OWNER_1, PIVOTS = range(5)
INTEGERS = 5


@kernel
def start_path(
    begin: NDArray[np.int64],
    key: NDArray[np.int64],
    state: NDArray[np.float64],
    basis: NDArray[np.int64],
) -> None:
    """Set the basis that is optimal for no demand at all.

    Parameters
    ----------
    begin : ndarray of int64, shape (classes + 1,)
        Where each class's corners begin in the corner arrays; its origin comes first.
    key : ndarray of int64, shape (classes,)
        Key corner of each class; written.
    state : ndarray of float64, shape (FLOATS,)
        Demands, sums over key corners, weights of the two columns, duals; written.
    basis : ndarray of int64, shape (INTEGERS,)
        The two columns (a corner or a surplus), their classes, pivots so far; written.
    """
    key[:] = begin[:-1]
    state[:] = 0.0
    basis[COLUMN_0] = WORKER_SURPLUS
    basis[COLUMN_1] = SERVER_SURPLUS
    basis[OWNER_0] = -1
    basis[OWNER_1] = -1
    basis[PIVOTS] = 0


@kernel
def _sum_keys(
    w: NDArray[np.float64],
    s: NDArray[np.float64],
    cost: NDArray[np.float64],
    key: NDArray[np.int64],
    state: NDArray[np.float64],
) -> None:
    """Sum workers, servers and cost over the key corners, afresh: no drift."""
    sum_w, sum_s, sum_cost = 0.0, 0.0, 0.0
    for c in range(len(key)):
        sum_w += w[key[c]]
        sum_s += s[key[c]]
        sum_cost += cost[key[c]]
    state[KEY_W] = sum_w
    state[KEY_S] = sum_s
    state[KEY_COST] = sum_cost


@kernel
def advance(
    begin: NDArray[np.int64],
    w: NDArray[np.float64],
    s: NDArray[np.float64],
    cost: NDArray[np.float64],
    key: NDArray[np.int64],
    state: NDArray[np.float64],
    basis: NDArray[np.int64],
    workers: float,
    servers: float,
) -> bool:
    """Move an optimal basis along a straight line to new demands.

    Parameters
    ----------
    begin : ndarray of int64, shape (classes + 1,)
        Where each class's corners begin.
    w, s, cost : ndarray of float64, shape (corners,)
        Workers, servers and cost of each corner; costs are not negative.
    key, state, basis
        The basis, of `start_path` or of an `advance` that returned True; updated.
    workers, servers : float
        The new demands, m_w and m_p.

    Returns
    -------
    bool
        False if no placement meets the demands; the basis then means nothing.

    Raises
    ------
    RuntimeError
        If the pivots do not end, which would be a defect of this method.
    """
    from_w, from_s = state[DEMAND_W], state[DEMAND_S]
    along_w, along_s = workers - from_w, servers - from_s
    state[DEMAND_W], state[DEMAND_S] = workers, servers
    classes = len(key)
    limit = basis[PIVOTS] + 1000 + 20 * len(w)
    leaving = -1
    while True:
        column_0, column_1 = basis[COLUMN_0], basis[COLUMN_1]
        owner_0, owner_1 = basis[OWNER_0], basis[OWNER_1]
        # The two columns, relative to their classes' key corners.
        a_w, a_s, a_cost = -1.0, 0.0, 0.0
        if column_0 == SERVER_SURPLUS:
            a_w, a_s = 0.0, -1.0
        elif column_0 >= 0:
            k = key[owner_0]
            a_w, a_s, a_cost = w[column_0] - w[k], s[column_0] - s[k], cost[column_0] - cost[k]
        b_w, b_s, b_cost = -1.0, 0.0, 0.0
        if column_1 == SERVER_SURPLUS:
            b_w, b_s = 0.0, -1.0
        elif column_1 >= 0:
            k = key[owner_1]
            b_w, b_s, b_cost = w[column_1] - w[k], s[column_1] - s[k], cost[column_1] - cost[k]
        det = a_w * b_s - b_w * a_s
        # Rows of the inverse: weight i = row_i . (demand - key sum).
        r0_w, r0_s, r1_w, r1_s = b_s / det, -b_w / det, -a_s / det, a_w / det
        dual_w = a_cost * r0_w + b_cost * r1_w
        dual_s = a_cost * r0_s + b_cost * r1_s
        if leaving < 0:
            # Which basic variable vanishes first on the way from demand `from` (at 0) to the
            # new one (at 1)? Four candidates: the two columns and their classes' key corners.
            rest_w, rest_s = from_w - state[KEY_W], from_s - state[KEY_S]
            x_0 = r0_w * rest_w + r0_s * rest_s
            x_1 = r1_w * rest_w + r1_s * rest_s
            first, first_1, first_2 = 1.0, 0.0, 0.0
            for i in range(4):
                if i == 0:
                    value, row_w, row_s = x_0, r0_w, r0_s
                elif i == 1:
                    value, row_w, row_s = x_1, r1_w, r1_s
                elif i == 2:
                    if column_0 < 0:
                        continue
                    value, row_w, row_s = 1.0 - x_0, -r0_w, -r0_s
                    if owner_1 == owner_0:
                        value, row_w, row_s = value - x_1, row_w - r1_w, row_s - r1_s
                else:
                    if column_1 < 0 or owner_1 == owner_0:
                        continue
                    value, row_w, row_s = 1.0 - x_1, -r1_w, -r1_s
                down = -(row_w * along_w + row_s * along_s)
                if down <= TIE * (abs(row_w * along_w) + abs(row_s * along_s)):
                    continue
                when = max(value, 0.0) / down
                when_1, when_2 = -row_w / down, -row_s / down
                if abs(value - first * down) > TIE:
                    sooner = when < first
                elif when_1 != first_1:
                    sooner = when_1 < first_1
                else:
                    sooner = when_2 < first_2
                if sooner:
                    first, first_1, first_2 = when, when_1, when_2
                    leaving = i
            if leaving < 0:
                rest_w, rest_s = workers - state[KEY_W], servers - state[KEY_S]
                state[WEIGHT_0] = max(r0_w * rest_w + r0_s * rest_s, 0.0)
                state[WEIGHT_1] = max(r1_w * rest_w + r1_s * rest_s, 0.0)
                state[DUAL_W] = max(dual_w, 0.0)
                state[DUAL_S] = max(dual_s, 0.0)
                return True
            if leaving >= 2:
                # A key corner leaves: it trades places with its column, which then leaves.
                leaving -= 2
                owner = basis[OWNER_0 + leaving]
                key[owner], basis[COLUMN_0 + leaving] = basis[COLUMN_0 + leaving], key[owner]
                _sum_keys(w, s, cost, key, state)
                continue
        row_w, row_s = r0_w, r0_s
        if leaving == 1:
            row_w, row_s = r1_w, r1_s
        # Dual ratio test: the column whose reduced cost a turn of the duals uses up first.
        best, best_slope, entering, entering_owner = np.inf, 0.0, -3, -1
        if WORKER_SURPLUS not in (column_0, column_1) and row_w > 0.0:
            best, best_slope, entering = max(dual_w, 0.0) / row_w, row_w, WORKER_SURPLUS
        if SERVER_SURPLUS not in (column_0, column_1) and row_s > 0.0:
            ratio = max(dual_s, 0.0) / row_s
            if ratio < best or (ratio == best and row_s > best_slope):
                best, best_slope, entering = ratio, row_s, SERVER_SURPLUS
        for c in range(classes):
            k = key[c]
            k_w, k_s, k_cost = w[k], s[k], cost[k]
            for j in range(begin[c], begin[c + 1]):
                part_w, part_s = w[j] - k_w, s[j] - k_s
                slope = -(row_w * part_w + row_s * part_s)
                if slope <= 0.0:
                    continue
                reduced = (cost[j] - k_cost) - dual_w * part_w - dual_s * part_s
                # The comparison that most corners fail, without a division.
                if reduced > best * slope:
                    continue
                if slope <= TIE * (abs(row_w * part_w) + abs(row_s * part_s)):
                    continue
                if reduced < ROUNDING * (
                    cost[j] + k_cost + abs(dual_w * part_w) + abs(dual_s * part_s)
                ):
                    reduced = 0.0
                ratio = reduced / slope
                if ratio < best or slope > best_slope:
                    best, best_slope, entering, entering_owner = ratio, slope, j, c
        if entering == -3:
            return False
        if entering < 0:
            entering_owner = -1
        basis[COLUMN_0 + leaving] = entering
        basis[OWNER_0 + leaving] = entering_owner
        basis[PIVOTS] += 1
        if basis[PIVOTS] > limit:
            raise RuntimeError("the coupled linear program does not settle: please report it")
        leaving = -1


@kernel
def path_cost(
    cost: NDArray[np.float64],
    key: NDArray[np.int64],
    state: NDArray[np.float64],
    basis: NDArray[np.int64],
) -> float:
    """Return the optimum at the demands last reached, the primal cost of the basis."""
    total: float = state[KEY_COST]
    for i in range(2):
        column = basis[COLUMN_0 + i]
        if column >= 0:
            total += state[WEIGHT_0 + i] * (cost[column] - cost[key[basis[OWNER_0 + i]]])
    return max(total, 0.0)


@kernel
def path_point(
    w: NDArray[np.float64],
    s: NDArray[np.float64],
    key: NDArray[np.int64],
    state: NDArray[np.float64],
    basis: NDArray[np.int64],
    first: NDArray[np.int64],
    count: NDArray[np.int64],
    following: NDArray[np.int64],
    out_w: NDArray[np.float64],
    out_s: NDArray[np.float64],
) -> None:
    """Write the basic solution machine by machine, classes shared out corner by corner.

    Parameters
    ----------
    w, s : ndarray of float64, shape (corners,)
        Corners of the classes, `count` times those of one machine.
    key, state, basis
        The basis that `advance` reached.
    first, count, following
        The classes of `polygons.group_machines`.
    out_w, out_s : ndarray of float64, shape (machines,)
        Workers and servers on each machine; written. At most two machines stand between
        corners.
    """
    out_w[:] = 0.0
    out_s[:] = 0.0
    for c in range(len(key)):
        many = count[c]
        k_w, k_s = w[key[c]] / many, s[key[c]] / many
        # Shares of the class that stand at each basic corner, in machines.
        at_0, at_1 = 0.0, 0.0
        a_w, a_s, b_w, b_s = 0.0, 0.0, 0.0, 0.0
        if basis[OWNER_0] == c:
            at_0 = state[WEIGHT_0] * many
            a_w, a_s = w[basis[COLUMN_0]] / many, s[basis[COLUMN_0]] / many
        if basis[OWNER_1] == c:
            at_1 = state[WEIGHT_1] * many
            b_w, b_s = w[basis[COLUMN_1]] / many, s[basis[COLUMN_1]] / many
        if k_w == 0.0 and k_s == 0.0 and at_0 == 0.0 and at_1 == 0.0:
            continue
        h = first[c]
        while h >= 0:
            # Whole machines at the first column, then at the second, then mixtures, then the key.
            if at_0 >= 1.0 - TIE:
                part_0, part_1 = 1.0, 0.0
            elif at_1 >= 1.0 - TIE:
                part_0, part_1 = 0.0, 1.0
            else:
                part_0 = max(at_0, 0.0)
                part_1 = max(min(at_1, 1.0 - part_0), 0.0)
            at_0 -= part_0
            at_1 -= part_1
            left = max(1.0 - part_0 - part_1, 0.0)
            out_w[h] = left * k_w + part_0 * a_w + part_1 * b_w
            out_s[h] = left * k_s + part_0 * a_s + part_1 * b_s
            h = following[h]


@kernel
def solve_slots_lp(
    price_worker: NDArray[np.float64],
    price_server: NDArray[np.float64],
    free: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    workers: NDArray[np.int64],
    servers: NDArray[np.int64],
    whole: bool,
    solutions: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Solve one slot's relaxation of (3.22) for a rising sequence of demands.

    Parameters
    ----------
    price_worker, price_server : ndarray of float64, shape (machines,)
        Prices of a worker and of a parameter server on each machine, not negative; a machine
        whose price is not finite is not used.
    free : ndarray of int64, shape (machines, resources)
        Free amounts, C^ in (3.23).
    worker, server : ndarray of int64, shape (resources,)
        alpha and beta.
    workers, servers : ndarray of int64, shape (demands,)
        m_w and m_p, neither falling.
    whole : bool
        Relax to the hull of each machine's integer points, the tighter bound, rather than to
        its polygon, which is the paper's.
    solutions : ndarray of float64, shape (demands, 2, machines) or (0, 0, 0)
        Where the workers and the servers of each solution go, if wanted.

    Returns
    -------
    cost : ndarray of float64, shape (demands,)
        The optima, inf from the first demand that cannot be met.
    duals : ndarray of float64, shape (demands, 2)
        Multipliers of (3.24) and (3.25).
    pivots : int
        Pivots made.
    """
    demands = len(workers)
    optima = np.full(demands, np.inf)
    duals = np.zeros((demands, 2))
    begin, w, s, cost, first, count, following = slot_corners(
        price_worker,
        price_server,
        free,
        worker,
        server,
        workers[demands - 1],
        servers[demands - 1],
        whole,
    )
    key = np.empty(len(first), np.int64)
    state = np.empty(FLOATS)
    basis = np.empty(INTEGERS, np.int64)
    start_path(begin, key, state, basis)
    for i in range(demands):
        if not advance(begin, w, s, cost, key, state, basis, float(workers[i]), float(servers[i])):
            break
        optima[i] = path_cost(cost, key, state, basis)
        duals[i, 0] = state[DUAL_W]
        duals[i, 1] = state[DUAL_S]
        if len(solutions) > 0:
            path_point(
                w, s, key, state, basis, first, count, following, solutions[i, 0], solutions[i, 1]
            )
    return optima, duals, basis[PIVOTS]

"""The linear relaxation of PD-ORS (3.22): many small polygons under two coupling rows.

``min sum_h (pw_h w_h + ps_h s_h)`` with ``sum w >= m_w``, ``sum s >= m_p`` and each machine's
``(w_h, s_h)`` in its polygon. Written over corners (Dantzig-Wolfe), every machine has one convexity
row, and all but two basic columns are one *key* corner per machine (generalised upper bounds). So
the basis is a key corner per machine and two further columns, each a second corner of some machine
or the surplus of a coupling row. All linear algebra is 2 x 2. Equal machines are one class, which
takes the place of a machine.

The path starts with both demands at 0: every machine at the origin, both surpluses basic, which is
optimal because prices are not negative. Raising the demands along a straight line keeps the basis
optimal up to a breakpoint; a dual simplex pivot passes it. So one pass gives the optimum for every
number of workers in turn, with a few pivots each. A demand is infeasible if no column can enter.

Ties: the demands are taken as an infinitesimal (eps, eps^2) below their values. No two basic
variables then vanish at once (their rows of the inverse are independent). So the line parameter
strictly grows from pivot to pivot and no basis comes twice, even with equal prices.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined, kernel
from shadowprice.kernels.slots.polygons import Corners, Point, Slot, slot_corners

TIE = 1e-11
"""Weights closer than this are equal; the infinitesimal part decides."""

ROUNDING = 8e-16
"""Reduced costs below this share of their terms are zero."""

# Columns that aren't corners: surpluses of the two coupling rows, and none.
WORKER_SURPLUS = -1
PS_SURPLUS = -2
NO_COLUMN = -3

# Positions in `Path.state` and in `Path.basis`.
DEMAND_W, DEMAND_S, KEY_W, KEY_S, KEY_COST, WEIGHT_0, WEIGHT_1, DUAL_W, DUAL_S = range(9)
FLOATS = 9
COLUMN_0, COLUMN_1, OWNER_0, OWNER_1, PIVOTS = range(5)
FIRST, SECOND = constant(0), constant(1)
INTEGERS = 5


class Path(NamedTuple):
    """An optimal basis on its path along rising demands."""

    key: Integers  # key corner of each class
    state: Floats  # demands, sums over key corners, weights of the columns, duals
    basis: Integers  # the two columns (corner or surplus), their classes, pivots


class Column(NamedTuple):
    """A basic column, relative to its class's key corner, or a surplus."""

    w: float
    s: float
    cost: float


class Row(NamedTuple):
    """Two numbers, one for each coupling row: a row of the inverse, demands, or duals."""

    w: float
    s: float


@kernel
def start_path(corners: Corners) -> Path:
    """Return the basis that is optimal for zero demand."""
    key = corners.begin[:-1].copy()
    state = np.zeros(FLOATS)
    basis = np.empty(INTEGERS, np.int64)
    basis[COLUMN_0] = WORKER_SURPLUS
    basis[COLUMN_1] = PS_SURPLUS
    basis[OWNER_0] = -1
    basis[OWNER_1] = -1
    basis[PIVOTS] = 0
    return Path(key, state, basis)


@inlined
def _sum_keys(corners: Corners, path: Path) -> None:
    """Sum over the key corners again, so that rounding errors don't accumulate."""
    w, s, cost = corners.w, corners.s, corners.cost
    key, state = path.key, path.state
    sum_w, sum_s, sum_cost = 0.0, 0.0, 0.0
    for c in range(len(key)):
        sum_w += w[key[c]]
        sum_s += s[key[c]]
        sum_cost += cost[key[c]]
    state[KEY_W] = sum_w
    state[KEY_S] = sum_s
    state[KEY_COST] = sum_cost


@kernel
def _column(corners: Corners, path: Path, index: int) -> Column:
    """Return a basic column, the `FIRST` or the `SECOND`."""
    corner = path.basis[COLUMN_0 + index]
    if corner == WORKER_SURPLUS:
        return Column(-1.0, 0.0, 0.0)
    if corner == PS_SURPLUS:
        return Column(0.0, -1.0, 0.0)
    k = path.key[path.basis[OWNER_0 + index]]
    return Column(
        corners.w[corner] - corners.w[k],
        corners.s[corner] - corners.s[k],
        corners.cost[corner] - corners.cost[k],
    )


@inlined
def _leaving_variable(path: Path, row_0: Row, row_1: Row, start: Row, along: Row) -> int:
    """Return the basic variable that reaches 0 first on the way to the new demands.

    ``start`` are the old demands, and ``along`` the difference of the new ones. Four candidates:
    the two columns (0, 1) and their classes' key corners (2, 3); -1 for none.
    """
    column_0, column_1 = path.basis[COLUMN_0], path.basis[COLUMN_1]
    owner_0, owner_1 = path.basis[OWNER_0], path.basis[OWNER_1]
    rest_w, rest_s = start.w - path.state[KEY_W], start.s - path.state[KEY_S]
    x_0 = row_0.w * rest_w + row_0.s * rest_s
    x_1 = row_1.w * rest_w + row_1.s * rest_s
    leaving = -1
    # The line parameter (1 at the new demands) at which one leaves, and its infinitesimal parts.
    first, first_1, first_2 = 1.0, 0.0, 0.0
    for i in range(4):
        if i == 0:
            value, row_w, row_s = x_0, row_0.w, row_0.s
        elif i == 1:
            value, row_w, row_s = x_1, row_1.w, row_1.s
        elif i == 2:
            if column_0 < 0:
                continue
            value, row_w, row_s = 1.0 - x_0, -row_0.w, -row_0.s
            if owner_1 == owner_0:
                value, row_w, row_s = value - x_1, row_w - row_1.w, row_s - row_1.s
        else:
            if column_1 < 0 or owner_1 == owner_0:
                continue
            value, row_w, row_s = 1.0 - x_1, -row_1.w, -row_1.s
        down = -(row_w * along.w + row_s * along.s)  # how far the variable falls along the line
        if down <= TIE * (abs(row_w * along.w) + abs(row_s * along.s)):
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
    return leaving


@inlined
def _entering_column(corners: Corners, path: Path, row: Row, duals: Row) -> tuple[int, int]:
    """Return the column that the dual ratio test selects, or `NO_COLUMN`, and its class.

    ``row`` is the row of the inverse of the leaving variable.
    """
    w, s, cost = corners.w, corners.s, corners.cost
    column_0, column_1 = path.basis[COLUMN_0], path.basis[COLUMN_1]
    row_w, row_s = row.w, row.s
    dual_w, dual_s = duals.w, duals.s
    best, best_slope, entering, owner = np.inf, 0.0, NO_COLUMN, -1
    if WORKER_SURPLUS not in (column_0, column_1) and row_w > 0.0:
        best, best_slope, entering = max(dual_w, 0.0) / row_w, row_w, WORKER_SURPLUS
    if PS_SURPLUS not in (column_0, column_1) and row_s > 0.0:
        ratio = max(dual_s, 0.0) / row_s
        if ratio < best or (ratio == best and row_s > best_slope):
            best, best_slope, entering = ratio, row_s, PS_SURPLUS
    for c in range(len(path.key)):
        k = path.key[c]
        k_w, k_s, k_cost = w[k], s[k], cost[k]
        for j in range(corners.begin[c], corners.begin[c + 1]):
            part_w, part_s = w[j] - k_w, s[j] - k_s
            slope = -(row_w * part_w + row_s * part_s)
            if slope <= 0.0:
                continue
            reduced = (cost[j] - k_cost) - dual_w * part_w - dual_s * part_s
            # Most corners fail this test, so it avoids the division.
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
                best, best_slope, entering, owner = ratio, slope, j, c
    if entering < 0:
        owner = -1
    return entering, owner


@kernel
def advance(corners: Corners, path: Path, workers: float, ps_count: float) -> bool:
    """Move an optimal basis along a straight line to the demands m_w and m_p.

    ``path`` is updated; it comes from `start_path` or from an `advance` that returned True. Returns
    False if no placement meets the demands; the path is then meaningless.
    """
    key, state, basis = path
    start = Row(state[DEMAND_W], state[DEMAND_S])
    along = Row(workers - start.w, ps_count - start.s)
    state[DEMAND_W], state[DEMAND_S] = workers, ps_count
    limit = basis[PIVOTS] + 1000 + 20 * len(corners.w)  # far more than any path needs
    leaving = -1
    while True:
        a, b = _column(corners, path, FIRST), _column(corners, path, SECOND)
        det = a.w * b.s - b.w * a.s
        # Rows of the inverse: weight i = row_i . (demand - key sum).
        row_0 = Row(b.s / det, -b.w / det)
        row_1 = Row(-a.s / det, a.w / det)
        duals = Row(a.cost * row_0.w + b.cost * row_1.w, a.cost * row_0.s + b.cost * row_1.s)
        if leaving < 0:
            leaving = _leaving_variable(path, row_0, row_1, start, along)
            if leaving < 0:
                rest_w, rest_s = workers - state[KEY_W], ps_count - state[KEY_S]
                state[WEIGHT_0] = max(row_0.w * rest_w + row_0.s * rest_s, 0.0)
                state[WEIGHT_1] = max(row_1.w * rest_w + row_1.s * rest_s, 0.0)
                state[DUAL_W] = max(duals.w, 0.0)
                state[DUAL_S] = max(duals.s, 0.0)
                return True
            if leaving >= 2:
                # A key corner leaves: exchange it with its column, which then leaves.
                leaving -= 2
                owner = basis[OWNER_0 + leaving]
                key[owner], basis[COLUMN_0 + leaving] = basis[COLUMN_0 + leaving], key[owner]
                _sum_keys(corners, path)
                continue
        entering, owner = _entering_column(corners, path, row_1 if leaving == 1 else row_0, duals)
        if entering == NO_COLUMN:
            return False
        basis[COLUMN_0 + leaving] = entering
        basis[OWNER_0 + leaving] = owner
        basis[PIVOTS] += 1
        if basis[PIVOTS] > limit:
            raise RuntimeError("the coupled linear program does not settle: please report it")
        leaving = -1


@allocation_free
def path_cost(corners: Corners, path: Path) -> float:
    """Return the optimum at the current demands, the primal cost of the basis."""
    key, state, basis = path
    cost = corners.cost
    total: float = state[KEY_COST]
    for i in range(2):
        column = basis[COLUMN_0 + i]
        if column >= 0:
            total += state[WEIGHT_0 + i] * (cost[column] - cost[key[basis[OWNER_0 + i]]])
    return max(total, 0.0)


@allocation_free
def path_point(corners: Corners, path: Path, out: Point) -> None:
    """Write the basic solution by machine; at most two machines are between corners.

    The corners of a class are those of a machine times the machines in the class.
    """
    out_w, out_s = out
    _, w, s, _, first, count, following = corners
    key, state, basis = path
    out_w[:] = 0.0
    out_s[:] = 0.0
    for c in range(len(key)):
        members = count[c]
        k_w, k_s = w[key[c]] / members, s[key[c]] / members
        # How many machines of the class are at each basic corner, in fractions of machines.
        at_0, at_1 = 0.0, 0.0
        a_w, a_s, b_w, b_s = 0.0, 0.0, 0.0, 0.0
        if basis[OWNER_0] == c:
            at_0 = state[WEIGHT_0] * members
            a_w, a_s = w[basis[COLUMN_0]] / members, s[basis[COLUMN_0]] / members
        if basis[OWNER_1] == c:
            at_1 = state[WEIGHT_1] * members
            b_w, b_s = w[basis[COLUMN_1]] / members, s[basis[COLUMN_1]] / members
        if k_w == 0.0 and k_s == 0.0 and at_0 == 0.0 and at_1 == 0.0:
            continue
        h = first[c]
        while h >= 0:
            # First come machines at the first column, then at the second, mixed ones, at the key.
            if at_0 >= 1.0 - TIE:
                part_0, part_1 = 1.0, 0.0
            elif at_1 >= 1.0 - TIE:
                part_0, part_1 = 0.0, 1.0
            else:
                part_0 = max(at_0, 0.0)
                part_1 = max(min(at_1, 1.0 - part_0), 0.0)
            at_0 -= part_0
            at_1 -= part_1
            remaining = max(1.0 - part_0 - part_1, 0.0)
            out_w[h] = remaining * k_w + part_0 * a_w + part_1 * b_w
            out_s[h] = remaining * k_s + part_0 * a_s + part_1 * b_s
            h = following[h]


@kernel
def solve_slots_lp(
    slot: Slot, workers: Integers, ps_counts: Integers, whole: bool, solutions: Floats
) -> tuple[Floats, Floats, int]:
    """Solve one slot's relaxation of (3.22) for a non-decreasing sequence of demands.

    ``workers`` and ``ps_counts`` (demands,) are m_w and m_p. With ``whole``, each machine may use
    the hull of its integer points, a tighter relaxation than its polygon, which the paper uses.
    ``solutions`` (demands, 2, machines) gets workers and parameter servers unless it is empty.

    Returns the optima (demands,), inf from the first infeasible demand on; the multipliers of
    (3.24) and (3.25), shape (demands, 2); and the number of pivots.
    """
    demands = len(workers)
    optima = np.full(demands, np.inf)
    duals = np.zeros((demands, 2))
    corners = slot_corners(slot, workers[demands - 1], ps_counts[demands - 1], whole)
    path = start_path(corners)
    for i in range(demands):
        if not advance(corners, path, float(workers[i]), float(ps_counts[i])):
            break
        optima[i] = path_cost(corners, path)
        duals[i, 0] = path.state[DUAL_W]
        duals[i, 1] = path.state[DUAL_S]
        if len(solutions) > 0:
            path_point(corners, path, Point(solutions[i, 0], solutions[i, 1]))
    return optima, duals, path.basis[PIVOTS]

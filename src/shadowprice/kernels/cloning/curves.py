"""Kernels of CSD's cost curve g(r) = r * integral of S^r, (5), and of the miss measure phi(r).

g is the expected machine time of a task in r copies, S the survival function of a copy's duration.
phi limits the probability that a task misses the deadline T_d: sum phi <= C over all tasks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.cloning.kinds import KNOT_STEP, PARETO, WEIBULL
from shadowprice.kernels.jit import inlined, kernel


class Columns(NamedTuple):
    """Groups of equal tasks, as parallel arrays of shape (groups,).

    The cost curve is g(r) = minimum r + scale K(r).
    """

    tasks: Integers  # number of tasks in each group
    decay: Floats  # a = -ln S(T_d)
    minimum: Floats  # in seconds
    scale: Floats  # in seconds
    kind: Integers  # form of K: `PARETO`, `WEIBULL` or `TABLE`
    shape: Floats  # parameter of the form, if it has one
    table: Integers  # row of `tables`
    tables: Floats  # tabulated curves K, dK/dx, d2K/dx2 in x = ln r, shape (tables, knots, 3)


class Program(NamedTuple):
    """CSD's program over groups of tasks, with the limits of their copies."""

    columns: Columns
    max_copies: Integers  # maximum copies of a task, by group
    relaxed: bool  # whether (7) limits phi = h instead of (6) phi = -ln(1 - h)
    budget: float  # C = -ln(1 - epsilon), the limit of sum phi
    machines: float  # M of (1b), the limit of sum r


@inlined
def _table_curve(rows: Floats, ratio: float) -> tuple[float, float, float]:
    """Return K, K' and K'' at r, by the quintic Hermite piece around ln r."""
    x = math.log(ratio) / KNOT_STEP
    knot = min(max(int(x), 0), rows.shape[0] - 2)
    s = x - knot
    h = KNOT_STEP
    f0, d0, e0 = rows[knot, 0], rows[knot, 1] * h, rows[knot, 2] * h * h
    f1, d1, e1 = rows[knot + 1, 0], rows[knot + 1, 1] * h, rows[knot + 1, 2] * h * h
    # Coefficients of the polynomial in s that meets value, slope and curvature at both ends.
    value_gap = f1 - f0 - d0 - 0.5 * e0
    slope_gap = d1 - d0 - e0
    curvature_gap = e1 - e0
    c3 = 10.0 * value_gap - 4.0 * slope_gap + 0.5 * curvature_gap
    c4 = -15.0 * value_gap + 7.0 * slope_gap - curvature_gap
    c5 = 6.0 * value_gap - 3.0 * slope_gap + 0.5 * curvature_gap
    value = f0 + s * (d0 + s * (0.5 * e0 + s * (c3 + s * (c4 + s * c5))))
    slope = (d0 + s * (e0 + s * (3.0 * c3 + s * (4.0 * c4 + s * 5.0 * c5)))) / h
    curvature = (e0 + s * (6.0 * c3 + s * (12.0 * c4 + s * 20.0 * c5))) / (h * h)
    return value, slope / ratio, (curvature - slope) / (ratio * ratio)


@kernel
def curve(
    kind: int, shape: float, minimum: float, scale: float, rows: Floats, ratio: float
) -> tuple[float, float, float]:
    """Return g(r), g'(r) and g''(r) of one task, (5), at a real number of copies."""
    if kind == PARETO:
        # alpha x_m r^2 / (alpha r - 1) = x_m r + x_m r / (alpha r - 1)
        below = shape * ratio - 1.0
        k0 = ratio / below
        k1 = -1.0 / (below * below)
        k2 = -2.0 * shape * k1 / below
    elif kind == WEIBULL:
        power = 1.0 - 1.0 / shape
        k0 = ratio**power
        k1 = power * k0 / ratio
        k2 = (power - 1.0) * k1 / ratio
    else:
        k0, k1, k2 = _table_curve(rows, ratio)
    return minimum * ratio + scale * k0, minimum + scale * k1, scale * k2


@inlined
def curve_of(columns: Columns, group: int, ratio: float) -> tuple[float, float, float]:
    """Return `curve` for a task of a group."""
    return curve(
        columns.kind[group], columns.shape[group], columns.minimum[group], columns.scale[group],
        columns.tables[columns.table[group]], ratio,
    )  # fmt: skip


@kernel
def curves(columns: Columns, groups: Integers, ratios: Floats, out: Floats) -> None:
    """Write g, g' and g'' of tasks of given groups at given numbers of copies.

    ``out`` (n, 3): written.
    """
    for i in range(groups.shape[0]):
        value, slope, curvature = curve_of(columns, groups[i], ratios[i])
        out[i, 0] = value
        out[i, 1] = slope
        out[i, 2] = curvature


@inlined
def miss(decay: float, ratio: float, relaxed: bool) -> float:
    """Return phi(r) with h = S(T_d)^r: h if ``relaxed`` (7), otherwise -ln(1 - h) (6)."""
    h = math.exp(-decay * ratio)
    return h if relaxed else -math.log1p(-h)

"""The exact placement in one slot: (3.22) in integers.

A *point* is a pair of workers and parameter servers on one machine. The relaxation over the hulls
of each machine's points (`coupled_lp`, ``whole=True``) leaves at most two machines between corners.
So its optimum is a tight bound, and its multipliers price every point of every machine: a placement
costs the bound plus the non-negative reduced costs of its points. Given a placement, only points
whose reduced cost is within the gap can be part of a better one: the core. A machine with one point
in the core is settled, the others are loose. A dynamic program over the totals of loose machines
finds the optimum.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import constant, inlined, kernel
from shadowprice.kernels.slots.coupled_lp import (
    DUAL_S,
    DUAL_W,
    Path,
    advance,
    path_cost,
    start_path,
)
from shadowprice.kernels.slots.polygons import (
    Corners,
    Counts,
    Slot,
    max_ps_count,
    placement_cost,
    slot_corners,
)

EXACT = 1e-12
"""Costs closer than this, relative to the largest terms, are equal."""

INTEGRAL = constant(True)


class SlotRequest(NamedTuple):
    """The request to place, and the multipliers of the relaxation."""

    workers: int  # m_w
    ps_count: int  # m_p
    spread: bool  # forbid a placement on one machine
    dual_w: float
    dual_s: float


class Core(NamedTuple):
    """The points of each class that can be part of a better placement."""

    begin: Integers  # first point of each class, shape (classes + 1,)
    w: Integers  # workers on one machine, shape (points,)
    s: Integers  # parameter servers on one machine
    cost: Floats  # reduced costs


class Loose(NamedTuple):
    """Machines with several points in the core."""

    machine: Integers
    owner: Integers  # class of each


@kernel
def _core_points(
    slot: Slot,
    machine: int,
    requested: SlotRequest,
    base: float,
    budget: float,
    core: Core,
    position: int,
) -> int:
    """Write a machine's points with a reduced cost within `budget` to the core; count them.

    ``base`` is the machine's least reduced cost, from which the others are counted, and
    ``position`` the first entry to write. A call with an empty core only counts.
    """
    price_w, price_s = slot.price_worker[machine], slot.price_ps[machine]
    free, ps_count = slot.free[machine], requested.ps_count
    points = 0
    for w in range(requested.workers + 1):
        top = max_ps_count(free, slot.worker, slot.ps, w, ps_count)
        if top < 0:
            break
        for s in range(top + 1):
            if requested.spread and w == requested.workers and s == ps_count:
                continue
            reduced = (
                (price_w * w + price_s * s) - requested.dual_w * w - requested.dual_s * s - base
            )
            if reduced <= budget:
                if len(core.w) > 0:
                    core.w[position + points] = w
                    core.s[position + points] = s
                    core.cost[position + points] = max(reduced, 0.0)
                points += 1
    return points


@inlined
def _core(
    slot: Slot, corners: Corners, requested: SlotRequest, base: Floats, budget: float
) -> Core:
    """List the points of all classes whose reduced cost is within `budget`."""
    classes = len(corners.first)
    begin = np.zeros(classes + 1, np.int64)
    none = Core(begin, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    for c in range(classes):
        begin[c + 1] = begin[c] + _core_points(
            slot, corners.first[c], requested, base[c], budget, none, begin[c]
        )
    size = begin[classes]
    core = Core(begin, np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size))
    for c in range(classes):
        if begin[c + 1] > begin[c]:
            _core_points(slot, corners.first[c], requested, base[c], budget, core, begin[c])
    return core


@inlined
def _loose(corners: Corners, core: Core) -> Loose:
    """Return the machines with several points in the core."""
    machine = np.empty(corners.members.sum(), np.int64)
    owner = np.empty_like(machine)
    n = 0
    for c in range(len(corners.first)):
        if core.begin[c + 1] - core.begin[c] > 1:
            h = corners.first[c]
            while h >= 0:
                machine[n] = h
                owner[n] = c
                n += 1
                h = corners.following[h]
    return Loose(machine[:n], owner[:n])


@inlined
def _combine(
    core: Core, loose: Loose, remaining_w: int, remaining_s: int, budget: float
) -> tuple[float, NDArray[np.int32]]:
    """Choose a point of the core for every loose machine, to reach the totals at the least cost.

    A state is a pair of totals. Returns the sum of reduced costs, inf if it would exceed `budget`,
    and the point with which each machine reached each state, shape (loose machines, states).
    """
    n = len(loose.machine)
    stride = remaining_s + 1
    states = (remaining_w + 1) * stride
    value = np.full((n + 1, states), np.inf)
    chosen_points = np.full((n, states), -1, np.int32)
    value[0, 0] = 0.0
    top_w, top_s = 0, 0
    for i in range(n):
        c = loose.owner[i]
        next_w, next_s = top_w, top_s
        for p in range(core.begin[c], core.begin[c + 1]):
            w, s, extra = core.w[p], core.s[p], core.cost[p]
            last_w, last_s = min(top_w, remaining_w - w), min(top_s, remaining_s - s)
            if last_w >= 0 and last_s >= 0:
                next_w = max(next_w, last_w + w)
                next_s = max(next_s, last_s + s)
            for x in range(last_w + 1):
                shift = (x + w) * stride + s
                for y in range(last_s + 1):
                    cost = value[i, x * stride + y] + extra
                    if cost < value[i + 1, shift + y] and cost <= budget:
                        value[i + 1, shift + y] = cost
                        chosen_points[i, shift + y] = p
        top_w, top_s = next_w, next_s
    return value[n, states - 1], chosen_points


@inlined
def _unfold(
    corners: Corners,
    core: Core,
    loose: Loose,
    chosen_points: NDArray[np.int32],
    stride: int,
    out: Counts,
) -> None:
    """Write the placement of the last state, that of the required totals.

    ``stride`` is the number of totals of parameter servers, the stride of states.
    """
    out_w, out_s = out
    out_w[:] = 0
    out_s[:] = 0
    for c in range(len(corners.first)):
        p = core.begin[c]
        h = corners.first[c]
        while h >= 0 and core.begin[c + 1] - p == 1:
            out_w[h] = core.w[p]
            out_s[h] = core.s[p]
            h = corners.following[h]
    state = chosen_points.shape[1] - 1
    for i in range(len(loose.machine) - 1, -1, -1):
        p = chosen_points[i, state]
        out_w[loose.machine[i]] = core.w[p]
        out_s[loose.machine[i]] = core.s[p]
        state -= core.w[p] * stride + core.s[p]


@kernel
def place_exactly(
    slot: Slot,
    corners: Corners,
    path: Path,
    workers: int,
    ps_count: int,
    spread: bool,
    best: float,
    out: Counts,
) -> float:
    """Find a cheapest placement of workers and parameter servers; return its cost, else inf.

    ``corners`` are the classes of machines with the corners of their integer hulls, and ``path`` is
    the relaxation over those hulls, solved for these demands. ``spread`` forbids a placement on one
    machine. ``best`` is the cost of the placement in ``out``, inf without one; it is an optimal
    placement on return.
    """
    begin, corner_w, corner_s, corner_cost, first, count, _ = corners
    bound = path_cost(corners, path)
    dual_w, dual_s = path.state[DUAL_W], path.state[DUAL_S]
    requested = SlotRequest(workers, ps_count, spread, dual_w, dual_s)
    # No placement costs more than every process at the highest price of a class with capacity.
    max_price_w, max_price_s = 0.0, 0.0
    base = np.empty(len(first))  # least reduced cost of one machine of each class
    for c in range(len(first)):
        max_price_w = max(max_price_w, slot.price_worker[first[c]])
        max_price_s = max(max_price_s, slot.price_ps[first[c]])
        min_reduced = np.inf
        for j in range(begin[c], begin[c + 1]):
            min_reduced = min(
                min_reduced, corner_cost[j] - dual_w * corner_w[j] - dual_s * corner_s[j]
            )
        base[c] = min_reduced / count[c]
    slack = EXACT * (bound + dual_w * workers + dual_s * ps_count)
    ceiling = max_price_w * workers + max_price_s * ps_count
    if np.isfinite(best):
        if best - bound <= slack:
            return best
        budget = best - bound
    else:
        # Without a placement, widen the gap until it includes a placement, or all points.
        budget = max(dual_w, dual_s)
    trial = Counts(np.empty_like(out.w), np.empty_like(out.s))
    while True:
        core = _core(slot, corners, requested, base, budget + slack)
        remaining_w, remaining_s, settled = workers, ps_count, True
        for c in range(len(first)):
            points = core.begin[c + 1] - core.begin[c]
            settled = settled and points > 0
            if points == 1:
                remaining_w -= count[c] * core.w[core.begin[c]]
                remaining_s -= count[c] * core.s[core.begin[c]]
        if settled and remaining_w >= 0 and remaining_s >= 0:
            loose = _loose(corners, core)
            reduced_sum, chosen_points = _combine(
                core, loose, remaining_w, remaining_s, budget + slack
            )
            if reduced_sum < np.inf:
                _unfold(corners, core, loose, chosen_points, remaining_s + 1, trial)
                cost = placement_cost(slot, trial)
                if cost < best:
                    best = cost
                    out.w[:] = trial.w
                    out.s[:] = trial.s
        if np.isfinite(best) or bound + budget >= ceiling:
            return best
        budget = max(4.0 * budget, EXACT * ceiling)


@inlined
def search_placement(slot: Slot, workers: int, ps_count: int, spread: bool, out: Counts) -> float:
    """Find a cheapest placement without a start; return its cost, inf if none exists.

    Parameters are as in `place_exactly`; `out` is only written.
    """
    corners = slot_corners(slot, workers, ps_count, INTEGRAL)
    path = start_path(corners)
    if not advance(corners, path, float(workers), float(ps_count)):
        return np.inf
    return place_exactly(slot, corners, path, workers, ps_count, spread, np.inf, out)

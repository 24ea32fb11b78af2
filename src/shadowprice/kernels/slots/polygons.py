"""Capacity of one machine for a job in one slot: a small polygon of workers and parameter servers.

PD-ORS (3.23) bounds workers ``w`` and parameter servers ``s`` on a machine by
``alpha^r w + beta^r s <= free^r`` for every resource. Machines with equal free capacity and equal
prices form a class: ``count`` of them together hold ``count`` times the polygon of one machine (its
Minkowski sum with itself). So a linear program over classes has the same optimum as one over
machines.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import allocation_free, inlined, kernel

SAME_VERTEX = 1e-12
"""Vertices closer than this, relative to the cap on workers or parameter servers, are merged."""


class Slot(NamedTuple):
    """Machines of one slot as one job sees them; those with infinite prices aren't used."""

    price_worker: Floats  # p^w of (3.22), not negative, shape (machines,)
    price_ps: Floats  # p^s of (3.22), not negative, shape (machines,)
    free: Integers  # C^ of (3.23), shape (machines, resources)
    worker: Integers  # alpha, demand of a worker, shape (resources,)
    ps: Integers  # beta, demand of a parameter server, shape (resources,)


class Counts(NamedTuple):
    """A job's workers and parameter servers on each machine."""

    w: Integers
    s: Integers


class Point(NamedTuple):
    """A solution of the relaxation: workers and parameter servers on each machine."""

    w: Floats
    s: Floats


class Corners(NamedTuple):
    """Classes of machines that are equal for a job, and the corners of their polygons.

    A class holds its number of machines times the polygon of one machine, so its corners are those
    of a machine times this number. Machines without capacity are in no class.
    """

    begin: Integers  # first corner of each class, which is the origin, shape (classes + 1,)
    w: Floats  # workers of all machines of the class at a corner, shape (corners,)
    s: Floats  # their parameter servers
    cost: Floats
    first: Integers  # first machine of each class
    members: Integers  # number of its machines
    following: Integers  # next machine of the same class, -1 at its end, (machines,)


@inlined
def placement_cost(slot: Slot, placed: Counts) -> float:
    """Return the cost of an integer placement, summed machine by machine."""
    cost = 0.0
    for h in range(len(placed.w)):
        if placed.w[h] > 0 or placed.s[h] > 0:
            cost += slot.price_worker[h] * placed.w[h] + slot.price_ps[h] * placed.s[h]
    return cost


@allocation_free
def fits_on_machine(
    free: Integers, worker: Integers, ps: Integers, workers: int, ps_count: int
) -> bool:
    """Return whether workers and parameter servers fit on a machine, (3.23) in integers.

    Counts are not negative. Quotients are compared, because products may overflow int64.
    """
    for r in range(len(free)):
        remaining = free[r]
        if worker[r] > 0 and workers > 0:
            if workers > remaining // worker[r]:
                return False
            remaining -= worker[r] * workers
        if ps[r] > 0 and ps_count > 0 and ps_count > remaining // ps[r]:
            return False
    return True


@allocation_free
def max_ps_count(free: Integers, worker: Integers, ps: Integers, workers: int, cap: int) -> int:
    """Return how many parameter servers fit beside the workers, up to `cap`; -1 if these don't."""
    fit_count = cap
    for r in range(len(free)):
        remaining = free[r]
        if worker[r] > 0 and workers > 0:
            if workers > remaining // worker[r]:
                return -1
            remaining -= worker[r] * workers
        if ps[r] > 0:
            fit_count = min(fit_count, max(remaining, 0) // ps[r])
    return fit_count


@inlined
def add_to_hash(mixed: int, amount: int) -> int:
    """Return the hash of a sequence of amounts, extended by one amount.

    Hashes have 42 bits, so that products fit into int64, compiled or interpreted.
    """
    mixed = ((mixed ^ (amount & 0x7FFFFFFF) ^ (amount >> 31)) * 1000003) & 0x3FFFFFFFFFF
    return mixed ^ (mixed >> 17)


@inlined
def group_machines(slot: Slot) -> tuple[Integers, Integers, Integers, int]:
    """Group machines that are equal for this job into classes.

    Resources that the job doesn't demand are ignored. Returns three arrays (machines,) and the
    number of classes: first machine of each class; number of its machines; next machine of the same
    class by machine, -1 at its end. Only the first entries of the first two arrays, one for each
    class, are valid. Classes are in the order of their first machines.
    """
    price_worker, price_ps, free, worker, ps = slot
    machines, resources = free.shape
    first = np.empty(machines, np.int64)
    last = np.empty(machines, np.int64)
    count = np.zeros(machines, np.int64)
    following = np.full(machines, -1, np.int64)
    requested = np.empty(resources, np.int64)
    kinds = 0
    for r in range(resources):
        if worker[r] > 0 or ps[r] > 0:
            requested[kinds] = r
            kinds += 1
    size = 4
    while size < 2 * machines:
        size *= 2
    table = np.full(size, -1, np.int64)
    classes = 0
    for h in range(machines):
        if not (np.isfinite(price_worker[h]) and np.isfinite(price_ps[h])):
            continue
        mixed = 0
        for k in range(kinds):
            mixed = add_to_hash(mixed, free[h, requested[k]])
        bucket = mixed & (size - 1)
        while True:
            c = table[bucket]
            if c < 0:
                table[bucket] = classes
                first[classes] = h
                last[classes] = h
                count[classes] = 1
                classes += 1
                break
            # The hash leaves prices out, and may collide.
            twin = first[c]
            same = price_worker[h] == price_worker[twin] and price_ps[h] == price_ps[twin]
            for k in range(kinds):
                same = same and free[h, requested[k]] == free[twin, requested[k]]
            if same:
                following[last[c]] = h
                last[c] = h
                count[c] += 1
                break
            bucket = (bucket + 1) & (size - 1)
    return first, count, following, classes


@inlined
def machine_polygon(
    free: Integers, worker: Integers, ps: Integers, max_w: int, max_s: int, out: Point
) -> int:
    """Write the corners of {w, s >= 0 : worker w + ps s <= free}, w and s also capped.

    Returns the number of corners; 1 if nothing fits. The caps ``max_w`` and ``max_s`` are a
    slot's totals, because more are never needed. ``out`` (at least resources + 4 entries) receives
    the origin first, then corners clockwise from the axis of parameter servers.
    """
    corner_w, corner_s = out
    resources = len(free)
    top = float(max_s)
    reach = float(max_w)
    for r in range(resources):
        if worker[r] > 0:
            reach = min(reach, max(free[r], 0) / worker[r])
        if ps[r] > 0:
            top = min(top, max(free[r], 0) / ps[r])
    corner_w[0] = 0.0
    corner_s[0] = 0.0
    corners = 1
    near_w = SAME_VERTEX * max(max_w, 1)
    near_s = SAME_VERTEX * max(max_s, 1)
    if top > near_s:
        corner_w[corners] = 0.0
        corner_s[corners] = top
        corners += 1
    else:
        top = 0.0
    # Follow the lower envelope of the lines s = (free - worker w) / ps.
    w, s, slope = 0.0, top, 0.0
    while s > 0.0 and w < reach:
        best, best_slope = reach, -1.0
        for r in range(resources):
            if ps[r] == 0:
                continue
            steep = worker[r] / ps[r]
            if steep <= slope:
                continue
            # Number of workers at which this line crosses the current one, s - slope (x - w).
            height = (free[r] - worker[r] * w) / ps[r]
            cross = w + max(height - s, 0.0) / (steep - slope)
            if cross < best or (cross == best and best_slope >= 0.0 and steep > best_slope):
                best, best_slope = cross, steep
        fall = s - slope * (best - w)
        if fall <= near_s:
            fall = 0.0
        if best - w > near_w:
            w, s = best, fall
            corner_w[corners] = w
            corner_s[corners] = s
            corners += 1
        if best_slope < 0.0:
            break
        slope = best_slope
    if reach > near_w and (corners == 1 or corner_s[corners - 1] > 0.0):
        # The foot on the workers' axis, under the last corner or beyond it.
        corner_w[corners] = reach
        corner_s[corners] = 0.0
        corners += 1
    return corners


@inlined
def machine_hull(
    free: Integers, worker: Integers, ps: Integers, max_w: int, max_s: int, out: Point
) -> int:
    """Write the corners of the hull of the integer points of `machine_polygon`, in the same order.

    Returns the number of corners; 1 if not even one process fits. ``out`` has at least max_w + 3
    entries.
    """
    corner_w, corner_s = out
    corner_w[0] = 0.0
    corner_s[0] = 0.0
    corners = 1
    reach = 0
    for w in range(max_w + 1):
        s = max_ps_count(free, worker, ps, w, max_s)
        if s < 0:
            break
        reach = w
        # Upper hull of (w, s), left to right, by Andrew's monotone chain.
        while corners >= 3:
            before_w, before_s = corner_w[corners - 1], corner_s[corners - 1]
            run, rise = before_w - corner_w[corners - 2], before_s - corner_s[corners - 2]
            if rise * (w - before_w) <= (s - before_s) * run:
                corners -= 1
            else:
                break
        corner_w[corners] = w
        corner_s[corners] = s
        corners += 1
    if corners > 1 and corner_s[1] == 0.0:
        # No parameter server fits: the hull is a segment of the workers' axis.
        corners = 1
    if reach > 0 and (corners == 1 or corner_s[corners - 1] > 0.0):
        corner_w[corners] = reach
        corner_s[corners] = 0.0
        corners += 1
    return corners


@kernel
def slot_corners(slot: Slot, max_w: int, max_s: int, integral: bool) -> Corners:
    """Return a slot's classes of machines and their corners, class by class.

    ``max_w`` and ``max_s`` are the maximum workers and parameter servers to be placed in the slot.
    ``integral`` selects the integer hulls instead of the polygons.
    """
    price_worker, price_ps, free, worker, ps = slot
    first, count, following, classes = group_machines(slot)
    widest = free.shape[1] + 4
    if integral:
        widest = max_w + 3
    begin = np.zeros(classes + 1, np.int64)
    corner_w, corner_s = np.empty(classes * widest), np.empty(classes * widest)
    cost = np.empty(classes * widest)
    class_count, corner_count = 0, 0
    for c in range(classes):
        h = first[c]
        out = Point(corner_w[corner_count:], corner_s[corner_count:])
        if integral:
            corners = machine_hull(free[h], worker, ps, max_w, max_s, out)
        else:
            corners = machine_polygon(free[h], worker, ps, max_w, max_s, out)
        # Only the origin: nothing fits on these machines.
        if corners == 1:
            continue
        for j in range(corner_count, corner_count + corners):
            corner_w[j] *= count[c]
            corner_s[j] *= count[c]
            cost[j] = price_worker[h] * corner_w[j] + price_ps[h] * corner_s[j]
        first[class_count] = h
        count[class_count] = count[c]
        class_count += 1
        corner_count += corners
        begin[class_count] = corner_count
    return Corners(
        begin[: class_count + 1],
        corner_w[:corner_count],
        corner_s[:corner_count],
        cost[:corner_count],
        first[:class_count],
        count[:class_count],
        following,
    )

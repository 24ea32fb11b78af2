"""A preemptive queue: jobs of fixed worker counts run in order while they fit."""

from __future__ import annotations

from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import kernel
from shadowprice.kernels.reactive.places import (
    SAME,
    PlacementTable,
    clear_new,
    compare_placement,
    fits_on_any_server,
    grant,
    min_worker_demand,
    subtract_current,
)


@kernel
def run_in_order(
    free: Integers,
    rows: Integers,
    places: PlacementTable,
    workers: Integers,
    servers_needed: Integers,
    cursors: Integers,
    change: Integers,
) -> None:
    """Run jobs in order, each with its fixed worker count, while they fit.

    A job gets its current servers first, then free capacity without a current user, round robin,
    then that of jobs further down, which are paused unless they fit elsewhere.

    ``rows`` (jobs,) are the open jobs in order of service. Placements are subtracted from ``free``
    (servers, resources). ``workers`` and ``servers_needed`` are the fixed counts by row. The
    round-robin ``cursors`` (2,) move. ``change`` (jobs,) receives `SAME`, `LESS`, `MORE` or
    `MOVED`.
    """
    spare = free.copy()
    minimum = min_worker_demand(places, rows)
    for j in range(len(rows)):
        if places.is_placed[rows[j]]:
            subtract_current(spare, places, rows[j], 1)
    room = True
    for j in range(len(rows)):
        row = rows[j]
        change[j] = SAME
        if not room and not places.is_placed[row]:
            continue
        clear_new(places, row)
        if room and not grant(free, spare, places, row, workers[row], servers_needed[row], cursors):
            subtract_current(spare, places, row, -1)
            room = fits_on_any_server(free, places, minimum)
        change[j] = compare_placement(places, row)

"""A preemptive queue: jobs of fixed worker counts run in order while they fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.reactive.places import (
    SAME,
    Places,
    compared,
    empty,
    grant,
    keep,
    least_of,
    room_left,
)

Integers = NDArray[np.int64]


@kernel
def run_in_order(
    free: Integers,
    rows: Integers,
    places: Places,
    workers: Integers,
    servers_needed: Integers,
    cursors: Integers,
    change: Integers,
) -> None:
    """Run jobs in order, each with its fixed worker count, while they fit.

    A job gets its current servers first, then free capacity without a current user, round robin,
    then that of jobs further down, which are paused unless they fit elsewhere.

    Parameters
    ----------
    free : ndarray of int64, shape (servers, resources)
        Capacity; placements are subtracted.
    rows : ndarray of int64, shape (jobs,)
        Rows of the open jobs in order of service.
    places : Places
        Jobs; their new placements are written.
    workers, servers_needed : ndarray of int64, shape (table rows,)
        Fixed numbers of workers and parameter servers.
    cursors : ndarray of int64, shape (2,)
        Round-robin cursors; moved.
    change : ndarray of int64, shape (jobs,)
        `SAME`, `LESS`, `MORE` or `MOVED`; written.
    """
    spare = free.copy()
    least = least_of(places, rows)
    for j in range(len(rows)):
        if places.standing[rows[j]]:
            keep(spare, places, rows[j], 1)
    room = True
    for j in range(len(rows)):
        row = rows[j]
        change[j] = SAME
        if not room and not places.standing[row]:
            continue
        empty(places, row)
        if room and not grant(free, spare, places, row, workers[row], servers_needed[row], cursors):
            keep(spare, places, row, -1)
            room = room_left(free, places, least)
        change[j] = compared(places, row)

"""Jobs of fixed widths that run in an order for as long as they fit."""

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
    """Let jobs run in order, each with its fixed number of workers, for as long as they fit.

    A job takes the places it had, then free ones that nobody had, round robin, then those of jobs
    further down the order, which are paused unless they fit elsewhere.

    Parameters
    ----------
    free : ndarray of int64, shape (servers, resources)
        Capacity; what is taken is taken off.
    rows : ndarray of int64, shape (jobs,)
        Rows of the open jobs, the first to be served first.
    places : Places
        The jobs; their new places are filled for the rows given.
    workers, servers_needed : ndarray of int64, shape (table rows,)
        Fixed numbers of workers, and of the parameter servers they need.
    cursors : ndarray of int64, shape (2,)
        Round-robin cursors, moved.
    change : ndarray of int64, shape (jobs,)
        Filled with `SAME`, `LESS`, `MORE` or `MOVED`.
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

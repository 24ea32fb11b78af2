"""Max-min fairness in dominant shares by progressive filling, with placement.

Ghodsi et al., "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types" (NSDI 2011),
Algorithm 1: the job with the smallest dominant share gets its next workers, until no more fit. A
grant raises a job to its next useful worker count, together with the parameter servers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.heap import TOP, sink_smallest
from shadowprice.kernels.jit import inlined, kernel
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


class Widths(NamedTuple):
    """Useful worker counts of jobs, as entries of rows."""

    first: Integers  # first entry of a row
    choices: Integers  # number of a row's entries
    workers: Integers  # worker count of an entry, ascending in a row
    ps_counts: Integers  # parameter servers of an entry
    kind: Integers  # class of rows with equal demands and counts: if one row doesn't fit, none does


@inlined
def _release_rest(spare: Integers, places: PlacementTable, row: int) -> None:
    """Release the resources of a job beyond its new placement to others."""
    for s in range(len(spare)):
        workers = max(0, places.current_workers[row, s] - places.new_workers[row, s])
        ps_count = max(0, places.current_ps[row, s] - places.new_ps[row, s])
        if workers > 0 or ps_count > 0:
            for r in range(spare.shape[1]):
                spare[s, r] += workers * places.worker[row, r] + ps_count * places.ps[row, r]


@kernel
def fill(
    free: Integers,
    total: Floats,
    rows: Integers,
    places: PlacementTable,
    widths: Widths,
    cursors: Integers,
    change: Integers,
) -> Floats:
    """Fill progressively (see the module); return the granted dominant shares (jobs,).

    Grants are subtracted from ``free`` (servers, resources). ``total`` is the cluster's capacity; 0
    excludes a resource from all shares. ``rows`` (jobs,) are in order of arrival, which breaks
    ties. The ``cursors`` (2,) move. ``change`` (jobs,) receives `SAME`, `LESS`, `MORE` or `MOVED`.
    """
    jobs = len(rows)
    share = np.zeros(jobs)
    step = np.zeros(jobs, dtype=np.int64)
    heap = np.arange(jobs)
    minimum = min_worker_demand(places, rows)
    spare = free.copy()
    kinds = 0
    for j in range(jobs):
        row = rows[j]
        kinds = max(kinds, widths.kind[row] + 1)
        if places.is_placed[row]:
            clear_new(places, row)
            subtract_current(spare, places, row, 1)
    infeasible = np.zeros(kinds, dtype=np.bool_)
    touched = np.zeros(jobs, dtype=np.bool_)
    size = jobs
    while size > 0:
        j = heap[0]
        row = rows[j]
        granted = False
        # An equal job didn't get its first step, so this job doesn't either. A running job may,
        # because it may fit on its current servers although round robin finds none.
        is_infeasible = step[j] == 0 and infeasible[widths.kind[row]] and not places.is_placed[row]
        if step[j] < widths.choices[row] and not is_infeasible:
            if not touched[j]:
                touched[j] = True
                if not places.is_placed[row]:
                    clear_new(places, row)
            entry = widths.first[row] + step[j]
            workers, ps_count = widths.workers[entry], widths.ps_counts[entry]
            previous_workers = widths.workers[entry - 1] if step[j] > 0 else 0
            previous_ps = widths.ps_counts[entry - 1] if step[j] > 0 else 0
            more_ps = max(0, ps_count - previous_ps)
            granted = grant(free, spare, places, row, workers - previous_workers, more_ps, cursors)
            if granted:
                step[j] += 1
                for r in range(len(total)):
                    if total[r] > 0:
                        used = workers * places.worker[row, r] + ps_count * places.ps[row, r]
                        share[j] = max(share[j], used / total[r])
        if granted:
            sink_smallest(heap, size, TOP, share)
            continue
        # The job can't use more, or no more fits, so the rest of its current placement is spare.
        if places.is_placed[row]:
            _release_rest(spare, places, row)
        if step[j] == 0:
            infeasible[widths.kind[row]] = True
        size -= 1
        heap[0] = heap[size]
        sink_smallest(heap, size, TOP, share)
        # If no server has capacity for the smallest worker, no job can grow any more.
        if not is_infeasible and not fits_on_any_server(free, places, minimum):
            break
    for j in range(jobs):
        change[j] = SAME
        if touched[j] or places.is_placed[rows[j]]:
            change[j] = compare_placement(places, rows[j])
    return share

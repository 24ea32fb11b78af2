"""Waiting jobs that could all be completed together: what each needs, and what limits allow."""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.revision.plans import (
    Jobs,
    last_worth,
    least_ceiling,
    offer,
    rooms,
)
from shadowprice.kernels.revision.timeline import Timeline

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_AS_GOOD = 1.0 - 1e-9
"""Share of a utility that counts as all of it."""

_REACH = 8
"""A promise lies at most so many times the planned duration ahead, or a horizon if that is more."""


@kernel
def promise_slot(jobs: Jobs, row: int, now: int, done: int, value: float, horizon: int) -> int:
    """Return the last slot in which completing is worth as much as when planned, within reason.

    Parameters
    ----------
    done : int
        Slot in which the plan completes.
    value : float
        What that is worth.
    horizon : int
        The cluster's horizon in slots.
    """
    reach = max(horizon, _REACH * (done - now + 1))
    last = max(done, min(jobs.last[row], now + reach))
    return last_worth(jobs, row, value * _AS_GOOD, done, last)


@kernel
def wishes(
    line: Timeline,
    jobs: Jobs,
    rows: Ints,
    price: Floats,
    horizon: int,
    shared: bool,
    room: Ints,
    result: Floats,
) -> None:
    """Write what each job would have if it were alone.

    Parameters
    ----------
    line : Timeline
        A cluster without jobs.
    price : float64[rows of the table, 2]
        Price of a worker and of a parameter server of each.
    result : float64[jobs, 4]
        Slot by which it has to be complete (-1: it never is in time), slot in which it would be,
        what that is worth, and what it costs; written.
    """
    now = line.start[0]
    for n in range(len(rows)):
        row = rows[n]
        end, _, done, value, cost = offer(line, jobs, row, price[row], shared, room)
        result[n, 0] = -1.0
        if end < 0:
            continue
        result[n, 0] = promise_slot(jobs, row, now, done, value, horizon)
        result[n, 1] = done
        result[n, 2] = value
        result[n, 3] = cost


@kernel
def needs(
    line: Timeline,
    jobs: Jobs,
    rows: Ints,
    due: Ints,
    shared: bool,
    room: Ints,
    on_worker: Floats,
    on_ps: Floats,
    result: Floats,
) -> None:
    """Write the shares of the cluster, times slots, that jobs take with the fewest workers.

    Parameters
    ----------
    line : Timeline
        A cluster without jobs.
    due : int64[jobs]
        Slot by the end of which each has to be complete.
    on_worker, on_ps : float64[jobs, columns]
        Share of all that a pool holds which a worker and a parameter server take.
    result : float64[jobs, columns]
        Written; 0 for what does not complete in time.
    """
    for n in range(len(rows)):
        row = rows[n]
        rooms(line, jobs, row, due[n] + 1, shared, room)
        ceiling, _ = least_ceiling(line, jobs, row, jobs.left[row], due[n] + 1, room)
        if ceiling < 0:
            result[n] = 0.0
            continue
        level = min(jobs.hull[row, ceiling], room[0])
        slots = float(jobs.left[row]) / float(max(1, jobs.sure[row, level]))
        workers, servers = jobs.workers[row, level], jobs.servers[row, level]
        result[n] = slots * (workers * on_worker[n] + servers * on_ps[n])


@kernel
def within(now: int, due: Ints, need: Floats, sure: int) -> NDArray[np.bool_]:
    """Return which jobs all resources together could complete by their due slots.

    In every slot, what is due by then may take no more than there is until then. The first jobs
    are taken whatever they need, the others in order as long as that holds.

    Parameters
    ----------
    due : int64[jobs]
        Slot by the end of which each has to be complete.
    need : float64[jobs, columns]
        Share of each resource of the cluster, times slots.
    sure : int
        How many come first.
    """
    count, columns = need.shape
    kept = np.zeros(count, np.bool_)
    dues = np.zeros(count, np.int64)
    taken = np.zeros((count, columns))  # of what is due in a slot, running sums
    used = 0
    for n in range(count):
        at = int(np.searchsorted(dues[:used], due[n], side="right"))
        fits = True
        for k in range(at - 1, used):
            # The newest first: between the dues before and after it, nothing else is due.
            slots = float((due[n] if k < at else dues[k]) - now + 1)
            for c in range(columns):
                before = taken[k, c] if k >= 0 else 0.0
                if need[n, c] > 0.0 and before + need[n, c] > slots * (1.0 + 1e-9):
                    fits = False
                    break
            if not fits:
                break
        if not fits and n >= sure:
            continue
        kept[n] = True
        for k in range(used, at, -1):
            dues[k] = dues[k - 1]
            taken[k] = taken[k - 1] + need[n]
        dues[at] = due[n]
        taken[at] = need[n]
        if at > 0:
            taken[at] += taken[at - 1]
        used += 1
    return kept

"""The risk-reward heuristic: what a job gains, what it costs the others to wait, and who runs.

Irwin, Grit, Chase: "Balancing Risk and Reward in a Market-Based Task Service" (HPDC 2004). There a
task fills one processor, loses value linearly while it waits, and is ranked by

    reward = (alpha * present value - (1 - alpha) * cost) / remaining time,
    present value = yield / (1 + discount * remaining time),
    cost = sum over the other tasks of decay * min(remaining time, time until it is worth nothing).

Here a job fills a share of the cluster (its dominant share), so what it keeps from the others is
``share * remaining slots`` of whole-cluster time: that takes the place of the remaining time in
the cost and below the fraction line, and is the same thing where a job fills all there is. A job's
decay is what one more slot of delay would take from its utility now.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.reactive.dominant_share import LESS, MORE, SAME, fits, grant

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

CONSTANT, SIGMOID, RECIPROCAL, LINEAR, POWER, DEADLINE = 0, 1, 2, 3, 4, 5
"""Families of utilities, in the order of `core.utility.FAMILIES`."""


@kernel
def worth(family: int, first: float, second: float, third: float, duration: float) -> float:
    """Return a utility ``duration`` slots after arrival; parameters in the order of the family."""
    if family == CONSTANT:
        return first
    if family == SIGMOID:
        return first / (1.0 + math.exp(min(second * (duration - third), 700.0)))
    if family == RECIPROCAL:
        return first / (1.0 + duration)
    if family == LINEAR:
        return max(0.0, first + second * duration)
    if family == POWER:
        return float((first / max(1.0, duration)) ** second)
    return first if duration <= second else 0.0


@kernel
def appraise(
    slot: int,
    rows: Integers,
    family: Integers,
    parameters: Floats,
    arrival: Integers,
    slots_left: Integers,
    share: Floats,
    alpha: float,
    discount: float,
) -> tuple[Floats, Floats, Floats]:
    """Appraise all open jobs as if each ran from now on.

    Parameters
    ----------
    slot : int
        Now.
    rows : ndarray of int64, shape (jobs,)
        Rows of the open jobs.
    family : ndarray of int64, shape (table rows,)
        Family of the utility.
    parameters : ndarray of float64, shape (table rows, 3)
        Its parameters.
    arrival, slots_left : ndarray of int64, shape (table rows,)
        Arrival slot, and slots of running that remain.
    share : ndarray of float64, shape (table rows,)
        Dominant share while running.
    alpha, discount : float
        See the module.

    Returns
    -------
    (ndarray, ndarray, ndarray) of float64, shape (jobs,)
        Reward, utility if it runs from now on, and decay.
    """
    jobs = len(rows)
    utility, decay, expiry = np.zeros(jobs), np.zeros(jobs), np.zeros(jobs)
    delay = np.zeros(jobs)
    for j in range(jobs):
        row = rows[j]
        foresee(j, row, slot, family, parameters, arrival, slots_left, utility, decay, expiry)
        delay[j] = share[row] * slots_left[row]
    order, by_delay = stable_order(expiry), stable_order(delay)
    reward = np.zeros(jobs)
    reckon(
        jobs,
        rows,
        slots_left,
        alpha,
        discount,
        utility,
        decay,
        expiry,
        delay,
        order,
        by_delay,
        reward,
    )
    return reward, utility, decay


@kernel
def foresee(
    j: int,
    row: int,
    slot: int,
    family: Integers,
    parameters: Floats,
    arrival: Integers,
    slots_left: Integers,
    utility: Floats,
    decay: Floats,
    expiry: Floats,
) -> None:
    """Set a job's utility if it runs from now on, its decay, and after what delay nothing is left.

    Parameters
    ----------
    j, row : int
        Its position, and its row of the table.
    slot, family, parameters, arrival, slots_left
        As in `appraise`.
    utility, decay, expiry : ndarray of float64, shape (positions,)
        Set at ``j``.
    """
    a, b, c = parameters[row, 0], parameters[row, 1], parameters[row, 2]
    duration = float(slot + slots_left[row] - 1 - arrival[row])
    utility[j] = worth(family[row], a, b, c, duration)
    decay[j] = max(0.0, utility[j] - worth(family[row], a, b, c, duration + 1.0))
    expiry[j] = utility[j] / decay[j] if decay[j] > 0.0 else np.inf


@kernel
def reckon(
    jobs: int,
    rows: Integers,
    slots_left: Integers,
    alpha: float,
    discount: float,
    utility: Floats,
    decay: Floats,
    expiry: Floats,
    delay: Floats,
    order: Integers,
    by_delay: Integers,
    reward: Floats,
) -> None:
    """Set the rewards of all jobs, in time linear in their number.

    Parameters
    ----------
    jobs : int
        How many there are; arrays may be longer.
    rows, slots_left, alpha, discount
        As in `appraise`.
    utility, decay, expiry : ndarray of float64
        As `foresee` set them.
    delay : ndarray of float64
        What running each keeps from the others: its share times the slots that remain.
    order, by_delay : ndarray of int64
        Positions sorted by expiry, and by delay.
    reward : ndarray of float64
        Set here.
    """
    # Of a delay x: jobs that expire before lose all, the others x times their decay.
    fading = 0.0
    fadings = np.zeros(jobs + 1)
    for k in range(jobs - 1, -1, -1):
        fading += decay[order[k]]
        fadings[k] = fading
    lost = 0.0
    k = 0
    for n in range(jobs):
        j = by_delay[n]
        while k < jobs and expiry[order[k]] <= delay[j]:
            lost += utility[order[k]] if decay[order[k]] > 0.0 else 0.0
            k += 1
        others = lost + fadings[k] * delay[j] - min(decay[j] * delay[j], utility[j])
        left = slots_left[rows[j]]
        present = utility[j] / (1.0 + discount * left)
        reward[j] = (alpha * present - (1.0 - alpha) * max(0.0, others)) / max(delay[j], 1e-12)


@kernel
def join(j: int, values: Floats, order: Integers) -> None:
    """Put position ``j``, the last, where it belongs among the ``j`` sorted by their values."""
    low, high = 0, j
    while low < high:
        middle = (low + high) // 2
        if values[order[middle]] <= values[j]:
            low = middle + 1
        else:
            high = middle
    for k in range(j, low, -1):
        order[k] = order[k - 1]
    order[low] = j


@kernel
def leave(j: int, order: Integers) -> None:
    """Take position ``j``, the last, out of ``j + 1`` sorted ones."""
    k = 0
    while order[k] != j:
        k += 1
    for n in range(k, j):
        order[n] = order[n + 1]


@kernel
def admission(
    at: int,
    slot: int,
    rows: Integers,
    family: Integers,
    parameters: Floats,
    arrival: Integers,
    slots_left: Integers,
    share: Floats,
    reward: Floats,
    utility: Floats,
    decay: Floats,
    discount: float,
) -> tuple[float, float, float]:
    """Appraise the admission of one job by its place in the candidate schedule.

    Jobs are served in the order of their rewards. Where all of them fit side by side nobody waits;
    else the job completes when all that is served up to it, spread over the whole cluster, is
    done (and not before its own time), and delays the jobs behind it by what it takes.

    Parameters
    ----------
    at : int
        Position of the job among ``rows``.
    slot, rows, family, parameters, arrival, slots_left, share, discount
        As in `appraise`.
    reward, utility, decay : ndarray of float64, shape (jobs,)
        Its results.

    Returns
    -------
    (float, float, float)
        Present value, delay cost, and expected slots until completion.
    """
    row = rows[at]
    filled = 0.0
    before = 0.0
    cost = 0.0
    delay = share[row] * slots_left[row]
    for j in range(len(rows)):
        other = rows[j]
        filled += share[other]
        if j == at:
            continue
        if reward[j] > reward[at] or (reward[j] == reward[at] and j < at):
            before += share[other] * slots_left[other]
        else:
            cost += min(decay[j] * delay, utility[j])
    wait = float(slots_left[row])
    if filled <= 1.0:
        cost = 0.0
    else:
        wait = max(wait, before + delay)
    duration = slot + wait - 1.0 - arrival[row]
    a, b, c = parameters[row, 0], parameters[row, 1], parameters[row, 2]
    present = worth(family[row], a, b, c, duration) / (1.0 + discount * wait)
    return present, cost, wait


@kernel
def run_in_order(
    free: Integers,
    rows: Integers,
    worker: Integers,
    ps: Integers,
    workers: Integers,
    servers_needed: Integers,
    hosts_workers: Flags,
    hosts_ps: Flags,
    kept_workers: Integers,
    kept_ps: Integers,
    new_workers: Integers,
    new_ps: Integers,
    standing: Flags,
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
    worker, ps : ndarray of int64, shape (table rows, resources)
        Demands.
    workers, servers_needed : ndarray of int64, shape (table rows,)
        Fixed numbers of workers, and of the parameter servers they need.
    hosts_workers, hosts_ps, kept_workers, kept_ps, new_workers, new_ps, standing, cursors, change
        As in `shadowprice.kernels.reactive.dominant_share.fill`.
    """
    jobs = len(rows)
    servers, resources = free.shape
    spare = free.copy()
    least = np.full(resources, np.iinfo(np.int64).max)
    for j in range(jobs):
        row = rows[j]
        for r in range(resources):
            least[r] = min(least[r], worker[row, r])
        if standing[row]:
            for s in range(servers):
                for r in range(resources):
                    spare[s, r] -= kept_workers[row, s] * worker[row, r]
                    spare[s, r] -= kept_ps[row, s] * ps[row, r]
    room = True
    for j in range(jobs):
        row = rows[j]
        change[j] = SAME
        if not room and not standing[row]:
            continue
        for s in range(servers):
            new_workers[row, s] = 0
            new_ps[row, s] = 0
        if room and not grant(
            free,
            spare,
            worker[row],
            ps[row],
            workers[row],
            servers_needed[row],
            hosts_workers,
            hosts_ps,
            kept_workers[row],
            kept_ps[row],
            new_workers[row],
            new_ps[row],
            cursors,
        ):
            room = False
            for s in range(servers):
                for r in range(resources):
                    spare[s, r] += kept_workers[row, s] * worker[row, r]
                    spare[s, r] += kept_ps[row, s] * ps[row, r]
                room = room or (hosts_workers[s] and fits(free, s, least))
        less = False
        more = False
        for s in range(servers):
            now, then = new_workers[row, s], kept_workers[row, s]
            less = less or now < then or new_ps[row, s] < kept_ps[row, s]
            more = more or now > then or new_ps[row, s] > kept_ps[row, s]
        change[j] = (LESS if less else 0) + (MORE if more else 0)

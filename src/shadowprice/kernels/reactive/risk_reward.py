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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.reactive.worth import Worths, worth

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Candidates(NamedTuple):
    """Open jobs as rows of a table.

    Attributes
    ----------
    worths : Worths
        Their utilities.
    arrival, slots_left : int64[rows]
        Arrival slot, and slots of running that remain.
    share : float64[rows]
        Dominant share while running.
    """

    worths: Worths
    arrival: Integers
    slots_left: Integers
    share: Floats


class Appraisal(NamedTuple):
    """What jobs are worth if each ran from now on, by position.

    Attributes
    ----------
    utility : float64[jobs]
        What completing then is worth.
    decay : float64[jobs]
        What one more slot of delay would take from that.
    expiry : float64[jobs]
        After what delay nothing is left.
    delay : float64[jobs]
        What running keeps from the others: the share times the slots that remain.
    reward : float64[jobs]
        See the module.
    order, by_delay : int64[jobs]
        Positions sorted by expiry, and by delay.
    """

    utility: Floats
    decay: Floats
    expiry: Floats
    delay: Floats
    reward: Floats
    order: Integers
    by_delay: Integers


@kernel
def appraisal(size: int) -> Appraisal:
    """Return an appraisal of so many jobs, to be filled."""
    return Appraisal(
        np.zeros(size),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
    )


@kernel
def appraise(
    slot: int, rows: Integers, jobs: Candidates, alpha: float, discount: float
) -> Appraisal:
    """Appraise all open jobs as if each ran from now on.

    Parameters
    ----------
    slot : int
        Now.
    rows : ndarray of int64, shape (jobs,)
        Rows of the open jobs.
    jobs : Candidates
        The table.
    alpha, discount : float
        See the module.
    """
    count = len(rows)
    made = appraisal(count)
    for j in range(count):
        foresee(j, rows[j], slot, jobs, made)
    order, by_delay = stable_order(made.expiry), stable_order(made.delay)
    for j in range(count):
        made.order[j] = order[j]
        made.by_delay[j] = by_delay[j]
    reckon(count, rows, jobs, alpha, discount, made)
    return made


@kernel
def foresee(j: int, row: int, slot: int, jobs: Candidates, made: Appraisal) -> None:
    """Set a job's utility if it runs from now on, its decay, expiry and delay, at position j.

    Parameters
    ----------
    j, row : int
        Its position, and its row of the table.
    slot : int
        Now.
    jobs : Candidates
        The table.
    made : Appraisal
        Written at ``j``.
    """
    duration = float(slot + jobs.slots_left[row] - 1 - jobs.arrival[row])
    utility = worth(jobs.worths, row, duration)
    decay = max(0.0, utility - worth(jobs.worths, row, duration + 1.0))
    made.utility[j] = utility
    made.decay[j] = decay
    made.expiry[j] = utility / decay if decay > 0.0 else np.inf
    made.delay[j] = jobs.share[row] * jobs.slots_left[row]


@kernel
def reckon(
    count: int, rows: Integers, jobs: Candidates, alpha: float, discount: float, made: Appraisal
) -> None:
    """Set the rewards of all jobs, in time linear in their number.

    Parameters
    ----------
    count : int
        How many there are; arrays may be longer.
    rows, jobs, alpha, discount
        As in `appraise`.
    made : Appraisal
        As `foresee` filled it, with the positions sorted.
    """
    # Of a delay x: jobs that expire before lose all, the others x times their decay.
    utility, decay, expiry, delay = made.utility, made.decay, made.expiry, made.delay
    fading = 0.0
    fadings = np.zeros(count + 1)
    for k in range(count - 1, -1, -1):
        fading += decay[made.order[k]]
        fadings[k] = fading
    lost = 0.0
    k = 0
    for n in range(count):
        j = made.by_delay[n]
        while k < count and expiry[made.order[k]] <= delay[j]:
            lost += utility[made.order[k]] if decay[made.order[k]] > 0.0 else 0.0
            k += 1
        others = lost + fadings[k] * delay[j] - min(decay[j] * delay[j], utility[j])
        present = utility[j] / (1.0 + discount * jobs.slots_left[rows[j]])
        made.reward[j] = (alpha * present - (1.0 - alpha) * max(0.0, others)) / max(delay[j], 1e-12)


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
def admission(at: int, rows: Integers, jobs: Candidates, made: Appraisal) -> tuple[float, float]:
    """Return what admitting one job costs the others, and when it would be done.

    Jobs are served in the order of their rewards. Where all of them fit side by side nobody waits;
    else the job completes when all that is served up to it, spread over the whole cluster, is
    done (and not before its own time), and delays the jobs behind it by what it takes.

    Parameters
    ----------
    at : int
        Position of the job among ``rows``.
    rows : ndarray of int64, shape (jobs,)
        Rows of the jobs.
    jobs : Candidates
        The table.
    made : Appraisal
        Of these jobs; arrays may be longer.

    Returns
    -------
    (float, float)
        Delay cost, and expected slots until completion.
    """
    row = rows[at]
    reward = made.reward
    filled = 0.0
    before = 0.0
    cost = 0.0
    delay = jobs.share[row] * jobs.slots_left[row]
    for j in range(len(rows)):
        other = rows[j]
        filled += jobs.share[other]
        if j == at:
            continue
        if reward[j] > reward[at] or (reward[j] == reward[at] and j < at):
            before += jobs.share[other] * jobs.slots_left[other]
        else:
            cost += min(made.decay[j] * delay, made.utility[j])
    wait = float(jobs.slots_left[row])
    if filled <= 1.0:
        return 0.0, wait
    return cost, max(wait, before + delay)

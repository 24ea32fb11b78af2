"""The risk-reward heuristic: rank jobs by their gain and the cost of delaying others.

Irwin, Grit, Chase: "Balancing Risk and Reward in a Market-Based Task Service" (HPDC 2004). There a
task fills one processor, loses value linearly while it waits, and is ranked by

    reward = (alpha * present value - (1 - alpha) * cost) / remaining time,
    present value = yield / (1 + discount * remaining time),
    cost = sum over the other tasks of decay * min(remaining time, time until it is worth nothing).

Here a job uses a share of the cluster, its dominant share. It delays others by ``share * remaining
slots``, which replaces the remaining time in the cost and in the denominator; both are equal if a
job fills the cluster. A job's decay is the utility lost by one more slot of delay.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.jit import kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.reactive.worth import Worths, worth


class Candidates(NamedTuple):
    """Open jobs as rows of a table."""

    worths: Worths
    arrival: Integers  # slot
    slots_left: Integers  # remaining slots of running
    share: Floats  # dominant share while running


class Appraisal(NamedTuple):
    """Values of jobs if each ran from now on, as arrays of shape (jobs,)."""

    utility: Floats  # of completing without delay
    decay: Floats  # utility lost by one more slot of delay
    expiry: Floats  # delay in slots after which the utility is gone, if it falls by `decay` a slot
    delay: Floats  # delay of other jobs in slots: the share times the remaining slots
    reward: Floats  # see the module
    order: Integers  # positions sorted by expiry
    by_delay: Integers  # positions sorted by delay


@kernel
def new_appraisal(size: int) -> Appraisal:
    """Allocate an appraisal."""
    values = np.zeros((5, size))
    order = np.zeros((2, size), dtype=np.int64)
    return Appraisal(values[0], values[1], values[2], values[3], values[4], order[0], order[1])


@kernel
def appraise(
    slot: int, rows: Integers, jobs: Candidates, alpha: float, discount: float
) -> Appraisal:
    """Appraise the open jobs ``rows`` as if each ran from now on; ``alpha`` is as in the module."""
    count = len(rows)
    values = new_appraisal(count)
    for j in range(count):
        set_values(j, rows[j], slot, jobs, values)
    order, by_delay = stable_order(values.expiry), stable_order(values.delay)
    for j in range(count):
        values.order[j] = order[j]
        values.by_delay[j] = by_delay[j]
    set_rewards(count, rows, jobs, alpha, discount, values)
    return values


@kernel
def set_values(j: int, row: int, slot: int, jobs: Candidates, values: Appraisal) -> None:
    """Set all values except the reward of a job at position ``j``, as if it ran from ``slot``."""
    duration = float(slot + jobs.slots_left[row] - 1 - jobs.arrival[row])
    utility = worth(jobs.worths, row, duration)
    decay = max(0.0, utility - worth(jobs.worths, row, duration + 1.0))
    values.utility[j] = utility
    values.decay[j] = decay
    values.expiry[j] = utility / decay if decay > 0.0 else np.inf
    values.delay[j] = jobs.share[row] * jobs.slots_left[row]


@kernel
def set_rewards(
    count: int, rows: Integers, jobs: Candidates, alpha: float, discount: float, values: Appraisal
) -> None:
    """Set the rewards of the first ``count`` jobs, in time linear in their number.

    ``values`` comes from `set_values`, with the positions sorted. Its arrays may be longer.
    """
    # A delay x costs jobs that expire before x all their utility, and others x times their decay.
    # ``decay_sums[k]`` is the decay of all jobs from position k of the order by expiry on.
    utility, decay, expiry, delay = values.utility, values.decay, values.expiry, values.delay
    decay_sum = 0.0
    decay_sums = np.zeros(count + 1)
    for k in range(count - 1, -1, -1):
        decay_sum += decay[values.order[k]]
        decay_sums[k] = decay_sum
    lost = 0.0
    k = 0
    for n in range(count):
        j = values.by_delay[n]
        while k < count and expiry[values.order[k]] <= delay[j]:
            lost += utility[values.order[k]] if decay[values.order[k]] > 0.0 else 0.0
            k += 1
        # The job itself isn't delayed, so its own loss is subtracted.
        delay_cost = lost + decay_sums[k] * delay[j] - min(decay[j] * delay[j], utility[j])
        present = utility[j] / (1.0 + discount * jobs.slots_left[rows[j]])
        values.reward[j] = (alpha * present - (1.0 - alpha) * max(0.0, delay_cost)) / max(
            delay[j], 1e-12
        )


@kernel
def insert_position(j: int, values: Floats, order: Integers) -> None:
    """Insert position ``j`` into ``order``, which sorts the positions before it by value."""
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
def remove_position(j: int, order: Integers) -> None:
    """Remove position ``j`` from ``order``, which has the positions up to it."""
    k = 0
    while order[k] != j:
        k += 1
    for n in range(k, j):
        order[n] = order[n + 1]


@kernel
def admission(
    position: int, rows: Integers, jobs: Candidates, values: Appraisal
) -> tuple[float, float]:
    """Return the delay cost of admitting a job, and its expected slots until completion.

    If all jobs fit side by side, none waits. Otherwise the whole cluster does the work of all jobs
    with a larger reward, then the work of the job at ``position``; it takes at least the job's own
    duration. The job delays those behind it by its work. The arrays of ``values`` may be longer.
    """
    row = rows[position]
    reward = values.reward
    total_share = 0.0
    work_before = 0.0
    cost = 0.0
    delay = jobs.share[row] * jobs.slots_left[row]
    for j in range(len(rows)):
        other = rows[j]
        total_share += jobs.share[other]
        if j == position:
            continue
        if reward[j] > reward[position] or (reward[j] == reward[position] and j < position):
            work_before += jobs.share[other] * jobs.slots_left[other]
        else:
            cost += min(values.decay[j] * delay, values.utility[j])
    wait = float(jobs.slots_left[row])
    if total_share <= 1.0:
        return 0.0, wait
    return cost, max(wait, work_before + delay)

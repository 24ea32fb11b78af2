"""Kernel for the gain and the cost of one more copy of a running task."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LEAST_LOG = -35.0
"""Minimum of ln S; a task that reaches it is assumed never to end by itself."""


class DistributionTables(NamedTuple):
    """Distributions of durations at unit scale, as arrays of shape (distributions,)."""

    tables: Floats  # ln S at knots in ln t, shape (distributions, knots)
    begins: Floats  # first knot
    steps: Floats  # distance of knots
    means: Floats
    paying: Floats  # age from which a copy costs no machine time


class Tasks(NamedTuple):
    """Distributions and progress of tasks, as arrays of shape (tasks,)."""

    distribution: Integers
    scale: Floats  # factor of the distribution's durations
    done: NDArray[np.bool_]
    copies: Integers  # number of started copies
    begun: Floats  # start of each copy, shape (tasks, maximum copies)


class Gains(NamedTuple):
    """Flowtime that one more copy of each task saves, and its extra machine time, in seconds."""

    saving: Floats
    extra: Floats


@kernel
def log_survival(table: Floats, begin: float, step: float, time: float) -> float:
    """Return ln S of a unit-scale distribution at a time, interpolated in ln t.

    Before the first knot S is 1. After the last, ln S is extrapolated linearly (a Pareto tail is
    linear).
    """
    if time <= 0.0:
        return 0.0
    x = (math.log(time) - begin) / step
    if x <= 0.0:
        return 0.0
    last = table.shape[0] - 1
    left = min(int(x), last - 1)
    value = table[left] + (x - left) * (table[left + 1] - table[left])
    return max(float(value), LEAST_LOG)


@kernel
def assess(
    low: int,
    high: int,
    whole: bool,
    now: float,
    tasks: Tasks,
    distributions: DistributionTables,
    unit: Floats,
    gains: Gains,
) -> None:
    """Evaluate one more copy now of each running task of a job: saved flowtime and extra cost.

    The alternative is not "never": a task whose newest copy reaches the age ``paying`` of its
    distribution gets another copy then, because from that age on a copy costs no machine time (a
    heavy-tailed task that has run long will run longer). So with S_i(t) = product over the present
    copies of S(age + t) / S(age), a new copy's survival S_0, and d the time until that age,

    - without: B_i(t) = S_i(t) up to d, S_i(t) S_0(t - d) after it (S_i(t) if d <= 0);
    - with: S_i(t) S_0(t);
    - saved flowtime, once every task of the job has started: the decrease of E[max] =
      integral of (B_i - S_i S_0) product over the other tasks of (1 - B_j) dt;
    - extra machine time: (n + 1) integral of S_i S_0 less the integral of B_i times the copies
      running then.

    Integrals use the trapezoid rule on ``unit``, scaled by the mean and the longest time that a
    task of the job has run. The job's tasks from ``low`` to ``high`` have started, and ``whole``
    says whether those are all of them.
    """
    distribution, scale, done, copies, begun = tasks
    tables, begins, steps, means, paying = distributions
    most = begun.shape[1]
    points = unit.shape[0]
    reach = 0.0
    for task in range(low, high):
        if not done[task]:
            mean = means[distribution[task]] * scale[task]
            reach = max(reach, mean + now - begun[task, 0])
    rest = np.empty((high - low, points))
    without = np.empty((high - low, points))
    finished = np.zeros(points)
    for task in range(low, high):
        if done[task]:
            continue
        row = task - low
        table = tables[distribution[task]]
        begin, step = begins[distribution[task]], steps[distribution[task]]
        size = scale[task]
        wait = np.inf
        if copies[task] < most:
            wait = max(
                paying[distribution[task]] * size - (now - begun[task, copies[task] - 1]), 0.0
            )
        settled = 0.0
        for c in range(copies[task]):
            settled += log_survival(table, begin, step, (now - begun[task, c]) / size)
        for g in range(points):
            time = unit[g] * reach
            value = -settled
            for c in range(copies[task]):
                value += log_survival(table, begin, step, (now - begun[task, c] + time) / size)
            rest[row, g] = math.exp(min(value, 0.0))
            without[row, g] = rest[row, g]
            if time > wait:
                without[row, g] *= math.exp(log_survival(table, begin, step, (time - wait) / size))
            finished[g] += math.log(max(1.0 - without[row, g], 1e-12))
    for task in range(low, high):
        if done[task] or copies[task] >= most:
            continue
        row = task - low
        table = tables[distribution[task]]
        begin, step = begins[distribution[task]], steps[distribution[task]]
        size = scale[task]
        count = float(copies[task])
        wait = paying[distribution[task]] * size - (now - begun[task, copies[task] - 1])
        longer, sooner = 0.0, 0.0
        before_longer, before_sooner = 1.0, 0.0
        for g in range(1, points):
            time = unit[g] * reach
            both = rest[row, g] * math.exp(log_survival(table, begin, step, time / size))
            own = rest[row, g] if wait <= 0.0 else without[row, g]
            running = count + 1.0 if 0.0 < wait < time else count
            here_longer = (count + 1.0) * both - running * own
            others = finished[g] - math.log(max(1.0 - without[row, g], 1e-12))
            here_sooner = (own - both) * math.exp(min(others, 0.0))
            width = 0.5 * (unit[g] - unit[g - 1]) * reach
            longer += width * (here_longer + before_longer)
            sooner += width * (here_sooner + before_sooner)
            before_longer, before_sooner = here_longer, here_sooner
        gains.extra[task] = longer
        gains.saving[task] = sooner if whole else 0.0

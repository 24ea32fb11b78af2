"""Kernel for the gain and the cost of one more copy of a running task."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Floats, Integers
from shadowprice.kernels.jit import kernel

MIN_LOG_SURVIVAL = -35.0
"""Minimum of ln S: survival stays constant from there, as if the task never ended."""


class DistributionTables(NamedTuple):
    """Distributions of durations at unit scale, as arrays of shape (distributions,)."""

    tables: Floats  # ln S at equidistant knots in ln t, shape (distributions, knots)
    begins: Floats  # ln t of the first knot
    steps: Floats  # distance of knots
    means: Floats
    paying: Floats  # age of a task from which one more copy costs no machine time


class Tasks(NamedTuple):
    """Distributions and progress of tasks, as arrays of shape (tasks,)."""

    distribution: Integers  # row of `DistributionTables`
    scale: Floats  # factor of the distribution's durations
    done: Flags
    copies: Integers  # number of started copies
    copy_starts: Floats  # start of each copy, shape (tasks, maximum copies)


class Gains(NamedTuple):
    """Flowtime (of its job) that one more copy of each task saves, and extra machine time.

    Both are in seconds.
    """

    saving: Floats
    extra: Floats


@kernel
def log_survival(table: Floats, begin: float, step: float, time: float) -> float:
    """Return ln S of a unit-scale distribution at a time, linear in ln t up to any time."""
    if time <= 0.0:
        return 0.0
    x = (math.log(time) - begin) / step
    if x <= 0.0:
        return 0.0
    last = table.shape[0] - 1
    knot = min(int(x), last - 1)
    value = table[knot] + (x - knot) * (table[knot + 1] - table[knot])
    return max(float(value), MIN_LOG_SURVIVAL)


@kernel
def assess(
    low: int,
    high: int,
    is_complete: bool,
    now: float,
    tasks: Tasks,
    distributions: DistributionTables,
    unit: Floats,
    gains: Gains,
) -> None:
    """Evaluate one more copy now of each running task of a job: saved flowtime and extra cost.

    The alternative to a copy now is a copy later, not none: a task whose newest copy reaches the
    age ``paying`` of its distribution gets another copy then. From that age on a copy costs no
    machine time, because a heavy-tailed task that has run long will run longer. Let S_i(t) be the
    product over the present copies of S(age + t) / S(age), S_0 the survival of a new copy, and d
    the time until that age. Then

    - without: B_i(t) = S_i(t) up to d, S_i(t) S_0(t - d) after it. If d <= 0, the evaluated task
      gets no later copy, B_i = S_i. Of the other tasks, those with d <= 0 get their copy now, and
      those with the maximum number of copies none, B_j = S_j;
    - with: S_i(t) S_0(t);
    - saved flowtime, once every task of the job has started: the decrease of E[max] =
      integral of (B_i - S_i S_0) product over the other tasks of (1 - B_j) dt;
    - extra machine time: (n + 1) integral of S_i S_0 less the integral of B_i times the copies
      running then.

    Integrals use the trapezoid rule on the grid ``unit``. The grid is scaled by the largest sum of
    a task's mean duration and its run time so far. The job's tasks in ``[low, high)`` have started;
    ``is_complete`` is whether these are all its tasks.
    """
    distribution, scale, done, copies, copy_starts = tasks
    tables, begins, steps, means, paying = distributions
    max_copies = copy_starts.shape[1]
    points = unit.shape[0]
    span = 0.0
    for task in range(low, high):
        if not done[task]:
            mean = means[distribution[task]] * scale[task]
            span = max(span, mean + now - copy_starts[task, 0])
    present = np.empty((high - low, points))  # S_i
    without = np.empty((high - low, points))  # B_i, with a later copy
    finished = np.zeros(points)  # logarithm of the product of 1 - B_i
    for task in range(low, high):
        if done[task]:
            continue
        row = task - low
        table = tables[distribution[task]]
        begin, step = begins[distribution[task]], steps[distribution[task]]
        size = scale[task]
        wait = np.inf
        if copies[task] < max_copies:
            wait = max(
                paying[distribution[task]] * size - (now - copy_starts[task, copies[task] - 1]), 0.0
            )
        log_survived = 0.0
        for c in range(copies[task]):
            log_survived += log_survival(table, begin, step, (now - copy_starts[task, c]) / size)
        for g in range(points):
            time = unit[g] * span
            value = -log_survived
            for c in range(copies[task]):
                value += log_survival(
                    table, begin, step, (now - copy_starts[task, c] + time) / size
                )
            present[row, g] = math.exp(min(value, 0.0))
            without[row, g] = present[row, g]
            if time > wait:
                without[row, g] *= math.exp(log_survival(table, begin, step, (time - wait) / size))
            # Logarithms, so that one task's factor can be taken out again below.
            finished[g] += math.log(max(1.0 - without[row, g], 1e-12))
    for task in range(low, high):
        if done[task] or copies[task] >= max_copies:
            continue
        row = task - low
        table = tables[distribution[task]]
        begin, step = begins[distribution[task]], steps[distribution[task]]
        size = scale[task]
        count = float(copies[task])
        wait = paying[distribution[task]] * size - (now - copy_starts[task, copies[task] - 1])
        extra_time, saved_time = 0.0, 0.0
        previous_longer, previous_sooner = 1.0, 0.0
        for g in range(1, points):
            time = unit[g] * span
            with_copy = present[row, g] * math.exp(log_survival(table, begin, step, time / size))
            without_copy = present[row, g] if wait <= 0.0 else without[row, g]
            running = count + 1.0 if 0.0 < wait < time else count
            next_longer = (count + 1.0) * with_copy - running * without_copy
            log_others = finished[g] - math.log(max(1.0 - without[row, g], 1e-12))
            next_sooner = (without_copy - with_copy) * math.exp(min(log_others, 0.0))
            width = 0.5 * (unit[g] - unit[g - 1]) * span
            extra_time += width * (next_longer + previous_longer)
            saved_time += width * (next_sooner + previous_sooner)
            previous_longer, previous_sooner = next_longer, next_sooner
        gains.extra[task] = extra_time
        gains.saving[task] = saved_time if is_complete else 0.0

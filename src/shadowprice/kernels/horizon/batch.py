"""The exact search over slots for all jobs of a set at once, at prices that they share.

A certificate prices thousands of jobs hundreds of times. A call for each job takes twice as long as
one call for all jobs.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Floats, Integers
from shadowprice.kernels.horizon.search import search_slots
from shadowprice.kernels.jit import kernel


class JobRows(NamedTuple):
    """Windows of slots, choices and utilities of jobs; most arrays have a row for each job."""

    first: Integers  # first slot of the window
    slots: Integers  # length of the window
    required: Integers  # progress units
    kind: Integers  # row of the job in the prices; jobs of a kind have the same demands
    # First entry of each job in the next three arrays, which list all jobs' choices; one row more.
    choice_start: Integers
    workers: Integers
    ps_counts: Integers
    gains: Integers  # progress units in a slot
    worth_start: Integers  # first entry of each job in `worth`; one row more
    worth: Floats  # utility of completing in each slot of the window
    tail: Floats  # utility of completing after the window, at no cost


class JobSchedules(NamedTuple):
    """Results, written by `price_jobs`."""

    payoff: Floats  # upper bound on the payoff of each job
    earned: Floats  # utility of each job's schedule
    workers: Integers  # sums over all schedules, (kinds, slots)
    ps: Integers  # the same of parameter servers


@kernel
def price_jobs(
    members: Integers,
    rows: JobRows,
    worker_price: Floats,
    ps_price: Floats,
    gap: float,
    result: JobSchedules,
) -> float:
    """Price some jobs; return the sum of the bounds on their payoffs.

    ``members`` are the rows of these jobs. Prices of a worker and of a parameter server have the
    shape (kinds, slots); ``gap`` is as in `best_schedule`. Workers and parameter servers of the
    schedules are added to those of the result.
    """
    (
        first, slots, required, kind, choice_start, workers, ps_counts, gains, worth_start, worth,
        tail,
    ) = rows  # fmt: skip
    payoff, earned, used_workers, used_ps = result
    total = 0.0
    for job in members:
        begin, end = choice_start[job], choice_start[job + 1]
        span = slots[job]
        payoff[job] = max(0.0, tail[job])
        earned[job] = payoff[job]
        best_gain = 0
        for c in range(begin, end):
            best_gain = max(best_gain, gains[c])
        # Whether the window suffices: a quotient, because the product may exceed int64.
        if span > 0 and best_gain >= -(-required[job] // span):
            row = kind[job]
            cost = np.empty((span, end - begin))
            for t in range(span):
                worker = worker_price[row, first[job] + t]
                ps = ps_price[row, first[job] + t]
                for c in range(begin, end):
                    cost[t, c - begin] = workers[c] * worker + ps_counts[c] * ps
            utility = worth[worth_start[job] : worth_start[job] + span]
            completion, _, _, choice, bound = search_slots(
                cost, gains[begin:end], required[job], utility, gap
            )
            payoff[job] = max(payoff[job], bound)
            if completion >= 0 and bound > earned[job]:
                earned[job] = utility[completion]
                for t in range(completion + 1):
                    if choice[t] >= 0:
                        used_workers[row, first[job] + t] += workers[begin + choice[t]]
                        used_ps[row, first[job] + t] += ps_counts[begin + choice[t]]
        total += payoff[job]
    return total

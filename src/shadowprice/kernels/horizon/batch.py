"""The exact search over slots for all jobs of a set at once, at prices that they share.

A certificate prices thousands of jobs hundreds of times. One call for all of them costs what the
searches cost; a call per job costs twice as much.
"""

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.horizon.search import search_slots
from shadowprice.kernels.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@kernel
def price_jobs(
    members: Ints,
    first: Ints,
    slots: Ints,
    required: Ints,
    kind: Ints,
    choice_start: Ints,
    workers: Ints,
    servers: Ints,
    gains: Ints,
    worth_start: Ints,
    worth: Floats,
    tail: Floats,
    worker_price: Floats,
    server_price: Floats,
    gap: float,
    payoff: Floats,
    earned: Floats,
    used_workers: Ints,
    used_servers: Ints,
) -> float:
    """Price jobs; return the sum of the bounds on their payoffs.

    Parameters
    ----------
    members : int64[N]
        Jobs to price; the tables below have a row for each job of the set.
    first, slots, required : int64[J]
        Window and progress units of each job.
    kind : int64[J]
        Row of a job in the prices. Jobs of a kind have the same demands.
    choice_start : int64[J + 1]
        Entries of each job in ``workers``, ``servers`` and ``gains``.
    worth_start : int64[J + 1]
        Entries of each job in ``worth``, its utility by slot of the window.
    tail : float64[J]
        Utility of completing after the window, at no cost.
    worker_price, server_price : float64[K, T]
        Price of one worker and of one parameter server of each kind in each slot.
    gap : float
        As in `best_schedule`.
    payoff, earned : float64[J]
        Written: bound on the payoff of each priced job, and the utility of its schedule.
    used_workers, used_servers : int64[K, T]
        Workers and parameter servers of the schedules are added to them.
    """
    total = 0.0
    for job in members:
        begin, end = choice_start[job], choice_start[job + 1]
        span = slots[job]
        payoff[job] = max(0.0, tail[job])
        earned[job] = payoff[job]
        best_gain = 0
        for c in range(begin, end):
            best_gain = max(best_gain, gains[c])
        if span > 0 and best_gain * span >= required[job]:
            row = kind[job]
            cost = np.empty((span, end - begin))
            for t in range(span):
                worker = worker_price[row, first[job] + t]
                server = server_price[row, first[job] + t]
                for c in range(begin, end):
                    cost[t, c - begin] = workers[c] * worker + servers[c] * server
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
                        used_servers[row, first[job] + t] += servers[begin + choice[t]]
        total += payoff[job]
    return total

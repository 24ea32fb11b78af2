"""The price at which a pool would just clear: the L that the demand itself suggests.

The papers' L, (25), (26) and (3.14), guards a worst case. It is below the utility density of every
job, even one that ends at T with no utility left. Prices are then near 0 until a server is nearly
full.

The clearing price is the dual of the pool as one big machine over one planning window. Jobs of the
window are accepted by utility density until the scarcest resource is used up. The density of the
last one is the price; it is 0 if all jobs fit. Demand is bursty, so the busiest window counts.

If jobs aren't known in advance, only promised jobs count (`ln_price_of_promises`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.cluster import Amounts

_IDLE_WINDOW_DIVISOR: Final = 8  # an eighth of a window without demand is assumed at first
_RENEWAL_DIVISOR: Final = 50  # a price is computed again when a fiftieth of the jobs is new


class PriceContribution(NamedTuple):
    """Contribution of one job to the constants of a pool."""

    ln_upper: Floats  # ln of its best utility for a share of each resource; -inf if not needed
    ln_best: float  # of its largest utility
    ln_worst: float  # of its smallest positive utility
    ln_use: float
    """Ln of the shares that it uses over all of its worker-slots. Infinite if no server of the pool
    has the resources; the job then contributes nothing."""
    slots: int  # those worker-slots
    window: int  # slots in which it could run
    demand: Amounts  # of one worker (or parameter server)
    shares: Floats  # that demand in shares
    ln_first: float
    """Ln of its utility in the first slot in which it could complete, a slot before ``ln_best``'s.
    It replaces ``ln_best`` where that is 0 for all jobs."""
    ln_upper_first: Floats  # as ``ln_upper``, of that utility


def ln_price_of_known(
    jobs: Sequence[tuple[int, PriceContribution]], capacity: Floats, window: int
) -> float:
    """Return the logarithm of the price at which jobs that are known in advance clear.

    ``jobs`` are arrivals and contributions, ``capacity`` is that of the pool in shares, and
    ``window`` the number of slots that a planner looks ahead.
    """
    arrivals, densities, uses = _demand(jobs)
    if not len(arrivals):
        return -math.inf
    window = max(window, 1)
    windows = (arrivals - arrivals.min()) // window
    return max(
        _ln_clearing(densities[windows == index], uses[windows == index], window * capacity)
        for index in np.unique(windows)
    )


def _demand(jobs: Sequence[tuple[int, PriceContribution]]) -> tuple[Integers, Floats, Floats]:
    """Return the arrival, ln of the density, and use of the resources of each job.

    Jobs without a utility don't count. If none has one, their utilities a slot earlier do.
    """
    counted = [(arrival, one, one.ln_best) for arrival, one in jobs]
    if all(math.isinf(ln_best) for _, _, ln_best in counted):
        counted = [(arrival, one, one.ln_first) for arrival, one in jobs]
    counted = [entry for entry in counted if math.isfinite(entry[2])]
    return (
        np.array([arrival for arrival, _, _ in counted], dtype=np.int64),
        np.array([ln_best - one.ln_use for _, one, ln_best in counted]),
        np.array([one.slots * one.shares for _, one, _ in counted]),
    )


def _ln_clearing(densities: Floats, uses: Floats, room: Floats) -> float:
    """Return the density at which jobs, densest first, use up a resource; ``-inf`` if none do."""
    limited = room > 0
    order = np.argsort(-densities, kind="stable")
    taken = np.cumsum(uses[order][:, limited], axis=0)
    full = (taken >= room[limited]).any(axis=1)
    return float(densities[order][int(np.argmax(full))]) if full.any() else -math.inf


_PRICED_PART: Final = 0.5  # part of the pool that promised jobs fill at their clearing price
_DEMAND_EXPONENT: Final = 4
"""Power of the demand, over that part, with which the price falls if the demand is less."""
_DISCOUNT: Final = 0.45
"""Price relative to the density of the last job that counts. Below a half, so that equal jobs still
pay off if they use two pools."""


def ln_price_of_promises(
    jobs: Sequence[tuple[int, PriceContribution]], capacity: Floats, slots: int, window: int
) -> float:
    """Return the logarithm of the price at which the promised jobs would fill a part of the pool.

    Promised jobs never exceed the capacity, so the price at which they would fill all of it is 0
    even in a rush. The price at which they fill half of it rises and falls with the demand, because
    it decides which jobs are promised next: at a price that is too high, they fill less. With less
    demand, the price is below that of every promised job, and falls with the demand. Jobs are in
    the order of their promises. The latest fiftieth doesn't count yet, because a change of prices
    concerns all slots. Of the ``slots`` so far, the latest ``window`` count.
    """
    _, densities, uses = _demand(jobs[: _count_renewed(len(jobs))])
    if not len(densities):
        return -math.inf
    slots = min(slots + max(1, window // _IDLE_WINDOW_DIVISOR), window)
    room = _PRICED_PART * slots * capacity
    ln_price = _ln_clearing(densities, uses, room)
    if ln_price > -math.inf:
        return ln_price + math.log(_DISCOUNT)
    limited = room > 0
    part = float((uses.sum(axis=0)[limited] / room[limited]).max(initial=0.0))
    if part <= 0:
        return -math.inf
    return float(densities.min()) + math.log(_DISCOUNT) + _DEMAND_EXPONENT * math.log(part)


def _count_renewed(count: int) -> int:
    """Return how many of the first jobs set the price: a new fiftieth at a time."""
    counted = 0
    while (following := counted + max(1, counted // _RENEWAL_DIVISOR)) <= count:
        counted = following
    return counted

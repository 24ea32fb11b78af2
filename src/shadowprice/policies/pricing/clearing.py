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
from copy import copy
from typing import Final

import numpy as np

from shadowprice.core.arrays import Floats
from shadowprice.policies.pricing.contributions import PriceContribution

_IDLE_WINDOW_DIVISOR: Final = 8  # an eighth of a window without demand is assumed at first
_RENEWAL_DIVISOR: Final = 50  # a price is computed again when a fiftieth of the jobs is new
_ARRIVAL, _DENSITY, _BEST, _USES = range(4)  # columns of the array of jobs
_INITIAL_ROWS: Final = 16


class ClearingPrice:
    """The clearing price of a job set that is known in advance.

    ``capacity`` is that of the pool in shares, ``window`` the slots that a planner looks ahead.
    """

    def __init__(self, capacity: Floats, window: int) -> None:
        self._capacity = capacity
        self._window = max(window, 1)
        # One row a job: arrival, ln of its density and of its utility, use of each resource in
        # shares, and the same in amounts.
        self._jobs = np.empty((0, _USES + 2 * len(capacity)))
        self._count = 0
        self._ln_price = -math.inf
        self._due = 1
        self._seen = 0

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_jobs": self._jobs[: self._count].copy()}

    def __setstate__(self, state: dict[str, object]) -> None:
        jobs, capacity = state.get("_jobs"), state.get("_capacity")
        wide = _USES + 2 * len(capacity) if isinstance(capacity, np.ndarray) else 0
        if not isinstance(jobs, np.ndarray) or jobs.shape[1] != wide:
            raise AttributeError("jobs that count were kept in another form")
        vars(self).update(state)

    def resize(self, capacity: Floats, scale: Floats | None = None) -> None:
        """Set another capacity of the pool; the price is computed again.

        ``scale`` has the new amount of a share of 1 by resource, 0 for resources that don't count.
        None: unchanged.
        """
        self._capacity = capacity
        self._due = min(self._due, self._seen)
        if scale is None:
            return
        self._jobs = self._jobs[: self._count].copy()
        uses, amounts = np.split(self._jobs[:, _USES:], 2, axis=1)  # views
        uses[:] = np.divide(amounts, scale, out=np.zeros(amounts.shape), where=scale > 0)
        total = uses.sum(axis=1)
        ln_total = np.log(total, out=np.full(len(total), np.inf), where=total > 0)
        self._jobs[:, _DENSITY] = self._jobs[:, _BEST] - ln_total

    def copy(self) -> ClearingPrice:
        """Return an independent copy."""
        clone = copy(self)
        clone._jobs = self._jobs[: self._count].copy()
        return clone

    @property
    def seen(self) -> int:
        """Number of jobs added."""
        return self._seen

    def add(
        self, arrival: int, ln_best: float, ln_density: float, use: Floats, amounts: Floats
    ) -> None:
        """Add a job; it is ignored if its utility isn't finite.

        ``ln_best`` is ln of its maximum utility, ``ln_density`` of that per slot and share of 1.
        ``use`` is shares times slots by resource, ``amounts`` the same in amounts.
        """
        if math.isfinite(ln_best):
            self._seen += 1
            self._make_room(1)
            row = self._jobs[self._count]
            row[_ARRIVAL], row[_DENSITY], row[_BEST] = arrival, ln_density, ln_best
            row[_USES:] = np.concatenate((use, amounts))
            self._count += 1

    def _make_room(self, jobs: int) -> None:
        if self._count + jobs > len(self._jobs):
            size = max(_INITIAL_ROWS, 2 * (self._count + jobs))
            larger = np.empty((size, self._jobs.shape[1]))
            larger[: self._count] = self._jobs[: self._count]
            self._jobs = larger

    def merge(self, other: ClearingPrice) -> None:
        """Add the jobs of another price, as if they had come later."""
        self._seen += other._seen
        self._make_room(other._count)
        self._jobs[self._count : self._count + other._count] = other._jobs[: other._count]
        self._count += other._count

    def ln_price(self) -> float:
        """Return the logarithm of the clearing price.

        It is computed again when a fiftieth of the jobs that count is new. Otherwise every slot
        would have to be priced again for every job.
        """
        seen = self._seen
        if self._count and seen >= self._due:
            jobs = self._jobs[: self._count]
            arrivals = jobs[:, _ARRIVAL]
            windows = (arrivals - arrivals.min()) // self._window
            self._ln_price = max(
                self._ln_window_price(jobs[windows == index]) for index in np.unique(windows)
            )
            self._due = seen + max(1, seen // _RENEWAL_DIVISOR)
        return self._ln_price

    def _ln_window_price(self, jobs: Floats) -> float:
        """Return the logarithm of the price at which jobs clear in a window."""
        uses = jobs[:, _USES : _USES + len(self._capacity)]
        return _ln_clearing(jobs[:, _DENSITY], uses, self._window * self._capacity)


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
    counted = [(one, one.ln_best) for _, one in jobs[: _count_renewed(len(jobs))]]
    if all(math.isinf(ln_best) for _, ln_best in counted):
        counted = [(one, one.ln_first) for one, _ in counted]
    counted = [(one, ln_best) for one, ln_best in counted if math.isfinite(ln_best)]
    if not counted:
        return -math.inf
    densities = np.array([ln_best - one.ln_use for one, ln_best in counted])
    uses = np.array([one.slots * one.shares for one, _ in counted])
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

"""The price at which a pool would just clear: which L the demand itself suggests.

The papers' L, (25), (26) and (3.14), guards a worst case: it lies below the utility density of
every job, even one that ends at T with nothing left to gain, and prices then stay near 0 until a
server is nearly full. The clearing price is the dual of the pool seen as one big machine over one
planning window: the jobs of the window are taken by utility density until the scarcest resource is
used up, and the density of the last one is the price below which there is more demand than room.
It is 0 where there is room for all. Demand is bursty, so the busiest window counts.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_GUESSED_AHEAD: Final = 20
_RENEWALS: Final = 50
_ARRIVAL, _DENSITY, _BEST, _USES = range(4)
"""Columns of what is kept of a job."""
_FEWEST: Final = 16
"""Jobs that there is room for at first."""


class ClearingPrice:
    """The clearing price over the jobs seen so far.

    Parameters
    ----------
    capacity : ndarray of float64, shape (resources,)
        Capacity of the pool in shares: the number of largest servers it amounts to.
    window : int
        Slots that a planner looks ahead.
    known : bool
        Whether the jobs taken in are all there will be: the busiest window of them counts.
        Otherwise the latest window does, its demand so far, less what chance alone may have added
        to it, set against its slots so far and a twentieth of a window.
    """

    def __init__(self, capacity: Floats, window: int, *, known: bool) -> None:
        self._capacity = capacity
        self._window = max(window, 1)
        self._known = known
        # A row a job: arrival, ln of its density and of its utility, what it uses of each resource
        # in shares, and the same in amounts.
        self._jobs = np.empty((0, _USES + 2 * len(capacity)))
        self._count = 0
        self._ln_price = -math.inf
        self._due = 1
        self._seen = 0
        self._first: int | None = None

    _next: float | None = None
    """What `ln_price` is going to return, once somebody looked ahead; no part of the memory."""

    def __getstate__(self) -> dict[str, object]:
        state = {name: value for name, value in vars(self).items() if name != "_next"}
        return state | {"_jobs": self._jobs[: self._count].copy()}

    def __setstate__(self, state: dict[str, object]) -> None:
        jobs, capacity = state.get("_jobs"), state.get("_capacity")
        wide = _USES + 2 * len(capacity) if isinstance(capacity, np.ndarray) else 0
        if not isinstance(jobs, np.ndarray) or jobs.shape[1] != wide:
            raise AttributeError("jobs that count were kept in another form")
        vars(self).update(state)

    def resize(self, capacity: Floats, scale: Floats | None = None) -> None:
        """Take note of another capacity of the pool; the price is worked out anew.

        Parameters
        ----------
        capacity : ndarray of float64, shape (resources,)
            That of the pool, in shares.
        scale : ndarray of float64, shape (resources,), optional
            What a share of 1 is from now on, 0 for resources that do not count; as before without.
        """
        self._capacity, self._next = capacity, None
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
        """Return a price over the same jobs, to which others may be added."""
        twin = copy(self)
        twin._jobs = self._jobs[: self._count].copy()
        return twin

    @property
    def seen(self) -> int:
        """How many jobs were taken in."""
        return self._seen

    def add(
        self, arrival: int, ln_best: float, ln_density: float, use: Floats, amounts: Floats
    ) -> None:
        """Take a job in.

        Parameters
        ----------
        arrival : int
            The slot in which it arrives.
        ln_best : float
            Logarithm of its largest utility.
        ln_density : float
            The same per slot and share of 1 of all it asks for.
        use : ndarray of float64, shape (resources,)
            Shares times slots that it takes of each resource.
        amounts : ndarray of float64, shape (resources,)
            Amounts times slots.
        """
        if math.isfinite(ln_best):
            self._next = None
            self._seen += 1
            self._first = arrival if self._first is None else min(self._first, arrival)
            self._make_room(1)
            row = self._jobs[self._count]
            row[_ARRIVAL], row[_DENSITY], row[_BEST] = arrival, ln_density, ln_best
            row[_USES:] = np.concatenate((use, amounts))
            self._count += 1

    def _make_room(self, jobs: int) -> None:
        if self._count + jobs > len(self._jobs):
            room = max(_FEWEST, 2 * (self._count + jobs))
            wider = np.empty((room, self._jobs.shape[1]))
            wider[: self._count] = self._jobs[: self._count]
            self._jobs = wider

    def join(self, other: ClearingPrice) -> None:
        """Take in the jobs of another price, as if they had come behind."""
        self._next = None
        self._seen += other._seen
        if other._first is not None:
            self._first = other._first if self._first is None else min(self._first, other._first)
        self._make_room(other._count)
        self._jobs[self._count : self._count + other._count] = other._jobs[: other._count]
        self._count += other._count

    def ln_price_to_come(self) -> float:
        """Return what `ln_price` would, without working it out for good."""
        if self._next is None:
            self._next = self.copy().ln_price()
        return self._next

    def ln_price(self) -> float:
        """Return the logarithm of the clearing price.

        It is worked out anew whenever a fiftieth of the jobs that count is new: prices that
        changed with every job would mean pricing every slot with every job.
        """
        seen = self._seen
        if self._count and seen >= self._due:
            if not self._known:
                self._forget()
            jobs = self._jobs[: self._count]
            arrivals = jobs[:, _ARRIVAL]
            if self._known:
                windows = (arrivals - arrivals.min()) // self._window
                prices = [
                    self._settle(jobs[windows == at], self._window) for at in np.unique(windows)
                ]
                counted = seen
            else:
                assert self._first is not None
                ahead = max(1, self._window // _GUESSED_AHEAD)
                slots = min(int(arrivals.max()) - self._first + ahead, self._window)
                prices = [self._settle(jobs, slots)]
                counted = len(jobs)
            self._ln_price = max(prices)
            self._due = seen + max(1, counted // _RENEWALS)
        return self._ln_price

    def _forget(self) -> None:
        """Drop the jobs that arrived before the latest window: they never count again."""
        arrivals = self._jobs[: self._count, _ARRIVAL]
        kept = arrivals > arrivals.max() - self._window
        if not kept.all():
            self._jobs = self._jobs[: self._count][kept]
            self._count = len(self._jobs)

    def _settle(self, jobs: Floats, slots: int) -> float:
        """Return the price at which some jobs would clear in so many slots."""
        limited = self._capacity > 0
        jobs = jobs[np.argsort(-jobs[:, _DENSITY], kind="stable")]
        uses = jobs[:, _USES : _USES + len(limited)][:, limited]
        taken = np.cumsum(uses, axis=0)
        if not self._known:
            # A few jobs say little of those to come: less a standard deviation of their sum (of a
            # compound Poisson law), so that one job alone never makes a price.
            taken -= np.sqrt(np.cumsum(uses * uses, axis=0))
        full = (taken >= slots * self._capacity[limited]).any(axis=1)
        return float(jobs[int(np.argmax(full)), _DENSITY]) if full.any() else -math.inf

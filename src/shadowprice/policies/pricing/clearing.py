"""The price at which a pool would just clear: the L that the demand itself suggests.

The papers' L, (25), (26) and (3.14), guards a worst case. It lies below the utility density of
every job, even one that ends at T with no utility left. Prices then stay near 0 until a server is
nearly full.

The clearing price is the dual of the pool as one big machine over one planning window. Jobs of the
window are accepted by utility density until the scarcest resource is used up. The density of the
last one is the price; it is 0 if all jobs fit. Demand is bursty, so the busiest window counts.
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
"""Columns of the array of jobs."""
_FEWEST: Final = 16
"""Initial number of rows."""


class ClearingPrice:
    """The clearing price over the jobs seen so far.

    Parameters
    ----------
    capacity : ndarray of float64, shape (resources,)
        Capacity of the pool in shares: its equivalent in largest servers.
    window : int
        Slots that a planner looks ahead.
    known : bool
        Whether all jobs are known: then the busiest window counts. Otherwise the latest one does:
        its demand so far, less a standard deviation, over its slots so far and a twentieth of a
        window.
    """

    def __init__(self, capacity: Floats, window: int, *, known: bool) -> None:
        self._capacity = capacity
        self._window = max(window, 1)
        self._known = known
        # One row a job: arrival, ln of its density and of its utility, use of each resource in
        # shares, and the same in amounts.
        self._jobs = np.empty((0, _USES + 2 * len(capacity)))
        self._count = 0
        self._ln_price = -math.inf
        self._due = 1
        self._seen = 0
        self._first: int | None = None

    _next: float | None = None
    """Cached result of `ln_price_to_come`; not part of the policy state."""

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
        """Set another capacity of the pool; the price is computed again.

        Parameters
        ----------
        capacity : ndarray of float64, shape (resources,)
            Capacity in shares.
        scale : ndarray of float64, shape (resources,), optional
            New amount of a share of 1, 0 for resources that don't count; unchanged if omitted.
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
        """Add a job.

        Parameters
        ----------
        arrival : int
            Arrival slot.
        ln_best : float
            Logarithm of its maximum utility; the job is ignored if that isn't finite.
        ln_density : float
            Logarithm of that utility per slot and share of 1.
        use : ndarray of float64, shape (resources,)
            Shares times slots of each resource.
        amounts : ndarray of float64, shape (resources,)
            Amounts times slots of each resource.
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
            size = max(_FEWEST, 2 * (self._count + jobs))
            larger = np.empty((size, self._jobs.shape[1]))
            larger[: self._count] = self._jobs[: self._count]
            self._jobs = larger

    def join(self, other: ClearingPrice) -> None:
        """Add the jobs of another price, as if they had come later."""
        self._next = None
        self._seen += other._seen
        if other._first is not None:
            self._first = other._first if self._first is None else min(self._first, other._first)
        self._make_room(other._count)
        self._jobs[self._count : self._count + other._count] = other._jobs[: other._count]
        self._count += other._count

    def ln_price_to_come(self) -> float:
        """Return the result that `ln_price` would have, without changing state."""
        if self._next is None:
            self._next = self.copy().ln_price()
        return self._next

    def ln_price(self) -> float:
        """Return the logarithm of the clearing price.

        It is computed again when a fiftieth of the jobs that count is new. Otherwise every slot
        would have to be priced again for every job.
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
                    self._settle(jobs[windows == index], self._window)
                    for index in np.unique(windows)
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
        """Remove the jobs that arrived before the latest window: they never count again."""
        arrivals = self._jobs[: self._count, _ARRIVAL]
        kept = arrivals > arrivals.max() - self._window
        if not kept.all():
            self._jobs = self._jobs[: self._count][kept]
            self._count = len(self._jobs)

    def _settle(self, jobs: Floats, slots: int) -> float:
        """Return the logarithm of the price at which jobs clear in ``slots`` slots."""
        limited = self._capacity > 0
        jobs = jobs[np.argsort(-jobs[:, _DENSITY], kind="stable")]
        uses = jobs[:, _USES : _USES + len(limited)][:, limited]
        taken = np.cumsum(uses, axis=0)
        if not self._known:
            # A few jobs predict little: subtract the standard deviation of their sum (compound
            # Poisson distribution), so that one job alone never sets a price.
            taken -= np.sqrt(np.cumsum(uses * uses, axis=0))
        full = (taken >= slots * self._capacity[limited]).any(axis=1)
        return float(jobs[int(np.argmax(full)), _DENSITY]) if full.any() else -math.inf

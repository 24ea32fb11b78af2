"""The price at which a pool would just clear: which L the demand itself suggests.

The papers' L, (25), (26) and (3.14), guards a worst case: it lies below the utility density of
every job, even one that ends at T with nothing left to gain, and prices then stay near 0 until a
server is nearly full. The clearing price is the dual of the pool seen as one big machine over the
whole timespan: jobs are taken by utility density until the scarcest resource is used up, and the
density of the last one is the price below which there is more demand than room. It is 0 where
there is room for all.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ClearingPrice:
    """The clearing price over the jobs seen so far.

    Parameters
    ----------
    capacity : ndarray of float64, shape (resources,)
        Capacity of the pool in shares: the number of largest servers it amounts to.
    """

    def __init__(self, capacity: Floats) -> None:
        self._capacity = capacity
        self._densities: list[float] = []
        self._uses: list[Floats] = []
        self._ln_price = -math.inf
        self._due = 1

    def add(self, ln_density: float, use: Floats) -> None:
        """Take a job in.

        Parameters
        ----------
        ln_density : float
            Logarithm of its largest utility per slot and share of 1 of all it asks for.
        use : ndarray of float64, shape (resources,)
            Shares times slots that it takes of each resource.
        """
        if math.isfinite(ln_density):
            self._densities.append(ln_density)
            self._uses.append(use)

    def ln_price(self, slots: int) -> float:
        """Return the logarithm of the clearing price over so many slots.

        It is worked out anew whenever the jobs seen have grown by a fiftieth: prices that changed
        with every job would mean pricing every slot with every job.
        """
        if len(self._densities) >= self._due:
            self._due = len(self._densities) + max(1, len(self._densities) // 50)
            self._ln_price = self._settle(slots)
        return self._ln_price

    def _settle(self, slots: int) -> float:
        densities = np.array(self._densities)
        order = np.argsort(-densities, kind="stable")
        limited = self._capacity > 0
        taken = np.cumsum(np.array(self._uses)[order][:, limited], axis=0)
        full = (taken >= slots * self._capacity[limited]).any(axis=1)
        return float(densities[order][int(np.argmax(full))]) if full.any() else -math.inf

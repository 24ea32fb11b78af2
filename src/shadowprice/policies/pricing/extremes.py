"""The largest, or the least, sum of shares over amounts seen, on servers of whatever size.

What the constants L and U take from a job is in shares of the largest capacities of its pool. Those
of a pool change when servers join it or leave. U is a maximum for each resource by itself, and so
its amounts can be kept; L is one over sums of shares, and which job's sum is extreme depends on the
capacities. Kept are those jobs alone that could be it for some.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Extreme:
    """The extreme of ``ln(sum over resources of amount / capacity)`` over the amounts seen.

    Parameters
    ----------
    resources : int
        Number of resources.
    largest : bool
        Whether the largest sum is asked for, else the least.
    """

    def __init__(self, resources: int, *, largest: bool) -> None:
        self._largest = largest
        # A row for amounts that no others make needless; never changed in place.
        self._rows: Floats = np.empty((0, resources))

    def add(self, ln_amounts: Floats) -> None:
        """Take amounts in.

        Parameters
        ----------
        ln_amounts : ndarray of float64, shape (resources,)
            Their logarithms, ``-inf`` for none.
        """
        rows = self._rows
        if (self._behind(ln_amounts, rows)).any():
            return
        self._rows = np.vstack([rows[~self._behind(rows, ln_amounts)], ln_amounts])

    def _behind(self, one: Floats, other: Floats) -> NDArray[np.bool_]:
        """Return where one's sum is never more extreme than the other's, row by row."""
        if self._largest:
            return np.asarray((one <= other).all(axis=1))
        # A least sum is one over servers that have any of it: those that ask for less, and for
        # fewer resources, may count nowhere.
        alike = (np.isneginf(one) == np.isneginf(other)).all(axis=1)
        return np.asarray(alike & (one >= other).all(axis=1))

    def join(self, other: Extreme) -> None:
        """Take in all that another has seen."""
        for row in other._rows:
            self.add(row)

    def ln_sum(self, capacity: Floats) -> float:
        """Return the extreme of the logarithms.

        Parameters
        ----------
        capacity : ndarray of float64, shape (resources,)
            What amounts are shares of; resources of which there is 0 do not count.

        Returns
        -------
        float
            Over the amounts that ask for anything that counts; infinite without any.
        """
        here = capacity > 0
        sums = np.logaddexp.reduce(self._rows[:, here] - np.log(capacity[here]), axis=1)
        sums = sums[np.isfinite(sums)]
        if self._largest:
            return float(sums.max(initial=-math.inf))
        return float(sums.min(initial=math.inf))

"""The maximum or minimum sum of shares over the amounts seen, for servers of any size.

L and U depend on jobs' demands in shares of the largest capacities of the pool. These capacities
change when servers join or leave. U is a maximum for each resource, so its amounts can be kept. L
is an extreme over sums of shares, and the capacities decide which job's sum is extreme. Only the
jobs that could be it for some capacities are kept.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ExtremeShareSum:
    """The extreme of ``ln(sum over resources of amount / capacity)`` over the amounts seen.

    It is the maximum if ``largest``, otherwise the minimum.
    """

    def __init__(self, resources: int, *, largest: bool) -> None:
        self._largest = largest
        # Amounts that may be extreme, one row each; never changed in place.
        self._rows: Floats = np.empty((0, resources))

    def add(self, ln_amounts: Floats) -> None:
        """Add amounts.

        ``ln_amounts`` has their logarithms by resource, ``-inf`` for 0.
        """
        rows = self._rows
        if (self._behind(ln_amounts, rows)).any():
            return
        self._rows = np.vstack([rows[~self._behind(rows, ln_amounts)], ln_amounts])

    def _behind(self, one: Floats, other: Floats) -> NDArray[np.bool_]:
        """Return for which rows the first sum is never more extreme than the second."""
        if self._largest:
            return np.asarray((one <= other).all(axis=1))
        # Rows are only comparable if they need the same resources: a pool without one of them
        # ignores it, and then either sum may be the minimum.
        comparable = (np.isneginf(one) == np.isneginf(other)).all(axis=1)
        return np.asarray(comparable & (one >= other).all(axis=1))

    def join(self, other: ExtremeShareSum) -> None:
        """Add all amounts of another extreme."""
        for row in other._rows:
            self.add(row)

    def ln_sum(self, capacity: Floats) -> float:
        """Return the extreme of the logarithms; infinite without amounts that count.

        ``capacity`` has the amount of a share of 1 by resource; resources with 0 don't count.
        """
        counted = capacity > 0
        sums = np.logaddexp.reduce(self._rows[:, counted] - np.log(capacity[counted]), axis=1)
        sums = sums[np.isfinite(sums)]
        if self._largest:
            return float(sums.max(initial=-math.inf))
        return float(sums.min(initial=math.inf))

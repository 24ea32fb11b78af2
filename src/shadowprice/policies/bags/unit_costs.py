"""Costs of units of capacity, the copies of a bag, by slot and number of units."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from shadowprice.core.arrays import Floats, Integers


class UnitCosts(Protocol):
    """The minimum cost of each number of units in each usable slot."""

    limit: int
    """Maximum number of units that are counted in a slot."""
    fit_counts: Integers
    """Number of units that fit in each slot."""
    kind: Integers
    """Equal for slots with equal costs."""

    def cost(self, slots: Integers, units: Integers) -> Floats:
        """Return the cost of numbers of units in slots, infinite if they don't fit.

        Both arrays are broadcast.
        """
        ...


class ProportionalCosts:
    """Costs at one price per unit, which is the same in all slots: no table is necessary.

    ``fit_counts`` (slots,) are the units that fit in each slot.
    """

    def __init__(self, price: float, fit_counts: Integers) -> None:
        self._price = price
        self.limit = int(fit_counts.max(initial=0))
        # No unit is worth an infinite price.
        is_payable = math.isfinite(self.limit * price)
        self.fit_counts = fit_counts if is_payable else np.zeros_like(fit_counts)
        self.kind = self.fit_counts

    def cost(self, slots: Integers, units: Integers) -> Floats:
        """See `UnitCosts`."""
        return np.where(units <= self.fit_counts[slots], units * self._price, np.inf)


class TabulatedCosts:
    """Costs as a table of any shape.

    Parameters
    ----------
    table : float64[Q, U + 1]
        Cost of each number of units in each distinct state of a slot; infinite if they don't fit.
    state : int64[T], optional
        State of each slot; by default, each slot has its own.
    """

    def __init__(self, table: Floats, state: Integers | None = None) -> None:
        self._table = table
        self._state = np.arange(len(table)) if state is None else state
        self.limit = table.shape[1] - 1
        self.fit_counts = (np.isfinite(table).sum(axis=1) - 1)[self._state]
        seen: dict[bytes, int] = {}
        kinds = [seen.setdefault(row.tobytes(), len(seen)) for row in table]
        self.kind = np.array(kinds, np.int64)[self._state]

    def cost(self, slots: Integers, units: Integers) -> Floats:
        """See `UnitCosts`."""
        return np.asarray(self._table[self._state[slots], units])

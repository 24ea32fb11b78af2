"""Check whether the demand observed so far justifies a promise of its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.refusal import Refusal
from shadowprice.kernels.revision.coming import least_use
from shadowprice.policies.rolling.book import Book
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.planner import Offer
from shadowprice.policies.rolling.prices import Pools, PriceLearner
from shadowprice.policies.rolling.quotas import Quotas
from shadowprice.policies.rolling.reasons import early

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_LITTLE: Final = 0.3
"""Share of a job's utility at arrival below which a promise earns little."""

_MUCH: Final = 6.0
"""Factor on the size limit of a promise that earns more than a little."""


@dataclass(frozen=True)
class Evidence:
    """Compares the size of a promise with the demand observed so far.

    Prices are learnt from arrivals, so the first jobs pay none. A job without a promise still runs
    while capacity is spare. So a promise that is large compared with the observed demand gains
    little and may keep later jobs out, above all if it earns a small part of the job's utility.

    Parameters
    ----------
    learners : sequence of PriceLearner
        One for each row of ``quotas`` if tenants have shares, otherwise one.
    parameters : RollingParameters
        With given prices, or if jobs can't wait, every promise is allowed.
    """

    book: Book
    pools: Pools
    quotas: Quotas
    learners: Sequence[PriceLearner]
    parameters: RollingParameters

    def suffices(self, slot: int, rows: Integers, value: Floats) -> Flags:
        """Return which jobs may be promised.

        Parameters
        ----------
        rows : ndarray of int64, shape (jobs,)
            Rows of the book.
        value : ndarray of float64, shape (jobs,)
            Utility that each would earn.
        """
        parameters = self.parameters
        if parameters.prices == "given" or not parameters.standby or not len(rows):
            return np.ones(len(rows), np.bool_)
        size, observed = self._measure(slot, rows)
        factor = np.where(self._little(rows, value), 1.0, _MUCH)
        return np.asarray(size <= parameters.evidence * factor * observed, np.bool_)

    def suffices_for(self, slot: int, row: int, found: Offer) -> bool:
        """Return whether one job may be promised."""
        return bool(self.suffices(slot, np.array([row]), np.array([found.utility]))[0])

    def refusal(self, slot: int, row: int, found: Offer) -> Refusal:
        """Return the refusal of a promise that is too large for the observed demand."""
        rows = np.array([row])
        size, observed = self._measure(slot, rows)
        little = self._little(rows, np.array([found.utility]))
        return early(found, float(size[0]), float(observed[0]), little=bool(little[0]))

    def _little(self, rows: Integers, value: Floats) -> Flags:
        """Return which jobs would earn little of their utility at arrival."""
        return np.asarray(value < _LITTLE * self.book.at_once[rows], np.bool_)

    def _measure(self, slot: int, rows: Integers) -> tuple[Floats, Floats]:
        """Return the minimum size of each promise and the time observed, in cluster slots."""
        jobs, quotas = self.book.jobs, self.quotas
        shares = self.pools.shares(jobs.worker[rows], jobs.ps[rows])
        observed = np.array([learner.watched(slot) for learner in self.learners])
        owner = jobs.tenant[rows] if quotas.given else np.zeros(len(rows), np.int64)
        if quotas.given:  # relative to the part of the cluster that the tenant may have
            part = np.maximum(quotas.part[owner], 1e-12)
            part = np.tile(part, self.pools.columns // part.shape[1])
            shares = (shares[0] / part, shares[1] / part)
        return least_use(jobs, rows, *shares), observed[owner]

"""Whether enough is known of others' demand to promise a job what it would take."""

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
"""Share of what a job would be worth at once below which what it earns is little."""

_MUCH: Final = 6.0
"""How many times as much of the cluster a promise may take that earns more than a little."""


@dataclass(frozen=True)
class Evidence:
    """What is known of others' demand, against what a promise would take.

    Prices are learnt from who has come, and the first meet none. Who has no promise runs as well
    while nobody comes, so that one which takes more than is known of others' demand only keeps
    them out: soon so where it is for a little of what the job is worth.

    Parameters
    ----------
    book : Book
        The open jobs.
    pools : Pools
        What is priced.
    quotas : Quotas
        Shares of tenants.
    learners : sequence of PriceLearner
        Who watched demand: one for each row of ``quotas`` where shares are given, else one.
    parameters : RollingParameters
        Where prices are given, or jobs cannot wait, all may be promised what they would earn.
    """

    book: Book
    pools: Pools
    quotas: Quotas
    learners: Sequence[PriceLearner]
    parameters: RollingParameters

    def suffices(self, slot: int, rows: Integers, value: Floats) -> Flags:
        """Return which jobs may be promised what they would earn.

        Parameters
        ----------
        slot : int
            Now.
        rows : ndarray of int64, shape (jobs,)
            Their rows in the book.
        value : ndarray of float64, shape (jobs,)
            What they would earn.

        Returns
        -------
        ndarray of bool, shape (jobs,)
        """
        parameters = self.parameters
        if parameters.prices == "given" or not parameters.standby or not len(rows):
            return np.ones(len(rows), np.bool_)
        takes, watched = self._measure(slot, rows)
        times = np.where(self._little(rows, value), 1.0, _MUCH)
        return np.asarray(takes <= parameters.evidence * times * watched, np.bool_)

    def suffices_for(self, slot: int, row: int, found: Offer) -> bool:
        """Return the same of one job."""
        return bool(self.suffices(slot, np.array([row]), np.array([found.utility]))[0])

    def refusal(self, slot: int, row: int, found: Offer) -> Refusal:
        """Return that too little is known to promise a job what it could have."""
        rows = np.array([row])
        takes, watched = self._measure(slot, rows)
        little = self._little(rows, np.array([found.utility]))
        return early(found, float(takes[0]), float(watched[0]), little=bool(little[0]))

    def _little(self, rows: Integers, value: Floats) -> Flags:
        """Return which jobs would earn little of what they would be worth at once."""
        return np.asarray(value < _LITTLE * self.book.at_once[rows], np.bool_)

    def _measure(self, slot: int, rows: Integers) -> tuple[Floats, Floats]:
        """Return what rows take at least, and for how long demand was watched: slots of all."""
        jobs, quotas = self.book.jobs, self.quotas
        shares = self.pools.shares(jobs.worker[rows], jobs.ps[rows])
        watched = np.array([learner.watched(slot) for learner in self.learners])
        owner = jobs.tenant[rows] if quotas.given else np.zeros(len(rows), np.int64)
        if quotas.given:  # of what the tenant may have
            part = np.maximum(quotas.part[owner], 1e-12)
            part = np.tile(part, self.pools.columns // part.shape[1])
            shares = (shares[0] / part, shares[1] / part)
        return least_use(jobs, rows, *shares), watched[owner]

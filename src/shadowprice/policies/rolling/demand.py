"""Who has come so far, and what that makes a slot of each resource cost, ranked and paid."""

from __future__ import annotations

from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.kernels.revision.jobs import Jobs
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.prices import Pools, PriceLearner, costs, weights
from shadowprice.policies.rolling.quotas import Quotas

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_BLANK: Final = 0.25
"""Horizons without demand that are taken to lie before the first arrival."""


class Demand:
    """The demand of all, which ranks, and, where tenants have shares, of each, which it pays.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    pools : Pools
        What is priced.
    quotas : Quotas
        Shares of tenants.
    parameters : RollingParameters
        How prices are learnt, or what they are.

    Attributes
    ----------
    learners : list of PriceLearner
        Who watches demand: one for each row of ``quotas`` where shares are given, else one of all.
    """

    def __init__(
        self, cluster: Cluster, pools: Pools, quotas: Quotas, parameters: RollingParameters
    ) -> None:
        self._cluster, self._pools = cluster, pools
        self._quotas, self._parameters = quotas, parameters
        self._everybody = self._new_learner(self._everything)
        self.learners = (
            [self._new_learner(part) for part in quotas.part] if quotas.given else [self._everybody]
        )

    @property
    def _everything(self) -> Floats:
        return np.ones(len(self._cluster.resources))

    def _new_learner(self, part: Floats) -> PriceLearner:
        horizon, memory = self._cluster.horizon, self._parameters.memory
        return PriceLearner(self._pools, memory * horizon, _BLANK * horizon, part)

    def recall(self, before: Self) -> None:
        """Keep what was learnt on a cluster that has changed."""
        self._everybody = before._everybody.moved_to(self._pools, self._everything)
        if not self._quotas.given:
            self.learners = [self._everybody]
            return
        # Tenants come and go: each keeps what was learnt of it, new ones begin with nothing.
        known: dict[str | None, PriceLearner] = {}
        if before._quotas.given:
            known = dict(zip(_owners(before._cluster), before.learners, strict=True))
        self.learners = [
            known[name].moved_to(self._pools, part) if name in known else self._new_learner(part)
            for name, part in zip(_owners(self._cluster), self._quotas.part, strict=True)
        ]

    def learn(self, job: Job, slot: int) -> None:
        """Take an arrival in."""
        self._everybody.learn(job, slot)
        if self._quotas.given:
            self.learners[self._quotas.row_of(self._cluster, job)].learn(job, slot)

    def price(self, slot: int) -> Floats:
        """Return the shadow prices of all demand, by pool and resource, shape (columns,)."""
        return self._price(slot, self._everybody)

    def costs(self, slot: int, jobs: Jobs, rows: Integers | None = None) -> Floats:
        """Return what a worker and a parameter server of rows, by default all, cost in a slot.

        Parameters
        ----------
        slot : int
            Now.
        jobs : Jobs
            The open jobs.
        rows : ndarray of int64, shape (rows,), optional
            Of whom.

        Returns
        -------
        ndarray of float64, shape (rows, 2)
            At the prices of each one's tenant, where shares are given.
        """
        worker, ps, owner = jobs.worker, jobs.ps, jobs.tenant
        if rows is not None:
            worker, ps, owner = worker[rows], ps[rows], owner[rows]
        shares = self._pools.shares(worker, ps)
        if not self._quotas.given:
            return costs(self.price(slot), shares)
        price = np.zeros((len(self.learners), self._pools.columns))
        for at in np.unique(owner).tolist():
            price[at] = self._price(slot, self.learners[at])
        return costs(price[owner], shares)

    def weights(self, slot: int, jobs: Jobs) -> Floats:
        """Return the same of all rows for ranking: at one price for all, and never 0."""
        return weights(self.price(slot), self._pools.shares(jobs.worker, jobs.ps))

    def copy_cost(self, slot: int, job: Job) -> float:
        """Return what a copy of a bag's tasks costs in a slot."""
        owner = self._quotas.row_of(self._cluster, job)
        return float(costs(self._price(slot, self.learners[owner]), self._of_copy(job))[0, 0])

    def copy_weight(self, slot: int, job: Job) -> float:
        """Return the same for ranking: never 0."""
        return float(weights(self.price(slot), self._of_copy(job))[0, 0])

    def _of_copy(self, job: Job) -> tuple[Floats, Floats]:
        worker = job.worker[None, :]
        return self._pools.shares(worker, np.zeros_like(worker))

    def _price(self, slot: int, learner: PriceLearner) -> Floats:
        if self._parameters.prices == "given":
            return np.full(self._pools.columns, self._parameters.price)
        return learner.prices(slot, self._parameters.scarcity)


def _owners(cluster: Cluster) -> list[str | None]:
    """Return whose each row of `Quotas` is; the last is of jobs without a tenant."""
    return [*(tenant.name for tenant in cluster.tenants), None]

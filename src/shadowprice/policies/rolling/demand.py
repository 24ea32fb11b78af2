"""Demand observed so far, and the prices that follow from it."""

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
"""Horizons without demand that are assumed before the first arrival."""


class Demand:
    """Learns prices: from all demand to rank jobs, by tenant to price promises.

    Without shares, both are the same.

    Attributes
    ----------
    learners : list of PriceLearner
        One for each row of ``quotas`` if tenants have shares, otherwise one for all demand.
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
        """Keep the prices learnt before the cluster changed."""
        self._everybody = before._everybody.rebased_on(self._pools, self._everything)
        if not self._quotas.given:
            self.learners = [self._everybody]
            return
        # Tenants keep their learnt prices; new tenants start without any.
        by_owner: dict[str | None, PriceLearner] = {}
        if before._quotas.given:
            by_owner = dict(zip(_owners(before._cluster), before.learners, strict=True))
        self.learners = [
            by_owner[name].rebased_on(self._pools, part)
            if name in by_owner
            else self._new_learner(part)
            for name, part in zip(_owners(self._cluster), self._quotas.part, strict=True)
        ]

    def learn(self, job: Job, slot: int) -> None:
        """Record an arrival."""
        self._everybody.learn(job, slot)
        if self._quotas.given:
            self.learners[self._quotas.row_of(self._cluster, job)].learn(job, slot)

    def price(self, slot: int) -> Floats:
        """Return the shadow prices of all demand, by pool and resource, shape (columns,)."""
        return self._price(slot, self._everybody)

    def posted(self, slot: int) -> Floats:
        """Return the result of `price` and change nothing; for readers between two decisions."""
        if self._parameters.prices == "given":
            return self.price(slot)
        return self._everybody.posted(slot, self._parameters.scarcity)

    def costs(self, slot: int, jobs: Jobs, rows: Integers | None = None) -> Floats:
        """Return the cost of a worker and of a parameter server of rows (None: all) in a slot.

        Returns
        -------
        ndarray of float64, shape (rows, 2)
            At the prices of each job's tenant if tenants have shares.
        """
        worker, ps, owner = jobs.worker, jobs.ps, jobs.tenant
        if rows is not None:
            worker, ps, owner = worker[rows], ps[rows], owner[rows]
        shares = self._pools.shares(worker, ps)
        if not self._quotas.given:
            return costs(self.price(slot), shares)
        price = np.zeros((len(self.learners), self._pools.columns))
        for tenant in np.unique(owner).tolist():
            price[tenant] = self._price(slot, self.learners[tenant])
        return costs(price[owner], shares)

    def weights(self, slot: int, jobs: Jobs) -> Floats:
        """Return the weight of a worker and of a PS of all rows, for ranking: above 0.

        Unlike costs, weights use one price for all tenants.
        """
        return weights(self.price(slot), self._pools.shares(jobs.worker, jobs.ps))

    def copy_cost(self, slot: int, job: Job) -> float:
        """Return the cost of a copy of a bag's tasks in a slot."""
        owner = self._quotas.row_of(self._cluster, job)
        return float(costs(self._price(slot, self.learners[owner]), self._of_copy(job))[0, 0])

    def copy_weight(self, slot: int, job: Job) -> float:
        """Return the weight of a copy of a bag's tasks, for ranking: above 0."""
        return float(weights(self.price(slot), self._of_copy(job))[0, 0])

    def _of_copy(self, job: Job) -> tuple[Floats, Floats]:
        worker = job.worker[None, :]
        return self._pools.shares(worker, np.zeros_like(worker))

    def _price(self, slot: int, learner: PriceLearner) -> Floats:
        if self._parameters.prices == "given":
            return np.full(self._pools.columns, self._parameters.price)
        return learner.prices(slot, self._parameters.scarcity)


def _owners(cluster: Cluster) -> list[str | None]:
    """Return the tenant of each row of `Quotas`; None, the last, for jobs without one."""
    return [*(tenant.name for tenant in cluster.tenants), None]

"""What promises to the jobs of one tenant may hold: its share, and what nobody owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED, format_amount
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_MOST: Final = np.iinfo(np.int64).max // 16


@dataclass(frozen=True, eq=False)
class Quotas:
    """The shares of a cluster's tenants, as the kernels of `kernels.revision` read them.

    Parameters
    ----------
    share : ndarray of int64, shape (tenants + 1, resources)
        What each tenant owns; the last row is for jobs without a tenant, which own nothing. No row
        where no tenant has a share.
    common : ndarray of int64, shape (resources,)
        What nobody owns; -1 for resources that no tenant has a share of.
    part : ndarray of float64, shape (tenants + 1, resources)
        Part of the cluster that each may be promised. One row where no tenant has a share.
    """

    share: Integers
    common: Integers
    part: Floats

    @property
    def given(self) -> bool:
        """Whether any tenant has a share."""
        return len(self.share) > 0

    @property
    def owners(self) -> int:
        """Groups of jobs that are promised from capacity of their own."""
        return len(self.part)

    def row_of(self, cluster: Cluster, job: Job) -> int:
        """Return the row of a job's tenant."""
        if not self.given:
            return 0
        return cluster.tenant_index.get(job.tenant or "", len(self.share) - 1)

    def left(self, held: Integers, row: int) -> Integers:
        """Return how much more of each resource a tenant may hold; -1 where nobody has a share.

        Parameters
        ----------
        held : ndarray of int64, shape as `share`
            What promises to each tenant hold.
        row : int
            The tenant's row.
        """
        beyond = np.maximum(held - self.share, 0).sum(axis=0)
        own = np.maximum(self.share[row] - held[row], 0)
        left = own + np.maximum(self.common - beyond, 0)
        return np.asarray(np.where(self.common < 0, -1, left), np.int64)


def quotas_of(cluster: Cluster, *, wanted: bool) -> Quotas:
    """Read the shares of a cluster; shares that nobody wants are as if there were none."""
    resources = len(cluster.resources)
    share = np.array(
        [
            *(
                [tenant.share.get(name, 0) for name in cluster.resources]
                for tenant in cluster.tenants
            ),
            [0] * resources,
        ],
        np.int64,
    )
    owned = share.sum(axis=0)
    if not wanted or not owned.any():
        none = np.zeros((0, resources), np.int64)
        return Quotas(none, np.full(resources, -1, np.int64), np.ones((1, resources)))
    total = _totals(cluster)
    common = np.where(owned > 0, np.maximum(total - owned, 0), -1)
    part = np.ones(share.shape)
    for column in np.flatnonzero(owned):
        part[:, column] = (share[:, column] + common[column]) / max(1, int(total[column]))
    return Quotas(share, common, np.minimum(part, 1.0))


def check_shares(cluster: Cluster) -> None:
    """Refuse shares that the servers cannot give all at once.

    Raises
    ------
    InputError
        Naming the resource and both sums.
    """
    total = _totals(cluster)
    faults = []
    for column, name in enumerate(cluster.resources):
        owned = sum(tenant.share.get(name, 0) for tenant in cluster.tenants)
        kind = cluster.dimensions[column]
        if owned > total[column]:
            faults.append(
                Fault(
                    "cluster: tenants",
                    f"shares of {name} add up to {format_amount(owned, kind)}, and the servers "
                    f"hold {format_amount(int(total[column]), kind)}",
                    "lower them, or set quota=false: promises are then made to all by value",
                )
            )
    if faults:
        raise InputError(faults)


def _totals(cluster: Cluster) -> Integers:
    """Return what all servers hold together of each resource."""
    totals = [
        _MOST if (column >= UNLIMITED).any() else min(_MOST, sum(column.tolist()))
        for column in cluster.capacity.T
    ]
    return np.array(totals, np.int64)

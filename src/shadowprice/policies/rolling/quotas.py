"""Shares of tenants: limits of promises to a tenant's jobs, and what tenants are owed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED, format_amount
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job

_MAX_TOTAL: Final = np.iinfo(np.int64).max // 16  # of a resource, so that sums don't overflow

HORIZONS_OWED: Final = 0.5
"""How much of its share a tenant is owed before its own jobs come first, in horizons of the share.

A tenant reaches it after it has lent its whole share for half a horizon, although its own jobs
could use the share. With a quarter of a horizon, jobs of several tenants more often run side by
side, so that each ends later.
"""


@dataclass(frozen=True, slots=True)
class ShareLimit:
    """The resource that limits a job in its tenant's share, with amounts as text."""

    resource: str
    needed: str  # by the job with its fewest workers
    available: str  # in the share and in the capacity that no tenant owns
    is_exceeded: bool


@dataclass(frozen=True, eq=False)
class Quotas:
    """Shares of a cluster's tenants, for the kernels of `kernels.replanning`."""

    share: Integers
    """Share of each tenant, shape (tenants + 1, resources); the last row is for jobs without a
    tenant, and 0. Without rows if no tenant has a share."""
    # Capacity that no tenant owns, by resource; -1 for resources of which no tenant has a share.
    common: Integers
    part: Floats
    """Part of the cluster that each tenant may be promised, by resource: one row for each row of
    `share`, or a single row of 1 without shares."""

    @property
    def has_shares(self) -> bool:
        """Whether any tenant has a share."""
        return len(self.share) > 0

    def row_of(self, cluster: Cluster, job: Job) -> int:
        """Return the row of a job's tenant."""
        if not self.has_shares:
            return 0
        return cluster.tenant_index.get(job.tenant or "", len(self.share) - 1)

    def headroom(self, usage: Integers, row: int) -> Integers:
        """Return a tenant's headroom in each resource; -1 if no tenant has a share of it.

        ``usage`` is what promises to each tenant use, shaped as `share`; ``row`` is the tenant's.
        """
        beyond = np.maximum(usage - self.share, 0).sum(axis=0)
        own = np.maximum(self.share[row] - usage[row], 0)
        limit = own + np.maximum(self.common - beyond, 0)
        return np.asarray(np.where(self.common < 0, -1, limit), np.int64)

    def scarcest(self, cluster: Cluster, job: Job) -> ShareLimit | None:
        """Return the resource that limits a job in its tenant's share; None without shares.

        With its fewest workers, the job takes the largest part of this resource, relative to the
        share and the capacity that no tenant owns.
        """
        if not self.has_shares:
            return None
        needed = job.worker * int(job.worker_counts[0])
        if job.ps is not None:
            needed = needed + job.ps * int(job.ps_counts[0])
        limit = self.headroom(np.zeros_like(self.share), self.row_of(cluster, job))
        columns = np.flatnonzero((limit >= 0) & (needed > 0))
        if not len(columns):
            return None
        column = int(columns[np.argmax(needed[columns] / np.maximum(limit[columns], 1))])
        need, available, kind = int(needed[column]), int(limit[column]), cluster.dimensions[column]
        return ShareLimit(
            cluster.resources[column],
            format_amount(need, kind),
            format_amount(available, kind),
            is_exceeded=need > available,
        )

    def owed_after(self, owed: Floats, usage: Integers, demand: Integers, is_open: Flags) -> Floats:
        """Return what each tenant is owed after a slot, in slots of its share.

        ``owed`` is the result before the slot. ``usage`` and ``demand``, shaped as `share`, are
        what each tenant's jobs use in the slot and what they could use; the dominant resource
        counts. A tenant without an open job (``is_open``) is owed nothing.
        """
        owned = np.maximum(self.share, 1)
        used = np.where(self.share > 0, usage / owned, 0.0).max(axis=1)
        wanted = np.where(self.share > 0, demand / owned, 0.0).max(axis=1)
        after = np.maximum(owed + np.minimum(wanted, 1.0) - used, 0.0)
        return np.asarray(np.where(is_open, after, 0.0), np.float64)


def build_quotas(cluster: Cluster, *, enabled: bool) -> Quotas:
    """Return the shares of a cluster, or quotas without shares unless ``enabled``."""
    resources = len(cluster.resources)
    shares = [*(tenant.share for tenant in cluster.tenants), {}]
    share = np.array([[row.get(name, 0) for name in cluster.resources] for row in shares], np.int64)
    owned = share.sum(axis=0)
    if not enabled or not owned.any():
        none = np.zeros((0, resources), np.int64)
        return Quotas(none, np.full(resources, -1, np.int64), np.ones((1, resources)))
    total = _totals(cluster)
    common = np.where(owned > 0, np.maximum(total - owned, 0), -1)
    part = np.ones(share.shape)
    for column in np.flatnonzero(owned):
        part[:, column] = (share[:, column] + common[column]) / max(1, int(total[column]))
    return Quotas(share, common, np.minimum(part, 1.0))


def tenant_rows(cluster: Cluster) -> list[str | None]:
    """Return the tenant of each row of `Quotas`; None, the last, for jobs without one."""
    return [*(tenant.name for tenant in cluster.tenants), None]


def check_shares(cluster: Cluster) -> None:
    """Raise `InputError` if the shares of a resource exceed the servers' capacity."""
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
    """Return the total capacity of each resource, capped if it is unlimited."""
    totals = [
        _MAX_TOTAL if (column >= UNLIMITED).any() else min(_MAX_TOTAL, sum(column.tolist()))
        for column in cluster.capacity.T
    ]
    return np.array(totals, np.int64)

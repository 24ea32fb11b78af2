"""Turning shares into servers: places of its own for every tenant."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shadowprice.policies.tenants.cells import VirtualClusters, cut
from shadowprice.policies.tenants.tenancy import Tenancy

Integers = npt.NDArray[np.int64]


def deal_workers(places: Integers, shares: Integers) -> Integers:
    """Deal the workers' places of one type: to each tenant cells as large as its share allows.

    Parameters
    ----------
    places : int64, shape (servers,)
        Places of each server.
    shares : int64, shape (tenants,)
        Places of each tenant.

    Returns
    -------
    int64, shape (tenants, servers)
        Places of each tenant on each server; together, no more than there are.
    """
    owned = cut(places.tolist(), shares.tolist())
    clusters = VirtualClusters(places.tolist(), owned)
    dealt = np.zeros((shares.size, places.size), np.int64)
    for size in sorted({size for cells in owned for size in cells}, reverse=True):
        for tenant, cells in enumerate(owned):
            for _ in range(cells[size]):
                for cell in clusters.take(tenant, size, size) or ():
                    dealt[tenant, cell.server] += cell.size
    return dealt


def deal_ps(places: Integers, shares: Integers, workers: Integers) -> Integers:
    """Deal the parameter servers' places of one type, beside their tenant's workers if possible.

    Tenants take turns; each takes a place on the server where it has the most workers for each
    parameter server already dealt to it.

    Parameters
    ----------
    places : int64, shape (servers,)
        Places of each server.
    shares : int64, shape (tenants,)
        Places of each tenant; together, no more than there are.
    workers : int64, shape (tenants, servers)
        Workers' places of each tenant on each server.

    Returns
    -------
    int64, shape (tenants, servers)
        Places of each tenant on each server.
    """
    free = places.copy()
    dealt = np.zeros((shares.size, places.size), np.int64)
    left = shares.copy()
    while left.any():
        for tenant in np.flatnonzero(left).tolist():
            appeal = np.where(free > 0, workers[tenant] / (1 + dealt[tenant]), -1.0)
            server = int(np.argmax(appeal))
            dealt[tenant, server] += 1
            free[server] -= 1
            left[tenant] -= 1
    return dealt


def deal(tenancy: Tenancy) -> tuple[Integers, Integers]:
    """Deal all places of a cluster to its tenants.

    Returns
    -------
    workers, ps : int64, shape (types, tenants, servers)
        Places of each type, of each tenant, on each server.
    """
    servers = tenancy.cluster.servers
    shape = (len(tenancy.tenants), servers)
    rows = [
        deal_workers(places, shares)
        for places, shares in zip(tenancy.workers, tenancy.worker_shares, strict=True)
    ]
    workers = np.array(rows, np.int64).reshape(-1, *shape)
    beside = workers.sum(axis=0)
    rows = [
        deal_ps(places, shares, beside)
        for places, shares in zip(tenancy.ps, tenancy.ps_shares, strict=True)
    ]
    return workers, np.array(rows, np.int64).reshape(-1, *shape)

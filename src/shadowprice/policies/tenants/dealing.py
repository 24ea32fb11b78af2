"""Placement of shares: units on servers of each tenant's own."""

from __future__ import annotations

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.policies.tenants.cells import assign_cells
from shadowprice.policies.tenants.tenancy import TenantShares


def assign_worker_units(units: Integers, shares: Integers) -> Integers:
    """Allocate the worker units of one type to tenants, in cells as large as shares allow.

    ``units`` has the units of each server, ``shares`` those of each tenant. The result has a row
    for each tenant and a column for each server.
    """
    allocated = np.zeros((shares.size, units.size), np.int64)
    for tenant, cells in enumerate(assign_cells(units.tolist(), shares.tolist())):
        for cell in cells:
            allocated[tenant, cell.server] += cell.size
    return allocated


def assign_ps_units(units: Integers, shares: Integers, workers: Integers) -> Integers:
    """Allocate the PS units of one type, close to the tenant's workers if possible.

    Tenants take turns. Each takes a unit on the server where it has the most worker units per PS
    unit that it would then have. ``workers`` are the result of `assign_worker_units`; the result
    has the same shape.
    """
    free = units.copy()
    allocated = np.zeros((shares.size, units.size), np.int64)
    remaining = shares.copy()
    while remaining.any():
        for tenant in np.flatnonzero(remaining).tolist():
            score = np.where(free > 0, workers[tenant] / (1 + allocated[tenant]), -1.0)
            server = int(np.argmax(score))
            allocated[tenant, server] += 1
            free[server] -= 1
            remaining[tenant] -= 1
    return allocated


def assign_units(tenancy: TenantShares) -> tuple[Integers, Integers]:
    """Allocate all units of a cluster to its tenants; return those of workers and of PS.

    The shapes are (types, tenants, servers).
    """
    servers = tenancy.cluster.servers
    shape = (len(tenancy.tenants), servers)
    rows = [
        assign_worker_units(units, shares)
        for units, shares in zip(tenancy.workers, tenancy.worker_shares, strict=True)
    ]
    workers = np.array(rows, np.int64).reshape(-1, *shape)
    worker_units = workers.sum(axis=0)
    rows = [
        assign_ps_units(units, shares, worker_units)
        for units, shares in zip(tenancy.ps, tenancy.ps_shares, strict=True)
    ]
    return workers, np.array(rows, np.int64).reshape(-1, *shape)

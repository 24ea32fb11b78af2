"""BatchSche: every tenant alone on servers of its own, with Astraea's batches and gangs.

Astraea compares itself with Zhang et al., "Online Scheduling of Heterogeneous Distributed Machine
Learning Jobs" (MobiHoc 2020), run for each tenant in its private cluster (section 5.1). This module
runs Astraea's batch algorithm without loans instead. Zhang et al.'s objective, weighted completion
time, is left out.
"""

from __future__ import annotations

import numpy as np

from shadowprice.core.policy import PolicyContext
from shadowprice.policies.astraea.parameters import RoundParameters, Theta
from shadowprice.policies.astraea.pools import TenantPool
from shadowprice.policies.astraea.rounds import RoundPolicy
from shadowprice.policies.tenants.dealing import assign_units
from shadowprice.policies.tenants.tenancy import TenantShares, read_tenant_shares


def private_pools(tenancy: TenantShares, theta: Theta) -> list[TenantPool]:
    """Return one pool per tenant, each on servers of its own."""
    workers, ps = assign_units(tenancy)
    pools = []
    for tenant in range(len(tenancy.tenants)):
        units = workers[:, tenant].sum(axis=0) + ps[:, tenant].sum(axis=0)
        servers = np.flatnonzero(units)
        pools.append(
            TenantPool(
                (tenant,),
                servers,
                np.ascontiguousarray(workers[:, tenant, servers]),
                np.ascontiguousarray(ps[:, tenant, servers]),
                tenancy.worker_shares[:, [tenant]],
                tenancy.ps_shares[:, [tenant]],
                theta,
            )
        )
    return pools


def build(context: PolicyContext, parameters: RoundParameters) -> RoundPolicy:
    """Build the policy; called by the registry."""
    tenancy = read_tenant_shares(context.cluster)
    return RoundPolicy(context, parameters, tenancy, private_pools, sharing=False)

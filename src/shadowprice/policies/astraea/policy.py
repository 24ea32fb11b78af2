"""Astraea: own shares first, then loans paid for at posted prices."""

from __future__ import annotations

from shadowprice.core.policy import PolicyContext
from shadowprice.policies.astraea.parameters import RoundParameters
from shadowprice.policies.astraea.pools import shared_pools
from shadowprice.policies.astraea.rounds import RoundPolicy
from shadowprice.policies.tenants.tenancy import read_tenant_shares


def build(context: PolicyContext, parameters: RoundParameters) -> RoundPolicy:
    """Build the policy; called by the registry."""
    tenancy = read_tenant_shares(context.cluster)
    return RoundPolicy(context, parameters, tenancy, shared_pools, sharing=True)

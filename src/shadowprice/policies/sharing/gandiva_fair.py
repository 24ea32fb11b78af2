"""Gandiva_fair: split stride scheduling of gangs, slot by slot, with tickets per tenant.

Chaudhary et al., EuroSys 2020; not elastic and without placement preferences, as in Astraea's
evaluation. Tenants trade worker types at the given speeds. Left out: job profiling, migration
costs, and the split into a central and per-server schedulers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Self

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import Decision, Queue
from shadowprice.core.policy import PolicyContext, View
from shadowprice.policies.sharing.fixed_gangs import FixedGang, first_fit, is_free, occupy
from shadowprice.policies.sharing.gang_policy import GangPolicy
from shadowprice.policies.sharing.parameters import GandivaFairParameters
from shadowprice.policies.sharing.strides import GangRequest, SplitStrideScheduler, trade_tickets
from shadowprice.policies.tenants.tenancy import TenantShares

_TICKETS: Final = 1000  # tickets per unit, so that traded shares keep three digits


class GandivaFairPolicy(GangPolicy[GandivaFairParameters]):
    """Split stride scheduling over gangs; every slot is planned from empty servers."""

    def __init__(self, context: PolicyContext, parameters: GandivaFairParameters) -> None:
        super().__init__(context, parameters)
        self._tickets = _traded_tickets(self._tenancy, parameters)
        self._strides = [SplitStrideScheduler(row) for row in self._tickets.tolist()]

    def _keep_learnt_state(self, before: Self) -> None:
        """Keep the stride state if tenants and their tickets are the same."""
        same = before._tenancy.tenants == self._tenancy.tenants
        if same and np.array_equal(before._tickets, self._tickets):
            self._strides = before._strides

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force, including shares and tickets."""
        tickets = {
            tenant: dict(
                zip(self._tenancy.worker_types, self._tickets[:, index].tolist(), strict=True)
            )
            for index, tenant in enumerate(self._tenancy.tenants)
        }
        dumped = self._parameters.model_dump()
        return {**dumped, "shares": self._tenancy.shares(), "tickets": tickets}

    def _build_queue(self, gang: FixedGang) -> Queue:
        return Queue(
            gang.job.name, f"runs with {gang.workers} workers when its tenant's turn comes"
        )

    def _begin(self, view: View) -> Iterator[Decision]:
        placed, workers, ps = self._units_up(view)

        def fits(claim: GangRequest) -> bool:
            if claim.name in placed:
                return True
            gang = self._gangs[claim.name]
            if gang.workers > workers[gang.claim.worker_type].sum():
                return False
            placement = view.open_jobs[claim.name].placement
            if placement is None or not is_free(gang, placement, workers, ps):
                placement = first_fit(gang, workers, ps)
            if placement is None:
                return False
            occupy(gang, placement, workers, ps)
            placed[claim.name] = placement
            return True

        for kind, strides in enumerate(self._strides):
            strides.fill(
                (
                    GangRequest(name, gang.claim.tenant, gang.workers)
                    for name, gang in self._gangs.items()
                    if gang.claim.worker_type == kind
                ),
                fits,
            )
        yield from self._rearrange(view, placed)


def _traded_tickets(tenancy: TenantShares, parameters: GandivaFairParameters) -> Integers:
    """Return tickets after trading, shape (types, tenants)."""
    for tenant, by_type in parameters.speeds.items():
        known = tenancy.tenants if tenant not in tenancy.tenants else tenancy.worker_types
        for name in [tenant] if known is tenancy.tenants else by_type:
            if name not in known:
                raise InputError(Fault("speeds", f"unknown {name!r}", f"known: {', '.join(known)}"))
    shares = tenancy.worker_shares.T.astype(np.float64)
    speeds = np.array(
        [
            [parameters.speeds.get(tenant, {}).get(kind, 1.0) for kind in tenancy.worker_types]
            for tenant in tenancy.tenants
        ]
    )
    # `trade_tickets` expects types from slow to fast, here by the sum of the tenants' speeds.
    order = np.argsort(speeds.sum(axis=0), kind="stable")
    traded = np.empty_like(shares)
    traded[:, order] = trade_tickets(shares[:, order], speeds[:, order])
    return np.rint(_TICKETS * traded.T).astype(np.int64)

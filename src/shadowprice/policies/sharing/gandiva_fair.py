"""Gandiva_fair: split stride scheduling of gangs, slot by slot, with tickets per tenant.

Chaudhary et al., "Balancing Efficiency and Fairness in Heterogeneous GPU Clusters for Deep
Learning" (EuroSys 2020). As in Astraea's evaluation, jobs aren't elastic and have no preferred
servers. Tenants trade worker types at given speeds. Left out: job profiling, migration costs, and
the split into a central scheduler and one per server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import Decision, Queue
from shadowprice.core.policy import PolicyContext, View
from shadowprice.policies.sharing import GandivaFairParameters
from shadowprice.policies.sharing.gang_policy import (
    FixedGang,
    GangPolicy,
    first_fit,
    is_free,
    occupy,
)
from shadowprice.policies.tenants.tenancy import TenantShares


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A job that waits for units in the coming slot."""

    name: str
    tenant: int  # index of its owner
    workers: int  # the job gets all or none


class SplitStrideScheduler:
    """Split stride scheduler: tenants get units in proportion to tickets, whatever their jobs.

    A tenant's *pass* grows by 1 / tickets for every unit that it uses. The tenant with the lowest
    pass chooses next: its job that has used the fewest units. A gang that doesn't fit is skipped in
    the slot. Its tenant's pass doesn't grow, so no gang starves. A tenant without tickets gets what
    is left.
    """

    def __init__(self, tickets: Sequence[int]) -> None:
        # The stride is a multiple of 1 / tickets, so that passes are exact integers.
        self._unit = math.lcm(*(count for count in tickets if count), 1)
        self._stride = [self._unit // count if count else 0 for count in tickets]
        self._pass = [0] * len(tickets)
        self._used: dict[str, int] = {}
        self._active: set[int] = set()

    def fill(
        self, claims: Iterable[GangRequest], fits: Callable[[GangRequest], bool]
    ) -> list[GangRequest]:
        """Choose the jobs of one slot, and raise their tenants' passes.

        ``fits`` places a job on the slot's free units, or returns False. The result is in order of
        placement.
        """
        queues: dict[int, list[GangRequest]] = {}
        for claim in claims:
            queues.setdefault(claim.tenant, []).append(claim)
        self._activate(set(queues))
        used = {
            claim.name: self._used.get(claim.name, 0)
            for queue in queues.values()
            for claim in queue
        }
        for queue in queues.values():  # in reverse, for `pop`
            queue.sort(key=lambda claim: (used[claim.name], claim.name), reverse=True)
        chosen = []
        while queues:
            # Tenants without tickets, which have no stride, come last.
            tenant = min(
                queues, key=lambda owner: (not self._stride[owner], self._pass[owner], owner)
            )
            claim = queues[tenant].pop()
            if not queues[tenant]:
                del queues[tenant]
            if fits(claim):
                chosen.append(claim)
                self._pass[tenant] += claim.workers * self._stride[tenant]
                used[claim.name] += claim.workers
        # Jobs without a claim have ended, so their usage is dropped.
        self._used = used
        return chosen

    def _activate(self, present: set[int]) -> None:
        # Idle time gives no credit: a returning tenant gets at least the lowest active pass.
        active_passes = [self._pass[tenant] for tenant in present & self._active]
        for tenant in present - self._active:
            self._pass[tenant] = max(self._pass[tenant], min(active_passes, default=0))
        self._active = present


def trade_tickets(shares: Floats, speeds: Floats) -> Floats:
    """Exchange fast units for slow ones between tenants whose speed-ups differ.

    Shares and speeds are by tenant and type, with types from slow to fast. Types are traded in
    pairs, fastest first. The tenant with the smallest speed-up sells its fast units to the tenant
    with the largest speed-up, and is paid in slow units. The price is the second largest speed-up
    of possible buyers, at least the seller's own (section 5 of the paper). So a buyer can't lower
    its price by a false speed-up. The total of each type stays, and ``shares * speeds`` doesn't
    decrease in total for any tenant.
    """
    traded = shares.astype(np.float64)
    types = shares.shape[1]
    for fast in range(types - 1, 0, -1):
        for slow in range(fast):
            _trade_pair(traded, speeds[:, fast] / speeds[:, slow], fast, slow)
    return traded


def _trade_pair(traded: Floats, gains: Floats, fast: int, slow: int) -> None:
    while True:
        sellers = np.flatnonzero(traded[:, fast] > 0)
        buyers = np.flatnonzero(traded[:, slow] > 0)
        if not (sellers.size and buyers.size):
            return
        seller = sellers[np.argmin(gains[sellers])]
        buyer = buyers[np.argmax(gains[buyers])]
        if gains[buyer] <= gains[seller]:
            return
        rivals = gains[buyers[buyers != buyer]]
        price = max(float(rivals.max(initial=0.0)), float(gains[seller]))
        if traded[seller, fast] * price <= traded[buyer, slow]:
            # The seller sells everything: its rest is exactly 0, so that the loop ends.
            units, paid = traded[seller, fast], traded[seller, fast] * price
            left_fast, left_slow = 0.0, traded[buyer, slow] - paid
        else:
            units, paid = traded[buyer, slow] / price, traded[buyer, slow]
            left_fast, left_slow = traded[seller, fast] - units, 0.0
        traded[seller, fast], traded[buyer, slow] = left_fast, left_slow
        traded[buyer, fast] += units
        traded[seller, slow] += paid


_TICKETS_PER_UNIT: Final = 1000  # so that traded shares, which are fractions, keep three digits


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
        """Return all parameters with their values, and the shares and tickets."""
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
        placed, units = self._units_up(view)

        def fits(claim: GangRequest) -> bool:
            if claim.name in placed:
                return True
            gang = self._gangs[claim.name]
            if gang.workers > units[gang.claim.worker_type].sum():
                return False
            placement = view.open_jobs[claim.name].placement
            if placement is None or not is_free(gang, placement, units):
                placement = first_fit(gang, units)
            if placement is None:
                return False
            occupy(gang, placement, units)
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
    shares = tenancy.owned[: len(tenancy.worker_types)].T.astype(np.float64)
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
    return np.rint(_TICKETS_PER_UNIT * traded.T).astype(np.int64)

"""Gandiva_fair: tickets buy places, slot by slot, and gangs run in turns.

Chaudhary et al., EuroSys 2020; as Astraea's evaluation runs it, non-elastic and blind to placement.
Trading is between types of workers, at the speeds given. Left out: profiling of jobs, the cost of
moving them, and the split into a central and per-server schedulers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import (
    Decision,
    JobCancelled,
    JobsArrived,
    JobsFinished,
    Pause,
    Place,
    PolicyEvent,
    Queue,
    Reject,
    SlotBegan,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, PolicyContext, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Placement
from shadowprice.policies.sharing.fixed_gangs import FixedGang, first_fit, fixed_gang
from shadowprice.policies.sharing.parameters import GandivaFairParameters
from shadowprice.policies.sharing.strides import Claim as StrideClaim
from shadowprice.policies.sharing.strides import Strides, trade
from shadowprice.policies.tenants.tenancy import Tenancy, require_tenants, tenancy_of

Integers = npt.NDArray[np.int64]

_TICKETS: Final = 1000
"""Tickets for a place, so that traded shares keep three digits."""


class GandivaFair:
    """Split stride over gangs; every slot is filled anew.

    Parameters
    ----------
    context : PolicyContext
        The cluster.
    parameters : GandivaFairParameters
        What was set.
    """

    capabilities: Final = Capabilities(
        wakes_every_slot=True, local_traffic_is_free=True, quotes=True
    )

    def __init__(self, context: PolicyContext, parameters: GandivaFairParameters) -> None:
        self._context = replace(context, known_jobs=None)
        self._parameters = parameters
        self._tenancy = tenancy_of(context.cluster)
        require_tenants(self._tenancy, context.known_jobs)
        self._tickets = _traded(self._tenancy, parameters)
        self._strides = [Strides(row) for row in self._tickets.tolist()]
        self._gangs: dict[str, FixedGang] = {}

    def resume(self, view: View) -> None:
        """Take in all open jobs; turns go on where tenants and their tickets are the same."""
        before = (self._tenancy.tenants, self._tickets.tolist(), self._strides, self._gangs)
        GandivaFair.__init__(self, replace(self._context, cluster=view.cluster), self._parameters)
        if before[:2] == (self._tenancy.tenants, self._tickets.tolist()):
            self._strides = before[2]
        for name, state in view.open_jobs.items():
            gang = self._gang_of(state.job)
            # One that fits no more waits as it was for servers to come.
            self._gangs[name] = before[3][name] if isinstance(gang, Refusal) else gang

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force, shares and tickets included."""
        tickets = {
            tenant: dict(
                zip(self._tenancy.worker_types, self._tickets[:, at].tolist(), strict=True)
            )
            for at, tenant in enumerate(self._tenancy.tenants)
        }
        dumped = self._parameters.model_dump()
        return {**dumped, "shares": self._tenancy.shares(), "tickets": tickets}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        match event:
            case SlotBegan():
                yield from self._fill(view)
            case JobsArrived(_, jobs):
                for job in jobs:
                    yield self._take_in(job.name, view)
            case JobsFinished(_, names):
                for name in names:
                    del self._gangs[name]
            case JobCancelled(_, name):
                self._gangs.pop(name, None)

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued, and with how many workers."""
        del explained  # the reason comes with the answer
        gang = self._gang_of(job)
        if isinstance(gang, Refusal):
            return Quote.of(Reject(job.name, gang), view.slot)
        return Quote.of(_queued(gang), view.slot)

    def _take_in(self, name: str, view: View) -> Decision:
        gang = self._gang_of(view.open_jobs[name].job)
        if isinstance(gang, Refusal):
            return Reject(name, gang)
        self._gangs[name] = gang
        return _queued(gang)

    def _gang_of(self, job: Job) -> FixedGang | Refusal:
        tenancy = self._tenancy
        claim = tenancy.claim_of(job)
        if isinstance(claim, Refusal):
            return claim
        workers = tenancy.workers[claim.worker_type]
        ps = np.zeros_like(workers) if claim.ps_type is None else tenancy.ps[claim.ps_type]
        return fixed_gang(job, claim, self._parameters.workers, workers, ps)

    def _fill(self, view: View) -> Iterator[Decision]:
        tenancy = self._tenancy
        there = np.array([not view.lost(server) for server in range(view.cluster.servers)])
        workers, ps = tenancy.workers * there, tenancy.ps * there
        placed: dict[str, Placement] = {}

        def fits(claim: StrideClaim) -> bool:
            gang = self._gangs[claim.name]
            before = view.open_jobs[claim.name].placement
            free = workers[gang.claim.worker_type]
            if gang.workers > free.sum():
                return False
            free_ps = None if gang.claim.ps_type is None else ps[gang.claim.ps_type]
            placement = before if _still_free(before, free, free_ps) else None
            if placement is None:
                none = np.zeros_like(free)
                placement = first_fit(gang, free, none if free_ps is None else free_ps)
            if placement is None:
                return False
            servers = list(placement.servers)
            free[servers] -= placement.workers
            if free_ps is not None:
                free_ps[servers] -= placement.ps
            placed[claim.name] = placement
            return True

        for at, strides in enumerate(self._strides):
            strides.fill(
                (
                    StrideClaim(name, gang.claim.tenant, gang.workers)
                    for name, gang in self._gangs.items()
                    if gang.claim.worker_type == at
                ),
                fits,
            )
        for name in self._gangs:
            before = view.open_jobs[name].placement
            if before is not None and placed.get(name) != before:
                yield Pause(name)
        for name, placement in placed.items():
            if view.open_jobs[name].placement != placement:
                yield Place(name, placement)


def _still_free(placement: Placement | None, workers: Integers, ps: Integers | None) -> bool:
    """Return whether a job can stay where it stands."""
    if placement is None:
        return False
    servers = list(placement.servers)
    if (workers[servers] < placement.workers).any():
        return False
    return ps is None or not (ps[servers] < placement.ps).any()


def _traded(tenancy: Tenancy, parameters: GandivaFairParameters) -> Integers:
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
    # `trade` wants types from slow to fast: by what the tenants make of them together.
    order = np.argsort(speeds.sum(axis=0), kind="stable")
    traded = np.empty_like(shares)
    traded[:, order] = trade(shares[:, order], speeds[:, order])
    return np.rint(_TICKETS * traded.T).astype(np.int64)


def _queued(gang: FixedGang) -> Queue:
    return Queue(gang.job.name, f"runs with {gang.workers} workers when its tenant's turn comes")


def build(context: PolicyContext, parameters: GandivaFairParameters) -> GandivaFair:
    """Build the policy, as the registry asks."""
    return GandivaFair(context, parameters)

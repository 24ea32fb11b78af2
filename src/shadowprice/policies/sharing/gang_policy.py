"""Base class of policies that schedule gangs of fixed size, and placement of gangs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self, TypeVar

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Integers
from shadowprice.core.events import Decision, Pause, Place, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Refusal, RefusalReason, RevisionRefusedError
from shadowprice.core.schedule import Placement
from shadowprice.policies.placements import dense_placement, distribute
from shadowprice.policies.reactive.base import ReactivePolicy
from shadowprice.policies.sharing import SharingParameters, Size
from shadowprice.policies.tenants.tenancy import (
    UnitClaim,
    gang_job,
    min_gang_slots,
    read_tenant_shares,
    require_tenants,
    units_for,
    workers_servable,
)

GANG: Final = "gang"  # label of a job that states its number of workers


@dataclass(frozen=True, slots=True)
class FixedGang:
    """A job with its fixed size."""

    job: Job
    claim: UnitClaim
    workers: int
    reach: tuple[int, ...]
    """Workers on other servers by number of parameter servers; see `workers_servable`."""


def fixed_gang(
    job: Job, claim: UnitClaim, size: Size, workers: Integers, ps: Integers
) -> FixedGang | Refusal:
    """Choose the number of workers of a job, from those that fit on empty servers.

    It is the largest one up to the requested ``size``, or else the smallest. ``label`` requests the
    number in the job's label ``gang``, or without that label the maximum. ``workers`` and ``ps``
    are the units of the job's types on each server.
    """
    gang = gang_job(job, claim, int(ps.max(initial=0)) if claim.ps_type is not None else 0)
    slots = min_gang_slots(gang, workers, ps)
    possible = gang.counts[slots < UNLIMITED]
    if not possible.size:
        return Refusal(
            RefusalReason.NEVER_FITS,
            f"no gang of {int(gang.counts[0])} workers or more fits the empty cluster",
            bottleneck="places of workers and of parameter servers",
        )
    requested = int(possible[0]) if size == "min" else int(possible[-1])
    if isinstance(size, int):
        requested = size
    elif size == "label" and job.labels.get(GANG, "").isdecimal():
        requested = int(job.labels[GANG])
    smaller = possible[possible <= requested]
    count = int(smaller[-1] if smaller.size else possible[0])
    return FixedGang(job, claim, count, tuple(int(n) for n in gang.reach))


def first_fit(gang: FixedGang, units: Integers) -> Placement | None:
    """Place a gang on the first servers with free units, None if it doesn't fit.

    ``units`` are free units by type and server. The fewest possible PS go to the first server from
    which they can serve the workers on other servers: (3i).
    """
    workers, ps = units_for(units, gang.claim)
    host, ps_count = 0, 0
    if gang.claim.ps_type is not None:
        hosts = (
            (int(server), count)
            for count, reach in enumerate(gang.reach)
            if reach >= 0
            for server in np.flatnonzero((ps >= count) & (workers >= gang.workers - reach))[:1]
        )
        host, ps_count = next(hosts, (-1, 0))
    # The host takes as many workers as fit, because the PS can only serve ``reach`` others.
    order = np.argsort(np.arange(len(workers)) != host, kind="stable")
    workers_on = None if host < 0 else distribute(workers, order, gang.workers)
    if workers_on is None:
        return None
    ps_on = np.zeros_like(workers_on)
    ps_on[host] = ps_count
    return dense_placement(workers_on, ps_on)


def add_ps_placement(gang: FixedGang, cells: Integers, units: Integers) -> Placement | None:
    """Place a gang's PS, as few as possible, on a server with many of its workers.

    ``cells`` is the number of workers on each server. None if no server has enough free ``units``.
    """
    counts_on = {server: [int(cells[server]), 0] for server in np.flatnonzero(cells).tolist()}
    if gang.claim.ps_type is not None:
        ps = units[gang.claim.ps_type]
        order = np.argsort(-cells, kind="stable")
        host = next(
            (
                (int(server), ps_count)
                for ps_count, reach in enumerate(gang.reach)
                if reach >= 0
                for server in order[ps[order] >= ps_count][:1]
                if gang.workers - cells[server] <= reach
            ),
            None,
        )
        if host is None:
            return None
        counts_on.setdefault(host[0], [0, 0])[1] = host[1]
    return Placement.of((server, counts[0], counts[1]) for server, counts in counts_on.items())


def is_free(gang: FixedGang, placement: Placement, units: Integers) -> bool:
    """Return whether free units, by type and server, suffice for a gang's placement."""
    servers, claim = list(placement.servers), gang.claim
    if (units[claim.worker_type, servers] < placement.workers).any():
        return False
    return claim.ps_type is None or not (units[claim.ps_type, servers] < placement.ps).any()


def occupy(gang: FixedGang, placement: Placement, units: Integers) -> None:
    """Subtract a gang's units from the free ones, by type and server."""
    servers, claim = list(placement.servers), gang.claim
    units[claim.worker_type, servers] -= placement.workers
    if claim.ps_type is not None:
        units[claim.ps_type, servers] -= placement.ps


P = TypeVar("P", bound=SharingParameters)


class GangPolicy(ReactivePolicy[P]):
    """A reactive policy that places gangs of fixed size on capacity units."""

    capabilities: ClassVar = Capabilities(
        wakes_every_slot=True, local_traffic_is_free=True, quotes=True
    )

    def __init__(self, context: PolicyContext, parameters: P) -> None:
        super().__init__(context, parameters)
        self._tenancy = read_tenant_shares(context.cluster)
        require_tenants(self._tenancy, context.known_jobs)
        self._gangs: dict[str, FixedGang] = {}

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return whether the job would be queued, and with how many workers."""
        del explained  # reasons are always included
        return Quote.of(self._answer(job, self._build_gang(job)), view.slot)

    @abstractmethod
    def _build_queue(self, gang: FixedGang) -> Queue:
        """Return the decision that queues an admitted gang, with its message."""

    def _answer(self, job: Job, gang: FixedGang | Refusal) -> Queue | Reject:
        return Reject(job.name, gang) if isinstance(gang, Refusal) else self._build_queue(gang)

    def _build_gang(self, job: Job) -> FixedGang | Refusal:
        claim = self._tenancy.claim_of(job)
        if isinstance(claim, Refusal):
            return claim
        units = units_for(self._tenancy.units, claim)
        return fixed_gang(job, claim, self._parameters.workers, *units)

    def _units_up(self, view: View) -> tuple[dict[str, Placement], Integers]:
        """Return placements of gangs that can't move, and the other units by type and server."""
        up = np.array([not view.is_lost(server) for server in range(view.cluster.servers)])
        units = self._tenancy.units * up
        staying: dict[str, Placement] = {}
        for name, gang in self._gangs.items() if view.may_have_unstoppable_jobs else ():
            placement = view.open_jobs[name].placement
            if placement is not None and view.is_unstoppable(name):
                staying[name] = placement
                occupy(gang, placement, units)
        return staying, np.maximum(units, 0)

    def _rearrange(self, view: View, target: Mapping[str, Placement]) -> Iterator[Decision]:
        """Yield moves of gangs to their targets, and pauses first, which free capacity."""
        for name in self._gangs:
            before = view.open_jobs[name].placement
            if before is not None and target.get(name) != before:
                yield Pause(name)
        for name, placement in target.items():
            if view.open_jobs[name].placement != placement:
                yield Place(name, placement)

    # ------------------------------------------------------------ steps

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        del view  # admission only depends on the gang's size
        for job in jobs:
            gang = self._build_gang(job)
            if isinstance(gang, FixedGang):
                self._gangs[job.name] = gang
            yield self._answer(job, gang)

    def _readmit(self, view: View, job: Job) -> Iterator[Decision]:
        del view
        gang = self._build_gang(job)
        if isinstance(gang, Refusal):
            raise RevisionRefusedError(gang)
        yield from ()

    def _remove_job(self, name: str) -> None:
        self._gangs.pop(name, None)

    def _displace(self, view: View, names: Sequence[str]) -> None:
        """Do nothing, because placements are read from the view when a slot begins."""

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        del view
        gang: FixedGang | Refusal | None = self._build_gang(state.job)
        if isinstance(gang, Refusal):
            gang = self._build_former_gang(state.job, before)
        if gang is not None:
            self._gangs[state.job.name] = gang

    def _build_former_gang(self, job: Job, before: Self) -> FixedGang | None:
        """Return a gang of its former size that waits for servers, None if revised otherwise."""
        former = before._gangs.get(job.name)
        if former is None or job.worker_count_index(former.workers) is None:
            return None
        claim = self._tenancy.claim_of(job)
        if isinstance(claim, Refusal):
            if not job.same_demand(former.job):
                return None
            claim = former.claim
        served = claim.ps_type is not None
        reach = workers_servable(
            len(former.reach) - 1, job.worker_bandwidth, job.ps_bandwidth, served
        )
        return FixedGang(job, claim, former.workers, tuple(reach.tolist()))

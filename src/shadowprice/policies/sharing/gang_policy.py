"""Base class of the schedulers of fixed-size gangs: arrivals, departures and quotes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self, TypeVar

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.events import Decision, Pause, Place, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Refusal, RevisionRefusedError
from shadowprice.core.schedule import Placement
from shadowprice.policies.reactive.base import ReactivePolicy
from shadowprice.policies.sharing.fixed_gangs import FixedGang, fixed_gang, occupy
from shadowprice.policies.sharing.parameters import SharingParameters
from shadowprice.policies.tenants.gang_jobs import workers_servable
from shadowprice.policies.tenants.tenancy import read_tenant_shares, require_tenants

P = TypeVar("P", bound=SharingParameters)


class GangPolicy(ReactivePolicy[P]):
    """A reactive policy that places fixed-size gangs on capacity units."""

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
        del explained  # a refusal always has a reason
        return Quote.of(self._answer(job), view.slot)

    @abstractmethod
    def _build_queue(self, gang: FixedGang) -> Queue:
        """Return the decision that queues an admitted gang, with its message."""

    def _answer(self, job: Job) -> Queue | Reject:
        gang = self._build_gang(job)
        return Reject(job.name, gang) if isinstance(gang, Refusal) else self._build_queue(gang)

    def _build_gang(self, job: Job) -> FixedGang | Refusal:
        tenancy = self._tenancy
        claim = tenancy.claim_of(job)
        if isinstance(claim, Refusal):
            return claim
        workers = tenancy.workers[claim.worker_type]
        ps = np.zeros_like(workers) if claim.ps_type is None else tenancy.ps[claim.ps_type]
        return fixed_gang(job, claim, self._parameters.workers, workers, ps)

    def _units_up(self, view: View) -> tuple[dict[str, Placement], Integers, Integers]:
        """Return the gangs that can't move, and the units beside them.

        The units of workers and of parameter servers are those of each server that is available.
        """
        up = np.array([not view.is_lost(server) for server in range(view.cluster.servers)])
        workers, ps = self._tenancy.workers * up, self._tenancy.ps * up
        staying: dict[str, Placement] = {}
        for name, gang in self._gangs.items() if view.may_pin else ():
            placement = view.open_jobs[name].placement
            if placement is not None and view.is_pinned(name):
                staying[name] = placement
                occupy(gang, placement, workers, ps)
        return staying, np.maximum(workers, 0), np.maximum(ps, 0)

    def _rearrange(self, view: View, target: Mapping[str, Placement]) -> Iterator[Decision]:
        """Move gangs to their target placements; pauses come first to free capacity."""
        for name in self._gangs:
            before = view.open_jobs[name].placement
            if before is not None and target.get(name) != before:
                yield Pause(name)
        for name, placement in target.items():
            if view.open_jobs[name].placement != placement:
                yield Place(name, placement)

    # ------------------------------------------------------------ steps

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        del view  # admission depends on the gang's size only
        for job in jobs:
            gang = self._build_gang(job)
            if isinstance(gang, Refusal):
                yield Reject(job.name, gang)
            else:
                self._gangs[job.name] = gang
                yield self._build_queue(gang)

    def _readmit(self, view: View, job: Job) -> Iterator[Decision]:
        del view
        gang = self._build_gang(job)
        if isinstance(gang, Refusal):
            raise RevisionRefusedError(gang)
        yield from ()

    def _remove_job(self, name: str) -> None:
        self._gangs.pop(name, None)

    def _displace(self, view: View, names: Sequence[str]) -> None:
        """Do nothing: placements are read from the view when a slot begins."""

    def _lose(self, server: int) -> None:
        """Do nothing: lost servers are read from the view when a slot begins."""

    def _restore(self, server: int) -> None:
        """Do nothing: lost servers are read from the view when a slot begins."""

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        del view
        gang: FixedGang | Refusal | None = self._build_gang(state.job)
        if isinstance(gang, Refusal):
            gang = self._build_former_gang(state.job, before)
        if gang is not None:
            self._gangs[state.job.name] = gang

    def _build_former_gang(self, job: Job, before: Self) -> FixedGang | None:
        """Return a gang that no longer fits at its former size: it waits for more servers.

        Returns None if a revision forbids this size, or units can't express the revised demand.
        """
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

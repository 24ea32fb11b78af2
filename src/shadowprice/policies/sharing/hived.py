"""HiveD: a virtual private cluster of cells for every tenant, and idle places for whoever comes.

Zhao et al., OSDI 2020. A gang takes cells of its own tenant, whole servers first; these are always
there for it, because cells are allocated buddy-wise and whoever runs on them without owning them is
paused. Beyond its cells a job runs opportunistically. Parameter servers, which HiveD does not know,
are held by count: a tenant's guaranteed jobs use no more than its share, on the server where the
most of their workers stand. Left out: racks and levels above a server, cell reconfiguration; a lost
server costs the tenant whose cells were there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from shadowprice.core.events import (
    Decision,
    JobCancelled,
    JobsArrived,
    JobsDisplaced,
    JobsFinished,
    Pause,
    Place,
    PolicyEvent,
    Queue,
    Reject,
    ServerBack,
    ServerLost,
    SlotBegan,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, PolicyContext, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Placement
from shadowprice.policies.sharing.fixed_gangs import FixedGang, first_fit, fixed_gang, place_on
from shadowprice.policies.sharing.parameters import HivedParameters
from shadowprice.policies.tenants.cells import Cell, VirtualClusters, cut
from shadowprice.policies.tenants.tenancy import require_tenants, tenancy_of

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Guaranteed:
    """A gang on cells of its own tenant."""

    tenant: int
    kind: int
    cells: tuple[Cell, ...]
    placement: Placement


class Hived:
    """Virtual private clusters with opportunistic use of what is idle.

    Parameters
    ----------
    context : PolicyContext
        The cluster.
    parameters : HivedParameters
        What was set.
    """

    capabilities: Final = Capabilities(
        wakes_every_slot=True, local_traffic_is_free=True, quotes=True
    )

    def __init__(self, context: PolicyContext, parameters: HivedParameters) -> None:
        self._context = replace(context, known_jobs=None)
        self._parameters = parameters
        self._tenancy = tenancy_of(context.cluster)
        require_tenants(self._tenancy, context.known_jobs)
        tenancy = self._tenancy
        self._owned = [
            cut(places.tolist(), shares.tolist())
            for places, shares in zip(tenancy.workers, tenancy.worker_shares, strict=True)
        ]
        self._clusters = [
            VirtualClusters(places.tolist(), owned)
            for places, owned in zip(tenancy.workers, self._owned, strict=True)
        ]
        self._largest = [
            max((size for cells in owned for size in cells), default=1) for owned in self._owned
        ]
        self._gangs: dict[str, FixedGang] = {}
        self._guaranteed: dict[str, _Guaranteed] = {}
        # Cells that a tenant would be given on servers that are out.
        self._broken: list[tuple[int, int, Cell]] = []
        self._changed = False

    def resume(self, view: View) -> None:
        """Take in all open jobs, and give cells by arrival anew."""
        before = self._gangs
        Hived.__init__(self, replace(self._context, cluster=view.cluster), self._parameters)
        for name, state in view.open_jobs.items():
            gang = self._gang_of(state.job)
            # One that fits no more waits as it was for servers to come.
            self._gangs[name] = before[name] if isinstance(gang, Refusal) else gang
        self._changed = True

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force, shares and cells included."""
        tenancy = self._tenancy
        cells = {
            tenant: {
                kind: {str(size): count for size, count in sorted(owned[at].items()) if count}
                for kind, owned in zip(tenancy.worker_types, self._owned, strict=True)
            }
            for at, tenant in enumerate(tenancy.tenants)
        }
        return {**self._parameters.model_dump(), "shares": tenancy.shares(), "cells": cells}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        match event:
            case SlotBegan():
                if self._changed:
                    self._changed = False
                    yield from self._settle(view)
                return
            case JobsArrived(_, jobs):
                for job in jobs:
                    yield self._take_in(job.name, view)
            case JobsFinished(_, names):
                for name in names:
                    del self._gangs[name]
                    self._release(name)
            case JobCancelled(_, name):
                self._gangs.pop(name, None)
                self._release(name)
            case JobsDisplaced(_, names):
                for name in names:
                    self._release(name)
            case ServerBack():
                for kind, tenant, cell in self._broken:
                    self._clusters[kind].give(tenant, cell)
                self._broken.clear()
            case ServerLost():
                pass
        self._changed = True

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

    def _release(self, name: str) -> None:
        held = self._guaranteed.pop(name, None)
        if held is not None:
            for cell in held.cells:
                self._clusters[held.kind].give(held.tenant, cell)

    def _settle(self, view: View) -> Iterator[Decision]:
        there = np.array([not view.lost(server) for server in range(view.cluster.servers)])
        workers, ps = self._tenancy.workers * there, self._tenancy.ps * there
        for name, held in self._guaranteed.items():
            _occupy(self._gangs[name], held.placement, workers, ps)
        self._guarantee(view, workers, ps)
        target = {name: held.placement for name, held in self._guaranteed.items()}
        others = [name for name in self._gangs if name not in target]
        if self._parameters.opportunistic:
            self._use_idle(view, others, target, workers, ps)
        for name in self._gangs:
            before = view.open_jobs[name].placement
            if before is not None and target.get(name) != before:
                yield Pause(name)
        for name, placement in target.items():
            if view.open_jobs[name].placement != placement:
                yield Place(name, placement)

    def _guarantee(self, view: View, workers: Integers, ps: Integers) -> None:
        """Give jobs cells of their tenants, by arrival; the first that must wait makes others."""
        tenancy = self._tenancy
        used: Counter[tuple[int, int]] = Counter()
        for name, held in self._guaranteed.items():
            claim = self._gangs[name].claim
            if claim.ps_type is not None:
                used[claim.tenant, claim.ps_type] += held.placement.total_ps
        blocked: set[tuple[int, int]] = set()
        for name, gang in self._gangs.items():
            claim = gang.claim
            mine = (claim.tenant, claim.worker_type)
            share = int(tenancy.worker_shares[claim.worker_type, claim.tenant])
            if name in self._guaranteed or mine in blocked or gang.workers > share:
                continue
            cells = self._take(view, *mine, gang.workers)
            placement = None
            if cells is not None:
                on = np.zeros(workers.shape[1], np.int64)
                for cell in cells:
                    on[cell.server] += cell.size
                none = np.zeros_like(on)
                placement = place_on(gang, on, none if claim.ps_type is None else ps[claim.ps_type])
            if placement is not None and claim.ps_type is not None:
                owner = (claim.tenant, claim.ps_type)
                if (
                    used[owner] + placement.total_ps
                    > tenancy.ps_shares[claim.ps_type, claim.tenant]
                ):
                    placement = None
                else:
                    used[owner] += placement.total_ps
            if placement is None:
                for cell in cells or ():
                    self._clusters[claim.worker_type].give(claim.tenant, cell)
                blocked.add(mine)
                continue
            self._guaranteed[name] = _Guaranteed(*mine, tuple(cells or ()), placement)
            _occupy(gang, placement, workers, ps)

    def _take(self, view: View, tenant: int, kind: int, count: int) -> list[Cell] | None:
        """Take a tenant's cells on servers that are there."""
        clusters = self._clusters[kind]
        while True:
            cells = clusters.take(tenant, count, self._largest[kind])
            if cells is None:
                return None
            broken = [cell for cell in cells if view.lost(cell.server)]
            if not broken:
                return cells
            for cell in cells:
                if view.lost(cell.server):
                    self._broken.append((kind, tenant, cell))
                else:
                    clusters.give(tenant, cell)

    def _use_idle(
        self,
        view: View,
        names: list[str],
        target: dict[str, Placement],
        workers: Integers,
        ps: Integers,
    ) -> None:
        """Let jobs run on idle places: those that stand there keep standing, then by arrival."""
        moving = []
        for name in names:
            gang, before = self._gangs[name], view.open_jobs[name].placement
            if before is not None and _still_idle(gang, before, workers, ps):
                target[name] = before
                _occupy(gang, before, workers, ps)
            else:
                moving.append(name)
        for name in moving:
            gang = self._gangs[name]
            free = workers[gang.claim.worker_type]
            none = np.zeros_like(free)
            placement = first_fit(
                gang, free, none if gang.claim.ps_type is None else ps[gang.claim.ps_type]
            )
            if placement is not None:
                target[name] = placement
                _occupy(gang, placement, workers, ps)


def _occupy(gang: FixedGang, placement: Placement, workers: Integers, ps: Integers) -> None:
    servers = list(placement.servers)
    workers[gang.claim.worker_type, servers] -= placement.workers
    if gang.claim.ps_type is not None:
        ps[gang.claim.ps_type, servers] -= placement.ps


def _still_idle(gang: FixedGang, placement: Placement, workers: Integers, ps: Integers) -> bool:
    servers = list(placement.servers)
    if (workers[gang.claim.worker_type, servers] < placement.workers).any():
        return False
    if gang.claim.ps_type is None:
        return True
    return not (ps[gang.claim.ps_type, servers] < placement.ps).any()


def _queued(gang: FixedGang) -> Queue:
    return Queue(gang.job.name, f"asks for {gang.workers} workers of its tenant's cells")


def build(context: PolicyContext, parameters: HivedParameters) -> Hived:
    """Build the policy, as the registry asks."""
    return Hived(context, parameters)

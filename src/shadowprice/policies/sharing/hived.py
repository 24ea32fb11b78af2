"""HiveD: a virtual private cluster of cells for every tenant; others may use idle cells.

Zhao et al., OSDI 2020. A gang takes cells of its own tenant, whole servers first. These are always
available: cells are buddy-allocated, and jobs of other tenants on them are paused. A job beyond its
tenant's cells runs opportunistically, on idle units. HiveD doesn't cover parameter servers. Here, a
tenant's guaranteed jobs use at most its share of them, on the server with most of their workers.
Left out: levels above a server, such as racks, and reconfiguration of cells. A lost server reduces
the cells of the tenants that had cells there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.events import Decision, Queue
from shadowprice.core.policy import JobState, PolicyContext, View
from shadowprice.core.schedule import Placement
from shadowprice.policies.sharing import HivedParameters
from shadowprice.policies.sharing.gang_policy import (
    FixedGang,
    GangPolicy,
    add_ps_placement,
    first_fit,
    is_free,
    occupy,
)
from shadowprice.policies.tenants.cells import Cell, VirtualClusters, assign_cells


@dataclass(frozen=True, slots=True)
class _Guaranteed:
    """A gang on cells of its own tenant; ``kind`` is the index of the worker type."""

    tenant: int
    kind: int
    cells: tuple[Cell, ...]
    placement: Placement


class HivedPolicy(GangPolicy[HivedParameters]):
    """Virtual private clusters with opportunistic use of idle units."""

    def __init__(self, context: PolicyContext, parameters: HivedParameters) -> None:
        super().__init__(context, parameters)
        tenancy = self._tenancy
        # Number of cells of each tenant by size, for each worker type.
        self._owned = [
            [
                Counter(cell.size for cell in cells)
                for cells in assign_cells(units.tolist(), shares.tolist())
            ]
            # ``owned`` also has PS types, after the worker types.
            for units, shares in zip(tenancy.workers, tenancy.owned, strict=False)
        ]
        self._clusters = [
            VirtualClusters(units.tolist(), owned)
            for units, owned in zip(tenancy.workers, self._owned, strict=True)
        ]
        self._largest = [  # largest cell of each worker type
            max((size for cells in owned for size in cells), default=1) for owned in self._owned
        ]
        self._guaranteed: dict[str, _Guaranteed] = {}
        # Allocated cells on lost servers: (worker type, tenant, cell).
        self._broken: list[tuple[int, int, Cell]] = []

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return all parameters with their values, and the shares and cells."""
        tenancy = self._tenancy
        cells = {
            tenant: {
                kind: {str(size): count for size, count in sorted(owned[index].items()) if count}
                for kind, owned in zip(tenancy.worker_types, self._owned, strict=True)
            }
            for index, tenant in enumerate(tenancy.tenants)
        }
        return {**self._parameters.model_dump(), "shares": tenancy.shares(), "cells": cells}

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        super()._restore_job(view, state, before)
        guaranteed = before._guaranteed.get(state.job.name)
        if guaranteed is not None and guaranteed.placement == state.placement:
            self._guaranteed[state.job.name] = guaranteed

    def _keep_learnt_state(self, before: Self) -> None:
        """Keep gangs on their cells if the cells are the same, so that no gang moves."""
        running, self._guaranteed = self._guaranteed, {}
        units, former, kinds = self._tenancy, before._tenancy, len(self._tenancy.worker_types)
        if units.tenants != former.tenants or not (
            np.array_equal(units.workers, former.workers)
            and np.array_equal(units.owned[:kinds], former.owned[:kinds])
        ):
            return
        self._clusters, self._broken = before._clusters, before._broken
        self._free_broken()
        for name, guaranteed in before._guaranteed.items():
            self._guaranteed[name] = guaranteed
            gang = self._gangs.get(name)
            workers = guaranteed.placement.total_workers
            if name not in running or gang is None or gang.workers != workers:
                self._release(name)

    def _build_queue(self, gang: FixedGang) -> Queue:
        return Queue(gang.job.name, f"asks for {gang.workers} workers of its tenant's cells")

    def _remove_job(self, name: str) -> None:
        super()._remove_job(name)
        self._release(name)

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        for name in names:
            self._release(name)

    def _restore_server(self, server: int) -> None:
        super()._restore_server(server)
        self._free_broken()

    def _free_broken(self) -> None:
        for kind, tenant, cell in self._broken:
            self._clusters[kind].release(tenant, cell)
        self._broken.clear()

    def _release(self, name: str) -> None:
        guaranteed = self._guaranteed.pop(name, None)
        if guaranteed is not None:
            for cell in guaranteed.cells:
                self._clusters[guaranteed.kind].release(guaranteed.tenant, cell)

    def _begin(self, view: View) -> Iterator[Decision]:
        if not self._changed:
            return
        staying, units = self._units_up(view)
        self._changed = bool(staying)  # these gangs may be able to move in the next slot
        for name, guaranteed in self._guaranteed.items():
            if name not in staying:
                occupy(self._gangs[name], guaranteed.placement, units)
        self._guarantee(view, staying, units)
        target = {name: guaranteed.placement for name, guaranteed in self._guaranteed.items()}
        target |= staying
        others = [name for name in self._gangs if name not in target]
        if self._parameters.opportunistic:
            self._use_idle(view, others, target, units)
        yield from self._rearrange(view, target)

    def _guarantee(self, view: View, staying: Collection[str], units: Integers) -> None:
        """Allocate cells by arrival; a job that must wait blocks its tenant's later ones."""
        tenancy = self._tenancy
        used: Counter[tuple[int, int]] = Counter()
        for name, guaranteed in self._guaranteed.items():
            claim = self._gangs[name].claim
            if claim.ps_type is not None:
                used[claim.tenant, claim.ps_type] += guaranteed.placement.total_ps
        blocked: set[tuple[int, int]] = set()
        occupied: list[tuple[int, int, Cell]] = []
        for name, gang in self._gangs.items():
            claim = gang.claim
            owner_and_type = (claim.tenant, claim.worker_type)
            share = int(tenancy.owned[claim.worker_type, claim.tenant])
            # A gang that exceeds its tenant's share only runs on idle units.
            if name in self._guaranteed or owner_and_type in blocked or gang.workers > share:
                continue
            if name in staying:
                continue
            free = units[claim.worker_type]
            cells = self._take(view, *owner_and_type, gang.workers, free, occupied)
            placement = None
            if cells is not None:
                workers_on = np.zeros_like(free)
                for cell in cells:
                    workers_on[cell.server] += cell.size
                placement = add_ps_placement(gang, workers_on, units)
            if placement is not None and claim.ps_type is not None:
                owner = (claim.tenant, claim.ps_type)
                owned = tenancy.owned[claim.ps_type, claim.tenant]
                if used[owner] + placement.total_ps > owned:
                    placement = None
                else:
                    used[owner] += placement.total_ps
            if placement is None:
                for cell in cells or ():
                    self._clusters[claim.worker_type].release(claim.tenant, cell)
                blocked.add(owner_and_type)
                continue
            self._guaranteed[name] = _Guaranteed(*owner_and_type, tuple(cells or ()), placement)
            occupy(gang, placement, units)
        for kind, tenant, cell in occupied:
            self._clusters[kind].release(tenant, cell)

    def _take(
        self,
        view: View,
        tenant: int,
        kind: int,
        count: int,
        units: Integers,
        occupied: list[tuple[int, int, Cell]],
    ) -> list[Cell] | None:
        """Allocate a tenant's cells on available servers, None if there are too few.

        Other cells stay allocated, so that the next try gets different ones. Those on lost servers
        are added to ``_broken``, those without free ``units`` to ``occupied``.
        """
        clusters = self._clusters[kind]
        while True:
            cells = clusters.allocate(tenant, count, self._largest[kind])
            if cells is None:
                return None
            free, usable = units.copy(), []
            for cell in cells:
                if view.is_lost(cell.server):
                    self._broken.append((kind, tenant, cell))
                elif free[cell.server] < cell.size:
                    occupied.append((kind, tenant, cell))
                else:
                    free[cell.server] -= cell.size
                    usable.append(cell)
            if len(usable) == len(cells):
                return cells
            for cell in usable:
                clusters.release(tenant, cell)

    def _use_idle(
        self, view: View, names: list[str], target: dict[str, Placement], units: Integers
    ) -> None:
        """Place jobs on idle units: first those that can keep their placement, then by arrival."""
        moving = []
        for name in names:
            gang, before = self._gangs[name], view.open_jobs[name].placement
            if before is not None and is_free(gang, before, units):
                target[name] = before
                occupy(gang, before, units)
            else:
                moving.append(name)
        for name in moving:
            gang = self._gangs[name]
            placement = first_fit(gang, units)
            if placement is not None:
                target[name] = placement
                occupy(gang, placement, units)

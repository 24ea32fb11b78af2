"""Changes of servers and tenant shares while jobs run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster, capacity_row
from shadowprice.core.events import CapacityChanged


@dataclass(frozen=True, slots=True)
class Change:
    """Result of a `CapacityChanged` event."""

    cluster: Cluster  # the same object as before if nothing in it changed
    rows: NDArray[np.int64]  # new row of each old server, -1 if it was removed
    narrowed: tuple[str, ...]  # servers with less capacity or another role
    drained: tuple[str, ...]
    cordoned: tuple[str, ...]
    restored: tuple[str, ...]  # servers that the event makes available


def changed_cluster(cluster: Cluster, event: CapacityChanged) -> Change:
    """Return the effect of a validated event; servers keep their order, and new ones come last."""
    states = event.servers
    kept = [name for name in cluster.names if states.get(name, cluster) is not None]
    added = [name for name, s in states.items() if s is not None and name not in cluster.index]
    names = (*kept, *added)
    capacity = np.zeros((len(names), len(cluster.resources)), dtype=np.int64)
    roles, narrowed = [], []
    costs = np.zeros(len(names))
    for row, name in enumerate(names):
        state, old_row = states.get(name), cluster.index.get(name)
        if cluster.costs is not None and old_row is not None:
            costs[row] = cluster.costs[old_row]
        if state is not None and state.cost is not None:
            costs[row] = state.cost
        if state is None:
            assert old_row is not None
            capacity[row] = cluster.capacity[old_row]
            roles.append(cluster.roles[old_row])
            continue
        capacity[row] = capacity_row(state.capacity, cluster.resources)
        roles.append(state.role)
        if old_row is not None and (
            (capacity[row] < cluster.capacity[old_row]).any()
            or state.role is not cluster.roles[old_row]
        ):
            narrowed.append(name)
    new_rows = {name: row for row, name in enumerate(names)}
    rows = np.array([new_rows.get(name, -1) for name in cluster.names], dtype=np.int64)
    tenants = cluster.tenants if event.tenants is None else event.tenants
    restart_seconds = (
        cluster.restart_seconds if event.restart_seconds is None else event.restart_seconds
    )
    restart_first = cluster.restart_first if event.restart_first is None else event.restart_first
    if (
        names == cluster.names
        and tuple(roles) == cluster.roles
        and tenants == cluster.tenants
        and (restart_seconds, restart_first) == (cluster.restart_seconds, cluster.restart_first)
        and (capacity == cluster.capacity).all()
        and (cluster.costs is None or (costs == cluster.costs).all())
    ):
        changed = cluster
    else:
        changed = replace(
            cluster,
            names=names,
            roles=tuple(roles),
            capacity=capacity,
            tenants=tenants,
            restart_seconds=restart_seconds,
            restart_first=restart_first,
            costs=None if cluster.costs is None else costs,
        )
    remaining = [(name, state) for name, state in states.items() if state is not None]
    return Change(
        changed,
        rows,
        tuple(narrowed),
        tuple(name for name, state in remaining if state.drained),
        tuple(name for name, state in remaining if state.cordoned),
        tuple(name for name, state in remaining if not (state.drained or state.cordoned)),
    )

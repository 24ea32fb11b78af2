"""Handlers of servers that become unavailable, return or change, and of the timespan."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster, capacity_row
from shadowprice.core.events import (
    CapacityChanged,
    Command,
    Displaced,
    JobsDisplaced,
    ServerBack,
    ServerLost,
    TimespanChanged,
)
from shadowprice.engine.commands import stop
from shadowprice.engine.policy_session import PolicySession
from shadowprice.engine.replanning import extend, replan
from shadowprice.engine.state import SERVER_SETS, EngineState
from shadowprice.engine.unstoppable import runs_on, would_move
from shadowprice.engine.validation import EmptyClusterCheck


@dataclass(frozen=True, slots=True)
class Change:
    """Result of a `CapacityChanged` event."""

    cluster: Cluster  # the same object as before if nothing in it changed
    rows: NDArray[np.int64]  # new row of each old server, -1 if it was removed
    narrowed: tuple[str, ...]  # servers with less capacity or another role


def changed_cluster(cluster: Cluster, event: CapacityChanged) -> Change:
    """Return the effect of a validated event; servers keep their order, and new ones come last."""
    states = event.servers
    removed = {name for name, state in states.items() if state is None}
    kept = [name for name in cluster.names if name not in removed]
    added = [name for name in states if name not in removed and name not in cluster.index]
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
            assert old_row is not None  # new servers have a state
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
    settings: dict[str, Any] = {
        name: value
        for name in ("tenants", "restart_seconds", "restart_first")
        if (value := getattr(event, name)) is not None
    }
    if (
        names == cluster.names
        and tuple(roles) == cluster.roles
        and all(getattr(cluster, name) == value for name, value in settings.items())
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
            costs=None if cluster.costs is None else costs,
            **settings,
        )
    return Change(changed, rows, tuple(narrowed))


def lose_server(state: EngineState, session: PolicySession, event: ServerLost) -> list[Command]:
    """Stop all jobs on a server at once, and replan the jobs that have it in their plans."""
    row = state.cluster.index[event.server]
    if row in state.lost - state.drained - state.cordoned:  # lost already, not only closed
        return []
    commands: list[Command] = []
    if state.slot_running is not None:
        commands += _stop_jobs_on(state, event.slot, row)
    return commands + _close_server(state, session, event.slot, row, "was lost")


def restore_server(state: EngineState, session: PolicySession, event: ServerBack) -> list[Command]:
    """Make a lost, drained or cordoned server available again."""
    row = state.cluster.index[event.server]
    if row not in state.lost:
        return []
    for kind in SERVER_SETS:
        state.undo.assign(state, kind, getattr(state, kind) - {row})
    _save_capacity(state, row)
    state.ledger.restore(row)
    return session.query(ServerBack(event.slot, event.server, row))


def change_capacity(
    state: EngineState, session: PolicySession, event: CapacityChanged
) -> list[Command]:
    """Add, remove, change, drain, cordon and restore servers; change the tenants' shares."""
    change = changed_cluster(state.cluster, event)
    commands: list[Command] = []
    if change.cluster is not state.cluster:
        commands += _replace_cluster(state, session, event, change)
    servers = {
        state.cluster.index[name]: server
        for name, server in event.servers.items()
        if server is not None
    }
    for row, server in servers.items():
        if server.drained and (row not in state.lost or row in state.cordoned):
            commands += _close_server(state, session, event.slot, row, "is drained")
    for row, server in servers.items():
        if server.cordoned and (row not in state.lost or row in state.drained):
            commands += _close_server(state, session, event.slot, row, "is cordoned")
    for row, server in servers.items():
        is_open = not (server.drained or server.cordoned)
        if is_open and row in state.drained | state.cordoned:
            back = ServerBack(event.slot, state.cluster.names[row])
            commands += restore_server(state, session, back)
    return commands


def change_timespan(
    state: EngineState, session: PolicySession, event: TimespanChanged
) -> list[Command]:
    """Change the end of the timespan; replan jobs whose plans reach past it."""
    until = event.until
    state.undo.assign(state, "until", until)
    for name, record in state.open_jobs.items():
        if record.placement is not None:  # the job restarts or stops at the next slot
            state.mark_moved(name)
    session.resync_in_event()
    commands = session.query(event)
    late = [
        name
        for name, record in state.open_jobs.items()
        if until is not None and len(record.plan) and record.plan.completion >= until
    ]
    if late:
        commands += replan(state, session, late, "its plan reached past the end of the timespan")
    return commands


def _close_server(
    state: EngineState,
    session: PolicySession,
    slot: int,
    row: int,
    how: Literal["was lost", "is drained", "is cordoned"],
) -> list[Command]:
    """Close a server to new work, and displace its jobs; running jobs stay on a cordoned server."""
    name, ledger = state.cluster.names[row], state.ledger
    was_open = row not in state.lost
    state.undo.assign(state, "lost", state.lost | {row})
    for kind in ("drained", "cordoned"):
        rows: set[int] = getattr(state, kind)
        state.undo.assign(state, kind, rows | {row} if how == f"is {kind}" else rows - {row})
    _save_capacity(state, row)
    if how == "is cordoned":
        ledger.cordon(row)
        leaving = tuple(job for job in ledger.holders(row) if not runs_on(state, job, row))
    else:
        leaving = ledger.lose(row)
    displaced = state.displace(leaving)
    commands: list[Command] = [Displaced(slot, job, f"{name} {how}") for job in displaced]
    if was_open:  # to the policy, a closed server is a lost one
        commands += session.query(ServerLost(slot, name, row))
    commands += _query_displaced(state, session, displaced, row)
    # Jobs that became unstoppable, but whose plans would move them: they need other plans.
    moving = [
        job
        for job in ledger.holders(row)
        if len(state.jobs[job].plan) and would_move(state, job, state.slot)
    ]
    if moving:
        commands += extend(state, session, moving)
    return commands


def _save_capacity(state: EngineState, row: int) -> None:
    ledger = state.ledger
    saved = ledger.capacity[row].copy(), ledger.limits[row].copy()
    state.undo.push(ledger.set_capacity, row, *saved)


def _stop_jobs_on(state: EngineState, slot: int, row: int) -> list[Command]:
    """Stop the jobs that run on a server that was lost or removed during a slot."""
    affected = [name for name, placement in state.running.items() if row in placement.servers]
    commands: list[Command] = []
    for name in affected:
        placement = state.running[name]
        state.end_run(name)
        commands.append(stop(state, slot, name, placement, finished=False))
    return commands


def _replace_cluster(
    state: EngineState, session: PolicySession, event: CapacityChanged, change: Change
) -> list[Command]:
    """Replace the cluster, displace the jobs that no longer fit, and notify the policy."""
    undo, old_cluster, ledger = state.undo, state.cluster, state.ledger
    commands: list[Command] = []
    displaced_names: list[str] = []
    # Jobs whose plan ends with the running slot: they have no reservations, but may be extended.
    ended = {
        name
        for name, record in state.open_jobs.items()
        if len(record.plan) and record.plan.completion < state.slot
    }

    def displace_from(row: int) -> None:
        holders = ledger.holders(row)
        others = [name for name in ended if row in state.open_jobs[name].plan.servers]
        displaced_names.extend(state.displace({*holders, *others}))

    def recency(name: str) -> tuple[int, int, int]:
        record = state.jobs[name]
        return record.commitment, record.last_start, record.order

    for row in np.flatnonzero(change.rows < 0).tolist():
        # Now, because a command of the next slot couldn't name the removed server in `frees`.
        commands += _stop_jobs_on(state, event.slot, row)
        displace_from(row)
    for name in change.narrowed:
        if (
            change.cluster.roles[change.cluster.index[name]]
            is not old_cluster.roles[old_cluster.index[name]]
        ):
            displace_from(old_cluster.index[name])
    _renumber_servers(state, change)
    undo.assign(state, "cluster", change.cluster)
    local_free = state.capabilities.local_traffic_is_free
    undo.assign(state, "never_fits", EmptyClusterCheck(change.cluster, local_free=local_free))
    for name in change.narrowed:
        row = change.cluster.index[name]
        while ledger.is_overbooked(row):
            # Earlier commitments have precedence: the job that got its resources last is displaced.
            newest = max(ledger.holders(row), key=recency)
            displaced_names += state.displace([newest])
    displaced = tuple(sorted(displaced_names, key=state.arrival_order))
    commands += [Displaced(event.slot, name, "the servers changed") for name in displaced]
    session.resync_in_event()
    commands += session.query(event)
    return commands + _query_displaced(state, session, displaced, None)


def _query_displaced(
    state: EngineState, session: PolicySession, displaced: Sequence[str], row: int | None
) -> list[Command]:
    names = tuple(name for name in displaced if name in state.open_jobs)
    state.displace(names)  # again, because a query about the servers may have placed some of them
    return session.query(JobsDisplaced(state.slot, names, row)) if names else []


def _renumber_servers(state: EngineState, change: Change) -> None:
    undo, rows, ledger = state.undo, change.rows, state.ledger
    undo.push(ledger.replace_contents, copy(ledger))
    for kind in SERVER_SETS:
        undo.assign(state, kind, {int(rows[row]) for row in getattr(state, kind) if rows[row] >= 0})
    ledger.replace_contents(
        ledger.for_changed_cluster(change.cluster, rows, state.lost, state.cordoned)
    )
    for record in state.open_jobs.values():
        if len(record.plan):
            state.touch(record).plan = record.plan.renumbered(rows)
        if record.placement is not None:
            state.touch(record).placement = record.placement.renumbered(rows)
    for mapping in (state.running, *state.agenda.values()):
        undo.keep(mapping)
        for name, placement in mapping.items():
            mapping[name] = placement.renumbered(rows)

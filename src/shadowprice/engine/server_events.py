"""Handlers of lost, restored, drained and changed servers, and of the timespan."""

from __future__ import annotations

from copy import copy

import numpy as np

from shadowprice.core.cluster import Amounts
from shadowprice.core.events import (
    CapacityChanged,
    Command,
    Displaced,
    JobsDisplaced,
    ServerBack,
    ServerLost,
    TimespanChanged,
)
from shadowprice.core.ledger import Ledger
from shadowprice.engine.capacity import Change, changed_cluster
from shadowprice.engine.commands import stop
from shadowprice.engine.policy_session import PolicySession
from shadowprice.engine.replanning import replan
from shadowprice.engine.state import EngineState
from shadowprice.engine.validation import EmptyClusterCheck


def lose_server(state: EngineState, session: PolicySession, event: ServerLost) -> list[Command]:
    """Stop all jobs on a server at once, and replan the jobs that have it in their plans."""
    row = state.cluster.index[event.server]
    if row in state.lost and row not in state.drained:
        return []
    return _take_out(state, session, event.slot, row, drained=False)


def restore_server(state: EngineState, session: PolicySession, event: ServerBack) -> list[Command]:
    """Make a lost or drained server available again."""
    row, ledger = state.cluster.index[event.server], state.ledger
    if row not in state.lost:
        return []
    state.undo.assign(state, "lost", state.lost - {row})
    state.undo.assign(state, "drained", state.drained - {row})
    state.undo.push(_set_capacity, ledger, row, ledger.capacity[row].copy())
    ledger.restore(row)
    return session.query(ServerBack(event.slot, event.server, row))


def change_capacity(
    state: EngineState, session: PolicySession, event: CapacityChanged
) -> list[Command]:
    """Add, remove, change, drain and restore servers, and change the tenants' shares."""
    change = changed_cluster(state.cluster, event)
    commands: list[Command] = []
    if change.cluster is not state.cluster:
        commands += _replace_cluster(state, session, event, change)
    for name in change.drained:
        row = state.cluster.index[name]
        if row not in state.lost:
            commands += _take_out(state, session, event.slot, row, drained=True)
    for name in change.restored:
        if state.cluster.index[name] in state.drained:
            commands += restore_server(state, session, ServerBack(event.slot, name))
    return commands


def change_timespan(
    state: EngineState, session: PolicySession, event: TimespanChanged
) -> list[Command]:
    """Change the end of the timespan; replan jobs whose plans reach past it."""
    until = event.until
    state.undo.assign(state, "until", until)
    late: list[str] = []
    for name, record in state.open_jobs.items():
        if record.placement is not None:  # the job restarts or stops at the next slot
            state.mark_moved(name)
        if until is not None and len(record.plan) and record.plan.completion >= until:
            late.append(name)
    session.resync_in_event()
    commands = session.query(event)
    if late:
        commands += replan(state, session, late, "its plan reached past the end of the timespan")
    return commands


def _take_out(
    state: EngineState, session: PolicySession, slot: int, row: int, *, drained: bool
) -> list[Command]:
    """Make a server unavailable.

    If it is drained, running jobs continue to the end of the slot. If it is lost, they stop at
    once.
    """
    name, ledger = state.cluster.names[row], state.ledger
    commands: list[Command] = []
    if not drained and state.slot_running is not None:
        commands += _stop_jobs_on(state, slot, row)
    was_out = row in state.lost
    state.undo.assign(state, "lost", state.lost | {row})
    state.undo.assign(state, "drained", state.drained | {row} if drained else state.drained - {row})
    state.undo.push(_set_capacity, ledger, row, ledger.capacity[row].copy())
    displaced = state.displace(ledger.lose(row))
    reason = f"{name} is drained" if drained else f"{name} was lost"
    commands += [Displaced(slot, job, reason) for job in displaced]
    if not was_out:
        commands += session.query(ServerLost(slot, name, row))
    if displaced:
        commands += session.query(JobsDisplaced(slot, displaced, row))
    return commands


def _set_capacity(ledger: Ledger, row: int, capacity: Amounts) -> None:
    ledger.capacity[row] = capacity
    ledger.bump_capacity_version()


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
    for row in np.flatnonzero(change.rows < 0).tolist():
        if state.slot_running is not None:
            commands += _stop_jobs_on(state, event.slot, row)
        displaced_names += state.displace(ledger.holders(row))
    for name in change.narrowed:
        if (
            change.cluster.roles[change.cluster.index[name]]
            is not old_cluster.roles[old_cluster.index[name]]
        ):
            displaced_names += state.displace(ledger.holders(old_cluster.index[name]))
    _renumber_servers(state, change)
    undo.assign(state, "cluster", change.cluster)
    local_free = state.capabilities.local_traffic_is_free
    undo.assign(state, "never_fits", EmptyClusterCheck(change.cluster, local_free=local_free))
    for name in change.narrowed:
        row = change.cluster.index[name]
        while ledger.is_overbooked(row):
            # The earliest commitments are kept: the job that got its resources last is displaced.
            newest = max(ledger.holders(row), key=lambda job: _placement_recency(state, job))
            displaced_names += state.displace([newest])
    displaced = tuple(sorted(displaced_names, key=state.arrival_order))
    commands += [Displaced(event.slot, name, "the servers changed") for name in displaced]
    session.resync_in_event()
    commands += session.query(event)
    if displaced:
        commands += session.query(JobsDisplaced(event.slot, displaced, None))
    return commands


def _placement_recency(state: EngineState, name: str) -> tuple[int, int, int]:
    record = state.jobs[name]
    return record.committed, record.began, record.order


def _renumber_servers(state: EngineState, change: Change) -> None:
    """Replace all row numbers of servers by the new ones."""
    undo, rows, ledger = state.undo, change.rows, state.ledger
    undo.push(ledger.replace_contents, copy(ledger))
    undo.assign(state, "lost", {int(rows[row]) for row in state.lost if rows[row] >= 0})
    undo.assign(state, "drained", {int(rows[row]) for row in state.drained if rows[row] >= 0})
    ledger.replace_contents(ledger.for_changed_cluster(change.cluster, rows, state.lost))
    for record in state.open_jobs.values():
        if len(record.plan):
            state.touch(record).plan = record.plan.renumbered(rows)
        if record.placement is not None:
            state.touch(record).placement = record.placement.renumbered(rows)
    for mapping in (state.running, *state.agenda.values()):
        undo.keep(mapping)
        for name, placement in mapping.items():
            mapping[name] = placement.renumbered(rows)

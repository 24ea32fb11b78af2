"""Event handlers of servers and of the timespan, and their effects on jobs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from shadowprice.core.cluster import Amounts
from shadowprice.core.events import (
    CapacityChanged,
    Command,
    Displaced,
    JobsDisplaced,
    PlansFellShort,
    ServerBack,
    ServerLost,
    TimespanChanged,
)
from shadowprice.core.ledger import Ledger
from shadowprice.engine.capacity import Change, changed_cluster
from shadowprice.engine.decisions import Decider
from shadowprice.engine.validation import EmptyClusterCheck


class ServerEvents(Decider):
    """Handlers of lost, restored, drained and changed servers."""

    def _lose(self, event: ServerLost) -> list[Command]:
        row = self.cluster.index[event.server]
        if row in self.lost and row not in self.drained:
            return []
        return self._take_out(event.slot, row, drained=False)

    def _take_out(self, slot: int, row: int, *, drained: bool) -> list[Command]:
        """Make a server unavailable.

        If it is drained, running jobs continue to the end of the slot. If it is lost, they stop at
        once.
        """
        name, ledger = self.cluster.names[row], self.ledger
        commands: list[Command] = []
        if not drained and self.slot_running is not None:
            commands += self._kill(slot, row)
        was_out = row in self.lost
        self._undo.assign(self, "lost", self.lost | {row})
        drained_rows = self.drained | {row} if drained else self.drained - {row}
        self._undo.assign(self, "drained", drained_rows)
        self._undo.push(_set_capacity, ledger, row, ledger.capacity[row].copy())
        holders = ledger.lose(row)
        displaced = self._displace(holders)
        reason = f"{name} is drained" if drained else f"{name} was lost"
        commands += [Displaced(slot, job, reason) for job in displaced]
        if not was_out:
            commands += self._query_policy(ServerLost(slot, name, row))
        if displaced:
            commands += self._query_policy(JobsDisplaced(slot, displaced, row))
        return commands

    def _kill(self, slot: int, row: int) -> list[Command]:
        """Stop the jobs that run on a server that was lost or removed during a slot."""
        affected = [name for name, placement in self.running.items() if row in placement.servers]
        commands: list[Command] = []
        for name in affected:
            placement = self.running[name]
            self._end_run(name)
            commands.append(self._stop(slot, name, placement, finished=False))
        return commands

    def _restore_server(self, event: ServerBack) -> list[Command]:
        row, ledger = self.cluster.index[event.server], self.ledger
        if row not in self.lost:
            return []
        self._undo.assign(self, "lost", self.lost - {row})
        self._undo.assign(self, "drained", self.drained - {row})
        self._undo.push(_set_capacity, ledger, row, ledger.capacity[row].copy())
        ledger.restore(row)
        return self._query_policy(ServerBack(event.slot, event.server, row))

    def _change_limits(self, event: CapacityChanged | TimespanChanged) -> list[Command]:
        if isinstance(event, TimespanChanged):
            return self._change_timespan(event)
        return self._change_capacity(event)

    def _change_capacity(self, event: CapacityChanged) -> list[Command]:
        change = changed_cluster(self.cluster, event)
        commands: list[Command] = []
        if change.cluster is not self.cluster:
            commands += self._rebuild(event, change)
        for name in change.drained:
            row = self.cluster.index[name]
            if row not in self.lost:
                commands += self._take_out(event.slot, row, drained=True)
        for name in change.restored:
            row = self.cluster.index[name]
            if row in self.drained:
                commands += self._restore_server(ServerBack(event.slot, name))
        return commands

    def _rebuild(self, event: CapacityChanged, change: Change) -> list[Command]:
        """Replace the cluster, displace the jobs that no longer fit, and notify the policy."""
        undo, old_cluster = self._undo, self.cluster
        commands: list[Command] = []
        displaced_names: list[str] = []
        for row in np.flatnonzero(change.rows < 0).tolist():
            if self.slot_running is not None:
                commands += self._kill(event.slot, row)
            displaced_names += self._displace(self.ledger.holders(row))
        for name in change.narrowed:
            if (
                change.cluster.roles[change.cluster.index[name]]
                is not old_cluster.roles[old_cluster.index[name]]
            ):
                displaced_names += self._displace(self.ledger.holders(old_cluster.index[name]))
        self._renumber(change)
        undo.assign(self, "cluster", change.cluster)
        undo.assign(
            self, "_never_fits", EmptyClusterCheck(change.cluster, local_free=self._local_free)
        )
        for name in change.narrowed:
            row = change.cluster.index[name]
            while self.ledger.overbooked(row):
                displaced_names += self._displace(
                    [max(self.ledger.holders(row), key=self._placement_recency_key)]
                )
        displaced = tuple(sorted(displaced_names, key=self._arrival))
        commands += [Displaced(event.slot, name, "the servers changed") for name in displaced]
        self._resume_policy()
        commands += self._query_policy(event)
        if displaced:
            commands += self._query_policy(JobsDisplaced(event.slot, displaced, None))
        return commands

    def _placement_recency_key(self, name: str) -> tuple[int, int, int]:
        """Return a sort key that is largest for the job that got its resources last."""
        record = self.jobs[name]
        return record.committed, record.began, record.order

    def _renumber(self, change: Change) -> None:
        """Replace all row numbers of servers by the new ones."""
        undo, rows, ledger = self._undo, change.rows, self.ledger
        undo.push(ledger.become, copy(ledger))
        undo.assign(self, "lost", {int(rows[row]) for row in self.lost if rows[row] >= 0})
        undo.assign(self, "drained", {int(rows[row]) for row in self.drained if rows[row] >= 0})
        ledger.become(ledger.rebuilt(change.cluster, rows, self.lost))
        for record in self.open_jobs.values():
            if len(record.plan):
                self._touch(record).plan = record.plan.renumbered(rows)
            if record.placement is not None:
                self._touch(record).placement = record.placement.renumbered(rows)
        for mapping in (self.running, *self._agenda.values()):
            undo.keep(mapping)
            for name, placement in mapping.items():
                mapping[name] = placement.renumbered(rows)

    def _change_timespan(self, event: TimespanChanged) -> list[Command]:
        """Change the end of the timespan; replan jobs whose plans reach past it."""
        until = event.until
        self._undo.assign(self, "until", until)
        late: list[str] = []
        for name, record in self.open_jobs.items():
            if record.placement is not None:  # the job restarts or stops at the next slot
                self._move(name)
            if until is not None and len(record.plan) and record.plan.completion >= until:
                late.append(name)
        self._resume_policy()
        commands = self._query_policy(event)
        if late:
            commands += self._replan(late, None, "its plan reached past the end of the timespan")
        return commands

    # ------------------------------------------------------------ shared steps

    def _end_run(self, name: str) -> None:
        """Record that a job's generation ended without a command from the engine."""
        self._undo.keep(self._ran)
        self._ran[name] = None
        self._touch(self.jobs[name]).resumed_at = -1
        self._undo.drop(self.running, name, self._start)
        self._digest.changed.add(name)
        self._move(name)

    def _extend(self, names: Sequence[str]) -> list[Command]:
        """Consult the policy about plans that fell short; displace jobs that it doesn't replan."""
        jobs = self.jobs
        ordered = tuple(sorted(names, key=self._arrival))
        plans = {name: jobs[name].plans for name in ordered}
        commands = self._query_policy(PlansFellShort(self.slot, ordered))
        remaining = [
            name
            for name in ordered
            if name in self.open_jobs and jobs[name].plans == plans[name] and len(jobs[name].plan)
        ]
        if remaining:
            commands += self._replan(
                remaining, None, "its plan falls short of the work that remains"
            )
        return commands

    def _replan(self, names: Sequence[str], row: int | None, why: str) -> list[Command]:
        displaced = self._displace(names)
        commands: list[Command] = [Displaced(self.slot, name, why) for name in displaced]
        return commands + self._query_policy(JobsDisplaced(self.slot, displaced, row))


def _set_capacity(ledger: Ledger, row: int, capacity: Amounts) -> None:
    ledger.capacity[row] = capacity
    ledger.bump_capacity_version()

"""The engine's state record, and the changes that several event handlers share.

Every change of an event is recorded in `EngineState.undo`, so that the event takes effect
completely or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError
from shadowprice.core.events import Resize, Start, Stop
from shadowprice.core.ledger import Ledger
from shadowprice.core.policy import Capabilities, Status
from shadowprice.core.schedule import EMPTY_SCHEDULE, Placement, Schedule
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.validation import EmptyClusterCheck

COUNTERS: Final = ("sequence", "arrivals", "commands", "commitments")
"""Attributes of `EngineState`: numbers of events, jobs, commands and plans so far."""

SERVER_SETS: Final = ("lost", "drained", "cordoned")
"""Attributes of `EngineState`: sets of servers by row."""

JOB_SETS: Final = ("planned", "moved", "ran", "closed", "departed")
"""Attributes of `EngineState`: ordered sets of jobs by name, which are not in the jobs' records."""

RETAINED_CLOSED_NAMES: Final = 10_000
"""Maximum number of names of collected jobs that are remembered."""

_MODULUS: Final = 2**256
_COMPACT: Final = json.JSONEncoder(separators=(",", ":")).encode


class Undo:
    """Inverse operations of one event's changes, run in reverse order by a rollback.

    A removed entry that is restored becomes the last of its dictionary. If the order of entries
    matters, `drop` takes a sort key, by which `rollback` finally sorts them. For small
    dictionaries, `keep` saves a copy instead.
    """

    __slots__ = ("_kept", "_orders", "_steps")

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._orders: dict[int, tuple[dict[str, Any], Callable[[str], Any]]] = {}
        self._kept: set[int] = set()  # ids of the mappings that `keep` has copied

    def __bool__(self) -> bool:
        return bool(self._steps)

    def clear(self) -> None:
        """Discard the log, because the event took effect."""
        self._steps.clear()
        self._orders.clear()
        self._kept.clear()

    def push(self, opposite: Callable[..., object], *arguments: Any) -> None:
        """Record the inverse of a change."""
        self._steps.append((opposite, arguments))

    def assign(self, owner: object, name: str, value: object) -> None:
        """Set an attribute and record its previous value."""
        self._steps.append((setattr, (owner, name, getattr(owner, name))))
        setattr(owner, name, value)

    def put(self, mapping: dict[Any, Any], key: Any, value: object) -> None:
        """Set an entry and record its previous value."""
        if key in mapping:
            self._steps.append((mapping.__setitem__, (key, mapping[key])))
        else:
            self._steps.append((mapping.pop, (key, None)))
        mapping[key] = value

    def drop(
        self, mapping: dict[Any, Any], key: Any, order: Callable[[str], Any] | None = None
    ) -> Any:
        """Remove an existing entry; a rollback sorts the mapping's keys by ``order``, if given."""
        value = mapping.pop(key)
        self._steps.append((mapping.__setitem__, (key, value)))
        if order is not None:
            self._orders[id(mapping)] = (mapping, order)
        return value

    def keep(self, mapping: dict[Any, Any]) -> None:
        """Save a copy of a small mapping, once per event; afterwards it can change freely."""
        if id(mapping) not in self._kept:
            self._kept.add(id(mapping))
            self._steps.append((_replace_entries, (mapping, dict(mapping))))

    def rollback(self) -> None:
        """Undo all changes, the last change first."""
        for opposite, arguments in reversed(self._steps):
            opposite(*arguments)
        for mapping, order in self._orders.values():
            entries = sorted(mapping.items(), key=lambda entry: order(entry[0]))
            _replace_entries(mapping, dict(entries))
        self.clear()


def _replace_entries(mapping: dict[Any, Any], entries: dict[Any, Any]) -> None:
    mapping.clear()
    mapping.update(entries)


class StateDigest:
    """The sum of all jobs' hashes; an update only hashes the jobs in ``changed`` again.

    A sum doesn't depend on the order of the jobs, and a changed job only replaces its own hash. A
    collected job stays in the sum, so the digest covers all jobs of the past. It doesn't depend on
    when jobs were collected.
    """

    __slots__ = ("_hashes", "_sum", "changed")

    def __init__(self) -> None:
        self._sum = 0
        self._hashes: dict[str, int] = {}
        self.changed: set[str] = set()

    def refresh(
        self,
        jobs: Mapping[str, JobRecord],
        names: Sequence[str],
        only: Iterable[str] | None = None,
    ) -> int:
        """Update the sum for all changed jobs, or for those in ``only``; return the sum."""
        outdated = self.changed if only is None else self.changed.intersection(only)
        for name in outdated:
            self._sum -= self._hashes.pop(name, 0)
            record = jobs.get(name)
            if record is not None:  # None if the job's arrival was rolled back
                text = _job_text(record, names)
                self._hashes[name] = value = int(hashlib.sha256(text.encode()).hexdigest(), 16)
                self._sum += value
        self.changed -= outdated
        self._sum %= _MODULUS
        return self._sum

    def forget_hashes(self, names: Iterable[str]) -> None:
        """Forget the hashes of collected jobs, which must be up to date; the sum keeps them."""
        for name in names:
            self._hashes.pop(name, None)

    def clone(self) -> StateDigest:
        """Return an independent copy."""
        copy = StateDigest()
        copy._sum, copy._hashes, copy.changed = self._sum, dict(self._hashes), set(self.changed)
        return copy

    def removed_jobs_sum(self) -> int:
        """Return the part of the sum that collected jobs contribute."""
        return (self._sum - sum(self._hashes.values())) % _MODULUS

    def restore(self, departed: int, names: Iterable[str]) -> None:
        """Reset the sum to that of collected jobs, ``departed``; mark ``names`` as changed."""
        self._sum, self._hashes, self.changed = departed, {}, set(names)


def _job_text(record: JobRecord, names: Sequence[str]) -> str:
    refusal = None if record.refusal is None else record.refusal.record()
    plan = _sorted_rows(record.plan, names) if record.status.open else None
    placement = _sorted_entries(record.placement, names)
    values = (record.job.name, record.job.required, record.status.value, *_PLAIN_FIELDS(record))
    return _COMPACT((*values, refusal, plan, placement, record.finished, record.unfinished))


_PLAIN_FIELDS: Final = attrgetter(
    "progress", "measured", "started", "completion", "generation", "failures", "plans", "promise"
)


def _sorted_rows(plan: Schedule, names: Sequence[str]) -> list[list[object]]:
    # By name, so that the digest doesn't depend on the order of the servers.
    rows = ([slot, names[server], workers, ps] for slot, server, workers, ps in plan.rows())
    return sorted(rows)  # (slot, name) is unique, so the order is too


def _sorted_entries(placement: Placement | None, names: Sequence[str]) -> list[list[object]] | None:
    if placement is None:
        return None
    entries = zip(placement.servers, placement.workers, placement.ps, strict=True)
    return sorted([names[server], workers, ps] for server, workers, ps in entries)


class EngineState:
    """Jobs, reservations, running generations and commands."""

    def __init__(
        self,
        cluster: Cluster,
        capabilities: Capabilities,
        *,
        until: int | None,
        acknowledges: bool,
    ) -> None:
        self.cluster = cluster
        self.capabilities = capabilities
        self.until = until
        self.acknowledges = acknowledges
        window = capabilities.window or cluster.horizon
        # A reactive policy only reserves resources of the next slot.
        self.ledger = Ledger(cluster, window if capabilities.plans_ahead else 1)
        self.jobs: dict[str, JobRecord] = {}  # in order of arrival
        self.open_jobs: dict[str, JobRecord] = {}  # in order of arrival
        self.lost: set[int] = set()  # rows of unavailable servers
        self.drained: set[int] = set()  # the subset that was drained on purpose
        self.cordoned: set[int] = set()  # the subset whose running jobs stay
        self.running: dict[str, Placement] = {}  # in the order in which the jobs started
        self.slot_running: int | None = None  # None between two slots
        self.unacknowledged: dict[int, Start | Resize | Stop] = {}  # by command number
        self.sequence = self.arrivals = self.commands = self.commitments = 0
        # Placements that plans reserve, by slot and job, in order of commitment.
        self.agenda: dict[int, dict[str, Placement]] = {}
        self.planned: dict[str, None] = {}  # jobs that run by a plan in the running slot
        # Jobs whose placement a decision or an end changed: applied at the next slot's start.
        self.moved: dict[str, None] = {}
        self.ran: dict[str, None] = {}  # jobs whose generation ended in the running slot
        self.closed: dict[str, None] = {}  # jobs closed since the last `collect`
        self.departed: dict[str, None] = {}  # collected jobs; at most `RETAINED_CLOSED_NAMES`
        self.digest = StateDigest()
        self.undo = Undo()  # of the event that is being handled
        self.enclosing_undo: Undo | None = None  # of a unit of work with several events
        self._touched: set[JobRecord] = set()
        self._changed_names: list[set[str]] = []
        self.never_fits = EmptyClusterCheck(cluster, local_free=capabilities.local_traffic_is_free)

    # ------------------------------------------------------------ queries

    @property
    def slot(self) -> int:
        """First slot that can still be decided."""
        if self.slot_running is not None:
            return self.slot_running + 1
        return self.ledger.start

    @property
    def end(self) -> int:
        """First slot that no plan may use."""
        return self.ledger.end if self.until is None else min(self.ledger.end, self.until)

    @property
    def idle(self) -> bool:
        """True if nothing runs or is planned, so that slots can be skipped."""
        return not self.running and not self.agenda and not self.moved

    def check_skip(self, slot: int) -> None:
        """Check that nothing runs or is planned before ``slot``; raise EventError otherwise."""
        if (
            self.running
            or any(self.unplanned_placement(name) for name in self.moved)
            or any(planned < slot for planned in self.agenda)
        ):
            raise EventError(f"slots before {slot} can't be skipped while jobs run or have plans")

    def unplanned_placement(self, name: str) -> Placement | None:
        """Return the placement of a job that runs without a plan; None if it must not run."""
        if self.until is not None and self.slot >= self.until:
            return None
        record = self.open_jobs.get(name)
        return None if record is None else record.placement

    def arrival_order(self, name: str) -> int:
        """Return the sort key of jobs by arrival."""
        return self.jobs[name].order

    def start_order(self, name: str) -> int:
        """Return the sort key of running jobs by their last Start command."""
        return self.jobs[name].last_start

    def commitment_order(self, name: str) -> int:
        """Return the sort key of planned jobs by the commitment of their plan."""
        return self.jobs[name].commitment

    def watch_jobs(self) -> set[str]:
        """Return a set that receives the names of jobs that may have changed, except in progress.

        At first it has the names of all open jobs. The caller removes names that it has read.
        """
        names = set(self.open_jobs)
        self._changed_names.append(names)
        return names

    def _note_changes(self, records: Iterable[JobRecord]) -> None:
        """Note that jobs may have changed, for the digest and for `watch_jobs`."""
        names = [record.job.name for record in records]
        for changed in (self.digest.changed, *self._changed_names):
            changed.update(names)

    # ------------------------------------------------------------ digest and collection

    def state_digest(self) -> str:
        """Return a digest that is the same for equal states, also if servers are in another order.

        The cost grows with the changes since the previous call.
        """
        names = self.cluster.names
        parts = {
            "slot": self.slot,
            "running_slot": self.slot_running,
            "sequence": self.sequence,
            "jobs": f"{self.digest.refresh(self.jobs, names):064x}",
            "running": sorted(
                [name, sorted(names[row] for row in placement.servers)]
                for name, placement in self.running.items()
            ),
            "lost": sorted(names[row] for row in self.lost - self.drained - self.cordoned),
            "drained": sorted(names[row] for row in self.drained),
            "cordoned": sorted(names[row] for row in self.cordoned),
        }
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def update_digest(self, limit: int) -> int:
        """Update the digest for at most ``limit`` changed jobs; return how many remain."""
        changed = self.digest.changed
        self.digest.refresh(self.jobs, self.cluster.names, list(islice(changed, limit)))
        return len(changed)

    def departed_digest(self) -> int:
        """Return the part of `StateDigest` that collected jobs contribute."""
        self.digest.refresh(self.jobs, self.cluster.names)
        return self.digest.removed_jobs_sum()

    def collect(self, awaited: Collection[str] = ()) -> list[JobRecord]:
        """Remove and return the jobs that were closed since the previous call.

        Their names can then be used again. The digest still covers these jobs, and late reports
        about the last `RETAINED_CLOSED_NAMES` aren't errors. Jobs in ``awaited`` stay for a later
        call.
        """
        if not self.closed:
            return []
        names = [name for name in self.closed if name not in awaited]
        self.digest.refresh(self.jobs, self.cluster.names, names)
        self.digest.forget_hashes(names)
        collected = [self.jobs.pop(name) for name in names]
        for name in names:
            del self.closed[name]
            self.departed[name] = None
        for name in list(islice(self.departed, max(0, len(self.departed) - RETAINED_CLOSED_NAMES))):
            del self.departed[name]
        return collected

    # ------------------------------------------------------------ snapshots and clones

    def load_jobs(
        self,
        records: Iterable[JobRecord],
        running: Mapping[str, Placement],
        *,
        start: int,
        departed: int,
    ) -> None:
        """Load jobs into a new state whose counters, slot and sets are already set.

        Records are in order of arrival, and running placements in the order in which they started.
        ``start`` is the first slot of the ledger's window, ``departed`` the `departed_digest`.
        """
        self.ledger.advance(start)
        for row in self.lost:
            if row in self.cordoned:
                self.ledger.cordon(row)
            else:
                self.ledger.lose(row)
        for record in records:
            self.jobs[record.job.name] = record
            if record.status.open:
                self.open_jobs[record.job.name] = record
        # In order of commitment, as the jobs in each slot of the agenda are sorted.
        for record in sorted(self.open_jobs.values(), key=lambda record: record.commitment):
            job, name = record.job, record.job.name
            if len(record.plan):
                self.ledger.reserve(name, record.plan.from_slot(start), job.worker, job.ps)
                for slot, placement in record.plan.from_slot(self.slot).placements():
                    self.agenda.setdefault(slot, {})[name] = placement
            if record.placement is not None:
                self.ledger.place(name, record.placement, job.worker, job.ps)
        self.running.update(running)
        self.digest.restore(departed, self.jobs)

    def copy_from(self, other: EngineState) -> None:
        """Copy another engine's state; both can then change independently."""
        for name in (*COUNTERS, "slot_running", *SERVER_SETS, *JOB_SETS):
            setattr(self, name, copy(getattr(other, name)))
        self.ledger.replace_contents(other.ledger.clone())
        self.jobs.update(other.jobs)  # shares closed jobs, which don't change any more
        for name, record in other.open_jobs.items():
            self.jobs[name] = self.open_jobs[name] = record.copy()
        self.running.update(other.running)
        self.agenda = {slot: dict(planned) for slot, planned in other.agenda.items()}
        self.unacknowledged.update(other.unacknowledged)
        self.digest = other.digest.clone()

    # ------------------------------------------------------------ events

    def begin_event(self) -> None:
        """Save the counters for rollback."""
        self.undo.push(vars(self).update, {name: getattr(self, name) for name in COUNTERS})

    def commit_event(self) -> None:
        """Commit the event's changes, or pass its undo log to the enclosing unit of work."""
        if self.enclosing_undo is None:
            self.undo.clear()
            self._touched.clear()
            return
        self.enclosing_undo.push(self._rollback, self.undo, self._touched)
        self.undo, self._touched = Undo(), set()

    def rollback_event(self) -> None:
        """Undo all changes of the event that is being handled."""
        self._rollback(self.undo, self._touched)

    def _rollback(self, undo: Undo, touched: set[JobRecord]) -> None:
        undo.rollback()
        self._note_changes(touched)
        touched.clear()

    # ------------------------------------------------------------ changes

    def touch(self, record: JobRecord) -> JobRecord:
        """Return a record that is about to change; save its values once per event for rollback."""
        if record not in self._touched:
            self._touched.add(record)
            self._note_changes((record,))
            self.undo.push(record.restore, record.values())
        return record

    def set_status(self, record: JobRecord, status: Status) -> None:
        """Change a job's status; raise PolicyError if no transition allows it."""
        if record.status is not status:
            record.check_transition(status)
            self.touch(record).status = status

    def advance(self, slot: int) -> None:
        """Move the ledger's window to a later slot."""
        self.undo.push(self.ledger.undo_advance, self.ledger.advance(slot))

    def advance_for_query(self, slot: int) -> None:
        """Move the ledger's window to a later slot between two events."""
        before = self.ledger.advance(slot)
        # The unit's rollback may restore reservations in slots that leave the window.
        if self.enclosing_undo is not None:
            self.enclosing_undo.push(self.ledger.undo_advance, before)

    def insert_job(self, record: JobRecord) -> None:
        """Add a job that arrived."""
        name = record.job.name
        self._note_changes((record,))
        self._touched.add(record)  # without saved values: a rollback removes the record
        self.undo.put(self.jobs, name, record)
        self.undo.put(self.open_jobs, name, record)

    def release_job(self, name: str) -> None:
        """Release a job's plan or placement; it stops at the next slot unless placed again."""
        record = self.jobs[name]
        self._release_reservations(name)
        if len(record.plan):
            self.touch(record).plan = EMPTY_SCHEDULE
        if record.placement is not None:
            self.touch(record).placement = None
        if name in self.running:
            self.mark_moved(name)

    def _release_reservations(self, name: str) -> None:
        ledger, undo = self.ledger, self.undo
        reservation = ledger.reservations.get(name)
        if reservation is None:
            return
        released = ledger.release(name)
        undo.push(ledger.undo_release, name, reservation, released)
        for slot in released.active_slots.tolist() if released is not EMPTY_SCHEDULE else ():
            planned = self.agenda[slot]
            undo.drop(planned, name, self.commitment_order)
            if not planned:
                undo.drop(self.agenda, slot)

    def mark_moved(self, name: str) -> None:
        """Mark a job whose placement changed: the next `SlotBegan` creates its command."""
        self.undo.keep(self.moved)
        self.moved[name] = None

    def displace(self, names: Iterable[str]) -> tuple[str, ...]:
        """Release all reservations of these jobs; return the names in order of arrival."""
        ordered = tuple(sorted(names, key=self.arrival_order))
        for name in ordered:
            self.release_job(name)
            self.set_status(self.jobs[name], Status.QUEUED)
        return ordered

    def end_run(self, name: str) -> None:
        """Record that a job's generation ended without a command from the engine."""
        self.undo.keep(self.ran)
        self.ran[name] = None
        record = self.touch(self.jobs[name])
        # -1 marks an end by itself. After that, the run time of the job counts from 0 again.
        record.resumed_at, record.earlier_slots, record.earlier_share = -1, 0, 0.0
        self.undo.drop(self.running, name, self.start_order)
        self.digest.changed.add(name)
        self.mark_moved(name)

    def close(self, name: str, status: Status) -> JobRecord:
        """Close an open job with a final status; its record keeps the last plan."""
        self._release_reservations(name)
        record: JobRecord = self.undo.drop(self.open_jobs, name, self.arrival_order)
        self.set_status(record, status)
        record.placement = None
        if name in self.running:
            self.undo.drop(self.running, name, self.start_order)
        for mapping in (self.moved, self.planned):
            if name in mapping:
                self.undo.keep(mapping)
                del mapping[name]
        self.undo.put(self.closed, name, None)
        return record

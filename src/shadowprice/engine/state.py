"""The engine's state record, and the changes that several event handlers share.

Every change of an event is recorded in `EngineState.undo`, so that the event takes effect
completely or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError
from shadowprice.core.events import Resize, Start, Stop
from shadowprice.core.ledger import Ledger
from shadowprice.core.policy import Capabilities, Status
from shadowprice.core.schedule import EMPTY_SCHEDULE, Placement
from shadowprice.engine.digest import StateDigest, of_state
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.undo import Undo
from shadowprice.engine.validation import EmptyClusterCheck

RETAINED_CLOSED_NAMES: Final = 10_000
"""Maximum number of names of collected jobs that are remembered."""


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
        self.ledger = Ledger(cluster, window if capabilities.plans_ahead else 1)
        self.jobs: dict[str, JobRecord] = {}  # in order of arrival
        self.open_jobs: dict[str, JobRecord] = {}  # in order of arrival
        self.lost: set[int] = set()  # rows of unavailable servers
        self.drained: set[int] = set()  # the subset that was drained on purpose
        self.cordoned: set[int] = set()  # the subset whose running jobs stay
        self.running: dict[str, Placement] = {}  # in the order in which the jobs started
        self.slot_running: int | None = None  # None between two slots
        self.unacknowledged: dict[int, Start | Resize | Stop] = {}  # by command number
        # Numbers of events handled, jobs arrived, commands created and plans committed.
        self.sequence = self.arrivals = self.commands = self.commitments = 0
        # Placements that plans reserve, by slot and job, in order of commitment.
        self.agenda: dict[int, dict[str, Placement]] = {}
        self.planned: dict[str, None] = {}  # jobs that run by a plan in the running slot
        self.moved: dict[str, None] = {}  # jobs whose placement is applied at the next slot's start
        self.ran: dict[str, None] = {}  # jobs whose generation ended in the running slot
        self.closed: list[str] = []  # jobs closed since the last `collect`
        self.departed: dict[str, None] = {}  # names of collected jobs
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
            or any(self.standing(name) for name in self.moved)
            or any(planned < slot for planned in self.agenda)
        ):
            raise EventError(f"slots before {slot} can't be skipped while jobs run or have plans")

    def standing(self, name: str) -> Placement | None:
        """Return the placement in which a job runs from now on without a plan."""
        if self.until is not None and self.slot >= self.until:
            return None
        record = self.open_jobs.get(name)
        return None if record is None else record.placement

    def arrival_order(self, name: str) -> int:
        """Return the sort key of jobs by arrival."""
        return self.jobs[name].order

    def start_order(self, name: str) -> int:
        """Return the sort key of running jobs by their last Start command."""
        return self.jobs[name].began

    def commitment_order(self, name: str) -> int:
        """Return the sort key of planned jobs by the commitment of their plan."""
        return self.jobs[name].committed

    def watch_jobs(self) -> set[str]:
        """Return a set that receives the name of each job that may have changed.

        Progress isn't a change. First it has all open jobs. The caller removes what it has read.
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
        """Return a digest that is the same for equal states.

        The digest covers open and closed jobs, servers and running placements. It doesn't depend on
        the order of the servers. The cost grows with the changes since the previous call.
        """
        names = self.cluster.names
        return of_state(
            {
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
        )

    def update_digest(self, limit: int) -> int:
        """Update the digest for at most ``limit`` changed jobs; return how many remain.

        Call it between two events. It spreads the cost of the next `state_digest`.
        """
        changed = self.digest.changed
        self.digest.refresh(self.jobs, self.cluster.names, list(islice(changed, limit)))
        return len(changed)

    def departed_digest(self) -> int:
        """Return the share of collected jobs in the digest."""
        self.digest.refresh(self.jobs, self.cluster.names)
        return self.digest.removed_jobs_sum()

    def collect(self, awaited: Collection[str] = ()) -> list[JobRecord]:
        """Remove and return the jobs that were closed since the previous call.

        Their names can then be used again. The digest still covers these jobs. The last
        `RETAINED_CLOSED_NAMES` names are remembered, so that late reports about them aren't errors.

        Jobs in ``awaited`` are kept, because reports about them are still expected.
        """
        if not self.closed:
            return []
        names = [name for name in self.closed if name not in awaited]
        self.digest.refresh(self.jobs, self.cluster.names, names)
        self.digest.leave(names)
        departed = self.departed
        departed.update(dict.fromkeys(names))
        collected = [self.jobs.pop(name) for name in names]
        self.closed[:] = [name for name in self.closed if name in awaited]
        if len(departed) > RETAINED_CLOSED_NAMES:
            for name in list(islice(departed, len(departed) - RETAINED_CLOSED_NAMES)):
                del departed[name]
        return collected

    # ------------------------------------------------------------ snapshots and clones

    def marks(self) -> dict[str, Iterable[str]]:
        """Return the names of the jobs in each internal set, by name of the set, in order."""
        return {
            "planned": self.planned,
            "moved": self.moved,
            "ran": self.ran,
            "closed": self.closed,
            "departed": self.departed,
        }

    def load_jobs(
        self,
        records: Iterable[JobRecord],
        running: Mapping[str, Placement],
        *,
        start: int,
        departed: int,
        marks: Mapping[str, Iterable[str]],
    ) -> None:
        """Load jobs into a new state whose counters, slot and lost servers are already set.

        Records are in order of arrival, and running placements in the order in which they started.
        ``start`` is the first slot of the ledger's window. ``departed`` and ``marks`` are results
        of `departed_digest` and `marks`.
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
        for record in sorted(self.open_jobs.values(), key=lambda record: record.committed):
            job, name = record.job, record.job.name
            if len(record.plan):
                self.ledger.reserve(name, record.plan.from_slot(start), job.worker, job.ps)
                for slot, placement in record.plan.from_slot(self.slot).placements():
                    self.agenda.setdefault(slot, {})[name] = placement
            if record.placement is not None:
                self.ledger.place(name, record.placement, job.worker, job.ps)
        self.running.update(running)
        self.planned.update(dict.fromkeys(marks["planned"]))
        self.moved.update(dict.fromkeys(marks["moved"]))
        self.ran.update(dict.fromkeys(marks["ran"]))
        self.closed.extend(marks["closed"])
        self.departed.update(dict.fromkeys(marks["departed"]))
        self.digest.restore(departed, self.jobs)

    def copy_from(self, other: EngineState) -> None:
        """Copy another engine's state; both can then change independently."""
        for name in ("arrivals", "commands", "commitments", "sequence", "slot_running"):
            setattr(self, name, getattr(other, name))
        self.lost, self.drained = set(other.lost), set(other.drained)
        self.cordoned = set(other.cordoned)
        self.ledger.replace_contents(other.ledger.clone())
        self.jobs.update(other.jobs)
        for name, record in other.open_jobs.items():
            self.jobs[name] = self.open_jobs[name] = record.copy()
        self.running.update(other.running)
        self.agenda = {slot: dict(planned) for slot, planned in other.agenda.items()}
        self.planned, self.moved = dict(other.planned), dict(other.moved)
        self.ran, self.departed = dict(other.ran), dict(other.departed)
        self.closed = list(other.closed)
        self.unacknowledged.update(other.unacknowledged)
        self.digest = other.digest.clone()

    # ------------------------------------------------------------ events

    def begin_event(self) -> None:
        """Save the counters for rollback."""
        counters = (self.arrivals, self.commands, self.commitments, self.sequence)
        self.undo.push(self._reset, *counters)

    def _reset(self, arrivals: int, commands: int, commitments: int, sequence: int) -> None:
        self.arrivals, self.commands = arrivals, commands
        self.commitments, self.sequence = commitments, sequence

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
        self._note_changes(touched)
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
        """Move the ledger's window to a later slot between two events.

        An enclosing unit of work can also have reserved slots that leave the window. So its
        rollback must first return the window.
        """
        before = self.ledger.advance(slot)
        if self.enclosing_undo is not None:
            self.enclosing_undo.push(self.ledger.undo_advance, before)

    def insert_job(self, record: JobRecord) -> None:
        """Add a job that arrived."""
        name = record.job.name
        self._note_changes((record,))
        self._touched.add(record)  # a rollback removes the record itself
        self.undo.put(self.jobs, name, record)
        self.undo.put(self.open_jobs, name, record)

    def release_job(self, name: str) -> None:
        """Release a job's plan or placement.

        A running job stops at the next slot unless it is placed again.
        """
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
        """Mark a job, so that its placement is applied at the start of the next slot."""
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
        self.closed.append(name)
        self.undo.push(self.closed.pop)
        return record

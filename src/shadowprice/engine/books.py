"""The engine's state of jobs and servers, and every change to it.

All changes are recorded in an `Undo`, so that an event takes effect completely or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError
from shadowprice.core.events import Command, Resize, Start, Stop
from shadowprice.core.ledger import Ledger
from shadowprice.core.policy import Status
from shadowprice.core.schedule import EMPTY, Placement
from shadowprice.engine.digest import StateDigest, of_state
from shadowprice.engine.state import JobRecord
from shadowprice.engine.undo import Undo

RETAINED_CLOSED_NAMES: Final = 10_000
"""Maximum number of names of collected jobs that are remembered."""


class Books:
    """State of the engine: jobs, reservations, running generations and commands.

    Parameters
    ----------
    horizon : int
        Slots in the ledger's window.
    until : int or None
        End of the timespan T: nothing runs in slot T or later.
    acknowledges : bool
        Whether the driver acknowledges commands. If so, commands are kept until then.

    Attributes
    ----------
    jobs, open_jobs : dict of str to JobRecord
        All known jobs, and those that may still run, in order of arrival.
    running : dict of str to Placement
        Placements of running jobs, in the order in which they started.
    lost, drained : set of int
        Rows of unavailable servers, and the subset that was drained on purpose.
    slot_running : int or None
        The slot that is running, None between two slots.
    unacknowledged : dict of int to Command
        Commands by number that the driver hasn't acknowledged.
    sequence : int
        Number of events handled.
    """

    def __init__(
        self, cluster: Cluster, horizon: int, until: int | None, *, acknowledges: bool
    ) -> None:
        self.cluster = cluster
        self.until = until
        self.acknowledges = acknowledges
        self.ledger = Ledger(cluster, horizon)
        self.jobs: dict[str, JobRecord] = {}
        self.open_jobs: dict[str, JobRecord] = {}
        self.lost: set[int] = set()
        self.drained: set[int] = set()
        self.running: dict[str, Placement] = {}
        self.slot_running: int | None = None
        self.unacknowledged: dict[int, Start | Resize | Stop] = {}
        self.sequence = self.arrivals = self.commands = self.commitments = 0
        self._agenda: dict[int, dict[str, Placement]] = {}
        self._planned: dict[str, None] = {}
        self._moved: dict[str, None] = {}
        self._ran: dict[str, None] = {}
        self._closed: list[str] = []
        self._departed: dict[str, None] = {}
        self._digest = StateDigest()
        self._undo = Undo()
        self._touched: set[JobRecord] = set()
        self._held: Undo | None = None

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
        """Whether nothing runs or is planned, so that slots can be skipped."""
        return not self.running and not self._agenda and not self._moved

    def ran(self, name: str) -> bool:
        """Return whether a job ran at any time in the running slot."""
        return name in self.running or name in self._ran

    def pinned(self, name: str) -> bool:
        """Return whether the running generation of a job must keep its placement; see `pinning`.

        Simulated jobs save whenever they move. So only jobs of a driver that acknowledges commands
        can be pinned.
        """
        if not self.acknowledges or name not in self.running:
            return False
        record = self.jobs[name]
        if record.job.bag is not None:
            return False
        # A stop loses work if checkpoints are rare. The next generation is pinned until it has
        # repeated that work and done as much again, which makes a checkpoint likely. The pinned
        # work at least doubles with each loss, so the number of losses is logarithmic.
        unsaved = record.measured <= record.resumed_at + record.lost
        return record.job.resumable is not True or (record.measured > 0 and unsaved)

    def has_capacity(self, name: str, placement: Placement) -> bool:
        """Return whether a placement fits from now on in place of the job's present placement."""
        job = self.jobs[name].job
        return self.ledger.can_stand(name, placement, job.worker, job.ps)

    def check_skip(self, slot: int) -> None:
        """Check that nothing runs or is planned before ``slot``; raise EventError otherwise."""
        if (
            self.running
            or any(self._standing(name) for name in self._moved)
            or any(planned < slot for planned in self._agenda)
        ):
            raise EventError(f"slots before {slot} were skipped while jobs run")

    def _standing(self, name: str) -> Placement | None:
        if self.until is not None and self.slot >= self.until:
            return None
        record = self.open_jobs.get(name)
        return None if record is None else record.placement

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
                "jobs": f"{self._digest.refresh(self.jobs, names):064x}",
                "running": sorted(
                    [name, sorted(names[row] for row in placement.servers)]
                    for name, placement in self.running.items()
                ),
                "lost": sorted(names[row] for row in self.lost - self.drained),
                "drained": sorted(names[row] for row in self.drained),
            }
        )

    def update_digest(self, most: int) -> int:
        """Update the digest for at most ``most`` changed jobs; return how many remain.

        Call it between two events. It spreads the cost of the next `state_digest`.
        """
        changed = self._digest.changed
        self._digest.refresh(self.jobs, self.cluster.names, list(islice(changed, most)))
        return len(changed)

    def collect(self, awaited: Collection[str] = ()) -> list[JobRecord]:
        """Remove and return the jobs that were closed since the previous call.

        Their names can then be used again. The digest still covers these jobs. The last
        `RETAINED_CLOSED_NAMES` names are remembered, so that late reports about them aren't errors.

        Jobs in ``awaited`` are kept, because reports about them are still expected.
        """
        if not self._closed:
            return []
        names = [name for name in self._closed if name not in awaited]
        self._digest.refresh(self.jobs, self.cluster.names, names)
        self._digest.leave(names)
        departed = self._departed
        departed.update(dict.fromkeys(names))
        collected = [self.jobs.pop(name) for name in names]
        self._closed[:] = [name for name in self._closed if name in awaited]
        if len(departed) > RETAINED_CLOSED_NAMES:
            for name in list(islice(departed, len(departed) - RETAINED_CLOSED_NAMES)):
                del departed[name]
        return collected

    def departed(self, name: str) -> bool:
        """Return whether a job was collected recently."""
        return name in self._departed

    # ------------------------------------------------------------ snapshots and clones

    def marks(self) -> dict[str, Iterable[str]]:
        """Return the names of the jobs in each internal set, by name of the set, in order."""
        return {
            "planned": self._planned,
            "moved": self._moved,
            "ran": self._ran,
            "closed": self._closed,
            "departed": self._departed,
        }

    def departed_digest(self) -> int:
        """Return the share of collected jobs in the digest."""
        self._digest.refresh(self.jobs, self.cluster.names)
        return self._digest.removed_jobs_sum()

    def take_records(
        self,
        records: Iterable[JobRecord],
        running: Mapping[str, Placement],
        *,
        start: int,
        departed: int,
        marks: Mapping[str, Iterable[str]],
    ) -> None:
        """Load jobs into a new engine whose counters, slot and lost servers are already set.

        Parameters
        ----------
        records : iterable of JobRecord
            Jobs in order of arrival.
        running : mapping of str to Placement
            Running placements, in the order in which they started.
        start : int
            First slot of the ledger's window.
        departed : int
            Result of `departed_digest`.
        marks : mapping
            Result of `marks`.
        """
        self.ledger.advance(start)
        for row in self.lost:
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
                    self._agenda.setdefault(slot, {})[name] = placement
            if record.placement is not None:
                self.ledger.stand(name, record.placement, job.worker, job.ps)
        self.running.update(running)
        self._planned.update(dict.fromkeys(marks["planned"]))
        self._moved.update(dict.fromkeys(marks["moved"]))
        self._ran.update(dict.fromkeys(marks["ran"]))
        self._closed.extend(marks["closed"])
        self._departed.update(dict.fromkeys(marks["departed"]))
        self._digest.restore(departed, self.jobs)

    def copy_from(self, other: Books) -> None:
        """Copy another engine's state; both can then change independently."""
        for name in ("arrivals", "commands", "commitments", "sequence", "slot_running"):
            setattr(self, name, getattr(other, name))
        self.lost, self.drained = set(other.lost), set(other.drained)
        self.ledger.become(other.ledger.clone())
        self.jobs.update(other.jobs)
        for name, record in other.open_jobs.items():
            self.jobs[name] = self.open_jobs[name] = record.copy()
        self.running.update(other.running)
        self._agenda = {slot: dict(planned) for slot, planned in other._agenda.items()}
        self._planned, self._moved = dict(other._planned), dict(other._moved)
        self._ran, self._departed = dict(other._ran), dict(other._departed)
        self._closed = list(other._closed)
        self.unacknowledged = dict(other.unacknowledged)
        self._digest = other._digest.clone()

    # ------------------------------------------------------------ changes

    def _touch(self, record: JobRecord) -> JobRecord:
        """Return a record that is about to change; save its values once per event for rollback."""
        if record not in self._touched:
            self._touched.add(record)
            self._digest.changed.add(record.job.name)
            self._undo.push(record.put_back, record.values())
        return record

    def _begin_savepoint(self) -> None:
        """Save the counters for rollback."""
        counters = (self.arrivals, self.commands, self.commitments, self.sequence)
        self._undo.push(self._reset, *counters)

    def _reset(self, arrivals: int, commands: int, commitments: int, sequence: int) -> None:
        self.arrivals, self.commands = arrivals, commands
        self.commitments, self.sequence = commitments, sequence

    def _release_savepoint(self) -> None:
        """Commit the event's changes, or pass its undo log to the enclosing unit of work."""
        if self._held is None:
            self._undo.clear()
            self._touched.clear()
            return
        self._held.push(self._take_back, self._undo, self._touched)
        self._undo, self._touched = Undo(), set()

    def _take_back(self, undo: Undo, touched: set[JobRecord]) -> None:
        """Roll back an event."""
        self._digest.changed.update(record.job.name for record in touched)
        undo.rollback()
        self._digest.changed.update(record.job.name for record in touched)
        touched.clear()

    def _number(self) -> int:
        """Return the number of a new command."""
        self.commands += 1
        return self.commands

    def _advance(self, slot: int) -> None:
        self._undo.push(self.ledger.undo_advance, self.ledger.advance(slot))

    def _enter(self, record: JobRecord) -> None:
        name = record.job.name
        self._digest.changed.add(name)
        self._touched.add(record)  # a rollback removes the whole record
        self._undo.put(self.jobs, name, record)
        self._undo.put(self.open_jobs, name, record)

    def _let_go(self, name: str) -> None:
        """Release what a job reserves from now on.

        A running job stops at the next slot unless it is placed again.
        """
        record = self.jobs[name]
        self._release(name)
        if len(record.plan):
            self._touch(record).plan = EMPTY
        if record.placement is not None:
            self._touch(record).placement = None
        if name in self.running:
            self._move(name)

    def _release(self, name: str) -> None:
        """Release what a job reserves from now on."""
        ledger, undo = self.ledger, self._undo
        holding = ledger.holdings.get(name)
        if holding is None:
            return
        released = ledger.release(name)
        undo.push(ledger.put_back, name, holding, released)
        for slot in released.active_slots.tolist() if released is not EMPTY else ():
            agenda = self._agenda[slot]
            undo.drop(agenda, name, self._commitment)
            if not agenda:
                undo.drop(self._agenda, slot)

    def _move(self, name: str) -> None:
        """Mark a job, so that its placement is applied at the start of the next slot."""
        self._undo.keep(self._moved)
        self._moved[name] = None

    def _close(self, name: str, status: Status) -> JobRecord:
        """Close an open job with a final status; its record keeps the last plan."""
        self._release(name)
        record = self._touch(self._undo.drop(self.open_jobs, name, self._arrival))
        record.status, record.placement = status, None
        if name in self.running:
            self._undo.drop(self.running, name, self._start)
        for mapping in (self._moved, self._planned):
            if name in mapping:
                self._undo.keep(mapping)
                del mapping[name]
        self._closed.append(name)
        self._undo.push(self._closed.pop)
        return record

    def _displace(self, names: Iterable[str]) -> tuple[str, ...]:
        """Release all reservations of these jobs; return the names in order of arrival."""
        ordered = tuple(sorted(names, key=self._arrival))
        for name in ordered:
            self._let_go(name)
            self._touch(self.jobs[name]).status = Status.QUEUED
        return ordered

    # ------------------------------------------------------------ commands

    def _run(
        self, kind: type[Start] | type[Resize], slot: int, name: str, placement: Placement
    ) -> Start | Resize:
        """Create a command that runs a new generation of a job in this placement."""
        record = self._touch(self.jobs[name])
        undo, names = self._undo, self.cluster.names
        number = self._number()
        # Copies placed slot by slot are numbered like plans: each start draws new durations.
        planned = len(record.plan) or record.job.bag is not None
        plan = record.plans if planned else 0
        previous = self.running.get(name)
        record.resumed_before = record.resumed_at if record.generation else -1
        record.resumed_at = record.measured
        record.generation = record.generation + 1
        record.generation_slot = slot
        record.following = plan
        undo.put(self.running, name, placement)
        if kind is Start:
            record.began = number
            if record.started is None:
                record.started = slot
        command = kind(
            slot,
            name,
            placement,
            id=number,
            generation=record.generation,
            frees=() if previous is None else tuple([names[row] for row in previous.servers]),
            servers=tuple([names[row] for row in placement.servers]),
            copies=record.copies,
            plan=plan,
        )
        self._give(command)
        return command

    def _stop(self, slot: int, name: str, placement: Placement, *, finished: bool) -> Stop:
        """Create a command that stops a generation, which may have ended already."""
        command = Stop(
            slot,
            name,
            finished,
            id=self._number(),
            generation=self.jobs[name].generation,
            frees=tuple([self.cluster.names[row] for row in placement.servers]),
        )
        self._give(command)
        return command

    def _give(self, order: Start | Resize | Stop) -> None:
        if self.acknowledges:
            self._undo.put(self.unacknowledged, order.id, order)

    def _add_dependencies(self, commands: list[Command]) -> None:
        """Make the starts of a slot wait for unacknowledged commands that free their servers.

        Runs after all commands of the slot were created: a start may use what a later command
        frees. Two commands may wait for each other: each stops its previous generation before it
        waits.
        """
        if not self.acknowledges:
            return
        freeing: dict[str, list[int]] = {}
        of_job: dict[str, list[int]] = {}
        for number, unfinished in self.unacknowledged.items():
            of_job.setdefault(unfinished.job, []).append(number)
            for server in unfinished.frees:
                freeing.setdefault(server, []).append(number)
        for position, command in enumerate(commands):
            if not isinstance(command, Start | Resize):
                continue
            after = set(of_job[command.job])
            after.update(*(freeing.get(server, ()) for server in command.servers))
            after.discard(command.id)
            if after:
                commands[position] = unfinished = replace(command, after=tuple(sorted(after)))
                self._undo.put(self.unacknowledged, unfinished.id, unfinished)

    # ------------------------------------------------------------ sort keys

    def _arrival(self, name: str) -> int:
        return self.jobs[name].order

    def _start(self, name: str) -> int:
        return self.jobs[name].began

    def _commitment(self, name: str) -> int:
        return self.jobs[name].committed

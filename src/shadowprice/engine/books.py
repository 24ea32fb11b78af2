"""The engine's books: what is known of jobs and servers, and every change to it.

All changes go through an `Undo`, so that an event takes effect as a whole or not at all.
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

DEPARTED: Final = 10_000
"""Names of jobs that have left the engine that are remembered."""


class Books:
    """Jobs, reservations, what runs, and what was ordered.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    horizon : int
        Slots of the ledger's window.
    until : int or None
        End of the timespan T.
    acknowledges : bool
        Whether the driver acknowledges commands; they are kept until it does.

    Attributes
    ----------
    jobs, open_jobs : dict of str to JobRecord
        Jobs that the engine knows, and those of them that may still run, in order of arrival.
    running : dict of str to Placement
        What runs, in the order in which it was started.
    lost, drained : set of int
        Rows of servers that are out, and of those of them that were emptied on purpose.
    slot_running : int or None
        The slot that runs, None between two slots.
    unacknowledged : dict of int to Command
        Orders by number that were given and not yet acknowledged.
    sequence : int
        Events taken in.
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

    # ------------------------------------------------------------ looking

    @property
    def slot(self) -> int:
        """The first slot that can still be decided."""
        if self.slot_running is not None:
            return self.slot_running + 1
        return self.ledger.start

    @property
    def end(self) -> int:
        """First slot that no plan may use."""
        return self.ledger.end if self.until is None else min(self.ledger.end, self.until)

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is planned: slots may then be skipped."""
        return not self.running and not self._agenda and not self._moved

    def ran(self, name: str) -> bool:
        """Whether a job ran in the slot that runs."""
        return name in self.running or name in self._ran

    def pinned(self, name: str) -> bool:
        """Return whether the running generation of a job must keep its placement; see `pinning`.

        Simulated jobs save whenever they move: only a driver that acknowledges commands has jobs
        that may not.
        """
        if not self.acknowledges or name not in self.running:
            return False
        record = self.jobs[name]
        if record.job.bag is not None:
            return False
        # A stop loses work if checkpoints are rare. The next generation must first repeat that work
        # and then do as much again: a checkpoint in between is likely. The required work at least
        # doubles with each such loss, so their number is logarithmic.
        unsaved = record.measured <= record.resumed_at + record.lost
        return record.job.resumable is not True or (record.measured > 0 and unsaved)

    def has_capacity(self, name: str, placement: Placement) -> bool:
        """Return whether a job can have a placement from now on, in place of its present one."""
        job = self.jobs[name].job
        return self.ledger.can_stand(name, placement, job.worker, job.ps)

    def check_skip(self, slot: int) -> None:
        """Refuse to skip slots in which something runs or is planned.

        Raises
        ------
        EventError
            If anything does, or is, before ``slot``.
        """
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
        """Return a digest that equal states share: jobs, past and open, servers, what runs.

        It does not depend on the order of the servers, and costs what changed since it was last
        asked for.
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

    def freshen_digest(self, most: int) -> int:
        """Bring the digest up to date for so many jobs that changed; return how many are left.

        Between two events; what is done now need not be done when the digest is asked for.
        """
        changed = self._digest.changed
        self._digest.refresh(self.jobs, self.cluster.names, list(islice(changed, most)))
        return len(changed)

    def collect(self, awaited: Collection[str] = ()) -> list[JobRecord]:
        """Hand over the jobs that were closed since the last time; the engine forgets them.

        Their names may then be used again. The digest still tells what became of them, and the
        last `DEPARTED` names are remembered, so that word of them that comes late is no error.

        Parameters
        ----------
        awaited : collection of str
            Jobs that stay, because word of them is to come, however late.
        """
        if not self._closed:
            return []
        going = [name for name in self._closed if name not in awaited]
        self._digest.refresh(self.jobs, self.cluster.names, going)
        self._digest.leave(going)
        departed = self._departed
        departed.update(dict.fromkeys(going))
        gone = [self.jobs.pop(name) for name in going]
        self._closed[:] = [name for name in self._closed if name in awaited]
        if len(departed) > DEPARTED:
            for name in list(islice(departed, len(departed) - DEPARTED)):
                del departed[name]
        return gone

    def departed(self, name: str) -> bool:
        """Whether a job has left the engine not long ago."""
        return name in self._departed

    # ------------------------------------------------------------ other books

    def marks(self) -> dict[str, Iterable[str]]:
        """Return the names of jobs that are marked, by mark, in their order."""
        return {
            "planned": self._planned,
            "moved": self._moved,
            "ran": self._ran,
            "closed": self._closed,
            "departed": self._departed,
        }

    def departed_digest(self) -> int:
        """Return what jobs that have left the engine are in its digest."""
        self._digest.refresh(self.jobs, self.cluster.names)
        return self._digest.of_departed()

    def take_records(
        self,
        records: Iterable[JobRecord],
        running: Mapping[str, Placement],
        *,
        start: int,
        departed: int,
        marks: Mapping[str, Iterable[str]],
    ) -> None:
        """Fill new books, whose counters, slot and lost servers are set, with jobs.

        Parameters
        ----------
        records : iterable of JobRecord
            Jobs in order of arrival.
        running : mapping of str to Placement
            What runs, in the order in which it was started.
        start : int
            First slot of the ledger's window.
        departed : int
            As `departed_digest` gave it.
        marks : mapping
            As `marks` gave them.
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

    def take_books(self, other: Books) -> None:
        """Take over all that other books hold, to change on their own from now on."""
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

    # ------------------------------------------------------------ changing

    def _touch(self, record: JobRecord) -> JobRecord:
        """Return a record that is about to change; how it was is remembered once an event."""
        if record not in self._touched:
            self._touched.add(record)
            self._digest.changed.add(record.job.name)
            self._undo.push(record.put_back, record.values())
        return record

    def _begin_event(self) -> None:
        """Remember what an event may count up."""
        counters = (self.arrivals, self.commands, self.commitments, self.sequence)
        self._undo.push(self._reset, *counters)

    def _reset(self, arrivals: int, commands: int, commitments: int, sequence: int) -> None:
        self.arrivals, self.commands = arrivals, commands
        self.commitments, self.sequence = commitments, sequence

    def _end_event(self) -> None:
        """Let everything that was changed be so, for as long as what it is part of is."""
        if self._held is None:
            self._undo.clear()
            self._touched.clear()
            return
        self._held.push(self._take_back, self._undo, self._touched)
        self._undo, self._touched = Undo(), set()

    def _take_back(self, undo: Undo, touched: set[JobRecord]) -> None:
        """Let everything be as it was before an event."""
        self._digest.changed.update(record.job.name for record in touched)
        undo.roll_back()
        self._digest.changed.update(record.job.name for record in touched)
        touched.clear()

    def _number(self) -> int:
        """Return the number of a new order."""
        self.commands += 1
        return self.commands

    def _advance(self, slot: int) -> None:
        self._undo.push(self.ledger.retreat, self.ledger.advance(slot))

    def _enter(self, record: JobRecord) -> None:
        name = record.job.name
        self._digest.changed.add(name)
        self._touched.add(record)  # it goes as a whole
        self._undo.put(self.jobs, name, record)
        self._undo.put(self.open_jobs, name, record)

    def _let_go(self, name: str) -> None:
        """Release what a job holds from now on; it stops at the next slot unless placed again."""
        record = self.jobs[name]
        self._release(name)
        if len(record.plan):
            self._touch(record).plan = EMPTY
        if record.placement is not None:
            self._touch(record).placement = None
        if name in self.running:
            self._move(name)

    def _release(self, name: str) -> None:
        """Give back what a job holds from now on."""
        ledger, undo = self.ledger, self._undo
        holding = ledger.holdings.get(name)
        if holding is None:
            return
        rest = ledger.release(name)
        undo.push(ledger.put_back, name, holding, rest)
        for slot in rest.active_slots.tolist() if rest is not EMPTY else ():
            agenda = self._agenda[slot]
            undo.drop(agenda, name, self._commitment)
            if not agenda:
                undo.drop(self._agenda, slot)

    def _move(self, name: str) -> None:
        """Look at a job again when the next slot begins."""
        self._undo.keep(self._moved)
        self._moved[name] = None

    def _close(self, name: str, status: Status) -> JobRecord:
        """Let an open job be over; it keeps the plan that it followed."""
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
        """Release all that these jobs hold; return them in order of arrival."""
        ordered = tuple(sorted(names, key=self._arrival))
        for name in ordered:
            self._let_go(name)
            self._touch(self.jobs[name]).status = Status.QUEUED
        return ordered

    # ------------------------------------------------------------ ordering

    def _run(
        self, kind: type[Start] | type[Resize], slot: int, name: str, placement: Placement
    ) -> Start | Resize:
        """Give a job a new generation in this placement."""
        record = self._touch(self.jobs[name])
        undo, names = self._undo, self.cluster.names
        number = self._number()
        # Copies that are placed slot by slot are numbered like plans: each start draws anew.
        planned = len(record.plan) or record.job.bag is not None
        plan = record.plans if planned else 0
        before = self.running.get(name)
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
        order = kind(
            slot,
            name,
            placement,
            id=number,
            generation=record.generation,
            frees=() if before is None else tuple([names[row] for row in before.servers]),
            servers=tuple([names[row] for row in placement.servers]),
            copies=record.copies,
            plan=plan,
        )
        self._give(order)
        return order

    def _stop(self, slot: int, name: str, placement: Placement, *, finished: bool) -> Stop:
        """Order the end of what runs, or ran, in a placement."""
        order = Stop(
            slot,
            name,
            finished,
            id=self._number(),
            generation=self.jobs[name].generation,
            frees=tuple([self.cluster.names[row] for row in placement.servers]),
        )
        self._give(order)
        return order

    def _give(self, order: Start | Resize | Stop) -> None:
        if self.acknowledges:
            self._undo.put(self.unacknowledged, order.id, order)

    def _let_wait(self, commands: list[Command]) -> None:
        """Let the starts of a slot wait for all orders whose end was not seen that free a place.

        Once all orders of the slot are given: one may take what a later one frees. Two may wait for
        each other so, as each stops what it replaces before it waits.
        """
        if not self.acknowledges:
            return
        freeing: dict[str, list[int]] = {}
        of_job: dict[str, list[int]] = {}
        for number, order in self.unacknowledged.items():
            of_job.setdefault(order.job, []).append(number)
            for server in order.frees:
                freeing.setdefault(server, []).append(number)
        for at, command in enumerate(commands):
            if not isinstance(command, Start | Resize):
                continue
            after = set(of_job[command.job])
            after.update(*(freeing.get(server, ()) for server in command.servers))
            after.discard(command.id)
            if after:
                commands[at] = order = replace(command, after=tuple(sorted(after)))
                self._undo.put(self.unacknowledged, order.id, order)

    # ------------------------------------------------------------ orders of entries

    def _arrival(self, name: str) -> int:
        return self.jobs[name].order

    def _start(self, name: str) -> int:
        return self.jobs[name].began

    def _commitment(self, name: str) -> int:
        return self.jobs[name].committed

"""The engine: events in, commands out. It reads no clock, no file and no random number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, assert_never

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError, ShadowpriceError
from shadowprice.core.events import (
    Acknowledged,
    CapacityChanged,
    Command,
    DriverEvent,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    JobsFinished,
    ProgressMeasured,
    Reject,
    Resize,
    ServerBack,
    ServerLost,
    SlotBegan,
    SlotEnded,
    Start,
    StartFailed,
    TimespanChanged,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, quoting
from shadowprice.core.quote import Quote
from shadowprice.core.schedule import Placement
from shadowprice.engine.bags import count_finished, narrowed
from shadowprice.engine.checks import check_event
from shadowprice.engine.decisions import Consultation
from shadowprice.engine.jobs import JobEvents
from shadowprice.engine.promises import falls_short
from shadowprice.engine.state import JobRecord
from shadowprice.engine.undo import Undo

PRIORITY: Final[Mapping[type, int]] = {
    ServerLost: 0,
    ServerBack: 1,
    CapacityChanged: 1,
    TimespanChanged: 1,
    JobCancelled: 2,
    JobRevised: 2,
    JobsArrived: 3,
    SlotBegan: 4,
    SlotEnded: 5,
}
"""Order in which a simulation sends the events between two slots; the sort is stable."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its decisions: enough to apply it again without the policy.

    Parameters
    ----------
    sequence : int
        Number among all events, starting from 1.
    event : DriverEvent
        The event.
    consultations : tuple of tuple of Decision
        Decisions of each consultation of the policy, in order.
    """

    sequence: int
    event: DriverEvent
    consultations: tuple[Consultation, ...]


@dataclass(frozen=True, slots=True)
class StagedEvent:
    """An event that was decided, but that hasn't taken effect yet.

    Parameters
    ----------
    entry : Entry
        The entry for the journal.
    commands : list of Command
        Commands for the driver once the event has taken effect.
    """

    entry: Entry
    commands: list[Command]


class Engine(JobEvents):
    """The state of one cluster under one policy.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    policy : Policy
        The scheduling policy.
    until : int, optional
        End of the timespan T: nothing runs in slot T or later.
    keeps_memory : bool
        Whether to save the policy state before each event, so that a failed event leaves no trace
        in the policy. The cost grows with the number of open jobs. If not, the policy resyncs after
        a failed event, starting from the state that `dump_policy_state` returned last.
    acknowledges : bool
        Whether the driver acknowledges commands. If so, unacknowledged commands are kept, so that
        they can be sent again.

    Notes
    -----
    Time advances by events only. The same events give the same state, so a journal of events is a
    complete record, and `state_digest` compares two states. An event fails if it is invalid, or if
    the policy raises or breaks a rule. A failed event leaves the engine unchanged.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        *,
        until: int | None = None,
        keeps_memory: bool = True,
        acknowledges: bool = False,
    ) -> None:
        super().__init__(
            cluster, policy, until=until, acknowledges=acknowledges, keeps_memory=keeps_memory
        )
        self.last: Entry | None = None

    def handle(self, event: DriverEvent) -> list[Command]:
        """Apply an event and return the commands for the driver.

        Parameters
        ----------
        event : DriverEvent
            Events in the order in which they happened.

        Returns
        -------
        list of Command
            Commands in the order in which they take effect.

        Raises
        ------
        PolicyError
            If the policy's decision breaks a rule.
        EventError
            If the event is out of order or names an unknown job or server.
        """
        return self._take(event, None).commands

    @contextmanager
    def staged(self, event: DriverEvent) -> Iterator[StagedEvent]:
        """Decide on an event; commit it when the block ends, and roll it back if the block raises.

        A driver writes the entry to the journal within the block, so that no effect precedes its
        record.
        """
        staged = self._decide(event, None)
        try:
            yield staged
        except BaseException:
            self._roll_back()
            raise
        self._settle(staged.entry)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Run a block atomically: if it raises, roll back all of its events. Nests as savepoints.

        The undo log grows with every change in the block, so keep blocks short.
        """
        outer, self._held = self._held, (held := Undo())
        try:
            yield
        except BaseException:
            held.rollback()
            raise
        finally:
            self._held = outer
        if outer is not None and held:
            outer.push(held.rollback)

    def apply(self, entry: Entry) -> list[Command]:
        """Apply an event with its recorded decisions, without consulting the policy.

        Raises
        ------
        ShadowpriceError
            If the entry does not follow the last one, or does not fit the state.
        """
        if entry.sequence != self.sequence + 1:
            raise EventError(f"event {entry.sequence} does not follow event {self.sequence}")
        return self._take(entry.event, entry.consultations).commands

    def quote(self, job: Job, *, explained: bool = False) -> Quote:
        """Return the decision on a job if it arrived next; the state doesn't change.

        Parameters
        ----------
        job : Job
            The job. Its utility is measured from its arrival slot, which may be in the past.
        explained : bool
            Whether a refusal includes its reason.

        Raises
        ------
        ShadowpriceError
            If the policy gives no quotes, the job is already open, or it arrives in a future slot.
        """
        slot = self.slot
        policy = quoting(self.policy)
        if policy is None:
            raise ShadowpriceError("this policy gives no quotes")
        if job.name in self.open_jobs:
            raise ShadowpriceError(f"job {job.name!r} has arrived already")
        if job.arrival > slot:
            raise ShadowpriceError(
                f"job {job.name!r} arrives in slot {job.arrival}; quotes are for slot {slot}"
            )
        refusal = self._refused_at_once(job)
        if refusal is not None:
            return Quote.of(Reject(job.name, refusal), slot)
        self._resync_policy_if_stale()
        self.ledger.advance(slot)  # past the running slot, if any
        return policy.quote(self._view, job, explained=explained)

    # ------------------------------------------------------------ handling events

    def _take(self, event: DriverEvent, script: Sequence[Consultation] | None) -> StagedEvent:
        staged = self._decide(event, script)
        self._settle(staged.entry)
        return staged

    def _decide(self, event: DriverEvent, script: Sequence[Consultation] | None) -> StagedEvent:
        if self._undo:
            raise EventError("an event is being decided; settle it first")
        check_event(self, event)
        if script is None:
            self._resync_policy_if_stale()
            self._save_policy_state()
        self._begin_savepoint()
        self._script = None if script is None else iter(script)
        self._consultations = []
        try:
            commands = self._handle(event)
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._script = None
        self.sequence += 1
        return StagedEvent(Entry(self.sequence, event, tuple(self._consultations)), commands)

    def _settle(self, entry: Entry) -> None:
        if self._held is not None:
            self._held.assign(self, "last", entry)
        else:
            self.last = entry
        # Before `_release_savepoint`: a rollback is in reverse, and the policy needs the state.
        self._discard_saved_policy_state()
        self._release_savepoint()

    def _roll_back(self) -> None:
        self._take_back(self._undo, self._touched)
        self._rollback_policy_state()

    def _handle(self, event: DriverEvent) -> list[Command]:
        if isinstance(event, SlotEnded):
            return self._end_slot(event.slot, event.progress, event.finished)
        self._skip_to(event.slot)
        if isinstance(event, SlotBegan):
            return self._begin_slot(event.slot)
        match event:
            case JobsArrived():
                return self._arrive(event)
            case ProgressMeasured():
                return self._measure(event)
            case Acknowledged():
                return self._acknowledge(event)
            case JobEnded():
                return self._end_job(event)
            case JobCancelled():
                return self._cancel(event)
            case JobRevised():
                return self._revise(event)
            case JobFailed():
                return self._fail(event)
            case StartFailed():
                return self._fail_to_start(event)
            case ServerLost():
                return self._lose(event)
            case ServerBack():
                return self._restore_server(event)
            case CapacityChanged() | TimespanChanged():
                return self._change_limits(event)
            case _:
                assert_never(event)

    def _skip_to(self, slot: int) -> None:
        if slot > self.ledger.start:
            self._advance(slot)

    # ------------------------------------------------------------ slots

    def _begin_slot(self, slot: int) -> list[Command]:
        commands = self._query_policy(SlotBegan(slot)) if self.capabilities.wakes_every_slot else []
        undo = self._undo
        for mapping in (self._moved, self._planned, self._ran):
            undo.keep(mapping)
        planned: dict[str, Placement] = {}
        if self.until is not None and slot >= self.until:
            for name in self.running:
                self._moved[name] = None
        elif slot in self._agenda:
            planned = undo.drop(self._agenda, slot)
        for name in (*self._moved, *(name for name in self._planned if name not in planned)):
            self._apply_placement_change(
                slot, name, planned.get(name, self._standing(name)), commands
            )
        for name, placement in planned.items():
            self._apply_placement_change(slot, name, placement, commands)
        self._add_dependencies(commands)
        self._planned.clear()
        self._planned.update(dict.fromkeys(planned))
        self._moved.clear()
        self._ran.clear()
        undo.assign(self, "slot_running", slot)
        return commands

    def _apply_placement_change(
        self, slot: int, name: str, placement: Placement | None, commands: list[Command]
    ) -> None:
        present = self.running.get(name)
        if placement is None:
            if present is not None:
                self._undo.drop(self.running, name, self._start)
                commands.append(self._stop(slot, name, present, finished=False))
        elif present is None:
            commands.append(self._run(Start, slot, name, placement))
        elif placement != present or self._new_copies(name):
            commands.append(self._run(Resize, slot, name, placement))

    def _new_copies(self, name: str) -> bool:
        """Return whether a bag has a newer plan than its generation: other copies must start."""
        record = self.jobs[name]
        return record.job.bag is not None and record.following != record.plans

    def _end_slot(
        self, slot: int, progress: Mapping[str, int], done: Mapping[str, tuple[int, ...]]
    ) -> list[Command]:
        undo = self._undo
        undo.assign(self, "slot_running", None)
        if self.ledger.start == slot:
            self._advance(slot + 1)
        finished, behind = self._count(slot, progress, done)
        commands: list[Command] = []
        for name in finished:
            commands += self._complete(name, slot)
        if finished:
            commands += self._query_policy(JobsFinished(slot + 1, tuple(finished)))
        # A plan that ended, or that no longer suffices to complete the job, breaks its promise.
        short_of_plan = [
            name
            for name in self._planned
            if self._fell_short(name, slot, behind) or self._must_stay(name, slot + 1)
        ]
        if short_of_plan:
            commands += self._extend(short_of_plan)
        return commands

    def _count(
        self, slot: int, progress: Mapping[str, int], done: Mapping[str, tuple[int, ...]]
    ) -> tuple[list[str], set[str]]:
        """Record the progress of a slot; return the finished jobs, and those behind their plan."""
        planned, open_job = self._planned, self.open_jobs.get
        finished: list[str] = []
        behind: set[str] = set()
        # Progress is the most frequent change: one list is cheaper than `_touch` for each job.
        previous_progress: list[tuple[JobRecord, int]] = []
        changed = self._digest.changed
        changed.update(progress)
        self._undo.push(_undo_count, previous_progress, changed)
        for name, gained in progress.items():
            record = open_job(name)
            if record is None:
                continue  # the job ended or was closed during the slot
            job = record.job
            if job.bag is None:
                previous = record.progress
                previous_progress.append((record, previous))
                record.progress = progress_made = previous + gained
                if progress_made >= job.required:
                    finished.append(name)
                if planned and name in planned and self._yielded_less(record, gained):
                    behind.add(name)
            elif self._count_bag(slot, record, gained, done.get(name)):
                finished.append(name)
        # Jobs without counted progress report it themselves; treat it as unknown.
        for name in self.running.keys() - progress.keys():
            behind.add(name)
        if behind:
            finished += [
                name
                for name in self.running
                if name not in progress and self.jobs[name].progress >= self.jobs[name].job.required
            ]
        return finished, behind

    def _count_bag(
        self, slot: int, record: JobRecord, gained: int, done: tuple[int, ...] | None
    ) -> bool:
        """Record a bag's progress in a slot; return whether the bag is finished."""
        self._touch(record).progress += gained
        record.left = list(record.left)
        record.finished = list(record.finished)
        count_finished(record, slot, gained, done)
        if record.progress >= record.job.required:
            return True
        self._give_back(record)
        return False

    def _yielded_less(self, record: JobRecord, gained: int) -> bool:
        """Return whether a slot yielded less progress than a job's placement should."""
        placement = self.running.get(record.job.name)
        if placement is None:
            return True
        workers = placement.total_workers
        return gained < record.job.gain(workers, colocated=placement.colocated)

    def _give_back(self, record: JobRecord) -> None:
        """Release the capacity of a bag that its copies can't use any more."""
        name, job = record.job.name, record.job
        smaller = narrowed(record, self.slot)
        if smaller is None:
            return
        holding = self.ledger.holdings[name]
        self._undo.push(self.ledger.put_back, name, holding, self.ledger.release(name))
        self.ledger.reserve(name, smaller.from_slot(self.slot), job.worker, None)
        self._undo.push(self.ledger.undo_reserve, name)
        for slot, placement in smaller.placements():
            if slot >= self.slot:
                self._undo.put(self._agenda[slot], name, placement)
        self._touch(record).plan = smaller

    def _must_stay(self, name: str, slot: int) -> bool:
        """Return whether a plan would move a pinned job in a slot."""
        if name not in self.open_jobs or not self.pinned(name):
            return False
        return self._agenda.get(slot, {}).get(name) != self.running[name]

    def _fell_short(self, name: str, slot: int, behind: set[str]) -> bool:
        record = self.open_jobs.get(name)
        if record is None or not len(record.plan):
            return False
        if record.plan.completion <= slot or name not in behind:
            return record.plan.completion <= slot
        charged = self.capabilities.charges_restarts
        return falls_short(record, slot + 1, self.running.get(name), charged=charged)


def _undo_count(counted: list[tuple[JobRecord, int]], changed: set[str]) -> None:
    for record, progress in counted:
        record.progress = progress
        changed.add(record.job.name)

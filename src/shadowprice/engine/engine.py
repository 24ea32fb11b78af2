"""The engine: events in, commands out. It reads no clock, no file and no random number.

`HANDLERS` has one row for each type of event. A new type gets a class in `core.events`, a row here,
and a handler in the module of its concept. It also needs a check in `event_validation`, and a
format in `records`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core import events
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError, ShadowpriceError
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, Policy, as_quoting_policy
from shadowprice.core.quote import Quote
from shadowprice.engine import job_events, server_events, slot_events
from shadowprice.engine.event_validation import check_event
from shadowprice.engine.policy_session import Consultation, PolicySession
from shadowprice.engine.slot_events import count_quiet_slots, pass_quiet_slots
from shadowprice.engine.state import EngineState, Undo

Handler = Callable[[EngineState, PolicySession, Any], list[events.Command]]
"""Applies an event to the state, and returns the commands for the driver."""

HANDLERS: Final[Mapping[type[events.DriverEvent], Handler]] = {
    events.SlotBegan: slot_events.begin_slot,
    events.SlotEnded: slot_events.end_slot,
    events.JobsArrived: job_events.add_jobs,
    events.JobRevised: job_events.revise_job,
    events.JobCancelled: job_events.cancel_job,
    events.JobFailed: job_events.fail_generation,
    events.StartFailed: job_events.fail_to_start,
    events.JobStarted: job_events.record_start,
    events.JobEnded: job_events.finish_job,
    events.ProgressMeasured: job_events.record_measurements,
    events.Acknowledged: job_events.record_acknowledgements,
    events.ServerLost: server_events.lose_server,
    events.ServerBack: server_events.restore_server,
    events.CapacityChanged: server_events.change_capacity,
    events.TimespanChanged: server_events.change_timespan,
}

PRIORITY: Final[Mapping[type, int]] = {
    events.ServerLost: 0,
    events.ServerBack: 1,
    events.CapacityChanged: 1,
    events.TimespanChanged: 1,
    events.JobCancelled: 2,
    events.JobRevised: 2,
    events.JobsArrived: 3,
    events.SlotBegan: 4,
    events.SlotEnded: 5,
}
"""Order in which a simulation sends the events of a slot; events of equal priority keep theirs.

Servers change before jobs are decided, so that the decisions see the present servers.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its decisions: enough to apply it again without the policy.

    ``sequence`` counts events from 1. ``consultations`` has the decisions of each query of the
    policy, in order.
    """

    sequence: int
    event: events.DriverEvent
    consultations: tuple[Consultation, ...]


@dataclass(frozen=True, slots=True)
class StagedEvent:
    """An event that was decided, but that hasn't taken effect yet.

    ``entry`` is for the journal. The driver carries out ``commands`` once the event takes effect.
    """

    entry: Entry
    commands: list[events.Command]


class Engine:
    """The state of one cluster, changed by events and by the decisions of one policy.

    Parameters
    ----------
    until : int, optional
        End of the timespan T: nothing runs in slot T or later.
    saves_policy_state : bool
        Whether to save the policy state before each event, so that a failed event leaves no trace
        in the policy. The cost grows with the number of open jobs. If not, the policy resyncs after
        a failed event, starting from the state that `PolicySession.dump_state` returned last.
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
        saves_policy_state: bool = True,
        acknowledges: bool = False,
    ) -> None:
        state = EngineState(cluster, policy.capabilities, until=until, acknowledges=acknowledges)
        self.state = state
        self.session = PolicySession(policy, state, saves_policy_state=saves_policy_state)
        self.last: Entry | None = None  # the last event that took effect
        # The state never replaces these objects.
        self.view = self.session.view
        self.ledger = state.ledger
        self.jobs, self.open_jobs, self.running = state.jobs, state.open_jobs, state.running
        self.unacknowledged = state.unacknowledged

    @property
    def cluster(self) -> Cluster:
        """The servers."""
        return self.state.cluster

    @property
    def policy(self) -> Policy:
        """The scheduling policy."""
        return self.session.policy

    @property
    def capabilities(self) -> Capabilities:
        """The policy's declared capabilities."""
        return self.state.capabilities

    @property
    def slot(self) -> int:
        """First slot that can still be decided."""
        return self.state.slot

    @property
    def slot_running(self) -> int | None:
        """The slot that is running, None between two slots."""
        return self.state.slot_running

    @property
    def until(self) -> int | None:
        """End of the timespan T, None if it is open."""
        return self.state.until

    @property
    def lost(self) -> set[int]:
        """Rows of unavailable servers."""
        return self.state.lost

    @property
    def sequence(self) -> int:
        """Number of events handled."""
        return self.state.sequence

    def state_digest(self) -> str:
        """Return a digest that is the same for equal states; see `EngineState.state_digest`."""
        return self.state.state_digest()

    # ------------------------------------------------------------ events

    def handle(self, event: events.DriverEvent) -> list[events.Command]:
        """Apply an event; return the commands for the driver, which carries them out in order.

        Raises PolicyError if the policy's decision breaks a rule, and EventError if the event is
        out of order or names an unknown job or server.
        """
        staged = self._apply_tentatively(event, None)
        self._make_final(staged.entry)
        return staged.commands

    def apply(self, entry: Entry) -> list[events.Command]:
        """Apply an event with its recorded decisions, without querying the policy.

        Raises ShadowpriceError if the entry doesn't follow the last one, or doesn't fit the state.
        """
        if entry.sequence != self.sequence + 1:
            raise EventError(f"event {entry.sequence} does not follow event {self.sequence}")
        staged = self._apply_tentatively(entry.event, entry.consultations)
        self._make_final(staged.entry)
        return staged.commands

    def pass_quiet_slots(self, progress: Mapping[str, int], limit: int) -> int:
        """Pass up to ``limit`` quiet slots at once, and return how many.

        In a quiet slot no job starts, stops or completes, and the policy decides nothing. The
        result is the same as `SlotBegan` and `SlotEnded` of each slot with this progress. Within
        `atomic` no slots are passed, because they can't be rolled back.
        """
        slots = count_quiet_slots(self.state, progress, limit)
        if slots and self.capabilities.wakes_every_slot:
            slots = self.session.hold(progress, slots)  # the policy must agree to be left out
        if slots:
            pass_quiet_slots(self.state, progress, slots)
            self.last = Entry(  # as if every slot had its events
                self.sequence, events.SlotEnded(self.slot - 1, dict(progress), {}), ()
            )
        return slots

    @contextmanager
    def staged(self, event: events.DriverEvent) -> Iterator[StagedEvent]:
        """Decide on an event; commit it when the block ends, and roll it back if the block raises.

        A driver writes the entry to the journal within the block, so that no effect precedes its
        record.
        """
        staged = self._apply_tentatively(event, None)
        try:
            yield staged
        except BaseException:
            self._rollback()
            raise
        self._make_final(staged.entry)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Run a block atomically: if it raises, roll back all of its events. Nests as savepoints.

        The undo log grows with every change in the block, so keep blocks short.
        """
        state = self.state
        outer, state.enclosing_undo = state.enclosing_undo, (undo := Undo())
        try:
            yield
        except BaseException:
            undo.rollback()
            raise
        finally:
            state.enclosing_undo = outer
        if outer is not None and undo:
            outer.push(undo.rollback)

    def _apply_tentatively(
        self, event: events.DriverEvent, script: Sequence[Consultation] | None
    ) -> StagedEvent:
        """Apply an event, but keep its undo log; ``script`` replaces the policy's decisions."""
        state, session = self.state, self.session
        if state.undo:
            raise EventError("another event is staged; commit it or roll it back first")
        handler = HANDLERS.get(type(event))
        if handler is None:
            raise EventError(f"{event!r} is not an event")
        check_event(state, event)
        session.begin_event(script)
        state.begin_event()
        try:
            if event.slot > state.ledger.start:  # past the running slot, or past skipped ones
                state.advance(event.slot)
            commands = handler(state, session, event)
        except BaseException:
            self._rollback()
            raise
        finally:
            session.end_script()
        state.sequence += 1
        entry = Entry(state.sequence, event, tuple(session.consultations))
        return StagedEvent(entry, commands)

    def _make_final(self, entry: Entry) -> None:
        if self.state.enclosing_undo is not None:
            self.state.enclosing_undo.assign(self, "last", entry)
        else:
            self.last = entry
        # The policy first: a rollback runs in reverse, and a restored policy needs the old state.
        self.session.commit_event()
        self.state.commit_event()

    def _rollback(self) -> None:
        self.state.rollback_event()
        self.session.rollback_event()

    # ------------------------------------------------------------ quotes

    def quote(self, job: Job, *, explained: bool = False) -> Quote:
        """Return the decision that a job would get if it arrived next; no job or plan changes.

        The utility counts from the job's arrival slot, which may be in the past. If ``explained``,
        a refusal includes its reason. Raises ShadowpriceError if the policy gives no quotes, the
        job is already open, or it arrives in a future slot.
        """
        slot = self.slot
        policy = as_quoting_policy(self.policy)
        if policy is None:
            raise ShadowpriceError("this policy gives no quotes")
        if job.name in self.open_jobs:
            raise ShadowpriceError(f"job {job.name!r} has arrived already")
        if job.arrival > slot:
            raise ShadowpriceError(
                f"job {job.name!r} arrives in slot {job.arrival}; quotes are for slot {slot}"
            )
        refusal = job_events.refusal_without_policy(self.state, job)
        if refusal is not None:
            return Quote.of(events.Reject(job.name, refusal), slot)
        self.session.resync_if_stale()
        if slot > self.ledger.start:
            # While a slot runs, the ledger still begins with it, but quotes are for the next one.
            self.state.advance_for_query(slot)
        return policy.quote(self.view, job, explained=explained)

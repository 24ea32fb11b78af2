"""The policy of an engine: its queries, and saving and restoring its state."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shadowprice.core.errors import PolicyError
from shadowprice.core.events import Command, Decision, PolicyEvent
from shadowprice.core.policy import Policy, as_holding_policy, unwrap_policy
from shadowprice.engine.decisions import apply_decision
from shadowprice.engine.memory import SavedPolicyState, dump_policy_state, load_policy_state
from shadowprice.engine.pinning import is_pinned, may_pin, without_stops
from shadowprice.engine.records import decision_record
from shadowprice.engine.state import EngineState
from shadowprice.engine.view import EngineView

log = logging.getLogger("shadowprice.engine")

Consultation = tuple[Decision, ...]  # the policy's decisions on one event


class PolicySession:
    """The policy and its saved states; see `Engine` for ``keeps_memory``."""

    def __init__(self, policy: Policy, state: EngineState, *, keeps_memory: bool) -> None:
        self.policy = policy
        self.keeps_memory = keeps_memory
        self.view = EngineView(state)
        self.consultations: list[Consultation] = []  # of the event that is being handled
        self._state = state
        self._script: Iterator[Consultation] | None = None
        self.is_following = False
        """If true, replay also queries the policy, so that it learns again what it learnt.

        If a decision differs from the recorded one, this becomes False, and the policy resyncs.
        """
        self._saved: bytes | None = None
        self._last_dump: SavedPolicyState | None = None
        self._was_queried = False
        self._is_stale = False

    @property
    def is_replaying(self) -> bool:
        """True if recorded decisions replace the policy's."""
        return self._script is not None

    # ------------------------------------------------------------ queries

    def query(self, event: PolicyEvent) -> list[Command]:
        """Apply the policy's decisions on an event, or the recorded ones during replay."""
        state = self._state
        commands: list[Command] = []
        applied: list[Decision] = []
        if self._script is not None:
            recorded = next(self._script, ())
            if self.is_following:
                decisions: Iterable[Decision] = self._replay_decisions(event, recorded)
            else:
                state.undo.assign(self, "_is_stale", True)
                decisions = recorded
        else:
            self._was_queried = True
            decisions = self._policy_decisions(event)
        for decision in decisions:
            commands += apply_decision(state, decision)
            applied.append(decision)
        self.consultations.append(tuple(applied))
        return commands

    def hold(self, progress: Mapping[str, int], slots: int) -> int:
        """Return for how many of the next slots the policy decides nothing; see `HoldingPolicy`."""
        policy = as_holding_policy(self.policy)
        if policy is None:
            return 0
        self.begin_event(None)
        self._was_queried = True
        try:
            held = policy.hold(self.view, progress, slots)
            if type(held) is not int or not 0 <= held <= slots:
                raise PolicyError(f"the policy held {held!r} of {slots} slots")
        except BaseException:
            self.rollback_event()
            raise
        self.commit_event()
        return held

    def _policy_decisions(self, event: PolicyEvent) -> Iterable[Decision]:
        state, decisions = self._state, self.policy.decide(self.view, event)
        if may_pin(state) and any(is_pinned(state, name) for name in state.running):
            return without_stops(state, decisions, self._resume)
        return decisions

    def _replay_decisions(self, event: PolicyEvent, recorded: Consultation) -> Iterator[Decision]:
        """Yield the recorded decisions on an event, while the policy decides on it again."""
        names = self._state.cluster.names

        def decide() -> Iterator[Decision]:
            yield from self._policy_decisions(event)

        own = decide()
        for decision in recorded:
            if self.is_following:
                try:
                    repeated = next(own, None)
                    record = None if repeated is None else decision_record(repeated, names)
                    if record != decision_record(decision, names):
                        self._lose_track(f"{repeated!r} instead of {decision!r}")
                except Exception as error:  # whatever the policy raises, the record counts
                    self._lose_track(error)
            yield decision
        try:
            if self.is_following and next(own, None) is not None:
                self._lose_track("more decisions than recorded")
        except Exception as error:
            self._lose_track(error)

    def _lose_track(self, reason: object) -> None:
        log.info("resyncing the policy, which decided otherwise than recorded: %s", reason)
        self.is_following, self._is_stale = False, True

    def resync_in_event(self) -> None:
        """Resync the policy within an event that changes what its plans assume."""
        if self._script is not None and self.is_following:
            try:
                self._resume()
            except Exception as error:
                self._lose_track(error)
            return
        if self._script is not None:
            self._state.undo.assign(self, "_is_stale", True)
            return
        self._was_queried = True
        self._state.undo.assign(self, "_is_stale", False)
        self._resume()

    def _resume(self) -> None:
        unwrap_policy(self.policy).resume(self.view)

    # ------------------------------------------------------------ between two events

    def dump_state(self) -> bytes:
        """Return the pickled policy state; raise PolicyError if it can't be pickled."""
        self.resync_if_stale()
        if self._saved is None:
            self._saved = dump_policy_state(self.policy, self.view)
        if not self.keeps_memory:
            self._last_dump = SavedPolicyState.of(self._saved, self.view)
        return self._saved

    def load_state(self, memory: bytes) -> None:
        """Restore the policy state of this engine state; raises as `load_policy_state`."""
        self._state.ledger.raise_versions(self._state.sequence)
        load_policy_state(self.policy, memory, self.view)
        self._saved, self._is_stale = None, False
        if not self.keeps_memory:
            self._last_dump = SavedPolicyState.of(memory, self.view)

    def resync(self) -> None:
        """Resync the policy with the state, for example after events that it missed."""
        try:
            self.resync_in_event()
        except BaseException:
            # The policy's own state is undefined now: it resyncs before its next use.
            self._state.undo.rollback()
            self._was_queried, self._is_stale = False, True
            raise
        self.commit_event()
        self._state.undo.clear()

    def resync_if_stale(self) -> None:
        """Resync a policy that missed events."""
        if self._is_stale:
            self.resync()

    # ------------------------------------------------------------ events

    def begin_event(self, script: Sequence[Consultation] | None) -> None:
        """Prepare for an event; ``script`` has the recorded decisions to apply, if any."""
        self.consultations = []
        if script is not None:
            self._script = iter(script)
            return
        self.resync_if_stale()
        if self.keeps_memory and self._saved is None:  # now, because new jobs aren't open yet
            self._saved = dump_policy_state(self.policy, self.view)

    def end_script(self) -> None:
        """Query the policy again from now on."""
        self._script = None

    def commit_event(self) -> None:
        """Discard the saved policy state, or pass it to the enclosing unit of work."""
        if self._was_queried:
            if self._state.enclosing_undo is not None:
                self._state.enclosing_undo.push(self._restore, self._saved)
            self._saved, self._was_queried = None, False

    def rollback_event(self) -> None:
        """Restore the policy state from before the event, or mark the policy for a resync."""
        was_queried, self._was_queried = self._was_queried, False
        if was_queried:
            self._restore(self._saved)

    def _restore(self, memory: bytes | None) -> None:
        """Restore the policy state of this engine state, if it was saved."""
        self._saved = memory
        if memory is not None:
            load_policy_state(self.policy, memory, self.view)
            self._is_stale = False
        else:
            if self._last_dump is not None:
                self._last_dump.load(self.policy, self.view)
            self._is_stale = True  # the policy resyncs before its next use

"""The policy of an engine: its queries, and saving and restoring its state.

The state of a policy consists of its pickled attributes. Open jobs, the cluster, the view and the
ledger, which it shares with the engine, are pickled by reference. So the cost only grows with the
policy's own data. The state can be loaded into a clone of the engine, or in another process.
Unpickling is restricted to plain values, arrays, and classes of this package or the policy's
package. The meaning of the attributes depends on the source code, so stored policy state is
labelled with a digest of the sources (`sources`).
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.events import Command, Decision, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import Policy, as_holding_policy, unwrap_policy
from shadowprice.engine.decisions import apply_decision
from shadowprice.engine.records import decision_record
from shadowprice.engine.state import EngineState
from shadowprice.engine.unstoppable import is_unstoppable, may_have_unstoppable_jobs, without_stops
from shadowprice.engine.view import EngineView

log = logging.getLogger("shadowprice.engine")

_PLAIN: Final = frozenset(
    {("builtins", name) for name in ("bytearray", "complex", "frozenset", "range", "set", "slice")}
    | {("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")}
    | {
        ("array", "array"),
        ("array", "_array_reconstructor"),
        ("builtins", "getattr"),  # in the pickled form of bound methods
        ("copyreg", "_reconstructor"),
        ("fractions", "Fraction"),
        ("functools", "partial"),
        ("itertools", "count"),
    }
)
"""Classes and functions that policy state may contain besides numpy's and this package's."""

_STATE_PACKAGES: Final = ("cloning", "core", "engine", "kernels", "distributions", "policies")
"""Packages whose classes occur in policy state."""


@functools.cache
def sources() -> str:
    """Return a digest of the source code that the meaning of policy state depends on."""
    digest = hashlib.sha256()
    package = resources.files("shadowprice")
    for name in _STATE_PACKAGES:
        for path, entry in _modules(package / name, name):
            digest.update(f"{path}\0".encode())
            digest.update(hashlib.sha256(entry.read_bytes()).digest())
    return digest.hexdigest()[:16]  # 64 bits suffice to tell versions apart


def _modules(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _modules(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", entry


def dump_policy_state(policy: Policy, view: EngineView) -> bytes:
    """Return a policy's pickled state; raise PolicyError if an attribute can't be pickled."""
    stream = io.BytesIO()
    try:
        _Writer(stream, view).dump(vars(unwrap_policy(policy)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        name = type(unwrap_policy(policy)).__name__
        raise PolicyError(f"failed to pickle the state of policy {name}: {error}") from error
    return stream.getvalue()


@dataclass(frozen=True, slots=True)
class SavedPolicyState:
    """Policy state that can be restored after the engine's cluster and open jobs have changed."""

    pickled: bytes
    cluster: Cluster
    jobs: Mapping[str, Job]

    @classmethod
    def of(cls, pickled: bytes, view: EngineView) -> SavedPolicyState:
        """Return policy state with the cluster and the open jobs of the view."""
        jobs = {name: record.job for name, record in view.open_jobs.items()}
        return cls(pickled, view.cluster, jobs)

    def load(self, policy: Policy, view: EngineView) -> None:
        """Restore the policy state; if the ``view`` has changed since, the policy must resync."""
        target = unwrap_policy(policy)
        stream, module = io.BytesIO(self.pickled), type(target).__module__
        try:
            attributes = _Reader(stream, view, self.cluster, self.jobs, module).load()
        except (
            pickle.UnpicklingError, EOFError, KeyError, AttributeError, ImportError, TypeError,
        ) as error:  # fmt: skip  # classes may have changed since the state was pickled
            raise ShadowpriceError(f"failed to read the policy's state: {error}") from error
        vars(target).clear()
        vars(target).update(attributes)


def load_policy_state(policy: Policy, pickled: bytes, view: EngineView) -> None:
    """Replace a policy's state by the result of `dump_policy_state`, possibly from another process.

    The policy must have been built for the same cluster and with the same parameters. ``view`` must
    have all jobs that the policy state refers to. Raises ShadowpriceError if the policy state is
    damaged, of another version, or names jobs that aren't open.
    """
    SavedPolicyState.of(pickled, view).load(policy, view)


def copy_policy(policy: Policy, pickled: bytes, view: EngineView) -> Policy:
    """Return a new policy of the same class with this policy state."""
    copy: Policy = object.__new__(type(unwrap_policy(policy)))
    load_policy_state(copy, pickled, view)
    return copy


# Placeholders for shared objects. Pickle stores the names of these functions with an argument, and
# `_Reader` calls lookups of the shared objects instead.


def _job(name: str) -> Any:
    raise NotImplementedError(name)


def _shared(what: str) -> Any:
    raise NotImplementedError(what)


class _Writer(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, view: EngineView) -> None:
        super().__init__(stream, protocol=5)
        self._view = view
        self._cluster = view.cluster

    def reducer_override(self, value: object) -> Any:
        """Pickle shared objects by reference."""
        kind = type(value)
        if kind is Job:
            state = self._view.open_jobs.get(value.name)  # type: ignore[attr-defined]
            if state is not None and state.job is value:
                return _job, (state.job.name,)
        elif kind is Cluster:
            if value is self._cluster:
                return _shared, ("cluster",)
        elif kind is EngineView:
            return _shared, ("view",)
        elif kind is LedgerView:
            return _shared, ("ledger",)
        return NotImplemented


class _Reader(pickle.Unpickler):
    def __init__(
        self,
        stream: io.BytesIO,
        view: EngineView,
        cluster: Cluster,
        jobs: Mapping[str, Job],
        module: str,
    ) -> None:
        super().__init__(stream)
        self._view, self._cluster, self._jobs = view, cluster, jobs
        self._package = module.partition(".")[0]

    def find_class(self, module: str, name: str) -> Any:
        """Resolve only the classes that policy state may contain."""
        if module == __name__:
            shared = {
                "cluster": self._cluster,
                "view": self._view,
                "ledger": self._view.ledger,
            }
            return {"_job": self._jobs.__getitem__, "_shared": shared.__getitem__}[name]
        package = module.partition(".")[0]
        if package in {"shadowprice", "numpy", self._package} or (module, name) in _PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in policy state")


Consultation = tuple[Decision, ...]  # the policy's decisions on one event


class PolicySession:
    """The policy and its saved states; see `Engine` for ``saves_policy_state``.

    The policy is current, or stale: it missed events, and resyncs before its next use.

    - An event that queries the policy changes the policy state. `commit_event` keeps the change.
      `rollback_event` restores the state saved before the event. If none was saved, it restores the
      last dump, if any, and the policy is stale.
    - Replay applies recorded decisions without a query, so the policy becomes stale. If
      `is_following`, replay queries it too, and it stays current until a decision differs.
    - `load_state` and `resync` make the policy current.
    """

    def __init__(self, policy: Policy, state: EngineState, *, saves_policy_state: bool) -> None:
        self.policy = policy
        self.saves_policy_state = saves_policy_state
        self.view = EngineView(state)
        self.consultations: list[Consultation] = []  # of the event that is being handled
        self._state = state
        self._script: Iterator[Consultation] | None = None  # recorded decisions, during replay
        self.is_following = False
        """If true, replay also queries the policy, so that it learns again from the events.

        If a decision differs from the recorded one, this becomes False, and the policy resyncs.
        """
        self._saved: bytes | None = None  # pickled state before the next event, once it is needed
        self._last_dump: SavedPolicyState | None = None
        self._was_queried = False  # by the event that is being handled
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
        if may_have_unstoppable_jobs(state) and any(
            is_unstoppable(state, name) for name in state.running
        ):
            return without_stops(state, decisions, self._resume)
        return decisions

    def _replay_decisions(self, event: PolicyEvent, recorded: Consultation) -> Iterator[Decision]:
        """Yield the recorded decisions on an event, while the policy decides on it again."""
        names = self._state.cluster.names

        # A generator, so that errors of the query itself are raised by `next` too.
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
                except Exception as error:  # the recorded decisions apply in any case
                    self._lose_track(error)
            yield decision
        try:
            if self.is_following and next(own, None) is not None:
                self._lose_track("more decisions than recorded")
        except Exception as error:
            self._lose_track(error)

    def _lose_track(self, reason: object) -> None:
        log.info("resyncing the policy, because its decisions differ from the record: %s", reason)
        self.is_following, self._is_stale = False, True

    def resync_in_event(self) -> None:
        """Resync the policy within an event that changes a job, the servers or the timespan."""
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
        if not self.saves_policy_state:
            self._last_dump = SavedPolicyState.of(self._saved, self.view)
        return self._saved

    def save_for_rollback(self) -> None:
        """Save the policy state, so that a rollback restores exactly this state.

        Otherwise, a session that doesn't save before each event restores an earlier dump.
        """
        self.dump_state()

    def load_state(self, pickled: bytes) -> None:
        """Restore the policy state of this engine state; raises as `load_policy_state`."""
        # A later change must not get a version that the loaded state has already seen.
        self._state.ledger.raise_versions(self._state.sequence)
        load_policy_state(self.policy, pickled, self.view)
        self._saved, self._is_stale = None, False
        if not self.saves_policy_state:
            self._last_dump = SavedPolicyState.of(pickled, self.view)

    def resync(self) -> None:
        """Resync the policy with the state, for example after events that it missed."""
        try:
            self.resync_in_event()
        except BaseException:
            # The policy may have changed some of its attributes: it resyncs before its next use.
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
        # Before new jobs are open, so that the state only refers to jobs that a rollback keeps.
        if self.saves_policy_state and self._saved is None:
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

    def _restore(self, pickled: bytes | None) -> None:
        """Restore the policy state of this engine state, if it was saved."""
        self._saved = pickled
        if pickled is not None:
            load_policy_state(self.policy, pickled, self.view)
            self._is_stale = False
        else:
            if self._last_dump is not None:
                self._last_dump.load(self.policy, self.view)
            self._is_stale = True  # the policy resyncs before its next use

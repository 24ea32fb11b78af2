"""The engine together with its store: changes are durable before they are published.

`DurableEngine` is synchronous and belongs to one thread. `commit` performs operations in one
transaction of the database; its result may be published. An unexpected error can leave the engine
ahead of the store. Then the engine is discarded and recovered from the store.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import delete, func, select

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.engine.snapshot import StateCapture
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.billing import Billing
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.state.batch import Batch, Operation
from shadowprice.service.state.durable_state import (
    ClusterState,
    CommitResult,
    DurableState,
    StreamEvent,
)
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.operations import (
    SubmitJobs,
    leading_submissions,
    submit_in_one_event,
)
from shadowprice.service.state.prices import prices, prices_by_kind
from shadowprice.service.state.recovery import policy_fingerprint, put_policy, recover
from shadowprice.service.store import Store, tables

log = logging.getLogger("shadowprice.service")

SNAPSHOT_EVENTS: Final = 5_000  # maximum number of events between two snapshots
SNAPSHOT_INTERVAL_NS: Final = 600 * SECOND  # maximum time between two snapshots with events
SNAPSHOT_JOBS_PER_STEP: Final = 25  # jobs serialized in one step: about a millisecond
JOURNAL_DELETE_BATCH: Final = 1_000  # events that one transaction deletes after a snapshot
SMALL_POLICY_STATE_BYTES: Final = 64 << 10  # larger policy states aren't written with every batch
POLICY_STATE_INTERVAL_NS: Final = 5 * SECOND  # minimum time between two writes of a large state


class DurableEngine:
    """The durable state with its store, for the parameters of `recovery.recover`."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        choice: PolicyChoice,
        clock: MonotonicWallClock,
        **options: Any,
    ) -> None:
        self.store = store
        self._clock = clock
        self._choice = choice
        self._load = partial(recover, store, cluster, choice, clock, **options)
        self._replace_state(self._load())
        self.downtime_ns = clock.now() - self.state.last_at
        """Nanoseconds from the store's last change to this start, by the wall clock."""

    def recover(self) -> None:
        """Replace the state by the stored state, but keep the estimates learnt from reports."""
        state = self._load()
        state.keep_learnt(self.state)
        self._replace_state(state)

    def _replace_state(self, state: DurableState) -> None:
        self.state = state
        self._snapshot_at = self._policy_state_at = self._clock.physical()
        self._snapshotting: Iterator[None] | None = None  # a snapshot of the old engine is outdated
        self._policy_state_is_large = False
        self._prices_key: tuple[object, ...] | None = None
        self._cached_prices: Mapping[tuple[str, str], float] = {}

    def present_state(self) -> CommitResult:
        """Return the complete present state as the result of a commit."""
        return self._result(views=dict(self.state.views), specs=dict(self.state.specs))

    def _result(self, **changes: Any) -> CommitResult:
        """Return the present state, with ``changes``, as the result of a commit."""
        state, engine = self.state, self.state.engine
        names = engine.cluster.names
        servers = ClusterState(
            engine.cluster,
            frozenset(names[row] for row in engine.lost),
            frozenset(names[row] for row in engine.state.drained),
            frozenset(names[row] for row in engine.state.cordoned),
            state.calendar,
            engine.slot_running,
            state.next_slot,
            len(state.backlog),
            engine.until,
            state.end.at,
            state.start_ups,
            state.withheld,
        )
        return CommitResult(
            dict(state.desired),
            dict(engine.unacknowledged),
            servers,
            engine.sequence,
            dict(state.accounts),
            self._prices(),
            **changes,
        )

    def _prices(self) -> Mapping[tuple[str, str], float]:
        """Return the prices of the coming slot, which are only computed once a slot."""
        engine = self.state.engine
        key = (engine.slot, engine.slot_running, engine.ledger.capacity_version)
        if key != self._prices_key:
            self._prices_key = key
            try:
                result = prices(engine, self.state.calendar, self._choice.name, 1)
            except Exception:  # a policy from outside the package must not stop the service
                log.exception("failed to compute the prices of slot %d", engine.slot)
                self._cached_prices = {}
            else:
                self._cached_prices = prices_by_kind(result)
        return self._cached_prices

    def commit(self, operations: Sequence[Operation[Any]]) -> CommitResult:
        """Perform operations in one transaction, and return their answers.

        After an unexpected error, the state is recovered, and each operation is committed alone. An
        operation that fails again has its error as the answer. If the store fails, this raises, and
        the caller must call `recover` before the next commit.
        """
        try:
            return self._commit_together(operations)
        except BaseException as error:
            if not isinstance(error, Exception):
                raise  # the process is about to end
            log.warning("rolled back a batch of %d operations: %s", len(operations), error)
            self.recover()
            if isinstance(error, ShadowpriceError) and error.code == "storage":
                raise
            if len(operations) == 1:
                if not isinstance(error, ShadowpriceError | MemoryError):
                    log.exception("an operation failed")
                return self._result(answers=[error])
        # An operation met an unexpected error. Retry each alone, so that the others succeed.
        answers, events = list[Any](), list[StreamEvent]()
        views, specs = dict[str, JobView](), dict[str, Mapping[str, Any]]()
        for operation in operations:
            alone = self.commit([operation])
            answers += alone.answers
            views |= alone.views
            specs |= alone.specs
            events += alone.events
        return self._result(answers=answers, views=views, specs=specs, events=events)

    def _commit_together(self, operations: Sequence[Operation[Any]]) -> CommitResult:
        if self.state.mode_changed:
            self.write_snapshot()  # recovery replays a journal in the mode of its snapshot
        state, sequence, results = self.state, self.state.engine.sequence, list[Any]()
        with self.store.transaction() as connection:
            batch = Batch(state, connection)
            Billing(batch).start_due_periods()  # first, so that operations see present balances
            remaining = list(operations)
            while remaining:
                together = leading_submissions(remaining)
                if len(together) > 1:
                    answers = self._decide_together(batch, together)
                else:
                    answers = [self._attempt(batch, remaining[0])]
                results += answers
                del remaining[: len(answers)]
            batch.flush()
            if state.engine.sequence > sequence and (row := self.policy_state_row()):
                self.store.write(connection, delete(tables.policy_state))
                self.store.write(connection, tables.policy_state.insert(), [row])
        if not state.virtual:  # virtual jobs end as planned, so they teach nothing
            for view in batch.views.values():
                state.margins.follow(view)
                state.lengths.follow(view)
        for name in batch.closed:
            state.remove_job(name)
        state.engine.state.collect()
        for name in state.desired.keys() - state.engine.running.keys():
            del state.desired[name]  # the processes ended without a stop command
        return self._result(
            answers=results, views=batch.views, specs=batch.specs, events=batch.events
        )

    def _decide_together(self, batch: Batch, submits: Sequence[SubmitJobs]) -> list[Any]:
        """Decide submissions in one event; if that fails, each in its own event."""
        try:
            with batch.savepoint():
                return submit_in_one_event(batch, submits)
        except ShadowpriceError as error:
            if error.code == "storage":
                raise
            return [self._attempt(batch, submit) for submit in submits]

    @staticmethod
    def _attempt(batch: Batch, operation: Operation[Any]) -> Any:
        """Perform an operation atomically; return its answer, or its error as the answer."""
        try:
            with batch.savepoint():
                return operation.perform(batch)
        except ShadowpriceError as error:
            if error.code == "storage":
                raise
            if isinstance(error, PolicyError):
                log.error("the policy failed: %s", error)
            return error

    def snapshot_due(self) -> bool:
        """Return whether enough events or time passed since the last snapshot."""
        events = self.state.engine.sequence - self.state.snapshot_sequence
        if not events:
            return False
        is_late = self._clock.physical() - self._snapshot_at >= SNAPSHOT_INTERVAL_NS
        return is_late or events >= SNAPSHOT_EVENTS

    def write_snapshot(self) -> None:
        """Write a snapshot at once, and delete the journal entries that it replaces."""
        self._snapshotting = None  # an unfinished snapshot is outdated
        for _ in self._snapshot():
            pass

    @property
    def snapshotting(self) -> bool:
        """Whether a snapshot is under way."""
        return self._snapshotting is not None

    def write_snapshot_step(self, seconds: float) -> None:
        """Continue a snapshot, or start a new one, for about ``seconds``.

        Events may be handled between two calls: the snapshot holds the state that it captured
        first. If the process ends before the snapshot is complete, the previous snapshot and its
        journal remain. Raise `StoreError` if the snapshot can't be written.
        """
        until = time.perf_counter() + seconds
        if self._snapshotting is None:
            self._snapshotting = self._snapshot()
        try:
            for _ in self._snapshotting:
                if time.perf_counter() >= until:
                    return
        except BaseException:
            self._snapshotting = None
            raise
        self._snapshotting = None

    def _snapshot(self) -> Iterator[None]:
        """Write a snapshot in steps; each takes about a millisecond, or one transaction."""
        engine = self.state.engine
        # Only the steps that are due now: on a busy service, new changes could extend this forever.
        for _ in range(
            engine.state.update_digest(SNAPSHOT_JOBS_PER_STEP) // SNAPSHOT_JOBS_PER_STEP
        ):
            yield
            engine.state.update_digest(SNAPSHOT_JOBS_PER_STEP)
        now, captured = self._clock.now(), StateCapture(engine)
        yield
        packer = zlib.compressobj(1)
        packed = []
        for piece in captured.pieces(SNAPSHOT_JOBS_PER_STEP):
            packed.append(packer.compress(piece.encode()))
            yield
        state, sequence = b"".join((*packed, packer.flush())), captured.sequence
        table, journal = tables.snapshots, tables.journal
        with self.store.transaction() as connection:
            self.store.write(connection, delete(table).where(table.c.sequence == sequence))
            row = {"sequence": sequence, "at": now, "state": state}
            self.store.write(connection, table.insert(), [row])
            # Two snapshots remain: recovery falls back on the older if the newest is damaged.
            kept = connection.execute(
                select(table.c.sequence).order_by(table.c.sequence.desc()).limit(2)
            ).scalars()
            oldest = min(kept)
            self.store.write(connection, delete(table).where(table.c.sequence < oldest))
            put_policy(self.store, connection, self._choice, engine.policy)
            first = connection.execute(select(func.min(journal.c.sequence))).scalar()
        self.state.snapshot_sequence, self._snapshot_at = sequence, self._clock.physical()
        self.state.mode_changed = False
        # Entries up to the older snapshot aren't needed any more; without entries, none is deleted.
        for start in range(
            oldest + 1 if first is None else first, oldest + 1, JOURNAL_DELETE_BATCH
        ):
            yield
            last = min(start + JOURNAL_DELETE_BATCH - 1, oldest)
            with self.store.transaction() as connection:
                self.store.write(connection, delete(journal).where(journal.c.sequence <= last))

    def policy_state_row(self) -> Mapping[str, Any] | None:
        """Return the row of the policy state if its write is due, else None."""
        engine, now = self.state.engine, self._clock.physical()
        is_late = now - self._policy_state_at >= POLICY_STATE_INTERVAL_NS
        # A session that saves the state before each event has already paid for pickling it.
        if self._policy_state_is_large and not is_late and not engine.session.saves_policy_state:
            return None
        policy_state = engine.session.dump_state()
        self._policy_state_is_large = len(policy_state) > SMALL_POLICY_STATE_BYTES
        self._policy_state_at = now
        return {
            "id": 1,
            "sequence": engine.sequence,
            "policy": policy_fingerprint(self._choice),
            "memory": zlib.compress(policy_state, 1),
        }

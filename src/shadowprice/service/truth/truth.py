"""Engine and store together: what happens is written down, and only then takes effect.

`Truth` is synchronous and belongs to one thread. `commit` takes operations in, all in one
transaction; what it returns may be told to others. Where anything fails that no rule foresees, the
engine may be ahead of the store: it is thrown away, and read back from there.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import delete, func, select

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError, PolicyError, ShadowpriceError
from shadowprice.core.events import Resize, Start
from shadowprice.engine.engine import Engine
from shadowprice.engine.snapshot import Captured
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.accounts import Accounts
from shadowprice.service.clock import SECOND, Calendar, SteadyClock
from shadowprice.service.store import Store, tables
from shadowprice.service.truth.batch import Batch
from shadowprice.service.truth.margins import Margins
from shadowprice.service.truth.operations import Submit, submit_together, waiting_together
from shadowprice.service.truth.outcome import Operation, Outcome, Servers
from shadowprice.service.truth.recovery import Recovered, mark_of, put_policy, recover
from shadowprice.service.truth.restarts import Restarts
from shadowprice.service.truth.speeds import Speeds
from shadowprice.service.truth.start_ups import StartUps, read_start_ups
from shadowprice.service.truth.timespan import TimespanEnd, read_end
from shadowprice.service.truth.views import JobView

log = logging.getLogger("shadowprice.service")

SNAPSHOT_EVENTS: Final = 5_000
"""Events between two snapshots, at most."""

SNAPSHOT_NANOSECONDS: Final = 600 * SECOND
"""Time between two snapshots, at most, where anything happened."""

SNAPSHOT_STEP: Final = 25
"""Jobs that a step of a snapshot writes out: about a millisecond."""

JOURNAL_STEP: Final = 1_000
"""Events that a snapshot replaces, and that leave the journal in one transaction."""

SMALL_MEMORY: Final = 64 << 10
"""Bytes of a policy's memory that are written with every batch; more is written less often."""

MEMORY_NANOSECONDS: Final = 5 * SECOND
"""Time between two writings of a larger memory."""


class Truth:
    """The engine, what is known of its jobs beside it, and the store.

    Parameters
    ----------
    store : Store
        Open for writing.
    cluster : Cluster
        As the cluster file has it.
    choice : PolicyChoice
        Who decides.
    clock : SteadyClock
        The service's time.
    virtual : bool
        Whether nothing really runs: what is ordered counts as done.
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        choice: PolicyChoice,
        clock: SteadyClock,
        *,
        virtual: bool = False,
    ) -> None:
        self.store = store
        self.choice = choice
        self.clock = clock
        self.virtual = virtual
        self._file_cluster = cluster
        self.decided: Callable[[float], None] = lambda _: None
        self.speeds = Speeds()
        self.furthest: dict[str, tuple[int, int]] = {}
        self.restarts = Restarts(json.loads(store.get("restarts") or "{}"))
        self.recover()

    # ---------------------------------------------------------------- state

    def recover(self) -> None:
        """Read everything back from the store, or begin a new one.

        Raises
        ------
        StoreError
            If it cannot be read.
        InputError
            If it does not fit what the service was started with.
        """
        began = time.monotonic()
        found: Recovered = recover(
            self.store, self._file_cluster, self.choice, self.clock, virtual=self.virtual
        )
        self.engine: Engine = found.engine
        # A copy of what the policy knows before every event costs more than all else that is done.
        self.engine.keeps_memory = False
        self.calendar: Calendar = found.calendar
        self.views: dict[str, JobView] = found.views
        self.specs: dict[str, Mapping[str, Any]] = found.specs
        self.orders: dict[str, Start | Resize] = found.orders
        self.backlog: deque[str] = deque(found.pending)
        self.next_job: int = found.next_job
        self.next_told: int = found.next_told
        self.accounts: Accounts = found.accounts
        self.last_at: int = found.last_at
        self.end: TimespanEnd = read_end(self.store)
        self.start_ups: StartUps = read_start_ups(self.store)
        self.margins: Margins = found.margins
        self._snapshot_sequence: int = found.snapshot_sequence
        self._snapshot_at = self._memory_at = self.clock.now()
        self._snapshotting: Iterator[None] | None = None  # of an engine that is no more
        self._memory_is_large = False
        self.recovery_seconds = time.monotonic() - began
        self.recovered_events = found.replayed

    @property
    def coming(self) -> int:
        """The first slot that can still be decided now."""
        engine = self.engine
        if engine.slot_running is not None:
            return engine.slot
        following = max(engine.slot, self.calendar.slot_at(self.clock.now()) + 1)
        try:
            engine.check_skip(following)
        except EventError:
            return engine.slot  # it is late, and has to begin before anything else
        return following

    def outcome(self) -> Outcome:
        """Return all that is known now, as if all of it had just happened."""
        return self._published(Outcome(views=dict(self.views), specs=dict(self.specs)))

    def _published(self, outcome: Outcome) -> Outcome:
        """Let an outcome tell how things stand now."""
        engine, names = self.engine, self.engine.cluster.names
        outcome.running = dict(self.orders)
        outcome.unacknowledged = dict(engine.unacknowledged)
        outcome.sequence = engine.sequence
        outcome.servers = Servers(
            engine.cluster,
            frozenset(names[row] for row in engine.lost),
            frozenset(names[row] for row in engine.drained),
            self.calendar,
            engine.slot_running,
            self.coming,
            len(self.backlog),
            engine.until,
            self.end.at,
            self.start_ups,
        )
        outcome.accounts = self.accounts.shown()
        return outcome

    # ---------------------------------------------------------------- committing

    def commit(self, operations: Sequence[Operation]) -> Outcome:
        """Let operations happen, in order, in one transaction.

        Returns
        -------
        Outcome
            Its answers hold an error for each operation that could not be done.

        Raises
        ------
        StoreError
            If nothing could be written. The engine was read back, or has to be by `recover` if
            that could not be done either (`damaged`).
        """
        try:
            return self._commit(operations)
        except BaseException as error:
            self.damaged = True
            if not isinstance(error, Exception):
                raise  # the process is about to end
            log.warning("a batch of %d was taken back: %s", len(operations), error)
            self.recover()
            self.damaged = False
            if isinstance(error, ShadowpriceError) or len(operations) == 1:
                raise
            # One of them met an unforeseen error; the others are innocent.
        outcome = Outcome()
        for operation in operations:
            try:
                alone = self.commit([operation])
            except Exception as error:  # its caller is told
                outcome.answers.append(error)
                continue
            outcome.answers += alone.answers
            outcome.views |= alone.views
            outcome.specs |= alone.specs
            outcome.told += alone.told
        return self._published(outcome)

    damaged = False
    """Whether the engine is ahead of the store, and has to be read back."""

    def _commit(self, operations: Sequence[Operation]) -> Outcome:
        outcome = Outcome()
        with self.store.transaction() as connection:
            batch = Batch(self, connection)
            batch.billing.renew()
            left = list(operations)
            while left:
                together = waiting_together(left)
                if len(together) > 1:
                    answers = self._together(batch, together)
                else:
                    answers = [self._attempt(batch, left[0])]
                outcome.answers += answers
                del left[: len(answers)]
            batch.write()
        if not self.virtual:
            for view in batch.views.values():
                self.margins.follow(view)
        for name in batch.closed:
            self.views.pop(name, None)
            self.specs.pop(name, None)
            self.speeds.forget(name)
            self.furthest.pop(name, None)
            self.restarts.forget(name)
        self.engine.collect()
        for name in self.orders.keys() - self.engine.running.keys():
            del self.orders[name]  # its processes ended by themselves
        outcome.views, outcome.specs, outcome.told = batch.views, batch.specs, batch.told
        return self._published(outcome)

    def _together(self, batch: Batch, submits: Sequence[Submit]) -> list[Any]:
        """Let submissions that wait arrive in one event, or, where that fails, each in its own."""
        try:
            with batch.whole():
                return submit_together(batch, submits)
        except ShadowpriceError as error:
            if error.code == "storage":
                raise
            return [self._attempt(batch, one) for one in submits]

    @staticmethod
    def _attempt(batch: Batch, operation: Operation) -> Any:
        """Let an operation happen; return its answer, or the error that is its answer."""
        try:
            with batch.whole():
                return operation.perform(batch)
        except ShadowpriceError as error:
            if error.code == "storage":
                raise
            if isinstance(error, PolicyError):
                log.error("the policy failed: %s", error)
            return error

    # ---------------------------------------------------------------- keeping

    def snapshot_due(self) -> bool:
        """Whether enough happened since the last snapshot."""
        events = self.engine.sequence - self._snapshot_sequence
        if not events:
            return False
        late = self.clock.now() - self._snapshot_at >= SNAPSHOT_NANOSECONDS
        return late or events >= SNAPSHOT_EVENTS

    def write_snapshot(self) -> None:
        """Write the state down, so that a restart has little to replay; drop what it replaces.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        self._snapshotting = None  # of a moment that is over
        for _ in self._snapshot():
            pass

    @property
    def snapshotting(self) -> bool:
        """Whether a snapshot is under way."""
        return self._snapshotting is not None

    def snapshot_piece(self, seconds: float) -> None:
        """Go on with a snapshot, or begin one, for about so long; events may come in between.

        It is of the moment at which its state was taken, and is there once it is whole: whatever
        ends the process before leaves the snapshot before it, and the journal since.

        Raises
        ------
        StoreError
            If it cannot be written.
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
        """Write a snapshot, step by step; each takes about a millisecond, or one transaction."""
        # As many as are due now: were it all, it might never end where much happens meanwhile.
        for _ in range(self.engine.freshen_digest(SNAPSHOT_STEP) // SNAPSHOT_STEP):
            yield
            self.engine.freshen_digest(SNAPSHOT_STEP)
        now, taken = self.clock.now(), Captured(self.engine)
        yield
        packer = zlib.compressobj(1)
        packed = []
        for piece in taken.pieces(SNAPSHOT_STEP):
            packed.append(packer.compress(piece.encode()))
            yield
        state, sequence = b"".join((*packed, packer.flush())), taken.sequence
        table, journal = tables.snapshots, tables.journal
        with self.store.transaction() as connection:
            self.store.write(connection, delete(table).where(table.c.sequence == sequence))
            row = {"sequence": sequence, "at": now, "state": state}
            self.store.write(connection, table.insert(), [row])
            kept = connection.execute(
                select(table.c.sequence).order_by(table.c.sequence.desc()).limit(2)
            ).scalars()
            oldest = min(kept)
            self.store.write(connection, delete(table).where(table.c.sequence < oldest))
            put_policy(self.store, connection, self.choice, self.engine.policy)
            first = connection.execute(select(func.min(journal.c.sequence))).scalar()
        self._snapshot_sequence, self._snapshot_at = sequence, now
        for start in range(oldest + 1 if first is None else first, oldest + 1, JOURNAL_STEP):
            yield
            last = min(start + JOURNAL_STEP - 1, oldest)
            with self.store.transaction() as connection:
                self.store.write(connection, delete(journal).where(journal.c.sequence <= last))

    def memory_row(self, now: int) -> Mapping[str, Any] | None:
        """Return the policy's memory where it is time to write it."""
        late = now - self._memory_at >= MEMORY_NANOSECONDS
        if self._memory_is_large and not late and not self.engine.keeps_memory:
            return None
        memory = self.engine.policy_memory()
        self._memory_is_large = len(memory) > SMALL_MEMORY
        self._memory_at = now
        return {
            "id": 1,
            "sequence": self.engine.sequence,
            "policy": mark_of(self.choice),
            "memory": zlib.compress(memory, 1),
        }

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from sqlalchemy import Connection, bindparam, delete, select

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.events import (
    Charge,
    Command,
    Commit,
    Completed,
    Decided,
    Displaced,
    DriverEvent,
    Drop,
    Place,
    Promise,
    Queue,
    Reject,
    Resize,
    Start,
    Stop,
)
from shadowprice.engine.engine import Engine
from shadowprice.engine.journal import entry_line
from shadowprice.engine.records import placement_record
from shadowprice.engine.snapshot import snapshot
from shadowprice.engine.state import JobRecord
from shadowprice.service import reading
from shadowprice.service.clock import SECOND, Calendar, SteadyClock
from shadowprice.service.problems import ProblemError
from shadowprice.service.recovery import PolicyChoice, Recovered, recover
from shadowprice.service.store import Store, tables
from shadowprice.service.views import JobView, State, changes_of

log = logging.getLogger("shadowprice.service")

SNAPSHOT_EVENTS: Final = 5_000
"""Events between two snapshots, at most."""

SNAPSHOT_NANOSECONDS: Final = 600 * SECOND
"""Time between two snapshots, at most, where anything happened."""

SMALL_MEMORY: Final = 64 << 10
"""Bytes of a policy's memory that are written with every batch; more is written less often."""

MEMORY_NANOSECONDS: Final = 5 * SECOND
"""Time between two writings of a larger memory."""


class Operation(Protocol):
    """Something to be done, as a whole or not at all."""

    def perform(self, batch: Batch) -> Any:
        """Do it, and return what its caller is told.

        Raises
        ------
        ShadowpriceError
            If it cannot be done; nothing of it was then taken in.
        """
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """Something that readers are told: an entry of the event stream.

    Parameters
    ----------
    id : int
        Its number, from 1 on.
    at : int
        When, in nanoseconds since 1970.
    kind : str
        What happened.
    job, tenant : str or None
        Whom it is about.
    data : mapping
        What else there is to say.
    decision : bool
        Whether the policy decided it.
    """

    id: int
    at: int
    kind: str
    job: str | None
    tenant: str | None
    data: Mapping[str, Any]
    decision: bool = False


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers, and where in time the engine is.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    lost, drained : frozenset of str
        Those that are out, and those of them that were emptied on purpose.
    calendar : Calendar
        When slots are.
    slot_running : int or None
        The slot that runs.
    coming : int
        The first slot that can still be decided.
    backlog : int
        Jobs that wait to be decided on.
    """

    cluster: Cluster
    lost: frozenset[str]
    drained: frozenset[str]
    calendar: Calendar
    slot_running: int | None
    coming: int
    backlog: int


@dataclass(slots=True)
class Outcome:
    """What a batch came to.

    Parameters
    ----------
    answers : list
        By operation: what `Operation.perform` returned, or the error.
    views : dict of str to JobView
        Jobs that changed.
    told : list of Told
        What is new in the event stream.
    running : dict of str to Start or Resize
        The newest order of every job that is to run.
    unacknowledged : dict of int to Order
        Orders not acknowledged yet.
    servers : Servers or None
        What the servers are.
    sequence : int
        Number of the last event.
    """

    answers: list[Any] = field(default_factory=list)
    views: dict[str, JobView] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    running: Mapping[str, Start | Resize] = field(default_factory=dict)
    unacknowledged: Mapping[int, Start | Resize | Stop] = field(default_factory=dict)
    servers: Servers | None = None
    sequence: int = 0


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
        found: Recovered = recover(self.store, self._file_cluster, self.choice, self.clock)
        self.engine: Engine = found.engine
        self.engine.acknowledges = not self.virtual
        if self.virtual:
            self.engine.unacknowledged.clear()
        self.calendar: Calendar = found.calendar
        self.views: dict[str, JobView] = found.views
        self.specs: dict[str, Mapping[str, Any]] = found.specs
        self.orders: dict[str, Start | Resize] = found.orders
        self.backlog: deque[str] = deque(found.pending)
        self.next_job: int = found.next_job
        self.next_told: int = found.next_told
        self.last_at: int = found.last_at
        self._snapshot_sequence: int = found.snapshot_sequence
        self._snapshot_at = self._memory_at = self.clock.now()
        self.recovery_seconds = time.monotonic() - began
        self.recovered_events = found.replayed

    @property
    def coming(self) -> int:
        """The first slot that can still be decided now."""
        if self.engine.slot_running is not None:
            return self.engine.slot
        return max(self.engine.slot, self.calendar.slot_at(self.clock.now()) + 1)

    def outcome(self) -> Outcome:
        """Return all that is known now, as if all of it had just happened."""
        return self._published(Outcome(views=dict(self.views)))

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
        )
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
            outcome.told += alone.told
        return self._published(outcome)

    damaged = False
    """Whether the engine is ahead of the store, and has to be read back."""

    def _commit(self, operations: Sequence[Operation]) -> Outcome:
        outcome = Outcome()
        with self.store.transaction() as connection:
            batch = Batch(self, connection)
            for operation in operations:
                try:
                    outcome.answers.append(operation.perform(batch))
                except PolicyError as error:
                    log.error("the policy failed: %s", error)
                    outcome.answers.append(error)
                except ShadowpriceError as error:
                    if error.code == "storage":
                        raise
                    outcome.answers.append(error)
            batch.write()
        for name in batch.closed:
            self.views.pop(name, None)
            self.specs.pop(name, None)
            self.orders.pop(name, None)
        self.engine.collect()
        outcome.views, outcome.told = batch.views, batch.told
        return self._published(outcome)

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
        state = snapshot(self.engine)
        packed = zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 1)
        now, sequence = self.clock.now(), self.engine.sequence
        with self.store.transaction() as connection:
            table = tables.snapshots
            self.store.write(connection, delete(table).where(table.c.sequence == sequence))
            row = {"sequence": sequence, "at": now, "state": packed}
            self.store.write(connection, table.insert(), [row])
            kept = connection.execute(
                select(table.c.sequence).order_by(table.c.sequence.desc()).limit(2)
            ).scalars()
            oldest = min(kept)
            self.store.write(connection, delete(table).where(table.c.sequence < oldest))
            journal = tables.journal
            self.store.write(connection, delete(journal).where(journal.c.sequence <= oldest))
            self.store.put(connection, "policy", self.choice.label)
        self._snapshot_sequence, self._snapshot_at = sequence, now

    def memory_row(self, now: int) -> Mapping[str, Any] | None:
        """Return the policy's memory where it is time to write it."""
        memory = self.engine.policy_memory()
        late = now - self._memory_at >= MEMORY_NANOSECONDS
        if len(memory) > SMALL_MEMORY and not late and hasattr(self.engine.policy, "resume"):
            return None
        self._memory_at = now
        return {
            "id": 1,
            "sequence": self.engine.sequence,
            "policy": self.choice.label,
            "memory": zlib.compress(memory, 1),
        }


class Batch:
    """A transaction that is being put together.

    Parameters
    ----------
    truth : Truth
        Whose it is.
    connection : Connection
        The open transaction, to look things up.
    """

    def __init__(self, truth: Truth, connection: Connection) -> None:
        self.truth = truth
        self.connection = connection
        self.now = truth.clock.now()
        self.views: dict[str, JobView] = {}
        self.told: list[Told] = []
        self.closed: list[str] = []
        self._journal: list[dict[str, Any]] = []
        self._new: dict[str, dict[str, Any]] = {}
        self._commands: list[dict[str, Any]] = []
        self._generations: list[dict[str, Any]] = []
        self._statements: list[tuple[Any, Sequence[Mapping[str, Any]] | None]] = []
        self._before = truth.engine.sequence

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.truth.engine

    @property
    def calendar(self) -> Calendar:
        """When slots are."""
        return self.truth.calendar

    # ---------------------------------------------------------------- events

    def take(self, event: DriverEvent, *, counted: Iterable[str] = ()) -> list[Command]:
        """Let the engine take an event in, and note all that follows.

        Parameters
        ----------
        event : DriverEvent
            What happened.
        counted : iterable of str
            Jobs whose progress it changes, beside those that its commands speak of.

        Raises
        ------
        ShadowpriceError
            If the event is wrong, or the policy fails; nothing of it was taken in.
        """
        engine = self.engine
        began = time.perf_counter()
        try:
            with engine.staged(event) as staged:
                line = entry_line(staged.entry, engine.cluster.names)
        except ShadowpriceError:
            raise
        except Exception as error:
            # The engine took it back; a policy that raises is at fault, not the caller.
            raise PolicyError(f"{type(event).__name__}: {error!r}") from error
        self.truth.decided(time.perf_counter() - began)
        sequence = staged.entry.sequence
        self._journal.append({"sequence": sequence, "at": self.now, "entry": line})
        self.truth.last_at = self.now
        self._note(event, staged.commands, counted)
        return staged.commands

    def _note(
        self, event: DriverEvent, commands: Sequence[Command], counted: Iterable[str]
    ) -> None:
        touched: dict[str, None] = dict.fromkeys(counted)
        for job in getattr(event, "jobs", ()):
            touched[job.name] = None
        about = getattr(event, "job", None)
        if about is not None:
            touched[about if isinstance(about, str) else about.name] = None
        messages: dict[str, str] = {}
        for command in commands:
            if isinstance(command, Start | Resize | Stop):
                self._order(command)
                touched[command.job] = None
            elif isinstance(command, Decided):
                self._decision(command, messages)
                touched[command.decision.job] = None
            else:
                touched[command.job] = None
                if isinstance(command, Displaced):
                    messages.setdefault(command.job, command.reason)
                    self.tell("displaced", command.job, reason=command.reason)
                elif isinstance(command, Completed):
                    self._completed(command)
        for name in touched:
            record = self.engine.jobs.get(name)
            if record is not None and name in self.truth.views:
                self._refresh(record, messages.get(name, ""))

    def _decision(self, command: Decided, messages: dict[str, str]) -> None:
        decision = command.decision
        name = decision.job
        view = self.truth.views.get(name)
        if view is None:
            return
        match decision:
            case Commit(_, _, payoff, utility, cost):
                self.change(name, payoff=payoff, utility=utility, cost=cost, reason=None)
            case Promise():
                if decision.message:
                    messages[name] = decision.message
                if decision.completion is not None:
                    self.change(
                        name,
                        payoff=decision.payoff,
                        utility=decision.utility,
                        cost=decision.cost,
                        reason=None,
                    )
                else:
                    self.change(name, reason={"code": "standby", "message": decision.message})
            case Queue():
                reason = {"code": "standby", "message": decision.message or "waits its turn"}
                self.change(name, reason=reason)
                self.tell("standby", name, decision=True, message=reason["message"])
            case Reject() | Drop():
                kind = "refused" if isinstance(decision, Reject) else "given-up"
                self.tell(kind, name, decision=True, reason=decision.refusal.record())
            case Place():
                if view.state in {State.PENDING, State.STANDBY} and view.generation == 0:
                    self.change(name, reason=None)
                    self.tell("admitted", name, decision=True, promise=None)
            case Charge():
                self.tell(
                    "paid",
                    name,
                    decision=True,
                    slot=decision.slot,
                    payer=decision.payer,
                    payee=decision.payee,
                    amounts=dict(decision.amounts),
                )
            case _:
                pass

    def _order(self, command: Start | Resize | Stop) -> None:
        record: dict[str, Any] = {
            "slot": command.slot,
            "after": list(command.after),
            "frees": list(command.frees),
        }
        name, engine = command.job, self.engine
        if isinstance(command, Stop):
            record["finished"] = command.finished
            self.truth.orders.pop(name, None)
            if not command.finished:
                self.tell("stopped", name, slot=command.slot, generation=command.generation)
        else:
            record["on"] = on = placement_record(command.placement, engine.cluster.names)
            record["plan"] = command.plan
            self.truth.orders[name] = command
            kind = "started" if isinstance(command, Start) else "resized"
            self.tell(kind, name, slot=command.slot, generation=command.generation, placement=on)
            if self.truth.virtual:
                self._ran_at_once(command)
            self._generations.append(
                {
                    "job": name,
                    "generation": command.generation,
                    "ordered": self.now,
                    "placement": json.dumps(on),
                    "slot": command.slot,
                    "workers": command.placement.total_workers,
                    "ps": command.placement.total_ps,
                }
            )
        self._commands.append(
            {
                "id": command.id,
                "sequence": self.engine.sequence,
                "job": name,
                "generation": command.generation,
                "kind": type(command).__name__.lower(),
                "at": self.now,
                "record": json.dumps(record),
                "acknowledged": None,
            }
        )

    def _ran_at_once(self, command: Start | Resize) -> None:
        view = self.truth.views.get(command.job)
        if view is not None:
            at = self.calendar.begins(command.slot)
            first = at if view.first_start is None else view.first_start
            self.change(
                command.job, started=command.generation, running_since=at, first_start=first
            )

    def _completed(self, command: Completed) -> None:
        view = self.truth.views.get(command.job)
        if view is None:
            return
        kept = None if view.first_promise is None else command.slot <= view.first_promise
        self.change(command.job, utility=command.utility)
        self.tell("finished", command.job, slot=command.slot, utility=command.utility, kept=kept)

    def _refresh(self, record: JobRecord, message: str) -> None:
        name = record.job.name
        before = self.truth.views[name]
        changes = changes_of(self.engine, record, before, self.calendar, self.now)
        if not changes["state"].open:
            self.closed.append(name)
        elif changes["promise"] != before.promise:
            self._promised(name, before, changes, message)
        self.change(name, **changes)

    def _promised(
        self, name: str, before: JobView, changes: Mapping[str, Any], message: str
    ) -> None:
        promise, view = changes["promise"], self.truth.views[name]
        if before.promise is None and before.first_promise is None:
            self.tell(
                "admitted",
                name,
                decision=True,
                promise=promise,
                payoff=view.payoff,
                utility=view.utility,
                cost=view.cost,
            )
        else:
            kind = "broken" if promise is None else "moved"
            self.tell(
                kind,
                name,
                decision=True,
                promise=promise,
                before=before.promise,
                first=before.first_promise,
                reason=message,
            )

    # ---------------------------------------------------------------- rows

    def add(self, view: JobView, spec: Mapping[str, Any], content: str) -> None:
        """Note a job that was submitted."""
        self.truth.views[view.name] = self.views[view.name] = view
        self.truth.specs[view.name] = spec
        self._new[view.name] = {
            "id": view.id,
            "name": view.name,
            "tenant": view.tenant,
            "submitted": view.submitted,
            "spec": json.dumps(spec, ensure_ascii=False, separators=(",", ":")),
            "content": content,
            "token": None,
        }
        self.tell("submitted", view.name)

    def forget(self, name: str) -> None:
        """Take back what `add` noted of a job that the engine did not take in."""
        for known in (self.truth.views, self.truth.specs, self.views, self._new):
            known.pop(name, None)
        self.told = [told for told in self.told if told.job != name]

    def change(self, name: str, **changes: Any) -> JobView:
        """Let a job's view say something differently."""
        view = replace(self.truth.views[name], **changes)
        self.truth.views[name] = self.views[name] = view
        return view

    def revise(self, name: str, spec: Mapping[str, Any], content: str) -> None:
        """Note that a job's description is another now."""
        self.truth.specs[name] = spec
        table = tables.jobs
        values = {"spec": json.dumps(spec, ensure_ascii=False), "content": content}
        self.also(table.update().where(table.c.name == name).values(**values))

    def close(self, name: str, state: State, reason: Mapping[str, Any]) -> JobView:
        """Close a job that the engine never heard of."""
        self.closed.append(name)
        return self.change(name, state=state, reason=reason, closed=self.now)

    def tell(
        self, kind: str, job: str | None = None, *, decision: bool = False, **data: Any
    ) -> None:
        """Let readers know."""
        view = None if job is None else self.truth.views.get(job)
        tenant = data.pop("tenant", None) if view is None else view.tenant
        self.told.append(Told(self.truth.next_told, self.now, kind, job, tenant, data, decision))
        self.truth.next_told += 1

    def also(self, statement: Any, rows: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Write something else with the batch."""
        self._statements.append((statement, rows))

    def write(self) -> None:
        """Write everything that was noted."""
        store, connection = self.truth.store, self.connection
        store.write(connection, tables.journal.insert(), self._journal)
        self._write_jobs()
        store.write(connection, tables.commands.insert(), self._commands)
        store.write(connection, tables.generations.insert(), self._generations)
        store.write(
            connection,
            tables.events.insert(),
            [
                {
                    "id": told.id,
                    "at": told.at,
                    "kind": told.kind,
                    "decision": int(told.decision),
                    "job": told.job,
                    "tenant": told.tenant,
                    "data": json.dumps(told.data, ensure_ascii=False, separators=(",", ":")),
                }
                for told in self.told
            ],
        )
        for statement, rows in self._statements:
            store.write(connection, statement, rows)
        if self.engine.sequence > self._before:
            memory = self.truth.memory_row(self.now)
            if memory is not None:
                store.write(connection, delete(tables.memory))
                store.write(connection, tables.memory.insert(), [memory])

    def _write_jobs(self) -> None:
        fresh, known = [], []
        for name, view in self.views.items():
            values: dict[str, Any] = {
                "state": view.state.value,
                "open": int(view.state.open),
                "closed": view.closed,
                "view": view.stored(),
            }
            if name in self._new:
                fresh.append(self._new[name] | values)
            else:
                known.append({"key": view.id} | values)
        store, connection = self.truth.store, self.connection
        store.write(connection, tables.jobs.insert(), fresh)
        store.write(connection, _UPDATE_JOB, known)

    # ---------------------------------------------------------------- looking

    def stored(self, names: Sequence[str]) -> dict[str, tuple[JobView, str]]:
        """Return jobs that are known by these names, open or closed, with their content's hash.

        What this batch adds is among them.
        """
        found = {
            name: (self.truth.views[name], self._new[name]["content"])
            for name in names
            if name in self._new
        }
        for row in reading.jobs_by_name(self.connection, names):
            view = self.truth.views.get(row.name)
            if view is None:
                view = self.views.get(row.name) or JobView.of_store(row.view)
            found[row.name] = (view, row.content)
        return found

    def view(self, name: str) -> JobView:
        """Return a job's view, open or closed.

        Raises
        ------
        ProblemError
            If there is no such job.
        """
        view = self.truth.views.get(name)
        if view is None:
            known = self.stored([name])
            if name not in known:
                raise ProblemError("not-found", f"there is no job {name!r}")
            view = known[name][0]
        return view


_UPDATE_JOB: Final = (
    tables.jobs.update()
    .where(tables.jobs.c.id == bindparam("key"))
    .values(
        state=bindparam("state"),
        open=bindparam("open"),
        closed=bindparam("closed"),
        view=bindparam("view"),
    )
)

__all__ = ["Batch", "Operation", "Outcome", "Told", "Truth"]

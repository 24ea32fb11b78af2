"""A transaction that is being put together: events go in, rows come out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, bindparam, delete, select

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
    JobCancelled,
    Place,
    Promise,
    Queue,
    Reject,
    Resize,
    SlotEnded,
    Start,
    Stop,
)
from shadowprice.core.policy import Status
from shadowprice.engine.engine import Engine
from shadowprice.engine.journal import entry_line
from shadowprice.engine.records import placement_record
from shadowprice.engine.state import JobRecord
from shadowprice.engine.undo import Undo
from shadowprice.service.budgets.billing import Billing, CannotPayError
from shadowprice.service.clock import Calendar
from shadowprice.service.problems import ProblemError
from shadowprice.service.store import tables
from shadowprice.service.store.prepared import Prepared
from shadowprice.service.truth import reading
from shadowprice.service.truth.outcome import Told
from shadowprice.service.truth.views import JobView, State, changes_of

if TYPE_CHECKING:
    from shadowprice.service.truth.truth import Truth


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
        self.specs: dict[str, Mapping[str, Any]] = {}
        self.told: list[Told] = []
        self.closed: list[str] = []
        self._journal: list[dict[str, Any]] = []
        self._new: dict[str, dict[str, Any]] = {}
        self._commands: list[dict[str, Any]] = []
        self._generations: list[dict[str, Any]] = []
        self._over: list[dict[str, Any]] = []
        self._ended: dict[tuple[str, int], dict[str, Any]] = {}
        self._values: dict[str, str] = {}
        self._statements: list[tuple[Any, Sequence[Mapping[str, Any]] | None]] = []
        self._before = truth.engine.sequence
        self.undo = Undo()
        self.billing = Billing(self)

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.truth.engine

    @property
    def calendar(self) -> Calendar:
        """When slots are."""
        return self.truth.calendar

    # ---------------------------------------------------------------- all or nothing

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let a block happen as a whole: where it raises, nothing of it is left.

        Neither events that the engine took in meanwhile, nor what was noted, nor what the truth
        knows beside the engine. Blocks may be nested. What is changed within one either goes
        through the batch, which knows how to take it back, or comes after all that may raise.
        """
        truth, lists = self.truth, self._lists()
        lengths = [len(one) for one in lists]
        counted = truth.next_job, truth.next_told, truth.last_at, truth.calendar
        outer, self.undo = self.undo, (undo := Undo())
        try:
            with self.engine.whole():
                yield
        except BaseException:
            undo.roll_back()
            for one, length in zip(lists, lengths, strict=True):
                del one[length:]
            truth.next_job, truth.next_told, truth.last_at, truth.calendar = counted
            raise
        finally:
            self.undo = outer
        if undo:
            outer.push(undo.roll_back)

    def _lists(self) -> tuple[list[Any], ...]:
        """Return the lists that only grow while the batch is put together."""
        return (
            self.told,
            self.closed,
            self._journal,
            self._commands,
            self._generations,
            self._over,
            self._statements,
            self.billing.entries,
        )

    # ---------------------------------------------------------------- events

    def take(
        self, event: DriverEvent, *, counted: Iterable[str] = (), lost: bool = False
    ) -> list[Command]:
        """Let the engine take an event in, and note all that follows.

        A job that waits, and cannot be paid once the event gives it a price, is given up first.

        Parameters
        ----------
        event : DriverEvent
            What happened.
        counted : iterable of str
            Jobs whose progress it changes, beside those that its commands speak of.
        lost : bool
            Whether what it ends was lost through no fault of the job.

        Raises
        ------
        CannotPayError
            If jobs that arrive with it cannot be paid; nothing of it was taken in.
        ShadowpriceError
            If the event is wrong, or the policy fails; nothing of it was taken in.
        """
        try:
            return self._take(event, counted, lost=lost)
        except CannotPayError as error:
            waiting = [name for name in error.reasons if name in self.engine.open_jobs]
            if not waiting:
                raise
            reasons = error.reasons
        with self.whole():  # whoever waits is given up for an event that happens, or goes on
            for name in waiting:
                self._give_up(event, name, reasons[name])
            return self.take(event, counted=counted, lost=lost)

    def _give_up(self, event: DriverEvent, name: str, reason: Mapping[str, Any]) -> None:
        """Withdraw a job that waits, before an event that would price it beyond its tenant."""
        engine = self.engine
        admitted = engine.open_jobs[name].status is Status.ADMITTED  # it ran, without a promise
        slot = engine.slot if isinstance(event, SlotEnded) else event.slot
        self.take(JobCancelled(slot, name))
        self.tell("given-up" if admitted else "refused", name, decision=True, reason=dict(reason))
        self.change(name, state=State.FAILED if admitted else State.REFUSED, reason=reason)

    def _take(self, event: DriverEvent, counted: Iterable[str], *, lost: bool) -> list[Command]:
        engine = self.engine
        began = time.perf_counter()
        standing = self.billing.standing(event, lost=lost)
        with _blamed(type(event).__name__), engine.staged(event) as staged:
            self.billing.check(staged.commands)
            line = entry_line(staged.entry, engine.cluster.names)
        self.truth.decided(time.perf_counter() - began)
        sequence = staged.entry.sequence
        self._journal.append({"sequence": sequence, "at": self.now, "entry": line})
        self.truth.last_at = self.now
        self.billing.stood(standing)
        self._note(event, staged.commands, counted)
        return staged.commands

    def begin_policy_anew(self) -> None:
        """Let the policy begin anew on what it sees.

        Raises
        ------
        ShadowpriceError
            If it cannot, or fails.
        """
        with _blamed("beginning anew"):
            self.engine.begin_policy_anew()

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
                    if command.job in self.truth.views:
                        why = f"{command.reason}: it waits for a place"
                        self.change(command.job, reason={"code": "displaced", "message": why})
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
                self.billing.decided(decision)
                self.change(name, payoff=payoff, utility=utility, cost=cost, reason=None)
            case Promise():
                if decision.message:
                    messages[name] = decision.message
                if decision.completion is not None:
                    self.billing.decided(decision)
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
                    self.tell("placed", name, decision=True)
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
                self.billing.charged(decision)
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
            if name in self.truth.orders:
                self.undo.drop(self.truth.orders, name)
            self._over_at_once(command)
            if not command.finished:
                self.tell("stopped", name, slot=command.slot, generation=command.generation)
        else:
            record["on"] = on = placement_record(command.placement, engine.cluster.names)
            record["plan"] = command.plan
            self.undo.put(self.truth.orders, name, command)
            view = self.truth.views.get(name)
            if view is not None and view.reason and view.reason.get("code") == "displaced":
                self.change(name, reason=None)
            kind = "started" if isinstance(command, Start) else "resized"
            self.tell(kind, name, slot=command.slot, generation=command.generation, placement=on)
            begins = None
            if self.truth.virtual:
                self._over_at_once(command)
                self._ran_at_once(command)
                begins = self.calendar.begins(command.slot)
            self._generations.append(
                {
                    "job": name,
                    "generation": command.generation,
                    "ordered": self.now,
                    "started": begins,
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

    def _over_at_once(self, command: Start | Resize | Stop) -> None:
        """Where nothing really runs, an order ends the placement before it."""
        if not self.truth.virtual:
            return
        self._over.append({"of": command.job, "at": self.calendar.begins(command.slot)})

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
        told: dict[str, Any] = {"slot": command.slot, "utility": command.utility, "kept": kept}
        if not (self.truth.virtual or view.reports):
            told["reported"] = False  # it may have stood still: only its exit was seen
        self.tell("finished", command.job, **told)

    def _refresh(self, record: JobRecord, message: str) -> None:
        name = record.job.name
        before = self.truth.views[name]
        changes = changes_of(self.engine, record, before, self.calendar, self.now)
        if not changes["state"].open:
            self.closed.append(name)
            self.billing.settle(name)
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
        self._see(view)
        self._specify(view.name, spec)
        row = {
            "id": view.id,
            "name": view.name,
            "tenant": view.tenant,
            "submitted": view.submitted,
            "spec": json.dumps(spec, ensure_ascii=False, separators=(",", ":")),
            "content": content,
            "token": None,
        }
        self.undo.put(self._new, view.name, row)
        self.tell("submitted", view.name)

    def change(self, name: str, **changes: Any) -> JobView:
        """Let a job's view say something differently."""
        view = replace(self.truth.views[name], **changes)
        self._see(view)
        return view

    def _see(self, view: JobView) -> None:
        self.undo.put(self.truth.views, view.name, view)
        self.undo.put(self.views, view.name, view)

    def _specify(self, name: str, spec: Mapping[str, Any]) -> None:
        self.undo.put(self.truth.specs, name, spec)
        self.undo.put(self.specs, name, spec)

    def revise(self, name: str, spec: Mapping[str, Any], content: str) -> None:
        """Note that a job's description is another now."""
        self._specify(name, spec)
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

    def knows_end(self, name: str, generation: int) -> bool | None:
        """Whether the end of a generation is known, None where no such one was ever ordered."""
        if (name, generation) in self._ended:
            return True
        found = _END_OF.rows(self.connection, {"of": name, "which": generation}).first()
        return None if found is None else found.ended is not None

    def end(self, name: str, generation: int, at: int, code: int | None, reason: str) -> None:
        """Note that a generation ended."""
        row = {"of": name, "which": generation, "at": at, "code": code, "why": reason[:2_000]}
        self.undo.put(self._ended, (name, generation), row)

    def put(self, key: str, value: str) -> None:
        """Keep a value under a key, from when the batch is written."""
        self.undo.put(self._values, key, value)

    def also(self, statement: Any, rows: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Write something else with the batch."""
        self._statements.append((statement, rows))

    def write(self) -> None:
        """Write everything that was noted."""
        store, connection = self.truth.store, self.connection
        store.write(connection, _INSERT_JOURNAL, self._journal)
        self._write_jobs()
        self.billing.write()
        store.write(connection, _INSERT_COMMANDS, self._commands)
        store.write(connection, _INSERT_GENERATIONS, self._generations)
        store.write(connection, _END_GENERATIONS, self._over)
        store.write(connection, _END_GENERATION, list(self._ended.values()))
        store.write(
            connection,
            _INSERT_EVENTS,
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
        for key, value in self._values.items():
            store.put(connection, key, value)
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
        store.write(connection, _INSERT_JOBS, fresh)
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


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Let any other error than ours be the policy's: the engine took back what it was at."""
    try:
        yield
    except ShadowpriceError:
        raise
    except Exception as error:
        raise PolicyError(f"{what}: {error!r}") from error


_INSERT_JOURNAL: Final = Prepared(tables.journal.insert())
_INSERT_JOBS: Final = Prepared(tables.jobs.insert())
_INSERT_COMMANDS: Final = Prepared(tables.commands.insert())
_INSERT_GENERATIONS: Final = Prepared(tables.generations.insert())
_INSERT_EVENTS: Final = Prepared(tables.events.insert())

_UPDATE_JOB: Final = Prepared(
    tables.jobs.update()
    .where(tables.jobs.c.id == bindparam("key"))
    .values(
        state=bindparam("state"),
        open=bindparam("open"),
        closed=bindparam("closed"),
        view=bindparam("view"),
    )
)

_END_GENERATIONS: Final = Prepared(
    tables.generations.update()
    .where(
        tables.generations.c.job == bindparam("of"),
        tables.generations.c.ended.is_(None),
        tables.generations.c.started < bindparam("at"),
    )
    .values(ended=bindparam("at"))
)

_OF_GENERATION: Final = (tables.generations.c.job == bindparam("of")) & (
    tables.generations.c.generation == bindparam("which")
)

_END_OF: Final = Prepared(select(tables.generations.c.ended).where(_OF_GENERATION))

_END_GENERATION: Final = Prepared(
    tables.generations.update()
    .where(_OF_GENERATION)
    .values(ended=bindparam("at"), exit=bindparam("code"), reason=bindparam("why"))
)

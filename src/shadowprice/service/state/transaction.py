"""A unit of work: recorded changes, written in one transaction of the database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, bindparam, delete, select

from shadowprice.engine.engine import Engine
from shadowprice.engine.undo import Undo
from shadowprice.service.budgets.billing import Billing
from shadowprice.service.clock import SlotCalendar
from shadowprice.service.problems import ProblemError
from shadowprice.service.state import store_queries
from shadowprice.service.state.commit_result import StreamEvent
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.store import tables
from shadowprice.service.store.prepared_statement import PreparedStatement

if TYPE_CHECKING:
    from shadowprice.service.state.durable_engine import DurableEngine


class Transaction:
    """Changes of the state and rows to insert, until `write` flushes them.

    Changes of the state in memory take effect at once, and can be rolled back. Lookups read through
    ``connection``, on which the transaction is open.
    """

    def __init__(self, truth: DurableEngine, connection: Connection) -> None:
        self.truth = truth
        self.connection = connection
        self.now = truth.clock.now()
        self.views: dict[str, JobView] = {}
        self.specs: dict[str, Mapping[str, Any]] = {}
        self.events: list[StreamEvent] = []
        self.closed: list[str] = []
        self._journal: list[dict[str, Any]] = []
        self._new: dict[str, dict[str, Any]] = {}
        self._contents: dict[str, str] = {}
        """Hashes of the revised jobs."""
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
    def calendar(self) -> SlotCalendar:
        """The times of slots."""
        return self.truth.calendar

    # ---------------------------------------------------------------- savepoints

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Run a block atomically: if it raises, roll back every change. Nests as savepoints.

        The rollback covers events of the engine, recorded rows and the state beside the engine. So
        a block must change state through the batch, or only after everything that may raise.
        """
        truth, lists = self.truth, self._lists()
        lengths = [len(rows) for rows in lists]
        counters = truth.next_job, truth.next_event_id, truth.last_at, truth.calendar
        outer, self.undo = self.undo, (undo := Undo())
        try:
            with self.engine.atomic():
                yield
        except BaseException:
            undo.rollback()
            for rows, length in zip(lists, lengths, strict=True):
                del rows[length:]
            truth.next_job, truth.next_event_id, truth.last_at, truth.calendar = counters
            raise
        finally:
            self.undo = outer
        if undo:
            outer.push(undo.rollback)

    def _lists(self) -> tuple[list[Any], ...]:
        """Return the lists that only grow, so that truncation rolls them back."""
        return (
            self.events,
            self.closed,
            self._journal,
            self._commands,
            self._generations,
            self._over,
            self._statements,
            self.billing.entries,
        )

    # ---------------------------------------------------------------- recording

    def add(self, view: JobView, spec: Mapping[str, Any], content: str) -> None:
        """Record a submitted job; ``content`` is the hash of its submission."""
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
        """Change fields of a job's view, and return the new view."""
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
        """Replace a job's specification and content hash."""
        self._specify(name, spec)
        self.undo.put(self._contents, name, content)
        table = tables.jobs
        values = {"spec": json.dumps(spec, ensure_ascii=False), "content": content}
        self.also(table.update().where(table.c.name == name).values(**values))

    def close(self, name: str, state: State, reason: Mapping[str, Any]) -> JobView:
        """Close a job that never reached the engine."""
        self.closed.append(name)
        return self.change(name, state=state, reason=reason, closed=self.now)

    def tell(
        self, kind: str, job: str | None = None, *, decision: bool = False, **data: Any
    ) -> None:
        """Emit an event; ``decision`` marks decisions of the policy."""
        view = None if job is None else self.truth.views.get(job)
        tenant = data.pop("tenant", None) if view is None else view.tenant
        self.events.append(
            StreamEvent(self.truth.next_event_id, self.now, kind, job, tenant, data, decision)
        )
        self.truth.next_event_id += 1

    def is_end_recorded(self, name: str, generation: int) -> bool | None:
        """Return whether a generation's end is recorded; None if it was never commanded."""
        if (name, generation) in self._ended:
            return True
        row = _END_OF.rows(self.connection, {"of": name, "which": generation}).first()
        return None if row is None else row.ended is not None

    def end(self, name: str, generation: int, at: int, code: int | None, reason: str) -> None:
        """Record the end of a generation, with the exit status of the process that ended it."""
        row = {"of": name, "which": generation, "at": at, "code": code, "why": reason[:2_000]}
        self.undo.put(self._ended, (name, generation), row)

    def put(self, key: str, value: str) -> None:
        """Set a key of the store's key-value table when the batch is written."""
        self.undo.put(self._values, key, value)

    def also(self, statement: Any, rows: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Execute another statement when the batch is written."""
        self._statements.append((statement, rows))

    # ---------------------------------------------------------------- writing

    def write(self) -> None:
        """Write all recorded changes to the store."""
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
                    "id": event.id,
                    "at": event.at,
                    "kind": event.kind,
                    "decision": int(event.decision),
                    "job": event.job,
                    "tenant": event.tenant,
                    "data": json.dumps(event.data, ensure_ascii=False, separators=(",", ":")),
                }
                for event in self.events
            ],
        )
        for statement, rows in self._statements:
            store.write(connection, statement, rows)
        for key, value in self._values.items():
            store.put(connection, key, value)
        if self.engine.sequence > self._before:
            memory = self.truth.policy_state_row(self.now)
            if memory is not None:
                store.write(connection, delete(tables.memory))
                store.write(connection, tables.memory.insert(), [memory])

    def _write_jobs(self) -> None:
        fresh, existing = [], []
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
                existing.append({"key": view.id} | values)
        store, connection = self.truth.store, self.connection
        store.write(connection, _INSERT_JOBS, fresh)
        store.write(connection, _UPDATE_JOB, existing)

    # ---------------------------------------------------------------- lookups

    def stored(self, names: Sequence[str]) -> dict[str, tuple[JobView, str]]:
        """Return jobs by name, open or closed, with the hash of their content.

        Jobs that this batch adds are included.
        """
        jobs = {
            name: (self.truth.views[name], self._new[name]["content"])
            for name in names
            if name in self._new
        }
        for row in store_queries.jobs_by_name(self.connection, names):
            view = self.truth.views.get(row.name)
            if view is None:
                view = self.views.get(row.name) or JobView.from_json(row.view)
            jobs[row.name] = (view, row.content)
        for name in jobs.keys() & self._contents.keys():
            jobs[name] = (jobs[name][0], self._contents[name])
        return jobs

    def view(self, name: str) -> JobView:
        """Return a job's view, open or closed.

        Raises
        ------
        ProblemError
            If the job is unknown.
        """
        view = self.truth.views.get(name)
        if view is None:
            jobs = self.stored([name])
            if name not in jobs:
                raise ProblemError("not-found", f"unknown job {name!r}")
            view = jobs[name][0]
        return view


_INSERT_JOURNAL: Final = PreparedStatement(tables.journal.insert())
_INSERT_JOBS: Final = PreparedStatement(tables.jobs.insert())
_INSERT_COMMANDS: Final = PreparedStatement(tables.commands.insert())
_INSERT_GENERATIONS: Final = PreparedStatement(tables.generations.insert())
_INSERT_EVENTS: Final = PreparedStatement(tables.events.insert())

_UPDATE_JOB: Final = PreparedStatement(
    tables.jobs.update()
    .where(tables.jobs.c.id == bindparam("key"))
    .values(
        state=bindparam("state"),
        open=bindparam("open"),
        closed=bindparam("closed"),
        view=bindparam("view"),
    )
)

_END_GENERATIONS: Final = PreparedStatement(
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

_END_OF: Final = PreparedStatement(select(tables.generations.c.ended).where(_OF_GENERATION))

_END_GENERATION: Final = PreparedStatement(
    tables.generations.update()
    .where(_OF_GENERATION)
    .values(ended=bindparam("at"), exit=bindparam("code"), reason=bindparam("why"))
)

"""What is noted while operations happen, and written in one transaction of the database."""

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
from shadowprice.service.clock import Calendar
from shadowprice.service.problems import ProblemError
from shadowprice.service.store import tables
from shadowprice.service.store.prepared import Prepared
from shadowprice.service.truth import reading
from shadowprice.service.truth.outcome import Told
from shadowprice.service.truth.views import JobView, State

if TYPE_CHECKING:
    from shadowprice.service.truth.truth import Truth


class Transaction:
    """What is noted, and looked up, until all of it is written at once.

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

    # ---------------------------------------------------------------- what is noted

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

    # ---------------------------------------------------------------- what is written

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
                raise ProblemError("not-found", f"unknown job {name!r}")
            view = known[name][0]
        return view


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

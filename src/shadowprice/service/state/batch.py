"""A unit of work: recorded changes, written in one transaction of the database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Executable, bindparam, select

from shadowprice.core.events import Resize, Start, Stop
from shadowprice.core.job_keys import name_of_key, qualified_name
from shadowprice.engine.engine import Engine
from shadowprice.engine.state import Undo
from shadowprice.service.budgets.account_table import write_accounts, write_entries
from shadowprice.service.budgets.accounts import Account, AccountEntry
from shadowprice.service.clock import SlotCalendar
from shadowprice.service.problems import ProblemError
from shadowprice.service.state import store_queries
from shadowprice.service.state.durable_state import DurableState, StreamEvent
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.store_queries import StoredJob
from shadowprice.service.store import tables
from shadowprice.service.store.retention import has_purged_jobs

_MAX_REASON_LENGTH: Final = 2_000  # characters of the stored reason for a generation's end

P = ParamSpec("P")
Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


class Batch:
    """A unit of work: changes of the state and rows to insert, until `flush` writes them.

    Changes of the state in memory take effect at once, and can be rolled back. Lookups read through
    ``connection``, on which the transaction is open. Operations pass events to the engine by
    `engine_events.apply_event`.
    """

    def __init__(self, state: DurableState, connection: Connection) -> None:
        self.state = state
        self.connection = connection
        self.now = state.clock.now()
        self.views: dict[str, JobView] = {}  # changed ones, by key
        self.specs: dict[str, Mapping[str, Any]] = {}  # new and revised ones, by key
        self.events: list[StreamEvent] = []
        self.closed: list[str] = []  # keys of closed jobs
        self._rows: dict[Executable, list[dict[str, Any]]] = {
            statement: [] for statement in _IN_ORDER
        }
        self._new: dict[str, dict[str, Any]] = {}  # rows of added jobs, by key
        self._content_hashes: dict[str, str] = {}  # hashes of revised jobs, by key
        self._ended: dict[tuple[str, int], dict[str, Any]] = {}  # by job and generation
        self._entries: list[AccountEntry] = []
        self._changed_accounts: dict[str, None] = {}  # by tenant
        self._values: dict[str, str | Callable[[], str]] = {}  # of the key-value table
        self._statements: list[tuple[Any, Sequence[Mapping[str, Any]] | None]] = []
        self._has_purged_jobs: bool | None = None  # None until it is looked up
        self.undo = Undo()

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.state.engine

    @property
    def calendar(self) -> SlotCalendar:
        """The times of slots."""
        return self.state.calendar

    # ---------------------------------------------------------------- savepoints

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Run a block atomically: if it raises, roll back every change. Nests as savepoints.

        The rollback covers events of the engine, recorded rows, and changes of the state through
        the batch. Other changes aren't rolled back, so a block makes them after its last step that
        may raise.
        """
        state = self.state
        # These lists only grow, so that truncation rolls them back.
        lists: list[list[Any]] = [self.events, self.closed, self._entries, self._statements]
        lists += self._rows.values()
        lengths = [len(rows) for rows in lists]
        counters = state.next_job, state.next_event_id, state.last_at, state.calendar
        outer, self.undo = self.undo, (undo := Undo())
        try:
            with self.engine.atomic():
                yield
        except BaseException:
            undo.rollback()
            for rows, length in zip(lists, lengths, strict=True):
                del rows[length:]
            state.next_job, state.next_event_id, state.last_at, state.calendar = counters
            raise
        finally:
            self.undo = outer
        if undo:
            outer.push(undo.rollback)

    # ---------------------------------------------------------------- recording

    def insert_job(
        self, view: JobView, spec: Mapping[str, Any], content_hash: str, request: str | None = None
    ) -> None:
        """Record a submitted job, with the hashes of its submission's content and the request."""
        self._put_view(view)
        self._put_spec(view.key, spec)
        row = {
            "id": view.id,
            "key": view.key,
            "qualified_name": qualified_name(view.tenant, view.name),
            "name": view.name,
            "tenant": view.tenant,
            "submitted": view.submitted,
            "spec": json.dumps(spec, ensure_ascii=False, separators=(",", ":")),
            "content": content_hash,
            "request": request,
        }
        self.undo.put(self._new, view.key, row)
        self.emit("submitted", view.key)

    def update_view(self, key: str, **changes: Any) -> JobView:
        """Change fields of a job's view, and return the new view."""
        view = replace(self.state.views[key], **changes)
        self._put_view(view)
        return view

    def _put_view(self, view: JobView) -> None:
        self.undo.put(self.state.views, view.key, view)
        self.undo.put(self.views, view.key, view)

    def _put_spec(self, key: str, spec: Mapping[str, Any]) -> None:
        self.undo.put(self.state.specs, key, spec)
        self.undo.put(self.specs, key, spec)

    def update_spec(self, key: str, spec: Mapping[str, Any], content_hash: str) -> None:
        """Replace a job's specification and content hash."""
        self._put_spec(key, spec)
        self.undo.put(self._content_hashes, key, content_hash)
        table = tables.jobs
        values = {"spec": json.dumps(spec, ensure_ascii=False), "content": content_hash}
        self.execute_on_flush(table.update().where(table.c.key == key).values(**values))

    def mark_closed(self, key: str) -> None:
        """Remove a job from the state in memory after the commit."""
        self.closed.append(key)

    def close_job(self, key: str, state: State, reason: Mapping[str, Any]) -> JobView:
        """Close a job that never reached the engine."""
        self.mark_closed(key)
        return self.update_view(key, state=state, reason=reason, closed=self.now)

    def correct(self, view: JobView) -> None:
        """Replace the view of a closed job."""
        self.mark_closed(view.key)  # so that the state in memory drops the view after the commit
        self._put_view(view)

    def emit(
        self,
        kind: str,
        job: str | None = None,
        *,
        decision: bool = False,
        tenant: str | None = None,
        job_id: int | None = None,
        **data: Any,
    ) -> None:
        """Emit an event; ``tenant`` and ``job_id`` are of a job whose view isn't in memory."""
        view = None if job is None else self.state.views.get(job)
        if view is not None:
            tenant, job_id = view.tenant, view.id
        self.events.append(
            StreamEvent(
                self.state.next_event_id, self.now, kind, job, job_id, tenant, data, decision
            )
        )
        self.state.next_event_id += 1

    def append_journal(self, sequence: int, entry: str) -> None:
        """Append an event of the engine to the journal."""
        self._rows[_INSERT_JOURNAL].append({"sequence": sequence, "at": self.now, "entry": entry})
        self.state.last_at = self.now

    def insert_command(self, command: Start | Resize | Stop, record: Mapping[str, Any]) -> None:
        """Record a command of the engine's last event, with its details."""
        self._rows[_INSERT_COMMANDS].append(
            {
                "id": command.id,
                "sequence": self.engine.sequence,
                "job": command.job,
                "generation": command.generation,
                "kind": command.tag.lower(),
                "at": self.now,
                "record": json.dumps(record),
                "acknowledged": None,
            }
        )

    def insert_generation(
        self, command: Start | Resize, placement: Any, started: int | None
    ) -> None:
        """Record the generation that a command starts; ``started`` is None until it runs."""
        self._rows[_INSERT_GENERATIONS].append(
            {
                "job": command.job,
                "generation": command.generation,
                "ordered": self.now,
                "started": started,
                "placement": json.dumps(placement),
                "slot": command.slot,
                "workers": command.placement.total_workers,
                "ps": command.placement.total_ps,
            }
        )

    def end_generations(self, job: str, at: int) -> None:
        """Record the end of the generations of a job that started before a moment."""
        self._rows[_END_GENERATIONS].append({"of": job, "at": at})

    def is_end_recorded(self, key: str, generation: int) -> bool | None:
        """Return whether a generation's end is recorded; None if it was never commanded."""
        if (key, generation) in self._ended:
            return True
        row = self.connection.execute(_END_OF, {"of": key, "which": generation}).first()
        return None if row is None else row.ended is not None

    def record_generation_end(
        self, key: str, generation: int, at: int, code: int | None, reason: str
    ) -> None:
        """Record the end of a generation, with the exit status of the process that ended it."""
        why = reason[:_MAX_REASON_LENGTH]
        row = {"of": key, "which": generation, "at": at, "code": code, "why": why}
        self.undo.put(self._ended, (key, generation), row)

    def put_account(self, account: Account, entries: Sequence[AccountEntry] = ()) -> None:
        """Set or replace a tenant's account, and record the entries of the change."""
        self.undo.put(self.state.accounts, account.tenant, account)
        self.undo.put(self._changed_accounts, account.tenant, None)
        self._entries += entries

    def remove_account(self, tenant: str) -> None:
        """Remove a tenant's account; its entries are kept."""
        self.undo.drop(self.state.accounts, tenant)
        self.undo.put(self._changed_accounts, tenant, None)

    def set_value(self, key: str, value: str | Callable[[], str]) -> None:
        """Set a key of the key-value table on flush; a function is called then, once."""
        self.undo.put(self._values, key, value)

    def execute_on_flush(
        self, statement: Any, rows: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Execute another statement when the batch is written."""
        self._statements.append((statement, rows))

    # ---------------------------------------------------------------- writing

    def flush(self) -> None:
        """Write all recorded changes to the store."""
        store, connection = self.state.store, self.connection
        self._write_jobs()
        for prepared, values in self._rows.items():
            store.write(connection, prepared, values)
        store.write(connection, _END_GENERATION, list(self._ended.values()))
        rows = []
        for event in self.events:
            data = json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))
            rows.append(event._asdict() | {"decision": int(event.decision), "data": data})
        store.write(connection, _INSERT_EVENTS, rows)
        for statement, parameters in self._statements:
            store.write(connection, statement, parameters)
        for key, value in self._values.items():
            store.put(connection, key, value if isinstance(value, str) else value())
        write_entries(store, connection, self.state.accounts, self._entries, self.now)
        write_accounts(store, connection, self.state.accounts, list(self._changed_accounts))

    def _write_jobs(self) -> None:
        fresh, existing = [], []
        for key, view in self.views.items():
            values: dict[str, Any] = {
                "state": view.state.value,
                "open": int(view.state.open),
                "closed": view.closed,
                "view": view.stored(),
            }
            if key in self._new:
                fresh.append(self._new[key] | values)
            else:
                existing.append({"number": view.id} | values)
        store, connection = self.state.store, self.connection
        store.write(connection, _INSERT_JOBS, fresh)
        store.write(connection, _UPDATE_JOB, existing)

    # ---------------------------------------------------------------- lookups

    def find_jobs(self, keys: Sequence[str]) -> dict[str, StoredJob]:
        """Return jobs by key, open or closed, also those that this batch adds."""
        jobs = {key: self._added_job(key) for key in keys if key in self._new}
        return jobs | self._with_changes(store_queries.jobs_by_key(self.connection, keys))

    def newest_jobs(self, qualified_names: Sequence[str]) -> dict[str, StoredJob]:
        """Return the newest job of each qualified name, open or closed, also added ones."""
        stored = store_queries.newest_jobs(self.connection, qualified_names)
        return self._with_changes(stored) | self._added_jobs("qualified_name", qualified_names)

    def jobs_of_requests(self, requests: Sequence[str]) -> dict[str, StoredJob]:
        """Return the job of each request, open or closed, also those that this batch adds."""
        if not requests:
            return {}
        stored = store_queries.jobs_of_requests(self.connection, requests)
        return self._with_changes(stored) | self._added_jobs("request", requests)

    def _added_jobs(self, column: str, values: Sequence[str]) -> dict[str, StoredJob]:
        """Return the jobs that this batch adds, by a column's value; the newest of several."""
        wanted = set(values) if self._new else set()
        added = ((row[column], key) for key, row in self._new.items() if row[column] in wanted)
        return {value: self._added_job(key) for value, key in added}

    def _added_job(self, key: str) -> StoredJob:
        row = self._new[key]
        return StoredJob(
            self.views[key], self._content_hashes.get(key, row["content"]), row["request"]
        )

    def _with_changes(self, jobs: Mapping[str, StoredJob]) -> dict[str, StoredJob]:
        """Return stored jobs with the changes that aren't written yet."""
        changed = {}
        for value, (stored, content_hash, request) in jobs.items():
            key = stored.key
            view = self.state.views.get(key) or self.views.get(key) or stored
            changed[value] = StoredJob(view, self._content_hashes.get(key, content_hash), request)
        return changed

    def has_purged_jobs(self) -> bool:
        """Return whether jobs were ever purged from the store."""
        if self._has_purged_jobs is None:
            self._has_purged_jobs = has_purged_jobs(self.connection)
        return self._has_purged_jobs

    def get_view(self, key: str) -> JobView:
        """Return a job's view, open or closed; raise `ProblemError` if the job is unknown."""
        view = self.state.views.get(key)
        if view is None:
            jobs = self.find_jobs([key])
            if key not in jobs:
                raise ProblemError("not-found", f"unknown job {name_of_key(key)!r}")
            view = jobs[key].view
        return view


class Operation(Protocol[Answer_co]):
    """An atomic operation on the durable state; independent steps are savepoints."""

    def perform(self, batch: Batch) -> Answer_co:
        """Perform the operation, and return the answer for its caller.

        It records rows with the batch (`Batch.execute_on_flush`, `Batch.set_value`), which writes
        them later. A row that is written at once, to get its id, must be the last step. Raise
        `ShadowpriceError` if the operation fails. The caller rolls it back.
        """


@dataclass(frozen=True, slots=True)
class BoundOperation(Generic[Answer]):
    """An operation of a ``kind``, a function that `operation` decorates, with its arguments."""

    kind: Callable[..., BoundOperation[Answer]]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def perform(self, batch: Batch) -> Answer:
        """Call the function with a batch and the arguments."""
        function: Callable[..., Answer] = self.kind.__wrapped__  # type: ignore[attr-defined]  # of `wraps`
        return function(batch, *self.arguments, **self.options)

    def __str__(self) -> str:
        return f"{self.kind.__name__}{self.arguments}"


def operation(
    function: Callable[Concatenate[Batch, P], Answer],
) -> Callable[P, BoundOperation[Answer]]:
    """Make a function of a batch an operation: calls bind its other arguments."""

    @wraps(function)
    def bind(*arguments: P.args, **options: P.kwargs) -> BoundOperation[Answer]:
        return BoundOperation(bind, arguments, options)

    return bind


_INSERT_JOURNAL: Final = tables.journal.insert()
_INSERT_JOBS: Final = tables.jobs.insert()
_INSERT_COMMANDS: Final = tables.commands.insert()
_INSERT_GENERATIONS: Final = tables.generations.insert()
_INSERT_EVENTS: Final = tables.events.insert()

_UPDATE_JOB: Final = tables.jobs.update().where(tables.jobs.c.id == bindparam("number"))

_END_GENERATIONS: Final = (
    tables.generations.update()
    .where(
        tables.generations.c.job == bindparam("of"),
        tables.generations.c.ended.is_(None),
        tables.generations.c.started < bindparam("at"),
    )
    .values(ended=bindparam("at"))
)

_IN_ORDER: Final = (_INSERT_JOURNAL, _INSERT_COMMANDS, _INSERT_GENERATIONS, _END_GENERATIONS)
"""Statements in the order of `Batch.flush`: a generation is inserted before its end is set."""
_OF_GENERATION: Final = (tables.generations.c.job == bindparam("of")) & (
    tables.generations.c.generation == bindparam("which")
)
_END_OF: Final = select(tables.generations.c.ended).where(_OF_GENERATION)

_END_GENERATION: Final = (
    tables.generations.update()
    .where(_OF_GENERATION)
    .values(ended=bindparam("at"), exit=bindparam("code"), reason=bindparam("why"))
)

"""Operations that fail because their policy raises, and are repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from shadowprice.core.budget import POINT, Budget
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.events import ServerState
from shadowprice.core.job import MICRO
from shadowprice.core.policy import unwrap_policy
from shadowprice.executors.contract import Ended, Ending, Progressed, Started, StartRefused
from shadowprice.service.budgets.operations import put_tenant
from shadowprice.service.clock import SECOND
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.operations import (
    SubmitJobs,
    cancel_job,
    decide_backlog,
    revise_job,
    set_server_availability,
    update_servers,
)
from shadowprice.service.state.report_operations import (
    RecordProgress,
    RecordReports,
    acknowledge_commands,
)
from shadowprice.service.state.slot_operations import shift_slot_origin
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.state.timespan import set_timespan_end
from shadowprice.service.store import tables
from tests.support.engine_bench import EngineBench
from tests.support.simulated_hours import CLUSTER, SLOT

CHANGE = {"change_checkpoint": 1.0, "change_start": 2.0, "change_first_step": 3.0}


class PolicyFault:
    """Raises in a policy after its decisions are applied, or after it resumed.

    It patches the policy's class. Within an operation, the calls from ``first`` (from 1 on) raise,
    ``times`` in a row. ``calls`` counts them.
    """

    def __init__(
        self, policy: Any, patch: pytest.MonkeyPatch, first: int = 10**9, times: int = 1
    ) -> None:
        self.first, self.times = first, times
        self.active, self.calls = False, 0
        kind: Any = type(unwrap_policy(policy))
        decide, resume = kind.decide, getattr(kind, "resume", None)

        def is_due() -> bool:
            self.calls += self.active
            return self.active and 0 <= self.calls - self.first < self.times

        def failing_decide(policy: Any, view: Any, event: Any) -> Iterator[Any]:
            due = is_due()
            yield from decide(policy, view, event)
            if due:
                raise ZeroDivisionError("a passing bug")

        def failing_resume(policy: Any, view: Any) -> None:
            due = is_due()
            resume(policy, view)
            if due:
                raise ZeroDivisionError("a passing bug")

        patch.setattr(kind, "decide", failing_decide)
        if resume is not None:
            patch.setattr(kind, "resume", failing_resume)


class FaultyOperation:
    """An operation in which the policy may raise. It fails if it writes before its batch does."""

    def __init__(self, operation: Any, policy_fault: PolicyFault) -> None:
        self.operation, self.policy_fault = operation, policy_fault

    def perform(self, batch: Batch) -> Any:
        store, before = batch.state.store, batch.state.store.fault

        def fail(point: str) -> None:
            raise AssertionError(f"{point} before the batch is written")

        self.policy_fault.active, store.fault = True, fail
        try:
            return self.operation.perform(batch)
        finally:
            self.policy_fault.active, store.fault = False, before


def describe_state(bench: EngineBench) -> dict[str, Any]:
    """Return the state in memory and in the store, without the policy's own state.

    Events have their positions instead of their numbers, which skip at every start.
    """
    durable = bench.durable
    kept: dict[str, Any] = {
        "digest": durable.state.engine.state_digest(),
        "sequence": durable.state.engine.sequence,
        "numbers": (durable.state.engine.state.commands, durable.state.next_job),
        "running": dict(durable.state.engine.running),
        "reserved": durable.state.engine.ledger.used.tolist(),
        "unacknowledged": dict(durable.state.engine.unacknowledged),
        "views": dict(durable.state.views),
        "specs": dict(durable.state.specs),
        "orders": dict(durable.state.desired),
        "backlog": sorted(name for name in durable.state.backlog if name in durable.state.views),
        "accounts": (dict(durable.state.accounts), durable.state.accounts.next_entry),
        "calendar": durable.state.calendar,
        "restarts": durable.state.restarts.record(),
    }
    with bench.store.reading() as connection:
        for table in tables.metadata.sorted_tables:
            if table.name not in {tables.policy_state.name, tables.snapshots.name}:
                rows = connection.execute(select(table).order_by(*table.primary_key.columns))
                kept[f"table {table.name}"] = [tuple(row) for row in rows]
    events = kept[f"table {tables.events.name}"]
    assert all(event[0] < durable.state.next_event_id for event in events)
    kept[f"table {tables.events.name}"] = [
        (index, *event[1:]) for index, event in enumerate(events)
    ]
    return kept


def job_submission(*names: str, at_once: bool = True, **changes: Any) -> SubmitJobs:
    records = [
        {
            "name": name,
            "chunks": 2,
            "minibatches": 60,
            "minibatch_time": "6s",
            "worker": {"gpu": 1, "cpu": 1},
            "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "20 slots"},
            "run": {"command": ["train"], "retries": 0},
            **changes,
        }
        for name in names
    ]
    return SubmitJobs(read_submissions(records, CLUSTER, tenant=None, runs=True), at_once=at_once)


def end_report(bench: EngineBench, name: str, ending: Ending) -> Ended:
    order, at = bench.durable.state.desired[name], bench.clock.wall() / SECOND
    code = 0 if ending is Ending.DONE else 1
    return Ended(0, name, order.generation, at, ending, code, "why", ("last line",))


def progress_operation(bench: EngineBench) -> RecordProgress:
    generation, at = (
        bench.durable.state.desired["one"].generation,
        bench.clock.wall() / SECOND,
    )
    report = Progressed("one", generation, 3 * MICRO, CHANGE, at)
    return RecordProgress({"one": report}, [report])


def server_state(drained: bool) -> ServerState:
    amounts = dict(zip(CLUSTER.resources, CLUSTER.capacity[0].tolist(), strict=True))
    return ServerState(CLUSTER.roles[0], amounts, drained=drained)


def first_server(bench: EngineBench, name: str) -> str:
    return bench.durable.state.desired[name].servers[0]


OPERATIONS: dict[str, Callable[[EngineBench], Any]] = {
    "submit": lambda _: job_submission("new"),
    "submit several": lambda _: job_submission("new", "newer"),
    "accept": lambda _: job_submission("new", at_once=False),
    "decide": lambda _: decide_backlog(8),
    "cancel": lambda _: cancel_job("one"),
    "cancel in the backlog": lambda _: cancel_job("accepted"),
    "revise": lambda _: revise_job("one", {"minibatches": 90}),
    "drain": lambda bench: update_servers(
        {first_server(bench, "one"): server_state(True)}, "drain"
    ),
    "lose a server": lambda bench: set_server_availability(first_server(bench, "one")),
    "a tenant": lambda _: put_tenant("vision", {"gpu": 1}, Budget(POINT, 86_400), budgeted=True),
    "done": lambda bench: RecordReports([end_report(bench, "one", Ending.DONE)]),
    "failed": lambda bench: RecordReports([end_report(bench, "one", Ending.FAILED)]),
    "lost": lambda bench: RecordReports([end_report(bench, "one", Ending.LOST)]),
    "refused": lambda bench: RecordReports(
        [
            StartRefused(
                1,
                "one",
                bench.durable.state.desired["one"].generation,
                0.0,
                "no such image",
            )
        ]
    ),
    "started": lambda bench: RecordReports(
        [
            Started(
                2,
                "two",
                bench.durable.state.desired["two"].generation,
                bench.clock.wall() / SECOND,
            )
        ]
    ),
    "acknowledge": lambda bench: acknowledge_commands(
        list(bench.durable.state.engine.unacknowledged)
    ),
    "progress": progress_operation,
    "move the origin": lambda _: shift_slot_origin(5 * SECOND, "the clock was set"),
    "set an end": lambda bench: set_timespan_end(bench.clock.wall() + 2 * SLOT * SECOND),
}


WITHOUT_DECISION = {
    "lost",
    "accept",
    "cancel in the backlog",
    "started",
    "acknowledge",
    "progress",
    "move the origin",
}
"""Operations that don't call the policy; they show that the store holds the state in memory."""


def open_bench(where: Path | str, policy: str) -> EngineBench:
    """Return an engine with running jobs, one in the backlog, and commands that are not done."""
    bench = EngineBench(where, policy)
    for submit in (job_submission("one", "two"), job_submission("accepted", at_once=False)):
        bench.commit(submit)
    bench.advance()
    bench.report_start("one")
    bench.clock.advance(SLOT // 4)
    return bench


def is_refused(answer: Any) -> bool:
    """Return whether an operation failed, or left a report out."""
    return isinstance(answer, ShadowpriceError) or (isinstance(answer, tuple) and bool(answer))


def retry_failed_operation(
    folders: Iterator[Path | str],
    policy: str,
    operation: str,
    patch: pytest.MonkeyPatch,
    *,
    restart: bool,
) -> int:
    """Fail an operation at each call of the policy, and repeat it; return the number of calls.

    Each attempt opens a store in the next of ``folders``. ``restart`` recovers the engine between
    the failure and the repetition.
    """
    expected, calls = _perform_without_fault(next(folders), policy, operation, patch)
    for call in range(1, calls + 1):
        bench = open_bench(next(folders), policy)
        before = describe_state(bench)
        policy_fault = PolicyFault(bench.durable.state.engine.policy, patch, call)
        performed = OPERATIONS[operation](bench)
        outcome = bench.durable.commit([FaultyOperation(performed, policy_fault)])
        if operation == "decide":  # the engine retries by itself
            assert outcome.answers == [0]
        else:
            assert is_refused(outcome.answers[0])
            assert describe_state(bench) == before
            assert (outcome.views, outcome.specs, outcome.events) == ({}, {}, [])
            if restart:
                bench.recover()
                assert describe_state(bench) == before
            [answer] = bench.durable.commit([performed]).answers
            assert not is_refused(answer)
            assert describe_state(bench) == expected
        bench.store.close()
    return calls


def _perform_without_fault(
    folder: Path | str, policy: str, operation: str, patch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], int]:
    """Perform an operation; return the state afterwards, and the calls of the policy."""
    bench = open_bench(folder, policy)
    policy_fault = PolicyFault(bench.durable.state.engine.policy, patch)
    performed = FaultyOperation(OPERATIONS[operation](bench), policy_fault)
    [answer] = bench.durable.commit([performed]).answers
    assert not is_refused(answer), answer
    state = describe_state(bench)
    bench.recover()
    assert describe_state(bench) == state
    bench.store.close()
    return state, policy_fault.calls

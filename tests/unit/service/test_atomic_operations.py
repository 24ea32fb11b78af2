"""An operation is done as a whole or not at all, wherever in it the policy raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from shadowprice.core.budget import POINT, Budget
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.events import ServerState
from shadowprice.core.job import MICRO
from shadowprice.core.policy import unwrap_policy
from shadowprice.executors.contract import Ended, Ending, Progressed, Started, StartRefused
from shadowprice.service.budgets.billing import Billing
from shadowprice.service.budgets.operations import PutTenant
from shadowprice.service.clock import SECOND
from shadowprice.service.metrics import Metrics
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.job_views import State
from shadowprice.service.state.operations import (
    CancelJob,
    DecideBacklog,
    ResubmitJob,
    ReviseJob,
    SetServerAvailability,
    SubmitJobs,
    UpdateServers,
)
from shadowprice.service.state.report_operations import (
    AcknowledgeCommands,
    RecordProgress,
    RecordReports,
)
from shadowprice.service.state.slot_operations import AdvanceSlots, ShiftSlotOrigin
from shadowprice.service.state.submission import Submission, read_submissions
from shadowprice.service.state.timespan import ChangeTimespan
from shadowprice.service.store import tables
from shadowprice.service.writer import Writer
from tests.support.simulated_hours import CLUSTER, SLOT
from tests.unit.service.test_billing import Till, priced
from tests.unit.service.test_durable_engine import Bench

CHANGE = {"change_checkpoint": 1.0, "change_start": 2.0, "change_first_step": 3.0}


class Stumble:
    """Lets a policy raise, once all that it decides was put into effect, or it began anew.

    Parameters
    ----------
    policy : Policy
        Its class is patched.
    at : int
        The time, from 1 on, that it is asked within an operation and raises.
    times : int
        How many times in a row it does.
    """

    def __init__(
        self, policy: Any, patch: pytest.MonkeyPatch, at: int = 10**9, times: int = 1
    ) -> None:
        self.at, self.times = at, times
        self.armed, self.asked = False, 0
        kind: Any = type(unwrap_policy(policy))
        decide, resume = kind.decide, getattr(kind, "resume", None)

        def falls() -> bool:
            self.asked += self.armed
            return self.armed and 0 <= self.asked - self.at < self.times

        def stumbling(policy: Any, view: Any, event: Any) -> Iterator[Any]:
            fallen = falls()
            yield from decide(policy, view, event)
            if fallen:
                raise ZeroDivisionError("a passing bug")

        def stumbling_anew(policy: Any, view: Any) -> None:
            fallen = falls()
            resume(policy, view)
            if fallen:
                raise ZeroDivisionError("a passing bug")

        patch.setattr(kind, "decide", stumbling)
        if resume is not None:
            patch.setattr(kind, "resume", stumbling_anew)


class Armed:
    """An operation in which the policy may raise, and which writes nothing by itself."""

    def __init__(self, operation: Any, stumble: Stumble) -> None:
        self.operation, self.stumble = operation, stumble

    def perform(self, batch: Batch) -> Any:
        store, before = batch.state.store, batch.state.store.fault

        def fault(point: str) -> None:
            raise AssertionError(f"{point} before the batch is written")

        self.stumble.armed, store.fault = True, fault
        try:
            return self.operation.perform(batch)
        finally:
            self.stumble.armed, store.fault = False, before


def picture(bench: Bench) -> dict[str, Any]:
    """Return all that a truth knows and keeps, but for what a policy remembers by itself.

    Events have their places in order instead of their numbers, which skip at every start.
    """
    truth = bench.truth
    kept: dict[str, Any] = {
        "digest": truth.state.engine.state_digest(),
        "sequence": truth.state.engine.sequence,
        "numbers": (truth.state.engine.state.commands, truth.state.next_job),
        "running": dict(truth.state.engine.running),
        "reserved": truth.state.engine.ledger.used.tolist(),
        "unacknowledged": dict(truth.state.engine.unacknowledged),
        "views": dict(truth.state.views),
        "specs": dict(truth.state.specs),
        "orders": dict(truth.state.orders),
        "backlog": [name for name in truth.state.backlog if name in truth.state.views],
        "accounts": (dict(truth.state.accounts.snapshot()), truth.state.accounts.next_entry),
        "calendar": truth.state.calendar,
        "restarts": truth.state.restarts.record(),
    }
    with bench.store.reading() as connection:
        for table in tables.metadata.sorted_tables:
            if table.name not in {tables.memory.name, tables.snapshots.name}:
                rows = connection.execute(select(table).order_by(*table.primary_key.columns))
                kept[f"table {table.name}"] = [tuple(row) for row in rows]
    events = kept[f"table {tables.events.name}"]
    assert all(event[0] < truth.state.next_event_id for event in events)
    kept[f"table {tables.events.name}"] = [
        (index, *event[1:]) for index, event in enumerate(events)
    ]
    return kept


def _submission(*names: str, at_once: bool = True, **changes: Any) -> SubmitJobs:
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


def _ended(bench: Bench, name: str, ending: Ending) -> Ended:
    order, at = bench.truth.state.orders[name], bench.clock.wall() / SECOND
    code = 0 if ending is Ending.DONE else 1
    return Ended(0, name, order.generation, at, ending, code, "why", ("last line",))


def _progress(bench: Bench) -> RecordProgress:
    generation, at = bench.truth.state.orders["one"].generation, bench.clock.wall() / SECOND
    told = Progressed("one", generation, 3 * MICRO, CHANGE, at)
    return RecordProgress({"one": told}, [told])


def _state(drained: bool) -> ServerState:
    amounts = dict(zip(CLUSTER.resources, CLUSTER.capacity[0].tolist(), strict=True))
    return ServerState(CLUSTER.roles[0], amounts, drained=drained)


def _server_of(bench: Bench, name: str) -> str:
    return bench.truth.state.orders[name].servers[0]


OPERATIONS: dict[str, Callable[[Bench], Any]] = {
    "submit": lambda _: _submission("new"),
    "submit several": lambda _: _submission("new", "newer"),
    "accept": lambda _: _submission("new", at_once=False),
    "decide": lambda _: DecideBacklog(8),
    "cancel": lambda _: CancelJob("one"),
    "cancel what was not decided on": lambda _: CancelJob("accepted"),
    "revise": lambda _: ReviseJob("one", {"minibatches": 90}),
    "drain": lambda bench: UpdateServers({_server_of(bench, "one"): _state(True)}, "drain"),
    "lose a server": lambda bench: SetServerAvailability(_server_of(bench, "one")),
    "a tenant": lambda _: PutTenant("vision", {"gpu": 1}, Budget(POINT, 86_400), budgeted=True),
    "done": lambda bench: RecordReports([_ended(bench, "one", Ending.DONE)]),
    "failed": lambda bench: RecordReports([_ended(bench, "one", Ending.FAILED)]),
    "lost": lambda bench: RecordReports([_ended(bench, "one", Ending.LOST)]),
    "refused": lambda bench: RecordReports(
        [StartRefused(1, "one", bench.truth.state.orders["one"].generation, 0.0, "no such image")]
    ),
    "started": lambda bench: RecordReports(
        [Started(2, "two", bench.truth.state.orders["two"].generation, bench.clock.wall() / SECOND)]
    ),
    "acknowledge": lambda bench: AcknowledgeCommands(list(bench.truth.state.engine.unacknowledged)),
    "progress": _progress,
    "move the origin": lambda _: ShiftSlotOrigin(5 * SECOND, "the clock was set"),
    "set an end": lambda bench: ChangeTimespan(bench.clock.wall() + 2 * SLOT * SECOND),
}


ASKS_NOTHING = {
    "lost",
    "accept",
    "cancel what was not decided on",
    "started",
    "acknowledge",
    "progress",
    "move the origin",
}
"""Those of which the policy is not asked; they show that what is kept is what there is."""


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as found:
        yield found


def _bench(where: Path | str, policy: str) -> Bench:
    """Return a truth with jobs that run, one that waits to be decided on, and orders not done."""
    bench = Bench(where, policy)
    for submit in (_submission("one", "two"), _submission("accepted", at_once=False)):
        bench.do(submit)
    bench.slot()
    bench.started("one")
    bench.clock.advance(SLOT // 4)
    return bench


def _refused(answer: Any) -> bool:
    """Whether an operation could not be done, or a report was left."""
    return isinstance(answer, ShadowpriceError) or (isinstance(answer, tuple) and bool(answer))


def fails_and_is_asked_again(
    places: Iterator[Path | str], policy: str, what: str, patch: pytest.MonkeyPatch, *, again: bool
) -> int:
    """Let an operation fail each time that it asks the policy, and then be done.

    Parameters
    ----------
    places : iterator of Path or str
        Where truths can be kept.
    policy : str
        Who decides.
    what : str
        The operation.
    patch : pytest.MonkeyPatch
        Lets the policy raise.
    again : bool
        Whether the truth is read back after it failed.

    Returns
    -------
    int
        How many times it asks.
    """
    smooth = _bench(next(places), policy)
    stumble = Stumble(smooth.truth.state.engine.policy, patch)
    [answer] = smooth.truth.commit([Armed(OPERATIONS[what](smooth), stumble)]).answers
    assert not _refused(answer), answer
    expected, asked = picture(smooth), stumble.asked
    smooth.read()
    assert picture(smooth) == expected  # what is kept is what there is
    smooth.store.close()
    for index in range(1, asked + 1):
        bench = _bench(next(places), policy)
        before = picture(bench)
        stumble.at, stumble.asked = index, 0
        operation = OPERATIONS[what](bench)
        outcome = bench.truth.commit([Armed(operation, stumble)])
        stumble.at = 10**9
        if what == "decide":  # tried again by itself
            assert outcome.answers == [0]
        else:
            assert _refused(outcome.answers[0])
            assert picture(bench) == before
            assert (outcome.views, outcome.specs, outcome.events) == ({}, {}, [])
            if again:
                bench.read()
                assert picture(bench) == before
            [answer] = bench.truth.commit([operation]).answers
            assert not _refused(answer)
            assert picture(bench) == expected
        bench.store.close()
    return asked


@pytest.mark.parametrize("again", [False, True], ids=["goes on", "begins again"])
@pytest.mark.parametrize("policy", ["oasis", "rolling", "drf"])
@pytest.mark.parametrize("what", OPERATIONS)
def test_failed_operation_is_rolled_back_and_can_be_retried(
    tmp_path: Path, patch: pytest.MonkeyPatch, what: str, policy: str, again: bool
) -> None:
    """Asked again, it comes to what it would have come to."""
    places = (tmp_path / str(at) for at in count())
    asked = fails_and_is_asked_again(places, policy, what, patch, again=again)
    assert bool(asked) == (what not in ASKS_NOTHING)


@pytest.mark.parametrize("policy", ["oasis", "rolling", "drf"])
@pytest.mark.parametrize("what", OPERATIONS)
def test_failed_operation_keeps_other_operations_of_the_batch(
    tmp_path: Path, patch: pytest.MonkeyPatch, what: str, policy: str
) -> None:
    bench = _bench(tmp_path, policy)
    stumble = Stumble(bench.truth.state.engine.policy, patch, at=1)
    armed = Armed(OPERATIONS[what](bench), stumble)
    outcome = bench.truth.commit([_submission("before"), armed, _submission("after")])
    assert outcome.answers[0] == [("before", None)]
    assert outcome.answers[2] == [("after", None)]
    assert bench.kinds("before")[0] == bench.kinds("after")[0] == "submitted"
    assert [event.id for event in outcome.events] == list(
        range(outcome.events[0].id, bench.truth.state.next_event_id)
    )
    live = picture(bench)
    bench.read()
    assert picture(bench) == live
    bench.store.close()


@pytest.mark.parametrize("policy", ["oasis", "rolling"])
def test_failed_report_does_not_block_later_reports(
    tmp_path: Path, patch: pytest.MonkeyPatch, policy: str
) -> None:
    bench = _bench(tmp_path, policy)
    bench.started("two")
    ends = [_ended(bench, name, Ending.DONE) for name in ("one", "two")]
    later = Started(9, "one", ends[0].generation, ends[0].at)
    stumble = Stumble(bench.truth.state.engine.policy, patch, at=1)
    reports = RecordReports([ends[0], ends[1], later])
    outcome = bench.truth.commit([Armed(reports, stumble)])
    assert outcome.answers == [(ends[0], later)]  # what is told of a job stays in order
    assert bench.truth.state.engine.open_jobs.keys() == {"one"}
    assert bench.kinds("two")[-1] == "finished"
    bench.read()
    assert bench.truth.commit([reports]).answers == [()]
    assert not bench.truth.state.engine.open_jobs
    assert bench.kinds("one")[-1] == "finished"
    assert bench.truth.commit([reports]).events == []  # told again, it is known
    bench.store.close()


def test_end_reported_twice_in_one_batch_is_recorded_once(tmp_path: Path) -> None:
    bench = _bench(tmp_path, "rolling")
    lost = _ended(bench, "one", Ending.LOST)
    bench.truth.commit([RecordReports([lost, lost]), RecordReports([lost])])
    assert bench.truth.state.views["one"].lost == 1
    assert bench.kinds("one").count("lost") == 1
    with bench.store.reading() as connection:
        table = tables.generations
        [row] = connection.execute(select(table).where(table.c.job == "one"))
    assert (row.ended, row.exit, row.reason) == (int(lost.at * SECOND), 1, "lost: why")
    bench.store.close()


def test_slots_ended_before_a_failed_slot_start_stay_ended(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    bench = _bench(tmp_path, "drf")  # which is asked when a slot begins
    running = bench.truth.state.engine.slot_running
    stumble = Stumble(bench.truth.state.engine.policy, patch, at=1, times=10**9)
    bench.clock.advance(SLOT)
    [answer] = bench.truth.commit([Armed(AdvanceSlots(), stumble)]).answers
    assert isinstance(answer, PolicyError)
    assert bench.truth.state.engine.slot_running is None
    assert bench.truth.state.engine.slot == running + 1
    live = picture(bench)
    bench.read()
    assert picture(bench) == live
    stumble.at = 10**9
    bench.do(AdvanceSlots())
    assert bench.truth.state.engine.slot_running == running + 1
    bench.store.close()


def test_completed_job_that_cannot_be_closed_delays_no_slot(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    bench = _bench(tmp_path, "rolling")
    end = _ended(bench, "one", Ending.DONE)
    bench.do(
        SetServerAvailability(_server_of(bench, "one"))
    )  # it is stopped, and exits 0 meanwhile
    bench.do(RecordReports([end]))
    assert bench.truth.state.views["one"].done
    bench.do(SetServerAvailability(CLUSTER.names[0], back=True))
    policy: Any = bench.truth.state.engine.policy
    decide = type(policy).decide

    def stumbling(policy: Any, view: Any, event: Any) -> Iterable[Any]:
        if type(event).__name__ == "JobsFinished":
            raise ZeroDivisionError
        return decide(policy, view, event)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(type(policy), "decide", stumbling)
        bench.slot()
        assert bench.truth.state.engine.slot_running is not None
        assert "one" in bench.truth.state.engine.running
    bench.slot()
    assert "one" not in bench.truth.state.engine.open_jobs
    assert bench.kinds("one")[-1] == "finished"
    bench.store.close()


def test_waiting_job_is_abandoned_only_by_committed_operations(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    """An event that prices a job beyond its tenant, and then fails, withdraws nobody."""
    till = Till(tmp_path / "data", "rolling")
    till.give("vision", 0)
    deadline = {"kind": "deadline", "value": 50, "by": "11 slots"}
    for index in range(12):
        till.submit(f"filler-{index}", minibatches=100, tenant="speech", utility=deadline)
    late = {"kind": "deadline", "value": 10, "by": "9 slots"}
    till.submit("waits", chunks=4, minibatches=60, tenant="vision", utility=late)
    assert till.view("waits").state == State.STANDBY
    for index in range(12):
        till.do(CancelJob(till.key(f"filler-{index}")))
    before = picture(till)
    # Asked to begin the slot it prices the job, which is withdrawn; then it fails, however often.
    stumble = Stumble(till.truth.state.engine.policy, patch, at=3, times=10**9)
    till.clock.advance(SLOT)
    [answer] = till.truth.commit([Armed(AdvanceSlots(), stumble)]).answers
    assert isinstance(answer, PolicyError)
    assert stumble.asked >= 3
    assert picture(till) == before
    assert till.view("waits").state == State.STANDBY
    stumble.at = 10**9
    till.do(AdvanceSlots())
    assert till.view("waits").state == State.REFUSED
    till.check()
    till.store.close()


def test_released_savepoint_is_rolled_back_with_its_transaction(tmp_path: Path) -> None:
    bench = _bench(tmp_path, "rolling")
    before = picture(bench)

    class Both:
        """Something that is done as a whole, and something that cannot be."""

        def perform(self, batch: Batch) -> None:
            with batch.savepoint():
                CancelJob("one").perform(batch)
                batch.set_value("key", "value")
            raise ShadowpriceError("no")

    [answer] = bench.truth.commit([Both()]).answers
    assert str(answer) == "no"
    assert picture(bench) == before
    bench.store.close()


def test_payment_is_rolled_back_with_its_operation(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    till = Till(tmp_path / "data", "rolling")
    till.give("vision", 1_000)
    paid = priced(till, "paid")
    assert paid.price
    stumble = Stumble(till.truth.state.engine.policy, patch, at=1)
    before = picture(till)

    class Both:
        """Two things that belong together, of which the first is done."""

        def perform(self, batch: Batch) -> None:
            Billing(batch).set_budget("speech", Budget(POINT, 86_400))
            Billing(batch).set_budget("vision", None)
            CancelJob(paid.key).perform(batch)

    [answer] = till.truth.commit([Armed(Both(), stumble)]).answers
    assert isinstance(answer, PolicyError)
    assert picture(till) == before
    till.do(CancelJob(paid.key))
    till.check()
    till.store.close()


def test_readers_see_no_uncommitted_revision(tmp_path: Path) -> None:
    bench = _bench(tmp_path, "rolling")
    writer = Writer(bench.truth, Metrics())
    stated = writer.specification("one")
    assert stated is not None
    meanwhile = []

    class Looking:
        """Looks, in the middle of a batch, at what is started."""

        def perform(self, _batch: Batch) -> None:
            meanwhile.append((writer.specification("one"), writer.specification("new")))

    outcome = bench.truth.commit(
        [ReviseJob("one", {"minibatches": 90}), _submission("new"), Looking()]
    )
    assert meanwhile == [(stated, None)]
    writer._publish(outcome)
    assert writer.specification("one") == {**stated, "minibatches": 90}
    assert writer.specification("new") == bench.truth.state.specs["new"]
    writer._publish(bench.do(CancelJob("new")))
    assert writer.specification("new") is None
    writer._thread.shutdown()
    bench.store.close()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_job_whose_successor_is_refused_stays_as_it_was(tmp_path: Path, is_refused: bool) -> None:
    bench = Bench(tmp_path / "data")
    whole = {"chunks": 12, "workers": {"min": 12, "max": 12}, "minibatches": 20}
    bench.submit("old", **whole, utility={"kind": "deadline", "value": 100, "by": "2 slots"})
    bench.slot()
    bench.started("old")
    if is_refused:  # the slots that it would need after the present one are taken
        bench.submit("other", **whole, utility={"kind": "deadline", "value": 100, "by": "9 slots"})
    assert [view.state for view in bench.truth.state.views.values()] == [
        State.RUNNING,
        *([State.ADMITTED] if is_refused else []),
    ]
    before = picture(bench)
    operation = ResubmitJob("old", submission(bench, "new"))
    if is_refused:
        with pytest.raises(ProblemError, match="job 'old' stays as it was: ") as caught:
            bench.do(operation)
        assert caught.value.code == "refused"
        assert picture(bench) == before
        return
    bench.do(operation)
    views = bench.truth.state.views
    assert [(view.name, view.state) for view in views.values()] == [("new", State.ADMITTED)]
    assert "cancelled" in bench.kinds("old")


def submission(bench: Bench, name: str) -> Submission:
    """Return a submission of the job `old` under another name."""
    record = {**bench.truth.state.specs["old"], "name": name}
    [result] = read_submissions([record], CLUSTER, tenant=None, runs=True)
    return result

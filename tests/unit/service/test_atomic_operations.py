"""An operation is performed completely or not at all, wherever in it the policy raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from shadowprice.core.budget import POINT, Budget
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.executors.contract import Ending, Started
from shadowprice.service.budgets.billing import Billing
from shadowprice.service.clock import SECOND
from shadowprice.service.metrics import Metrics
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.job_views import State
from shadowprice.service.state.operations import (
    cancel_job,
    resubmit_job,
    revise_job,
    set_server_availability,
)
from shadowprice.service.state.report_operations import (
    RecordReports,
)
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.submission import Submission, read_submissions
from shadowprice.service.store import tables
from shadowprice.service.writer import Writer
from tests.support.budget_bench import BudgetBench, fill_until_priced
from tests.support.engine_bench import EngineBench
from tests.support.policy_faults import (
    OPERATIONS,
    WITHOUT_DECISION,
    FaultyOperation,
    PolicyFault,
    describe_state,
    end_report,
    first_server,
    job_submission,
    open_bench,
    retry_failed_operation,
)
from tests.support.simulated_hours import CLUSTER, SLOT

POLICIES = ["oasis", "rolling", pytest.param("drf", marks=pytest.mark.extended)]


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as found:
        yield found


@pytest.mark.parametrize("restart", [False, True], ids=["continues", "restarts"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_failed_operation_is_rolled_back_and_can_be_retried(
    tmp_path: Path, patch: pytest.MonkeyPatch, operation: str, policy: str, restart: bool
) -> None:
    """Repeated, it has the same result."""
    folders = (tmp_path / str(at) for at in count())
    calls = retry_failed_operation(folders, policy, operation, patch, restart=restart)
    assert bool(calls) == (operation not in WITHOUT_DECISION)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_failed_operation_keeps_other_operations_of_the_batch(
    tmp_path: Path, patch: pytest.MonkeyPatch, operation: str, policy: str
) -> None:
    bench = open_bench(tmp_path, policy)
    policy_fault = PolicyFault(bench.durable.state.engine.policy, patch, first=1)
    armed = FaultyOperation(OPERATIONS[operation](bench), policy_fault)
    outcome = bench.durable.commit([job_submission("before"), armed, job_submission("after")])
    assert outcome.answers[0] == [("before", None)]
    assert outcome.answers[2] == [("after", None)]
    assert bench.event_kinds("before")[0] == bench.event_kinds("after")[0] == "submitted"
    assert [event.id for event in outcome.events] == list(
        range(outcome.events[0].id, bench.durable.state.next_event_id)
    )
    live = describe_state(bench)
    bench.recover()
    assert describe_state(bench) == live
    bench.store.close()


@pytest.mark.parametrize("policy", ["oasis", "rolling"])
def test_failed_report_does_not_block_later_reports(
    tmp_path: Path, patch: pytest.MonkeyPatch, policy: str
) -> None:
    bench = open_bench(tmp_path, policy)
    bench.report_start("two")
    ends = [end_report(bench, name, Ending.DONE) for name in ("one", "two")]
    later = Started(9, "one", ends[0].generation, ends[0].at)
    policy_fault = PolicyFault(bench.durable.state.engine.policy, patch, first=1)
    reports = RecordReports([ends[0], ends[1], later])
    outcome = bench.durable.commit([FaultyOperation(reports, policy_fault)])
    assert outcome.answers == [(ends[0], later)]  # the reports of a job stay in order
    assert bench.durable.state.engine.open_jobs.keys() == {"one"}
    assert bench.event_kinds("two")[-1] == "finished"
    bench.recover()
    assert bench.durable.commit([reports]).answers == [()]
    assert not bench.durable.state.engine.open_jobs
    assert bench.event_kinds("one")[-1] == "finished"
    assert bench.durable.commit([reports]).events == []  # reported again, it is recorded already
    bench.store.close()


def test_end_reported_twice_in_one_batch_is_recorded_once(tmp_path: Path) -> None:
    bench = open_bench(tmp_path, "rolling")
    lost = end_report(bench, "one", Ending.LOST)
    bench.durable.commit([RecordReports([lost, lost]), RecordReports([lost])])
    assert bench.durable.state.views["one"].lost == 1
    assert bench.event_kinds("one").count("lost") == 1
    with bench.store.reading() as connection:
        table = tables.generations
        [row] = connection.execute(select(table).where(table.c.job == "one"))
    assert (row.ended, row.exit, row.reason) == (int(lost.at * SECOND), 1, "lost: why")
    bench.store.close()


def test_slots_ended_before_a_failed_slot_start_stay_ended(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(tmp_path, "drf")  # its policy is called at the start of a slot
    running = bench.durable.state.engine.slot_running
    policy_fault = PolicyFault(bench.durable.state.engine.policy, patch, first=1, times=10**9)
    bench.clock.advance(SLOT)
    [answer] = bench.durable.commit([FaultyOperation(AdvanceSlots(), policy_fault)]).answers
    assert isinstance(answer.error, PolicyError)
    assert bench.durable.state.engine.slot_running is None
    assert bench.durable.state.engine.slot == running + 1
    live = describe_state(bench)
    bench.recover()
    assert describe_state(bench) == live
    policy_fault.first = 10**9
    bench.commit(AdvanceSlots())
    assert bench.durable.state.engine.slot_running == running + 1
    bench.store.close()


def test_completed_job_that_cannot_be_closed_delays_no_slot(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(tmp_path, "rolling")
    end = end_report(bench, "one", Ending.DONE)
    # It is stopped, and exits 0 meanwhile.
    bench.commit(set_server_availability(first_server(bench, "one")))
    policy: Any = bench.durable.state.engine.policy
    decide = type(policy).decide

    def stumbling(policy: Any, view: Any, event: Any) -> Iterable[Any]:
        if type(event).__name__ == "JobCancelled":
            raise ZeroDivisionError
        return decide(policy, view, event)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(type(policy), "decide", stumbling)
        assert bench.commit(RecordReports([end])).answers == [(end,)]  # to be repeated
        bench.advance()
        assert bench.durable.state.engine.slot_running is not None
        assert "one" in bench.durable.state.engine.open_jobs
    assert bench.commit(RecordReports([end])).answers == [()]
    assert "one" not in bench.durable.state.engine.open_jobs
    assert bench.event_kinds("one")[-1] == "finished"
    bench.store.close()


def test_waiting_job_is_abandoned_only_by_committed_operations(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    """An event that prices a job beyond its tenant's budget, and then fails, withdraws no job."""
    bench = BudgetBench(tmp_path / "data", "rolling")
    bench.set_budget("vision", 0)
    deadline = {"kind": "deadline", "value": 50, "by": "11 slots"}
    for index in range(12):
        bench.submit(f"filler-{index}", minibatches=100, tenant="speech", utility=deadline)
    late = {"kind": "deadline", "value": 10, "by": "9 slots"}
    bench.submit("waits", chunks=4, minibatches=60, tenant="vision", utility=late)
    assert bench.view("waits").state == State.STANDBY
    for index in range(12):
        bench.commit(cancel_job(bench.job_key(f"filler-{index}")))
    before = describe_state(bench)
    # When the slot begins, the job is priced and withdrawn; then the event fails, however often.
    policy_fault = PolicyFault(bench.durable.state.engine.policy, patch, first=3, times=10**9)
    bench.clock.advance(SLOT)
    [answer] = bench.durable.commit([FaultyOperation(AdvanceSlots(), policy_fault)]).answers
    assert isinstance(answer.error, PolicyError)
    assert policy_fault.calls >= 3
    assert describe_state(bench) == before
    assert bench.view("waits").state == State.STANDBY
    policy_fault.first = 10**9
    bench.commit(AdvanceSlots())
    assert bench.view("waits").state == State.REFUSED
    bench.check_accounts()
    bench.store.close()


def test_released_savepoint_is_rolled_back_with_its_transaction(tmp_path: Path) -> None:
    bench = open_bench(tmp_path, "rolling")
    before = describe_state(bench)

    class Both:
        """An operation that is atomic, and one that can't be."""

        def perform(self, batch: Batch) -> None:
            with batch.savepoint():
                cancel_job("one").perform(batch)
                batch.set_value("key", "value")
            raise ShadowpriceError("no")

    [answer] = bench.durable.commit([Both()]).answers
    assert str(answer) == "no"
    assert describe_state(bench) == before
    bench.store.close()


def test_payment_is_rolled_back_with_its_operation(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    bench = BudgetBench(tmp_path / "data", "rolling")
    bench.set_budget("vision", 1_000)
    paid = fill_until_priced(bench, "paid")
    assert paid.price
    policy_fault = PolicyFault(bench.durable.state.engine.policy, patch, first=1)
    before = describe_state(bench)

    class Both:
        """Two operations that belong together, of which the first is done."""

        def perform(self, batch: Batch) -> None:
            Billing(batch).set_budget("speech", Budget(POINT, 86_400))
            Billing(batch).set_budget("vision", None)
            cancel_job(paid.key).perform(batch)

    [answer] = bench.durable.commit([FaultyOperation(Both(), policy_fault)]).answers
    assert isinstance(answer, PolicyError)
    assert describe_state(bench) == before
    bench.commit(cancel_job(paid.key))
    bench.check_accounts()
    bench.store.close()


def test_readers_see_no_uncommitted_revision(tmp_path: Path) -> None:
    bench = open_bench(tmp_path, "rolling")
    writer = Writer(bench.durable, Metrics())
    stated = writer.published.specs.get("one")
    assert stated is not None
    meanwhile = []

    class Looking:
        """Reads the started jobs in the middle of a batch."""

        def perform(self, _batch: Batch) -> None:
            meanwhile.append((writer.published.specs.get("one"), writer.published.specs.get("new")))

    outcome = bench.durable.commit(
        [revise_job("one", {"minibatches": 90}), job_submission("new"), Looking()]
    )
    assert meanwhile == [(stated, None)]
    writer._publish(outcome)
    assert writer.published.specs.get("one") == {**stated, "minibatches": 90}
    assert writer.published.specs.get("new") == bench.durable.state.specs["new"]
    writer._publish(bench.commit(cancel_job("new")))
    assert writer.published.specs.get("new") is None
    writer._thread.shutdown()
    bench.store.close()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_job_whose_successor_is_refused_stays_as_it_was(tmp_path: Path, is_refused: bool) -> None:
    bench = EngineBench(tmp_path / "data")
    whole = {"chunks": 12, "workers": {"min": 12, "max": 12}, "minibatches": 20}
    bench.submit("old", **whole, utility={"kind": "deadline", "value": 100, "by": "2 slots"})
    bench.advance()
    bench.report_start("old")
    if is_refused:  # the slots that it would need after the present one are used
        bench.submit("other", **whole, utility={"kind": "deadline", "value": 100, "by": "9 slots"})
    assert [view.state for view in bench.durable.state.views.values()] == [
        State.RUNNING,
        *([State.ADMITTED] if is_refused else []),
    ]
    before = describe_state(bench)
    operation = resubmit_job("old", submission(bench, "new"))
    if is_refused:
        with pytest.raises(ProblemError, match="job 'old' stays as it was: ") as caught:
            bench.commit(operation)
        assert caught.value.code == "refused"
        assert describe_state(bench) == before
        return
    bench.commit(operation)
    views = bench.durable.state.views
    assert [(view.name, view.state) for view in views.values()] == [("new", State.ADMITTED)]
    assert "cancelled" in bench.event_kinds("old")


def submission(bench: EngineBench, name: str) -> Submission:
    """Return a submission of the job `old` under another name."""
    record = {**bench.durable.state.specs["old"], "name": name}
    [result] = read_submissions([record], CLUSTER, tenant=None, runs=True)
    return result

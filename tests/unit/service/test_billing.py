"""Costs of jobs for their tenants: debits, refunds, payments, and refusals without points."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from shadowprice.core.budget import POINT, Budget, in_points
from shadowprice.executors.contract import Ending
from shadowprice.service.budgets.accounts import MAX_AHEAD_NS, Account, Accounts
from shadowprice.service.budgets.billing import to_price_units
from shadowprice.service.budgets.operations import (
    grant_points,
    put_tenant,
    start_due_periods,
    sync_budgets,
)
from shadowprice.service.clock import SECOND
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.operations import (
    cancel_job,
    decide_backlog,
    quote_job,
    revise_job,
    set_server_availability,
)
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store, tables
from tests.support.budget_bench import BudgetBench, LendingBench, fill_until_priced, job_record
from tests.support.simulated_hours import CLUSTER, SLOT, Crash

DAY = 86_400


@pytest.fixture(params=["oasis", "rolling"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BudgetBench]:
    result = BudgetBench(tmp_path / "data", request.param)
    yield result
    result.check_accounts()
    result.store.close()


def test_admission_debits_the_price(bench: BudgetBench) -> None:
    bench.set_budget("vision", 1_000)
    view = fill_until_priced(bench, "job")
    assert view.price == to_price_units(view.cost or 0) > 0
    assert view.planned > 0
    debits = [row for row in bench.entries("vision") if row.kind == "debit"]
    assert (debits[-1].job, debits[-1].points) == (view.key, -view.price)
    paid = sum(-row.points for row in debits)
    assert bench.balance("vision") == 1_000 - in_points(paid)
    assert bench.entries("speech") == []
    assert "debited" in bench.event_kinds(view.key)


def test_job_that_never_ran_is_fully_refunded(bench: BudgetBench) -> None:
    bench.set_budget("vision", 1_000)
    view = fill_until_priced(bench, "job")
    before = bench.balance("vision")
    bench.commit(cancel_job(view.key))
    assert bench.view(view.key).refund == view.price
    assert bench.balance("vision") == before + in_points(view.price or 0)
    assert bench.event_kinds(view.key)[-2:] == [
        "cancelled",
        "refunded",
    ] or "refunded" in bench.event_kinds(view.key)


def test_used_slots_are_charged_at_the_mean_price(tmp_path: Path) -> None:
    bench = BudgetBench(tmp_path / "data", "oasis")
    bench.set_budget("vision", 1_000)
    bench.submit("filler", chunks=12, minibatches=200, tenant="speech")
    view = fill_until_priced(bench, "job", minibatches=60)
    places = 0
    for _ in range(60):
        bench.advance()
        if view.key in bench.durable.state.desired:
            placement = bench.durable.state.desired[view.key].placement
            places += placement.total_workers
            break
    bench.report_start(view.key)
    bench.clock.advance(SLOT / 2)
    bench.commit(cancel_job(view.key))
    after = bench.view(view.key)
    assert after.held == places
    assert after.planned > places
    used = math.ceil((view.price or 0) * places / after.planned)
    assert (after.used, after.refund) == (used, (view.price or 0) - used)
    bench.check_accounts()
    bench.store.close()


def test_unused_slots_are_refunded_at_their_price(tmp_path: Path) -> None:
    bench = BudgetBench(tmp_path / "data", "oasis")
    bench.set_budget("vision", 1_000)
    # The first slots are fuller than the later ones, and more expensive; the last job needs one.
    for index in range(2):
        bench.submit(f"early-{index}", chunks=3, minibatches=30, tenant="speech")
    soon = {"kind": "deadline", "value": 50, "by": "7 slots"}
    for index in range(4):
        bench.submit(f"job-{index}", tenant="vision", chunks=2, minibatches=40, utility=soon)
    view = bench.view("job-3")
    plan, promised = bench.durable.state.engine.jobs[bench.job_key("job-3")].plan, view.unused
    assert promised is not None
    (first, places, dear), *later = promised
    assert sum(price for _, _, price in promised) == view.price
    assert [slot for slot, _, _ in promised] == plan.active_slots.tolist()
    assert later
    assert all(dear > 5 * price for _, _, price in later)
    bench.advance()
    assert bench.durable.state.engine.slot_running == first
    bench.report_start("job-3")
    bench.clock.advance(SLOT / 2)
    bench.commit(cancel_job(bench.job_key("job-3")))
    after = bench.view("job-3")
    assert (after.held, after.used) == (places, dear)
    assert after.refund == sum(price for _, _, price in later)
    bench.check_accounts()
    bench.store.close()


@pytest.mark.parametrize("policy", ["oasis", "pdors"])
def test_commitment_costs_of_slots_sum_to_the_price(tmp_path: Path, policy: str) -> None:
    bench = BudgetBench(tmp_path / "data", policy)
    bench.set_budget("vision", 1_000)
    late = {"kind": "deadline", "value": 50, "by": "30 slots"}
    for index in range(8):
        servers = {"ps": {"cpu": 2}} if index % 2 else {}
        bench.submit(
            f"job-{index}", tenant="vision", chunks=3, minibatches=90, utility=late, **servers
        )
        bench.advance()
    with bench.store.reading() as connection:
        entries = connection.execute(select(tables.journal.c.entry)).scalars().all()
    commits = [commit for entry in entries for commit in _commits(json.loads(entry))]
    itemised = [commit for commit in commits if "slot_costs" in commit]
    assert len(itemised) >= 3
    assert any(one["cost"] > 0 for one in itemised)
    for one in itemised:
        assert sum(one["slot_costs"]) == pytest.approx(one["cost"], rel=1e-9, abs=1e-12)
        assert min(one["slot_costs"]) >= 0
    digest = bench.durable.state.engine.state_digest()
    bench.recover()  # the journal has them, too
    assert bench.durable.state.engine.state_digest() == digest
    bench.check_accounts()
    bench.store.close()


def _commits(record: Any) -> Iterator[dict[str, Any]]:
    if isinstance(record, dict):
        if record.get("decide") == "Commit":
            yield record
        record = list(record.values())
    for part in record if isinstance(record, list) else ():
        yield from _commits(part)


def test_job_above_the_budget_is_refused_with_the_reason(bench: BudgetBench) -> None:
    bench.set_budget("vision", 1_000)
    dear = fill_until_priced(bench, "job")
    bench.set_budget("vision", 1_000 - bench.balance("vision"))  # all the rest goes
    assert bench.balance("vision") == 0
    bench.submit("poor", tenant="vision")
    view = bench.view("poor")
    assert view.state == State.REFUSED
    assert view.reason is not None
    assert view.reason["code"] == "budget"
    assert "vision holds 0 until" in view.reason["message"]
    assert view.reason["price"] > 0
    assert (view.price, view.cost) == (None, None)
    assert bench.event_kinds("poor") == ["submitted", "refused"]
    # The name of a refused job is free, so that its file can be submitted again.
    bench.commit(grant_points("vision", 1_000 * POINT, "more"))
    bench.submit("poor", tenant="vision")
    again = bench.view("poor")
    assert again.state != State.REFUSED
    assert again.id > view.id
    bench.submit("rich", tenant="vision")
    assert bench.view("rich").state != State.REFUSED
    assert bench.view(dear.name).price == dear.price


def test_a_refused_job_leaves_no_trace_in_engine_or_policy(bench: BudgetBench) -> None:
    bench.set_budget("vision", 1_000)
    fill_until_priced(bench, "job")
    bench.set_budget("vision", 1_000 - bench.balance("vision"))
    engine = bench.durable.state.engine
    before = engine.state_digest(), engine.sequence, engine.session.dump_state()
    bench.submit("poor", tenant="vision")
    assert bench.view("poor").state == State.REFUSED
    assert (engine.state_digest(), engine.sequence, engine.session.dump_state()) == before
    bench.recover()  # and recovery gets no report of it
    assert bench.durable.state.engine.sequence == before[1]
    assert "poor" not in bench.durable.state.views


def test_batch_jobs_are_admitted_in_order_within_the_budget(bench: BudgetBench) -> None:
    bench.set_budget("vision", 1_000)
    price = fill_until_priced(bench, "job").price or 0
    bench.set_budget("vision", 1_000 - bench.balance("vision") + 2.5 * price / POINT)
    records = [job_record(f"many-{index}", tenant="vision") for index in range(6)]
    records.append(job_record("theirs", tenant="speech"))
    bench.submit_records(*records, at_once=False)
    assert bench.balance("vision") == pytest.approx(
        2.5 * price / POINT, abs=1e-6
    )  # accepted, but not decided
    bench.commit(decide_backlog(100))
    states = [bench.view(f"many-{index}").state for index in range(6)]
    assert State.REFUSED in states
    assert states[0] != State.REFUSED
    assert bench.view("theirs").state.open
    assert not bench.durable.state.backlog


def test_quote_states_the_remaining_budget(bench: BudgetBench) -> None:
    bench.set_budget("vision", 1_000)
    fill_until_priced(bench, "job")
    [submission] = read_submissions(
        [job_record("x", tenant="vision")], CLUSTER, tenant=None, runs=False
    )
    held = bench.balance("vision")
    [requests] = bench.commit(quote_job(submission)).answers
    assert requests.price == to_price_units(requests.quote.price)
    assert in_points(requests.held) == held == bench.balance("vision")
    assert requests.reason is None
    bench.set_budget("vision", 1_000 - held)
    [requests] = bench.commit(quote_job(submission)).answers
    assert requests.held == 0
    assert requests.reason is not None
    assert requests.reason["code"] == "budget"
    [submission] = read_submissions(
        [job_record("x", tenant="speech")], CLUSTER, tenant=None, runs=False
    )
    [requests] = bench.commit(quote_job(submission)).answers
    assert (requests.held, requests.reason) == (None, None)


def test_additional_work_is_charged_or_refused_above_the_budget(bench: BudgetBench) -> None:
    bench.set_budget("vision", 1_000)
    view = fill_until_priced(bench, "job")
    held = bench.balance("vision")
    bench.commit(revise_job(view.key, {"minibatches": 120}))
    after = bench.view(view.key)
    assert after.price == pytest.approx(2 * (view.price or 0), abs=1)
    paid = (after.price or 0) - (view.price or 0)
    assert bench.balance("vision") == pytest.approx(held - paid / POINT)
    bench.commit(revise_job(view.key, {"minibatches": 30}))  # less: unused points come back later
    assert bench.view(view.key).price == after.price
    bench.set_budget("vision", 1_000 - bench.balance("vision"))
    with pytest.raises(ProblemError, match="vision holds 0") as caught:
        bench.commit(revise_job(view.key, {"minibatches": 150}))
    assert caught.value.code == "budget"
    assert bench.durable.state.specs[view.key]["minibatches"] == 30


def test_lost_slots_are_not_charged(tmp_path: Path) -> None:
    bench = BudgetBench(tmp_path / "data", "oasis")
    bench.set_budget("vision", 1_000)
    bench.submit("filler", chunks=12, minibatches=200, tenant="speech")
    view = fill_until_priced(bench, "job", minibatches=90)
    while view.key not in bench.durable.state.desired:
        bench.advance()
    bench.report_start(view.key)
    bench.advance()
    assert (one := bench.view(view.key).held) > 0
    bench.report_end(view.key, Ending.LOST, None)
    bench.advance()  # it starts again
    assert bench.view(view.key).held == one
    assert view.key in bench.durable.state.desired
    for server in bench.durable.state.desired[view.key].servers:
        bench.commit(set_server_availability(server))
    assert bench.view(view.key).held == one
    bench.check_accounts()
    bench.store.close()


def test_waiting_job_above_the_budget_is_abandoned(tmp_path: Path) -> None:
    """It has no price while it waits; it is withdrawn in the slot that gives it one."""
    bench = BudgetBench(tmp_path / "data", "rolling")
    bench.set_budget("vision", 0)
    for index in range(12):
        bench.submit(
            f"filler-{index}",
            minibatches=100,
            tenant="speech",
            utility={"kind": "deadline", "value": 50, "by": "11 slots"},
        )
    bench.submit(
        "waits",
        chunks=4,
        minibatches=60,
        tenant="vision",
        utility={"kind": "deadline", "value": 10, "by": "9 slots"},
    )
    assert bench.view("waits").state == State.STANDBY, bench.view("waits")
    for index in range(12):
        bench.commit(cancel_job(bench.job_key(f"filler-{index}")))
    sequence = bench.durable.state.engine.sequence
    bench.advance()
    view = bench.view("waits")
    assert view.state == State.REFUSED
    assert view.reason is not None
    assert view.reason["code"] == "budget"
    assert bench.durable.state.engine.sequence > sequence + 1
    assert (
        bench.durable.state.engine.slot_running is not None
        or not bench.durable.state.engine.open_jobs
    )
    digest = bench.durable.state.engine.state_digest()
    bench.recover()
    assert bench.durable.state.engine.state_digest() == digest
    bench.check_accounts()
    bench.store.close()


def test_job_without_a_promise_runs_free(tmp_path: Path) -> None:
    bench = BudgetBench(tmp_path / "data", "fifo")
    bench.set_budget("vision", 0)
    bench.submit("free", tenant="vision")
    bench.advance(3)
    assert bench.view("free").state.open
    assert bench.view("free").price is None
    assert bench.entries("vision") == []
    bench.store.close()


def test_budget_periods_start_automatically_and_once(bench: BudgetBench) -> None:
    now = bench.clock.wall() // SECOND
    bench.set_budget("vision", 100, period=3_600, since=now - 600, carry=30 * POINT)
    assert bench.balance("vision") == 100
    bench.clock.advance(2_999)
    bench.commit(start_due_periods())
    assert bench.balance("vision") == 100
    bench.clock.advance(1)
    bench.commit(start_due_periods())
    assert bench.balance("vision") == 130
    bench.clock.set_by -= 3_000 * SECOND
    bench.recover()
    bench.commit(start_due_periods())
    assert bench.balance("vision") == 130
    bench.clock.set_by += 3_000 * SECOND
    bench.clock.advance(5 * 3_600)
    bench.recover()  # it was down meanwhile
    bench.commit(start_due_periods())
    assert bench.balance("vision") == 130
    assert [row.kind for row in bench.entries("vision")] == [
        "grant", "expiry", "grant", "expiry", "grant",
    ]  # fmt: skip


def test_clock_error_leaves_no_account_in_a_future_period(bench: BudgetBench) -> None:
    now, week, weeks_ahead = bench.clock.wall() // SECOND, 7 * 86_400, 40 * 86_400 * SECOND
    bench.set_budget("vision", 100, period=week, since=now - 600)
    period = bench.durable.state.accounts.get("vision").period
    bench.clock.set_by += weeks_ahead
    bench.recover()
    bench.commit(start_due_periods())
    assert bench.durable.state.accounts.get("vision").period == period + 5
    bench.clock.set_by -= weeks_ahead
    bench.recover()
    bench.commit(start_due_periods())  # the clock may be wrong
    assert bench.durable.state.accounts.get("vision").period == period + 5
    bench.durable.state.accounts.may_go_back = True
    bench.commit(start_due_periods())
    account = bench.durable.state.accounts.get("vision")
    assert (account.period, bench.balance("vision")) == (period, 100)
    assert not bench.durable.state.accounts.due(bench.clock.wall())
    bench.commit(cancel_job(fill_until_priced(bench, "job").key))
    assert bench.balance("vision") == 100  # paid in this period, so nothing expires
    bench.clock.advance(week - 600)
    bench.commit(start_due_periods())
    assert bench.durable.state.accounts.get("vision").period == period + 1


def test_budgets_are_set_changed_and_removed(bench: BudgetBench) -> None:
    bench.set_budget("vision", 100)
    bench.set_budget("vision", 150)
    bench.set_budget("vision", 120)
    bench.set_budget("vision", 120)  # nothing changes
    bench.commit(grant_points("vision", 5 * POINT, "well done"))
    assert bench.balance("vision") == 125
    view = fill_until_priced(bench, "job")
    bench.commit(put_tenant("vision", None, None, budgeted=True))
    assert bench.durable.state.accounts.get("vision") is None
    with pytest.raises(ProblemError, match="no budget"):
        bench.commit(grant_points("vision", POINT, ""))
    assert bench.view(view.key).state.open
    assert bench.view(view.key).refund == view.price  # it expired with the budget
    bench.set_budget("vision", 30)
    bench.commit(cancel_job(view.key))
    assert bench.balance("vision") == 30  # no second refund, to an account that didn't pay
    bench.commit(put_tenant("vision", None, None, budgeted=True))
    bench.submit("free", tenant="vision")
    assert bench.view("free").price == 0
    bench.set_budget("vision", 1)
    bench.commit(cancel_job(bench.job_key("free")))
    assert bench.balance("vision") == 1
    kinds = [(row.kind, row.points // POINT) for row in bench.entries("vision")]
    assert kinds[:4] == [("grant", 100), ("grant", 50), ("expiry", -30), ("grant", 5)]
    entries = [row for row in bench.entries("vision") if row.job == view.key]
    assert [row.kind for row in entries] == ["debit", "refund"]


def test_budget_below_the_debits_admits_no_priced_job(bench: BudgetBench) -> None:
    bench.set_budget("vision", 1_000)
    view = fill_until_priced(bench, "job")
    paid = 1_000 - bench.balance("vision")
    bench.set_budget("vision", 0)
    assert bench.balance("vision") == pytest.approx(-paid)
    bench.submit("poor", tenant="vision")
    reason = bench.view("poor").reason
    assert reason is not None
    assert reason["code"] == "budget"
    assert "vision holds -" in reason["message"]
    bench.recover()
    bench.set_budget("vision", 1_000)  # there and back changes nothing
    assert bench.balance("vision") == 1_000 - paid
    bench.set_budget("vision", 0)
    bench.commit(cancel_job(view.key))
    bench.check_accounts()
    bench.commit(put_tenant("vision", None, None, budgeted=True))
    assert sum(row.points for row in bench.entries("vision")) == 0
    bench.submit("free", tenant="vision")
    assert bench.view("free").state.open


def test_cluster_file_sets_budgets_except_those_set_by_operators(bench: BudgetBench) -> None:
    file = Budget(10 * POINT, DAY)
    bench.commit(sync_budgets({"vision": file}))
    assert bench.balance("vision") == 10
    bench.set_budget("vision", 70)
    bench.recover()
    bench.commit(sync_budgets({"vision": file}))
    assert bench.balance("vision") == 70
    bench.commit(sync_budgets({"vision": Budget(20 * POINT, DAY), "speech": file}))
    assert (bench.balance("vision"), bench.balance("speech")) == (20, 10)
    bench.commit(sync_budgets({"speech": file}))
    assert bench.durable.state.accounts.get("vision") is None


@pytest.fixture
def lending(tmp_path: Path) -> Iterator[LendingBench]:
    result = LendingBench(tmp_path / "data", "astraea", virtual=True)
    yield result
    result.check_accounts()
    result.store.close()


def test_payments_between_tenants_use_their_accounts(lending: LendingBench) -> None:
    lending.set_budget("vision", 1_000, period=400 * DAY)
    lending.set_budget("speech", 500, period=400 * DAY)
    lending.submit_lending_jobs()
    assert lending.balance("vision") == 1_000  # the batch is not decided yet
    name = lending.run_until_payment()
    owner = lending.view(name).tenant
    [debit] = [row for row in lending.entries() if row.kind == "debit"]
    assert (debit.job, debit.tenant) == (name, owner)
    assert {row.other for row in lending.payments()} == {owner}
    assert {row.tenant for row in lending.payments()} == {
        "vision",
        "speech",
    }  # its own idle share too
    lending.advance_hours(20)
    view = lending.view(name)
    assert view.state == State.FINISHED
    assert sum(row.points for row in lending.payments()) == -debit.points == view.used == view.price
    assert view.refund == 0
    assert (
        lending.balance("vision") + lending.balance("speech") == 1_500
    )  # no points are lost between them


def test_revised_gang_keeps_its_placement_and_pays_for_the_additional_work(
    lending: LendingBench,
) -> None:
    lending.set_budget("vision", 1_000, period=400 * DAY)
    lending.set_budget("speech", 500, period=400 * DAY)
    lending.submit_lending_jobs()
    name = lending.run_until_payment()
    before, record = lending.view(name), lending.durable.state.engine.open_jobs[name]
    assert before.price is not None
    last = record.plan.completion
    lending.commit(revise_job(name, {"epochs": 5}))
    after = lending.view(name)
    assert after.price is not None
    assert after.price > before.price
    assert record.plan.completion == after.promise
    assert record.plan.completion > last
    lending.advance_hours(20)
    view = lending.view(name)
    assert view.state == State.FINISHED
    assert view.used == view.price


def test_undistributed_payments_are_refunded(lending: LendingBench) -> None:
    lending.set_budget("vision", 1_000, period=400 * DAY)
    lending.set_budget("speech", 500, period=400 * DAY)
    lending.submit_lending_jobs()
    name = lending.run_until_payment()
    view = lending.view(name)
    assert 0 < view.used < (view.price or 0)
    lending.commit(cancel_job(name))
    after = lending.view(name)
    assert after.refund == (view.price or 0) - view.used > 0
    assert lending.balance("vision") + lending.balance("speech") == 1_500


def test_borrower_above_its_budget_is_abandoned(lending: LendingBench) -> None:
    lending.set_budget("vision", 0, period=400 * DAY)
    lending.set_budget("speech", 0, period=400 * DAY)
    lending.submit_lending_jobs()
    lending.advance_hours(40)
    poor = [view for view in _views(lending) if view.state == State.REFUSED]
    assert poor
    assert all((view.reason or {}).get("code") == "budget" for view in poor)
    # A tenant's own share costs nothing.
    assert any(view.state == State.FINISHED and view.price == 0 for view in _views(lending))
    assert lending.entries() == []


def test_borrower_without_a_budget_stops_paying_lenders(lending: LendingBench) -> None:
    lending.set_budget("vision", 1_000, period=400 * DAY)
    lending.set_budget("speech", 500, period=400 * DAY)
    lending.submit_lending_jobs()
    name = lending.run_until_payment()
    assert lending.view(name).tenant == "vision"
    lending.commit(put_tenant("vision", None, None, budgeted=True))
    assert lending.view(name).refund is not None
    paid = len(lending.payments()), lending.balance("speech")
    lending.advance_hours(20)
    assert lending.view(name).state == State.FINISHED
    assert (len(lending.payments()), lending.balance("speech")) == paid


def test_a_lender_without_a_budget_has_no_account(lending: LendingBench) -> None:
    lending.set_budget("speech", 500, period=400 * DAY)
    lending.submit_lending_jobs()
    name = lending.run_until_payment()
    assert lending.view(name).tenant == "vision"
    lending.advance_hours(20)
    assert lending.view(name).price == 0
    assert {row.tenant for row in lending.payments()} == {"speech"}
    assert lending.balance("speech") > 500  # a borrower without a budget pays with new points


# ---------------------------------------------------------------- crashes

Step = Callable[[BudgetBench], None]


def _step_ends(bench: BudgetBench) -> None:
    for name in sorted(bench.durable.state.desired):
        if bench.view(name).held >= 4 and name in bench.durable.state.engine.running:
            bench.report_end(name)


def _many() -> list[dict[str, Any]]:
    return [job_record(f"many-{index}", tenant="vision") for index in range(5)]


def _script() -> list[Step]:
    """Actions of clients, of an executor and of time; each step may be repeated."""
    steps: list[Step] = [
        lambda bench: bench.set_budget("vision", 0.08, period=600, carry=POINT // 100),
        lambda bench: bench.set_budget("speech", 20, period=1_200),
    ]
    for index in range(7):
        for tenant in ("vision", "speech"):
            record = job_record(f"{tenant}-{index}", tenant=tenant, minibatches=20 + 10 * index)
            steps.append(lambda bench, record=record: bench.submit_records(record))  # type: ignore[misc]  # bound now
        steps.append(lambda bench: bench.advance_until_current())  # type: ignore[attr-defined]  # below
        steps.append(_step_ends)
        if index == 3:
            steps.append(lambda bench: bench.commit(cancel_job(bench.job_key("vision-2"))) and None)
            steps.append(lambda bench: bench.submit_records(*_many(), at_once=False))
            steps.append(lambda bench: bench.commit(decide_backlog(10)) and None)
    steps += [lambda bench: bench.advance_until_current(), _step_ends] * 16  # type: ignore[attr-defined]
    return steps


class CrashingBudgetBench(BudgetBench):
    """A durable engine whose process may die at any write."""

    fault: Callable[[str], None] = staticmethod(lambda _: None)

    def recover(self) -> None:
        super().recover()
        self.store.fault = self.fault

    def advance_until_current(self) -> None:
        while not self.commit(AdvanceSlots(self.virtual)).answers[0].is_caught_up:
            pass  # a machine under load handles slots in several batches

    def play(self) -> int:
        crashes = 0
        for step in _script():
            self.clock.advance(SLOT / 2)
            while True:
                try:
                    step(self)
                    break
                except Crash:
                    crashes += 1
                    self.store.fault = lambda _: None
                    self.store.close()
                    self.store = Store(self.store.where)
                    self.store.open()
                    self.recover()
        return crashes

    def entry_rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.entries()]


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["oasis", "rolling"])
def test_crash_at_any_write_leaves_the_same_ledger(tmp_path: Path, policy: str) -> None:
    counted = [0]

    def count(_: str) -> None:
        counted[0] += 1

    calm = CrashingBudgetBench(tmp_path / "calm", policy)
    calm.store.fault = calm.fault = count  # type: ignore[method-assign]  # of this one
    assert calm.play() == 0
    calm.check_accounts()
    rows = calm.entry_rows()
    kinds = Counter(row[3] for row in rows)
    assert set(kinds) == {"grant", "expiry", "debit", "refund"}, kinds
    refused = {view.key for view in _views(calm) if view.state == State.REFUSED}
    assert any(name.startswith(("vision", "many")) for name in refused)
    calm.store.close()
    points = counted[0]
    assert points > 200
    for point in range(CRASHES_BEGIN, points, max(1, points // CRASHES)):
        hit = CrashingBudgetBench(tmp_path / f"hit-{point}", policy)
        left = [point]

        def crash(_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Crash

        hit.store.fault = hit.fault = crash  # type: ignore[method-assign]  # of this one
        assert hit.play() == 1
        hit.check_accounts()
        assert hit.entry_rows() == rows
        hit.store.close()


CRASHES_BEGIN = 3
CRASHES = 6


def _views(bench: BudgetBench) -> list[JobView]:
    with bench.store.reading() as connection:
        return [
            JobView.from_json(text)
            for text in connection.execute(select(tables.jobs.c.view)).scalars()
        ]


@pytest.mark.parametrize("cost", [0.0, -1.0, 1e-9, 2.5e-7, 1.0, 1e12, 1e13, math.inf, math.nan])
def test_prices_are_integer_millionths(cost: float) -> None:
    price = to_price_units(cost)
    assert price >= 0
    if 0 < cost <= 1e12:
        assert abs(price - cost * 1e6) <= 0.5
    if not cost <= 1e12:
        assert price > 10**18


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(-1, 9)), max_size=8),
    st.lists(st.integers(-8, 60), min_size=1, max_size=6),
    st.booleans(),
)
def test_due_accounts_are_those_that_a_pass_over_all_finds(
    periods: list[tuple[int, int, int]], half_days: list[int], back: bool
) -> None:
    accounts = Accounts()
    accounts.may_go_back = back
    for name, days, period in periods:  # later ones replace earlier ones, or remove them
        budget = Budget(10 * POINT, period=days * 86_400)
        if period < 0:
            accounts.pop(f"tenant-{name}", None)
        else:
            accounts[f"tenant-{name}"] = Account(f"tenant-{name}", budget, period=period)
        for half_day in half_days:
            now = (Budget(POINT, period=DAY).begins(0) + half_day * DAY // 2) * SECOND
            expected = sorted(
                account.tenant
                for account in accounts.values()
                if account.ends <= now or (back and account.begins - now > MAX_AHEAD_NS)
            )
            assert [account.tenant for account in accounts.due(now)] == expected

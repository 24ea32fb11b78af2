"""What jobs cost their tenants: debits, refunds, payments, who is refused for want of points."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from shadowprice.core.budget import POINT, Budget, in_points
from shadowprice.core.cluster import Cluster
from shadowprice.executors.contract import Ended, Ending
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.billing import to_price_units
from shadowprice.service.budgets.operations import Grant, PutTenant, StartDuePeriods, SyncBudgets
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.operations import (
    CancelJob,
    DecideBacklog,
    QuoteJob,
    ReviseJob,
    SetServerAvailability,
    SubmitJobs,
)
from shadowprice.service.state.report_operations import RecordReports
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store, tables
from tests.support.astraea_cases import SETTINGS as SETTINGS_OF_EXAMPLE
from tests.support.astraea_cases import shared_cluster
from tests.support.ledger_checks import check_ledger
from tests.support.simulated_hours import CLUSTER, SLOT, Crash
from tests.unit.service.test_durable_engine import Bench

DAY = 86_400


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "rolling": {"prices": "given", "price": 0.02},
    "astraea": SETTINGS_OF_EXAMPLE,
}


class Till(Bench):
    """A truth whose tenants have budgets, under a policy that prices from the first job on."""

    cluster: Cluster = CLUSTER

    def read(self) -> None:
        self.choice = PolicyChoice(self.choice.name, SETTINGS.get(self.choice.name, {}))
        clock = MonotonicWallClock(self.clock)
        self.truth = DurableEngine(
            self.store, self.cluster, self.choice, clock, virtual=self.virtual
        )
        self.store.fault = lambda _: None
        if self.cluster is CLUSTER:
            for tenant in ("vision", "speech"):
                self.do(PutTenant(tenant, None))

    def ask(self, *records: dict[str, Any], at_once: bool = True) -> None:
        result = read_submissions(records, self.truth.state.engine.cluster, tenant=None, runs=True)
        self.do(SubmitJobs(result, at_once=at_once))

    def slot(self, slots: int = 1) -> None:
        """Run slots. Jobs of speech end in the slot that they were promised for."""
        for _ in range(slots):
            running = self.truth.state.engine.slot_running
            for name in list(self.truth.state.launch_commands):
                view = self.truth.state.views[name]
                if view.tenant == "speech" and view.first_promise == running:
                    self.ended(name)
            super().slot()

    def start_all(self) -> None:
        """Report that all commanded processes run."""
        for name, order in list(self.truth.state.launch_commands.items()):
            if self.truth.state.views[name].started < order.generation:
                self.started(name)

    def give(self, tenant: str, points: float, **more: Any) -> None:
        budget = Budget(round(points * POINT), **{"period": DAY, **more})
        self.do(PutTenant(tenant, None, budget, budgeted=True))

    def held(self, tenant: str) -> float:
        account = self.truth.state.accounts.get(tenant)
        assert account is not None
        return in_points(account.balance)

    def view(self, name: str) -> JobView:
        key = self.key(name)
        known = self.truth.state.views.get(key)
        if known is not None:
            return known
        with self.store.reading() as connection:
            table = tables.jobs
            text = connection.execute(select(table.c.view).where(table.c.key == key)).scalar()
        return JobView.from_json(text)

    def entries(self, tenant: str | None = None) -> list[Any]:
        table = tables.entries
        with self.store.reading() as connection:
            rows = connection.execute(select(table).order_by(table.c.id)).all()
        return [row for row in rows if tenant is None or row.tenant == tenant]

    def ended(self, name: str, ending: Ending = Ending.DONE, code: int | None = 0) -> None:
        name = self.key(name)
        order = self.truth.state.launch_commands[name]
        at = self.clock.wall() / SECOND
        self.do(RecordReports([Ended(0, name, order.generation, at, ending, code, "")]))

    def check(self) -> None:
        check_ledger(self.store)
        known = {name: one.balance for name, one in self.truth.state.accounts.snapshot().items()}
        with self.store.reading() as connection:
            rows = connection.execute(select(tables.budgets)).all()
        assert {row.tenant: row.balance for row in rows} == known


@pytest.fixture(params=["oasis", "rolling"])
def till(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Till]:
    result = Till(tmp_path / "data", request.param)
    yield result
    result.check()
    result.store.close()


def priced(till: Till, name: str, **changes: Any) -> JobView:
    """Fill the cluster until a job of vision's has a price, and admit it."""
    wide = {"chunks": 12, "minibatches": 40, "tenant": "speech"}
    for index in range(30):
        till.submit(f"filler-{index}", **wide)
        till.submit(f"{name}-{index}", tenant="vision", **changes)
        view = till.view(f"{name}-{index}")
        if view.price:
            return view
    raise AssertionError("nothing has a price")


def test_admission_debits_the_price(till: Till) -> None:
    till.give("vision", 1_000)
    view = priced(till, "job")
    assert view.price == to_price_units(view.cost or 0) > 0
    assert view.planned > 0
    debits = [row for row in till.entries("vision") if row.kind == "debit"]
    assert (debits[-1].job, debits[-1].points) == (view.key, -view.price)
    paid = sum(-row.points for row in debits)
    assert till.held("vision") == 1_000 - in_points(paid)
    assert till.entries("speech") == []
    assert "debited" in till.kinds(view.key)


def test_job_that_never_ran_is_fully_refunded(till: Till) -> None:
    till.give("vision", 1_000)
    view = priced(till, "job")
    before = till.held("vision")
    till.do(CancelJob(view.key))
    assert till.view(view.key).refund == view.price
    assert till.held("vision") == before + in_points(view.price or 0)
    assert till.kinds(view.key)[-2:] == ["cancelled", "refunded"] or "refunded" in till.kinds(
        view.key
    )


def test_used_slots_are_charged_at_the_mean_price(tmp_path: Path) -> None:
    till = Till(tmp_path / "data", "oasis")
    till.give("vision", 1_000)
    till.submit("filler", chunks=12, minibatches=200, tenant="speech")
    view = priced(till, "job", minibatches=60)
    places = 0
    for _ in range(60):
        till.slot()
        if view.key in till.truth.state.launch_commands:
            placement = till.truth.state.launch_commands[view.key].placement
            places += placement.total_workers
            break
    till.started(view.key)
    till.clock.advance(SLOT / 2)
    till.do(CancelJob(view.key))
    after = till.view(view.key)
    assert after.held == places
    assert after.planned > places
    used = math.ceil((view.price or 0) * places / after.planned)
    assert (after.used, after.refund) == (used, (view.price or 0) - used)
    till.check()
    till.store.close()


def test_unused_slots_are_refunded_at_their_price(tmp_path: Path) -> None:
    till = Till(tmp_path / "data", "oasis")
    till.give("vision", 1_000)
    # The first slots are fuller than the later ones, and dearer; the last job needs one of them.
    for index in range(2):
        till.submit(f"early-{index}", chunks=3, minibatches=30, tenant="speech")
    soon = {"kind": "deadline", "value": 50, "by": "7 slots"}
    for index in range(4):
        till.submit(f"job-{index}", tenant="vision", chunks=2, minibatches=40, utility=soon)
    view = till.view("job-3")
    plan, promised = till.truth.state.engine.jobs[till.key("job-3")].plan, view.unused
    assert promised is not None
    (first, places, dear), *later = promised
    assert sum(price for _, _, price in promised) == view.price
    assert [slot for slot, _, _ in promised] == plan.active_slots.tolist()
    assert later
    assert all(dear > 5 * price for _, _, price in later)
    till.slot()
    assert till.truth.state.engine.slot_running == first
    till.started("job-3")
    till.clock.advance(SLOT / 2)
    till.do(CancelJob(till.key("job-3")))
    after = till.view("job-3")
    assert (after.held, after.used) == (places, dear)
    assert after.refund == sum(price for _, _, price in later)
    till.check()
    till.store.close()


@pytest.mark.parametrize("policy", ["oasis", "pdors"])
def test_commitment_costs_of_slots_sum_to_the_price(tmp_path: Path, policy: str) -> None:
    till = Till(tmp_path / "data", policy)
    till.give("vision", 1_000)
    late = {"kind": "deadline", "value": 50, "by": "30 slots"}
    for index in range(8):
        servers = {"ps": {"cpu": 2}} if index % 2 else {}
        till.submit(
            f"job-{index}", tenant="vision", chunks=3, minibatches=90, utility=late, **servers
        )
        till.slot()
    with till.store.reading() as connection:
        entries = connection.execute(select(tables.journal.c.entry)).scalars().all()
    commits = [commit for entry in entries for commit in _commits(json.loads(entry))]
    itemised = [commit for commit in commits if "slot_costs" in commit]
    assert len(itemised) >= 3
    assert any(one["cost"] > 0 for one in itemised)
    for one in itemised:
        assert sum(one["slot_costs"]) == pytest.approx(one["cost"], rel=1e-9, abs=1e-12)
        assert min(one["slot_costs"]) >= 0
    digest = till.truth.state.engine.state_digest()
    till.read()  # the journal tells them, too
    assert till.truth.state.engine.state_digest() == digest
    till.check()
    till.store.close()


def _commits(record: Any) -> Iterator[dict[str, Any]]:
    if isinstance(record, dict):
        if record.get("decide") == "Commit":
            yield record
        record = list(record.values())
    for part in record if isinstance(record, list) else ():
        yield from _commits(part)


def test_job_above_the_budget_is_refused_with_the_reason(till: Till) -> None:
    till.give("vision", 1_000)
    dear = priced(till, "job")
    till.give("vision", 1_000 - till.held("vision"))  # all that is left goes
    assert till.held("vision") == 0
    till.submit("poor", tenant="vision")
    view = till.view("poor")
    assert view.state == State.REFUSED
    assert view.reason is not None
    assert view.reason["code"] == "budget"
    assert "vision holds 0 until" in view.reason["message"]
    assert view.reason["price"] > 0
    assert (view.price, view.cost) == (None, None)
    assert till.kinds("poor") == ["submitted", "refused"]
    # The name of a refused job is free, so that its file can be submitted again.
    till.do(Grant("vision", 1_000 * POINT, "more"))
    till.submit("poor", tenant="vision")
    again = till.view("poor")
    assert again.state != State.REFUSED
    assert again.id > view.id
    till.submit("rich", tenant="vision")
    assert till.view("rich").state != State.REFUSED
    assert till.view(dear.name).price == dear.price


def test_a_refused_job_leaves_no_trace_in_engine_or_policy(till: Till) -> None:
    till.give("vision", 1_000)
    priced(till, "job")
    till.give("vision", 1_000 - till.held("vision"))
    engine = till.truth.state.engine
    before = engine.state_digest(), engine.sequence, engine.session.dump_state()
    till.submit("poor", tenant="vision")
    assert till.view("poor").state == State.REFUSED
    assert (engine.state_digest(), engine.sequence, engine.session.dump_state()) == before
    till.read()  # and recovery hears nothing of it
    assert till.truth.state.engine.sequence == before[1]
    assert "poor" not in till.truth.state.views


def test_batch_jobs_are_admitted_in_order_within_the_budget(till: Till) -> None:
    till.give("vision", 1_000)
    price = priced(till, "job").price or 0
    till.give("vision", 1_000 - till.held("vision") + 2.5 * price / POINT)
    records = [_record(f"many-{index}", tenant="vision") for index in range(6)]
    records.append(_record("theirs", tenant="speech"))
    till.ask(*records, at_once=False)
    assert till.held("vision") == pytest.approx(
        2.5 * price / POINT, abs=1e-6
    )  # accepted is not decided
    till.do(DecideBacklog(100))
    states = [till.view(f"many-{index}").state for index in range(6)]
    assert State.REFUSED in states
    assert states[0] != State.REFUSED
    assert till.view("theirs").state.open
    assert not till.truth.state.backlog


def test_quote_states_the_remaining_budget(till: Till) -> None:
    till.give("vision", 1_000)
    priced(till, "job")
    [asked] = read_submissions([_record("x", tenant="vision")], CLUSTER, tenant=None, runs=False)
    held = till.held("vision")
    [told] = till.do(QuoteJob(asked)).answers
    assert told.price == to_price_units(told.quote.price)
    assert in_points(told.held) == held == till.held("vision")
    assert told.reason is None
    till.give("vision", 1_000 - held)
    [told] = till.do(QuoteJob(asked)).answers
    assert told.held == 0
    assert told.reason is not None
    assert told.reason["code"] == "budget"
    [asked] = read_submissions([_record("x", tenant="speech")], CLUSTER, tenant=None, runs=False)
    [told] = till.do(QuoteJob(asked)).answers
    assert (told.held, told.reason) == (None, None)


def test_additional_work_is_charged_or_refused_above_the_budget(till: Till) -> None:
    till.give("vision", 1_000)
    view = priced(till, "job")
    held = till.held("vision")
    till.do(ReviseJob(view.key, {"minibatches": 120}))
    after = till.view(view.key)
    assert after.price == pytest.approx(2 * (view.price or 0), abs=1)
    paid = (after.price or 0) - (view.price or 0)
    assert till.held("vision") == pytest.approx(held - paid / POINT)
    till.do(ReviseJob(view.key, {"minibatches": 30}))  # less: what is not used comes back later
    assert till.view(view.key).price == after.price
    till.give("vision", 1_000 - till.held("vision"))
    with pytest.raises(ProblemError, match="vision holds 0") as caught:
        till.do(ReviseJob(view.key, {"minibatches": 150}))
    assert caught.value.code == "budget"
    assert till.truth.state.specs[view.key]["minibatches"] == 30


def test_lost_slots_are_not_charged(tmp_path: Path) -> None:
    till = Till(tmp_path / "data", "oasis")
    till.give("vision", 1_000)
    till.submit("filler", chunks=12, minibatches=200, tenant="speech")
    view = priced(till, "job", minibatches=90)
    while view.key not in till.truth.state.launch_commands:
        till.slot()
    till.started(view.key)
    till.slot()
    assert (one := till.view(view.key).held) > 0
    till.ended(view.key, Ending.LOST, None)
    till.slot()  # it starts again
    assert till.view(view.key).held == one
    assert view.key in till.truth.state.launch_commands
    for server in till.truth.state.launch_commands[view.key].servers:
        till.do(SetServerAvailability(server))
    assert till.view(view.key).held == one
    till.check()
    till.store.close()


def test_waiting_job_above_the_budget_is_abandoned(tmp_path: Path) -> None:
    """It has no price while it waits; with the slot that gives it one, it goes."""
    till = Till(tmp_path / "data", "rolling")
    till.give("vision", 0)
    for index in range(12):
        till.submit(
            f"filler-{index}",
            minibatches=100,
            tenant="speech",
            utility={"kind": "deadline", "value": 50, "by": "11 slots"},
        )
    till.submit(
        "waits",
        chunks=4,
        minibatches=60,
        tenant="vision",
        utility={"kind": "deadline", "value": 10, "by": "9 slots"},
    )
    assert till.view("waits").state == State.STANDBY, till.view("waits")
    for index in range(12):
        till.do(CancelJob(till.key(f"filler-{index}")))
    sequence = till.truth.state.engine.sequence
    till.slot()
    view = till.view("waits")
    assert view.state == State.REFUSED
    assert view.reason is not None
    assert view.reason["code"] == "budget"
    assert till.truth.state.engine.sequence > sequence + 1
    assert till.truth.state.engine.slot_running is not None or not till.truth.state.engine.open_jobs
    digest = till.truth.state.engine.state_digest()
    till.read()
    assert till.truth.state.engine.state_digest() == digest
    till.check()
    till.store.close()


def test_job_without_a_promise_runs_free(tmp_path: Path) -> None:
    till = Till(tmp_path / "data", "fifo")
    till.give("vision", 0)
    till.submit("free", tenant="vision")
    till.slot(3)
    assert till.view("free").state.open
    assert till.view("free").price is None
    assert till.entries("vision") == []
    till.store.close()


def test_budget_periods_start_automatically_and_once(till: Till) -> None:
    now = till.clock.wall() // SECOND
    till.give("vision", 100, period=3_600, since=now - 600, carry=30 * POINT)
    assert till.held("vision") == 100
    till.clock.advance(2_999)
    till.do(StartDuePeriods())
    assert till.held("vision") == 100
    till.clock.advance(1)
    till.do(StartDuePeriods())
    assert till.held("vision") == 130
    till.clock.set_by -= 3_000 * SECOND
    till.read()
    till.do(StartDuePeriods())
    assert till.held("vision") == 130
    till.clock.set_by += 3_000 * SECOND
    till.clock.advance(5 * 3_600)
    till.read()  # it was down meanwhile
    till.do(StartDuePeriods())
    assert till.held("vision") == 130
    assert [row.kind for row in till.entries("vision")] == [
        "grant", "expiry", "grant", "expiry", "grant",
    ]  # fmt: skip


def test_clock_error_leaves_no_account_in_a_future_period(till: Till) -> None:
    now, week, weeks_ahead = till.clock.wall() // SECOND, 7 * 86_400, 40 * 86_400 * SECOND
    till.give("vision", 100, period=week, since=now - 600)
    period = till.truth.state.accounts.get("vision").period
    till.clock.set_by += weeks_ahead
    till.read()
    till.do(StartDuePeriods())
    assert till.truth.state.accounts.get("vision").period == period + 5
    till.clock.set_by -= weeks_ahead
    till.read()
    till.do(StartDuePeriods())  # the clock may be wrong
    assert till.truth.state.accounts.get("vision").period == period + 5
    till.truth.state.accounts.may_go_back = True
    till.do(StartDuePeriods())
    account = till.truth.state.accounts.get("vision")
    assert (account.period, till.held("vision")) == (period, 100)
    assert not till.truth.state.accounts.any_due(till.clock.wall())
    till.do(CancelJob(priced(till, "job").key))
    assert till.held("vision") == 100  # paid in this period, so nothing expires
    till.clock.advance(week - 600)
    till.do(StartDuePeriods())
    assert till.truth.state.accounts.get("vision").period == period + 1


def test_budgets_are_set_changed_and_removed(till: Till) -> None:
    till.give("vision", 100)
    till.give("vision", 150)
    till.give("vision", 120)
    till.give("vision", 120)  # nothing changes
    till.do(Grant("vision", 5 * POINT, "well done"))
    assert till.held("vision") == 125
    view = priced(till, "job")
    till.do(PutTenant("vision", None, None, budgeted=True))
    assert till.truth.state.accounts.get("vision") is None
    with pytest.raises(ProblemError, match="no budget"):
        till.do(Grant("vision", POINT, ""))
    assert till.view(view.key).state.open
    assert till.view(view.key).refund == view.price  # it expired with the budget
    till.give("vision", 30)
    till.do(CancelJob(view.key))
    assert till.held("vision") == 30  # no second refund, to an account that didn't pay
    till.do(PutTenant("vision", None, None, budgeted=True))
    till.submit("free", tenant="vision")
    assert till.view("free").price == 0
    till.give("vision", 1)
    till.do(CancelJob(till.key("free")))
    assert till.held("vision") == 1
    kinds = [(row.kind, row.points // POINT) for row in till.entries("vision")]
    assert kinds[:4] == [("grant", 100), ("grant", 50), ("expiry", -30), ("grant", 5)]
    told = [row for row in till.entries("vision") if row.job == view.key]
    assert [row.kind for row in told] == ["debit", "refund"]


def test_budget_below_the_debits_admits_no_priced_job(till: Till) -> None:
    till.give("vision", 1_000)
    view = priced(till, "job")
    paid = 1_000 - till.held("vision")
    till.give("vision", 0)
    assert till.held("vision") == pytest.approx(-paid)
    till.submit("poor", tenant="vision")
    reason = till.view("poor").reason
    assert reason is not None
    assert reason["code"] == "budget"
    assert "vision holds -" in reason["message"]
    till.read()
    till.give("vision", 1_000)  # there and back changes nothing
    assert till.held("vision") == 1_000 - paid
    till.give("vision", 0)
    till.do(CancelJob(view.key))
    till.check()
    till.do(PutTenant("vision", None, None, budgeted=True))
    assert sum(row.points for row in till.entries("vision")) == 0
    till.submit("free", tenant="vision")
    assert till.view("free").state.open


def test_cluster_file_sets_budgets_except_those_set_by_operators(till: Till) -> None:
    file = Budget(10 * POINT, DAY)
    till.do(SyncBudgets({"vision": file}))
    assert till.held("vision") == 10
    till.give("vision", 70)
    till.read()
    till.do(SyncBudgets({"vision": file}))
    assert till.held("vision") == 70
    till.do(SyncBudgets({"vision": Budget(20 * POINT, DAY), "speech": file}))
    assert (till.held("vision"), till.held("speech")) == (20, 10)
    till.do(SyncBudgets({"speech": file}))
    assert till.truth.state.accounts.get("vision") is None


class Market(Till):
    """Tenants that lend each other what they do not use."""

    cluster = shared_cluster(
        4, {"vision": {"worker": 2, "ps": 1}, "speech": {"worker": 6, "ps": 3}}
    )

    def open(self) -> None:
        """Let vision ask for more than it owns, beside a job of speech's on its own share."""
        for name, tenant, workers in (("own", "speech", 2), ("big", "vision", 4)):
            self.ask(
                {
                    "name": name,
                    "tenant": tenant,
                    "epochs": 4,
                    "chunks": workers,
                    "minibatch_time": "1h",
                    "worker": {"worker": 1},
                    "ps": {"ps": 1},
                    "utility": {"kind": "linear", "value": 400, "slope": -2},
                    "run": {"command": ["train"]},
                }
            )

    def lent(self) -> list[Any]:
        return [row for row in self.entries() if row.kind == "payment"]

    def borrower(self) -> str:
        """Wait until somebody who borrows has paid for a slot."""
        for _ in range(40):
            _hours(self, 1)
            if paid := self.lent():
                return str(paid[0].job)
        raise AssertionError("nobody borrows")


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    result = Market(tmp_path / "data", "astraea", virtual=True)
    yield result
    result.check()
    result.store.close()


def _hours(market: Market, hours: int) -> None:
    for _ in range(hours):
        market.clock.advance(3_600)
        market.do(AdvanceSlots(virtual=True))
        market.check()


def test_payments_between_tenants_use_their_accounts(market: Market) -> None:
    market.give("vision", 1_000, period=400 * DAY)
    market.give("speech", 500, period=400 * DAY)
    market.open()
    assert market.held("vision") == 1_000  # the batch is not decided yet
    name = market.borrower()
    owner = market.view(name).tenant
    [debit] = [row for row in market.entries() if row.kind == "debit"]
    assert (debit.job, debit.tenant) == (name, owner)
    assert {row.other for row in market.lent()} == {owner}
    assert {row.tenant for row in market.lent()} == {"vision", "speech"}  # its own idle share too
    _hours(market, 20)
    view = market.view(name)
    assert view.state == State.FINISHED
    assert sum(row.points for row in market.lent()) == -debit.points == view.used == view.price
    assert view.refund == 0
    assert market.held("vision") + market.held("speech") == 1_500  # nothing is lost between them


def test_revised_gang_keeps_its_placement_and_pays_for_the_additional_work(
    market: Market,
) -> None:
    market.give("vision", 1_000, period=400 * DAY)
    market.give("speech", 500, period=400 * DAY)
    market.open()
    name = market.borrower()
    before, record = market.view(name), market.truth.state.engine.open_jobs[name]
    assert before.price is not None
    last = record.plan.completion
    market.do(ReviseJob(name, {"epochs": 5}))
    after = market.view(name)
    assert after.price is not None
    assert after.price > before.price
    assert record.plan.completion == after.promise
    assert record.plan.completion > last
    _hours(market, 20)
    view = market.view(name)
    assert view.state == State.FINISHED
    assert view.used == view.price


def test_undistributed_payments_are_refunded(market: Market) -> None:
    market.give("vision", 1_000, period=400 * DAY)
    market.give("speech", 500, period=400 * DAY)
    market.open()
    name = market.borrower()
    view = market.view(name)
    assert 0 < view.used < (view.price or 0)
    market.do(CancelJob(name))
    after = market.view(name)
    assert after.refund == (view.price or 0) - view.used > 0
    assert market.held("vision") + market.held("speech") == 1_500


def test_borrower_above_its_budget_is_abandoned(market: Market) -> None:
    market.give("vision", 0, period=400 * DAY)
    market.give("speech", 0, period=400 * DAY)
    market.open()
    _hours(market, 40)
    poor = [view for view in _views(market) if view.state == State.REFUSED]
    assert poor
    assert all((view.reason or {}).get("code") == "budget" for view in poor)
    # What is its own costs nothing.
    assert any(view.state == State.FINISHED and view.price == 0 for view in _views(market))
    assert market.entries() == []


def test_borrower_without_a_budget_stops_paying_lenders(market: Market) -> None:
    market.give("vision", 1_000, period=400 * DAY)
    market.give("speech", 500, period=400 * DAY)
    market.open()
    name = market.borrower()
    assert market.view(name).tenant == "vision"
    market.do(PutTenant("vision", None, None, budgeted=True))
    assert market.view(name).refund is not None
    paid = len(market.lent()), market.held("speech")
    _hours(market, 20)
    assert market.view(name).state == State.FINISHED
    assert (len(market.lent()), market.held("speech")) == paid


def test_a_lender_without_a_budget_has_no_account(market: Market) -> None:
    market.give("speech", 500, period=400 * DAY)
    market.open()
    name = market.borrower()
    assert market.view(name).tenant == "vision"
    _hours(market, 20)
    assert market.view(name).price == 0
    assert {row.tenant for row in market.lent()} == {"speech"}
    assert market.held("speech") > 500  # a borrower without a budget pays with new points


# ---------------------------------------------------------------- crashes

Step = Callable[[Till], None]


def _step_ends(till: Till) -> None:
    for name in sorted(till.truth.state.launch_commands):
        if till.view(name).held >= 4 and name in till.truth.state.engine.running:
            till.ended(name)


def _many() -> list[dict[str, Any]]:
    return [_record(f"many-{index}", tenant="vision") for index in range(5)]


def _script() -> list[Step]:
    """What clients, an executor and time do; each step may be done again."""
    steps: list[Step] = [
        lambda till: till.give("vision", 0.08, period=600, carry=POINT // 100),
        lambda till: till.give("speech", 20, period=1_200),
    ]
    for index in range(7):
        for tenant in ("vision", "speech"):
            record = _record(f"{tenant}-{index}", tenant=tenant, minibatches=20 + 10 * index)
            steps.append(lambda till, record=record: till.ask(record))  # type: ignore[misc]  # bound now
        steps.append(lambda till: till.slot_again())  # type: ignore[attr-defined]  # below
        steps.append(_step_ends)
        if index == 3:
            steps.append(lambda till: till.do(CancelJob(till.key("vision-2"))) and None)
            steps.append(lambda till: till.ask(*_many(), at_once=False))
            steps.append(lambda till: till.do(DecideBacklog(10)) and None)
    steps += [lambda till: till.slot_again(), _step_ends] * 16  # type: ignore[attr-defined]
    return steps


class Crashing(Till):
    """A truth whose process may be gone at any write."""

    fault: Callable[[str], None] = staticmethod(lambda _: None)

    def read(self) -> None:
        super().read()
        self.store.fault = self.fault

    def slot_again(self) -> None:
        while not self.do(AdvanceSlots(self.virtual)).answers[0].caught_up:
            pass  # a machine under load takes slots in by several batches

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
                    self.read()
        return crashes

    def ledger(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.entries()]


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["oasis", "rolling"])
def test_crash_at_any_write_leaves_the_same_ledger(tmp_path: Path, policy: str) -> None:
    counted = [0]

    def count(_: str) -> None:
        counted[0] += 1

    calm = Crashing(tmp_path / "calm", policy)
    calm.store.fault = calm.fault = count  # type: ignore[method-assign]  # of this one
    assert calm.play() == 0
    calm.check()
    told = calm.ledger()
    kinds = Counter(row[3] for row in told)
    assert set(kinds) == {"grant", "expiry", "debit", "refund"}, kinds
    refused = {view.key for view in _views(calm) if view.state == State.REFUSED}
    assert any(name.startswith(("vision", "many")) for name in refused)
    calm.store.close()
    points = counted[0]
    assert points > 200
    for point in range(CRASHES_BEGIN, points, max(1, points // CRASHES)):
        hit = Crashing(tmp_path / f"hit-{point}", policy)
        left = [point]

        def crash(_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Crash

        hit.store.fault = hit.fault = crash  # type: ignore[method-assign]  # of this one
        assert hit.play() == 1
        hit.check()
        assert hit.ledger() == told
        hit.store.close()


CRASHES_BEGIN = 3
CRASHES = 6


def _views(till: Till) -> list[JobView]:
    with till.store.reading() as connection:
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


def _record(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "chunks": 1,
        "minibatches": 60,
        "minibatch_time": "6s",
        "worker": {"gpu": 1, "cpu": 1},
        "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "20 slots"},
        "run": {"command": ["train"], "retries": 1},
        **changes,
    }

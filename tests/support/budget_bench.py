"""Durable engines whose tenants have budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from shadowprice.core.budget import POINT, Budget, in_points
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import MICRO
from shadowprice.executors.contract import Ended, Ending, Progressed
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.operations import put_tenant
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.queries.event_text import format_event
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.operations import (
    SubmitJobs,
    quote_job,
)
from shadowprice.service.state.report_operations import RecordProgress, RecordReports
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.store_queries import list_events
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import tables
from tests.support.astraea_cases import SETTINGS as SETTINGS_OF_EXAMPLE
from tests.support.astraea_cases import shared_cluster
from tests.support.engine_bench import EngineBench
from tests.support.ledger_checks import check_ledger
from tests.support.simulated_hours import CLUSTER

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "rolling": {"prices": "given", "price": 0.02},
    "astraea": SETTINGS_OF_EXAMPLE,
}


class BudgetBench(EngineBench):
    """A durable engine with tenants' budgets, whose policy has prices from the first job on."""

    cluster: Cluster = CLUSTER

    def recover(self) -> None:
        self.choice = PolicyChoice(self.choice.name, SETTINGS.get(self.choice.name, {}))
        clock = MonotonicWallClock(self.clock)
        self.durable = DurableEngine(
            self.store, self.cluster, self.choice, clock, virtual=self.virtual
        )
        self.store.fault = lambda _: None
        if self.cluster is CLUSTER:
            for tenant in ("vision", "speech"):
                self.commit(put_tenant(tenant, None))

    def submit_records(self, *records: dict[str, Any], at_once: bool = True) -> None:
        result = read_submissions(
            records, self.durable.state.engine.cluster, tenant=None, runs=True
        )
        self.commit(SubmitJobs(result, at_once=at_once))

    def advance(self, slots: int = 1) -> None:
        """Run slots. Jobs of speech end in the slot of their promise."""
        for _ in range(slots):
            running = self.durable.state.engine.slot_running
            for name in list(self.durable.state.desired):
                view = self.durable.state.views[name]
                if view.tenant == "speech" and view.first_promise == running:
                    self.report_end(name)
            super().advance()

    def report_starts(self) -> None:
        """Report that all commanded processes run."""
        for name, order in list(self.durable.state.desired.items()):
            if self.durable.state.views[name].started < order.generation:
                self.report_start(name)

    def set_budget(self, tenant: str, points: float, **more: Any) -> None:
        budget = Budget(round(points * POINT), **{"period": 86_400, **more})
        self.commit(put_tenant(tenant, None, budget, budgeted=True))

    def balance(self, tenant: str) -> float:
        account = self.durable.state.accounts.get(tenant)
        assert account is not None
        return in_points(account.balance)

    def view(self, name: str) -> JobView:
        key = self.job_key(name)
        view = self.durable.state.views.get(key)
        if view is not None:
            return view
        with self.store.reading() as connection:
            table = tables.jobs
            text = connection.execute(select(table.c.view).where(table.c.key == key)).scalar()
        return JobView.from_json(text)

    def entries(self, tenant: str | None = None) -> list[Any]:
        table = tables.entries
        with self.store.reading() as connection:
            rows = connection.execute(select(table).order_by(table.c.id)).all()
        return [row for row in rows if tenant is None or row.tenant == tenant]

    def report_end(self, name: str, ending: Ending = Ending.DONE, code: int | None = 0) -> None:
        name = self.job_key(name)
        order = self.durable.state.desired[name]
        at = self.clock.wall() / SECOND
        self.commit(RecordReports([Ended(0, name, order.generation, at, ending, code, "")]))

    def check_accounts(self) -> None:
        check_ledger(self.store)
        balances = {name: account.balance for name, account in self.durable.state.accounts.items()}
        with self.store.reading() as connection:
            rows = connection.execute(select(tables.budgets)).all()
        assert {row.tenant: row.balance for row in rows} == balances


def fill_until_priced(bench: BudgetBench, name: str, **changes: Any) -> JobView:
    """Fill the cluster until a job of vision's has a price, and admit it."""
    wide = {"chunks": 12, "minibatches": 40, "tenant": "speech"}
    for index in range(30):
        bench.submit(f"filler-{index}", **wide)
        bench.submit(f"{name}-{index}", tenant="vision", **changes)
        view = bench.view(f"{name}-{index}")
        if view.price:
            return view
    raise AssertionError("nothing has a price")


class LendingBench(BudgetBench):
    """Tenants that lend each other unused resources, under astraea."""

    cluster = shared_cluster(
        4, {"vision": {"worker": 2, "ps": 1}, "speech": {"worker": 6, "ps": 3}}
    )

    def submit_lending_jobs(self) -> None:
        """Submit a job of vision above its share, and a job of speech on its own share."""
        for name, tenant, workers in (("own", "speech", 2), ("big", "vision", 4)):
            self.submit_records(
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

    def payments(self) -> list[Any]:
        return [row for row in self.entries() if row.kind == "payment"]

    def advance_hours(self, hours: int) -> None:
        for _ in range(hours):
            self.clock.advance(3_600)
            self.commit(AdvanceSlots(virtual=True))
            self.check_accounts()

    def run_until_payment(self) -> str:
        """Run until a borrower has paid for a slot; return its job."""
        for _ in range(40):
            self.advance_hours(1)
            if paid := self.payments():
                return str(paid[0].job)
        raise AssertionError("no job borrows")


def job_record(name: str, **changes: Any) -> dict[str, Any]:
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


SLOT_WORK = 10
"""Mini-batches of one worker in a slot."""


BY_39 = {"kind": "deadline", "value": 100, "by": "39 slots"}


BY_14 = {"kind": "deadline", "value": 20, "by": "14 slots"}


class OverrunBench(BudgetBench):
    """An engine with budgets whose commanded processes start at once, if ``starts``."""

    starts = True

    def advance(self, slots: int = 1) -> None:
        for _ in range(slots):
            super().advance()
            if self.starts:
                self.report_starts()

    def run_busy_slots(self, slots: int, jobs: int = 2) -> int:
        """Run slots in each of which speech submits jobs of ten slots; return the refused ones."""
        refused = 0
        for _ in range(slots):
            for _ in range(jobs):
                self.count = getattr(self, "count", 0) + 1
                name = f"other-{self.count}"
                self.submit(name, tenant="speech", minibatches=10 * SLOT_WORK, utility=BY_14)
                refused += self.view(name).state == "refused"
            self.advance()
        return refused

    def run_stated_work(self, work: int = SLOT_WORK, **changes: Any) -> JobView:
        """Submit vision's job in a busy cluster, and run it to the end of its stated work."""
        self.submit("job", tenant="vision", minibatches=work, utility=BY_39, **changes)
        while self.view("job").covered < work * MICRO:
            self.advance()
            assert self.view("job").state.open
            assert self.view("job").overrun_slots == 0
        return self.view("job")

    def quote_price(self, work: int, utility: dict[str, Any] = BY_39) -> int:
        record = job_record("quoted", tenant="vision", minibatches=work, utility=utility)
        [submission] = read_submissions([record], CLUSTER, tenant=None, runs=False)
        [quote] = self.commit(quote_job(submission)).answers
        assert quote.price is not None
        return int(quote.price)

    def history_lines(self, name: str) -> list[str]:
        with self.store.reading() as connection:
            events = list_events(connection, after=0, job=self.job_key(name))
        return [format_event(event.kind, event.data) for event in events]

    def report_saved_progress(self, name: str, minibatches: float, *, saves: bool = False) -> None:
        key = self.job_key(name)
        generation = self.durable.state.desired[key].generation
        at = self.clock.wall() / SECOND
        done = int(minibatches * MICRO)
        report = Progressed(key, generation, done, {}, at, checkpoints=saves)
        self.commit(RecordProgress({key: report}, [report]))

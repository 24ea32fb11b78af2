"""Slots beyond the stated work of a job: what they cost, and when the job ends instead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shadowprice.cli.commands.submit import describe_job
from shadowprice.core.budget import POINT
from shadowprice.core.events import Stop
from shadowprice.core.job import MICRO
from shadowprice.core.policy import as_priced_policy
from shadowprice.executors.contract import Ended, Ending, Progressed
from shadowprice.service.budgets import accounts
from shadowprice.service.budgets.operations import Grant, PutTenant
from shadowprice.service.budgets.usage import price_of_unused
from shadowprice.service.clock import SECOND
from shadowprice.service.queries.event_text import format_event
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.operations import (
    CancelJob,
    QuoteJob,
    ReviseJob,
    SetServerAvailability,
)
from shadowprice.service.state.prices import placement_costs
from shadowprice.service.state.report_operations import RecordProgress, RecordReports
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.store_queries import list_events
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store
from tests.support.simulated_hours import CLUSTER, SLOT, Crash
from tests.unit.service.test_billing import Market, Till, _record

POLICIES = ["rolling", "oasis", pytest.param("pdors", marks=pytest.mark.extended)]

BY_39 = {"kind": "deadline", "value": 100, "by": "39 slots"}
ALWAYS = {"kind": "constant", "value": 100}
BY_14 = {"kind": "deadline", "value": 20, "by": "14 slots"}

SLOT_WORK = 10
"""Mini-batches of one worker in a slot."""


class Shop(Till):
    """A store on hand-set clocks, whose processes start as soon as they are commanded."""

    starts = True

    def slot(self, slots: int = 1) -> None:
        for _ in range(slots):
            super().slot()
            if self.starts:
                self.start_all()

    def crowd(self, slots: int, jobs: int = 2) -> int:
        """Run slots in each of which speech submits jobs of ten slots; return the refused ones."""
        refused = 0
        for _ in range(slots):
            for _ in range(jobs):
                self.count = getattr(self, "count", 0) + 1
                name = f"other-{self.count}"
                self.submit(name, tenant="speech", minibatches=10 * SLOT_WORK, utility=BY_14)
                refused += self.view(name).state == "refused"
            self.slot()
        return refused

    def admit(self, work: int = SLOT_WORK, **changes: Any) -> JobView:
        """Submit vision's job in a busy cluster, and run it to the end of its stated work."""
        self.submit("job", tenant="vision", minibatches=work, utility=BY_39, **changes)
        while self.view("job").covered < work * MICRO:
            self.slot()
            assert self.view("job").state.open
            assert self.view("job").overrun_slots == 0
        return self.view("job")

    def quoted(self, work: int, utility: dict[str, Any] = BY_39) -> int:
        record = _record("true", tenant="vision", minibatches=work, utility=utility)
        [asked] = read_submissions([record], CLUSTER, tenant=None, runs=False)
        [quote] = self.do(QuoteJob(asked)).answers
        assert quote.price is not None
        return int(quote.price)

    def lines(self, name: str) -> list[str]:
        with self.store.reading() as connection:
            events = list_events(connection, after=0, job=self.key(name))
        return [format_event({"kind": event.kind, "data": event.data}) for event in events]

    def reported(self, name: str, minibatches: float, *, saves: bool = False) -> None:
        key = self.key(name)
        generation = self.truth.state.launch_commands[key].generation
        at = self.clock.wall() / SECOND
        done = int(minibatches * MICRO)
        report = Progressed(key, generation, done, {}, at, checkpoints=saves)
        self.do(RecordProgress({key: report}, [report]))


def shop(folder: Path, policy: str) -> Shop:
    opened = Shop(folder, policy)
    opened.give("vision", 10_000)
    opened.give("speech", 100_000)
    return opened


@pytest.fixture(params=POLICIES)
def till(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    result = shop(tmp_path / "data", request.param)
    result.crowd(6)
    yield result
    result.check()
    result.store.close()


@pytest.fixture
def oasis(tmp_path: Path) -> Iterator[Shop]:
    result = shop(tmp_path / "data", "oasis")
    result.crowd(6)
    yield result
    result.check()
    result.store.close()


# ---------------------------------------------------------------- the attacks


def test_a_job_of_one_slot_that_takes_24_pays_at_least_what_24_are_quoted(till: Shop) -> None:
    # A job that is worth nothing any more would be abandoned as endless.
    quoted = till.quoted(24 * SLOT_WORK, ALWAYS)
    till.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=ALWAYS)
    first = till.view("job").price
    assert first is not None
    assert first < quoted / 10
    while till.view("job").covered < 24 * SLOT_WORK * MICRO:
        till.crowd(1)
        assert till.view("job").state.open
    till.ended("job")
    view = till.view("job")
    assert view.state == "finished"
    assert view.overrun_slots == 23
    assert view.used >= quoted - 24  # each slot is rounded to a millionth
    assert (view.price or 0) - view.used == view.refund


def test_a_job_that_runs_on_while_others_are_refused_ends_when_its_tenant_cannot_pay(
    oasis: Shop,
) -> None:
    oasis.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=BY_39)
    first = oasis.view("job").price or 0
    oasis.give("vision", 10_000 - oasis.held("vision") + 40)  # 40 points are left
    refused = 0
    for _ in range(29):
        refused += oasis.crowd(1)
        if not oasis.view("job").state.open:
            break
    assert refused
    view = oasis.view("job")
    assert view.state == "failed"
    assert 0 < view.overrun_slots < 5
    assert view.used == view.price == first + view.overrun
    assert view.reason is not None
    assert view.reason["code"] == "budget"
    assert view.reason["price"] > oasis.held("vision") >= 0
    assert "another slot beyond its stated work of 10 mini-batches costs" in view.reason["message"]
    assert view.reason["message"].endswith(
        "; submit it again with its true work and speed, or ask the operator for points; while a "
        "job runs, its `minibatches` can be revised before its stated work is done"
    )
    assert oasis.kinds("job")[-1] == "given-up"
    assert oasis.lines("job")[-1].startswith("given-up: another slot beyond")
    # It doesn't run in the slot that it can't pay for, and ends as if it were cancelled.
    key = oasis.key("job")
    assert key not in oasis.truth.state.engine.running
    stops = [one for one in oasis.truth.state.engine.unacknowledged.values() if one.job == key]
    assert isinstance(stops[-1], Stop)
    assert stops[-1].slot == oasis.truth.state.engine.slot_running


@pytest.mark.parametrize("policy", POLICIES)
def test_without_points_a_job_ends_with_the_slot_that_completes_its_stated_work(
    tmp_path: Path, policy: str
) -> None:
    till = shop(tmp_path / "data", policy)
    till.crowd(6)
    till.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=BY_39)
    till.give("vision", 10_000 - till.held("vision"))
    assert till.held("vision") == 0
    while till.view("job").covered < 2 * SLOT_WORK * MICRO:
        till.crowd(1)
    assert till.view("job").state == "failed"
    assert (till.view("job").reason or {})["code"] == "budget"
    assert till.held("vision") >= 0  # an unused part of its price returns
    till.check()
    till.store.close()


# ---------------------------------------------------------------- what the owner sees


def test_the_owner_sees_the_price_of_each_slot_and_how_to_avoid_it(till: Shop) -> None:
    before = till.admit(2 * SLOT_WORK)
    view = till.view("job")
    assert view.slot_price is not None
    assert view.reason is not None
    assert view.reason["code"] == "overrun"
    assert view.reason["message"].startswith(
        "runs beyond its stated work of 20 mini-batches: this slot costs"
    )
    assert "revise `minibatches`" in view.reason["message"]
    points = view.to_resource().points
    assert points is not None
    assert points.slot_price == view.slot_price / POINT
    assert (points.overrun, points.overrun_slots) == (0, 0)
    slot_price, held = view.slot_price, till.held("vision")
    till.slot()
    view = till.view("job")
    assert (view.overrun, view.overrun_slots) == (slot_price, 1)
    assert till.held("vision") == pytest.approx(held - (view.slot_price or 0) / POINT)
    assert dict(describe_job(view.to_resource()))["overrun"].endswith(
        "points, for 1 slot beyond its stated work"
    )
    till.slot(3)
    assert till.kinds("job").count("overrun") == 1
    assert [row.note for row in till.entries("vision") if row.job == view.key][-1].startswith(
        "beyond its stated work, slot "
    )
    till.ended("job")
    view = till.view("job")
    assert (view.state, view.reason, view.slot_price) == ("finished", None, None)
    assert view.overrun_slots == 4
    assert view.planned == before.planned


def test_truthful_job_pays_only_its_price(till: Shop) -> None:
    """Also if its processes start a little after the slot, so that it ends in one more slot."""
    till.submit("job", tenant="vision", minibatches=3 * SLOT_WORK, utility=BY_39)
    price = till.view("job").price
    till.starts = False
    while till.key("job") not in till.truth.state.launch_commands:
        till.slot()
    till.clock.advance(SLOT / 10)
    till.start_all()
    till.slot(3)
    till.ended("job")
    view = till.view("job")
    assert (view.state, view.price, view.overrun, view.overrun_slots) == ("finished", price, 0, 0)


def test_a_slot_price_is_the_posted_price_of_its_place(tmp_path: Path) -> None:
    """A worked example: 0.02 points for the share of a slot that is all of the cluster's GPUs."""
    till = shop(tmp_path / "data", "rolling")
    till.admit(SLOT_WORK)
    assert till.view("job").slot_price == pytest.approx(0.02 * (1 / 12 + 1 / 48) * POINT, abs=1)
    till.store.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_batch_prices_equal_individual_prices(tmp_path: Path, policy: str) -> None:
    """Each at the posted prices without its own use, whatever the others use."""
    till = shop(tmp_path / "data", policy)
    till.crowd(8)
    engine = till.truth.state.engine
    cluster, priced = engine.cluster, as_priced_policy(engine.policy)
    assert priced is not None
    placements = {name: (engine.jobs[name].job, on) for name, on in engine.running.items()}
    servers = [row for _, on in placements.values() for row in on.servers]
    assert len(set(servers)) < len(servers)
    costs = placement_costs(priced, engine.view, placements)
    assert list(costs) == list(placements)
    for name, (job, on) in placements.items():
        assert job.ps is None
        own = np.zeros_like(cluster.capacity)
        for row, workers in zip(on.servers, on.workers, strict=True):
            own[row] += workers * job.worker
        used = engine.ledger.used[:1] - own
        ledger = SimpleNamespace(used=used, capacity=cluster.capacity)
        view: Any = SimpleNamespace(slot=engine.view.slot, ledger=ledger)
        shares = np.divide(own, cluster.capacity, where=own > 0, out=np.zeros(own.shape))
        assert costs[name] == pytest.approx(float((priced.slot_prices(view) * shares).sum()))
    assert min(costs.values()) > 0
    till.store.close()


def test_work_counts_by_workers_at_the_stated_speed(oasis: Shop) -> None:
    """A job with two workers does its stated work in half the slots."""
    oasis.submit(
        "job", tenant="vision", chunks=2, minibatches=3 * SLOT_WORK, utility=BY_39,
        workers={"min": 2, "max": 2},
    )  # fmt: skip
    while oasis.key("job") not in oasis.truth.state.launch_commands:
        oasis.slot()
    assert oasis.truth.state.launch_commands[oasis.key("job")].placement.total_workers == 2
    oasis.slot(2)
    assert oasis.view("job").covered == 2 * 2 * SLOT_WORK * MICRO
    assert oasis.view("job").slot_price is None
    oasis.slot()
    assert oasis.view("job").covered == 2 * 3 * SLOT_WORK * MICRO
    assert oasis.view("job").slot_price is not None


def test_a_measured_speed_changes_no_stated_work(oasis: Shop) -> None:
    oasis.submit("job", tenant="vision", minibatches=6 * SLOT_WORK, utility=BY_39)
    while oasis.key("job") not in oasis.truth.state.launch_commands:
        oasis.slot()
    for slot in range(1, 7):  # it does half of what it states
        assert oasis.view("job").slot_price is None
        oasis.slot()
        oasis.reported("job", slot * SLOT_WORK / 2)
    assert oasis.view("job").measured
    assert (
        oasis.truth.state.engine.jobs[oasis.key("job")].job.required == 60 * MICRO
    )  # it is corrected
    assert oasis.view("job").covered == 60 * MICRO
    assert oasis.view("job").slot_price is not None
    assert oasis.view("job").progress < 40


# ---------------------------------------------------------------- no fault of the job


def test_a_lost_slot_costs_nothing_and_its_work_is_not_counted_again(oasis: Shop) -> None:
    oasis.admit(2 * SLOT_WORK)
    slot_price = oasis.view("job").slot_price
    assert slot_price
    oasis.clock.advance(SLOT / 2)
    server = oasis.truth.state.launch_commands[oasis.key("job")].servers[0]
    oasis.do(SetServerAvailability(server))
    view = oasis.view("job")
    assert (view.overrun, view.overrun_slots, view.slot_price) == (0, 0, None)
    price, used = view.price, view.used
    oasis.starts = False
    oasis.slot()
    oasis.start_all()
    view = oasis.view("job")
    # It isn't known to save its progress, so it does all its work again.
    assert (view.covered, view.slot_price, view.state) == (0, None, "running")
    oasis.starts = True
    while oasis.view("job").covered < 2 * SLOT_WORK * MICRO:
        oasis.slot()
        assert oasis.view("job").overrun == 0
    assert oasis.view("job").used - used <= slot_price  # at most what the lost slot had cost
    assert (oasis.view("job").price or 0) >= (price or 0)


def test_lost_process_is_forgiven_but_not_a_failure(oasis: Shop) -> None:
    for ending, covered in ((Ending.LOST, 0), (Ending.FAILED, 1)):
        name = f"job-{ending}"
        oasis.submit(name, tenant="vision", minibatches=9 * SLOT_WORK, utility=BY_39)
        while oasis.key(name) not in oasis.truth.state.launch_commands:
            oasis.slot()
        oasis.slot()
        assert oasis.view(name).covered == SLOT_WORK * MICRO
        oasis.ended(name, ending, 1)
        oasis.slot()
        assert oasis.view(name).generation == 2
        assert oasis.view(name).covered == covered * SLOT_WORK * MICRO


def test_work_that_is_repeated_after_a_move_is_not_counted_again(oasis: Shop) -> None:
    oasis.submit("job", tenant="vision", minibatches=9 * SLOT_WORK, utility=BY_39)
    while oasis.key("job") not in oasis.truth.state.launch_commands:
        oasis.slot()
    for slot in range(1, 5):
        oasis.slot()
        oasis.reported("job", slot * SLOT_WORK, saves=True)
    assert oasis.view("job").covered == 4 * SLOT_WORK * MICRO
    server = oasis.truth.state.launch_commands[oasis.key("job")].servers[0]
    oasis.do(SetServerAvailability(server))
    oasis.slot()
    assert oasis.view("job").generation == 2
    assert oasis.view("job").covered == 4 * SLOT_WORK * MICRO
    oasis.reported("job", 3 * SLOT_WORK, saves=True)  # its checkpoint is a slot old
    assert oasis.view("job").covered == 3 * SLOT_WORK * MICRO


def test_a_stop_that_the_owner_caused_forgives_nothing(tmp_path: Path) -> None:
    """Otherwise a job could run on for free by changing its workers again and again."""
    till = shop(tmp_path / "data", "rolling")
    one, two = ({"min": count, "max": count} for count in (1, 2))
    work = {"chunks": 2, "minibatches": 3 * SLOT_WORK, "workers": one}
    till.submit("job", tenant="vision", utility=BY_39, **work)
    till.slot(3)
    covered = till.view("job").covered
    assert covered == 2 * SLOT_WORK * MICRO
    till.do(ReviseJob(till.key("job"), {"workers": two}))
    till.slot(2)
    assert till.view("job").generation == 2
    assert till.view("job").covered >= covered + 2 * SLOT_WORK * MICRO
    till.store.close()


@pytest.mark.parametrize("restart", [SLOT * 2 // 3, SLOT * 9 // 10])
def test_a_failure_forgives_no_restart(tmp_path: Path, restart: int) -> None:
    """Otherwise a job could run on for free by failing shortly before each slot ends."""
    till = shop(tmp_path / "data", "oasis")
    till.crowd(3, jobs=1)
    run = {"command": ["train"], "retries": 100}
    till.submit("job", tenant="vision", minibatches=4 * SLOT_WORK, utility=BY_39,
                run=run, restart=f"{restart}s")  # fmt: skip
    while till.key("job") not in till.truth.state.launch_commands:
        till.slot()
    for _ in range(8):
        till.clock.advance(SLOT - 1)
        till.ended("job", Ending.FAILED, 1)
        till.clock.advance(1)
        till.do(AdvanceSlots(virtual=False))
        till.start_all()
    view = till.view("job")
    assert view.covered >= 7 * SLOT_WORK * MICRO
    assert view.overrun_slots >= 3
    till.check()
    till.store.close()


@pytest.mark.parametrize(("restart", "counted"), [(SLOT // 5, 0.8), (SLOT * 9 // 10, 0.5)])
def test_a_move_forgives_a_restart_of_up_to_half_of_a_slot(
    oasis: Shop, restart: int, counted: float
) -> None:
    """The owner states the restart cost, so it can't make most of a slot free."""
    oasis.submit("job", tenant="vision", minibatches=6 * SLOT_WORK, utility=BY_39,
                 restart=f"{restart}s")  # fmt: skip
    while oasis.key("job") not in oasis.truth.state.launch_commands:
        oasis.slot()
    oasis.slot()
    oasis.do(SetServerAvailability(oasis.truth.state.launch_commands[oasis.key("job")].servers[0]))
    oasis.slot()
    assert (oasis.view("job").generation, oasis.view("job").covered) == (2, 0)
    oasis.slot()
    assert oasis.view("job").covered == pytest.approx(counted * SLOT_WORK * MICRO)


def test_a_slot_in_which_no_process_ran_costs_nothing(oasis: Shop) -> None:
    """A generation that takes long to start, such as for the pull of an image."""
    oasis.admit(2 * SLOT_WORK, run={"command": ["train"], "retries": 3})
    oasis.ended("job", Ending.FAILED, 1)  # its fault, so its work counts
    oasis.starts = False
    oasis.slot()
    view = oasis.view("job")
    assert view.slot_price is not None
    price, used, slots = view.price, view.used, view.overrun_slots
    oasis.slot(2)
    view = oasis.view("job")
    assert (view.used, view.overrun_slots) == (used, slots)
    assert (view.price or 0) - (price or 0) < 2 * (view.slot_price or 0)  # it uses what is left


# ---------------------------------------------------------------- revisions and ends


def test_a_revision_to_the_true_work_ends_the_overrun(till: Shop) -> None:
    till.admit(2 * SLOT_WORK)
    till.slot(2)
    over = till.view("job").overrun
    present = till.view("job").slot_price or 0
    price = till.view("job").price
    till.do(ReviseJob(till.key("job"), {"minibatches": 8 * SLOT_WORK}))
    assert (till.view("job").price or 0) > (price or 0)  # an admission of the remaining work
    till.slot()
    view = till.view("job")
    assert view.overrun == over + present  # the running slot was paid for before
    assert (view.slot_price, view.reason) == (None, None)
    paid = view.price
    while till.view("job").covered < 8 * SLOT_WORK * MICRO:
        assert till.view("job").price == paid
        till.slot()
    assert till.view("job").slot_price is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_was_admitted_for_free_can_be_revised_when_it_pays(
    tmp_path: Path, policy: str
) -> None:
    """Its tenant got a budget later. What the revision costs pays for its next slots."""
    till = Shop(tmp_path / "data", policy)
    till.give("speech", 100_000)
    till.crowd(6)
    till.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=BY_39)
    while till.key("job") not in till.truth.state.launch_commands:
        till.slot()
    assert till.view("job").price == 0
    till.give("vision", 1_000)
    while not till.view("job").overrun_slots:
        till.crowd(1)
    till.starts = False
    till.ended("job", Ending.FAILED, 1)
    till.slot()
    till.do(ReviseJob(till.key("job"), {"minibatches": 3 * SLOT_WORK}))
    view = till.view("job")
    paid = (view.price or 0) - view.used
    assert paid > (view.slot_price or 0)
    assert price_of_unused(view.unused or ()) == paid
    till.give("vision", 1_000 - till.held("vision"))
    assert till.held("vision") == 0
    for _ in range(4):  # no process runs, so these slots use nothing
        till.crowd(1)
        if not till.view("job").state.open:
            break
        assert price_of_unused(till.view("job").unused or ()) == paid
    if till.view("job").state.open:
        till.do(CancelJob(view.key))
    assert till.view("job").used == view.used
    assert till.view("job").refund == paid
    till.check()
    till.store.close()


def test_billing_error_of_a_slot_stops_no_other_job(
    till: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    till.admit(2 * SLOT_WORK)
    slot, held = till.truth.state.engine.slot_running or 0, till.held("vision")

    def failing(*_: Any) -> None:
        raise ArithmeticError("half of a point")

    monkeypatch.setattr(accounts, "debit", failing)
    till.slot()
    assert till.truth.state.engine.slot_running == slot + 1
    assert (till.view("job").state, till.view("job").slot_price) == ("running", None)
    assert till.held("vision") == held
    assert "half of a point" in caplog.text
    monkeypatch.undo()
    till.slot()
    assert till.view("job").slot_price is not None


def test_plain_command_is_revised_to_its_actual_duration(till: Shop) -> None:
    """Its work is one mini-batch: slots that it held did half of what was stated."""
    record = _record("job", tenant="vision", minibatch_time=f"{4 * SLOT}s", utility=BY_39)
    till.ask(
        {**{key: record[key] for key in record.keys() - {"chunks", "minibatches"}}, "steps": 1}
    )
    price = till.view("job").price or 0
    while till.view("job").covered < MICRO * 3 / 4:
        till.slot()
    till.do(ReviseJob(till.key("job"), {"minibatch_time": f"{8 * SLOT}s"}))
    paid = till.view("job").price or 0
    assert paid > price
    slots = 3
    while till.view("job").slot_price is None:
        till.slot()
        slots += 1
    assert slots == 8
    assert till.view("job").overrun == 0
    message = (till.view("job").reason or {})["message"]
    assert message.startswith(f"runs beyond its stated time of {8 * SLOT}s: this slot costs")
    assert "revise `minibatch_time`, and" in message


def test_a_slower_speed_counts_no_work_as_remaining_that_was_not_priced(till: Shop) -> None:
    till.submit("job", tenant="vision", minibatches=4 * SLOT_WORK, utility=BY_39)
    while till.view("job").covered < 4 * SLOT_WORK * MICRO:
        till.slot()
    till.do(ReviseJob(till.key("job"), {"minibatch_time": "12s"}))  # half as fast
    till.slot(2)
    assert till.view("job").slot_price is not None


def test_a_cancellation_costs_the_running_slot(till: Shop) -> None:
    till.admit(2 * SLOT_WORK)
    till.slot()
    view, held = till.view("job"), till.held("vision")
    till.clock.advance(SLOT / 2)
    till.do(CancelJob(view.key))
    after = till.view("job")
    assert after.overrun == view.overrun + (view.slot_price or 0)
    assert after.used == view.used + (view.slot_price or 0)
    refund = after.refund or 0
    assert till.held("vision") == pytest.approx(held + refund / POINT)


def test_the_unused_price_pays_first(tmp_path: Path) -> None:
    """A job that was revised to less has paid for more slots than it states."""
    till = shop(tmp_path / "data", "rolling")
    till.submit("job", tenant="vision", minibatches=6 * SLOT_WORK, utility=BY_39)
    price = till.view("job").price
    assert price
    till.do(ReviseJob(till.key("job"), {"minibatches": SLOT_WORK}))
    till.slot(2)
    for slots in range(5):
        view = till.view("job")
        assert (view.overrun_slots, view.price) == (slots, price)
        assert view.slot_price == pytest.approx(price / 6, abs=1)
        till.slot()
    view = till.view("job")
    assert (view.price or 0) - price == pytest.approx(price / 6, abs=5)
    till.check()
    till.store.close()


def test_a_waiting_job_pays_beyond_its_stated_work_and_for_its_promise(tmp_path: Path) -> None:
    """On spare capacity a job runs for free, but not without end."""
    till = shop(tmp_path / "data", "rolling")
    worthless = {"kind": "constant", "value": 1e-6}
    till.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=worthless)
    assert till.view("job").state == "standby"
    till.slot(2)
    assert (till.view("job").state, till.view("job").price) == ("running", None)
    till.slot(2)
    view = till.view("job")
    assert (view.promise, view.overrun_slots) == (None, 1)
    assert view.price == view.overrun + (view.slot_price or 0) > 0
    till.do(ReviseJob(view.key, {"minibatches": 30 * SLOT_WORK}))
    assert till.view("job").price == view.price  # free, because it waits
    till.do(ReviseJob(view.key, {"utility": BY_39}))
    till.slot()
    after = till.view("job")
    assert after.promise is not None
    assert after.cost
    assert after.price == view.price + round(after.cost * POINT)
    admissions = [row for row in till.entries("vision") if row.kind == "debit" and not row.note]
    assert len(admissions) == 1
    till.check()
    till.store.close()


@pytest.mark.parametrize("policy", ["fifo", "elasticflow"])
def test_policies_without_prices_charge_nothing(tmp_path: Path, policy: str) -> None:
    till = shop(tmp_path / "data", policy)
    till.submit("job", tenant="vision", minibatches=SLOT_WORK)
    till.slot(5)
    view = till.view("job")
    assert view.covered >= 3 * SLOT_WORK * MICRO
    assert (view.price or 0, view.slot_price, view.overrun_slots) == (0, None, 0)
    assert till.held("vision") == 10_000
    till.store.close()


def test_a_tenant_without_a_budget_pays_nothing(tmp_path: Path) -> None:
    till = Shop(tmp_path / "data", "oasis")
    till.give("speech", 100_000)
    till.crowd(6)
    till.submit("job", minibatches=SLOT_WORK, utility=BY_39)
    while till.key("job") not in till.truth.state.launch_commands:
        till.slot()
    till.crowd(4)
    view = till.view("job")
    assert view.state.open
    assert (view.price, view.slot_price, view.overrun_slots, view.covered) == (0, None, 0, 0)
    till.check()
    till.store.close()


def test_a_budget_that_is_removed_ends_the_charges(oasis: Shop) -> None:
    oasis.admit(2 * SLOT_WORK)
    oasis.do(PutTenant("vision", None, None, budgeted=True))
    view = oasis.view("job")
    assert (view.slot_price, view.reason) == (None, None)
    price = view.price
    oasis.slot(3)
    assert oasis.view("job").price == price
    oasis.give("vision", 100)
    oasis.slot(2)
    assert oasis.view("job").price == price  # it runs on for free
    assert oasis.held("vision") == 100


def test_a_borrower_pays_its_lenders_in_full_beyond_its_stated_work(tmp_path: Path) -> None:
    class OpenMarket(Market):
        """A market of jobs that take longer than stated."""

        def hours(self, hours: int) -> None:
            for _ in range(hours):
                self.slot_of(3_600)
                self.start_all()

        def slot_of(self, seconds: int) -> None:
            self.clock.advance(seconds)
            self.do(AdvanceSlots(virtual=False))
            self.check()

    market = OpenMarket(tmp_path / "data", "astraea")
    for tenant, points in (("vision", 1_000), ("speech", 500)):
        market.give(tenant, points, period=400 * 86_400)
    market.open()
    for _ in range(40):
        market.hours(1)
        if market.lent():
            break
    name = str(market.lent()[0].job)
    admitted = market.view(name).price or 0
    for _ in range(40):
        market.hours(1)
        if market.view(name).overrun_slots >= 3:
            break
    view = market.view(name)
    assert view.overrun_slots >= 3
    assert (view.price or 0) > admitted
    paid = sum(row.points for row in market.lent() if row.job == name)
    assert paid == view.used
    market.do(CancelJob(name))
    market.check()
    assert sum(row.points for row in market.lent() if row.job == name) == market.view(name).used
    market.store.close()


# ---------------------------------------------------------------- restarts and crashes


def test_a_restart_within_a_slot_changes_no_charge(till: Shop) -> None:
    till.admit(2 * SLOT_WORK)
    till.clock.advance(SLOT / 4)
    slot_price = till.view("job").slot_price
    till.read()
    assert till.view("job").slot_price == slot_price
    till.clock.advance(SLOT / 4)
    till.slot()
    assert (till.view("job").overrun, till.view("job").overrun_slots) == (slot_price, 1)
    assert till.truth.state.engine.state_digest()
    digest = till.truth.state.engine.state_digest()
    till.read()
    assert till.truth.state.engine.state_digest() == digest


class CrashingShop(Shop):
    """A shop whose process may be gone at any write."""

    left = 0

    def fault(self, _: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash

    def read(self) -> None:
        super().read()
        self.store.fault = self.fault

    def safely(self, step: Any) -> None:
        while True:
            try:
                step()
                return
            except Crash:
                self.store.close()
                self.store = Store(self.store.where)
                self.store.open()
                self.read()

    def end_slot(self) -> None:
        self.clock.advance(SLOT)
        self.safely(lambda: self.do(AdvanceSlots(self.virtual)))
        self.safely(self.start_all)


def _ledger_with_a_crash(folder: Path, policy: str, at: int) -> tuple[list[Any], int]:
    """Return the entries of a job that overruns until it can't pay, and the number of writes."""
    till = CrashingShop(folder, policy)
    till.give("vision", 10_000)
    till.give("speech", 100_000)
    till.crowd(6, jobs=1)
    till.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=BY_39)
    cost = {"oasis": 3, "rolling": 0.006}[policy]
    till.give("vision", 10_000 - till.held("vision") + cost)
    till.left = at
    for _ in range(16):
        till.end_slot()
    assert till.view("job").state == "failed"
    assert (till.view("job").reason or {})["code"] == "budget"
    till.check()
    writes = at - till.left
    rows = [tuple(row) for row in till.entries()]
    till.store.close()
    return rows, writes


@pytest.mark.parametrize("policy", ["oasis", "rolling"])
def test_a_crash_at_any_write_neither_charges_twice_nor_misses_a_slot(
    tmp_path: Path, policy: str
) -> None:
    calm, writes = _ledger_with_a_crash(tmp_path / "calm", policy, 10**9)
    slots = [row for row in calm if "beyond its stated work" in str(row)]
    assert len(slots) > 1
    assert writes > 40
    for index in range(writes // 2, writes, writes // 9):  # from when the job runs beyond its work
        hit, _ = _ledger_with_a_crash(tmp_path / f"hit-{index}", policy, index)
        assert hit == calm


def test_points_that_an_operator_grants_keep_a_job_running(oasis: Shop) -> None:
    oasis.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=BY_39)
    oasis.give("vision", 10_000 - oasis.held("vision"))
    while oasis.key("job") not in oasis.truth.state.launch_commands:
        oasis.slot()
    oasis.do(Grant("vision", 1_000 * POINT, "deadline"))
    oasis.slot(3)
    assert oasis.view("job").state == "running"
    assert oasis.view("job").overrun_slots >= 1


def test_an_end_that_is_reported_late_pays_for_the_slots_that_it_held(oasis: Shop) -> None:
    """The service is down while the job ends: reports apply to the slot in which it ended."""
    oasis.admit(2 * SLOT_WORK)
    key, order = oasis.key("job"), oasis.truth.state.launch_commands[oasis.key("job")]
    price = oasis.view("job").slot_price or 0
    at = oasis.clock.wall() / SECOND + SLOT / 2
    oasis.clock.advance(3 * SLOT)
    oasis.read()
    ended = Ended(0, key, order.generation, at, Ending.DONE, 0, "")
    oasis.do(AdvanceSlots(False, reports=[ended]))
    view = oasis.view("job")
    assert (view.state, view.overrun_slots, view.overrun) == ("finished", 1, price)
    oasis.do(RecordReports([ended]))
    assert oasis.view("job") == view


@pytest.mark.parametrize("points", [0, 1_000])
def test_a_job_that_completed_during_an_outage_is_not_abandoned(oasis: Shop, points: int) -> None:
    """Its end was reported. It pays for the slots that it held if its tenant can."""
    oasis.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=BY_39)
    while oasis.key("job") not in oasis.truth.state.launch_commands:
        oasis.slot()
    oasis.slot()
    oasis.give("vision", 10_000 - oasis.held("vision") + points)
    assert oasis.held("vision") == points
    order = oasis.truth.state.launch_commands[oasis.key("job")]
    at = oasis.clock.wall() / SECOND + 2.5 * SLOT
    oasis.clock.advance(4 * SLOT)
    oasis.read()
    ended = Ended(0, oasis.key("job"), order.generation, at, Ending.DONE, 0, "")
    oasis.do(AdvanceSlots(False, reports=[ended]))
    view = oasis.view("job")
    assert (view.state, view.reason) == ("finished", None)
    assert view.overrun_slots == (2 if points else 0)
    assert oasis.held("vision") >= 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("late", [0.0, 0.1])
def test_an_exit_before_a_slot_counts_even_if_it_is_reported_after_the_job_was_abandoned(
    tmp_path: Path, policy: str, late: float
) -> None:
    till = shop(tmp_path / "data", policy)
    till.crowd(6)
    till.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=BY_39)
    till.give("vision", 10_000 - till.held("vision"))
    while till.view("job").state.open:
        key, order = till.key("job"), till.truth.state.launch_commands.get(till.key("job"))
        till.crowd(1)
    abandoned = till.view("job")
    assert order is not None
    assert (abandoned.state, (abandoned.reason or {})["code"]) == ("failed", "budget")
    begins = till.truth.state.calendar.begins(till.truth.state.engine.slot_running or 0)
    ended = Ended(0, key, order.generation, begins / SECOND + late, Ending.DONE, 0, "")
    before = till.held("vision")
    till.do(RecordReports([ended]))
    view = till.view("job")
    assert till.held("vision") == before
    till.check()
    if late:
        assert view == abandoned
        assert "finished" not in till.kinds("job")
    else:
        slot = (till.truth.state.engine.slot_running or 0) - 1
        assert (view.state, view.reason, view.completion) == ("finished", None, slot)
        assert (view.progress, view.utility) == (view.required, 100.0)
        assert till.kinds("job")[-1] == "finished"
        till.do(RecordReports([ended]))
        assert till.view("job") == view
        assert till.kinds("job").count("finished") == 1
    till.read()
    assert till.view("job") == view
    assert key not in till.truth.state.views
    till.store.close()


def test_a_job_that_exits_while_it_is_stopped_pays_for_no_other_slot(oasis: Shop) -> None:
    """It is complete at once, and holds no other slot."""
    run = {"command": ["train"], "checkpoints": True}
    oasis.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=BY_39, run=run)
    while oasis.key("job") not in oasis.truth.state.launch_commands:
        oasis.slot()
    oasis.clock.advance(SLOT)
    key, order = oasis.key("job"), oasis.truth.state.launch_commands[oasis.key("job")]
    oasis.do(AdvanceSlots(virtual=False))
    assert oasis.view("job").slot_price
    oasis.do(SetServerAvailability(order.servers[0]))
    at = oasis.clock.wall() / SECOND
    oasis.give("vision", 10_000 - oasis.held("vision"))
    oasis.do(RecordReports([Ended(0, key, order.generation, at, Ending.DONE, 0, "")]))
    view = oasis.view("job")
    assert view.closed == int(at * SECOND)
    oasis.slot()
    assert (view.state, view.reason) == ("finished", None)
    assert oasis.kinds("job").count("overrun") == 1  # in the slot that was lost


@pytest.mark.parametrize("factor", [math.nan, math.inf])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_price_that_is_not_finite_ends_no_job(
    tmp_path: Path,
    policy: str,
    factor: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    till = shop(tmp_path / "data", policy)
    till.crowd(6)
    till.admit(2 * SLOT_WORK)
    priced = as_priced_policy(till.truth.state.engine.policy)
    assert priced is not None
    posted = type(priced).slot_prices
    monkeypatch.setattr(type(priced), "slot_prices", lambda *args: posted(*args) * factor)
    till.slot(2)
    view = till.view("job")
    assert (view.state, view.slot_price, view.reason) == ("running", None, None)
    assert "aren't finite" in caplog.text
    monkeypatch.undo()
    till.slot()
    assert till.view("job").slot_price is not None
    till.check()
    till.store.close()


def test_a_job_that_ended_before_a_slot_does_not_pay_for_it(oasis: Shop) -> None:
    """Its end is observed only after the slot began, such as with a slow poll."""
    oasis.admit(2 * SLOT_WORK)
    view = oasis.view("job")
    assert view.slot_price
    oasis.ended("job")  # now, as the slot begins
    after = oasis.view("job")
    assert (after.used, after.overrun_slots) == (view.used, 0)
    assert after.refund == (after.price or 0) - after.used >= view.slot_price

"""Slots beyond the stated work of a job: their cost, and when the job ends instead."""

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
from shadowprice.executors.contract import Ended, Ending
from shadowprice.service.budgets import accounts
from shadowprice.service.budgets.operations import grant_points, put_tenant
from shadowprice.service.budgets.usage import price_of_unused
from shadowprice.service.clock import SECOND
from shadowprice.service.state.operations import (
    cancel_job,
    revise_job,
    set_server_availability,
)
from shadowprice.service.state.prices import placement_costs
from shadowprice.service.state.report_operations import RecordReports
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.store import Store
from tests.support.budget_bench import (
    BY_39,
    SLOT_WORK,
    LendingBench,
    OverrunBench,
    job_record,
)
from tests.support.simulated_hours import SLOT, Crash

POLICIES = [
    "rolling", *(pytest.param(name, marks=pytest.mark.extended) for name in ("oasis", "pdors")),
]  # fmt: skip

ALWAYS = {"kind": "constant", "value": 100}


def open_bench(folder: Path, policy: str) -> OverrunBench:
    opened = OverrunBench(folder, policy)
    opened.set_budget("vision", 10_000)
    opened.set_budget("speech", 100_000)
    return opened


@pytest.fixture(params=POLICIES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OverrunBench]:
    result = open_bench(tmp_path / "data", request.param)
    result.run_busy_slots(6)
    yield result
    result.check_accounts()
    result.store.close()


@pytest.fixture
def oasis(tmp_path: Path) -> Iterator[OverrunBench]:
    result = open_bench(tmp_path / "data", "oasis")
    result.run_busy_slots(6)
    yield result
    result.check_accounts()
    result.store.close()


# ---------------------------------------------------------------- the attacks


def test_a_job_of_one_slot_that_takes_24_pays_at_least_what_24_are_quoted(
    bench: OverrunBench,
) -> None:
    # A job that is no longer worth anything would be abandoned as endless.
    quoted = bench.quote_price(24 * SLOT_WORK, ALWAYS)
    bench.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=ALWAYS)
    first = bench.view("job").price
    assert first is not None
    assert first < quoted / 10
    while bench.view("job").covered < 24 * SLOT_WORK * MICRO:
        bench.run_busy_slots(1)
        assert bench.view("job").state.open
    bench.report_end("job")
    view = bench.view("job")
    assert view.state == "finished"
    assert view.overrun_slots == 23
    assert view.used >= quoted - 24  # each slot is rounded to a millionth
    assert (view.price or 0) - view.used == view.refund


def test_a_job_that_runs_on_while_others_are_refused_ends_when_its_tenant_cannot_pay(
    oasis: OverrunBench,
) -> None:
    oasis.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=BY_39)
    first = oasis.view("job").price or 0
    oasis.set_budget("vision", 10_000 - oasis.balance("vision") + 40)  # 40 points remain
    refused = 0
    for _ in range(29):
        refused += oasis.run_busy_slots(1)
        if not oasis.view("job").state.open:
            break
    assert refused
    view = oasis.view("job")
    assert view.state == "failed"
    assert 0 < view.overrun_slots < 5
    assert view.used == view.price == first + view.overrun
    assert view.reason is not None
    assert view.reason["code"] == "budget"
    assert view.reason["price"] > oasis.balance("vision") >= 0
    assert "another slot beyond its stated work of 10 mini-batches costs" in view.reason["message"]
    assert view.reason["message"].endswith(
        "; submit it again with its true work and speed, or ask the operator for points; while a "
        "job runs, its `minibatches` can be revised before its stated work is done"
    )
    assert oasis.event_kinds("job")[-1] == "given-up"
    assert oasis.history_lines("job")[-1].startswith("given-up: another slot beyond")
    # It doesn't run in the slot that it can't pay for, and ends as if it were cancelled.
    key = oasis.job_key("job")
    assert key not in oasis.durable.state.engine.running
    stops = [one for one in oasis.durable.state.engine.unacknowledged.values() if one.job == key]
    assert isinstance(stops[-1], Stop)
    assert stops[-1].slot == oasis.durable.state.engine.slot_running


@pytest.mark.parametrize("policy", POLICIES)
def test_without_points_a_job_ends_with_the_slot_that_completes_its_stated_work(
    tmp_path: Path, policy: str
) -> None:
    bench = open_bench(tmp_path / "data", policy)
    bench.run_busy_slots(6)
    bench.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=BY_39)
    bench.set_budget("vision", 10_000 - bench.balance("vision"))
    assert bench.balance("vision") == 0
    while bench.view("job").covered < 2 * SLOT_WORK * MICRO:
        bench.run_busy_slots(1)
    assert bench.view("job").state == "failed"
    assert (bench.view("job").reason or {})["code"] == "budget"
    assert bench.balance("vision") >= 0  # an unused part of its price returns
    bench.check_accounts()
    bench.store.close()


# ---------------------------------------------------------------- what the owner sees


def test_the_owner_sees_the_price_of_each_slot_and_how_to_avoid_it(bench: OverrunBench) -> None:
    before = bench.run_stated_work(2 * SLOT_WORK)
    view = bench.view("job")
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
    slot_price, held = view.slot_price, bench.balance("vision")
    bench.advance()
    view = bench.view("job")
    assert (view.overrun, view.overrun_slots) == (slot_price, 1)
    assert bench.balance("vision") == pytest.approx(held - (view.slot_price or 0) / POINT)
    assert dict(describe_job(view.to_resource()))["overrun"].endswith(
        "points, for 1 slot beyond its stated work"
    )
    bench.advance(3)
    assert bench.event_kinds("job").count("overrun") == 1
    assert [row.note for row in bench.entries("vision") if row.job == view.key][-1].startswith(
        "beyond its stated work, slot "
    )
    bench.report_end("job")
    view = bench.view("job")
    assert (view.state, view.reason, view.slot_price) == ("finished", None, None)
    assert view.overrun_slots == 4
    assert view.planned == before.planned


def test_truthful_job_pays_only_its_price(bench: OverrunBench) -> None:
    """Also if its processes start a little after the slot, so that it ends in one more slot."""
    bench.submit("job", tenant="vision", minibatches=3 * SLOT_WORK, utility=BY_39)
    price = bench.view("job").price
    bench.starts = False
    while bench.job_key("job") not in bench.durable.state.desired:
        bench.advance()
    bench.clock.advance(SLOT / 10)
    bench.report_starts()
    bench.advance(3)
    bench.report_end("job")
    view = bench.view("job")
    assert (view.state, view.price, view.overrun, view.overrun_slots) == ("finished", price, 0, 0)


def test_a_slot_price_is_the_posted_price_of_its_place(tmp_path: Path) -> None:
    """A worked example: 0.02 points for the share of a slot that is all of the cluster's GPUs."""
    bench = open_bench(tmp_path / "data", "rolling")
    bench.run_stated_work(SLOT_WORK)
    assert bench.view("job").slot_price == pytest.approx(0.02 * (1 / 12 + 1 / 48) * POINT, abs=1)
    bench.store.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_batch_prices_equal_individual_prices(tmp_path: Path, policy: str) -> None:
    """Each at the posted prices without its own use, whatever the others use."""
    bench = open_bench(tmp_path / "data", policy)
    bench.run_busy_slots(8)
    engine = bench.durable.state.engine
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
    bench.store.close()


def test_work_counts_by_workers_at_the_stated_speed(oasis: OverrunBench) -> None:
    """A job with two workers does its stated work in half the slots."""
    oasis.submit(
        "job", tenant="vision", chunks=2, minibatches=3 * SLOT_WORK, utility=BY_39,
        workers={"min": 2, "max": 2},
    )  # fmt: skip
    while oasis.job_key("job") not in oasis.durable.state.desired:
        oasis.advance()
    assert oasis.durable.state.desired[oasis.job_key("job")].placement.total_workers == 2
    oasis.advance(2)
    assert oasis.view("job").covered == 2 * 2 * SLOT_WORK * MICRO
    assert oasis.view("job").slot_price is None
    oasis.advance()
    assert oasis.view("job").covered == 2 * 3 * SLOT_WORK * MICRO
    assert oasis.view("job").slot_price is not None


def test_a_measured_speed_changes_no_stated_work(oasis: OverrunBench) -> None:
    oasis.submit("job", tenant="vision", minibatches=6 * SLOT_WORK, utility=BY_39)
    while oasis.job_key("job") not in oasis.durable.state.desired:
        oasis.advance()
    for slot in range(1, 7):  # it does half of what it states
        assert oasis.view("job").slot_price is None
        oasis.advance()
        oasis.report_saved_progress("job", slot * SLOT_WORK / 2)
    assert oasis.view("job").measured
    assert (
        oasis.durable.state.engine.jobs[oasis.job_key("job")].job.required == 60 * MICRO
    )  # it is corrected
    assert oasis.view("job").covered == 60 * MICRO
    assert oasis.view("job").slot_price is not None
    assert oasis.view("job").progress < 40


# ---------------------------------------------------------------- no fault of the job


def test_a_lost_slot_costs_nothing_and_its_work_is_not_counted_again(oasis: OverrunBench) -> None:
    oasis.run_stated_work(2 * SLOT_WORK)
    slot_price = oasis.view("job").slot_price
    assert slot_price
    oasis.clock.advance(SLOT / 2)
    server = oasis.durable.state.desired[oasis.job_key("job")].servers[0]
    oasis.commit(set_server_availability(server))
    view = oasis.view("job")
    assert (view.overrun, view.overrun_slots, view.slot_price) == (0, 0, None)
    price, used = view.price, view.used
    oasis.starts = False
    oasis.advance()
    oasis.report_starts()
    view = oasis.view("job")
    # It isn't known to save its progress, so it repeats all its work.
    assert (view.covered, view.slot_price, view.state) == (0, None, "running")
    oasis.starts = True
    while oasis.view("job").covered < 2 * SLOT_WORK * MICRO:
        oasis.advance()
        assert oasis.view("job").overrun == 0
    assert oasis.view("job").used - used <= slot_price  # at most what the lost slot had cost
    assert (oasis.view("job").price or 0) >= (price or 0)


def test_lost_process_is_forgiven_but_not_a_failure(oasis: OverrunBench) -> None:
    for ending, covered in ((Ending.LOST, 0), (Ending.FAILED, 1)):
        name = f"job-{ending}"
        oasis.submit(name, tenant="vision", minibatches=9 * SLOT_WORK, utility=BY_39)
        while oasis.job_key(name) not in oasis.durable.state.desired:
            oasis.advance()
        oasis.advance()
        assert oasis.view(name).covered == SLOT_WORK * MICRO
        oasis.report_end(name, ending, 1)
        oasis.advance()
        assert oasis.view(name).generation == 2
        assert oasis.view(name).covered == covered * SLOT_WORK * MICRO


def test_work_that_is_repeated_after_a_move_is_not_counted_again(oasis: OverrunBench) -> None:
    oasis.submit("job", tenant="vision", minibatches=9 * SLOT_WORK, utility=BY_39)
    while oasis.job_key("job") not in oasis.durable.state.desired:
        oasis.advance()
    for slot in range(1, 5):
        oasis.advance()
        oasis.report_saved_progress("job", slot * SLOT_WORK, saves=True)
    assert oasis.view("job").covered == 4 * SLOT_WORK * MICRO
    server = oasis.durable.state.desired[oasis.job_key("job")].servers[0]
    oasis.commit(set_server_availability(server))
    oasis.advance()
    assert oasis.view("job").generation == 2
    assert oasis.view("job").covered == 4 * SLOT_WORK * MICRO
    oasis.report_saved_progress("job", 3 * SLOT_WORK, saves=True)  # its checkpoint is a slot old
    assert oasis.view("job").covered == 3 * SLOT_WORK * MICRO


def test_a_stop_that_the_owner_caused_forgives_nothing(tmp_path: Path) -> None:
    """Otherwise a job could run on for free by changing its workers again and again."""
    bench = open_bench(tmp_path / "data", "rolling")
    one, two = ({"min": count, "max": count} for count in (1, 2))
    work = {"chunks": 2, "minibatches": 3 * SLOT_WORK, "workers": one}
    bench.submit("job", tenant="vision", utility=BY_39, **work)
    bench.advance(3)
    covered = bench.view("job").covered
    assert covered == 2 * SLOT_WORK * MICRO
    bench.commit(revise_job(bench.job_key("job"), {"workers": two}))
    bench.advance(2)
    assert bench.view("job").generation == 2
    assert bench.view("job").covered >= covered + 2 * SLOT_WORK * MICRO
    bench.store.close()


@pytest.mark.parametrize("restart", [SLOT * 2 // 3, SLOT * 9 // 10])
def test_a_failure_forgives_no_restart(tmp_path: Path, restart: int) -> None:
    """Otherwise a job could run on for free by failing shortly before each slot ends."""
    bench = open_bench(tmp_path / "data", "oasis")
    bench.run_busy_slots(3, jobs=1)
    run = {"command": ["train"], "retries": 100}
    bench.submit("job", tenant="vision", minibatches=4 * SLOT_WORK, utility=BY_39,
                run=run, restart=f"{restart}s")  # fmt: skip
    while bench.job_key("job") not in bench.durable.state.desired:
        bench.advance()
    for _ in range(8):
        bench.clock.advance(SLOT - 1)
        bench.report_end("job", Ending.FAILED, 1)
        bench.clock.advance(1)
        bench.commit(AdvanceSlots(virtual=False))
        bench.report_starts()
    view = bench.view("job")
    assert view.covered >= 7 * SLOT_WORK * MICRO
    assert view.overrun_slots >= 3
    bench.check_accounts()
    bench.store.close()


@pytest.mark.parametrize(("restart", "counted"), [(SLOT // 5, 0.8), (SLOT * 9 // 10, 0.5)])
def test_a_move_forgives_a_restart_of_up_to_half_of_a_slot(
    oasis: OverrunBench, restart: int, counted: float
) -> None:
    """The owner states the restart cost, so it can't make most of a slot free."""
    oasis.submit("job", tenant="vision", minibatches=6 * SLOT_WORK, utility=BY_39,
                 restart=f"{restart}s")  # fmt: skip
    while oasis.job_key("job") not in oasis.durable.state.desired:
        oasis.advance()
    oasis.advance()
    oasis.commit(
        set_server_availability(oasis.durable.state.desired[oasis.job_key("job")].servers[0])
    )
    oasis.advance()
    assert (oasis.view("job").generation, oasis.view("job").covered) == (2, 0)
    oasis.advance()
    assert oasis.view("job").covered == pytest.approx(counted * SLOT_WORK * MICRO)


def test_a_slot_in_which_no_process_ran_costs_nothing(oasis: OverrunBench) -> None:
    """A generation that takes long to start, such as for the pull of an image."""
    oasis.run_stated_work(2 * SLOT_WORK, run={"command": ["train"], "retries": 3})
    oasis.report_end("job", Ending.FAILED, 1)  # its fault, so its work counts
    oasis.starts = False
    oasis.advance()
    view = oasis.view("job")
    assert view.slot_price is not None
    price, used, slots = view.price, view.used, view.overrun_slots
    oasis.advance(2)
    view = oasis.view("job")
    assert (view.used, view.overrun_slots) == (used, slots)
    assert (view.price or 0) - (price or 0) < 2 * (view.slot_price or 0)  # it uses the rest


# ---------------------------------------------------------------- revisions and ends


def test_a_revision_to_the_true_work_ends_the_overrun(bench: OverrunBench) -> None:
    bench.run_stated_work(2 * SLOT_WORK)
    bench.advance(2)
    over = bench.view("job").overrun
    present = bench.view("job").slot_price or 0
    price = bench.view("job").price
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": 8 * SLOT_WORK}))
    assert (bench.view("job").price or 0) > (price or 0)  # an admission of the remaining work
    bench.advance()
    view = bench.view("job")
    assert view.overrun == over + present  # the running slot was paid for before
    assert (view.slot_price, view.reason) == (None, None)
    paid = view.price
    while bench.view("job").covered < 8 * SLOT_WORK * MICRO:
        assert bench.view("job").price == paid
        bench.advance()
    assert bench.view("job").slot_price is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_was_admitted_for_free_can_be_revised_when_it_pays(
    tmp_path: Path, policy: str
) -> None:
    """Its tenant got a budget later. What the revision costs pays for its next slots."""
    bench = OverrunBench(tmp_path / "data", policy)
    bench.set_budget("speech", 100_000)
    bench.run_busy_slots(6)
    bench.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=BY_39)
    while bench.job_key("job") not in bench.durable.state.desired:
        bench.advance()
    assert bench.view("job").price == 0
    bench.set_budget("vision", 1_000)
    while not bench.view("job").overrun_slots:
        bench.run_busy_slots(1)
    bench.starts = False
    bench.report_end("job", Ending.FAILED, 1)
    bench.advance()
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": 3 * SLOT_WORK}))
    view = bench.view("job")
    paid = (view.price or 0) - view.used
    assert paid > (view.slot_price or 0)
    assert price_of_unused(view.unused or ()) == paid
    bench.set_budget("vision", 1_000 - bench.balance("vision"))
    assert bench.balance("vision") == 0
    for _ in range(4):  # no process runs, so these slots use nothing
        bench.run_busy_slots(1)
        if not bench.view("job").state.open:
            break
        assert price_of_unused(bench.view("job").unused or ()) == paid
    if bench.view("job").state.open:
        bench.commit(cancel_job(view.key))
    assert bench.view("job").used == view.used
    assert bench.view("job").refund == paid
    bench.check_accounts()
    bench.store.close()


def test_billing_error_of_a_slot_stops_no_other_job(
    bench: OverrunBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.run_stated_work(2 * SLOT_WORK)
    slot, held = bench.durable.state.engine.slot_running or 0, bench.balance("vision")

    def failing(*_: Any) -> None:
        raise ArithmeticError("half of a point")

    monkeypatch.setattr(accounts, "debit", failing)
    bench.advance()
    assert bench.durable.state.engine.slot_running == slot + 1
    assert (bench.view("job").state, bench.view("job").slot_price) == ("running", None)
    assert bench.balance("vision") == held
    assert "half of a point" in caplog.text
    monkeypatch.undo()
    bench.advance()
    assert bench.view("job").slot_price is not None


def test_plain_command_is_revised_to_its_actual_duration(bench: OverrunBench) -> None:
    """Its work is one mini-batch: slots that it held did half of what was stated."""
    record = job_record("job", tenant="vision", minibatch_time=f"{4 * SLOT}s", utility=BY_39)
    bench.submit_records(
        {**{key: record[key] for key in record.keys() - {"chunks", "minibatches"}}, "steps": 1}
    )
    price = bench.view("job").price or 0
    while bench.view("job").covered < MICRO * 3 / 4:
        bench.advance()
    bench.commit(revise_job(bench.job_key("job"), {"minibatch_time": f"{8 * SLOT}s"}))
    paid = bench.view("job").price or 0
    assert paid > price
    slots = 3
    while bench.view("job").slot_price is None:
        bench.advance()
        slots += 1
    assert slots == 8
    assert bench.view("job").overrun == 0
    message = (bench.view("job").reason or {})["message"]
    assert message.startswith(f"runs beyond its stated time of {8 * SLOT}s: this slot costs")
    assert "revise `minibatch_time`, and" in message


def test_a_slower_speed_counts_no_work_as_remaining_that_was_not_priced(
    bench: OverrunBench,
) -> None:
    bench.submit("job", tenant="vision", minibatches=4 * SLOT_WORK, utility=BY_39)
    while bench.view("job").covered < 4 * SLOT_WORK * MICRO:
        bench.advance()
    bench.commit(revise_job(bench.job_key("job"), {"minibatch_time": "12s"}))  # half as fast
    bench.advance(2)
    assert bench.view("job").slot_price is not None


def test_a_cancellation_costs_the_running_slot(bench: OverrunBench) -> None:
    bench.run_stated_work(2 * SLOT_WORK)
    bench.advance()
    view, held = bench.view("job"), bench.balance("vision")
    bench.clock.advance(SLOT / 2)
    bench.commit(cancel_job(view.key))
    after = bench.view("job")
    assert after.overrun == view.overrun + (view.slot_price or 0)
    assert after.used == view.used + (view.slot_price or 0)
    refund = after.refund or 0
    assert bench.balance("vision") == pytest.approx(held + refund / POINT)


def test_the_unused_price_pays_first(tmp_path: Path) -> None:
    """A job that was revised to less has paid for more slots than it states."""
    bench = open_bench(tmp_path / "data", "rolling")
    bench.submit("job", tenant="vision", minibatches=6 * SLOT_WORK, utility=BY_39)
    price = bench.view("job").price
    assert price
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": SLOT_WORK}))
    bench.advance(2)
    for slots in range(5):
        view = bench.view("job")
        assert (view.overrun_slots, view.price) == (slots, price)
        assert view.slot_price == pytest.approx(price / 6, abs=1)
        bench.advance()
    view = bench.view("job")
    assert (view.price or 0) - price == pytest.approx(price / 6, abs=5)
    bench.check_accounts()
    bench.store.close()


def test_a_waiting_job_pays_beyond_its_stated_work_and_for_its_promise(tmp_path: Path) -> None:
    """On spare capacity a job runs for free, but not without end."""
    bench = open_bench(tmp_path / "data", "rolling")
    worthless = {"kind": "constant", "value": 1e-6}
    bench.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=worthless)
    assert bench.view("job").state == "standby"
    bench.advance(2)
    assert (bench.view("job").state, bench.view("job").price) == ("running", None)
    bench.advance(2)
    view = bench.view("job")
    assert (view.promise, view.overrun_slots) == (None, 1)
    assert view.price == view.overrun + (view.slot_price or 0) > 0
    bench.commit(revise_job(view.key, {"minibatches": 30 * SLOT_WORK}))
    assert bench.view("job").price == view.price  # free, because it waits
    bench.commit(revise_job(view.key, {"utility": BY_39}))
    bench.advance()
    after = bench.view("job")
    assert after.promise is not None
    assert after.cost
    assert after.price == view.price + round(after.cost * POINT)
    admissions = [row for row in bench.entries("vision") if row.kind == "debit" and not row.note]
    assert len(admissions) == 1
    bench.check_accounts()
    bench.store.close()


@pytest.mark.parametrize("policy", ["fifo", "elasticflow"])
def test_policies_without_prices_charge_nothing(tmp_path: Path, policy: str) -> None:
    bench = open_bench(tmp_path / "data", policy)
    bench.submit("job", tenant="vision", minibatches=SLOT_WORK)
    bench.advance(5)
    view = bench.view("job")
    assert view.covered >= 3 * SLOT_WORK * MICRO
    assert (view.price or 0, view.slot_price, view.overrun_slots) == (0, None, 0)
    assert bench.balance("vision") == 10_000
    bench.store.close()


def test_a_tenant_without_a_budget_pays_nothing(tmp_path: Path) -> None:
    bench = OverrunBench(tmp_path / "data", "oasis")
    bench.set_budget("speech", 100_000)
    bench.run_busy_slots(6)
    bench.submit("job", minibatches=SLOT_WORK, utility=BY_39)
    while bench.job_key("job") not in bench.durable.state.desired:
        bench.advance()
    bench.run_busy_slots(4)
    view = bench.view("job")
    assert view.state.open
    assert (view.price, view.slot_price, view.overrun_slots, view.covered) == (0, None, 0, 0)
    bench.check_accounts()
    bench.store.close()


def test_a_budget_that_is_removed_ends_the_charges(oasis: OverrunBench) -> None:
    oasis.run_stated_work(2 * SLOT_WORK)
    oasis.commit(put_tenant("vision", None, None, budgeted=True))
    view = oasis.view("job")
    assert (view.slot_price, view.reason) == (None, None)
    price = view.price
    oasis.advance(3)
    assert oasis.view("job").price == price
    oasis.set_budget("vision", 100)
    oasis.advance(2)
    assert oasis.view("job").price == price  # it runs on for free
    assert oasis.balance("vision") == 100


def test_a_borrower_pays_its_lenders_in_full_beyond_its_stated_work(tmp_path: Path) -> None:
    class OpenLendingBench(LendingBench):
        """A market of jobs that take longer than stated."""

        def hours(self, hours: int) -> None:
            for _ in range(hours):
                self.slot_of(3_600)
                self.report_starts()

        def slot_of(self, seconds: int) -> None:
            self.clock.advance(seconds)
            self.commit(AdvanceSlots(virtual=False))
            self.check_accounts()

    lending = OpenLendingBench(tmp_path / "data", "astraea")
    for tenant, points in (("vision", 1_000), ("speech", 500)):
        lending.set_budget(tenant, points, period=400 * 86_400)
    lending.submit_lending_jobs()
    for _ in range(40):
        lending.hours(1)
        if lending.payments():
            break
    name = str(lending.payments()[0].job)
    admitted = lending.view(name).price or 0
    for _ in range(40):
        lending.hours(1)
        if lending.view(name).overrun_slots >= 3:
            break
    view = lending.view(name)
    assert view.overrun_slots >= 3
    assert (view.price or 0) > admitted
    paid = sum(row.points for row in lending.payments() if row.job == name)
    assert paid == view.used
    lending.commit(cancel_job(name))
    lending.check_accounts()
    assert (
        sum(row.points for row in lending.payments() if row.job == name) == lending.view(name).used
    )
    lending.store.close()


# ---------------------------------------------------------------- restarts and crashes


def test_a_restart_within_a_slot_changes_no_charge(bench: OverrunBench) -> None:
    bench.run_stated_work(2 * SLOT_WORK)
    bench.clock.advance(SLOT / 4)
    slot_price = bench.view("job").slot_price
    bench.recover()
    assert bench.view("job").slot_price == slot_price
    bench.clock.advance(SLOT / 4)
    bench.advance()
    assert (bench.view("job").overrun, bench.view("job").overrun_slots) == (slot_price, 1)
    assert bench.durable.state.engine.state_digest()
    digest = bench.durable.state.engine.state_digest()
    bench.recover()
    assert bench.durable.state.engine.state_digest() == digest


class CrashingOverrunBench(OverrunBench):
    """A service whose process may be killed at any write."""

    left = 0

    def fault(self, _: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash

    def recover(self) -> None:
        super().recover()
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
                self.recover()

    def end_slot(self) -> None:
        self.clock.advance(SLOT)
        self.safely(lambda: self.commit(AdvanceSlots(self.virtual)))
        self.safely(self.report_starts)


def _ledger_with_a_crash(folder: Path, policy: str, at: int) -> tuple[list[Any], int]:
    """Return the entries of a job that overruns until it can't pay, and the number of writes."""
    bench = CrashingOverrunBench(folder, policy)
    bench.set_budget("vision", 10_000)
    bench.set_budget("speech", 100_000)
    bench.run_busy_slots(6, jobs=1)
    bench.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=BY_39)
    cost = {"oasis": 3, "rolling": 0.006}[policy]
    bench.set_budget("vision", 10_000 - bench.balance("vision") + cost)
    bench.left = at
    for _ in range(16):
        bench.end_slot()
    assert bench.view("job").state == "failed"
    assert (bench.view("job").reason or {})["code"] == "budget"
    bench.check_accounts()
    writes = at - bench.left
    rows = [tuple(row) for row in bench.entries()]
    bench.store.close()
    return rows, writes


@pytest.mark.parametrize("policy", ["rolling", pytest.param("oasis", marks=pytest.mark.extended)])
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


def test_points_that_an_operator_grants_keep_a_job_running(oasis: OverrunBench) -> None:
    oasis.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=BY_39)
    oasis.set_budget("vision", 10_000 - oasis.balance("vision"))
    while oasis.job_key("job") not in oasis.durable.state.desired:
        oasis.advance()
    oasis.commit(grant_points("vision", 1_000 * POINT, "deadline"))
    oasis.advance(3)
    assert oasis.view("job").state == "running"
    assert oasis.view("job").overrun_slots >= 1


def test_an_end_that_is_reported_late_pays_for_the_slots_that_it_held(oasis: OverrunBench) -> None:
    """The service is down while the job ends: reports apply to the slot in which it ended."""
    oasis.run_stated_work(2 * SLOT_WORK)
    key, order = oasis.job_key("job"), oasis.durable.state.desired[oasis.job_key("job")]
    price = oasis.view("job").slot_price or 0
    at = oasis.clock.wall() / SECOND + SLOT / 2
    oasis.clock.advance(3 * SLOT)
    oasis.recover()
    ended = Ended(0, key, order.generation, at, Ending.DONE, 0, "")
    oasis.commit(AdvanceSlots(False, reports=[ended]))
    view = oasis.view("job")
    assert (view.state, view.overrun_slots, view.overrun) == ("finished", 1, price)
    oasis.commit(RecordReports([ended]))
    assert oasis.view("job") == view


@pytest.mark.parametrize("points", [0, 1_000])
def test_a_job_that_completed_during_an_outage_is_not_abandoned(
    oasis: OverrunBench, points: int
) -> None:
    """Its end was reported. It pays for the slots that it held if its tenant can."""
    oasis.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=BY_39)
    while oasis.job_key("job") not in oasis.durable.state.desired:
        oasis.advance()
    oasis.advance()
    oasis.set_budget("vision", 10_000 - oasis.balance("vision") + points)
    assert oasis.balance("vision") == points
    order = oasis.durable.state.desired[oasis.job_key("job")]
    at = oasis.clock.wall() / SECOND + 2.5 * SLOT
    oasis.clock.advance(4 * SLOT)
    oasis.recover()
    ended = Ended(0, oasis.job_key("job"), order.generation, at, Ending.DONE, 0, "")
    oasis.commit(AdvanceSlots(False, reports=[ended]))
    view = oasis.view("job")
    assert (view.state, view.reason) == ("finished", None)
    assert view.overrun_slots == (2 if points else 0)
    assert oasis.balance("vision") >= 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("late", [0.0, 0.1])
def test_an_exit_before_a_slot_counts_even_if_it_is_reported_after_the_job_was_abandoned(
    tmp_path: Path, policy: str, late: float
) -> None:
    bench = open_bench(tmp_path / "data", policy)
    bench.run_busy_slots(6)
    bench.submit("job", tenant="vision", minibatches=2 * SLOT_WORK, utility=BY_39)
    bench.set_budget("vision", 10_000 - bench.balance("vision"))
    while bench.view("job").state.open:
        key, order = (
            bench.job_key("job"),
            bench.durable.state.desired.get(bench.job_key("job")),
        )
        bench.run_busy_slots(1)
    abandoned = bench.view("job")
    assert order is not None
    assert (abandoned.state, (abandoned.reason or {})["code"]) == ("failed", "budget")
    begins = bench.durable.state.calendar.begins(bench.durable.state.engine.slot_running or 0)
    ended = Ended(0, key, order.generation, begins / SECOND + late, Ending.DONE, 0, "")
    before = bench.balance("vision")
    bench.commit(RecordReports([ended]))
    view = bench.view("job")
    assert bench.balance("vision") == before
    bench.check_accounts()
    if late:
        assert view == abandoned
        assert "finished" not in bench.event_kinds("job")
    else:
        slot = (bench.durable.state.engine.slot_running or 0) - 1
        assert (view.state, view.reason, view.completion) == ("finished", None, slot)
        assert (view.progress, view.utility) == (view.required, 100.0)
        assert bench.event_kinds("job")[-1] == "finished"
        bench.commit(RecordReports([ended]))
        assert bench.view("job") == view
        assert bench.event_kinds("job").count("finished") == 1
    bench.recover()
    assert bench.view("job") == view
    assert key not in bench.durable.state.views
    bench.store.close()


def test_a_job_that_exits_while_it_is_stopped_pays_for_no_other_slot(oasis: OverrunBench) -> None:
    """It is complete at once, and holds no other slot."""
    run = {"command": ["train"], "checkpoints": True}
    oasis.submit("job", tenant="vision", minibatches=SLOT_WORK, utility=BY_39, run=run)
    while oasis.job_key("job") not in oasis.durable.state.desired:
        oasis.advance()
    oasis.clock.advance(SLOT)
    key, order = oasis.job_key("job"), oasis.durable.state.desired[oasis.job_key("job")]
    oasis.commit(AdvanceSlots(virtual=False))
    assert oasis.view("job").slot_price
    oasis.commit(set_server_availability(order.servers[0]))
    at = oasis.clock.wall() / SECOND
    oasis.set_budget("vision", 10_000 - oasis.balance("vision"))
    oasis.commit(RecordReports([Ended(0, key, order.generation, at, Ending.DONE, 0, "")]))
    view = oasis.view("job")
    assert view.closed == int(at * SECOND)
    oasis.advance()
    assert (view.state, view.reason) == ("finished", None)
    assert oasis.event_kinds("job").count("overrun") == 1  # in the slot that was lost


@pytest.mark.parametrize("factor", [math.nan, math.inf])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_price_that_is_not_finite_ends_no_job(
    tmp_path: Path,
    policy: str,
    factor: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = open_bench(tmp_path / "data", policy)
    bench.run_busy_slots(6)
    bench.run_stated_work(2 * SLOT_WORK)
    priced = as_priced_policy(bench.durable.state.engine.policy)
    assert priced is not None
    posted = type(priced).slot_prices
    monkeypatch.setattr(type(priced), "slot_prices", lambda *args: posted(*args) * factor)
    bench.advance(2)
    view = bench.view("job")
    assert (view.state, view.slot_price, view.reason) == ("running", None, None)
    assert "aren't finite" in caplog.text
    monkeypatch.undo()
    bench.advance()
    assert bench.view("job").slot_price is not None
    bench.check_accounts()
    bench.store.close()


def test_a_job_that_ended_before_a_slot_does_not_pay_for_it(oasis: OverrunBench) -> None:
    """Its end is observed only after the slot began, such as with a slow poll."""
    oasis.run_stated_work(2 * SLOT_WORK)
    view = oasis.view("job")
    assert view.slot_price
    oasis.report_end("job")  # now, as the slot begins
    after = oasis.view("job")
    assert (after.used, after.overrun_slots) == (view.used, 0)
    assert after.refund == (after.price or 0) - after.used >= view.slot_price

"""A service in which values count relative to those of their tenant's other jobs."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from shadowprice.core.budget import POINT, Budget
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.core.relative_values import RelativeValues, utility_factor
from shadowprice.core.utility import utility_value
from shadowprice.service.auth import create_token
from shadowprice.service.budgets.operations import put_tenant
from shadowprice.service.clock import MonotonicWallClock
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.operations import (
    SubmitJobs,
    cancel_job,
    decide_backlog,
    quote_job,
    revise_job,
)
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import tables
from tests.support.engine_bench import EngineBench
from tests.support.simulated_hours import CLUSTER

PRICING = ("rolling", "oasis", "pdors")
LIAR = "vision"


class RelativeBench(EngineBench):
    """A service with relative values."""

    values = "relative"

    def recover(self) -> None:
        clock = MonotonicWallClock(self.clock)
        self.durable = DurableEngine(
            self.store, CLUSTER, self.choice, clock, virtual=self.virtual, values=self.values
        )

    def submit_for(self, tenant: str, name: str, **changes: Any) -> None:
        self.tenant = tenant
        self.submit(name, **changes)

    def share(self, name: str) -> float:
        return utility_factor(self.durable.state.engine.jobs[self.job_key(name)].job)


class DefaultBench(RelativeBench):
    """A service in which values are relative once it has tenants."""

    values = "auto"

    def give_token(self, tenant: str) -> None:
        self.commit(create_token(f"token of {tenant}", "tenant", tenant, "", None))


def constant(value: float) -> dict[str, Any]:
    return {"utility": {"kind": "constant", "value": value}}


def journal(bench: EngineBench) -> list[Any]:
    """Return all events with their decisions, without what tenants stated."""
    with bench.store.reading() as connection:
        rows = connection.execute(select(tables.journal.c.entry).order_by("sequence")).scalars()
        entries = [json.loads(row) for row in rows]
    for entry in entries:
        for job in entry.get("jobs", ()):
            assert job.pop("stated_utility")
    return entries


def open_jobs(bench: EngineBench) -> dict[str, Any]:
    return {
        name: entry.job.record() for name, entry in bench.durable.state.engine.open_jobs.items()
    }


def play(bench: RelativeBench, factor: float, *, restarts: bool) -> None:
    """Run a script of two tenants; one multiplies its values by a factor."""
    random_ = random.Random(7)
    for slot in range(16):
        for number in range(random_.randrange(3)):
            tenant = random_.choice([LIAR, "speech"])
            value = random_.uniform(1.0, 50.0) * (factor if tenant == LIAR else 1.0)
            size = random_.choice([1, 2, 6])
            changes = {"chunks": size, "minibatches": random_.choice([30, 200, 600])}
            bench.submit_for(tenant, f"job-{slot}-{number}", **constant(value), **changes)
        if slot == 5:
            bench.commit(cancel_job(min(bench.durable.state.views)))
        if restarts and slot % 4 == 3:
            bench.recover()
        bench.advance()


@pytest.mark.parametrize("policy", PRICING)
@pytest.mark.parametrize("factor", [1000.0, 0.37])
def test_no_decision_depends_on_a_tenants_unit_or_on_restarts(
    tmp_path: Path, policy: str, factor: float
) -> None:
    played = []
    for number, (times, restarts) in enumerate(((1.0, False), (factor, False), (factor, True))):
        bench = RelativeBench(tmp_path / str(number), policy, virtual=True)
        play(bench, times, restarts=restarts)
        values = bench.durable.state.values
        assert values is not None
        assert set(values.finished) == {LIAR, "speech"}
        played.append(journal(bench))
        if restarts:
            before, finished = open_jobs(bench), dict(values.finished)
            bench.recover()
            assert bench.durable.state.values is not None
            assert bench.durable.state.values.finished == finished
            assert open_jobs(bench) == before
        bench.store.close()
    assert played[0] == played[1] == played[2]


@pytest.mark.parametrize("policy", PRICING)
def test_pages_show_what_the_tenant_stated(tmp_path: Path, policy: str) -> None:
    bench = RelativeBench(tmp_path, policy, virtual=True)
    bench.submit_for(LIAR, "one", **constant(70_000.0))
    view = bench.durable.state.views[bench.job_key("one")]
    assert view.utility == pytest.approx(70_000.0)
    assert view.cost is not None
    assert view.payoff == pytest.approx(70_000.0 - view.cost)
    record = {**bench.durable.state.specs[bench.job_key("one")], "name": "quoted"}
    [submission] = read_submissions([record], CLUSTER, tenant=LIAR, runs=True)
    [quoted] = bench.commit(quote_job(submission)).answers
    resource = quoted.to_resource("quoted", bench.durable.state.calendar, names=True)
    assert resource.utility == pytest.approx(70_000.0)
    bench.advance(12)
    key = bench.job_key("one")
    with bench.store.reading() as connection:
        table = tables.events
        rows = connection.execute(select(table.c.data).where(table.c.kind == "finished")).scalars()
        assert [json.loads(row)["utility"] for row in rows] == [70_000.0]
    assert key not in bench.durable.state.views


def test_a_tenant_with_a_budget_pays_for_what_it_states(tmp_path: Path) -> None:
    bench = RelativeBench(tmp_path, "rolling", virtual=True)
    bench.commit(put_tenant("paying", None, Budget(10**6 * POINT, 86_400), budgeted=True))
    bench.commit(put_tenant(LIAR, None))
    bench.submit_for(LIAR, "free", **constant(500.0))
    bench.submit_for("paying", "paid", **constant(500.0))
    assert bench.share("free") < 1.0
    assert bench.share("paid") == 1.0


EXTREME = (
    {"kind": "power", "scale": 2, "exponent": 0.0001},
    {"kind": "power", "scale": 1000, "exponent": 0.001},
    {"kind": "constant", "value": 1e-310},
)


def backlog(*names: str, utility: Mapping[str, Any], tenant: str = LIAR) -> SubmitJobs:
    record = {
        "chunks": 1,
        "minibatches": 60,  # few enough for a promise before much demand was observed
        "minibatch_time": "6s",
        "worker": {"gpu": 4, "cpu": 1},
        "utility": utility,
        "run": {"command": ["train"]},
    }
    records = [{"name": name, **record} for name in names]
    result = read_submissions(records, CLUSTER, tenant=tenant, runs=True)
    return SubmitJobs(result, at_once=False)


@pytest.mark.parametrize("policy", PRICING)
@pytest.mark.parametrize("utility", EXTREME)
def test_an_extreme_utility_is_quoted_and_decided(
    tmp_path: Path, policy: str, utility: Mapping[str, Any]
) -> None:
    bench = RelativeBench(tmp_path, policy, virtual=True)
    submit = backlog("odd", utility=utility)
    [quoted] = bench.commit(quote_job(submit.submissions[0])).answers
    resource = quoted.to_resource("odd", bench.durable.state.calendar, names=True)
    assert resource.price is None or math.isfinite(resource.price)
    bench.commit(submit)
    bench.commit(backlog("plain", utility=constant(5.0)["utility"], tenant="speech"))
    assert bench.commit(decide_backlog(16)).answers == [0]
    assert bench.event_kinds("odd")[1] in {"admitted", "refused", "standby"}
    assert bench.event_kinds("plain") == ["submitted", "admitted"]


def test_comparison_error_of_a_value_refuses_only_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RelativeBench(tmp_path, "rolling", virtual=True)
    bench.commit(backlog("odd", "plain", utility=constant(5.0)["utility"]))
    weigh = RelativeValues.weigh

    def stumbling(values: RelativeValues, jobs: Sequence[Job], *rest: Any) -> tuple[Job, ...]:
        if any("odd" in job.name for job in jobs):
            raise ZeroDivisionError
        return weigh(values, jobs, *rest)

    monkeypatch.setattr(RelativeValues, "weigh", stumbling)
    assert bench.commit(decide_backlog(16)).answers == [0]
    assert bench.event_kinds("odd") == ["submitted", "refused"]
    assert bench.event_kinds("plain") == ["submitted", "admitted"]


def test_without_its_budget_a_revised_job_counts_like_others(tmp_path: Path) -> None:
    bench = RelativeBench(tmp_path, "rolling", virtual=True)
    bench.commit(put_tenant(LIAR, None, Budget(100 * POINT, 86_400), budgeted=True))
    bench.submit_for(LIAR, "one", minibatches=6000, **constant(5.0))
    assert bench.share("one") == 1.0
    bench.commit(put_tenant(LIAR, None, None, budgeted=True))
    bench.commit(revise_job(bench.job_key("one"), constant(1e9)))
    revised = bench.durable.state.engine.jobs[bench.job_key("one")].job
    hours = revised.worker_slots * float(CLUSTER.slot_seconds) / 3600
    assert utility_value(revised.utility, 0) == pytest.approx(hours, rel=1e-6)
    assert revised.points is None


def test_a_raised_utility_counts_like_a_new_submission(tmp_path: Path) -> None:
    bench = RelativeBench(tmp_path, "oasis", virtual=True)
    for name in ("old-1", "old-2", "old-3", "one"):
        bench.submit_for(LIAR, name, **constant(20.0))
        assert bench.durable.state.engine.jobs[bench.job_key(name)].status is Status.ADMITTED
    before = bench.share("one")
    bench.commit(revise_job(bench.job_key("one"), constant(20_000.0)))
    revised = bench.durable.state.engine.jobs[bench.job_key("one")].job
    # It now states nearly all the value of four equal jobs, so it counts like four of them.
    assert bench.share("one") < before / 200
    hours = revised.worker_slots * float(CLUSTER.slot_seconds) / 3600
    assert utility_value(revised.utility, 0) == pytest.approx(4 * hours, rel=0.01)


def test_less_work_raises_no_value(tmp_path: Path) -> None:
    bench = RelativeBench(tmp_path, "rolling", virtual=True)
    bench.submit_for(LIAR, "one", minibatches=3000, **constant(20.0))
    counted = bench.durable.state.engine.jobs[bench.job_key("one")].job.utility
    bench.commit(revise_job(bench.job_key("one"), {"minibatches": 30}))
    revised = bench.durable.state.engine.jobs[bench.job_key("one")].job
    hours = revised.worker_slots * float(CLUSTER.slot_seconds) / 3600
    assert utility_value(revised.utility, 0) == pytest.approx(hours, rel=1e-6)
    assert utility_value(revised.utility, 0) < utility_value(counted, 0) / 50


def test_a_revision_of_something_else_keeps_the_value(tmp_path: Path) -> None:
    bench = RelativeBench(tmp_path, "rolling", virtual=True)
    bench.submit_for(LIAR, "one", **constant(20.0))
    bench.submit_for(LIAR, "two", **constant(2_000.0))
    before = bench.durable.state.engine.jobs[bench.job_key("one")].job
    bench.commit(revise_job(bench.job_key("one"), {"labels": {"note": "seen"}}))
    after = bench.durable.state.engine.jobs[bench.job_key("one")].job
    assert (after.utility, after.stated_utility) == (before.utility, before.stated_utility)


def density(bench: EngineBench, name: str) -> float:
    """Return the value at which a job counts per GPU-hour if it runs as fast as it can."""
    job = bench.durable.state.engine.jobs[bench.job_key(name)].job
    hours = job.worker_slots * float(CLUSTER.slot_seconds) / 3600
    return utility_value(job.utility, job.min_slots_colocated - 1) / hours


def run(bench: EngineBench, name: str, per_slot: float, slots: int) -> None:
    """Run a job at a speed in mini-batches per slot, which it reports."""
    while bench.job_key(name) not in bench.durable.state.desired:
        bench.advance()
    bench.report_start(name)
    bench.advance()
    for slot in range(1, slots + 1):
        bench.report_progress(name, per_slot * slot)
        bench.advance()


@pytest.mark.parametrize("policy", ["rolling", "oasis"])
def test_a_job_that_states_a_low_speed_counts_at_most_like_an_urgent_one(
    tmp_path: Path, policy: str
) -> None:
    bench = RelativeBench(tmp_path, policy)
    utility = {"kind": "sigmoid", "value": 1000, "decay": 0.5, "target": "7 slots"}
    bench.submit_for(LIAR, "one", minibatches=200, utility=utility)
    assert density(bench, "one") <= 16.001
    run(bench, "one", 50, 3)
    view = bench.durable.state.views[bench.job_key("one")]
    assert view.measured
    assert density(bench, "one") == pytest.approx(16.0, rel=1e-6)
    bench.recover()  # replays the journal
    assert density(bench, "one") == pytest.approx(16.0, rel=1e-6)


@pytest.mark.parametrize("policy", ["rolling", "oasis"])
def test_labels_keep_the_value_of_a_job_with_a_measured_speed(tmp_path: Path, policy: str) -> None:
    bench = RelativeBench(tmp_path, policy)
    bench.submit_for(LIAR, "one", minibatches=100, **constant(5.0))
    run(bench, "one", 4, 3)
    assert bench.durable.state.views[bench.job_key("one")].measured
    bench.submit_for(LIAR, "dense", minibatches=100, **constant(500.0))
    before = bench.durable.state.engine.jobs[bench.job_key("one")].job
    bench.commit(revise_job(bench.job_key("one"), {"labels": {"note": "seen"}}))
    after = bench.durable.state.engine.jobs[bench.job_key("one")].job
    assert after.labels == {"note": "seen"}
    assert (after.utility, after.stated_utility) == (before.utility, before.stated_utility)


def test_a_dry_run_leaves_values_as_they_were(tmp_path: Path) -> None:
    bench = RelativeBench(tmp_path, "oasis", virtual=True)
    bench.submit_for(LIAR, "one", **constant(20.0))
    digest = bench.durable.state.engine.state.digest
    bench.commit(revise_job(bench.job_key("one"), constant(40.0), dry_run=True))
    assert bench.durable.state.engine.state.digest == digest


def test_without_tenants_values_count_as_stated(tmp_path: Path) -> None:
    bench = DefaultBench(tmp_path, "rolling", virtual=True)
    for name, value in (("one", 5.0), ("two", 50_000.0)):
        bench.submit(name, **constant(value))
        assert bench.share(name) == 1.0


def test_values_are_relative_once_a_tenant_has_a_token(tmp_path: Path) -> None:
    bench = DefaultBench(tmp_path, "rolling", virtual=True)
    bench.submit("before", **constant(50.0))
    bench.advance(12)
    assert bench.event_kinds("before")[-1] == "finished"
    bench.give_token("speech")
    # What the operator finished before counts in its mean.
    bench.submit("after", **constant(1_000.0))
    assert density(bench, "after") == pytest.approx(1_000.0 / ((1_000.0 + 50.0) / 2), rel=0.1)
    bench.recover()  # the tokens are in the store
    bench.submit("again", **constant(1_000.0))
    assert bench.share("again") < 1.0


def test_tenants_are_known_by_their_jobs_too(tmp_path: Path) -> None:
    """Those of TrainingJobs have no tokens."""
    bench = DefaultBench(tmp_path, "rolling", virtual=True)
    bench.submit_for(LIAR, "dense", **constant(50_000.0))
    assert bench.share("dense") < 1e-3


@pytest.mark.parametrize("policy", PRICING)
@pytest.mark.parametrize("factor", [1000.0, 0.37])
def test_by_default_no_decision_depends_on_the_unit_of_one_of_two_tenants(
    tmp_path: Path, policy: str, factor: float
) -> None:
    played = []
    for number, (times, restarts) in enumerate(((1.0, False), (factor, True))):
        bench = DefaultBench(tmp_path / str(number), policy, virtual=True)
        for tenant in (LIAR, "speech"):
            bench.give_token(tenant)
        play(bench, times, restarts=restarts)
        played.append(journal(bench))
        bench.store.close()
    assert played[0] == played[1]

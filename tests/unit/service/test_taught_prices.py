"""Refused, cancelled and unpayable jobs don't change the prices of other tenants."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from shadowprice.core.budget import POINT, Budget
from shadowprice.executors.contract import Ended, Ending
from shadowprice.service.budgets.operations import put_tenant
from shadowprice.service.clock import SECOND
from shadowprice.service.state import durable_engine
from shadowprice.service.state.job_views import State
from shadowprice.service.state.operations import cancel_job, quote_job
from shadowprice.service.state.prices import prices, prices_by_kind
from shadowprice.service.state.report_operations import RecordReports
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import tables
from tests.support.engine_bench import EngineBench
from tests.support.simulated_hours import CLUSTER, SLOT

HUGE = {"kind": "constant", "value": 1e5}
TOO_LARGE = {"chunks": 50, "workers": {"min": 50, "max": 50}}
WHOLE_CLUSTER = {"chunks": 12, "minibatches": 4_000, "workers": {"min": 12, "max": 12}}
TEN_SLOTS = WHOLE_CLUSTER | {"minibatches": 100}
RESTARTS_FOR_EVER = TOO_LARGE | {"restart": "60s"}

Attack = Callable[[EngineBench], None]
RICH = 10**6


def submit_what_cannot_fit(bench: EngineBench) -> None:
    for number in range(4):
        bench.submit(f"attack-{number}", utility=HUGE, **TOO_LARGE)


def submit_what_never_gets_a_promise(bench: EngineBench) -> None:
    for number in range(4):
        bench.submit(f"attack-{number}", utility=HUGE, **RESTARTS_FOR_EVER)


def submit_and_cancel(bench: EngineBench) -> None:
    for number in range(4):
        bench.submit(
            f"attack-{number}", utility=HUGE, **(TEN_SLOTS if number % 2 else WHOLE_CLUSTER)
        )
    for number in range(4):
        key = bench.job_key(f"attack-{number}")
        if bench.durable.state.views.get(key) is not None:
            bench.commit(cancel_job(key))


def submit_and_cancel_with_ps(bench: EngineBench) -> None:
    """Servers that are divided for parameter servers have other prices."""
    for number in range(4):
        ps = {"workers": {"min": 4, "max": 4}, "chunks": 4, "ps": {"cpu": 1}}
        bench.submit(f"attack-{number}", utility=HUGE, **ps)
    for number in range(4):
        key = bench.job_key(f"attack-{number}")
        if bench.durable.state.views.get(key) is not None:
            bench.commit(cancel_job(key))


def submit_without_points(bench: EngineBench) -> None:
    """Submit jobs that can be stopped: others would keep the servers on which they start."""
    run = {"command": ["train"], "checkpoints": True}
    for number in range(4):
        bench.submit(f"attack-{number}", utility=HUGE, run=run, **WHOLE_CLUSTER)


def honest(bench: EngineBench, name: str) -> tuple[Any, ...]:
    """Submit a job of another tenant; return its quote before, its cost, and the prices."""
    bench.tenant = "honest"
    record = {
        "name": name, "chunks": 1, "minibatches": 60, "minibatch_time": "6s",
        "worker": {"gpu": 1, "cpu": 1}, "utility": {"kind": "constant", "value": 20},
        "run": {"command": ["train"]},
    }  # fmt: skip
    [submission] = read_submissions([record], CLUSTER, tenant="honest", runs=True)
    [quoted] = bench.commit(quote_job(submission)).answers
    bench.submit(name)
    view = bench.durable.state.views.get(bench.job_key(name))
    shown = (None,) if view is None else (view.cost, view.payoff)
    posted = prices(bench.durable.state.engine, bench.durable.state.calendar, "policy", 2)
    return (quoted.quote.price, *shown, dict(prices_by_kind(posted)))


ATTACKS = (
    submit_what_cannot_fit,
    submit_what_never_gets_a_promise,
    submit_and_cancel,
    submit_and_cancel_with_ps,
)


@pytest.mark.extended
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("points", [0, RICH, None])
@pytest.mark.parametrize("attack", [*ATTACKS, submit_without_points])
@pytest.mark.parametrize("policy", ["rolling", "oasis", "pdors"])
def test_attack_changes_no_price_of_another_tenant(
    tmp_path: Path, policy: str, attack: Attack, points: int | None, is_first: bool
) -> None:
    if attack is submit_without_points and points != 0:
        pytest.skip("who has points pays for these jobs")
    results = []
    for attacked in (False, True):
        bench = EngineBench(tmp_path / f"data-{attacked}", policy)
        budget = None if points is None else Budget(points * POINT, 86_400)
        bench.commit(put_tenant("attacker", None, budget, budgeted=points is not None))
        bench.commit(put_tenant("honest", None))
        first = None if is_first else honest(bench, "first")
        if attacked:
            bench.tenant = "attacker"
            attack(bench)
            bench.recover()
        bench.advance()
        results.append((first, honest(bench, "second"), honest(bench, "third")))
        bench.store.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize("attack", [submit_and_cancel, submit_what_never_gets_a_promise])
@pytest.mark.parametrize("policy", ["rolling", "oasis", "pdors"])
def test_crash_loses_no_learnt_policy_state(
    tmp_path: Path,
    policy: str,
    attack: Attack,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_snapshot: bool,
) -> None:
    """It is written every few seconds, and the events since are decided again.

    A snapshot has a policy state of its own, which is newer than the one written before it.
    """
    results = []
    for interval in (0, 10**18):
        monkeypatch.setattr(durable_engine, "SMALL_POLICY_STATE_BYTES", 0)
        monkeypatch.setattr(durable_engine, "POLICY_STATE_INTERVAL_NS", interval)
        bench = EngineBench(tmp_path / f"data-{interval}", policy)
        for tenant in ("attacker", "honest"):
            bench.commit(put_tenant(tenant, None))
        bench.tenant = "attacker"
        bench.submit("first", **TEN_SLOTS)
        bench.advance()
        if has_snapshot:
            bench.durable.write_snapshot()
        attack(bench)
        bench.advance(2)
        honest(bench, "one")
        with bench.store.reading() as connection:
            stored = connection.execute(select(tables.policy_state.c.sequence)).scalar_one()
        behind = bench.durable.state.engine.sequence - stored
        assert behind > 3 if interval else behind == 0
        bench.recover()
        results.append(honest(bench, "two"))
        bench.store.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("policy", ["oasis", "pdors"])
def test_quote_after_an_idle_horizon_equals_a_new_service(tmp_path: Path, policy: str) -> None:
    results = []
    for was_busy in (False, True):
        bench = EngineBench(tmp_path / f"data-{was_busy}", policy, virtual=True)
        bench.commit(put_tenant("rich", None))
        bench.commit(put_tenant("honest", None))
        bench.advance()
        if was_busy:
            bench.tenant = "rich"
            for number in range(12):
                bench.submit(f"rich-{number}", utility=HUGE, **TEN_SLOTS)
            price, cost, *_ = honest(bench, "meanwhile")
            assert cost is None or price > results[0][0]  # too expensive, or more expensive
            bench.recover()
        bench.advance(2 * CLUSTER.horizon)
        results.append(honest(bench, "cheap"))
        bench.store.close()
    assert results[0] == results[1]


def test_payable_demand_that_waits_raises_prices(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")
    bench.commit(put_tenant("rich", None, Budget(RICH * POINT, 86_400), budgeted=True))
    bench.commit(put_tenant("honest", None))
    before = honest(bench, "first")[-1]
    bench.tenant = "rich"
    submit_without_points(bench)
    bench.advance()
    assert honest(bench, "second")[-1]["g", "gpu"] > before["g", "gpu"]
    bench.store.close()


def test_a_job_that_ends_long_before_its_stated_length_is_little_demand(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")
    bench.advance()
    bench.submit("long", utility=HUGE, chunks=4, minibatches=60_000)
    bench.advance()
    bench.report_start("long")
    bench.recover()  # also after a restart of the service
    while_it_runs = bench.durable.state
    high = prices_by_kind(prices(while_it_runs.engine, while_it_runs.calendar, "rolling", 1))
    assert max(high.values()) > 0
    key = bench.job_key("long")
    generation = bench.durable.state.desired[key].generation
    at = bench.clock.wall() / SECOND
    bench.commit(RecordReports([Ended(0, key, generation, at, Ending.DONE, 0, "")]))
    bench.advance()
    low = prices_by_kind(
        prices(bench.durable.state.engine, bench.durable.state.calendar, "rolling", 1)
    )
    assert "finished" in bench.event_kinds("long")
    assert max(low.values()) == 0
    bench.submit("next", utility={"kind": "constant", "value": 0.001})
    assert bench.durable.state.views[bench.job_key("next")].state is State.ADMITTED
    bench.store.close()


STATED_DENSITY = HUGE["value"] / (WHOLE_CLUSTER["minibatches"] / 10)
"""Points for a slot of the whole cluster."""


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(("jobs", "max_price"), [(3, 0.0), (12, 1.001 * STATED_DENSITY)])
def test_jobs_that_wait_and_then_end_at_once_are_little_demand(
    tmp_path: Path, jobs: int, max_price: float, *, reads: bool
) -> None:
    """They used the cluster for a slot each, however long they waited for it.

    Those that state much more work than they do aren't denser for that.
    """
    bench = EngineBench(tmp_path / "data", "rolling")
    for tenant in ("attacker", "honest"):
        bench.commit(put_tenant(tenant, None))
    honest(bench, "first")
    bench.advance(CLUSTER.horizon)
    bench.tenant = "attacker"
    names = [f"attack-{number}" for number in range(jobs)]
    for name in names:
        bench.submit(name, utility=HUGE, **WHOLE_CLUSTER)
    waited = 0
    while any(view.tenant == "attacker" for view in bench.durable.state.views.values()):
        bench.advance()
        waited += 1
        if reads:
            bench.recover()
        for key, order in list(bench.durable.state.desired.items()):
            at = bench.clock.wall() / SECOND
            ended = Ended(0, key, order.generation, at, Ending.DONE, 0, "")
            bench.commit(RecordReports([ended]))
    assert waited >= len(names)
    bench.advance()
    posted = prices_by_kind(
        prices(bench.durable.state.engine, bench.durable.state.calendar, "rolling", 1)
    )
    assert max(posted.values()) <= max_price
    bench.store.close()


@pytest.mark.parametrize("policy", ["rolling", "oasis"])
def test_prices_of_an_idle_service_are_those_of_the_coming_slot(
    tmp_path: Path, policy: str
) -> None:
    bench = EngineBench(tmp_path / "data", policy, virtual=True)
    bench.advance()
    for number in range(12):
        bench.submit(f"job-{number}", utility=HUGE, **TEN_SLOTS)
    while bench.durable.state.engine.open_jobs:
        bench.advance()
    durable = bench.durable
    engine, calendar, name = durable.state.engine, durable.state.calendar, durable.state.choice.name
    before = prices(engine, calendar, name, 1, durable.state.next_slot)
    bench.clock.advance(SLOT * 20 * CLUSTER.horizon)  # nothing happens, so no slot begins
    after = prices(engine, calendar, name, 3, durable.state.next_slot)
    assert [row.slot for row in after.slots] == [
        durable.state.next_slot + later for later in range(3)
    ]
    first = datetime.fromisoformat(str(after.slots[0].begins)).timestamp()
    assert 0 < first - durable.state.clock.now() / SECOND <= SLOT
    old, new = prices_by_kind(before), prices_by_kind(after)
    assert all(new[key] <= old[key] for key in old)
    if policy == "rolling":  # prices of oasis follow the load, which is none
        assert sum(new.values()) < sum(old.values())
    else:
        assert not any(old.values())
    shown = bench.commit(AdvanceSlots(virtual=True)).servers
    assert shown.next_slot_at(durable.state.clock.now()) == durable.state.next_slot
    bench.store.close()

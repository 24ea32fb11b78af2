"""Refused, cancelled and unpayable jobs move no price of another tenant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.budget import POINT, Budget
from shadowprice.service.budgets.operations import PutTenant
from shadowprice.service.state.operations import CancelJob, QuoteJob
from shadowprice.service.state.prices import prices, prices_by_kind
from shadowprice.service.state.submission import read_submissions
from tests.support.simulated_hours import CLUSTER
from tests.unit.service.test_durable_engine import Bench

HUGE = {"kind": "constant", "value": 1e5}
TOO_LARGE = {"chunks": 50, "workers": {"min": 50, "max": 50}}
WHOLE_CLUSTER = {"chunks": 12, "minibatches": 4_000, "workers": {"min": 12, "max": 12}}
RESTARTS_FOR_EVER = TOO_LARGE | {"restart": "60s"}

Attack = Callable[[Bench], None]
RICH = 10**6


def submit_what_cannot_fit(bench: Bench) -> None:
    for number in range(4):
        bench.submit(f"attack-{number}", utility=HUGE, **TOO_LARGE)


def submit_what_never_gets_a_promise(bench: Bench) -> None:
    for number in range(4):
        bench.submit(f"attack-{number}", utility=HUGE, **RESTARTS_FOR_EVER)


def submit_and_cancel(bench: Bench) -> None:
    for number in range(4):
        bench.submit(f"attack-{number}", utility=HUGE, **WHOLE_CLUSTER)
    for number in range(4):
        if bench.truth.views.get(f"attack-{number}") is not None:
            bench.do(CancelJob(f"attack-{number}"))


def submit_without_points(bench: Bench) -> None:
    for number in range(4):
        bench.submit(f"attack-{number}", utility=HUGE, **WHOLE_CLUSTER)


def honest(bench: Bench, name: str) -> tuple[Any, ...]:
    """Submit a job of another tenant; return its quote before, its cost, and the prices."""
    bench.tenant = "honest"
    record = {
        "name": name, "chunks": 1, "minibatches": 60, "minibatch_time": "6s",
        "worker": {"gpu": 1, "cpu": 1}, "utility": {"kind": "constant", "value": 20},
        "run": {"command": ["train"]},
    }  # fmt: skip
    [submission] = read_submissions([record], CLUSTER, tenant="honest", runs=True)
    [quoted] = bench.do(QuoteJob(submission)).answers
    bench.submit(name)
    view = bench.truth.views.get(name)
    shown = (None,) if view is None else (view.cost, view.payoff)
    posted = prices(bench.truth.engine, bench.truth.calendar, "policy", 2)
    return (quoted.quote.price, *shown, dict(prices_by_kind(posted)))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(
    ("policy", "attack", "points"),
    [
        ("rolling", submit_what_cannot_fit, 0),
        ("rolling", submit_what_cannot_fit, RICH),
        ("rolling", submit_what_never_gets_a_promise, RICH),
        ("rolling", submit_and_cancel, 0),
        ("rolling", submit_and_cancel, RICH),
        ("rolling", submit_without_points, 0),
        *(
            (policy, attack, 0)
            for policy in ("oasis", "pdors")
            for attack in (submit_what_cannot_fit, submit_and_cancel, submit_without_points)
        ),
    ],
)
def test_an_attack_moves_no_price_of_another_tenant(
    tmp_path: Path, policy: str, attack: Attack, points: int, is_first: bool
) -> None:
    results = []
    for attacked in (False, True):
        bench = Bench(tmp_path / f"data-{attacked}", policy)
        bench.do(PutTenant("attacker", None, Budget(points * POINT, 86_400), budgeted=True))
        bench.do(PutTenant("honest", None))
        first = None if is_first else honest(bench, "first")
        if attacked:
            bench.tenant = "attacker"
            attack(bench)
            bench.read()
        bench.slot()
        results.append((first, honest(bench, "second"), honest(bench, "third")))
        bench.store.close()
    assert results[0] == results[1]


def test_payable_demand_that_waits_raises_prices(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "rolling")
    bench.do(PutTenant("rich", None, Budget(RICH * POINT, 86_400), budgeted=True))
    bench.do(PutTenant("honest", None))
    before = honest(bench, "first")[-1]
    bench.tenant = "rich"
    submit_without_points(bench)
    bench.slot()
    assert honest(bench, "second")[-1]["g", "gpu"] > before["g", "gpu"]
    bench.store.close()

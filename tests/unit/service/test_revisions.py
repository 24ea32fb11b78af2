"""Revisions: a larger job is admitted at current prices, or stays as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.budget import POINT
from shadowprice.core.errors import InputError
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.operations import revise_job
from shadowprice.service.state.store_queries import list_events
from shadowprice.service.state.submission import merge_changes
from tests.support.budget_bench import BudgetBench

POLICIES = ["rolling", "oasis", "pdors"]

BY_17 = {"kind": "deadline", "value": 60, "by": "17 slots"}


@pytest.fixture(params=POLICIES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BudgetBench]:
    result = BudgetBench(tmp_path / "data", request.param, virtual=True)
    result.set_budget("vision", 1_000)
    result.set_budget("speech", 1_000)
    yield result
    result.check_accounts()
    result.store.close()


def fill(bench: BudgetBench) -> None:
    """Promise a small job of vision's, and jobs of speech's that fill the cluster."""
    job = {"kind": "deadline", "value": 45, "by": "16 slots"}
    bench.submit("job", tenant="vision", minibatches=20, utility=job)
    for number in range(12):
        work = 170 if number < 11 else 130
        bench.submit(f"other-{number}", tenant="speech", minibatches=work, utility=BY_17)


def state(bench: BudgetBench) -> tuple[Any, ...]:
    engine = bench.durable.state.engine
    return (
        dict(bench.durable.state.views),
        dict(bench.durable.state.specs),
        engine.state_digest(),
        engine.session.dump_state(),
        dict(bench.durable.state.accounts),
        bench.entries(),
    )


def events(bench: BudgetBench, *kinds: str) -> list[tuple[str | None, str]]:
    with bench.store.reading() as connection:
        result = list_events(connection, after=0)
    return [(event.job, event.kind) for event in result if event.kind in kinds]


def test_more_work_than_a_new_job_would_get_leaves_everything_as_it_was(bench: BudgetBench) -> None:
    fill(bench)
    bench.advance()
    before = state(bench)
    with pytest.raises(ProblemError, match="job 'job' stays as it was") as caught:
        bench.commit(revise_job(bench.job_key("job"), {"minibatches": 140}))
    assert caught.value.code == "refused"
    assert state(bench) == before
    bench.advance(18)
    assert events(bench, "broken", "displaced", "given-up", "moved") == []


def test_additional_work_costs_its_share_of_the_current_price(bench: BudgetBench) -> None:
    bench.submit("job", tenant="vision", minibatches=40)
    price = bench.view("job").price
    assert price is not None
    for number in range(4):
        bench.submit(f"other-{number}", tenant="speech", minibatches=80, utility=BY_17)
    held = bench.balance("vision")
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": 60}))
    view = bench.view("job")
    assert view.price is not None
    assert view.cost is not None
    assert view.price - price == pytest.approx(view.cost * POINT / 3, abs=1)
    assert bench.balance("vision") == pytest.approx(held - (view.price - price) / POINT)
    bench.advance(17)
    assert bench.view("job").state == "finished"
    assert bench.view("job").used == view.price


def test_paid_work_is_not_charged_again(bench: BudgetBench) -> None:
    bench.submit("job", tenant="vision", minibatches=40)
    price = bench.view("job").price
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": 10}))
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": 40}))
    assert bench.view("job").price == price


def test_a_dry_run_shows_the_price_and_changes_nothing(bench: BudgetBench) -> None:
    bench.submit("job", tenant="vision", minibatches=40)
    for number in range(4):
        bench.submit(f"other-{number}", tenant="speech", minibatches=80, utility=BY_17)
    before = state(bench)
    [shown] = bench.commit(
        revise_job(bench.job_key("job"), {"minibatches": 60}, dry_run=True)
    ).answers
    assert state(bench) == before
    assert shown.price > bench.view("job").price
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": 60}))
    assert bench.view("job") == shown


def test_an_admitted_revision_is_replayed(bench: BudgetBench) -> None:
    bench.submit("job", tenant="vision", minibatches=40)
    bench.advance()
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": 60}))
    digest = bench.durable.state.engine.state_digest()
    bench.recover()
    assert bench.durable.state.engine.state_digest() == digest


def test_a_higher_utility_costs_the_present_price_of_the_remaining_work(bench: BudgetBench) -> None:
    bench.submit("job", tenant="vision", minibatches=60)
    paid = bench.view("job").price
    assert paid is not None
    for number in range(12):
        bench.submit(f"other-{number}", tenant="speech", minibatches=80, utility=BY_17)
    bench.commit(revise_job(bench.job_key("job"), {"utility": {**BY_17, "value": 60_000}}))
    view = bench.view("job")
    assert view.price is not None
    assert view.cost is not None
    assert view.price == max(paid, round(view.cost * POINT))


def test_a_revision_that_its_tenant_cannot_pay_leaves_everything_as_it_was(
    bench: BudgetBench,
) -> None:
    fill(bench)
    bench.set_budget("vision", 1_000 - bench.balance("vision"))
    before = state(bench)
    change = {"minibatches": 30, "utility": {**BY_17, "value": 1e6}}
    with pytest.raises(ProblemError) as caught:
        bench.commit(revise_job(bench.job_key("job"), change))
    assert caught.value.code in {"budget", "refused"}
    assert state(bench) == before


def test_a_revision_to_less_is_no_admission(bench: BudgetBench) -> None:
    fill(bench)
    price, held = bench.view("job").price, bench.balance("vision")
    bench.commit(
        revise_job(
            bench.job_key("job"),
            {"minibatches": 10, "utility": {**BY_17, "value": 0.001, "by": "16 slots"}},
        )
    )
    assert (bench.view("job").price, bench.balance("vision")) == (price, held)
    assert bench.durable.state.specs[bench.job_key("job")]["minibatches"] == 10


@pytest.mark.parametrize("policy", ["oasis", "pdors"])
def test_an_unstoppable_job_does_not_pay_for_its_own_reservation(
    tmp_path: Path, policy: str
) -> None:
    bench = BudgetBench(tmp_path / "data", policy)
    bench.set_budget("vision", 1_000)
    run = {"command": ["train"], "checkpoints": False}
    bench.submit(
        "job", tenant="vision", minibatches=120, run=run, utility={**BY_17, "by": "90 slots"}
    )
    bench.advance()
    before = bench.view("job")
    assert before.price is not None
    bench.commit(revise_job(bench.job_key("job"), {"minibatches": 130}))
    after = bench.view("job")
    assert after.price is not None
    assert after.generation == before.generation
    assert events(bench, "displaced") == []
    assert after.price <= 2 * before.price
    bench.store.close()


def test_a_job_without_its_promise_gets_no_additional_work_at_an_old_price(tmp_path: Path) -> None:
    bench = BudgetBench(tmp_path / "data", "rolling", virtual=True)
    bench.set_budget("vision", 1_000)
    bench.set_budget("speech", 1_000)
    fill(bench)
    bench.commit(
        revise_job(bench.job_key("job"), {"utility": {**BY_17, "value": 1, "by": "2 slots"}})
    )
    bench.advance()
    assert bench.view("job").promise is None
    before = state(bench)
    with pytest.raises(ProblemError, match="no promise at present") as caught:
        bench.commit(revise_job(bench.job_key("job"), {"minibatches": 30, "utility": BY_17}))
    assert caught.value.code == "refused"
    assert state(bench) == before
    bench.check_accounts()
    bench.store.close()


@pytest.mark.parametrize("utility", ["x", 5, ["deadline"], {"kind": "constant", "value": 1}])
def test_a_deadline_of_a_utility_without_one_is_refused(utility: Any) -> None:
    with pytest.raises(InputError, match="deadline: its utility has no deadline"):
        merge_changes({"name": "a"}, {"utility": utility, "deadline": "4h"})


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("walltme", "walltme: unknown key; did you mean 'walltime'?"),
        ("worker", "worker: can't be changed after submission; these can: deadline, utility"),
    ],
)
def test_an_unknown_key_is_not_reported_as_unchangeable(key: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(problem)}"):
        merge_changes({"name": "a"}, {key: 1})

"""Revisions: what asks for more is an admission at current prices, or leaves the job as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.budget import POINT
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.operations import ReviseJob
from shadowprice.service.state.store_queries import list_events
from tests.unit.service.test_billing import Till

POLICIES = ["rolling", "oasis", "pdors"]

BY_17 = {"kind": "deadline", "value": 60, "by": "17 slots"}


@pytest.fixture(params=POLICIES)
def till(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Till]:
    result = Till(tmp_path / "data", request.param, virtual=True)
    result.give("vision", 1_000)
    result.give("speech", 1_000)
    yield result
    result.check()
    result.store.close()


def fill(till: Till) -> None:
    """Promise a small job of vision's, and jobs of speech's that fill the cluster."""
    job = {"kind": "deadline", "value": 45, "by": "16 slots"}
    till.submit("job", tenant="vision", minibatches=20, utility=job)
    for number in range(12):
        work = 170 if number < 11 else 130
        till.submit(f"other-{number}", tenant="speech", minibatches=work, utility=BY_17)


def state(till: Till) -> tuple[Any, ...]:
    engine = till.truth.state.engine
    return (
        dict(till.truth.state.views),
        dict(till.truth.state.specs),
        engine.state_digest(),
        engine.session.dump_state(),
        till.truth.state.accounts.snapshot(),
        till.entries(),
    )


def events(till: Till, *kinds: str) -> list[tuple[str | None, str]]:
    with till.store.reading() as connection:
        result = list_events(connection, after=0)
    return [(event.job, event.kind) for event in result if event.kind in kinds]


def test_more_work_than_a_new_job_would_get_leaves_everything_as_it_was(till: Till) -> None:
    fill(till)
    till.slot()
    before = state(till)
    with pytest.raises(ProblemError, match="job 'job' stays as it was") as caught:
        till.do(ReviseJob(till.key("job"), {"minibatches": 140}))
    assert caught.value.code == "refused"
    assert state(till) == before
    till.slot(18)
    assert events(till, "broken", "displaced", "given-up", "moved") == []


def test_additional_work_costs_its_share_of_the_current_price(till: Till) -> None:
    till.submit("job", tenant="vision", minibatches=40)
    price = till.view("job").price
    assert price is not None
    for number in range(4):
        till.submit(f"other-{number}", tenant="speech", minibatches=80, utility=BY_17)
    held = till.held("vision")
    till.do(ReviseJob(till.key("job"), {"minibatches": 60}))
    view = till.view("job")
    assert view.price is not None
    assert view.cost is not None
    assert view.price - price == pytest.approx(view.cost * POINT / 3, abs=1)
    assert till.held("vision") == pytest.approx(held - (view.price - price) / POINT)
    till.slot(17)
    assert till.view("job").state == "finished"
    assert till.view("job").used == view.price


def test_paid_work_is_not_charged_again(till: Till) -> None:
    till.submit("job", tenant="vision", minibatches=40)
    price = till.view("job").price
    till.do(ReviseJob(till.key("job"), {"minibatches": 10}))
    till.do(ReviseJob(till.key("job"), {"minibatches": 40}))
    assert till.view("job").price == price


def test_a_dry_run_shows_the_price_and_changes_nothing(till: Till) -> None:
    till.submit("job", tenant="vision", minibatches=40)
    for number in range(4):
        till.submit(f"other-{number}", tenant="speech", minibatches=80, utility=BY_17)
    before = state(till)
    [shown] = till.do(ReviseJob(till.key("job"), {"minibatches": 60}, dry_run=True)).answers
    assert state(till) == before
    assert shown.price > till.view("job").price
    till.do(ReviseJob(till.key("job"), {"minibatches": 60}))
    assert till.view("job") == shown


def test_an_admitted_revision_is_replayed(till: Till) -> None:
    till.submit("job", tenant="vision", minibatches=40)
    till.slot()
    till.do(ReviseJob(till.key("job"), {"minibatches": 60}))
    digest = till.truth.state.engine.state_digest()
    till.read()
    assert till.truth.state.engine.state_digest() == digest


def test_a_higher_utility_costs_the_present_price_of_the_remaining_work(till: Till) -> None:
    till.submit("job", tenant="vision", minibatches=60)
    paid = till.view("job").price
    assert paid is not None
    for number in range(12):
        till.submit(f"other-{number}", tenant="speech", minibatches=80, utility=BY_17)
    till.do(ReviseJob(till.key("job"), {"utility": {**BY_17, "value": 60_000}}))
    view = till.view("job")
    assert view.price is not None
    assert view.cost is not None
    assert view.price == max(paid, round(view.cost * POINT))


def test_a_revision_that_its_tenant_cannot_pay_leaves_everything_as_it_was(till: Till) -> None:
    fill(till)
    till.give("vision", 1_000 - till.held("vision"))
    before = state(till)
    change = {"minibatches": 30, "utility": {**BY_17, "value": 1e6}}
    with pytest.raises(ProblemError) as caught:
        till.do(ReviseJob(till.key("job"), change))
    assert caught.value.code in {"budget", "refused"}
    assert state(till) == before


def test_a_revision_to_less_is_no_admission(till: Till) -> None:
    fill(till)
    price, held = till.view("job").price, till.held("vision")
    till.do(
        ReviseJob(
            till.key("job"),
            {"minibatches": 10, "utility": {**BY_17, "value": 0.001, "by": "16 slots"}},
        )
    )
    assert (till.view("job").price, till.held("vision")) == (price, held)
    assert till.truth.state.specs[till.key("job")]["minibatches"] == 10


@pytest.mark.parametrize("policy", ["oasis", "pdors"])
def test_a_pinned_job_does_not_pay_for_its_own_reservation(tmp_path: Path, policy: str) -> None:
    till = Till(tmp_path / "data", policy)
    till.give("vision", 1_000)
    run = {"command": ["train"], "checkpoints": False}
    till.submit(
        "job", tenant="vision", minibatches=120, run=run, utility={**BY_17, "by": "90 slots"}
    )
    till.slot()
    before = till.view("job")
    assert before.price is not None
    till.do(ReviseJob(till.key("job"), {"minibatches": 130}))
    after = till.view("job")
    assert after.price is not None
    assert after.generation == before.generation
    assert events(till, "displaced") == []
    assert after.price <= 2 * before.price
    till.store.close()


def test_a_job_without_its_promise_gets_no_additional_work_at_an_old_price(tmp_path: Path) -> None:
    till = Till(tmp_path / "data", "rolling", virtual=True)
    till.give("vision", 1_000)
    till.give("speech", 1_000)
    fill(till)
    till.do(ReviseJob(till.key("job"), {"utility": {**BY_17, "value": 1, "by": "2 slots"}}))
    till.slot()
    assert till.view("job").promise is None
    before = state(till)
    with pytest.raises(ProblemError, match="no promise at present") as caught:
        till.do(ReviseJob(till.key("job"), {"minibatches": 30, "utility": BY_17}))
    assert caught.value.code == "refused"
    assert state(till) == before
    till.check()
    till.store.close()

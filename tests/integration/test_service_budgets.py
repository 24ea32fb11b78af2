"""Budgets and statements over the API of a running service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.services import CLUSTER, RunningService, job, run_service

TENANTS = [
    {"name": "vision", "budget": {"points": 30, "period": "7d", "carry": 5}},
    {"name": "speech"},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("budgets")
    with run_service(folder, policy="oasis", cluster={**CLUSTER, "tenants": TENANTS}) as found:
        for index in range(20):  # until places cost something
            if found.client.post("/v1/quote", json=job("x", tenant="vision")).json()["price"] > 0.5:
                break
            found.client.post("/v1/jobs", json=_wide(f"filler-{index}"))
        yield found


def _wide(name: str) -> dict[str, Any]:
    return job(name, tenant="speech", chunks=8, minibatches=60)


def _statement(live: RunningService, name: str = "vision", **query: Any) -> Any:
    response = live.client.get(f"/v1/tenants/{name}/statement", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def _tenant(live: RunningService, name: str) -> Any:
    listed = live.client.get("/v1/tenants").json()["tenants"]
    return next(entry for entry in listed if entry["name"] == name)


def test_unused_part_of_a_payment_is_refunded(live: RunningService) -> None:
    budget = {"points": 30.0, "period": "7d", "since": "1970-01-05T00:00:00Z", "carry": 5.0}
    assert _tenant(live, "vision")["budget"] == budget
    assert _tenant(live, "speech")["account"] is None
    quoted = live.client.post("/v1/quote", json=job("x", tenant="vision")).json()
    assert quoted["answer"] == "admitted"
    price = quoted["price"]
    assert quoted["points"] == {"held": 30.0, "left": pytest.approx(30 - price, abs=1e-6)}
    view = live.client.post("/v1/jobs", json=job("paid", tenant="vision")).json()
    assert view["points"]["price"] == pytest.approx(price, abs=1e-6)
    assert view["points"]["refund"] is None
    account = _tenant(live, "vision")["account"]
    assert account["held"] == pytest.approx(quoted["points"]["left"])
    assert account["reserved_points"] == view["points"]["price"]
    assert account["spent"] == 0.0
    lines = live.client.get("/v1/jobs/paid/explain").json()["lines"]
    assert any("points paid" in line and "left" in line for line in lines), lines
    cancelled = live.client.delete("/v1/jobs/paid").json()
    assert cancelled["points"]["refund"] == view["points"]["price"]
    assert _tenant(live, "vision")["account"]["held"] == 30.0
    statement = _statement(live, back=0)
    assert [entry["kind"] for entry in statement["entries"]] == ["refund", "debit", "grant"]
    assert [entry["job"] for entry in statement["entries"]] == ["paid", "paid", None]
    assert (statement["opening"], statement["closing"]) == (0.0, 30.0)
    assert statement["sums"]["debit"] == statement["sums"]["refund"] == view["points"]["price"]


def test_job_above_the_budget_is_refused_with_the_reason(live: RunningService) -> None:
    price = live.client.post("/v1/quote", json=job("y", tenant="vision")).json()["price"]
    poor = {"points": round(price / 2, 6), "period": "7d"}
    assert live.client.put("/v1/tenants/vision", json={"budget": poor}).status_code == 200
    quoted = live.client.post("/v1/quote", json=job("y", tenant="vision")).json()
    assert (quoted["answer"], quoted["admitted"]) == ("refused", False)
    assert quoted["refusal"]["code"] == "budget"
    assert quoted["points"]["left"] < 0
    view = live.client.post("/v1/jobs", json=job("y", tenant="vision")).json()
    assert view["state"] == "refused"
    assert view["reason"]["message"] == quoted["refusal"]["message"]
    assert "ask for less" in view["reason"]["message"]
    free = live.client.post("/v1/jobs", json=job("z", tenant="speech")).json()
    assert free["state"] != "refused"
    assert free["points"] is None
    many = {"jobs": [job(f"many-{index}", tenant="vision") for index in range(3)]}
    answer = live.client.post("/v1/jobs", params={"wait": 20}, json=many).json()["jobs"]
    assert {entry["reason"]["code"] for entry in answer} == {"budget"}
    held = _tenant(live, "vision")["account"]["held"]
    response = live.client.post(
        "/v1/tenants/vision/grants", json={"points": 25, "note": "deadline"}
    )
    assert response.status_code == 201
    assert response.json()["account"]["held"] == pytest.approx(held + 25)
    repeated = live.client.post("/v1/jobs", json=job("y", tenant="vision")).json()
    assert repeated["state"] != "refused"  # its name was free
    metrics = live.client.get("/metrics").text
    assert 'shadowprice_points_held{tenant="vision"}' in metrics
    assert 'shadowprice_points_spent{tenant="vision"}' in metrics


def test_a_statement_pages_and_filters(live: RunningService) -> None:
    entries = _statement(live, limit=1000)["entries"]
    assert len(entries) > 4
    pages, cursor = [], None
    while True:
        query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = _statement(live, **query)
        pages += page["entries"]
        if (cursor := page["next"]) is None:
            break
    assert pages == entries
    grants = _statement(live, kind="grant,expiry")["entries"]
    assert grants == [entry for entry in entries if entry["kind"] in {"grant", "expiry"}]
    later = _statement(live, since="2999-01-01T00:00:00Z")
    assert later["entries"] == []
    assert later["opening"] == later["closing"] == entries[0]["balance"]
    before = _statement(live, until="2000-01-01")
    assert (before["entries"], before["opening"]) == ([], 0.0)
    for back in (1, 10**6):
        assert _statement(live, back=back)["entries"] == []
    speech = _statement(live, "speech")
    assert (speech["budget"], speech["account"], speech["entries"]) == (None, None, [])


def test_omitted_fields_of_a_tenant_are_kept(live: RunningService) -> None:
    put = live.client.put
    assert put("/v1/tenants/audio", json={"share": {"gpu": 4}}).json()["share"] == {"gpu": "4"}
    budget = {"points": 1, "period": "90d", "since": "2026-11-23T00:00:00+01:00", "carry": "all"}
    body = put("/v1/tenants/audio", json={"budget": budget}).json()
    assert body["share"] == {"gpu": "4"}
    assert body["budget"] == {
        "points": 1.0, "period": "90d", "since": "2026-11-22T23:00:00Z", "carry": "all",
    }  # fmt: skip
    body = put("/v1/tenants/audio", json={"share": {}}).json()
    assert (body["share"], body["budget"]["points"]) == ({}, 1.0)
    assert put("/v1/tenants/audio", json={"budget": None}).json()["budget"] is None
    assert [entry["kind"] for entry in _statement(live, "audio")["entries"]] == ["expiry", "grant"]
    assert live.client.delete("/v1/tenants/audio").status_code == 204
    assert len(_statement(live, "audio")["entries"]) == 2  # the past stays


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"budget": {"points": -1, "period": "7d"}}, "budget.points"),
        ({"budget": {"points": 1e9, "period": "7d"}}, "exceeds the limit of 100,000,000"),
        ({"budget": {"points": 1, "period": "3 slots"}}, "budget.period"),
        ({"budget": {"points": 1, "period": "5s"}}, "60 at least"),
        ({"budget": {"points": 1, "period": "4000d"}}, "exceeds the limit"),
        ({"budget": {"points": 1, "period": "7d", "since": "monday"}}, "budget.since"),
        ({"budget": {"points": 1, "period": "7d", "since": "2026-11-23T00:00:00"}}, "time zone"),
        ({"budget": {"points": 1, "period": "7d", "carry": "some"}}, "budget.carry"),
        ({"budget": {"points": 1, "perod": "7d"}}, "did you mean 'period'?"),
        ({"budget": 5}, "budget"),
        ({"budgt": None}, "did you mean 'budget'?"),
    ],
)
def test_invalid_budget_is_refused_with_its_location(
    live: RunningService, body: Any, place: str
) -> None:
    response = live.client.put("/v1/tenants/vision", json=body)
    assert response.status_code == 422
    assert place in response.text


@pytest.mark.parametrize(
    "body", [{}, {"points": 0}, {"points": True}, {"points": "5"}, {"points": 1e9}, {"points": -1},
             {"points": 1, "note": "x" * 201}, {"points": 1, "more": 1}],
)  # fmt: skip
def test_invalid_grant_is_refused(live: RunningService, body: Any) -> None:
    held = _tenant(live, "vision")["account"]["held"]
    assert live.client.post("/v1/tenants/vision/grants", json=body).status_code == 422
    assert _tenant(live, "vision")["account"]["held"] == held


@pytest.mark.parametrize(
    "query", ["since=x", "until=2026", "back=-1", "kind=money", "back=0&since=2026-11-23", "bak=1"]
)
def test_invalid_statement_query_is_refused(live: RunningService, query: str) -> None:
    assert live.client.get(f"/v1/tenants/vision/statement?{query}").status_code == 422
    assert live.client.get("/v1/tenants/speech/statement?back=0").status_code == 409


def test_file_budgets_and_accounts_survive_a_restart(tmp_path: Path) -> None:
    cluster = {**CLUSTER, "tenants": TENANTS}
    with run_service(tmp_path, policy="oasis", cluster=cluster) as first:
        first.client.post("/v1/tenants/vision/grants", json={"points": 2})
        before = _statement(first)
    with run_service(tmp_path, policy="oasis", cluster=cluster) as again:
        assert _statement(again) == before
        assert before["account"]["held"] == 32.0
    tenants = [{"name": "vision", "budget": {"points": 10, "period": "7d"}}, TENANTS[1]]
    with run_service(tmp_path, policy="oasis", cluster={**CLUSTER, "tenants": tenants}) as edited:
        assert _tenant(edited, "vision")["account"]["held"] == 12.0
        assert _tenant(edited, "vision")["budget"]["carry"] == 0.0


@pytest.mark.parametrize("seed", [1, 2])
def test_reserved_and_spent_points_add_up_to_the_grants(tmp_path: Path, seed: int) -> None:
    """No operation of operators or owners, and no time, loses or creates points."""
    cluster = {**CLUSTER, "slot": "1s"}
    rng = np.random.default_rng(seed)
    budget = {"points": 30.0, "period": "7d"}
    tenants = [{"name": "vision", "budget": budget}, {"name": "speech"}]
    seen: set[str] = set()
    expected = {"grant", "debit", "refund", "spent", "reserved_points"}
    with run_service(tmp_path, policy="oasis", cluster={**cluster, "tenants": tenants}) as live:
        client = live.client
        for number in range(2_000):
            if number >= 120 and seen >= expected:
                break  # on a busy machine it takes more requests until a job is done
            names = [job["name"] for job in client.get("/v1/jobs?tenant=vision").json()["jobs"]]
            name = str(rng.choice(names)) if names else "none"
            match rng.integers(7):
                case 0:
                    points = float(rng.integers(0, 40))
                    body = {"budget": {**budget, "points": points}}
                    assert client.put("/v1/tenants/vision", json=body).is_success
                case 1:
                    points = float(rng.integers(1, 9_000_000)) / 1e6
                    response = client.post("/v1/tenants/vision/grants", json={"points": points})
                    assert response.is_success
                case 2:
                    client.delete(f"/v1/jobs/{name}")
                case 3:
                    changes = {"minibatches": int(rng.integers(5, 60))}
                    client.patch(f"/v1/jobs/{name}", json=changes)
                case 4:
                    filler = {**_wide(f"filler-{number}"), "minibatch_time": "0.1s"}
                    client.post("/v1/jobs", json=filler)
                case _:
                    more = {"minibatches": int(rng.integers(5, 60)), "minibatch_time": "0.1s"}
                    client.post("/v1/jobs", json=job(f"paid-{number}", tenant="vision", **more))
            account = _tenant(live, "vision")["account"]
            sums = account["sums"]
            seen |= {kind for kind, points in sums.items() if points}
            granted = sums["grant"] + sums["payment"] - sums["expiry"]
            total = account["held"] + account["reserved_points"] + account["spent"]
            assert total == pytest.approx(granted, abs=2e-6), (number, account)
            seen |= {kind for kind in ("spent", "reserved_points") if account[kind]}
        for name in names:
            client.delete(f"/v1/jobs/{name}")
        account, statement = _tenant(live, "vision")["account"], _statement(live)
        assert statement["closing"] == account["held"]
        assert statement["sums"] == account["sums"]
        assert account["reserved_points"] == 0.0
    assert seen >= expected

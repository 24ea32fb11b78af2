"""The live service over HTTP: submissions, queries, revisions, cancellations, quotes, streams."""

import gc
import http.client
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from shadowprice.core.errors import PolicyError
from shadowprice.executors.contract import Ended, Ending, ExecutorOptions
from shadowprice.executors.registry import create_executor
from shadowprice.service.standing_queries import Answer, StandingQuery
from shadowprice.service.state import store_queries
from shadowprice.service.state.durable_state import DurableState
from tests.support.services import CLUSTER, RunningService, job, run_service
from tests.support.simulated_world import ManualClock
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    with run_service(tmp_path_factory.mktemp("service"), policy="oasis") as found:
        yield found


def test_duplicate_submission_returns_the_same_job(live: RunningService) -> None:
    first = live.client.post("/v1/jobs", json=job("once"))
    repeated = live.client.post("/v1/jobs", json=job("once"))
    other = live.client.post("/v1/jobs", json=job("once", chunks=5))
    assert first.status_code == repeated.status_code == 200
    body = first.json()
    assert body["state"] == "admitted"
    assert body["promise"].endswith("Z")
    assert body["promise_slot"] == body["first_promise_slot"]
    assert repeated.json()["id"] == body["id"]
    assert other.status_code == 409
    assert other.json()["code"] == "name-conflict"


def test_batch_submission_returns_decisions_in_order(live: RunningService) -> None:
    names = [f"many-{index}" for index in range(7)]
    response = live.client.post(
        "/v1/jobs", json={"jobs": [job(name) for name in names]}, params={"wait": 20}
    )
    assert response.status_code == 202
    body = response.json()["jobs"]
    assert [entry["name"] for entry in body] == names
    assert {entry["state"] for entry in body} <= {"admitted", "refused"}


def test_batch_with_an_invalid_job_submits_none(live: RunningService) -> None:
    wrong = job("whole-2") | {"utilty": 3}
    response = live.client.post("/v1/jobs", json={"jobs": [job("whole-1"), wrong]})
    assert response.status_code == 422
    [error] = response.json()["errors"]
    assert error["location"] == "jobs[1].utilty"
    assert error["hint"] == "did you mean 'utility'?"
    assert live.client.get("/v1/jobs/whole-1").status_code == 404


def test_family_curve_of_the_service_is_kept_after_the_library_changes(tmp_path: Path) -> None:
    library = tmp_path / "families.yaml"
    library.write_text("families: {net: {throughput: {1: 0.005, 2: 0.009, 8: 0.03}, restart: 9s}}")
    single_job = job("new", family="net")
    del single_job["minibatch_time"]
    with run_service(tmp_path, policy="oasis", families=library) as live:
        assert live.client.get("/v1/service").json()["families"] == ["net"]
        quoted = live.client.post("/v1/quote", json=single_job)
        assert quoted.json()["admitted"], quoted.text
        first = live.client.post("/v1/jobs", json=single_job).json()
        assert first["state"] == "admitted"
        assert first["speed"]["source"] == "family"
        spec = live.client.get("/v1/jobs/new").json()["spec"]
        assert spec["throughput"] == {"1": 0.005, "2": 0.009}  # no more workers than chunks
        assert spec["restart"] == "9s"
        several = live.client.post(
            "/v1/jobs", json={"jobs": [single_job, single_job | {"name": "other"}]}
        )
        assert several.status_code == 202, several.text
        wrong = live.client.post("/v1/jobs", json=single_job | {"name": "wrong", "family": "nett"})
        assert wrong.status_code == 422
        [error] = wrong.json()["errors"]
        assert error == {
            "location": "job.family",
            "message": "unknown family 'nett'",
            "hint": "did you mean 'net'?",
        }
        same = live.client.patch("/v1/jobs/new", json={"utility": single_job["utility"]})
        assert same.status_code == 200, same.text
        assert (
            live.client.post("/v1/jobs", json=single_job).json()["id"] == first["id"]
        )  # as it was
    # The library may change: a job keeps the curve that it was promised with.
    library.write_text("families: {net: {throughput: {1: 50}}}")
    with run_service(tmp_path, policy="oasis", families=library) as live:
        repeated = live.client.post("/v1/jobs", json=single_job)
        assert repeated.status_code == 200, repeated.text
        assert repeated.json()["id"] == first["id"]
        assert live.client.get("/v1/jobs/new").json()["spec"] == spec
    with run_service(tmp_path, policy="oasis") as live:
        nothing = live.client.post("/v1/jobs", json=single_job | {"name": "late"})
        assert nothing.status_code == 422
        assert "--families" in nothing.text


def test_bag_of_tasks_is_refused_by_submit_quote_and_batch(live: RunningService) -> None:
    bag = {
        "name": "trials",
        "tasks": [{"count": 4, "duration": {"kind": "exponential", "mean": "5min"}}],
        "deadline": "2 slots",
        "miss_probability": 0.05,
        "worker": {"gpu": 1},
        "utility": {"kind": "constant", "value": 60},
    }
    for path, sent in (
        ("/v1/jobs", bag),
        ("/v1/quote", bag),
        ("/v1/jobs", {"jobs": [job("fine"), bag]}),
    ):
        response = live.client.post(path, json=sent)
        assert response.status_code == 422, response.text
        assert "bags of tasks are simulated only" in response.json()["detail"]
        assert "shadowprice.training.bag" in response.json()["detail"]
    assert live.client.get("/v1/jobs/trials").status_code == 404
    assert live.client.get("/v1/jobs/fine").status_code == 404  # all or nothing


def test_job_list_is_paginated(live: RunningService) -> None:
    live.client.post("/v1/jobs", json={"jobs": [job(f"page-{index}") for index in range(5)]})
    seen, cursor = [], None
    for _ in range(1000):  # a list that begins again would be read for ever
        query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = live.client.get("/v1/jobs", params=query).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert cursor is None
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen)) >= 5


def ascii_lower(text: str) -> str:
    return re.sub("[A-Z]", lambda letter: letter[0].lower(), text)


@pytest.mark.parametrize("window", [3, 20_000])
@pytest.mark.parametrize(
    "search", ["lr", "LR", "%", "_", "/", "lr_0", "\\", "nothing-like-it", "Ä", "ä", "ÄRG", "'"]
)
def test_search_matches_part_of_the_job_name(
    live: RunningService, monkeypatch: pytest.MonkeyPatch, search: str, window: int
) -> None:
    monkeypatch.setattr(store_queries, "MAX_SEARCHED_JOBS", window)
    names = ["lr_01", "LR-02", "x%y", "under_score", "lrx0", "a\\b", "Ärger", "o'clock", "plain"]
    live.client.post(
        "/v1/jobs", json={"jobs": [job(name, chunks=1, minibatches=1) for name in names]}
    )
    everything = live.client.get("/v1/jobs", params={"limit": 1_000}).json()["jobs"]
    for states in ("", "pending,admitted,refused"):
        expected = [
            entry["name"]
            for entry in everything
            if ascii_lower(search) in ascii_lower(entry["name"])
            and (not states or entry["state"] in states.split(","))
        ]
        found: list[str] = []
        cursor = None
        for _ in range(1000):
            query = {"limit": 2, "search": search, "state": states}
            query |= {} if cursor is None else {"cursor": cursor}
            page = live.client.get("/v1/jobs", params=query).json()
            assert len(page["jobs"]) <= 2
            found += [job["name"] for job in page["jobs"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert cursor is None
        assert found == expected


def test_search_pages_reveal_no_jobs_of_other_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_queries, "MAX_SEARCHED_JOBS", 3)
    tenants = {"tenants": [{"name": "red"}, {"name": "blue"}]}
    with run_service(tmp_path, cluster={**CLUSTER, **tenants}) as live:
        with live.as_(live.token("red")) as red:

            def pages() -> list[tuple[list[str], bool]]:
                pages_read, cursor = [], None
                while True:
                    query = {"search": "red"} | ({} if cursor is None else {"cursor": cursor})
                    page = red.get("/v1/jobs", params=query).json()
                    cursor = page["next"]
                    pages_read.append(([job["name"] for job in page["jobs"]], cursor is not None))
                    if cursor is None:
                        return pages_read

            assert pages() == [([], False)]
            for number in range(3):
                live.client.post("/v1/jobs", json=job(f"red-{number}", tenant="red"))
                live.client.post("/v1/jobs", json=job(f"red-b{number}", tenant="blue"))
                live.client.post("/v1/jobs", json=job(f"b{number}", tenant="blue"))
            assert pages() == [(["red-2", "red-1", "red-0"], False)]
            # A cursor beyond the newest job doesn't lengthen the window either.
            newest = red.get("/v1/jobs", params={"search": "red", "cursor": 10**9}).json()
            assert newest["next"] is None
            live.client.post("/v1/jobs", json=job("other", tenant="red"))
            assert pages() == [(["red-2", "red-1"], True), (["red-0"], False)]
        far = live.client.get("/v1/jobs", params={"search": "zz", "cursor": 10**9}).json()
        assert far["next"] is not None
        repeated = live.client.get(
            "/v1/jobs", params={"search": "zz", "cursor": far["next"]}
        ).json()
        assert repeated["next"] == far["next"] - 3


def test_job_is_revised_and_cancelled(live: RunningService) -> None:
    live.client.post("/v1/jobs", json=job("changing"))
    revised = live.client.patch("/v1/jobs/changing", json={"minibatches": 20})
    assert revised.status_code == 200
    assert revised.json()["required"] == 80.0
    refused = live.client.patch("/v1/jobs/changing", json={"worker": {"gpu": 2}})
    assert refused.status_code == 422
    assert live.client.delete("/v1/jobs/changing").json()["state"] == "cancelled"
    assert live.client.delete("/v1/jobs/changing").status_code == 200
    assert live.client.patch("/v1/jobs/changing", json={"minibatches": 2}).status_code == 409
    history = live.client.get("/v1/jobs/changing/explain").json()
    kinds = [entry["kind"] for entry in history["events"]]
    assert kinds[:2] == ["submitted", "admitted"]
    assert "revised" in kinds
    assert "cancelled" in kinds
    assert len(history["lines"]) == len(kinds)


def test_quote_matches_the_decision_and_reserves_nothing(live: RunningService) -> None:
    before = live.client.get("/v1/service").json()["sequence"]
    request = job("quoted")
    quote = live.client.post("/v1/quote", json=request).json()
    assert live.client.get("/v1/service").json()["sequence"] == before
    body = live.client.post("/v1/jobs", json=request).json()
    assert quote["admitted"] == (body["state"] == "admitted")
    assert quote["completion"] == body["promise_slot"]
    assert quote["price"] == pytest.approx(body["cost"])


def test_prices_are_listed_by_server_class_and_slot(live: RunningService) -> None:
    body = live.client.get("/v1/prices", params={"slots": 3}).json()
    assert body["priced"]
    assert body["kinds"][0]["name"] == "g"
    slots = [row["slot"] for row in body["slots"]]
    assert slots == list(range(slots[0], slots[0] + 3))
    assert "price" in body["slots"][0]["kinds"]["g"]["gpu"]


def test_concurrent_price_requests_share_one_computation(
    live: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, computed = StandingQuery.compute, []

    def slowly(query: StandingQuery[Any], state: DurableState) -> Answer[Any]:
        computed.append(query)
        time.sleep(0.1)
        return compute(query, state)

    def slots(count: int) -> Any:
        return live.client.get("/v1/prices", params={"slots": count}).json()["slots"]

    monkeypatch.setattr(StandingQuery, "compute", slowly)
    live.client.post("/v1/jobs", json=job("prices moved")).raise_for_status()
    with ThreadPoolExecutor(8) as clients:
        first, *others = clients.map(slots, [9] + [5] * 7)
    # After the submission, after its start, and for 5 and for 9 slots, not once a client.
    assert 1 <= len(computed) <= 4
    assert all(other == first[:5] for other in others)


def test_servers_are_added_drained_resized_and_removed(live: RunningService) -> None:
    added = live.client.post(
        "/v1/servers", json={"name": "h", "count": 2, "capacity": {"gpu": 4, "cpu": 8}}
    )
    assert [server["name"] for server in added.json()["servers"]] == ["h-0", "h-1"]
    assert (
        live.client.post("/v1/servers", json={"name": "h-0", "capacity": {"gpu": 1}}).status_code
        == 409
    )
    wrong = live.client.post("/v1/servers", json={"name": "i", "capacity": {"gpus": 1}})
    assert "did you mean 'gpu'?" in wrong.text
    drained = live.client.patch("/v1/servers/h-0", json={"drain": True}).json()
    assert drained["state"] == "drained"
    cordoned = live.client.patch("/v1/servers/h-0", json={"cordon": True}).json()
    assert cordoned["state"] == "cordoned"
    both = live.client.patch("/v1/servers/h-0", json={"cordon": True, "drain": True})
    assert both.status_code == 422
    assert live.client.patch("/v1/servers/h-0", json={"drain": False}).json()["state"] == "up"
    smaller = live.client.patch("/v1/servers/h-1", json={"capacity": {"gpu": 2, "cpu": 8}}).json()
    assert smaller["capacity"]["gpu"] == "2"
    for name in ("h-0", "h-1"):
        assert live.client.delete(f"/v1/servers/{name}").status_code == 204
    assert live.client.delete("/v1/servers/h-1").status_code == 404


@contextmanager
def held_writer(live: RunningService, monkeypatch: pytest.MonkeyPatch):
    """Hold the writer's thread; yield a function that waits for a number of operations."""
    writer, released, operations = live.service.require_writer(), threading.Event(), []
    perform = writer.do

    async def do(operation: Any) -> Any:
        operations.append(operation)
        return await perform(operation)

    def wait_for(count: int) -> None:
        wait_until(lambda: len(operations) >= count)

    monkeypatch.setattr(writer, "do", do)
    writer._thread.submit(released.wait, WAIT_LIMIT_SECONDS)
    try:
        yield wait_for
    finally:
        released.set()


@pytest.mark.parametrize(
    ("requests", "statuses", "expected"),
    [
        (
            [
                ("PATCH", "/v1/servers/r", {"cordon": True}),
                ("PATCH", "/v1/servers/r", {"capacity": {"gpu": 2}}),
            ],
            [200, 200],
            [("r", "cordoned", {"gpu": "2"})],
        ),
        (
            [
                ("POST", "/v1/servers", {"name": "s", "capacity": {"gpu": 1}}),
                ("POST", "/v1/servers", {"name": "s", "capacity": {"gpu": 3}}),
            ],
            [201, 409],
            [("r", "up", {"gpu": "4"}), ("s", "up", {"gpu": "1"})],
        ),
        (
            [("DELETE", "/v1/servers/r", None), ("PATCH", "/v1/servers/r", {"cordon": True})],
            [204, 404],
            [],
        ),
        (
            [("PATCH", "/v1/servers/r", {"cordon": True}), ("DELETE", "/v1/servers/r", None)],
            [404, 204],  # both are done before the first response is built
            [],
        ),
        (
            [("PUT", "/v1/tenants/t", {"share": {"gpu": 1}}), ("DELETE", "/v1/tenants/t", None)],
            [404, 204],
            [("r", "up", {"gpu": "4"})],
        ),
    ],
    ids=["both changes", "same name", "removed first", "removed last", "tenant removed last"],
)
def test_concurrent_changes_of_a_server_are_all_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    requests: list[tuple[str, str, Any]],
    statuses: list[int],
    expected: list[tuple[str, str, Any]],
) -> None:
    with run_service(tmp_path) as live, ThreadPoolExecutor(3) as pool:
        added = live.client.post("/v1/servers", json={"name": "r", "capacity": {"gpu": 4}})
        assert added.status_code == 201
        live.client.put("/v1/tenants/t", json={}).raise_for_status()
        answers = []
        with held_writer(live, monkeypatch) as wait_for:
            # The first operation waits for the thread in a batch of its own.
            pool.submit(live.client.post, "/v1/servers", json={"name": "q", "capacity": {"gpu": 1}})
            wait_for(1)
            for count, (method, path, body) in enumerate(requests, 2):
                answers.append(pool.submit(live.client.request, method, path, json=body))
                wait_for(count)
        assert [answer.result(60).status_code for answer in answers] == statuses
        servers = live.client.get("/v1/servers").json()["servers"]
        assert [
            (server["name"], server["state"], server["capacity"])
            for server in servers
            if server["name"] in {"r", "s"}
        ] == expected


@pytest.mark.parametrize("policy", ["oasis", "pdors"])
def test_learnt_prices_follow_servers_of_other_sizes(tmp_path: Path, policy: str) -> None:
    with run_service(tmp_path, policy=policy) as live:
        assert live.client.post("/v1/jobs", json=job("before")).json()["state"] == "admitted"
        larger = {"name": "h", "capacity": {"gpu": 16, "cpu": 64}}
        assert live.client.post("/v1/servers", json=larger).status_code == 201
        for name in ("h", *(f"g-{index}" for index in range(3))):
            smaller = {"capacity": {"gpu": 3, "cpu": 16}}
            assert live.client.patch(f"/v1/servers/{name}", json=smaller).status_code == 200
        assert live.client.delete("/v1/servers/g-3").status_code == 204
        assert live.client.post("/v1/jobs", json=job("after")).json()["state"] == "admitted"
        assert live.client.get("/v1/jobs/before").json()["state"] == "admitted"


def test_tenants_access_only_their_own_jobs(live: RunningService) -> None:
    vision, speech = live.as_(live.token("vision")), live.as_(live.token("speech"))
    with vision, speech:
        assert vision.post("/v1/jobs", json=job("v-1")).json()["tenant"] == "vision"
        forbidden = vision.post("/v1/jobs", json=job("v-2", tenant="speech"))
        assert forbidden.status_code == 403
        assert speech.get("/v1/jobs/v-1").status_code == 404
        assert speech.delete("/v1/jobs/v-1").status_code == 404
        assert speech.get("/v1/jobs").json()["jobs"] == []
        assert [job["name"] for job in vision.get("/v1/jobs").json()["jobs"]] == ["v-1"]
        assert speech.post("/v1/jobs", json=job("v-1")).json()["tenant"] == "speech"
        assert vision.post("/v1/servers", json={}).status_code == 403
        assert vision.get("/metrics").status_code == 403


def test_expired_and_revoked_tokens_are_rejected(live: RunningService) -> None:
    body = live.client.post("/v1/tokens", json={"tenant": "brief"}).json()
    with live.as_(body["token"]) as client:
        assert client.get("/v1/jobs").status_code == 200
        assert live.client.delete(f"/v1/tokens/{body['id']}").status_code == 204
        assert client.get("/v1/jobs").status_code == 401
    listed = live.client.get("/v1/tokens").text
    assert body["token"] not in listed
    with live.as_(live.token("brief", expires="1ms")) as client:
        assert client.get("/v1/jobs").json()["detail"].startswith("the token has expired")
    with live.as_(None) as client:
        assert client.get("/v1/jobs").status_code == 401
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").json() == {"status": "ready"}


def test_event_stream_resumes_after_the_last_event_id(live: RunningService) -> None:
    last = live.client.get("/v1/service").json()["last_event"]
    live.client.post("/v1/jobs", json=job("streamed-1"))

    def read(after: int, wanted: int) -> list[dict]:
        results = []
        with live.client.stream("GET", "/v1/events", headers={"Last-Event-ID": str(after)}) as s:
            for line in s.iter_lines():
                if line.startswith("data: "):
                    entry = json.loads(line.removeprefix("data: "))
                    if "id" in entry:
                        results.append(entry)
                        if len(results) == 1:
                            live.client.post("/v1/jobs", json=job("streamed-2"))
                    if len(results) >= wanted:
                        return results
        return results

    entries = read(last, 4)
    assert [entry["kind"] for entry in entries][:2] == ["submitted", "admitted"]
    assert [entry["job"] for entry in entries] == ["streamed-1"] * 2 + ["streamed-2"] * 2
    assert [entry["id"] for entry in entries] == sorted({entry["id"] for entry in entries})
    repeated = read(entries[1]["id"], 2)
    assert [entry["id"] for entry in repeated] == [entry["id"] for entry in entries[2:]]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/jobs", b"{", 400, "malformed"),
        ("POST", "/v1/jobs", b'{"a":1,"a":2}', 400, "malformed"),
        ("POST", "/v1/jobs", b'{"a":NaN}', 400, "malformed"),
        ("POST", "/v1/jobs", b'{"a":1e999}', 400, "malformed"),
        ("POST", "/v1/jobs", b'{"name":"\\ud800"}', 400, "malformed"),
        ("POST", "/v1/jobs", b"[" * 100_000, 400, "malformed"),
        ("POST", "/v1/jobs", b"[]", 422, "input"),
        ("POST", "/v1/jobs", b'{"jobs":[]}', 422, "input"),
        ("POST", "/v1/jobs", b" " * (9 << 20), 413, "too-large"),
        ("PATCH", "/v1/jobs/nothing", b'{"deadline":"1h"}', 404, "not-found"),
        ("PUT", "/v1/jobs", b"{}", 405, "method-not-allowed"),
        ("GET", "/v1/jobs?stat=running", None, 422, "input"),
        ("GET", "/v1/jobs?state=asleep", None, 422, "input"),
        ("GET", "/v1/jobs?limit=0", None, 422, "input"),
        ("GET", "/v1/jobs/..%2f..%2fetc", None, 404, "not-found"),
        ("GET", "/v1/nothing", None, 404, "not-found"),
        ("POST", "/v1/jobs/x/progress", b"{}", 401, "unauthenticated"),
    ],
)
def test_invalid_requests_return_problem_details(
    live: RunningService, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    response = live.client.request(method, path, content=body)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    response_body = response.json()
    assert response_body["code"] == code
    assert response_body["status"] == status
    assert response_body["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "location", "message", "hint"),
    [
        (
            "POST",
            "/v1/jobs",
            b'{"name":"a\\u0000b"}',
            400,
            "body.name",
            "contains a null character",
            "leave it out",
        ),
        (
            "POST",
            "/v1/jobs",
            b'{"jobs":[{"name":"a"},{"run":{"env":{"A":"\\u0000"}}}]}',
            400,
            "body.jobs[1].run.env.A",
            "contains a null character",
            "leave it out",
        ),
        (
            "POST",
            "/v1/jobs",
            b'{"run":{"command":["a","b\\u0000"]}}',
            400,
            "body.run.command[1]",
            "contains a null character",
            "leave it out",
        ),
        (
            "POST",
            "/v1/jobs",
            b'{"labels":{"\\u0000k":1}}',
            400,
            "body.labels",
            r"the key '\x00k' contains a null character",
            "leave it out",
        ),
        (
            "POST",
            "/v1/quote",
            b'{"labels":{"a b":"\\udc00"}}',
            400,
            "body.labels.'a b'",
            "contains an unpaired surrogate",
            "use valid Unicode text",
        ),
        (
            "PUT",
            "/v1/tenants/a",
            b'{"share":NaN}',
            400,
            "body.share",
            "NaN is not valid JSON",
            "write a number",
        ),
        (
            "PATCH",
            "/v1/jobs/a",
            b'{"chunks":-1e999}',
            400,
            "body.chunks",
            "the number is too large",
            "write a finite number",
        ),
        (
            "GET",
            "/v1/jobs?tenant=a%00",
            None,
            422,
            "?tenant",
            "contains a null character",
            "leave it out",
        ),
        (
            "GET",
            "/v1/jobs/a%00/explain",
            None,
            422,
            "path",
            r"the name 'a\x00' contains a null character",
            "remove it",
        ),
        (
            "GET",
            f"/v1/jobs?search={201 * 'x'}",
            None,
            422,
            "?search",
            "has 201 characters",
            "use at most 200",
        ),
        (
            "GET",
            "/v1/uploads/abc",
            None,
            422,
            "path.digest",
            "expected text that matches ^[0-9a-f]{64}$, got 'abc'",
            "",
        ),
    ],
)
def test_invalid_values_are_reported_with_their_location(
    live: RunningService,
    method: str,
    path: str,
    body: bytes | None,
    status: int,
    location: str,
    message: str,
    hint: str,
) -> None:
    response = live.client.request(method, path, content=body)
    assert response.status_code == status, response.text
    assert response.json()["errors"] == [{"location": location, "message": message, "hint": hint}]
    assert response.json()["detail"] == f"{location}: {message}; {hint}".removesuffix("; ")


def test_a_key_that_is_given_twice_is_named(live: RunningService) -> None:
    answer = live.client.post("/v1/jobs", content=b'{"a":1,"b":{"c":1,"d":2,"c":3}}')
    assert answer.status_code == 400
    assert answer.json()["detail"] == "body: the key 'c' is repeated; give it once"


def test_deeply_nested_body_is_refused_with_its_location(live: RunningService) -> None:
    content = b'{"jobs":' + b"[" * 60 + b"]" * 60 + b"}"
    [error] = live.client.post("/v1/jobs", content=content).json()["errors"]
    assert error["location"].startswith("body.jobs[0][0]")
    assert error["message"] == "nested too deeply"
    assert error["hint"] == "nest at most 50 levels"


def test_unsupported_media_type_is_refused(live: RunningService) -> None:
    response = live.client.post("/v1/jobs", data={"a": "b"})
    assert response.json()["code"] == "unsupported-media-type"


def test_openapi_document_summarizes_every_route(live: RunningService) -> None:
    document = live.client.get("/v1/openapi.json").json()
    assert {"/v1/jobs", "/v1/quote", "/v1/events", "/metrics"} <= document["paths"].keys()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)


def test_metrics_are_exported(live: RunningService) -> None:
    text = live.client.get("/metrics").text
    for name in (
        "jobs",
        "admission_wait_seconds",
        "policy_decision_seconds",
        "journal_lag_seconds",
    ):
        assert f"shadowprice_{name}" in text


@pytest.mark.parametrize("policy", ["fifo", "rolling"])
def test_admission_wait_counts_each_job_once(tmp_path: Path, policy: str) -> None:
    """Also those of a batch, which are decided after the commit of their submission."""

    def waits() -> tuple[float, float]:
        text = live.client.get("/metrics").text
        count, total = (
            re.search(rf"^shadowprice_admission_wait_seconds_{part} (\S+)", text, re.MULTILINE)
            for part in ("count", "sum")
        )
        assert count
        assert total
        return float(count[1]), float(total[1])

    with run_service(tmp_path, policy=policy) as live:
        assert live.client.post("/v1/jobs", json=job("a")).status_code == 200
        assert waits()[0] == 1
        large = job("c", worker={"gpu": 1_000})
        batch = {"jobs": [job("b"), large, *(job(f"d{index}") for index in range(20))]}
        answer = live.client.post("/v1/jobs?wait=60", json=batch)
        assert {item["state"] for item in answer.json()["jobs"]} >= {"refused"}
        wait_until(lambda: waits()[0] == 23)
        assert waits()[1] > 0
        live.client.delete("/v1/jobs/b").raise_for_status()
        assert waits()[0] == 23


def test_metrics_count_open_jobs_by_state_and_tenant(tmp_path: Path) -> None:
    def counted() -> list[str]:
        lines = live.client.get("/metrics").text.splitlines()
        return [
            line for line in lines if line.startswith(("shadowprice_jobs{", "shadowprice_pend"))
        ]

    with run_service(tmp_path, policy="rolling") as live:
        for name, tenant in (("a", "red"), ("b", "red"), ("c", "blue")):
            response = live.client.post("/v1/jobs", json=job(name, tenant=tenant))
            assert response.status_code == 200, response.text
        assert live.client.delete("/v1/jobs/c").status_code == 200
        before = counted()
    assert len(before) == 2
    assert all('tenant="red"' in line and line.endswith(" 2.0") for line in before)
    with run_service(tmp_path, policy="rolling") as live:
        assert counted() == before


def test_price_metrics_of_removed_servers_disappear(live: RunningService) -> None:
    def priced() -> bool:
        return 'server_class="other' in live.client.get("/metrics").text

    server = {"name": "other", "capacity": {"gpu": 3, "cpu": 5}}
    assert live.client.post("/v1/servers", json=server).status_code == 201
    assert priced()
    assert live.client.delete("/v1/servers/other").status_code == 204
    assert not priced()


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/v1/jobs", "/assets/app.mjs"])
def test_head_returns_the_headers_of_get(live: RunningService, path: str) -> None:
    full, head = live.client.get(path), live.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == full.headers[name]


def test_method_not_allowed_lists_allowed_methods(live: RunningService) -> None:
    for method, path, allowed in (
        ("POST", "/", "GET"),
        ("DELETE", "/assets/app.mjs", "GET"),
        ("HEAD", "/v1/events", "GET"),
        ("PUT", "/v1/jobs/any", "DELETE, GET, PATCH"),
    ):
        response = live.client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)


def test_second_server_is_drained_after_a_restart(tmp_path: Path) -> None:
    servers = [{"name": "g", "count": 2, "capacity": {"gpu": 4, "cpu": 16}}]
    cluster = {"slot": "1h", "horizon": 30, "servers": servers}
    utility = {"kind": "deadline", "value": 50, "by": "9 slots"}
    clock = ManualClock()

    def drain(live: RunningService, server: str) -> None:
        response = live.client.patch(f"/v1/servers/{server}", json={"drain": True})
        assert response.status_code == 200, response.text

    with run_service(tmp_path, cluster=cluster, policy="oasis", clock=clock) as live:
        for name, work in (("a", 20), ("b", 400), ("c", 6)):
            worker = {"gpu": 2, "cpu": 1}
            request = job(name, minibatches=work, worker=worker, utility=utility)
            assert live.client.post("/v1/jobs", json=request).status_code == 200
        drain(live, "g-0")
    with run_service(tmp_path, cluster=cluster, policy="oasis", clock=clock) as live:
        drain(live, "g-1")  # the policy's knowledge of it belongs to the earlier state


def test_jobs_without_gpu_type_are_admitted_beside_typed_jobs(tmp_path: Path) -> None:
    kinds = {"a": "gpu/a100", "v": "gpu/v100"}
    servers = [{"name": name, "capacity": {kind: 4, "cpu": 64}} for name, kind in kinds.items()]
    cluster = CLUSTER | {"servers": servers}
    with run_service(tmp_path, cluster=cluster, policy="rolling") as live:
        for name, gpus in (("a100", {"gpu/a100": 3}), ("any", {"gpu": 4})):
            submitted = job(name, worker=gpus, workers={"max": 1})
            response = live.client.post("/v1/jobs", json=submitted)
            assert response.json()["state"] == "admitted", response.text
        wrong = live.client.patch("/v1/servers/a", json={"capacity": {"gpu": 8, "gpu/a100": 4}})
        assert wrong.status_code == 422
        assert "body.capacity.gpu: 8 isn't the total of the kinds, 4" in wrong.json()["detail"]
        changed = live.client.patch("/v1/servers/v", json={"capacity": {"gpu/v100": 6}}).json()
        assert changed["capacity"] == {"gpu/v100": "6", "gpu": "6"}


def test_restart_restores_jobs_and_servers(tmp_path: Path) -> None:
    with run_service(tmp_path, policy="oasis") as live:
        body = [
            live.client.post("/v1/jobs", json=job(f"kept-{index}")).json() for index in range(5)
        ]
        live.client.delete("/v1/jobs/kept-0")
        live.client.post("/v1/servers", json={"name": "new", "capacity": {"gpu": 1}})
    with run_service(tmp_path, policy="oasis") as live:
        for before in body[1:]:
            after = live.client.get(f"/v1/jobs/{before['name']}").json()
            del after["spec"]
            assert after.pop("broken_promise") is after.pop("obstacle") is None
            assert after == before
        assert live.client.get("/v1/jobs/kept-0").json()["state"] == "cancelled"
        names = [server["name"] for server in live.client.get("/v1/servers").json()["servers"]]
        assert names == ["g-0", "g-1", "g-2", "g-3", "new"]
        assert live.client.post("/v1/jobs", json=job("kept-1")).json()["id"] == body[1]["id"]


def test_restart_applies_the_edited_cluster_file(tmp_path: Path) -> None:
    with run_service(tmp_path) as live:
        live.client.post("/v1/servers", json={"name": "mine", "capacity": {"gpu": 1}})
    servers = [
        {"name": "g", "count": 3, "capacity": {"gpu": 8, "cpu": 64}},
        {"name": "late", "capacity": {"gpu": 2, "cpu": 2}},
    ]
    with run_service(tmp_path, cluster=CLUSTER | {"servers": servers}) as live:
        names = {server["name"] for server in live.client.get("/v1/servers").json()["servers"]}
        assert names == {"g-0", "g-1", "g-2", "mine", "late"}


def test_edited_restart_time_applies_to_new_jobs_only(tmp_path: Path) -> None:
    """A first start costs a restart unless the file denies it; open jobs keep their time."""

    def seen(live: RunningService) -> tuple[float, bool, dict[str, float]]:
        engine = live.service.require_writer()._durable.state.engine
        jobs = {name: float(job.job.restart) for name, job in engine.open_jobs.items()}
        return float(engine.cluster.restart_seconds), engine.cluster.restart_first, jobs

    for index, (said, expected) in enumerate(
        [
            ({}, (0.0, True)),
            ({"restart": "6min"}, (360.0, True)),
            ({"restart": "6min", "restart_first": False}, (360.0, False)),
            ({"restart": "18min"}, (1080.0, True)),
        ]
    ):
        with run_service(tmp_path, cluster=CLUSTER | said) as live:
            assert seen(live)[:2] == expected
            assert live.client.post("/v1/jobs", json=job(f"job-{index}")).status_code == 200
            jobs = seen(live)[2]
    assert jobs == {"job-0": 0.0, "job-1": 0.1, "job-2": 0.1, "job-3": 0.3}


def test_restart_with_another_policy_keeps_open_jobs(tmp_path: Path) -> None:
    with run_service(tmp_path, policy="fifo") as live:
        live.client.post("/v1/jobs", json=job("taken-over"))
    with run_service(tmp_path, policy="rolling") as live:
        assert live.client.get("/v1/jobs/taken-over").json()["state"] in {"standby", "admitted"}
        assert live.client.get("/v1/service").json()["policy"] == "rolling"


@pytest.mark.parametrize(
    "name", ["a/b", "a%2Fb", "%", "explain", "a/explain", "?x=1#y", "ü/\u00e9"]
)
def test_reserved_characters_in_job_names_are_addressable(live: RunningService, name: str) -> None:
    at = f"/v1/jobs/{quote(name, safe='')}"
    assert live.client.post("/v1/jobs", json=job(name)).json()["name"] == name
    assert live.client.get(at).json()["name"] == name
    assert live.client.get(f"{at}/explain").json()["job"]["name"] == name
    assert live.client.delete(at).status_code in {200, 409}  # 409: it was refused at once


@pytest.mark.parametrize("name", [".", "..", "a\nb"])
def test_names_that_are_no_url_path_segment_are_refused(live: RunningService, name: str) -> None:
    reason = "segment of a URL path" if name in {".", ".."} else "contains control characters"
    server = {"name": name, "capacity": {"gpu": 1}}
    requests: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/jobs", job(name), "job.name"),
        ("/v1/jobs", job("in-no-address", tenant=name), "job.tenant"),
        ("/v1/servers", server, "body.name"),
        ("/v1/tokens", {"tenant": name}, "body.tenant"),
    ]
    for path, body, place in requests:
        response = live.client.post(path, json=body)
        assert response.status_code == 422, path
        [error] = response.json()["errors"]
        assert error["location"] == place
        assert reason in error["message"]
    # As no client requests it, which resolves the steps.
    connection = http.client.HTTPConnection(live.address.removeprefix("http://"))
    body = json.dumps({"share": {"gpu": 1}})
    headers = {"Content-Type": "application/json", **dict(live.client.headers)}
    connection.request("PUT", f"/v1/tenants/{quote(name, safe='')}", body, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.status == 422
    assert reason in text


def test_tenants_with_shares_are_changed_and_removed_under_rolling(tmp_path: Path) -> None:
    with run_service(tmp_path, policy="rolling") as live:
        for name, share in (("red", {"gpu": 4}), ("blue", {"gpu": 8}), ("red", {"gpu": 2})):
            response = live.client.put(f"/v1/tenants/{name}", json={"share": share})
            assert response.status_code == 200, response.text
        assert live.client.post("/v1/jobs", json=job("mine", tenant="blue")).status_code == 200
        assert live.client.delete("/v1/tenants/red").status_code == 204
        assert live.client.get("/v1/jobs/mine").json()["tenant"] == "blue"


def test_frozen_objects_stay_frozen_after_a_service(tmp_path: Path) -> None:
    gc.freeze()
    with run_service(tmp_path) as live:
        assert live.client.get("/v1/jobs").status_code == 200
    assert gc.get_freeze_count() > 100_000  # everything that was imported


def test_metrics_respond_while_the_policy_decides(tmp_path: Path) -> None:
    with run_service(tmp_path, policy="rolling") as live:
        writer, decided = live.service.require_writer(), threading.Event()
        deciding = writer._thread.submit(decided.wait, WAIT_LIMIT_SECONDS)
        try:
            response = live.client.get("/metrics")
            assert live.client.get("/healthz").status_code == 200
            assert not deciding.done()
        finally:
            decided.set()
    assert 'shadowprice_shadow_price{resource="gpu",server_class="g"}' in response.text


def test_job_view_shows_why_its_generation_cannot_end(tmp_path: Path) -> None:
    options = ExecutorOptions(str(tmp_path / "data" / "executor"), settings={"cgroup": "off"})
    with run_service(tmp_path, executor=create_executor("local", options)) as live:
        own = live.client.post("/v1/jobs", json=job("own", run={"command": ["true"]})).json()
        assert live.client.get("/v1/jobs/own").json()["obstacle"] is None
        execution = live.service.execution
        assert execution is not None
        report = Ended(0, "own", 3, 1.0, Ending.DONE, 0, "")
        execution.pending.keep(report)
        [entry] = execution.pending.unrecorded.values()
        execution.pending.retry_later(entry, PolicyError("of secret"))
        entry.due = float("inf")
        text = live.client.get("/v1/jobs/own").json()["obstacle"]
        assert text.startswith(
            "generation 3 of 'own' can't be started or ended: the report of its end"
        )
        [warning] = live.client.get("/v1/service").json()["warnings"]
        assert (warning["job_id"], warning["message"]) == (own["id"], text)
        assert live.client.get("/readyz").status_code == 503

"""Names of jobs belong to tenants: no response to a tenant depends on the names of the others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from shadowprice.cli.main import main
from shadowprice.service.auth import progress_token
from shadowprice.service.store import retention
from tests.support.services import RunningService, job, run_service
from tests.support.simulated_world import ManualClock

CLUSTER: Mapping[str, Any] = {
    "slot": "1h",
    "horizon": 50,
    "tenants": [{"name": "red"}, {"name": "blue"}],
    "servers": [{"name": "g", "count": 4, "capacity": {"gpu": 8, "cpu": 64}}],
}

SHARED, ENDED, THEIRS = "train", "ended", "secret"
"""Names of an open job of both tenants, of a closed one of both, and of an open one of blue alone.
"""

QUERIES = (
    "/v1/jobs",
    "/v1/jobs?state=cancelled",
    f"/v1/jobs?search={THEIRS[1:4]}",
    f"/v1/jobs?search={SHARED}",
    "/v1/prices",
    "/v1/prices/history",
    "/v1/timeline",
    f"/v1/timeline?job={SHARED}",
    f"/v1/timeline?job={THEIRS}",
    "/v1/comparison",
    "/v1/comparison/jobs",
    "/v1/decisions",
    f"/v1/decisions?job={SHARED}",
    f"/v1/decisions?job={THEIRS}",
    "/v1/decisions?job=id:1",
    "/v1/servers",
    "/v1/tenants",
    "/v1/tenants/red/statement",
    "/v1/timespan",
    "/v1/service",
)
ROUTES_OF_JOBS = (
    ("GET", "", None),
    ("GET", "/explain", None),
    ("GET", "/events", None),
    ("GET", "/generations", None),
    ("GET", "/progress", None),
    ("GET", "/logs", None),
    ("POST", "/progress", {"minibatches": 1}),
    ("PATCH", "?dry_run=true", {"minibatches": 20}),
    ("PATCH", "", {"minibatches": 30}),
    ("POST", "/resubmit", {"name": f"{THEIRS}-2"}),
    ("DELETE", "", None),
)
SENTINEL = "sentinel"
"""Name of red's last job."""


def _fill(blue: httpx.Client, names: tuple[str, str, str]) -> None:
    """Submit blue's jobs, of which the second one is cancelled."""
    for name in names:
        assert blue.post("/v1/jobs", json=job(name)).status_code == 200
    assert blue.delete(f"/v1/jobs/{names[1]}").status_code == 200


def _answers(red: httpx.Client) -> dict[str, Any]:
    """Return the response to each of red's requests: its status, headers and body."""
    found: dict[str, Any] = {}

    def ask(method: str, path: str, body: Any = None) -> httpx.Response:
        response = red.request(method, path, json=body)
        headers = {key: text for key, text in response.headers.items() if key != "date"}
        key = f"{len(found)} {method} {path} {json.dumps(body)}"
        found[key] = (response.status_code, headers, response.text)
        return response

    for name in (SHARED, ENDED):
        assert ask("POST", "/v1/jobs", job(name)).status_code == 200
    ask("DELETE", f"/v1/jobs/{ENDED}")
    for body in (job(SHARED), job(SHARED, chunks=3), job(ENDED), job(ENDED, chunks=3)):
        ask("POST", "/v1/jobs", body)
    ask("POST", "/v1/jobs?wait=20", {"jobs": [job(SHARED, chunks=2), job("own")]})
    for name in (SHARED, THEIRS, "nobody"):
        ask("POST", "/v1/quote", job(name))
    for path in QUERIES:
        ask("GET", path)
    for reference in (SHARED, ENDED, THEIRS, "nobody", "red%2Ftrain", "blue%2Ftrain"):
        for method, path, body in ROUTES_OF_JOBS:
            ask(method, f"/v1/jobs/{reference}{path}", body)
    for reference in ("id:1", "id:3", "1"):
        for method, path, body in ROUTES_OF_JOBS:
            ask(method, f"/v1/jobs/{reference}{path}", body)
    for body in (job(THEIRS), job(f"{THEIRS}-2", chunks=2), job(SENTINEL)):
        ask("POST", "/v1/jobs", body)
    for path in ("/v1/jobs", "/v1/decisions", "/v1/servers", "/v1/service"):  # not cached
        ask("GET", path)
    with red.stream("GET", "/v1/events?after=0") as stream:
        lines = []
        for line in stream.iter_lines():
            lines.append(line)
            if line.startswith("data:") and json.loads(line[5:])["job"] == SENTINEL:
                break
    found["events"] = lines
    return found


@pytest.fixture(
    scope="module", params=["rolling", pytest.param("oasis", marks=pytest.mark.extended)]
)
def worlds(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, dict[str, Any]]:
    """Return red's responses if blue has jobs of the same names, of other names, or none."""
    worlds: dict[str, dict[str, Any]] = {}
    for world, names in (
        ("same", (SHARED, ENDED, THEIRS)),
        ("different", ("aaaaa", "bbbbb", "cccccc")),
        ("alone", None),
    ):
        folder = tmp_path_factory.mktemp(world)
        with run_service(
            folder, cluster=CLUSTER, policy=request.param, clock=ManualClock()
        ) as live:
            if names is not None:
                with live.as_(live.token("blue")) as blue:
                    _fill(blue, names)
            with live.as_(live.token("red")) as red:
                worlds[world] = _answers(red)
    return worlds


def test_no_answer_depends_on_the_names_of_another_tenant(
    worlds: dict[str, dict[str, Any]],
) -> None:
    same, different = worlds["same"], worlds["different"]
    assert same.keys() == different.keys()
    for request, answer in same.items():
        assert answer == different[request], request
    text = json.dumps(same)
    assert SHARED in text
    assert "blue" not in text.replace("blue%2F", "").replace("blue/train", "")


def _without_numbers(value: Any) -> Any:
    """Return a response without the parts that depend on the number of other jobs."""
    if isinstance(value, dict):
        counted = {"id", "job_id", "next"}
        return {key: _without_numbers(one) for key, one in value.items() if key not in counted}
    return [_without_numbers(entry) for entry in value] if isinstance(value, list) else value


def test_a_tenant_of_equal_names_is_as_none(worlds: dict[str, dict[str, Any]]) -> None:
    """Status, and every sentence about the names, of each request that names a job."""
    same, alone = worlds["same"], worlds["alone"]
    compared = 0
    for request in same.keys() - {"events"}:
        if "id:" in request or " /v1/jobs/1" in request:
            continue
        status, _, text = same[request]
        assert status == alone[request][0], request
        if status >= 400 or "/v1/jobs?" in request:
            compared += 1
            before = _without_numbers(json.loads(alone[request][2]))
            after = _without_numbers(json.loads(text))
            if status >= 400:
                assert after == before, request
            else:
                names = [[job.get("name") for job in page["jobs"]] for page in (before, after)]
                assert names[0] == names[1], request
    assert compared > 20


@pytest.fixture
def live(tmp_path: Path) -> Iterator[RunningService]:
    with run_service(tmp_path, cluster=CLUSTER, policy="oasis", clock=ManualClock()) as found:
        yield found


def test_two_tenants_have_a_job_of_one_name(live: RunningService) -> None:
    with live.as_(live.token("red")) as red, live.as_(live.token("blue")) as blue:
        body = red.post("/v1/jobs", json=job("train")).json()
        other = blue.post("/v1/jobs", json=job("train", chunks=2)).json()
        assert (body["name"], other["name"]) == ("train", "train")
        assert body["id"] != other["id"]
        assert red.get("/v1/jobs/train").json()["id"] == body["id"]
        assert blue.get("/v1/jobs/train").json()["id"] == other["id"]
        assert blue.get("/v1/jobs/blue%2Ftrain").json()["id"] == other["id"]
        for foreign in ("red%2Ftrain", f"id:{body['id']}", str(body["id"])):
            assert blue.get(f"/v1/jobs/{foreign}").status_code == 404
        events = blue.get("/v1/jobs/train/events").json()["events"]
        assert {(event["job"], event["job_id"]) for event in events} == {("train", other["id"])}

        response = live.client.get("/v1/jobs/train")
        assert response.status_code == 422
        [error] = response.json()["errors"]
        assert error["message"] == "'train' is the name of 2 jobs"
        assert f"blue/train (id {other['id']})" in error["hint"]
        assert f"red/train (id {body['id']})" in error["hint"]
        for named, number in (
            ("blue%2Ftrain", other["id"]),
            (f"id:{body['id']}", body["id"]),
            (str(body["id"]), body["id"]),
        ):
            assert live.client.get(f"/v1/jobs/{named}").json()["id"] == number

        assert live.client.delete("/v1/jobs/blue%2Ftrain").json()["tenant"] == "blue"
        assert red.get("/v1/jobs/train").json()["state"] == "admitted"
        assert live.client.get("/v1/jobs/train").json()["id"] == body["id"]  # the only open one
        assert red.delete("/v1/jobs/train").status_code == 200
        assert live.client.get("/v1/jobs/train").status_code == 422  # both are closed


def test_a_name_without_a_tenant_is_another_one(live: RunningService) -> None:
    plain = live.client.post("/v1/jobs", json=job("train")).json()
    with live.as_(live.token("red")) as red:
        theirs = red.post("/v1/jobs", json=job("train")).json()
    assert plain["id"] != theirs["id"]
    hint = live.client.get("/v1/jobs/train").json()["errors"][0]["hint"]
    assert f"/train (id {plain['id']})" in hint
    assert live.client.get("/v1/jobs/%2Ftrain").json()["id"] == plain["id"]


def test_name_is_reusable_after_its_job_ends(live: RunningService) -> None:
    with live.as_(live.token("red")) as red:
        first = red.post("/v1/jobs", json=job("train")).json()
        assert red.post("/v1/jobs", json=job("train", chunks=2)).status_code == 409
        red.delete("/v1/jobs/train")
        second = red.post("/v1/jobs", json=job("train")).json()
        assert second["id"] != first["id"]
        assert second["state"] == "admitted"
        assert red.get("/v1/jobs/train").json()["id"] == second["id"]
        assert red.get(f"/v1/jobs/id:{first['id']}").json()["state"] == "cancelled"
        events = red.get(f"/v1/jobs/id:{first['id']}/explain").json()["events"]
        assert {event["job_id"] for event in events} == {first["id"]}
        red.delete("/v1/jobs/train")
        assert red.get("/v1/jobs/train").json()["id"] == second["id"]  # the newest
        listed = red.get("/v1/jobs?search=train").json()["jobs"]
        assert [entry["id"] for entry in listed] == [second["id"], first["id"]]


def test_repeated_request_returns_its_closed_job(live: RunningService) -> None:
    headers = {"Idempotency-Key": "once"}
    first = live.client.post("/v1/jobs", json=job("train"), headers=headers).json()
    live.client.delete("/v1/jobs/train")
    repeated = live.client.post("/v1/jobs", json=job("train"), headers=headers).json()
    assert (repeated["id"], repeated["state"]) == (first["id"], "cancelled")
    other = live.client.post("/v1/jobs", json=job("train"), headers={"Idempotency-Key": "twice"})
    assert other.json()["id"] != first["id"]


def test_repeated_request_returns_its_job_although_the_name_was_reused(
    live: RunningService,
) -> None:
    headers = {"Idempotency-Key": "once"}
    first = live.client.post("/v1/jobs", json=job("train"), headers=headers).json()
    live.client.patch("/v1/jobs/train", json={"labels": {"a": "b"}})
    live.client.delete("/v1/jobs/train")
    for key in ("twice", "thrice"):
        later = live.client.post("/v1/jobs", json=job("train"), headers={"Idempotency-Key": key})
        repeated = live.client.post("/v1/jobs", json=job("train"), headers=headers)
        assert (repeated.status_code, repeated.json()["id"]) == (200, first["id"])
        assert later.json()["id"] > first["id"]
        live.client.delete(f"/v1/jobs/id:{later.json()['id']}")
    several = [job("train"), job("second"), job("third")]
    keys = {"Idempotency-Key": "several"}
    jobs = live.client.post("/v1/jobs?wait=60", json={"jobs": several}, headers=keys).json()["jobs"]
    live.client.delete("/v1/jobs/second")
    live.client.post("/v1/jobs", json=job("second"))
    repeated = live.client.post("/v1/jobs", json={"jobs": several}, headers=keys).json()["jobs"]
    assert [entry["id"] for entry in repeated] == [job["id"] for job in jobs]
    assert len(live.client.get("/v1/jobs").json()["jobs"]) == 7


def test_request_keys_are_scoped_to_tenants(live: RunningService) -> None:
    headers = {"Idempotency-Key": "once"}
    numbers = set()
    for tenant in ("red", "blue"):
        with live.as_(live.token(tenant)) as client:
            numbers.add(client.post("/v1/jobs", json=job("train"), headers=headers).json()["id"])
            client.delete("/v1/jobs/train")
            other = client.post("/v1/jobs", json=job("train", chunks=2), headers=headers)
            assert other.status_code == 200  # other content is another request
            numbers.add(other.json()["id"])
    assert len(numbers) == 4


def test_repeated_resubmission_returns_its_job_after_another_resubmission(
    simple: RunningService,
) -> None:
    client, headers = simple.client, {"Idempotency-Key": "once"}
    client.post("/v1/jobs", json=job("train"))
    path = "/v1/jobs/train/resubmit"
    first = client.post(f"{path}?cancel=true", json={"name": "again"}, headers=headers).json()
    client.delete("/v1/jobs/again")
    later = client.post("/v1/jobs", json=job("train", chunks=2)).json()
    client.post("/v1/jobs", json=job("again", chunks=2))
    for query in ("?cancel=true", ""):
        repeated = client.post(f"{path}{query}", json={"name": "again"}, headers=headers)
        assert (repeated.status_code, repeated.json()["id"]) == (200, first["id"])
    assert client.get(f"/v1/jobs/id:{later['id']}").json()["state"] == "admitted"


def test_request_key_survives_a_restart(tmp_path: Path) -> None:
    clock, headers, numbers = ManualClock(), {"Idempotency-Key": "once"}, []
    for _ in range(2):
        with run_service(tmp_path, cluster=CLUSTER, policy="fifo", clock=clock) as live:
            response = live.client.post("/v1/jobs", json=job("train"), headers=headers)
            numbers.append(response.json()["id"])
            live.client.delete("/v1/jobs/train")
            live.client.post("/v1/jobs", json=job("train"))
    assert numbers == [1, 1]


def test_numeric_reference_prefers_a_name_over_an_id(live: RunningService) -> None:
    first = live.client.post("/v1/jobs", json=job("train")).json()
    named = live.client.post("/v1/jobs", json=job(str(first["id"]))).json()
    assert live.client.get(f"/v1/jobs/{first['id']}").json()["id"] == named["id"]
    assert live.client.get(f"/v1/jobs/id:{first['id']}").json()["id"] == first["id"]


def test_progress_token_is_valid_for_one_job(live: RunningService) -> None:
    with live.as_(live.token("red")) as red, live.as_(live.token("blue")) as blue:
        numbers = [
            client.post("/v1/jobs", json=job("train")).json()["id"] for client in (red, blue)
        ]
    token = progress_token(live.service.key, "red/train", 1)
    with live.as_(token) as reporter:
        for reference in ("train", "red%2Ftrain", str(numbers[0])):
            answer = reporter.post(f"/v1/jobs/{reference}/progress", json={"minibatches": 1})
            assert answer.status_code == 202, (reference, answer.text)
        for reference in ("blue%2Ftrain", str(numbers[1]), "other"):
            answer = reporter.post(f"/v1/jobs/{reference}/progress", json={"minibatches": 1})
            assert answer.status_code == 401, answer.text


def test_names_survive_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    results = []
    for _ in range(2):
        with (
            run_service(tmp_path, cluster=CLUSTER, policy="oasis", clock=clock) as live,
            live.as_(live.token("red")) as red,
            live.as_(live.token("blue")) as blue,
        ):
            answers = [client.post("/v1/jobs", json=job("train")) for client in (red, blue)]
            assert [answer.status_code for answer in answers] == [200, 200]
            results.append([answer.json()["id"] for answer in answers])
    assert results[0] == results[1]


@pytest.fixture
def simple(tmp_path: Path) -> Iterator[RunningService]:
    with run_service(tmp_path, cluster=CLUSTER, policy="fifo", clock=ManualClock()) as found:
        yield found


def test_a_job_is_cancelled_only_together_with_its_resubmission(simple: RunningService) -> None:
    client = simple.client
    first = client.post("/v1/jobs", json=job("train")).json()
    client.post("/v1/jobs", json=job("other", chunks=2))
    path = "/v1/jobs/train/resubmit?cancel=true"
    assert client.post(path, json={"name": "other"}).status_code == 409
    own = client.post(path, json={"name": "train"}, headers={"Idempotency-Key": "a"})
    assert own.status_code == 422
    assert own.json()["errors"][0]["message"] == "'train' is the name of the job itself"
    assert client.get("/v1/jobs/train").json()["state"] == "admitted"  # by neither request
    events = client.get("/v1/jobs/train/events").json()["events"]
    assert "cancelled" not in {event["kind"] for event in events}

    headers = {"Idempotency-Key": "b"}
    second = client.post(path, json={"name": "again"}, headers=headers).json()
    assert (second["name"], second["state"]) == ("again", "admitted")
    assert client.get(f"/v1/jobs/id:{first['id']}").json()["state"] == "cancelled"
    third = client.post("/v1/jobs", json=job("train")).json()
    retry = client.post(path, json={"name": "again"}, headers=headers).json()
    assert (retry["id"], retry["state"]) == (second["id"], "admitted")
    assert client.get(f"/v1/jobs/id:{third['id']}").json()["state"] == "admitted"


def test_name_in_the_form_of_an_id_is_refused(simple: RunningService) -> None:
    response = simple.client.post("/v1/jobs", json=job("id:1"))
    assert response.status_code == 422
    [error] = response.json()["errors"]
    assert "job.name" in error.values()
    assert error["message"] == "'id:1' begins with 'id:', like a reference to an id"


def test_ids_of_purged_jobs_are_not_reused(tmp_path: Path) -> None:
    numbers = []
    for name in ("first", "second", "third"):
        clock = ManualClock()
        with run_service(tmp_path, cluster=CLUSTER, policy="fifo", clock=clock) as live:
            numbers.append(live.client.post("/v1/jobs", json=job(name)).json()["id"])
            live.client.delete(f"/v1/jobs/{name}")
            retention.purge(live.service.store, live.service.require_writer().clock.now() + 1)
            assert live.client.get("/v1/jobs").json()["jobs"] == []
    assert numbers == [1, 2, 3]


def test_a_request_that_adds_no_job_is_within_the_limit(simple: RunningService) -> None:
    limited = dataclasses.replace(simple.service.settings, max_open_jobs=1)
    headers = {"Idempotency-Key": "once"}
    with simple.as_(simple.token("red")) as red:
        first = red.post("/v1/jobs", json=job("train"), headers=headers).json()
        red.delete("/v1/jobs/train")
        red.post("/v1/jobs", json=job("other"))
        simple.service.settings = limited
        assert red.post("/v1/jobs", json=job("train")).status_code == 429
        retry = red.post("/v1/jobs", json=job("train"), headers=headers)
        assert retry.status_code == 200
        assert retry.json()["id"] == first["id"]


def test_decisions_of_two_jobs_with_one_name_are_separate(simple: RunningService) -> None:
    for tenant in ("red", "blue"):
        with simple.as_(simple.token(tenant)) as client:
            client.post("/v1/jobs", json=job("train"))
    assert simple.client.get("/v1/decisions?job=train").status_code == 422
    page = simple.client.get("/v1/decisions?job=train&tenant=red").json()["decisions"]
    assert {decision["tenant"] for decision in page} == {"red"}
    simple.client.delete("/v1/jobs/red%2Ftrain")
    closed = simple.client.get("/v1/decisions?job=train&tenant=red").json()["decisions"]
    assert closed[-len(page) :] == page
    assert simple.client.get("/v1/decisions?job=none").json()["decisions"] == []


def test_job_is_requeued_once_by_any_of_its_references(
    simple: RunningService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHADOWPRICE_SERVER", simple.address)
    monkeypatch.setenv("SHADOWPRICE_TOKEN", simple.token("red"))
    with simple.as_(simple.token("red")) as red:
        number = red.post("/v1/jobs", json=job("train")).json()["id"]
        assert main(["revise", "train", "--set", "utility.value=60", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == number
        assert main(["requeue", "train", f"id:{number}", "--yes", "-o", "json"]) == 0
        assert len(json.loads(capsys.readouterr().out)) == 1
        assert len(red.get("/v1/jobs").json()["jobs"]) == 2


def test_separators_in_names_need_no_escapes(simple: RunningService) -> None:
    plain = simple.client.post("/v1/jobs", json=job("red/t6")).json()["id"]
    with simple.as_(simple.token("red")) as red:
        first = red.post("/v1/jobs", json=job("a~1")).json()["id"]
        second = red.post("/v1/jobs", json=job("t6")).json()["id"]
        for client in (red, simple.client):
            for reference in ("red%2Fa~1", "red%2Fa%257E1", "a~1"):
                assert client.get(f"/v1/jobs/{reference}").json()["id"] == first
    [error] = simple.client.get("/v1/jobs/red%2Ft6").json()["errors"]
    hint = error["hint"]
    assert f"/red%2Ft6 (id {plain})" in hint
    assert f"id:{second}" in hint
    assert "red/t6 (" not in hint  # it means both
    assert simple.client.get("/v1/jobs/%2Fred%252Ft6").json()["id"] == plain


def test_events_of_a_job_are_found_by_every_reference_to_it(
    simple: RunningService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by the form in which a hint escapes separators in its name."""
    monkeypatch.setenv("SHADOWPRICE_SERVER", simple.address)
    monkeypatch.setenv("SHADOWPRICE_TOKEN", simple.service.token_file.read_text().strip())
    plain = simple.client.post("/v1/jobs", json=job("red/t~6")).json()["id"]
    with simple.as_(simple.token("red")) as red:
        mine = red.post("/v1/jobs", json=job("a~1")).json()["id"]
        red.post("/v1/jobs", json=job("a"))
    for number, references in (
        (plain, ("red/t~6", "/red/t~6", "/red%2Ft%7E6", f"id:{plain}", str(plain))),
        (mine, ("a~1", "red/a~1", "red/a%7E1", f"id:{mine}", str(mine))),
    ):
        for reference in references:
            words = ["--after", "0", "--count", "2", "-o", "json", "--job", reference]
            assert main(["events", *words]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert [json.loads(line)["job_id"] for line in lines] == [number, number], reference

"""Every route with no token, a wrong, an expired, another tenant's: a generated matrix."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from shadowprice.service.auth import progress_token
from shadowprice.service.connections import max_connections
from shadowprice.service.problems import ProblemError
from tests.support.services import RunningService, job, run_service

OPEN = {("get", "/healthz"), ("get", "/readyz")}
OWN = "/v1/jobs/{name}"
STATEMENT = "/v1/tenants/{name}/statement"
UPLOAD = "/v1/uploads/{digest}"
OPERATORS = {
    ("get", "/metrics"),
    ("get", "/v1/tokens"),
    ("get", "/v1/whatif"),
    ("post", "/v1/whatif"),
    ("get", "/v1/whatif/{run}"),
    ("delete", "/v1/whatif/{run}"),
    ("post", "/v1/tokens"),
    ("delete", "/v1/tokens/{number}"),
    ("post", "/v1/servers"),
    ("patch", "/v1/servers/{name}"),
    ("delete", "/v1/servers/{name}"),
    ("put", "/v1/tenants/{name}"),
    ("delete", "/v1/tenants/{name}"),
    ("post", "/v1/tenants/{name}/grants"),
    ("put", "/v1/timespan"),
}
LOOKING = (
    "jobs",
    "prices",
    "prices/history",
    "timeline",
    "comparison",
    "comparison/jobs",
    "decisions",
    "events",
    "servers",
    "tenants",
    "timespan",
    "service",
)
BODIES: dict[tuple[str, str], Any] = {
    ("patch", OWN): {"minibatches": 20},
    ("post", f"{OWN}/resubmit"): {"name": "again"},
    ("post", "/v1/jobs"): job("submitted", tenant="vision"),
    ("post", "/v1/quote"): job("quoted", tenant="vision"),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    with run_service(tmp_path_factory.mktemp("tokens"), policy="oasis") as found:
        with found.as_(found.token("vision")) as vision:
            assert vision.post("/v1/jobs", json=job("theirs")).status_code == 200
        yield found


@pytest.fixture(scope="module")
def routes(live: RunningService) -> list[tuple[str, str]]:
    document = live.client.get("/v1/openapi.json")
    paths = document.json()["paths"]
    results = [(method, path) for path, methods in paths.items() for method in methods]
    assert len(results) > 25
    return results


def _ask(client: Any, method: str, path: str) -> Any:
    where = path.replace("{name}", "theirs").replace("{number}", "1").replace("{run}", "1")
    return client.request(method.upper(), where, json=BODIES.get((method, path), {}))


KINDS = ["none", "wrong", "cut", "longer", "expired", "revoked", "empty", "basic"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_health_routes_respond_without_a_valid_token(
    live: RunningService, routes: list[tuple[str, str]], kind: str
) -> None:
    good = live.service.token_file.read_text().strip()
    wrong = {"wrong": "sp_" + "x" * 43, "cut": good[:-1], "longer": f"{good}A", "empty": "-"}
    token = wrong.get(kind)
    if kind == "expired":
        token = live.token("vision", expires="1ms")
        time.sleep(0.01)
    if kind == "revoked":
        body = live.client.post("/v1/tokens", json={"tenant": "vision"}).json()
        assert live.client.delete(f"/v1/tokens/{body['id']}").status_code == 204
        token = body["token"]
    with live.as_(token) as client:
        if kind == "basic":
            client.headers["Authorization"] = "Basic dmlzaW9uOnNlY3JldA=="
        for method, path in routes:
            answer = _ask(client, method, path)
            wanted = {200, 503} if (method, path) in OPEN else {401}
            assert answer.status_code in wanted, (method, path, answer.text)
            if wanted == {401}:
                assert answer.headers["www-authenticate"].startswith("Bearer")


def test_every_authenticated_route_documents_429(
    live: RunningService, routes: list[tuple[str, str]]
) -> None:
    paths = live.client.get("/v1/openapi.json").json()["paths"]
    view = live.client.get("/v1/jobs/theirs").json()
    usage, progress = live.service.require_writer().usage, ("post", f"{OWN}/progress")
    own = progress_token(live.service.key, "vision/theirs", max(1, view["generation"]))
    with ExitStack() as stack, live.as_(live.token("vision")) as tenant, live.as_(own) as report:
        for lane in ("vision", "reports of vision"):
            with suppress(ProblemError):
                while True:
                    stack.enter_context(usage.handle(lane, max_connections()))
        for method, path in sorted(set(routes) - OPEN):
            answer = _ask(report if (method, path) == progress else tenant, method, path)
            assert answer.status_code == 429, (method, path, answer.text)
            assert {"401", "429", "500", "503"} <= set(paths[path][method]["responses"]), path


def test_every_route_has_an_access_rule(routes: list[tuple[str, str]]) -> None:
    """A new route needs an entry here, unless it is an operator's or a job's."""
    left = {(m, p) for m, p in routes if (m, p) not in OPERATORS | OPEN and not p.startswith(OWN)}
    assert left <= {
        ("get", STATEMENT),
        ("get", UPLOAD),
        ("put", UPLOAD),
        ("post", "/v1/jobs"),
        ("post", "/v1/quote"),
        *(("get", f"/v1/{name}") for name in LOOKING),
    }


def test_tenants_are_refused_on_operator_routes(
    live: RunningService, routes: list[tuple[str, str]]
) -> None:
    assert set(routes) >= OPERATORS
    with live.as_(live.token("speech")) as client:
        for method, path in sorted(OPERATORS):
            answer = _ask(client, method, path)
            assert answer.status_code == 403, (method, path, answer.text)


def test_token_is_revoked_although_the_store_is_unreadable(live: RunningService) -> None:
    body = live.client.post("/v1/tokens", json={"tenant": "vision"}).json()
    service = live.service
    with live.as_(body["token"]) as vision:
        assert vision.get("/v1/service").status_code == 200
        readers, service._readers = service._readers, ThreadPoolExecutor(1)
        service._readers.shutdown()  # reading it is an error for every user
        try:
            live.client.delete(f"/v1/tokens/{body['id']}")
            assert vision.get("/v1/service").status_code == 401
        finally:
            service._readers = readers
    assert live.client.delete(f"/v1/tokens/{body['id']}").status_code == 404


def test_account_of_another_tenant_is_not_found(live: RunningService) -> None:
    """The response is the same whether the account has a budget or doesn't exist."""
    budget = {"budget": {"points": 40, "period": "1d"}}
    for name in ("vision", "speech"):
        assert live.client.put(f"/v1/tenants/{name}", json=budget).status_code == 200
    with live.as_(live.token("speech")) as client:
        own = client.get("/v1/tenants/speech/statement").json()
        assert (own["tenant"], own["account"]["held"]) == ("speech", 40.0)
        assert "vision" not in client.get("/v1/tenants").text
        theirs = client.get("/v1/tenants/vision/statement")
        missing = client.get("/v1/tenants/nobody/statement")
        assert theirs.status_code == missing.status_code == 404
        same = theirs.json()["detail"].replace("vision", "nobody")
        assert missing.json()["detail"] == same
        for query in ("?back=0", "?since=x", "?kind=debit"):  # nor does a wrong request show it
            assert client.get(f"/v1/tenants/vision/statement{query}").status_code == 404
        response = client.post("/v1/tenants/speech/grants", json={"points": 5})
        assert response.status_code == 403
        assert client.put("/v1/tenants/speech", json=budget).status_code == 403
    assert live.client.get("/v1/tenants/speech/statement").json()["account"]["held"] == 40.0
    assert live.client.get("/v1/tenants/nobody/statement").status_code == 404


def test_job_of_another_tenant_is_not_found(
    live: RunningService, routes: list[tuple[str, str]]
) -> None:
    before = live.client.get("/v1/jobs/theirs").json()
    own = [(method, path) for method, path in routes if path.startswith(OWN)]
    assert len(own) >= 7
    with live.as_(live.token("speech")) as client:
        for method, path in own:
            answer = _ask(client, method, path)
            if path.endswith("/progress") and method == "post":
                assert answer.status_code == 401  # it accepts the job's own token only
                continue
            assert answer.status_code == 404, (method, path, answer.text)
            missing = client.request(
                method.upper(),
                path.replace("{name}", "nothere"),
                json=BODIES.get((method, path), {}),
            )
            same = answer.json()["detail"].replace("theirs", "nothere")
            assert missing.json()["detail"] == same
        for path in ("/v1/jobs", "/v1/decisions"):
            assert client.get(path, params={"tenant": "vision"}).status_code == 403
            assert "theirs" not in client.get(path).text
        for method, path in (("post", "/v1/jobs"), ("post", "/v1/quote")):
            assert _ask(client, method, path).status_code == 403
        for path in (f"/v1/{name}" for name in LOOKING if name != "events"):
            assert "theirs" not in client.get(path).text
            assert "vision" not in client.get(path).text
    assert live.client.get("/v1/jobs/theirs").json() == before


@pytest.mark.parametrize("expires", ["-1d", "3", 3, "0s", "3 slots", "11000d", [], True])
def test_invalid_token_lifetime_is_refused_with_its_location(
    live: RunningService, expires: Any
) -> None:
    response = live.client.post("/v1/tokens", json={"tenant": "vision", "expires": expires})
    assert response.status_code == 422
    [error] = response.json()["errors"]
    assert "expires" in error["location"] + error["message"]

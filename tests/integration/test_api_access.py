"""Who may do what: every route with every kind of token; and what gets nobody in."""

import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from tests.services import CLUSTER, Running, job, running

OPERATORS = {
    "POST /v1/servers",
    "PATCH /v1/servers/{name}",
    "DELETE /v1/servers/{name}",
    "PUT /v1/tenants/{name}",
    "DELETE /v1/tenants/{name}",
    "GET /v1/tokens",
    "POST /v1/tokens",
    "DELETE /v1/tokens/{number}",
    "GET /metrics",
}
OPEN = {"GET /healthz", "GET /readyz"}
OF_JOBS = "/v1/jobs/{name}"
REPORT = "POST /v1/jobs/{name}/progress"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    tenants = [{"name": name, "share": {"gpu": 4}} for name in ("vision", "speech")]
    folder = tmp_path_factory.mktemp("access")
    with running(folder, cluster={**CLUSTER, "tenants": tenants}) as found:
        found.client.post("/v1/jobs", json=job("theirs", tenant="vision"))
        yield found


@pytest.fixture(scope="module")
def tokens(live: Running) -> dict[str, str | None]:
    taken = live.client.post("/v1/tokens", json={"tenant": "speech"}).json()
    live.client.delete(f"/v1/tokens/{taken['id']}")
    expired = live.token("speech", expires="1ms")
    operator = live.service.token_file.read_text().strip()
    time.sleep(0.01)
    return {
        "none": None,
        "wrong": "sp_" + "A" * 43,
        "cut": operator[:-1],
        "longer": f"{operator}A",
        "revoked": taken["token"],
        "expired": expired,
        "other tenant": live.token("speech"),
    }


def _routes(live: Running) -> list[tuple[str, str]]:
    paths = live.client.get("/v1/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def _asked(client: httpx.Client, method: str, path: str) -> httpx.Response:
    concrete = path.replace("{name}", "theirs").replace("{number}", "1")
    if path == "/v1/events":
        with client.stream(method, concrete) as answer:
            if answer.status_code >= 400:
                answer.read()
            return answer
    body = {"json": {"deadline": "1h"} if path == OF_JOBS else {}}
    return client.request(method, concrete, **body if method in {"POST", "PUT", "PATCH"} else {})


def test_without_a_good_token_nothing_is_answered(live: Running, tokens) -> None:
    for kind, token in tokens.items():
        if kind == "other tenant":
            continue
        with live.as_(token) as client:
            for method, path in _routes(live):
                answer = _asked(client, method, path)
                wanted = 200 if f"{method} {path}" in OPEN else 401
                assert answer.status_code == wanted, (kind, method, path, answer.text)
                if wanted == 401:
                    assert answer.headers["www-authenticate"].startswith("Bearer")
                    assert "theirs" not in answer.text
                    assert "vision" not in answer.text


def test_another_tenant_gets_nowhere(live: Running, tokens) -> None:
    client = live.as_(tokens["other tenant"])
    for method, path in _routes(live):
        label = f"{method} {path}"
        answer = _asked(client, method, path)
        if label in OPERATORS:
            assert answer.status_code == 403, label
        elif label == REPORT:
            assert answer.status_code == 401, label  # only the job itself reports
        elif path.startswith(OF_JOBS):
            assert answer.status_code == 404, label  # as if there were no such job
            assert answer.json()["detail"] == "there is no job 'theirs'"
        elif answer.is_success and path != "/v1/events":
            assert "theirs" not in answer.text, label
    client.close()


def test_the_matrix_covers_every_route(live: Running) -> None:
    labels = {f"{method} {path}" for method, path in _routes(live)}
    assert labels >= OPERATORS | OPEN | {REPORT}
    # A route that is new is an operator's, a job's, or one of these: decide, then write it here.
    assert {one for one in labels - OPERATORS - OPEN if OF_JOBS not in one} <= {
        "POST /v1/jobs",
        "GET /v1/jobs",
        "POST /v1/quote",
        "GET /v1/prices",
        "GET /v1/prices/history",
        "GET /v1/timeline",
        "GET /v1/decisions",
        "GET /v1/events",
        "GET /v1/servers",
        "GET /v1/tenants",
        "GET /v1/service",
        "GET /v1/usage",
    }


@pytest.mark.parametrize(
    "header",
    [
        "Basic b3BlcmF0b3I6eA==",
        "Bearer",
        "",
        "bearer sp_x",
        "Token sp_x",
        "Bearer sp_x sp_y",
        "Bearer \xff",
        "Bearer " + "A" * 20_000,
    ],
)
def test_headers_that_are_no_token(live: Running, header: str) -> None:
    with live.as_(None) as client:
        answer = client.get("/v1/jobs", headers={b"Authorization": header.encode("latin-1")})
    assert answer.status_code in {400, 401, 431}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/..%2f..%2f..%2fetc%2fpasswd/logs",
        "/v1/jobs/theirs/logs?process=../../../etc/passwd",
        "/v1/jobs/theirs/logs?process=..%2f..%2foperator.token",
        "/v1/jobs/theirs/logs?process=worker-0%00",
        "/v1/jobs/%00/logs",
        "/v1/jobs/theirs/../../operator.token",
        "//etc/passwd",
        "/v1/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_paths_lead_nowhere(live: Running, path: str) -> None:
    token = live.service.token_file.read_text().strip()
    told = _raw(live, f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n")
    status = int(told.split(b" ", 2)[1])
    assert status in {400, 404, 409, 422}, told[:200]
    assert b"root:" not in told
    assert token.encode() not in told


def _raw(live: Running, request: str | bytes, seconds: float = 5.0) -> bytes:
    """Send bytes as they are, and return what comes back until it ends or nothing more comes."""
    parts = urlsplit(live.address)
    data = request.encode("latin-1") if isinstance(request, str) else request
    with socket.create_connection((parts.hostname, parts.port), timeout=seconds) as connection:
        connection.sendall(data)
        connection.settimeout(1.0)
        found = b""
        try:
            while piece := connection.recv(65_536):
                found += piece
        except (TimeoutError, ConnectionResetError):
            pass
        return found


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 60",
        "Content-Length: -1",
        "Content-Length: +5",
        "Content-Length: 5, 5",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Content-Length: 99999999999999999999",
    ],
)
def test_a_request_hides_no_other(live: Running, head: str) -> None:
    """Two lengths, or none that can be believed: what follows is never taken for a request."""
    token = live.service.token_file.read_text().strip()
    hidden = f"DELETE /v1/jobs/theirs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    request = (
        f"POST /v1/quote HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\n{head}\r\n\r\n0\r\n\r\n{hidden}"
    )
    _raw(live, request)
    assert live.client.get("/v1/jobs/theirs").json()["state"] != "cancelled"


def test_a_body_without_end_is_cut_off(live: Running) -> None:
    token = live.service.token_file.read_text().strip()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    parts = urlsplit(live.address)
    told, sent = b"", 0
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(head.encode())
        try:
            for _ in range(64):
                connection.sendall(chunk)
                sent += 1
            told = connection.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            assert told.startswith(b"HTTP/1.1 413"), told[:200]
    assert sent >= 8
    assert live.client.get("/healthz").status_code == 200


def test_a_name_is_text_wherever_it_is_shown(live: Running) -> None:
    for name in (
        "<script>alert(1)</script>",
        "a/b?c#d",
        "na\u202eme",
        "' OR 1=1 --",
        "%00",
        "..",
        "{{7*7}}",
    ):
        taken = live.client.post("/v1/jobs", json=job(name))
        if taken.status_code == 422:
            continue
        assert taken.json()["name"] == name
        found = live.client.get("/v1/jobs", params={"limit": 1}).json()["jobs"]
        assert [one["name"] for one in found] == [name]
    told = live.client.get("/v1/jobs").headers
    assert told["content-type"] == "application/json"
    assert told["x-content-type-options"] == "nosniff"
    assert (
        "script-src" in told["content-security-policy"]
        or "default-src 'self'" in (told["content-security-policy"])
    )

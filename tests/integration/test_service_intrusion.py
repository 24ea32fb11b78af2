"""Malformed requests, path traversal and markup in names give no access."""

import socket
import struct
from urllib.parse import urlsplit

import pytest

from shadowprice.service import connections
from shadowprice.service.connections import ErrorLimit
from tests.support.services import CLUSTER, RunningService, job, run_service


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    tenants = [{"name": name, "share": {"gpu": 4}} for name in ("vision", "speech")]
    folder = tmp_path_factory.mktemp("access")
    with run_service(folder, cluster={**CLUSTER, "tenants": tenants}) as found:
        found.client.post("/v1/jobs", json=job("theirs", tenant="vision"))
        yield found


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
def test_malformed_authorization_headers_are_rejected(live: RunningService, header: str) -> None:
    with live.as_(None) as client:
        response = client.get("/v1/jobs", headers={b"Authorization": header.encode("latin-1")})
    assert response.status_code in {400, 401, 431}


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
def test_path_traversal_reaches_no_file(live: RunningService, path: str) -> None:
    token = live.service.token_file.read_text().strip()
    response = _raw(
        live, f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    status = int(response.split(b" ", 2)[1])
    assert status in {400, 404, 409, 422}, response[:200]
    assert b"root:" not in response
    assert token.encode() not in response


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/v1/nope",
        "/v1/jobs/%00",
        "/v1/jobs/%00/logs",
        "/v1/jobs/theirs?nonsense=1",
        "/v1/jobs?limit=x",
        "/v1/jobs/%00/progress",
        "/v1/servers/%ff",
        "/metrics/x",
        "/%00",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "BREW"])
def test_every_path_answers_401_without_a_token(
    live: RunningService, path: str, method: str
) -> None:
    response = _raw(live, f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    # The parser of requests knows no such method.
    assert int(response.split(b" ", 2)[1]) == (400 if method == "BREW" else 401), response[:200]


def test_pipelined_requests_on_connections_that_are_reset_leave_no_line_in_the_log(
    live: RunningService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Errors of other tests from this address would keep later ones out of the log.
    monkeypatch.setattr(connections, "_limit", ErrorLimit())
    parts = urlsplit(live.address)
    requests = b"GET /assets/charts/echarts.min.js HTTP/1.1\r\nHost: x\r\n\r\n" * 300
    with caplog.at_level("WARNING"):
        for number in range(60):
            with socket.socket() as connection:
                # The window fills, so that responses wait when the connection is reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                connection.connect((parts.hostname, parts.port))
                connection.sendall(requests)
                connection.recv(1 + number * 97)
        assert live.client.get("/healthz").status_code == 200
    assert [record.getMessage() for record in caplog.records] == []


def _raw(live: RunningService, request: str | bytes, seconds: float = 5.0) -> bytes:
    """Send raw bytes; return the response until the connection closes or is idle."""
    parts = urlsplit(live.address)
    data = request.encode("latin-1") if isinstance(request, str) else request
    with socket.create_connection((parts.hostname, parts.port), timeout=seconds) as connection:
        connection.sendall(data)
        connection.settimeout(1.0)
        received = b""
        try:
            while piece := connection.recv(65_536):
                received += piece
        except (TimeoutError, ConnectionResetError):
            pass
        return received


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
def test_request_smuggling_is_rejected(live: RunningService, head: str) -> None:
    """With two lengths or an invalid one, the rest is never parsed as a request."""
    token = live.service.token_file.read_text().strip()
    hidden = f"DELETE /v1/jobs/theirs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    request = (
        f"POST /v1/quote HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\n{head}\r\n\r\n0\r\n\r\n{hidden}"
    )
    _raw(live, request)
    assert live.client.get("/v1/jobs/theirs").json()["state"] != "cancelled"


def test_endless_body_is_cut_off(live: RunningService) -> None:
    token = live.service.token_file.read_text().strip()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    parts = urlsplit(live.address)
    received, sent = b"", 0
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(head.encode())
        try:
            for _ in range(64):
                connection.sendall(chunk)
                sent += 1
            received = connection.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            assert received.startswith(b"HTTP/1.1 413"), received[:200]
    assert sent >= 8
    assert live.client.get("/healthz").status_code == 200


def test_names_are_escaped_everywhere(live: RunningService) -> None:
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
        body = live.client.get("/v1/jobs", params={"limit": 1}).json()["jobs"]
        assert [entry["name"] for entry in body] == [name]
    response = live.client.get("/v1/jobs").headers
    assert response["content-type"] == "application/json"
    assert response["x-content-type-options"] == "nosniff"
    assert (
        "script-src" in response["content-security-policy"]
        or "default-src 'self'" in (response["content-security-policy"])
    )

"""Retries and their limits; the response may come from something else than a service."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shadowprice.client import Client, Endpoint, ServiceError, ServiceUnreachableError, calls
from shadowprice.client import clients as shared
from shadowprice.core.errors import InputError
from tests.support.waiting import WAIT_LIMIT_SECONDS

HERE = Endpoint("http://127.0.0.1:9", "token")


def _client(handler, retry: float = 0.0) -> Client:
    client = Client(HERE, retry=retry)
    client._http = httpx.Client(transport=httpx.MockTransport(handler), **_settings())
    return client


def _settings() -> dict:
    return {k: v for k, v in shared.httpx_options(HERE).items() if k != "trust_env"}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_takeover_is_waited_for_but_tokens_are_not_made_twice(status: int) -> None:
    requests = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request.url.path)
        if len(requests) < 3:
            return httpx.Response(status, json={"detail": "stands by", "code": "standby"})
        return httpx.Response(200, json={"servers": []})

    with _client(handler, retry=60) as client:
        assert client.servers() == ()
    assert len(requests) == 3
    requests.clear()
    with _client(handler, retry=60) as client, pytest.raises(ServiceError) as caught:
        client.create_token("vision")
    assert caught.value.code == "standby"
    assert len(requests) == 1


def test_a_submission_whose_response_is_lost_is_repeated_with_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        if len(keys) == 1:
            raise httpx.ReadError("Connection reset by peer")
        if len(keys) == 2:
            raise httpx.ConnectError("Connection refused")
        return httpx.Response(503, json={"detail": "stands by", "code": "standby"})

    with _client(handler, retry=60) as client:
        monkeypatch.setattr(shared, "reconnect_delays", lambda: iter((0.0, 0.0)))
        with pytest.raises(ServiceUnreachableError) as caught:
            client.submit({"name": "a"})
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert str(caught.value).endswith(
        "Connection reset by peer; it may have been submitted: look for it (shadowprice queue) "
        "before you try again"
    )


@pytest.mark.parametrize("error", [httpx.ReadTimeout(""), httpx.RemoteProtocolError("")])
def test_the_hint_says_whether_a_call_may_be_repeated(error: httpx.HTTPError) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    job = {"name": "a"}
    hints = {
        "it may have been submitted: look for it (shadowprice queue) before you try again": [
            calls.submit(job),
            calls.submit_many([job]),
            calls.resubmit("a", "b"),
        ],
        "it may have been done: check that before you try again": [
            calls.grant("a", 5.0),
            calls.add_servers(job),
            calls.create_token(),
            calls.start_whatif(),
        ],
        "try again: nothing is done twice": [calls.jobs(), calls.cancel("a"), calls.quote(job)],
    }
    with _client(handler) as client:
        for hint, group in hints.items():
            for call in group:
                with pytest.raises(ServiceUnreachableError) as caught:
                    client.send(call)
                assert str(caught.value).endswith(f"; {hint}")


def test_a_request_that_was_not_sent_may_be_repeated() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("")

    hint = "try again: nothing is done twice"
    with _client(handler) as client, pytest.raises(ServiceUnreachableError, match=hint):
        client.submit({"name": "a"})


def test_a_refusal_is_not_repeated_and_keeps_its_faults() -> None:
    requests = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        fault = {
            "location": "job.utilty",
            "message": "unknown key",
            "hint": "did you mean 'utility'?",
        }
        fields = {"detail": "wrong", "code": "input", "errors": [fault]}
        return httpx.Response(
            422, json=fields, headers={"content-type": "application/problem+json"}
        )

    with _client(handler, retry=60) as client, pytest.raises(ServiceError) as caught:
        client.submit({"name": "a"})
    assert len(requests) == 1
    assert caught.value.exit_code == 2
    assert [str(fault) for fault in caught.value.faults] == [
        "job.utilty: unknown key; did you mean 'utility'?"
    ]


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>hello</html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"servers": [{}]}),
        httpx.Response(200, json={"servers": 3}),
        httpx.Response(200),
    ],
)
def test_a_response_of_another_program_is_refused(answer: httpx.Response) -> None:
    with (
        _client(lambda _: answer) as client,
        pytest.raises(ServiceUnreachableError, match="check the address"),
    ):
        client.servers()


@pytest.mark.parametrize("generations", [2, 3])
def test_logs_of_a_closed_job_end_though_its_last_generation_has_no_such_process(
    generations: int,
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        query = request.url.params
        if request.url.path.endswith("/logs"):
            assert query["process"] == "worker-1"
            if query.get("generation", "1") != "1":
                return httpx.Response(404, json={"detail": "no logs", "code": "not-found"})
            text = "hello" if query.get("start", "0") == "0" else ""
            chunk = {"generation": 1, "process": "worker-1", "start": 5 - len(text), "end": 5}
            return httpx.Response(200, json={**chunk, "text": text, "complete": True})
        return httpx.Response(200, json=closed_job(generations))

    with _client(handler) as client:
        assert [chunk.text for chunk in client.follow_logs("a", process="worker-1")] == ["hello"]


def closed_job(generation: int) -> dict[str, Any]:
    """Return the record of a finished job."""
    absent = "decided started promise promise_slot first_promise_slot completion completion_slot"
    counts = "promise_margin_slots promise_margin_jobs progress required workers ps failures lost"
    speed = {"source": "stated", "family": None, "measured": []}
    at = "2027-01-01T00:00:00Z"
    return {
        **dict.fromkeys(f"{absent} payoff utility cost reason predicted points tenant".split()),
        **dict.fromkeys(counts.split(), 0),
        "id": 7,
        "name": "a",
        "state": "finished",
        "submitted": at,
        "closed": at,
        "generation": generation,
        "servers": [],
        "speed": speed,
        "spec": {},
    }


def test_waiting_for_a_job_ends_with_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    record = {**closed_job(1), "state": "running", "closed": None}
    with (
        _client(lambda _: httpx.Response(200, json=record)) as client,
        pytest.raises(TimeoutError, match="still running"),
    ):
        client.wait("a", timeout=0.05)
    assert max(pauses) <= 0.05


def test_a_redirect_is_not_followed_with_the_token() -> None:
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.host)
        return httpx.Response(302, headers={"location": "http://elsewhere/"})

    with _client(handler) as client, pytest.raises(ServiceError, match="answered 302"):
        client.servers()
    assert seen == ["127.0.0.1"]


def test_a_name_stays_within_its_part_of_the_path() -> None:
    assert calls.job("../tokens?x#y").path == "/v1/jobs/..%2Ftokens%3Fx%23y"
    for name, written in ((".", "%2E"), ("..", "%2E%2E")):
        paths = []

        def handler(request: httpx.Request, paths: list[bytes] = paths) -> httpx.Response:
            paths.append(request.url.raw_path)
            return httpx.Response(204)

        with _client(handler) as client:
            client.remove_tenant(name)
        assert paths == [f"/v1/tenants/{written}".encode()]


def test_a_token_that_was_read_from_a_file_may_end_with_the_line() -> None:
    with Client("http://127.0.0.1:9", "sp_x\n") as client:
        assert client._http.headers["Authorization"] == "Bearer sp_x"


@pytest.mark.parametrize("token", ["", "two words", "t\u00f6ken"])
def test_an_invalid_token_is_an_input_error(token: str) -> None:
    with pytest.raises(InputError, match="token: contains no token"):
        Client("http://127.0.0.1:9", token)


def test_values_that_json_cannot_hold_are_named_by_location() -> None:
    job = {"name": "a", "run": {"workdir": Path("/srv")}}
    with (
        Client("http://127.0.0.1:9", "t") as client,
        pytest.raises(InputError, match=r"run\.workdir: JSON can't hold a value of type .*Path"),
    ):
        client.submit(job)


def test_a_stream_of_another_program_is_refused() -> None:
    answer = httpx.Response(200, html="<html>hello</html>")
    with (
        _client(lambda _: answer) as client,
        pytest.raises(ServiceUnreachableError, match="check the address"),
    ):
        next(client.events())


def test_the_token_does_not_show() -> None:
    assert "token" not in repr(HERE).replace("token=", "")


def test_certificates_are_read_where_needed_and_required() -> None:
    for url in ("https://127.0.0.1:9", "https://scheduler.example", "http://scheduler.example"):
        assert shared.httpx_options(Endpoint(url))["verify"] is True
    nobody = shared.httpx_options(HERE)["verify"]
    assert nobody.verify_mode is ssl.CERT_REQUIRED
    assert nobody.check_hostname
    assert nobody.get_ca_certs() == []


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080", True),
        ("http://[::1]:8080", True),
        ("http://127.0.0.1.example.org:8080", False),
        ("http://127.0.0.10:8080", False),
        ("https://127.0.0.1:8080", False),
        ("http://example.org/?http://127.0.0.1", False),
    ],
)
def test_only_this_machine_is_reached_without_a_proxy(url: str, *, local: bool) -> None:
    assert shared.httpx_options(Endpoint(url, "token"))["trust_env"] is not local


@pytest.fixture
def self_signed(tmp_path: Path) -> Iterator[int]:
    """Port of a TLS server on 127.0.0.1 whose certificate no authority signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = tmp_path / "server.pem"
    file.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(WAIT_LIMIT_SECONDS)


def test_an_unknown_certificate_is_not_reported_as_a_stopped_service(self_signed: int) -> None:
    with (
        Client(f"https://127.0.0.1:{self_signed}", "token", retry=0) as client,
        pytest.raises(
            ServiceUnreachableError, match=r"certificate verify failed.*; trust"
        ) as caught,
    ):
        client.service()
    assert str(caught.value).endswith("; trust its authority with SSL_CERT_FILE=FILE")

"""Requests, histories and leases on a server with every fault of an API server."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until_async

pytest.importorskip("kubernetes_asyncio")

from aiohttp import web

from shadowprice.executors.kubernetes.executor import ExecutorLease
from shadowprice.kubernetes import connection as connections
from shadowprice.kubernetes import informer as informers
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import (
    ApiError,
    ApiUnreachableError,
    ConfigError,
    LeadershipLostError,
)
from shadowprice.kubernetes.informer import Informer
from shadowprice.kubernetes.lease import Lease
from tests.unit.kubernetes.apiserver import Leases, Scripted, served

LIST = "/api/v1/things"


def run(folder: Path, scenario: Callable[[Scripted, ApiClient], Awaitable[None]]) -> None:
    async def run_scenario() -> None:
        scripted = Scripted()
        async with served(scripted, folder) as connection:
            await scenario(scripted, connection)

    asyncio.run(run_scenario())


def test_a_request_that_is_put_off_is_sent_again_when_it_may(tmp_path: Path) -> None:
    async def scenario(server: Scripted, connection: ApiClient) -> None:
        server.faults = [
            web.Response(status=429, headers={"Retry-After": "1"}),
            web.Response(status=429, headers={"Retry-After": "0"}),
        ]
        began = time.monotonic()
        assert (await connection.get(LIST))["items"] == []
        assert time.monotonic() - began >= 1.0
        assert connection.requests == 3
        assert connection.namespace == "own"

    run(tmp_path, scenario)


def test_refusals_of_a_server_are_reported_verbatim(tmp_path: Path) -> None:
    async def scenario(server: Scripted, connection: ApiClient) -> None:
        fields = {"reason": "AlreadyExists", "message": 'pods "a" already exists', "code": 409}
        server.faults = [web.json_response(fields, status=409), web.Response(status=503, text="no")]
        with pytest.raises(ApiError, match='pods "a" already exists') as caught:
            await connection.post(LIST, {})
        assert caught.value.exists
        assert not caught.value.conflict
        with pytest.raises(ApiError, match="no") as caught:
            await connection.get(LIST)
        assert caught.value.passing

    run(tmp_path, scenario)


def test_a_former_leader_writes_nothing_but_its_lease(tmp_path: Path) -> None:
    async def scenario(server: Scripted, connection: ApiClient) -> None:
        leads = True
        connection.restrict_writes(lambda: leads)
        server.faults = [web.Response(status=429, headers={"Retry-After": "1"})]
        put_off = asyncio.create_task(connection.post(LIST, {}))
        await wait_until_async(lambda: len(server.requests) == 1)
        leads = False  # it is requested before each try, not when the request was made
        with pytest.raises(LeadershipLostError) as caught:
            await put_off
        assert caught.value.passing
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(LeadershipLostError):
                await connection.request(method, LIST, body={})
        await connection.get(LIST)
        await connection.request("PUT", LIST, body={}, urgent=True)
        assert [one.split()[0] for one in server.requests] == ["POST", "GET", "PUT"]

    run(tmp_path, scenario)


class TokenServer(Scripted):
    """Accepts one token."""

    def __init__(self) -> None:
        super().__init__()
        self.token = "token-1"
        self.tokens: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers["Authorization"].removeprefix("Bearer "))
        if self.tokens[-1] != self.token:
            return web.Response(status=401, text="Unauthorized")
        return await super().answer(request)


PLUGIN = """\
import json, pathlib, sys
runs = pathlib.Path(sys.argv[1])
count = len(runs.read_bytes()) + 1 if runs.exists() else 1
runs.write_bytes(b"x" * count)
status = {"token": f"token-{count}"}
if len(sys.argv) > 2:
    status["expirationTimestamp"] = sys.argv[2]
kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
print(json.dumps({**kind, "status": status}))
"""


def plugin_user(folder: Path, expiry: str = "") -> dict[str, Any]:
    (folder / "plugin.py").write_text(PLUGIN)
    arguments = [str(folder / "plugin.py"), str(folder / "runs"), *([expiry] if expiry else [])]
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": arguments}}


def test_a_token_that_the_server_refuses_is_renewed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MIN_TOKEN_REFRESH_SECONDS", 0.0)

    async def main() -> None:
        server = TokenServer()
        async with served(server, tmp_path, plugin_user(tmp_path)) as connection:
            await connection.get(LIST)
            assert server.tokens == ["token-1"]
            server.token = "token-2"  # the first one expired
            await asyncio.gather(*(connection.get(LIST) for _ in range(3)))
            assert (tmp_path / "runs").read_bytes() == b"xx"  # one renewal serves all requests
            server.token, server.tokens = "token-3", []
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                async for _ in connection.lines(LIST, silence=WAIT_LIMIT_SECONDS):
                    break
            assert server.tokens == ["token-2", "token-3"]
            server.token, server.tokens = "none", []
            with pytest.raises(ApiError, match="Unauthorized") as caught:
                await connection.get(LIST)
            assert caught.value.status == 401
            assert server.tokens == ["token-3", "token-4"]

    asyncio.run(main())


@pytest.mark.parametrize(("minutes", "token"), [(1, "token-2"), (60, "token-1")])
def test_a_token_is_renewed_before_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int, token: str
) -> None:
    monkeypatch.setattr(connections, "MIN_TOKEN_REFRESH_SECONDS", 0.0)
    expiry = datetime.now(UTC) + timedelta(minutes=minutes)

    async def main() -> None:
        server = TokenServer()
        server.token = token
        user = plugin_user(tmp_path, expiry.strftime("%Y-%m-%dT%H:%M:%SZ"))
        async with served(server, tmp_path, user) as connection:
            await connection.get(LIST)
            assert server.tokens == [token]

    asyncio.run(main())


def test_a_replica_that_lost_the_lease_during_a_token_renewal_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MIN_TOKEN_REFRESH_SECONDS", 0.0)

    async def main() -> None:
        server = TokenServer()
        async with served(server, tmp_path, plugin_user(tmp_path)) as connection:
            connection.restrict_writes(lambda: (tmp_path / "runs").read_bytes() == b"x")
            server.token = "token-2"
            with pytest.raises(LeadershipLostError):
                await connection.post(LIST, {})
            assert server.tokens == ["token-1"]

    asyncio.run(main())


def test_a_plugin_that_fails_leaves_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "MIN_TOKEN_REFRESH_SECONDS", 0.0)

    async def main() -> None:
        server = TokenServer()
        async with served(server, tmp_path, plugin_user(tmp_path)) as connection:
            (tmp_path / "plugin.py").write_text("raise SystemExit('no network')")
            server.token = "token-2"
            with pytest.raises(ApiError, match="Unauthorized"):
                await connection.get(LIST)
            server.token = "token-1"
            await connection.get(LIST)

    asyncio.run(main())
    assert "failed to renew the credentials: exec: process returned 1. no network" in caplog.text


def assert_between(time_of_server: float | None, minimum: float, *, since: float) -> None:
    """Check a time of the server: its Date, which has whole seconds, and the time since then."""
    assert time_of_server is not None
    assert minimum - 1.0 <= time_of_server <= minimum + 1.0 + time.monotonic() - since


def test_the_time_is_that_of_the_server_whatever_it_is_here(tmp_path: Path) -> None:
    async def scenario(server: Scripted, connection: ApiClient) -> None:
        assert connection.time() is None
        server.faults = [
            web.json_response({}, headers={"Date": "Tue, 24 Nov 2026 05:30:00 GMT"}),
            web.json_response({}, status=404, headers={"Date": "Tue, 24 Nov 2026 05:31:00 GMT"}),
            web.json_response({}, headers={"Date": "soon"}),
        ]
        start = time.monotonic()
        await connection.get(LIST)
        assert_between(connection.time(), 1795498200.0, since=start)
        await asyncio.sleep(0.2)
        assert_between(connection.time(), 1795498200.2, since=start)
        start = time.monotonic()
        with pytest.raises(ApiError):  # a refusal has a date too
            await connection.get(LIST)
        assert_between(connection.time(), 1795498260.0, since=start)
        await connection.get(LIST)
        assert connection.time() is None

    run(tmp_path, scenario)


def test_without_processes_a_job_is_not_known_to_be_done(tmp_path: Path) -> None:
    async def scenario(_: Scripted, connection: ApiClient) -> None:
        text = (tmp_path / "kubeconfig").read_text().replace(connection.host, "http://127.0.0.1:9")
        (tmp_path / "nowhere").write_text(text)
        other = await ApiClient.open(str(tmp_path / "nowhere"))
        with pytest.raises(ApiUnreachableError, match="127") as caught:
            await other.delete(LIST)
        assert caught.value.passing
        await other.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("content", [None, "{", "a: 1", "apiVersion: v1\ncontexts: []"])
def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"config.*doesn't name a cluster") as caught:
        asyncio.run(ApiClient.open(str(path)))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_an_informer_knows_the_objects_through_every_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "MAX_BACKOFF_SECONDS", 0.3)

    async def scenario(server: Scripted, connection: ApiClient) -> None:
        received: list[tuple[str, Any, Any]] = []
        for name in "abcde":
            server.put(name, 1)
        informer = Informer[int](
            connection, LIST, lambda item: item["value"], lambda *change: received.append(change)
        )
        await informer.start()
        assert len(informer.items) == 5
        assert informer.lists == 3  # pages
        server.put("a", 2)
        server.remove("b", 9)
        server.put("f", 1)
        await wait_until_async(lambda: "n/f" in informer.items and "n/b" not in informer.items)
        # Its last state is reported before its deletion.
        assert [one for one in received if one[0] == "n/b"] == [
            ("n/b", None, 1),
            ("n/b", 1, 9),
            ("n/b", 9, None),
        ]
        # The connection breaks: the watch resumes, and lists nothing.
        server.cut.set()
        server.put("a", 3)
        await wait_until_async(lambda: informer.items["n/a"] == 3)
        assert informer.lists == 3
        # The server forgets the position, and fails meanwhile: everything is listed again.
        server.cut.set()
        server.faults = [web.Response(status=500), web.Response(status=429)]
        server.remove("c", 1)
        server.put("d", 7)
        server.forget()
        await wait_until_async(
            lambda: informer.items.get("n/d") == 7 and "n/c" not in informer.items
        )
        assert informer.lists > 3
        assert received.count(("n/c", 1, None)) == 1
        assert informer.items == {
            "n/a": 3,
            "n/d": 7,
            "n/e": 1,
            "n/f": 1,
        }
        await informer.close()

    run(tmp_path, scenario)


def test_a_watch_that_fails_is_disconnected_at_once(tmp_path: Path) -> None:
    async def scenario(server: Scripted, connection: ApiClient) -> None:
        ended = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            if not request.query.get("watch"):
                meta = {"resourceVersion": "1"}
                return web.json_response({"metadata": meta, "items": []})
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'{"type": "ERROR", "object": {"code": 410}}\n')
            try:
                while True:
                    await asyncio.sleep(0.01)
                    await response.write(b"{}\n")
            finally:
                ended.set()

        server.answer = answer  # type: ignore[method-assign]
        informer = Informer[int](connection, LIST, lambda item: item["value"])
        with pytest.raises(ApiError) as caught:
            await informer._watch()
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            await ended.wait()
        assert caught.value.status == 410

    run(tmp_path, scenario)


def test_a_lease_has_one_holder_and_is_free_without_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowprice.kubernetes.lease.LEASE_DURATION_SECONDS", 5)
    monkeypatch.setattr("shadowprice.kubernetes.lease.RENEW_DEADLINE_MARGIN_SECONDS", 1.0)
    monkeypatch.setattr("shadowprice.kubernetes.lease.RENEW_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr("shadowprice.kubernetes.lease.INITIAL_POLL_SECONDS", 0.02)

    async def scenario(server: Scripted, connection: ApiClient) -> None:
        leases = Leases()
        server.answer = leases.answer  # type: ignore[method-assign]
        one, two = (Lease(connection, "n", "lease", name) for name in ("one", "two"))
        assert await one.acquire()
        assert not await two.acquire()
        await one.release()
        assert await two.acquire()
        # The holder ends without releasing it: it is free after its time.
        assert two._renewing is not None
        two._renewing.cancel()
        assert await one.acquire(60.0)
        # It can't be renewed: the holder finds out by itself.
        leases.down = True
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            await one.lost.wait()
        await one.release()

    run(tmp_path, scenario)


def test_a_lease_is_taken_at_once_from_whom_is_known_to_do_nothing_by_it(tmp_path: Path) -> None:
    async def scenario(server: Scripted, connection: ApiClient) -> None:
        server.answer = Leases().answer  # type: ignore[method-assign]
        one, two = (Lease(connection, "n", "lease", name) for name in ("one", "two"))
        assert await one.acquire()
        assert not await two.acquire(0.1, is_deposed=lambda holder: holder == "other")
        assert await two.acquire(0.1, is_deposed=lambda holder: holder == "one")
        assert two.epoch > one.epoch
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):  # it learns that with its next renewal
            await one.lost.wait()
        await one.release()
        assert two.holds()
        await two.release()

    run(tmp_path, scenario)


def test_a_lease_is_acquired_by_short_attempts_once_it_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shadowprice.kubernetes.lease.LEASE_DURATION_SECONDS", 6)

    async def scenario(server: Scripted, connection: ApiClient) -> None:
        server.answer = Leases().answer  # type: ignore[method-assign]
        other = Lease(connection, "n", "s-executor", "other")
        assert await other.acquire()
        assert other._renewing is not None
        other._renewing.cancel()  # its process was killed
        lease = ExecutorLease("s", None)
        attempts = 0
        while lease.lost:
            attempts += 1
            await lease.acquire(connection, "n", 0.1)
        assert attempts > 1
        assert lease.holds()
        await lease.release()

    run(tmp_path, scenario)


def test_a_lease_in_a_missing_namespace_is_no_second_service(tmp_path: Path) -> None:
    async def scenario(server: Scripted, connection: ApiClient) -> None:
        async def answer(request: web.Request) -> web.Response:
            told = {"reason": "NotFound", "message": 'namespaces "n" not found'}
            return web.json_response(told, status=404)

        server.answer = answer  # type: ignore[method-assign]
        with pytest.raises(ApiError, match="the namespace n of the lease lease doesn't exist"):
            await Lease(connection, "n", "lease", "one").acquire()

    run(tmp_path, scenario)


def test_a_lease_that_was_created_again_gets_a_higher_epoch(tmp_path: Path) -> None:
    async def scenario(server: Scripted, connection: ApiClient) -> None:
        server.answer = Leases().answer  # type: ignore[method-assign]
        lease = Lease(connection, "n", "lease", "one", above=41)
        assert await lease.acquire()
        assert lease.epoch == 42
        await lease.release()
        lease = Lease(connection, "n", "lease", "one", above=41)
        assert await lease.acquire()
        assert lease.epoch > 42
        await lease.release()

    run(tmp_path, scenario)

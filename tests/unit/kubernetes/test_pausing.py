"""Backoff up to a limit, watches with it, and the number of attempts that it allows."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backoffs import max_attempts
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until_async

pytest.importorskip("kubernetes_asyncio")

from aiohttp import web

from shadowprice.executors.kubernetes import pod_logs
from shadowprice.executors.kubernetes.pod_logs import PodLogFollower
from shadowprice.kubernetes import connection as connections
from shadowprice.kubernetes import informer as informers
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.informer import Informer
from shadowprice.kubernetes.pausing import JITTER, Backoff
from tests.unit.kubernetes.apiserver import Scripted, served


@given(st.floats(0.01, 5.0), st.floats(1.0, 50.0), st.floats(0.0, 1000.0))
def test_no_more_attempts_fit_into_a_time_than_stated(
    first: float, factor: float, span: float
) -> None:
    longest = first * factor
    pauses, at, count = Backoff(first, longest), 0.0, 0
    while at <= span and count < 10_000:
        count += 1
        pause = pauses.record_failure()
        assert (1 - JITTER) * first <= pause <= longest
        at += pause
    if count < 10_000:
        assert count <= max_attempts(first, longest, span)


def test_backoff_doubles_to_its_limit_and_is_reset() -> None:
    pauses = Backoff(1.0, 8.0)
    assert pauses.over
    for bound in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert (1 - JITTER) * bound <= pauses.record_failure() <= bound
    assert not pauses.over
    pauses.reset()
    assert pauses.over
    assert pauses.record_failure() <= 1.0


def follower(connection: object, folder: Path) -> PodLogFollower:
    return PodLogFollower(connection, "/api/v1/things", folder, "worker-0", 1000, "")  # type: ignore[arg-type]  # a real one, by another fixture


def test_a_log_that_fails_is_fetched_less_and_less_often(tmp_path: Path) -> None:
    async def run_scenario() -> None:
        server = Scripted()
        async with served(server, tmp_path) as connection:
            server.faults = [web.Response(status=500) for _ in range(1000)]
            looked = follower(connection, tmp_path / "logs")
            refused, began = 0, time.monotonic()
            while refused < 3 or time.monotonic() - began < 4.0:
                try:
                    await looked.fetch_new()
                except ApiError:
                    refused += 1
                await asyncio.sleep(0.01)
            spent = time.monotonic() - began
        assert 3 <= refused == len(server.requests)
        assert (
            refused
            <= max_attempts(
                pod_logs.MIN_FETCH_INTERVAL_SECONDS, pod_logs.MAX_FETCH_BACKOFF_SECONDS, spent
            )
            < spent / 0.3 / 2
        )

    asyncio.run(run_scenario())


def test_a_stream_that_breaks_again_and_again_is_begun_ever_less(tmp_path: Path) -> None:
    async def run_scenario() -> None:
        server = Scripted()
        async with served(server, tmp_path) as connection:
            server.faults = [web.Response(status=502) for _ in range(1000)]
            began, streamed = time.monotonic(), follower(connection, tmp_path / "logs")
            task = asyncio.create_task(streamed.follow(asyncio.Event()))
            await asyncio.sleep(4.0)
            await wait_until_async(lambda: len(server.requests) >= 3)
            assert not task.done()
            await streamed.fetch_new()  # it is watched, without a request of its own
            spent = time.monotonic() - began
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (
            3
            <= len(server.requests)
            <= max_attempts(
                pod_logs.MIN_FETCH_INTERVAL_SECONDS, pod_logs.MAX_FETCH_BACKOFF_SECONDS, spent
            )
        )

    asyncio.run(run_scenario())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2026-11-22T14:00:05.1+02:00", "2026-11-22T14:00:05.12+02:00"),  # no trailing zeros
        ("2026-11-01T01:59:59-07:00", "2026-11-01T01:00:00.5-08:00"),  # the end of summer time
        ("2026-11-22T12:00:05.999999999Z", "2026-11-22T12:00:06Z"),
    ],
)
def test_a_log_in_local_time_is_continued_after_its_last_line(
    tmp_path: Path, first: str, second: str
) -> None:
    async def whole() -> None:
        server = Scripted()
        async with served(server, tmp_path) as connection:
            log = follower(connection, tmp_path / "logs")
            server.faults = [
                web.Response(text=f"{first} one\n{first} two\n"),
                web.Response(text=f"{first} one\n{first} two\n{second} three\n"),
            ]
            await log._fetch(follow=False)
            await log.fetch_rest(WAIT_LIMIT_SECONDS)
            assert log.tail() == ("one", "two", "three")
            since = datetime.fromisoformat(first).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            assert quote(since) in server.requests[1].replace("%3A", ":").replace(":", "%3A")

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("fetched", "last", "expected"),
    [
        ([], ["05 four", "06 five"], ["MARK", "four", "five"]),
        (["01 one"], ["05 four", "06 five"], ["one", "MARK", "four", "five"]),
        (["01 one"], ["01 one", "06 five"], ["one", "five"]),
    ],
)
def test_end_of_a_log_that_is_not_fetched_in_time_is_kept(
    tmp_path: Path, fetched: list[str], last: list[str], expected: list[str]
) -> None:
    mark = "[some output may be missing here: it could not be fetched in time]"

    def text(lines: list[str]) -> str:
        return "".join(f"2026-11-22T12:00:{line}\n".replace(" ", "Z ") for line in lines)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "tailLines" in request.query:
            return web.Response(text=text(last))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(text(fetched).encode())
        await asyncio.sleep(WAIT_LIMIT_SECONDS)  # its node returns nothing more
        return response

    async def scenario() -> None:
        server = Scripted()
        server.answer = answer  # type: ignore[method-assign]
        async with served(server, tmp_path) as connection:
            log = follower(connection, tmp_path / "logs")
            following = asyncio.create_task(log._fetch(follow=False))
            await wait_until_async(lambda: len(log.tail()) == len(fetched))
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await log.fetch_rest(0.1)
            assert log.complete
            assert log.tail() == tuple(mark if line == "MARK" else line for line in expected)

    asyncio.run(scenario())


def test_watches_that_end_as_they_begin_are_begun_ever_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may end every connection at once, with nothing wrong in its response."""
    monkeypatch.setattr(informers, "INITIAL_BACKOFF_SECONDS", 0.1)

    async def run_scenario() -> None:
        server = Scripted()
        async with served(server, tmp_path) as connection:
            informer = Informer[int](connection, "/api/v1/things", lambda item: item["value"])
            await informer.start()
            server.faults = [web.Response(text="") for _ in range(1000)]
            began = time.monotonic()
            server.cut.set()
            await asyncio.sleep(3.0)
            await wait_until_async(lambda: informer.watches >= 3)
            watches = informer.watches
            spent = time.monotonic() - began
            await informer.close()
        assert watches <= 2 + max_attempts(0.1, informers.MAX_BACKOFF_SECONDS, spent)

    asyncio.run(run_scenario())


class HeldServer(Scripted):
    """Holds its responses until `go`, and counts concurrent requests."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = self.most = 0
        self.go = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            await self.go.wait()
        self.waiting -= 1
        return await super().answer(request)


def test_a_server_has_so_many_requests_at_a_time_and_urgent_ones_do_not_wait(
    tmp_path: Path,
) -> None:
    async def run_scenario() -> None:
        server = HeldServer()
        async with served(server, tmp_path) as connection:
            jobs = [
                asyncio.create_task(connection.get("/api/v1/things"))
                for _ in range(4 * connections.MAX_INFLIGHT_REQUESTS)
            ]
            await wait_until_async(lambda: server.waiting == connections.MAX_INFLIGHT_REQUESTS)
            urgent = asyncio.create_task(connection.request("GET", "/api/v1/things", urgent=True))
            await wait_until_async(lambda: server.waiting == connections.MAX_INFLIGHT_REQUESTS + 1)
            server.go.set()
            await asyncio.gather(urgent, *jobs)
            assert server.most == connections.MAX_INFLIGHT_REQUESTS + 1

    asyncio.run(run_scenario())

"""The event stream alone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from shadowprice.client.clients import SseDecoder
from shadowprice.rest import StoredEvent
from shadowprice.service import event_stream
from shadowprice.service.event_stream import (
    MAX_SUBSCRIBERS,
    MAX_TENANT_SUBSCRIBERS,
    OPERATOR_SUBSCRIBERS,
    EventBroadcaster,
    keep_alive,
)
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.durable_state import StreamEvent
from tests.support.waiting import WAIT_LIMIT_SECONDS


def test_keepalives_have_the_position_to_resume_without_visible_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.0)
    monkeypatch.setattr(event_stream, "AUTH_RECHECK_SECONDS", 0.01)

    def entry(number: int, tenant: str) -> StoredEvent:
        at = datetime(2026, 11, 26, tzinfo=UTC)
        return StoredEvent(id=number, at=at, kind="a", job="a", tenant=tenant, data={})

    entries = [entry(number, "theirs") for number in range(1, 2_001)] + [entry(2_001, "mine")]
    hub = EventBroadcaster(lambda after: entries[after : after + 500], last=2_001)

    async def scenario() -> list[bytes]:
        stream = hub.follow("mine", 0)
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            chunks = [await anext(stream) for _ in range(6)]
            hub.publish([StreamEvent(2_002, 0, "a", "a", 1, "theirs", {}, decision=False)])
            hub.deliver()
            return [*chunks, await anext(stream)]

    first, *quiet, last, later = asyncio.run(scenario())
    assert first.startswith(b"retry:")
    assert quiet == [keep_alive(number) for number in (500, 1_000, 1_500, 2_000)]
    assert last.startswith(b"id: 2001\n")
    assert later == keep_alive(2_002)
    decoder = SseDecoder(2_001)
    assert not [event for line in later.decode().split("\n") for event in decoder.feed(line)]
    assert decoder.last == 2_002


def test_subscribers_resume_from_the_store_after_a_resync() -> None:
    """A failed commit may have stored an event that was never broadcast."""

    def stored(number: int) -> StoredEvent:
        at = datetime(2026, 11, 26, tzinfo=UTC)
        return StoredEvent(id=number, at=at, kind="a", job="a", tenant=None, data={})

    entries = [stored(number) for number in range(1, 4)]
    hub = EventBroadcaster(lambda after: [entry for entry in entries if entry.id > after], last=1)

    async def scenario() -> tuple[list[bytes], bytes]:
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            live = hub.follow(None, None)
            assert await anext(live) == b"retry: 2000\nid: 1\n\n"
            hub.publish([StreamEvent(2, 0, "a", "a", 1, None, {}, decision=False)])
            hub.deliver()
            hub.resync(9)
            rest = [chunk async for chunk in live]
            assert not hub.subscribers
            resumed = hub.follow(None, 2)
            assert await anext(resumed) == b"retry: 2000\n\n"  # not beyond the missed events
            return rest, await anext(resumed)

    rest, missed = asyncio.run(scenario())
    assert [chunk.split(b"\n")[0] for chunk in rest] == [b"id: 2"]
    assert missed.startswith(b"id: 3\n")
    assert hub.last == 9


def test_a_stream_that_lacks_events_gives_no_later_position_to_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.0)
    monkeypatch.setattr(event_stream, "AUTH_RECHECK_SECONDS", 0.01)
    hub = EventBroadcaster(lambda _after: [], last=1)

    async def scenario() -> list[bytes]:
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            live = hub.follow(None, None)
            chunks = [await anext(live), await anext(live)]
            waiting = asyncio.ensure_future(anext(live))
            await asyncio.sleep(0)
            hub.resync(9)
            with pytest.raises(StopAsyncIteration):
                chunks.append(await waiting)
            return chunks

    assert asyncio.run(scenario()) == [b"retry: 2000\nid: 1\n\n", keep_alive(1)]


def test_resumed_stream_delivers_each_event_once() -> None:
    """Also those that are delivered before the subscriber reads the missed ones."""
    entries: list[StoredEvent] = []
    hub = EventBroadcaster(lambda after: [entry for entry in entries if entry.id > after])

    def publish(number: int) -> None:
        at = datetime(2026, 11, 26, tzinfo=UTC)
        entries.append(StoredEvent(id=number, at=at, kind="a", job="a", tenant=None, data={}))
        hub.publish([StreamEvent(number, 0, "a", "a", 1, None, {}, decision=False)])

    async def scenario() -> list[bytes]:
        publish(1)
        stream = hub.follow(None, 0)
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            chunks = [await anext(stream)]
            publish(2)
            hub.deliver()
            chunks.append(await anext(stream))
            publish(3)
            hub.deliver()
            return [*chunks, await anext(stream), await anext(stream)]

    text = b"".join(asyncio.run(scenario()))
    assert [line for line in text.splitlines() if line.startswith(b"id: ")] == [
        b"id: 1",
        b"id: 2",
        b"id: 3",
    ]


def test_streams_are_limited_per_tenant_and_reserved_for_operators() -> None:
    hub = EventBroadcaster(lambda _after: [])

    async def scenario() -> None:
        async with AsyncExitStack() as streams:

            async def subscribe(tenant: str | None) -> None:
                hub.check_limits(tenant)
                stream = hub.follow(tenant, None)
                streams.push_async_callback(stream.aclose)  # type: ignore[attr-defined]  # a generator
                await anext(stream)

            async def subscribe_often(tenant: str) -> int:
                for number in range(MAX_TENANT_SUBSCRIBERS + 1):
                    try:
                        await subscribe(tenant)
                    except ProblemError:
                        return number
                raise AssertionError("no limit")

            for number in range(8):
                assert await subscribe_often(f"tenant-{number}") == MAX_TENANT_SUBSCRIBERS
            # However many tenants read all that they get, a later one gets some.
            numbers = [await subscribe_often(f"tenant-{number}") for number in range(8, 13)]
            assert numbers == [50, 25, 13, 6, 3]
            await subscribe("late")
            while hub.subscribers < MAX_SUBSCRIBERS - OPERATOR_SUBSCRIBERS:
                await subscribe(f"another-{hub.subscribers}")
            hub.check_limits("one more")
            for _ in range(OPERATOR_SUBSCRIBERS):
                await subscribe(None)
            with pytest.raises(ProblemError, match="1000 subscribers"):
                await subscribe(None)
        hub.check_limits("late")

    asyncio.run(scenario())

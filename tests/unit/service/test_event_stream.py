"""The event stream by itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from shadowprice.rest.jobs import StoredEvent
from shadowprice.service.event_stream import HEARTBEAT_FRAME, EventBroadcaster
from tests.support.waiting import WAIT_LIMIT_SECONDS


def test_who_catches_up_hears_something_though_nothing_of_it_is_theirs() -> None:
    def entry(number: int, tenant: str) -> StoredEvent:
        at = datetime(2026, 11, 26, tzinfo=UTC)
        return StoredEvent(id=number, at=at, kind="a", job="a", tenant=tenant, data={})

    entries = [entry(number, "theirs") for number in range(1, 2_001)] + [entry(2_001, "mine")]
    hub = EventBroadcaster(lambda after, _: entries[after : after + 500])
    hub.last = 2_001

    async def scenario() -> list[bytes]:
        stream = hub.follow("mine", 0)
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            return [await anext(stream) for _ in range(6)]

    first, *quiet, last = asyncio.run(scenario())
    assert first.startswith(b"retry:")
    assert quiet == [HEARTBEAT_FRAME] * 4
    assert last.startswith(b"id: 2001\n")

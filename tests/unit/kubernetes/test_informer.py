"""A watch of a list ends on request, and so does the task that requests it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shadowprice.kubernetes.informer import Informer
from tests.support.waiting import WAIT_LIMIT_SECONDS


class Lingering:
    """A server whose watches take a moment to end."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()

    async def pages(self, path: str, **query: object) -> Any:
        yield {"items": [], "metadata": {"resourceVersion": "1"}}

    async def lines(self, path: str, **query: object) -> Any:
        try:
            await asyncio.sleep(60.0)
            yield b""
        finally:
            self.ending.set()
            await asyncio.sleep(0.2)


def test_a_task_cancelled_while_it_closes_an_informer_ends() -> None:
    """A service that was stopped at this moment never ended."""

    async def scenario() -> None:
        server = Lingering()
        informer: Informer[str] = Informer(server, "/api/v1/pods", str)  # type: ignore[arg-type]
        await informer.start()
        await asyncio.sleep(0)  # it watches
        closing = asyncio.create_task(informer.close())
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            await server.ending.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                await closing

    asyncio.run(scenario())

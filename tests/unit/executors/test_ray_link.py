"""What the service asks of the process that speaks to Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shadowprice.executors.ray.bridge_client import BridgeClient
from tests.support.waiting import WAIT_LIMIT_SECONDS


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BridgeClient:
    """A bridge that answers with what it was asked: there ``is`` is the answer."""
    begin = asyncio.create_subprocess_exec

    async def echo(*_: str, **more: Any) -> asyncio.subprocess.Process:
        more.pop("pass_fds")
        return await begin("cat", **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", echo)
    return BridgeClient(tmp_path / "log", lambda _: None)


def test_one_who_asks_is_cancelled_even_as_the_answer_comes(link: BridgeClient) -> None:
    async def scenario() -> None:
        await link.open(0)

        async def follow() -> None:
            await link.call("nodes", 30.0, **{"is": 1})
            await asyncio.sleep(600)

        following = asyncio.create_task(follow())
        while not link._pending:
            await asyncio.sleep(0)
        (requested,) = link._pending.values()
        requested.add_done_callback(lambda _: following.cancel())
        done, _ = await asyncio.wait([following], timeout=WAIT_LIMIT_SECONDS)
        assert done
        assert following.cancelled()
        await link.close()

    asyncio.run(scenario())

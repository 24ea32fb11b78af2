"""Requests of the service to the process that connects to Ray."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from shadowprice.executors.ray.bridge_client import BridgeClient
from tests.support.waiting import WAIT_LIMIT_SECONDS


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BridgeClient:
    """A bridge that responds with its request: ``is`` compares both."""
    begin = asyncio.create_subprocess_exec

    async def echo(*_: str, **more: Any) -> asyncio.subprocess.Process:
        more.pop("pass_fds")
        return await begin("cat", **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", echo)
    return BridgeClient(tmp_path / "log", lambda _: None)


def test_a_request_is_cancelled_even_as_its_response_comes(link: BridgeClient) -> None:
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


@pytest.mark.parametrize("last", [{"do": "nodes"}, {"do": "call", "method": "stop"}])
def test_waiting_requests_do_not_delay_others(last: dict[str, Any]) -> None:
    pytest.importorskip("ray")
    from shadowprice.executors.ray import bridge

    slow: list[dict[str, Any]] = [{"do": name} for name in ("create", "clear", "collect")]
    slow += [{"do": "call", "method": method} for method in ("go", "retire")]
    release, answered = threading.Event(), threading.Event()

    def answer(request: dict[str, Any]) -> None:
        if request == last:
            answered.set()
        else:
            release.wait(WAIT_LIMIT_SECONDS)

    bridge.dispatch(map(json.dumps, [*slow * bridge.THREADS, last]), answer)
    try:
        assert answered.wait(WAIT_LIMIT_SECONDS)
    finally:
        release.set()

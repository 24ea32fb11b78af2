"""Tenants take turns at a resource that serves few requests at a time."""

from __future__ import annotations

import asyncio

import pytest

from shadowprice.service.problems import ProblemError
from shadowprice.service.turns import TenantTurns

MAX_WAITING = 4


class Requests:
    """Requests that hold their turn until they are released."""

    def __init__(self, width: int = 1) -> None:
        self.queue = TenantTurns(width, max_waiting=MAX_WAITING)
        self.served: list[str] = []
        self.release = asyncio.Semaphore(0)

    async def ask(self, tenant: str, name: str) -> None:
        async with self.queue.turn(tenant):
            self.served.append(name)
            await self.release.acquire()

    async def begin(self, *names: str) -> list[asyncio.Task[None]]:
        """Begin requests in this order; the first letter of a name is the tenant."""
        tasks = [asyncio.create_task(self.ask(name[0], name)) for name in names]
        await asyncio.sleep(0)
        return tasks


async def _end(requests: Requests, tasks: list[asyncio.Task[None]]) -> None:
    for _ in tasks:
        requests.release.release()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_tenants_take_turns() -> None:
    async def check() -> None:
        requests = Requests()
        tasks = await requests.begin("a1", "a2", "a3", "a4", "b1", "c1", "b2")
        await _end(requests, tasks)
        assert requests.served == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
        await _end(requests, await requests.begin("a5"))
        assert requests.served[-1] == "a5"

    asyncio.run(check())


def test_a_tenant_that_fills_its_share_of_the_queue_refuses_no_other() -> None:
    async def check() -> None:
        requests = Requests()
        # The first is served, the others wait.
        names = [f"a{index}" for index in range(MAX_WAITING + 1)]
        tasks = await requests.begin(*names)
        with pytest.raises(ProblemError, match="already wait"):
            await requests.ask("a", "refused")
        tasks += await requests.begin("b1")
        await _end(requests, tasks)
        assert sorted(requests.served) == sorted([*names, "b1"])

    asyncio.run(check())


def test_a_wide_queue_serves_several_at_once() -> None:
    async def check() -> None:
        requests = Requests(width=2)
        tasks = await requests.begin("a1", "a2", "a3", "b1")
        assert requests.served == ["a1", "a2"]
        await _end(requests, tasks)
        assert requests.served == ["a1", "a2", "a3", "b1"]
        await _end(requests, await requests.begin("a5", "a6"))
        assert requests.served[-2:] == ["a5", "a6"]

    asyncio.run(check())


def test_a_request_that_is_cancelled_while_it_waits_gives_up_its_turn() -> None:
    async def check() -> None:
        requests = Requests()
        first, second, third = await requests.begin("a1", "b1", "c1")
        second.cancel()
        await _end(requests, [first, second, third])
        assert requests.served == ["a1", "c1"]

    asyncio.run(check())


def test_a_request_that_is_cancelled_as_its_turn_begins_passes_the_turn_on() -> None:
    async def check() -> None:
        requests = Requests()

        async def ask_and_cancel() -> None:
            await requests.ask("a", "a1")
            # In the step of the event loop in which the turn of the second began
            second.cancel()

        first = asyncio.create_task(ask_and_cancel())
        await asyncio.sleep(0)
        second, third = await requests.begin("b1", "c1")
        await _end(requests, [first, second, third])
        assert requests.served == ["a1", "c1"]

    asyncio.run(check())

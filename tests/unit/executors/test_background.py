"""Background tasks: they restart after an error, which is reported until they recover."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging

import pytest

from shadowprice.executors import background as module
from shadowprice.executors.background import BackgroundTasks, run_all
from tests.support.waiting import wait_until_async

log = logging.getLogger("shadowprice.test")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "RECOVERED_AFTER_SECONDS", 0.1)


def test_a_step_that_fails_is_made_again_and_reported_until_one_does_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow machine must not let a step count as recovered, which would be logged again.
    monkeypatch.setattr(module, "RECOVERED_AFTER_SECONDS", 3600.0)
    counted: list[str] = []
    made = 0
    broken = True

    async def step() -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(0.001)
        if broken:
            raise KeyError("a bug")

    async def play() -> None:
        nonlocal broken
        background = BackgroundTasks(log, counted.append)
        task = background.spawn_repeating("resync", step, "polling")
        await wait_until_async(lambda: made > 5)
        assert background.health_error == "polling failed: KeyError: 'a bug'"
        assert not task.done()
        broken = False
        await wait_until_async(lambda: background.health_error is None)
        await background.end()
        assert task.cancelled()

    asyncio.run(play())
    assert set(counted) == {"resync"}
    assert len(counted) >= 5
    [said] = [
        record for record in caplog.records if record.levelno == logging.ERROR
    ]  # once, not each time
    assert said.exc_info is not None
    assert isinstance(said.exc_info[1], KeyError)


def test_a_slow_step_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    made = 0

    async def step() -> None:
        nonlocal made
        made += 1
        if made == 1:
            raise KeyError("once")
        await asyncio.sleep(3600.0)

    async def play() -> None:
        background = BackgroundTasks(log)
        background.spawn_repeating("watch", step, "following")
        await wait_until_async(lambda: made == 2)
        assert background.health_error is not None
        await wait_until_async(lambda: background.health_error is None)
        assert made == 2
        await background.end()

    asyncio.run(play())


def test_a_step_continues_if_what_it_waits_for_ends() -> None:
    made = 0

    async def step() -> bool:
        nonlocal made
        made += 1
        if made == 1:
            other = asyncio.ensure_future(asyncio.sleep(3600.0))
            asyncio.get_running_loop().call_soon(other.cancel)
            await other
        return True

    async def play() -> None:
        background = BackgroundTasks(log)
        await background.spawn_repeating("drive", step, "driving")
        assert background.health_error is None

    asyncio.run(play())
    assert made == 2


def test_the_death_of_one_that_is_not_made_again_is_reported_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def dies() -> None:
        raise KeyError("a bug")

    async def play() -> None:
        background = BackgroundTasks(log)
        await background.spawn("sweep", dies(), "sweeping", vital=False)
        assert background.health_error is None
        await background.spawn("mark", dies(), "marking the pod")
        assert background.health_error == "marking the pod ended: KeyError: 'a bug'"

    asyncio.run(play())
    assert [record.getMessage() for record in caplog.records] == [
        "sweeping ended: KeyError: 'a bug'",
        "marking the pod ended: KeyError: 'a bug'",
    ]


def test_all_end_whatever_one_raises() -> None:
    made: list[str] = []

    async def one() -> None:
        made.append("one")
        raise KeyError("one")

    def two() -> None:
        made.append("two")
        raise OSError("two")

    async def three() -> None:
        made.append("three")

    with pytest.raises(KeyError):
        asyncio.run(run_all(one, three))
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(run_all(one, two, three))
    assert [type(error) for error in raised.value.exceptions] == [KeyError, OSError]
    assert made == ["one", "three", "one", "two", "three"]


@pytest.mark.filterwarnings("error")
def test_work_that_is_cancelled_before_it_starts_is_closed() -> None:
    """Otherwise Python warns that its coroutine was never awaited."""
    started = False

    async def work() -> None:
        nonlocal started
        started = True

    async def play() -> None:
        background = BackgroundTasks(log, lambda _: None)
        coroutine = work()
        task = background.spawn("purge", coroutine, "purging")
        task.cancel()
        await background.end()
        await wait_until_async(lambda: inspect.getcoroutinestate(coroutine) == "CORO_CLOSED")

    asyncio.run(play())
    gc.collect()
    assert not started

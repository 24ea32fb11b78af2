"""Waiting for conditions, with a limit that only a hang reaches.

A test that drives processes must not fail because the machine is busy. It waits for what it needs
and asserts no elapsed time, unless elapsed time is what it tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

Value = TypeVar("Value")

WAIT_LIMIT_SECONDS: Final = 600.0
"""Timeout of every wait.

It is shorter than pytest's timeout, so that the wait fails first and names the missing condition.
"""

FIRST_POLL_SECONDS: Final = 0.01

MAX_POLL_SECONDS: Final = 0.2
"""Longest pause between two polls. A poll is often a request to a service in the same process, and
takes time from what the test waits for."""

POLL_GROWTH: Final = 1.3


def _no_details() -> object:
    return "the condition did not become true"


def wait_until(
    condition: Callable[[], Value], describe: Callable[[], object] = _no_details
) -> Value:
    """Poll a condition until it is true; return its value. Fail with `describe()` at the limit."""
    deadline, pause = time.monotonic() + WAIT_LIMIT_SECONDS, FIRST_POLL_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, describe()
        time.sleep(pause)
        pause = min(pause * POLL_GROWTH, MAX_POLL_SECONDS)
    return value


async def wait_until_async(
    condition: Callable[[], Value | Awaitable[Value]],
    describe: Callable[[], object] = _no_details,
    *,
    poll_seconds: float = 0.01,
) -> None:
    """Poll a condition, or a coroutine function, until it is true, without blocking the loop."""
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return
        assert time.monotonic() < deadline, describe()
        await asyncio.sleep(poll_seconds)

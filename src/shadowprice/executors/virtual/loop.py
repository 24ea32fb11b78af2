"""An event loop and a clock in simulated time."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

SECOND: Final = 1_000_000_000  # nanoseconds in a second

ORIGIN: Final = 1_800_000_000 * SECOND
"""Wall time at which a loop starts: a multiple of every slot length up to an hour."""

STARTED: Final = 3_600 * SECOND
"""Initial time of a loop: programs take time 0 for one that was long ago."""

MAX_STEPS_AT_ONCE: Final = 100_000
"""Turns of the loop without progress of time, above which tasks are in a livelock."""


class StalledError(RuntimeError):
    """Virtual time can't advance: no task waits for a timer, or tasks wake each other forever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer as soon as every task waits.

    A call for another thread runs inline, and its result arrives one turn later.
    """

    def __init__(self) -> None:
        self._elapsed = STARTED
        self._turns = 0
        self.advances = 0
        super().__init__(_Jump(self._advance))

    def time(self) -> float:
        """Return the loop's clock in seconds."""
        return self._elapsed / SECOND

    @property
    def elapsed(self) -> int:
        """The loop's clock in nanoseconds."""
        return self._elapsed

    def _advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise StalledError("every task waits, and none of them for a timer")
        if timeout > 0.0:
            # Rounded up, so that the timer is due afterwards.
            self._elapsed += math.ceil(timeout * SECOND)
            self.advances += 1
            self._turns = 0
            return
        self._turns += 1
        if self._turns > MAX_STEPS_AT_ONCE:
            raise StalledError(f"no time passed in {MAX_STEPS_AT_ONCE} turns of the loop")

    def run_in_executor(  # type: ignore[override]  # typeshed uses type variable tuples
        self, executor: Executor | None, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        """Run a function inline, and deliver its result in the next turn."""
        del executor
        future: asyncio.Future[Result] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_soon(_fail, future, error)
        else:
            self.call_soon(_finish, future, result)
        return future


class _Jump(selectors.SelectSelector):
    """Advances time instead of waiting for files: only the loop's own pipe is registered."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._pass = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._pass(timeout)
        return []


def _finish(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class VirtualClock:
    """Clocks of a machine in a loop's time, which starts at ``origin`` ns since 1970."""

    def __init__(self, loop: VirtualLoop, origin: int = ORIGIN) -> None:
        self._loop = loop
        self._origin = origin

    def wall(self) -> int:
        """Return the wall clock, in nanoseconds since 1970."""
        return self._origin + self._loop.elapsed - STARTED

    def physical(self) -> int:
        """Return the loop's clock in nanoseconds."""
        return self._loop.elapsed


def run_virtual(
    main: Callable[[VirtualClock], Coroutine[Any, Any, Result]], origin: int = ORIGIN
) -> Result:
    """Run a coroutine to its end in virtual time; raise `StalledError` if no timer is pending."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(main(VirtualClock(loop, origin)))

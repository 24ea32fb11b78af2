"""Background tasks whose unexpected errors are logged, counted and survived.

Without this module, such an error would silently end a task for good. Here it only fails one step.
The error is logged with its traceback and reported as a health error while it lasts, and the step
is retried.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from shadowprice.core.wording import escape_controls
from shadowprice.executors.contract import ignore_failure

RETRY_SECONDS: Final = 1.0  # seconds before a failed step is retried
RECOVERED_AFTER_SECONDS: Final = 5.0  # a retried step that runs longer counts as successful
RELOG_SECONDS: Final = 60.0  # seconds before the same error of a task is logged again
MAX_ERROR_CHARS: Final = 500  # maximum number of characters of a reported error

Result = TypeVar("Result")
Step = Callable[[], Awaitable[bool | None]]  # of a repeated task; returns true for the last step


def monotonic() -> float:
    """Return the event loop's time, which may be virtual; without a loop, monotonic time."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str
    logged: float  # monotonic time when it was last logged
    vital: bool  # whether it is a health error


class BackgroundTasks:
    """The background tasks of one component; ``failed`` receives the kind of each failure."""

    def __init__(self, log: logging.Logger, failed: Callable[[str], None] = ignore_failure) -> None:
        self._log = log
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures: dict[str, _Failure] = {}

    @property
    def health_error(self) -> str | None:
        """The current failure, for people; None if healthy."""
        return next((failure.text for failure in self._failures.values() if failure.vital), None)

    # ------------------------------------------------------------------ starting

    def spawn(
        self, kind: str, work: Coroutine[Any, Any, None], description: str, *, vital: bool = True
    ) -> asyncio.Task[None]:
        """Start a task that runs once; a failure remains a health error.

        ``kind`` is one word for metrics; ``description`` is a phrase for messages, such as
        ``marking the pod``. If ``vital`` is false, a failure is only logged and counted.
        """
        task = self.start(self._run_guarded(kind, work, description, vital=vital))
        # A task that is cancelled before its first step never awaits the work.
        task.add_done_callback(lambda _: work.close())
        return task

    def spawn_repeating(
        self, kind: str, step: Step, description: str, pause: float = 0.0
    ) -> asyncio.Task[None]:
        """Start a task that repeats a step; see `repeat`."""
        return self.start(self.repeat(kind, step, description, pause))

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task whose errors its caller handles; `end` cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------ repeating

    async def repeat(self, kind: str, step: Step, description: str, pause: float = 0.0) -> None:
        """Repeat a step until it returns True; a failed step is retried.

        ``kind`` and ``description`` are as in `spawn`. ``pause`` is in seconds, before every step;
        after a failure it is at least `RETRY_SECONDS`.
        """
        wait = pause
        try:
            while True:
                await asyncio.sleep(wait)
                is_last = await self.attempt(kind, step, description)
                if is_last:
                    return
                wait = pause if is_last is not None else max(pause, RETRY_SECONDS)
        finally:
            self._failures.pop(description, None)

    async def attempt(self, kind: str, step: Step, description: str) -> bool | None:
        """Run a step once; return whether it was the last, or None if it failed."""
        recovery_timer = None
        if description in self._failures:
            recovery_timer = asyncio.get_running_loop().call_later(
                RECOVERED_AFTER_SECONDS, self._on_success, description
            )
        try:
            is_last = bool(await step())
        except (asyncio.CancelledError, Exception) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # this task is cancelled, and not only one that the step awaited
            self._record_failure(kind, error, f"{description} failed", description)
        else:
            self._on_success(description)
            return is_last
        finally:
            if recovery_timer is not None:
                recovery_timer.cancel()
        return None

    async def _run_guarded(
        self, kind: str, work: Coroutine[Any, Any, None], description: str, *, vital: bool
    ) -> None:
        try:
            await work
        except Exception as error:
            self._record_failure(kind, error, f"{description} ended", description, vital=vital)
        else:
            self._on_success(description)

    # ------------------------------------------------------------------ failures

    def _record_failure(
        self, kind: str, error: BaseException, outcome: str, description: str, *, vital: bool = True
    ) -> None:
        message = escape_controls(f"{type(error).__name__}: {error}")[:MAX_ERROR_CHARS]
        text, now = f"{outcome}: {message}", monotonic()
        previous = self._failures.get(description)
        logged = now if previous is None else previous.logged
        # A retried step fails every second, so the same error isn't logged each time.
        if previous is None or previous.text != text or now - logged > RELOG_SECONDS:
            logged = now
            self._log.error("%s", text, exc_info=error)
        self._failures[description] = _Failure(text, logged, vital)
        try:
            self._failed(kind)
        except Exception:  # a failing counter must not end the task
            self._log.exception("failed to count an error")

    def _on_success(self, description: str) -> None:
        if self._failures.pop(description, None) is not None:
            self._log.warning("%s succeeds again", description)

    # ------------------------------------------------------------------ ending

    async def end(self) -> None:
        """Cancel all tasks and wait for them; exceptions are dropped."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failures.clear()


async def run_all(*steps: Callable[[], Awaitable[None] | None]) -> None:
    """Run every step of a shutdown in order; raise the exceptions of steps after all of them."""
    errors: list[Exception] = []
    for step in steps:
        try:
            result = step()
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # the other steps must run too
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several components failed during shutdown", errors)

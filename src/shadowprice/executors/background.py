"""Tasks that nobody waits for: what one dies of is logged and told, and no other ends with it.

An unforeseen error would end such a task for good, and nobody would see it. Here it costs one step.
The error is logged with its traceback and reported as a health error while it lasts, and the step
is repeated.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core.wording import escaped
from shadowprice.executors.contract import unheeded

RETRY: Final = 1.0
"""Seconds before a step that failed is made again."""

LASTING: Final = 5.0
"""Seconds after which a step that is still being made, after one that failed, goes well."""

REMIND: Final = 60.0
"""Seconds before the same error of the same task is logged once more."""

LONGEST: Final = 500
"""Characters of an error that are told, at most."""


def monotonic() -> float:
    """Return the running event loop's clock, by which asyncio waits; without a loop the system's.

    Where that loop is virtual, so are the waits.
    """
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Failure:
    """What fails just now; ``logged`` is when that was last logged, on the monotonic clock."""

    text: str
    logged: float
    vital: bool


class Background:
    """The tasks of one part of a program.

    Parameters
    ----------
    log : Logger
        Where it is said what failed.
    failed : callable
        Told each time which kind of task failed, in a word, as measures count it.
    """

    def __init__(self, log: logging.Logger, failed: Callable[[str], None] = unheeded) -> None:
        self._log = log
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, _Failure] = {}

    @property
    def health_error(self) -> str | None:
        """What fails just now, for people; None where all goes on."""
        return next((one.text for one in self._failures.values() if one.vital), None)

    # ------------------------------------------------------------------ beginning

    def spawn(
        self, what: str, work: Coroutine[Any, Any, None], said: str, *, vital: bool = True
    ) -> asyncio.Task[None]:
        """Begin a task that comes to an end; if it dies, that is a health error from then on.

        Parameters
        ----------
        what : str
            Its kind, in a word.
        work : coroutine
            What it does.
        said : str
            What that is, for people: ``marking the pod``.
        vital : bool
            Whether the part cannot do its work without it; what is not vital is only logged and
            counted.
        """
        return self._begin(self._guarded(what, work, said, vital=vital))

    def again(
        self,
        what: str,
        step: Callable[[], Awaitable[bool | None]],
        said: str,
        pause: float = 0.0,
    ) -> asyncio.Task[None]:
        """Begin a task that makes a step again and again; see `repeat`."""
        return self._begin(self.repeat(what, step, said, pause))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------ going on

    async def repeat(
        self,
        what: str,
        step: Callable[[], Awaitable[bool | None]],
        said: str,
        pause: float = 0.0,
    ) -> None:
        """Make a step again and again, whatever goes wrong in it.

        Parameters
        ----------
        what, said
            As of `spawn`.
        step : callable
            Makes one step; returns True after the last.
        pause : float
            Seconds before every step; `RETRY` at least before one that follows a failure.
        """
        wait = pause
        try:
            while True:
                await asyncio.sleep(wait)
                over = await self._tried(what, step, said)
                if over:
                    return
                wait = pause if over is not None else max(pause, RETRY)
        finally:
            self._failures.pop(said, None)

    async def attempt(
        self, what: str, step: Callable[[], Awaitable[bool | None]], said: str
    ) -> None:
        """Make a step once, whatever goes wrong in it; a later one tells whether it goes well."""
        await self._tried(what, step, said)

    async def _tried(
        self, what: str, step: Callable[[], Awaitable[bool | None]], said: str
    ) -> bool | None:
        """Make a step; whether it was the last, None where it failed."""
        lasting = None
        if said in self._failures:
            lasting = asyncio.get_running_loop().call_later(LASTING, self._well, said)
        try:
            over = bool(await step())
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._note(what, error, f"{said} failed", said)  # what it waited for was ended, not it
        except Exception as error:
            self._note(what, error, f"{said} failed", said)
        else:
            self._well(said)
            return over
        finally:
            if lasting is not None:
                lasting.cancel()
        return None

    async def _guarded(
        self, what: str, work: Coroutine[Any, Any, None], said: str, *, vital: bool
    ) -> None:
        try:
            await work
        except Exception as error:
            self._note(what, error, f"{said} ended", said, vital=vital)
        else:
            self._well(said)

    # ------------------------------------------------------------------ what failed

    def _note(
        self, what: str, error: BaseException, how: str, said: str, *, vital: bool = True
    ) -> None:
        told = escaped(f"{type(error).__name__}: {error}")[:LONGEST]
        text, now = f"{how}: {told}", monotonic()
        known = self._failures.get(said)
        logged = now if known is None else known.logged
        if known is None or known.text != text or now - logged > REMIND:
            logged = now  # said once, and not at every try
            self._log.error("%s", text, exc_info=error)
        self._failures[said] = _Failure(text, logged, vital)
        try:
            self._failed(what)
        except Exception:  # who counts is not to end what is watched
            self._log.exception("what failed could not be counted")

    def _well(self, said: str) -> None:
        if self._failures.pop(said, None) is not None:
            self._log.warning("%s goes on", said)

    # ------------------------------------------------------------------ ending

    async def end(self) -> None:
        """End all tasks; whatever one raises on its way keeps no other from it."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failures.clear()


async def all_of(*steps: Callable[[], Awaitable[None] | None]) -> None:
    """Make every step of an ending, in order, whatever one of them raises.

    Raises
    ------
    Exception
        What a step raised; an `ExceptionGroup` where several did. All were made by then.
    """
    errors: list[Exception] = []
    for step in steps:
        try:
            made = step()
            if inspect.isawaitable(made):
                await made
        except Exception as error:  # the others are made all the same
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several parts did not end in order", errors)

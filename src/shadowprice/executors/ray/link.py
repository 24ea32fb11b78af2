"""The service's end of the bridge: a process that is asked things, and may die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from shadowprice.executors.contract import ExecutorError

log = logging.getLogger("shadowprice.executors")

LINE: Final = 32 << 20
"""Bytes of an answer, at most."""


class Link:
    """A bridge that runs.

    Parameters
    ----------
    log : Path
        Where it writes what it has to say.
    event : callable
        Called with each event.
    """

    def __init__(self, log: Path, event: Callable[[dict[str, Any]], None]) -> None:
        self._log = log
        self._event = event
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}

    @property
    def up(self) -> bool:
        """Whether it can be asked."""
        return self._reading is not None and not self._reading.done()

    async def open(self, keep: int) -> None:
        """Begin the process.

        Parameters
        ----------
        keep : int
            A descriptor that it holds as long as it lives.
        """
        with self._log.open("wb") as log:  # of the last one only
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "shadowprice.executors.ray.bridge",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                start_new_session=True,  # Ctrl-C is for the service
                pass_fds=(keep,),
                limit=LINE,
            )
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                told = json.loads(line)
                if "event" in told:
                    self._event(told)
                    continue
                future = self._asked.pop(told["id"], None)
                if future is None or future.done():
                    continue
                if "error" in told:
                    future.set_exception(BridgeError(told["error"], told["kind"]))
                else:
                    future.set_result(told["is"])
        except Exception:  # who sees to it that there is a link begins another
            log.exception("what the bridge told could not be taken in")
        finally:
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(BridgeError("the connection to Ray was lost", "Closed"))
            self._asked.clear()

    async def ask(self, what: str, limit: float | None = None, **more: Any) -> Any:
        """Return what the bridge answers.

        Parameters
        ----------
        what : str
            What it is to do.
        limit : float, optional
            Seconds that it has.
        **more
            What it has to know.

        Raises
        ------
        BridgeError
            If it cannot, or is gone.
        """
        if not self.up or self._process is None or self._process.stdin is None:
            raise BridgeError("there is no connection to Ray", "Closed")
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        request = json.dumps({"id": number, "do": what, **more})
        try:
            self._process.stdin.write(request.encode() + b"\n")
            await self._process.stdin.drain()
            async with asyncio.timeout(limit):  # not wait_for: it forgets to be cancelled
                return await future
        except TimeoutError:
            raise BridgeError(f"no answer within {limit:g} s", "Timeout") from None
        except OSError as error:
            raise BridgeError("the connection to Ray was lost", "Closed") from error
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    def last_words(self) -> str:
        """Return the last line that it wrote, for people."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


class BridgeError(ExecutorError):
    """The bridge could not do what it was asked.

    Parameters
    ----------
    message : str
        Why.
    kind : str
        The type of what went wrong there; ``Closed`` where the bridge is gone.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

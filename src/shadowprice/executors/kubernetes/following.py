"""The log of a pod, fetched piece by piece: each time from where the last piece ended.

A server tells a log from a moment on, in whole seconds, with the time of every line; what was
fetched already is known by that, and left out. What a node rotated away before it was fetched is
gone, and a line says so.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from shadowprice.executors.generations.logs import LogWriter
from shadowprice.executors.kubernetes import names
from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Pauses

OFTEN: Final = 0.3
"""Seconds between two looks at a log that somebody reads."""

SELDOM: Final = 10.0
"""Longest of the growing pauses after looks at a log that its node does not tell."""

_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:\d\d)")
_LONG: Final = 3600.0
_SHORT: Final = 30.0
"""Seconds without output in which a pod that is followed, or read, is believed to be there."""

_MISSING: Final = b"[some output is missing here: its node had removed it]\n"


class Follower:
    """Keeps what one pod writes.

    Parameters
    ----------
    connection : Connection
        To the server.
    path : str
        Of the pod.
    folder : Path
        Where logs are kept.
    process : str
        The process.
    limit : int
        Most bytes kept.
    secret : str
        What is starred out.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        folder: Path,
        process: str,
        limit: int,
        secret: str,
    ) -> None:
        self._connection = connection
        self._path = f"{path}/log"
        self._folder = folder
        self._process = process
        self._limit = limit
        self._secret = secret
        self._writer: LogWriter | None = None
        self._last = b""
        self._same = 0
        self._looked = float("-inf")
        self._pauses = Pauses(OFTEN, SELDOM)
        self._busy = asyncio.Lock()
        self._followed = False
        self.complete = False

    @property
    def some(self) -> bool:
        """Whether anything was fetched."""
        return bool(self._last)

    def tail(self) -> tuple[str, ...]:
        """Return the last lines."""
        return tuple(self._writer.tail()) if self._writer is not None else ()

    async def look(self) -> None:
        """Fetch what is new, unless that was done, or tried in vain, a moment ago.

        Raises
        ------
        ApiError
            If the server refuses, or does not answer.
        """
        recent = time.monotonic() - self._looked <= OFTEN
        if self.complete or self._followed or recent or not self._pauses.over:
            return
        try:
            await self._fetch(follow=False)
        except (ApiError, asyncio.CancelledError):  # who looks may not have waited any longer
            self._pauses.failed()
            raise
        self._pauses.succeeded()

    async def finish(self) -> None:
        """Fetch what is left of a pod that is over."""
        if not self.complete:
            await self._fetch(follow=False)
            self._end()

    async def follow(self, begun: asyncio.Event) -> None:
        """Fetch what comes until the pod ends.

        Parameters
        ----------
        begun : asyncio.Event
            Set once the node tells the log.
        """
        self._followed = True
        try:
            while not self.complete:
                since = time.monotonic()
                try:
                    await self._fetch(follow=True, begun=begun)
                    self._end()
                except ApiError as error:
                    if not error.passing:
                        return  # the pod is gone; what was fetched is what there is
                    if time.monotonic() - since > SELDOM:
                        self._pauses.succeeded()
                    await asyncio.sleep(self._pauses.failed())
        finally:
            self._followed = False
            begun.set()

    def _end(self) -> None:
        self.complete = True
        if self._writer is not None:
            self._writer.close()

    async def _fetch(self, *, follow: bool, begun: asyncio.Event | None = None) -> None:
        async with self._busy:
            query: dict[str, object] = {"container": names.CONTAINER, "timestamps": True}
            if follow:
                query["follow"] = True
            if self._last:
                query["sinceTime"] = self._last[:19].decode("ascii") + "Z"
            resumed, known, skipped = bool(self._last), self._same, 0
            before = self._last
            silence = _LONG if follow else _SHORT
            lines = self._connection.lines(self._path, silence=silence, answer=silence, **query)
            async for line in _begun(lines, begun):
                at, space, text = line.partition(b" ")
                if not space or _TIME.fullmatch(at) is None:
                    continue  # what a kubelet says of itself, no line of the log
                if resumed and (at < before or (at == before and skipped < known)):
                    skipped += at == before
                    continue
                if resumed and not skipped:
                    self._keep(_MISSING)
                resumed = False
                self._same = self._same + 1 if at == self._last else 1
                self._last = at
                self._keep(text)
            self._ready()
            self._looked = time.monotonic()

    def _ready(self) -> LogWriter:
        if self._writer is None:
            # What an earlier service had fetched is fetched again: places are counted from here.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in self._folder.glob(f"{self._process}.*.log"):
                old.unlink(missing_ok=True)
            self._writer = LogWriter(self._folder, self._process, self._limit, [self._secret])
        return self._writer

    def _keep(self, text: bytes) -> None:
        self._ready().feed(text)


async def _begun(lines: AsyncIterator[bytes], begun: asyncio.Event | None) -> AsyncIterator[bytes]:
    """Yield lines, and say when the first came."""
    async for line in lines:
        if begun is not None:
            begun.set()
        yield line

"""Logs of pods, fetched incrementally.

The API server returns a log from a given time in whole seconds, with a timestamp on every line.
Lines that were already fetched are recognized by their timestamps and skipped. If the node rotated
lines away before they were fetched, or is too slow, a line in the log marks the gap.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from shadowprice.executors.generations.logs import LogWriter
from shadowprice.executors.kubernetes import names
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError, ApiUnreachableError
from shadowprice.kubernetes.pausing import Backoff

MIN_FETCH_INTERVAL_SECONDS: Final = 0.3  # between two fetches of a log that is being read
MAX_FETCH_BACKOFF_SECONDS: Final = 10.0  # maximum backoff in seconds of fetches that fail

_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_SECOND: Final = 1_000_000_000
_FOLLOW_SILENCE_SECONDS: Final = 3600.0  # maximum silence of the stream of a followed log
_READ_SILENCE_SECONDS: Final = 30.0  # the same for a log that is read to its current end
MAX_LAST_LINES: Final = 200  # lines to fetch of a log that can't be fetched whole in time

LAST_LINES_TIMEOUT_SECONDS: Final = 5.0

_REMOVED: Final = b"[some output is missing here: its node had removed it]\n"
_SKIPPED: Final = b"[some output may be missing here: it could not be fetched in time]\n"


@dataclass(eq=False)
class PodLogFollower:
    """Fetches the log of one pod into ``folder``, of which ``limit`` bytes are kept."""

    connection: ApiClient
    path: str  # API path of the pod
    folder: Path
    process: str
    limit: int
    secret: str  # masked in the log
    complete: bool = False  # whether the log was fetched to its end
    _writer: LogWriter | None = None
    _last: int | None = None  # timestamp of the last line, in nanoseconds since 1970
    _last_count: int = 0  # number of lines with this timestamp
    _fetched_at: float = float("-inf")  # monotonic
    _backoff: Backoff = field(
        default_factory=lambda: Backoff(MIN_FETCH_INTERVAL_SECONDS, MAX_FETCH_BACKOFF_SECONDS)
    )
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _followed: bool = False  # whether `follow` runs

    @property
    def has_output(self) -> bool:
        """Whether any line was fetched."""
        return self._last is not None

    def tail(self) -> tuple[str, ...]:
        """Return the last lines."""
        return tuple(self._writer.tail()) if self._writer is not None else ()

    async def fetch_new(self) -> None:
        """Fetch new lines, unless a fetch succeeded or failed a moment ago."""
        recent = time.monotonic() - self._fetched_at <= MIN_FETCH_INTERVAL_SECONDS
        if self.complete or self._followed or recent or not self._backoff.over:
            return
        try:
            await self._fetch(follow=False)
        except (ApiError, asyncio.CancelledError):  # cancelled by the caller's timeout
            self._backoff.record_failure()
            raise
        self._backoff.reset()

    async def fetch_rest(self, timeout: float) -> None:
        """Fetch the rest of an ended pod's log, or its last lines if that takes too long.

        Raises `TimeoutError` if even the last lines take too long.
        """
        if self.complete:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._fetch(follow=False)
        except (ApiUnreachableError, TimeoutError):
            async with asyncio.timeout(LAST_LINES_TIMEOUT_SECONDS):
                await self._fetch(follow=False, last_lines=MAX_LAST_LINES)
        self._end()

    async def follow(self, started: asyncio.Event) -> None:
        """Fetch lines until the pod ends; set ``started`` at the first line, or at the end."""
        self._followed = True
        try:
            while not self.complete:
                since = time.monotonic()
                try:
                    await self._fetch(follow=True, started=started)
                    self._end()
                except ApiError as error:
                    if not error.passing:
                        return  # the pod is gone
                    if time.monotonic() - since > MAX_FETCH_BACKOFF_SECONDS:
                        self._backoff.reset()
                    await asyncio.sleep(self._backoff.record_failure())
        finally:
            self._followed = False
            started.set()

    def _end(self) -> None:
        self.complete = True
        if self._writer is not None:
            self._writer.close()

    async def _fetch(
        self, *, follow: bool, started: asyncio.Event | None = None, last_lines: int = 0
    ) -> None:
        """Append new lines to the log: until the pod ends if ``follow``, else the existing lines.

        ``last_lines`` is the maximum number of lines, 0 for all.
        """
        async with self._lock:
            query: dict[str, object] = {"container": names.CONTAINER, "timestamps": True}
            if follow:
                query["follow"] = True
            if last_lines:
                query["tailLines"] = last_lines
            before, count_before, skipped = self._last, self._last_count, 0
            if before is not None:  # only whole seconds, so known lines are skipped below
                since = datetime.fromtimestamp(before // _SECOND, UTC)
                query["sinceTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
            may_have_gap = before is not None or bool(last_lines)  # until the first new line
            silence = _FOLLOW_SILENCE_SECONDS if follow else _READ_SILENCE_SECONDS
            source = self.connection.lines(
                f"{self.path}/log", silence=silence, start=silence, **query
            )
            async with aclosing(source) as lines:  # writing raises an error if the disk is full
                async for line in lines:
                    if started is not None:
                        started.set()
                    prefix, separator, text = line.partition(b" ")
                    timestamp = parse_nanoseconds(prefix.decode("ascii", "replace"))
                    if not separator or timestamp is None:
                        continue  # a message of the kubelet
                    if before is not None and (
                        may_have_gap
                        and (timestamp < before or (timestamp == before and skipped < count_before))
                    ):
                        skipped += timestamp == before
                        continue
                    # If the last known line was still there, nothing is missing.
                    if may_have_gap and not skipped:
                        self._append(_SKIPPED if last_lines else _REMOVED)
                    may_have_gap = False
                    self._last_count = self._last_count + 1 if timestamp == self._last else 1
                    self._last = timestamp
                    self._append(text)
            self._open_writer()
            self._fetched_at = time.monotonic()

    def _open_writer(self) -> LogWriter:
        if self._writer is None:
            # An earlier service may have fetched lines. They are fetched again, with new offsets.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in self.folder.glob(f"{self.process}.*.log"):
                old.unlink(missing_ok=True)
            self._writer = LogWriter(self.folder, self.process, self.limit, [self.secret])
        return self._writer

    def _append(self, text: bytes) -> None:
        self._open_writer().feed(text)


def parse_nanoseconds(text: str) -> int | None:
    """Return a timestamp, in any time zone, in nanoseconds since 1970; None if it is invalid."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    offset = "+00:00" if match[3] == "Z" else match[3]
    try:
        seconds = int(datetime.fromisoformat(match[1] + offset).timestamp())
    except ValueError:
        return None
    return seconds * _SECOND + int((match[2] or "0").ljust(9, "0"))

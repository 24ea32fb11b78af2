"""The event stream: what happened, numbered, to be followed live and resumed where one left off.

What is new is encoded once and sent to all who may see it together, ten times a second at most, and
less often the more they are, so that a hundred viewers cost little more than one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from shadowprice.rest.jobs import StoredEvent
from shadowprice.service.clock import to_datetime
from shadowprice.service.truth.outcome import Told

INTERVAL: Final = 0.1
"""Seconds between two deliveries, at least."""

A_VIEWER: Final = 0.0025
"""Seconds that each viewer adds to that, up to a second: 400 deliveries a second at most."""

CHECK: Final = 1.0
"""Seconds between two looks at whether a quiet viewer may still look on."""

HEARTBEAT: Final = 15.0
"""Seconds after which a quiet stream says that it is alive."""

ALIVE: Final = b": alive\n\n"
"""What says so."""

WAITING: Final = 256
"""Deliveries that may wait for a slow viewer; one more ends the stream, to be resumed."""

PAGE: Final = 500
"""Entries read from the store at once."""

VIEWERS: Final = 1_000
"""Viewers at once, at most."""


def visible(event: Told | StoredEvent, tenant: str | None) -> bool:
    """Return whether a tenant may see an event; None is the operator, who sees all."""
    if tenant is None:
        return True
    return event.tenant == tenant or (event.tenant is None and event.job is None)


def encoded(told: Told) -> bytes:
    """Return an event as a server-sent event."""
    return message(
        StoredEvent(
            id=told.id,
            at=to_datetime(told.at),
            kind=told.kind,
            job=told.job,
            tenant=told.tenant,
            data=dict(told.data),
        )
    )


def message(event: StoredEvent) -> bytes:
    """Return a stored event as a server-sent event that a client can resume from."""
    # ASCII, because clients may split lines at Unicode separators too.
    text = event.model_dump_json(ensure_ascii=True)
    return f"id: {event.id}\nevent: {event.kind}\ndata: {text}\n\n".encode()


def transient_message(kind: str, data: Any) -> bytes:
    """Return a server-sent event without an id: it is not stored."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _always() -> bool:
    return True


@dataclass(slots=True, eq=False)
class Viewer:
    """One who follows the stream.

    Parameters
    ----------
    tenant : str or None
        Whose entries it sees, None for all.
    """

    tenant: str | None
    waiting: asyncio.Queue[tuple[int, bytes] | None] = field(
        default_factory=lambda: asyncio.Queue(WAITING)
    )
    behind: bool = False


class Hub:
    """Distributes what happens to viewers.

    Parameters
    ----------
    read : callable
        Returns entries after a number, of a tenant (None: all), in order; blocks.
    """

    def __init__(self, read: Callable[[int, str | None], list[StoredEvent]]) -> None:
        self._read = read
        self._viewers: set[Viewer] = set()
        self._fresh: deque[Told] = deque()
        self._fleeting: list[bytes] = []
        self._wake = asyncio.Event()
        self.last = 0
        self.closed = False

    @property
    def viewers(self) -> int:
        """How many follow."""
        return len(self._viewers)

    def publish(self, told: Iterable[Told]) -> None:
        """Take in what is new."""
        if not self._viewers:
            self.last = max((one.id for one in told), default=self.last)
            return
        self._fresh.extend(told)
        if self._fresh:
            self._wake.set()

    def mention(self, kind: str, data: Any) -> None:
        """Tell those who look on now, and nobody later."""
        if self._viewers:
            self._fleeting.append(transient_message(kind, data))
            self._wake.set()

    async def step(self) -> None:
        """Deliver once there is something new."""
        await self._wake.wait()
        self._wake.clear()
        try:
            self.deliver()
        except BaseException:
            # What was to be delivered is not in their streams: they read it when they resume.
            for viewer in self._viewers:
                viewer.behind = True
            self._viewers.clear()
            raise
        await asyncio.sleep(min(1.0, max(INTERVAL, A_VIEWER * self.viewers)))

    def deliver(self) -> None:
        """Hand what is new to every viewer."""
        fresh = list(self._fresh)
        fleeting = b"".join(self._fleeting)
        self._fresh.clear()
        self._fleeting.clear()
        if fresh:
            self.last = max(self.last, fresh[-1].id)
        chunks: dict[str | None, bytes] = {}
        texts = [(told, encoded(told)) for told in fresh] if self._viewers else []
        for viewer in list(self._viewers):
            chunk = chunks.get(viewer.tenant)
            if chunk is None:
                seen = (text for told, text in texts if visible(told, viewer.tenant))
                chunk = chunks[viewer.tenant] = b"".join(seen) + fleeting
            if not chunk:
                continue
            try:
                viewer.waiting.put_nowait((self.last, chunk))
            except asyncio.QueueFull:
                viewer.behind = True
                self._viewers.discard(viewer)

    async def follow(
        self, tenant: str | None, after: int | None, allowed: Callable[[], bool] = _always
    ) -> AsyncIterator[bytes]:
        """Yield the stream from after a number on, or from now on.

        It ends where the viewer reads too slowly, is not allowed any more, or the service stops;
        clients resume, or are told why they cannot.

        Parameters
        ----------
        tenant : str or None
            Whose entries, None for all.
        after : int or None
            The number.
        allowed : callable
            Whether the viewer still may; asked before everything that is sent, and every second.
        """
        viewer = Viewer(tenant)
        self.deliver()  # what is known already does not come twice
        self._viewers.add(viewer)
        try:
            yield b"retry: 2000\n\n"
            last = self.last
            if after is not None:
                async for number, chunk in self._missed(tenant, after):
                    if not allowed():
                        return
                    last = max(last, number)
                    yield chunk
            spoke = time.monotonic()
            while not self.closed and not (viewer.behind and viewer.waiting.empty()):
                try:
                    async with asyncio.timeout(CHECK):  # `wait_for` would begin a task each time
                        item = await viewer.waiting.get()
                except TimeoutError:
                    if not allowed():
                        return
                    if time.monotonic() - spoke >= HEARTBEAT:
                        spoke = time.monotonic()
                        yield ALIVE
                    continue
                if item is None or not allowed():
                    return
                spoke = time.monotonic()
                yield item[1]
        finally:
            self._viewers.discard(viewer)

    async def _missed(self, tenant: str | None, after: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield what the store has from after a number up to what the viewer is handed live."""
        until = self.last
        while after < until:
            entries = await asyncio.to_thread(self._read, after, tenant)
            if not entries:
                return
            texts = []
            for entry in entries:
                after = entry.id
                if after <= until and visible(entry, tenant):
                    texts.append(message(entry))
            # Where nothing of it is theirs, too: long silence is taken for a broken connection, and
            # whoever resumes from the same number again would never come to its end.
            yield after, b"".join(texts) or ALIVE

    def close(self) -> None:
        """End every stream."""
        self.closed = True
        for viewer in self._viewers:
            with suppress(asyncio.QueueFull):
                viewer.waiting.put_nowait(None)
            viewer.behind = True

"""The event stream: numbered events, delivered live and resumable from a number.

New events are encoded once for all subscribers. Deliveries happen at most ten times a second, and
less often with more subscribers, so that many subscribers don't block the event loop.
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

from shadowprice.rest import StoredEvent
from shadowprice.service.problems import ProblemError, tenant_limit_problem
from shadowprice.service.state.durable_state import StreamEvent
from shadowprice.service.state.store_queries import event_resource

MIN_DELIVERY_INTERVAL: Final = 0.1  # minimum seconds between two deliveries
DELIVERY_SECONDS_PER_SUBSCRIBER: Final = 0.0025  # the interval for many subscribers, at most 1 s
AUTH_RECHECK_SECONDS: Final = 1.0  # between two permission checks of a subscriber without events
HEARTBEAT: Final = 15.0  # seconds without events after which a stream sends a keep-alive
SUBSCRIBER_QUEUE_SIZE: Final = 256  # maximum queued deliveries; a slower subscriber's stream ends
MAX_SUBSCRIBERS: Final = 1_000  # maximum number of concurrent subscribers
MAX_TENANT_SUBSCRIBERS: Final = 100  # maximum number of subscribers of one tenant

OPERATOR_SUBSCRIBERS: Final = 100
"""Number of subscribers that are reserved for operators, of the maximum.

Half of them may still be taken by tenants without a stream.
"""


def is_visible(event: StreamEvent | StoredEvent, tenant: str | None) -> bool:
    """Return whether a tenant may see an event. An operator (None) sees all events."""
    if tenant is None:
        return True
    return event.tenant == tenant or (event.tenant is None and event.job is None)


def format_sse(event: StoredEvent) -> bytes:
    """Return a stored event as a server-sent event that a client can resume from."""
    # ASCII, because clients may split lines at Unicode separators too.
    text = event.model_dump_json(ensure_ascii=True)
    return f"id: {event.id}\nevent: {event.kind}\ndata: {text}\n\n".encode()


def keep_alive(number: int) -> bytes:
    """Return a comment that sets the number from which a subscriber resumes.

    Without it, a subscriber with few visible events would resume from an old event, and the service
    would read all events since then.
    """
    return f": alive\nid: {number}\n\n".encode()


@dataclass(slots=True, eq=False)
class Subscriber:
    """A subscriber of a tenant's events, or of all events if ``tenant`` is None.

    ``queue`` has deliveries with the number of their last event; None ends the stream.
    """

    tenant: str | None
    queue: asyncio.Queue[tuple[int, bytes] | None] = field(
        default_factory=lambda: asyncio.Queue(SUBSCRIBER_QUEUE_SIZE)
    )
    ended: bool = False  # whether the stream ends after the queued deliveries


class EventBroadcaster:
    """Broadcasts events; ``read`` blocks, and returns stored events after a number, in order."""

    def __init__(self, read: Callable[[int], list[StoredEvent]], last: int = 0) -> None:
        self._read = read
        self._subscribers: set[Subscriber] = set()
        self._fresh: deque[StreamEvent] = deque()  # stored, and not delivered
        self._transient: list[bytes] = []  # not stored, and not delivered
        self._wake = asyncio.Event()
        self.last = last  # number of the last delivered event
        self.closed = False

    @property
    def subscribers(self) -> int:
        """Number of subscribers."""
        return len(self._subscribers)

    def check_limits(self, tenant: str | None) -> None:
        """Raise `ProblemError` if a tenant (None: an operator) may not subscribe."""
        maximum = MAX_SUBSCRIBERS - (0 if tenant is None else OPERATOR_SUBSCRIBERS // 2)
        if self.subscribers >= maximum:
            raise ProblemError("overloaded", f"the stream has {self.subscribers} subscribers")
        if tenant is None:
            return
        own = sum(subscriber.tenant == tenant for subscriber in self._subscribers)
        free = MAX_SUBSCRIBERS - OPERATOR_SUBSCRIBERS - self.subscribers
        # A tenant has at most as many streams as are free, so that a few tenants can't take all.
        if own >= min(MAX_TENANT_SUBSCRIBERS, max(free, 1)):
            raise tenant_limit_problem(
                f"{own} open event streams are the limit of a tenant now", "close some of them"
            )

    def publish(self, events: Iterable[StreamEvent]) -> None:
        """Queue new events for the next delivery."""
        if not self._subscribers:
            self.last = max((event.id for event in events), default=self.last)
            return
        self._fresh.extend(events)
        if self._fresh:
            self._wake.set()

    def publish_transient(self, kind: str, data: Any) -> None:
        """Broadcast an event that isn't stored to the current subscribers."""
        if self._subscribers:
            text = json.dumps(data, separators=(",", ":"))
            self._transient.append(f"event: {kind}\ndata: {text}\n\n".encode())
            self._wake.set()

    async def step(self) -> None:
        """Wait for new events, deliver them, and sleep for the interval."""
        await self._wake.wait()
        self._wake.clear()
        try:
            self.deliver()
        except BaseException:
            # The streams lack these events: end them, so that subscribers resume from the store.
            self._drop_subscribers()
            raise
        await asyncio.sleep(
            min(1.0, max(MIN_DELIVERY_INTERVAL, DELIVERY_SECONDS_PER_SUBSCRIBER * self.subscribers))
        )

    def deliver(self) -> None:
        """Put the new events into every subscriber's queue."""
        fresh = list(self._fresh)
        transient = b"".join(self._transient)
        self._fresh.clear()
        self._transient.clear()
        if fresh:
            self.last = max(self.last, fresh[-1].id)
        chunks: dict[str | None, bytes] = {}
        encoded_events = [
            (event, format_sse(event_resource(event, dict(event.data))))
            for event in (fresh if self._subscribers else ())
        ]
        for subscriber in list(self._subscribers):
            chunk = chunks.get(subscriber.tenant)
            if chunk is None:
                visible = (
                    text for event, text in encoded_events if is_visible(event, subscriber.tenant)
                )
                chunk = chunks[subscriber.tenant] = b"".join(visible) + transient
            if not chunk:
                continue
            try:
                subscriber.queue.put_nowait((self.last, chunk))
            except asyncio.QueueFull:
                subscriber.ended = True
                self._subscribers.discard(subscriber)

    def resync(self, last: int) -> None:
        """End all streams, drop undelivered events, and continue after the event ``last``."""
        self._fresh.clear()
        self.last = last
        self._drop_subscribers()

    def _drop_subscribers(self) -> None:
        for subscriber in self._subscribers:
            subscriber.ended = True
        self._subscribers.clear()

    async def follow(
        self, tenant: str | None, after: int | None, allowed: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[bytes]:
        """Yield the stream of a tenant's events (None: all), after a number or from now on.

        The stream ends if the subscriber reads too slowly or loses permission, or if the service
        stops. ``allowed`` returns whether the subscriber has permission. It is called before every
        delivery, and every second between deliveries.
        """
        try:
            self.check_limits(tenant)  # again, because concurrent requests passed the first check
        except ProblemError:
            return
        subscriber = Subscriber(tenant)
        self.deliver()  # before it subscribes, or it would get these events from the store too
        self._subscribers.add(subscriber)
        try:
            last = self.last  # later events come through the queue
            # With the id, a client can resume a stream that breaks before its first event.
            yield f"retry: 2000\nid: {last}\n\n".encode() if after is None else b"retry: 2000\n\n"
            if after is not None:
                async for chunk in self._replay_missed(tenant, after, last):
                    if not allowed():
                        return
                    yield chunk
            last_sent = time.monotonic()
            while not self.closed and not (subscriber.ended and subscriber.queue.empty()):
                try:
                    async with asyncio.timeout(
                        AUTH_RECHECK_SECONDS
                    ):  # `wait_for` would begin a task each time
                        item = await subscriber.queue.get()
                except TimeoutError:
                    if not allowed():
                        return
                    # Otherwise the subscriber lacks some events up to the last one.
                    is_complete = subscriber.queue.empty() and not subscriber.ended
                    if is_complete and time.monotonic() - last_sent >= HEARTBEAT:
                        last_sent = time.monotonic()
                        yield keep_alive(self.last)
                    continue
                if item is None or not allowed():
                    return
                last_sent = time.monotonic()
                yield item[1]
        finally:
            self._subscribers.discard(subscriber)

    async def _replay_missed(
        self, tenant: str | None, after: int, until: int
    ) -> AsyncIterator[bytes]:
        """Yield the stored events with numbers above ``after``, up to ``until``."""
        while after < until:
            events = await asyncio.to_thread(self._read, after)
            if not events:
                return
            texts = []
            for event in events:
                after = event.id
                if after <= until and is_visible(event, tenant):
                    texts.append(format_sse(event))
            # A keep-alive if no event is visible, because a silent connection looks broken.
            yield b"".join(texts) or keep_alive(min(after, until))

    def close(self) -> None:
        """End every stream."""
        self.closed = True
        for subscriber in self._subscribers:
            with suppress(asyncio.QueueFull):
                subscriber.queue.put_nowait(None)
            subscriber.ended = True

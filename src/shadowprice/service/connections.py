"""Limits on connections that apply before authentication: number, heads, and lines in the log.

Any client that reaches the port can open connections without a token. Neither httptools nor
uvicorn limits the size or the duration of a request's head. Each connection also takes a file
descriptor, which the store and the executor need too. Errors of a connection are logged once a
minute for each address, because a client may cause them at any rate.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEADER_BYTES: Final = 64 << 10
"""Maximum bytes of a request's head."""

HEADER_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a request's head, from the start of the connection or of the head."""

FILE_LIMIT: Final = 4_096
"""Open files that the service requests if its soft limit is lower; limits the connections."""

RESERVED_FILES: Final = 256
"""Open files reserved for the store, the executor and records."""

LOG_INTERVAL_SECONDS: Final = 60.0
"""Minimum seconds between two logged errors of one address."""

MAX_LOGGED_ADDRESSES: Final = 100
"""Maximum number of addresses whose errors are logged in one interval."""

log: Final = logging.getLogger("shadowprice.service.connections")

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def max_connections() -> int:
    """Return the maximum number of connections, after raising the soft limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(files - RESERVED_FILES, files // 2)


class ErrorLimit:
    """Limit of logged errors: one for each address in `LOG_INTERVAL_SECONDS`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}
        self._dropped: Counter[str] = Counter()

    def admit(self, address: str) -> int | None:
        """Return how many errors of an address were dropped before this one; None to drop it."""
        now = self._clock()
        while self._logged:
            oldest = next(iter(self._logged))
            if now - self._logged[oldest] < LOG_INTERVAL_SECONDS:
                break
            del self._logged[oldest]
        if address in self._logged or len(self._logged) >= MAX_LOGGED_ADDRESSES:
            if address in self._dropped or len(self._dropped) < MAX_LOGGED_ADDRESSES:
                self._dropped[address] += 1
            return None
        self._logged[address] = now
        return self._dropped.pop(address, 0)


_limit: Final = ErrorLimit()


class ErrorLog:
    """uvicorn's logger of one connection: errors only, and these limited by its address.

    Malformed requests are warnings of uvicorn, with which a client could fill the log.
    """

    level: Final = logging.ERROR

    def __init__(self, address: str) -> None:
        self._address = address

    def error(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log an error, unless the address had one a moment ago."""
        dropped = _limit.admit(self._address)
        if dropped is not None:
            text = f"{message.strip()} (request of %s; {dropped} earlier errors not logged)"
            log.error(text, *args, self._address, exc_info=exc_info)

    def warning(self, *args: object) -> None:
        """Drop a warning."""

    def log(self, *args: object) -> None:
        """Drop a trace message."""


class OpenTransport:
    """Transport whose methods do nothing once it is closing.

    A request may be answered after its connection was reset. uvloop raises then.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Write data, unless the connection is closing."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Pause reading, unless the connection is closing."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless the connection is closing."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def __getattr__(self, name: str) -> Any:
        """Return another method of the transport."""
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """HTTP connection that is closed if a request's head is too large or too slow.

    Parameters
    ----------
    most : int
        Maximum number of connections; more are closed at once.
    head_seconds : float
        Timeout of a request's head.
    **named
        uvicorn's arguments of a protocol.
    """

    def __init__(
        self, *, most: int, head_seconds: float = HEADER_TIMEOUT_SECONDS, **named: Any
    ) -> None:
        super().__init__(**named)
        self.logger = ErrorLog("unknown")  # type: ignore[assignment]  # the part that uvicorn uses
        self._most, self._head_seconds = most, head_seconds
        # Bytes received since the last body chunk, end of a head, or end of a request.
        self._beside = 0
        self._late: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or abort it above the limit."""
        super().connection_made(OpenTransport(transport))  # type: ignore[arg-type]  # its methods
        if self.client is not None:
            self.logger = ErrorLog(self.client[0])  # type: ignore[assignment]  # see `__init__`
        if len(self.connections) > self._most:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the head's timeout, and drop pipelined requests."""
        self._have_head()
        self.pipeline.clear()
        if self._answering is not None:
            self._answering.disconnected = True  # uvicorn only marks the last pipelined request
            self._answering.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Parse data; close the connection if the head is too large."""
        self._beside += len(data)
        super().data_received(data)
        if self._beside > MAX_HEADER_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Start the timeout of a request's head."""
        super().on_message_begin()
        if self._late is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Cancel the head's timeout, because the head is complete."""
        self._beside = 0
        self._have_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a body chunk on; the handler limits the body's size."""
        self._beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the count of bytes at the end of a request."""
        self._beside = 0
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._late = self.loop.call_later(self._head_seconds, self.transport.close)

    def _have_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

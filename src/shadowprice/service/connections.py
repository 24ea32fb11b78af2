"""Limits before authentication: number of connections, size and time of headers, logged errors.

Any client that reaches the port can open connections without a token. Neither httptools nor
uvicorn limits the size or the duration of a request's header. Each connection also takes a file
descriptor, which the store and the executor need too. Errors are logged once a minute per address,
because a client can cause them at any rate.
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

MAX_HEADER_BYTES: Final = 64 << 10  # maximum size of a request's header

HEADER_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a request's header, from the start of the connection or of the header.

It is also the timeout of the remaining body after a response: otherwise, a refused client could
send its body forever.
"""

FILE_LIMIT: Final = 4_096  # open files to which a lower soft limit is raised
RESERVED_FILES: Final = 256  # open files reserved for the store, the executor and records
LOG_INTERVAL_SECONDS: Final = 60.0  # minimum seconds between two logged errors of one address
MAX_LOGGED_ADDRESSES: Final = 100  # maximum addresses whose errors are logged in one interval
log: Final = logging.getLogger("shadowprice.service.connections")

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def max_connections() -> int:
    """Raise the soft limit of open files; return the maximum number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(files - RESERVED_FILES, files // 2)


class ErrorLimit:
    """Rate limit of logged errors: one per address in `LOG_INTERVAL_SECONDS`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}  # time of the last logged error by address, in order
        self._dropped: Counter[str] = Counter()  # errors by address since its last logged one

    def admit(self, address: str) -> int | None:
        """Return the number of dropped errors of an address, or None to drop this error too."""
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
    """Logger for uvicorn, of one connection: drops warnings, and limits errors by `ErrorLimit`."""

    level: Final = logging.ERROR

    def __init__(self, address: str) -> None:
        self._address = address

    def error(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log an error, subject to the limit of the address."""
        dropped = _limit.admit(self._address)
        if dropped is not None:
            text = f"{message.strip()} (request of %s; {dropped} earlier errors not logged)"
            log.error(text, *args, self._address, exc_info=exc_info)

    def warning(self, *args: object) -> None:
        """Drop a warning."""

    def log(self, *args: object) -> None:
        """Drop a trace message."""


class OpenTransport:
    """Transport whose methods do nothing once it is closing; those of uvloop would raise."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the transport, or a method that does nothing."""
        if name in {"write", "pause_reading", "resume_reading"} and self._transport.is_closing():
            return lambda *_: None
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """HTTP connection that is closed if a request's header is too large or too slow."""

    def __init__(
        self, *, max_connections: int, header_seconds: float = HEADER_TIMEOUT_SECONDS, **named: Any
    ) -> None:
        super().__init__(**named)
        self.logger = ErrorLog("unknown")  # type: ignore[assignment]  # has what uvicorn uses
        self._max_connections, self._header_seconds = max_connections, header_seconds
        # Bytes received since the end of a header, a body chunk or a request.
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._is_body_complete = True
        self._current_cycle: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or abort it above the limit."""
        super().connection_made(OpenTransport(transport))  # type: ignore[arg-type]  # its methods
        if self.client is not None:
            self.logger = ErrorLog(self.client[0])  # type: ignore[assignment]  # see `__init__`
        if len(self.connections) > self._max_connections:
            transport.abort()
        else:
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the header's timeout, and drop pipelined requests."""
        self._cancel_header_timer()
        self.pipeline.clear()
        if self._current_cycle is not None:
            self._current_cycle.disconnected = True  # uvicorn only marks the last pipelined request
            self._current_cycle.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Parse data; close the connection if the header is too large."""
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            # After the start of a response, no other one can be sent.
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Start the timeout of a request's header."""
        super().on_message_begin()
        self._is_body_complete = False
        if self._header_timer is None:
            self._start_header_timer()

    def on_headers_complete(self) -> None:
        """Cancel the timeout, because the header is complete."""
        self._header_bytes = 0
        self._cancel_header_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a body chunk on; the handler limits the body's size."""
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the count of bytes at the end of a request."""
        self._header_bytes = 0
        self._is_body_complete = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the timeout, if the request was answered before all of its body came."""
        # If a pipelined request follows, the incomplete body is that request's, and its handler
        # limits the body.
        is_newest = self._current_cycle is self.cycle
        super().on_response_complete()
        if is_newest and not self._is_body_complete and self._header_timer is None:
            self._start_header_timer()

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._header_seconds, self.transport.close)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

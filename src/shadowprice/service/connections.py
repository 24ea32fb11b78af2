"""Limits on connections that apply before authentication: number, head size and head time.

Any client that reaches the port can open connections without a token. Neither httptools nor
uvicorn limits the size or the duration of a request's head. Each connection also takes a file
descriptor, which the store and the executor need too.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD: Final = 64 << 10
"""Maximum bytes of a request's head."""

HEADER_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a request's head, from the start of the connection or of the head."""

FILES: Final = 4_096
"""Open files that the service requests if its soft limit is lower; limits the connections."""

RESERVED_FILES: Final = 256
"""Open files reserved for the store, the executor and records."""

_ERRORS: Final = logging.getLogger("shadowprice.service.connections")
"""Logger without warnings of malformed requests, with which clients could fill the log."""
_ERRORS.setLevel(logging.ERROR)

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def most_connections() -> int:
    """Return the maximum number of connections, after raising the soft limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(files - RESERVED_FILES, files // 2)


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
        self.logger = _ERRORS
        self._most, self._head_seconds = most, head_seconds
        # Bytes received since the last body chunk, end of a head, or end of a request.
        self._beside = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or abort it above the limit."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the head's timeout."""
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data; close the connection if the head is too large."""
        self._beside += len(data)
        super().data_received(data)
        if self._beside > HEAD and not self.transport.is_closing():
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

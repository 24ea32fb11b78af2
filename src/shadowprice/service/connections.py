"""Connections, held within bounds before anybody is known: in number, in size and in time.

Whoever reaches the port can open one, and needs no token to send on it. Neither httptools nor
uvicorn bounds a request's head, or how long it may take; and each connection takes a descriptor
that the store and the executor need as well.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD: Final = 64 << 10
"""Bytes of a request beside its body, at most."""

HEAD_SECONDS: Final = 30.0
"""Time that a request's head may take, from the beginning of its connection or of the head."""

FILES: Final = 4_096
"""Open files that the service asks for where its limit is lower, and deals with connections by."""

OWN_FILES: Final = 256
"""Open files that are left to everything but connections: the store, the executor, records."""

_ERRORS: Final = logging.getLogger("shadowprice.service.connections")
"""What is wrong with requests is answered; a line for each would let anybody fill the log."""
_ERRORS.setLevel(logging.ERROR)

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def most_connections() -> int:
    """Return how many connections there may be at once; the limit of open files may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(files - OWN_FILES, files // 2)


class Connection(HttpToolsProtocol):
    """A connection that ends where a request's head is too large or too long in coming.

    Parameters
    ----------
    most : int
        Connections at once; one more is closed unheard.
    head_seconds : float
        Time that a request's head may take.
    **named
        What uvicorn makes a connection with.
    """

    def __init__(self, *, most: int, head_seconds: float = HEAD_SECONDS, **named: Any) -> None:
        super().__init__(**named)
        self.logger = _ERRORS
        self._most, self._head_seconds = most, head_seconds
        # Bytes since a piece of a body, or the end of a head or a request.
        self._beside = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, where there may be one more."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what comes; too much that is no body ends the connection."""
        self._beside += len(data)
        super().data_received(data)
        if self._beside > HEAD and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        if self._late is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Know what is asked."""
        self._beside = 0
        self._have_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body: how much of it there may be is for who asked for it to say."""
        self._beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._beside = 0
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._late = self.loop.call_later(self._head_seconds, self.transport.close)

    def _have_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
